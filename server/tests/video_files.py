"""Video files through the program ffmpeg: scripts/openai-clients starts it, with an ffmpeg of its own.

    python video_files.py PROGRAM MODEL URL KEY FFMPEG FOLDER

Makes files of frames whose pixels it knows, with lossless codecs, so that a file has the vector (`pascaline embed`) of the same frames in a
folder: rates, variable ones too, rotation, odd sizes, sound, a file that does not state its length, a long one. Then files that are none, and the
server.
"""

import base64
import json
import os
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

program, model, url, key, ffmpeg, folder = sys.argv[1:]
program, model, folder = Path(program).resolve(), Path(model).resolve(), Path(folder)
tools = folder / "bin"
environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
LOSSLESS = ["-c:v", "libx264rgb", "-qp", "0"]


def make(*arguments):
    subprocess.run([ffmpeg, "-nostdin", "-v", "error", "-y", *map(str, arguments)], cwd=folder, check=True)


def pixels(number, width, height):
    """Those of a frame: a block that moves, on a background that brightens. No row or column is like another."""
    rows = [
        [(8 * number % 256, 3 * x % 256, 5 * y % 256) if (x // 16 + y // 16) % 7 != number % 7 else (250, 10, 10) for x in range(width)]
        for y in range(height)
    ]
    return rows


def frames(name, rows_of_frames):
    """A folder of pictures."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(rows_of_frames):
        data = b"".join(bytes(pixel) for row in rows for pixel in row)
        make_ppm = f"P6\n{len(rows[0])} {len(rows)}\n255\n".encode() + data
        subprocess.run(
            [ffmpeg, "-v", "error", "-y", "-f", "ppm_pipe", "-i", "pipe:0", folder / name / f"{number:03}.png"],
            input=make_ppm,
            check=True,
        )
    return folder / name


def run(command, *arguments, path=None, **options):
    variables = environment if path is None else {**environment, "PATH": path}
    return subprocess.run(
        [program, command, "--model", str(model), "--device", "cpu", "--quiet", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=variables,
        stdin=subprocess.DEVNULL,
        **options,
    )


def vectors(*items):
    """The vectors and the numbers of tokens of videos, each an object with `video` and perhaps `fps` and `max_frames`."""
    lines = "".join(json.dumps({name: value if name != "video" else str(value) for name, value in item.items()}) + "\n" for item in items)
    file = folder / "items.jsonl"
    file.write_text(lines)
    output = run("embed", "--input", file)
    assert output.returncode == 0, output.stderr
    found = [json.loads(line) for line in output.stdout.splitlines()]
    assert len(found) == len(items)
    return [(item["tokens"], item["embedding"]) for item in found]


def refused(part, video, path=None, **options):
    output = run("generate", "-p", "x", "-n", "1", f"--video={video}", path=path, **options)
    assert output.returncode == 1 and part in output.stderr and output.stderr.count("\n") <= 2, (output.returncode, output.stderr)


def script(name, text):
    (folder / name).mkdir(exist_ok=True)
    file = folder / name / "ffmpeg"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(folder / name)


tools.mkdir(parents=True, exist_ok=True)
(tools / "ffmpeg").unlink(missing_ok=True)
(tools / "ffmpeg").symlink_to(ffmpeg)

# thirty frames, ten a second, of a width and a height that are odd
shown = [pixels(number, 67, 45) for number in range(30)]
frames("all", shown)
sampled = frames("sampled", shown[::5])  # what is seen at two a second
source = ["-framerate", 10, "-i", "all/%03d.png"]
make(*source, *LOSSLESS, "plain.mp4")
make(*source, "-c:v", "ffv1", "-pix_fmt", "gbrp", "plain.mkv")
make(*source, "-f", "lavfi", "-i", "sine=d=3", *LOSSLESS, "-c:a", "aac", "sound.mp4")
make("-i", "plain.mp4", "-c", "copy", "moved.ts")  # whose first frame is at 1.4 s
with open(folder / "live.webm", "wb") as file:  # written to a pipe, so that its length is not in it
    live = [*source, "-c:v", "libvpx-vp9", "-lossless", "1", "-pix_fmt", "gbrp", "-f", "webm", "pipe:1"]
    subprocess.run([ffmpeg, "-nostdin", "-v", "error", *map(str, live)], cwd=folder, stdout=file, check=True)
same = ["plain.mp4", "plain.mkv", "sound.mp4", "moved.ts", "live.webm"]
expected, *found = vectors({"video": sampled}, *({"video": folder / name} for name in same))
for name, vector in zip(same, found, strict=True):
    assert vector == expected, f"{name}: {vector[0]} tokens, {expected[0]} expected, or other pixels"
other = vectors({"video": frames("other", shown[2::5])})[0]
assert other[0] == expected[0] and other[1] != expected[1], "the vector knows other frames"

# turned by a mark in the file: width and height change places
turned = [[[rows[y][x] for y in range(len(rows))] for x in reversed(range(len(rows[0])))] for rows in shown[::5]]
make("-display_rotation", 90, "-i", "plain.mp4", "-c", "copy", "turned.mp4")
expected, found = vectors({"video": frames("turned", turned)}, {"video": folder / "turned.mp4"})
assert found == expected, (found[0], expected[0])

# frames at 0, 0.12, 1.48 and 2 s (times of a picture file are multiples of 0.04 s)
times = [(0, 0.12), (10, 1.36), (20, 0.52), (29, 0.96)]
listed = "".join(f"file all/{number:03}.png\nduration {seconds}\n" for number, seconds in times) + "file all/029.png\n"
(folder / "list.txt").write_text(listed)
make("-f", "concat", "-i", "list.txt", "-fps_mode", "vfr", *LOSSLESS, "-video_track_timescale", 1000, "varying.mp4")
expected, found = vectors(
    {"video": frames("varying", [shown[number] for number in [0, 10, 10, 20, 29, 29]])}, {"video": folder / "varying.mp4"}
)
assert found == expected, (found[0], expected[0])

# ten minutes, of which 64 frames are seen
make("-f", "lavfi", "-i", "testsrc=d=600:r=5:s=64x64", *LOSSLESS, "-preset", "ultrafast", "long.mp4")
make("-f", "lavfi", "-i", "testsrc=d=32:r=2:s=64x64", *LOSSLESS, "short.mp4")
long, short = vectors({"video": folder / "long.mp4"}, {"video": folder / "short.mp4"})
assert long[0] > short[0] and long[1] != short[1], "as many frames, whose times have more digits"

# names that look like options, or like patterns of names
for name in ["-v.mp4", "100%d: a.mp4"]:
    (folder / name).write_bytes((folder / "plain.mp4").read_bytes())
    output = run("generate", "-p", "x", "-n", "1", f"--video={name}", cwd=folder)
    assert output.returncode == 0, output.stderr

# what is no video
(folder / "text.mp4").write_text("this is no video\n" * 100)
make("-f", "lavfi", "-i", "sine=d=1", "-c:a", "aac", "sound.m4a")
whole = (folder / "plain.mp4").read_bytes()
(folder / "half.mp4").write_bytes(whole[: len(whole) // 2])
for name in ["text.mp4", "half.mp4", "sound.m4a"]:
    refused("ffmpeg", folder / name)
plain = folder / "plain.mp4"
refused("which is not installed", plain, path=str(folder / "nothing"))
killed = script("killed", f'case "$*" in *image2pipe*) kill -9 $$;; esac\nexec {ffmpeg} "$@"')
refused("ffmpeg", plain, path=killed)

# the command and the server see the same
output = run("generate", "-p", "What happens?", "-n", "8", "--greedy", "--json", "-", "--video", plain)
generated = json.loads(output.stdout)


def ask(file, kind="mp4"):
    data = f"data:video/{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
    parts = [{"type": "video_url", "video_url": {"url": data}}, {"type": "text", "text": "What happens?"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        return json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


answer = ask(plain)
assert answer["usage"]["prompt_tokens"] == len(generated["prompt_ids"]), answer
assert answer["choices"][0]["message"]["content"] == generated["text"], (answer, generated)
other = ask(folder / "live.webm", "webm")
assert other["choices"][0]["message"] == answer["choices"][0]["message"], other
for name in ["text.mp4", "half.mp4", "sound.m4a"]:
    status, message = ask(folder / name)
    assert status == 400 and str(folder) not in message, message
# a playlist would make ffmpeg read other files
(folder / "list.m3u8").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\n" + str(folder / "moved.ts") + "\n#EXT-X-ENDLIST\n")
status, message = ask(folder / "list.m3u8")
assert status == 400, message
