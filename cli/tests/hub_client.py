"""The huggingface_hub package and the program with one cache and a hub of this machine: scripts/hub-clients starts it.

    python hub_client.py PROGRAM MODEL
"""

import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

program, model = sys.argv[1], pathlib.Path(sys.argv[2])
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {file.name: file.read_bytes() for file in model.iterdir() if file.is_file()}
GGUF = {"README.md": b"# tiny\n", "q4/tiny-Q4_0.gguf": bytes(range(256)) * 500, "mmproj-tiny-F16.gguf": b"v" * 200_000}
REPOS = {"someone/model": FILES, "someone/model-GGUF": GGUF}
WANTED = {  # what loading reads
    "someone/model": [name for name in FILES if not name.startswith("cases")],
    "someone/model-GGUF": [name for name in GGUF if name.endswith(".gguf")],
}


def etag(content):
    """As the hub's: of large files the SHA-256, of others git's hash."""
    if len(content) > 100_000:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    requests = []

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path, _, query = self.path.partition("?")
        asked = self.headers.get("Range")
        Hub.requests.append((self.command, path, asked))
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self.api("/".join(parts[2:4]), parts[4:], query)
        large = parts[0] == "large"
        repo, name = "/".join(parts[large : large + 2]), "/".join(parts[large + 4 :])
        content = REPOS.get(repo, {}).get(name)
        if content is None or parts[large + 2] != "resolve":
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        headers = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if not large and len(content) > 100_000:
            linked = {"X-Linked-Etag": f'"{etag(content)}"', "X-Linked-Size": str(len(content))}
            return self.answer(302, b"", headers | linked | {"Location": f"http://{self.headers['Host']}/large{path}"})
        headers["ETag"] = f'"{etag(content)}"'
        if asked is None:
            return self.answer(200, content, headers)
        first, last = asked.removeprefix("bytes=").split("-")
        part = content[int(first) : int(last) + 1 if last else None]
        headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
        self.answer(206, part, headers)

    def api(self, repo, rest, query):
        files = REPOS.get(repo)
        if files is None or rest[:1] not in ([], ["revision"], ["tree"]):
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        listed = []
        for name, content in files.items():
            large = {"sha256": etag(content), "oid": etag(content), "size": len(content), "pointerSize": 134}
            entry = {"size": len(content), "blobId": etag(content)[:40]} if "blobs=" in query else {}
            if rest[:1] == ["tree"]:
                entry = {"type": "file", "size": len(content), "oid": etag(content)[:40], "path": name}
            else:
                entry["rfilename"] = name
            if len(content) > 100_000 and len(entry) > 1:
                entry["lfs"] = large
            listed.append(entry)
        answer = listed if rest[:1] == ["tree"] else {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": listed}
        self.answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json", "X-Repo-Commit": COMMIT})

    def answer(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
for variable in [name for name in os.environ if name.startswith("HF_")]:
    del os.environ[variable]
folder = pathlib.Path(tempfile.mkdtemp())
endpoint = f"http://127.0.0.1:{server.server_port}"
os.environ.update(HF_ENDPOINT=endpoint, HF_HOME=str(folder / "home"), HF_HUB_DISABLE_XET="1", NO_PROXY="*")
os.environ.update(HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1")

import huggingface_hub  # noqa: E402, as it reads the variables
from huggingface_hub.utils import WeakFileLock  # noqa: E402


def pull(repo, cache, **variables):
    """The path that the program prints."""
    environment = os.environ | {"HF_HUB_CACHE": str(cache)} | variables
    done = subprocess.run([program, "pull", repo], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.strip())


def fetched():
    """The files asked for since the last call."""
    found = {path for method, path, _ in Hub.requests if method == "GET" and "/resolve/" in path}
    Hub.requests.clear()
    return found


def layout(cache, repo):
    """A repository's blobs, references and links, and its locks."""
    root = cache / ("models--" + repo.replace("/", "--"))
    found = {}
    for path in sorted([*root.glob("blobs/*"), *root.glob("refs/**/*"), *root.glob("snapshots/**/*")]):
        if path.is_symlink():
            found[str(path.relative_to(root))] = os.readlink(path)
        elif path.is_file():
            found[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found, sorted(lock.name for lock in (cache / ".locks" / root.name).iterdir())


for repo, wanted in WANTED.items():
    ours, theirs = folder / "ours", folder / "theirs"
    contents = {name: REPOS[repo][name] for name in wanted}

    # The program fetches, the package reads.
    path = pull(repo, ours)
    fetched()
    snapshot = pathlib.Path(huggingface_hub.snapshot_download(repo, cache_dir=ours, local_files_only=True))
    assert snapshot == (path if path.is_dir() else path.parents[1]), (snapshot, path)
    for name, content in contents.items():
        for revision in (None, COMMIT):
            found = huggingface_hub.try_to_load_from_cache(repo, name, cache_dir=ours, revision=revision)
            assert isinstance(found, str) and pathlib.Path(found).read_bytes() == content, (name, found)
    assert huggingface_hub.snapshot_download(repo, cache_dir=ours, allow_patterns=wanted) == str(snapshot)
    assert fetched() == set(), "the package fetches what the cache has"
    scan = huggingface_hub.scan_cache_dir(ours)
    assert not scan.warnings, scan.warnings
    (found,) = [found for found in scan.repos if found.repo_id == repo]
    (revision,) = found.revisions
    assert (revision.commit_hash, revision.refs) == (COMMIT, frozenset({"main"})), revision
    assert (found.nb_files, found.size_on_disk) == (len(wanted), sum(map(len, contents.values()))), found

    # The package fetches, the program reads; and both lay it out alike.
    huggingface_hub.snapshot_download(repo, cache_dir=theirs, allow_patterns=wanted)
    assert len(fetched()) >= len(wanted)
    relative = path.relative_to(ours)
    assert pull(repo, theirs, HF_HUB_OFFLINE="1") == theirs / relative
    assert pull(repo, theirs) == theirs / relative
    assert fetched() == set(), "the program fetches what the cache has"
    assert layout(ours, repo) == layout(theirs, repo), (layout(ours, repo), layout(theirs, repo))

# A part that an older version of the package left is resumed, and its lock is respected.
content = FILES["model.safetensors"]
blob = folder / "ours/models--someone--model/blobs" / etag(content)
blob.unlink()
blob.with_name(blob.name + ".incomplete").write_bytes(content[: len(content) // 2])
with WeakFileLock(folder / "ours/.locks/models--someone--model" / f"{etag(content)}.lock"):
    environment = os.environ | {"HF_HUB_CACHE": str(folder / "ours")}
    pipes = {"text": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    waiting = subprocess.Popen([program, "pull", "someone/model"], env=environment, **pipes)
    assert "another process" in waiting.stderr.readline()
    assert not blob.exists()
assert waiting.wait(300) == 0
assert blob.read_bytes() == content
starts = {asked for method, path, asked in Hub.requests if path.startswith("/large/")}
assert starts == {f"bytes={len(content) // 2}-"}, starts
print(f"huggingface_hub {huggingface_hub.__version__} and the program share a cache")
