//! Models by their names on the hub, served by a hub of this machine that cuts connections and lies.

use crate::common::program::{pascaline, stderr, stdout};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/qwen3-vl/tiny");
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A lie of the hub.
#[derive(Clone)]
enum Lie {
    /// This is the ETag of every file.
    Etag(String),
    /// This is the commit of every file.
    Commit(String),
    /// The listing is this text.
    Listing(String),
    /// This many bytes follow each file, whose length is not stated.
    Longer(usize),
    /// Each file is stated to be this much longer.
    States(usize),
    /// Large files, and the listing, are at this address.
    Elsewhere(String),
    /// Each file is this many redirects away.
    Hops(usize),
    /// Nothing is answered.
    Silence,
    /// Headers come for ever.
    EndlessHeaders,
    /// Bodies come a byte at a time.
    SlowBodies,
}

/// The hub's faults.
#[derive(Clone, Default)]
struct Faults {
    /// The first transfers of each large file end after this many bytes.
    cut_after: Option<usize>,
    /// How many of them.
    cuts: usize,
    /// One byte of each large file is another than its SHA-256 is of.
    corrupt: bool,
    /// The status of every answer.
    status: Option<u16>,
    lie: Option<Lie>,
}

impl From<Lie> for Faults {
    fn from(lie: Lie) -> Self {
        Self { lie: Some(lie), ..Self::default() }
    }
}

struct State {
    folder: PathBuf,
    faults: Faults,
    /// Every request: its path and the byte that its range begins with.
    requests: Vec<(String, usize)>,
    /// The host and the token of every request.
    tokens: Vec<(String, Option<String>)>,
}

/// A hub that serves the files of a folder as the model `someone/model`, and files of over 100 kB from another address,
/// as the real one does.
struct TestHub {
    address: String,
    state: Arc<Mutex<State>>,
    cache: tempfile::TempDir,
}

impl TestHub {
    fn new(folder: &Path, faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let state = State { folder: folder.to_owned(), faults, requests: Vec::new(), tokens: Vec::new() };
        let (state, cache) = (Arc::new(Mutex::new(state)), tempfile::tempdir().expect("a folder"));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || answer(stream, &shared));
            }
        });
        Self { address, state, cache }
    }

    fn with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        self.command(arguments).envs(variables.iter().copied()).output().expect("the program starts")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = pascaline(arguments);
        for variable in ["HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_HUB_DOWNLOAD_TIMEOUT"] {
            command.env_remove(variable);
        }
        command.env("HF_HOME", self.home()).env("HF_ENDPOINT", &self.address);
        command
    }

    /// The folder with the cache, beside which nothing may be touched.
    fn home(&self) -> PathBuf {
        self.cache.path().join("home")
    }

    /// The model's folder in the cache.
    fn repo(&self) -> PathBuf {
        self.home().join("hub/models--someone--model")
    }

    /// The names of the blobs.
    fn blobs(&self) -> Vec<String> {
        names(&self.repo().join("blobs"))
    }

    fn lie(&self, lie: Lie) {
        self.state.lock().expect("no panic").faults = lie.into();
    }

    fn pull(&self) -> Output {
        self.with(&["pull", "someone/model"], &[])
    }

    fn requests(&self) -> Vec<(String, usize)> {
        std::mem::take(&mut self.state.lock().expect("no panic").requests)
    }

    fn tokens(&self) -> Vec<(String, Option<String>)> {
        std::mem::take(&mut self.state.lock().expect("no panic").tokens)
    }
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let (mut start, mut end, mut token, mut host) = (0, usize::MAX, None, String::new());
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim().split_once(": ") else { break };
        if name.eq_ignore_ascii_case("range") {
            let (from, to) = value.strip_prefix("bytes=")?.split_once('-')?;
            start = from.parse().ok()?;
            end = to.parse().map_or(usize::MAX, |last: usize| last + 1);
        } else if name.eq_ignore_ascii_case("authorization") {
            token = Some(value.to_owned());
        } else if name.eq_ignore_ascii_case("host") {
            host = value.to_owned();
        }
    }
    let mut state = state.lock().expect("no panic");
    state.requests.push((path.clone(), start));
    state.tokens.push((host.clone(), token));
    let faults = state.faults.clone();
    let lie = faults.lie.as_ref();
    if let Some(status) = faults.status {
        return write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").ok();
    }
    let own = format!("http://{}", stream.local_addr().ok()?);
    let etag = |name: &str| match lie {
        Some(Lie::Etag(etag)) => etag.clone(),
        _ => format!("{name}-etag"),
    };
    let commit = match lie {
        Some(Lie::Commit(commit)) => commit,
        _ => COMMIT,
    };
    let redirect = |stream: &mut TcpStream, location: &str, name: &str| {
        let etag = etag(name);
        write!(
            stream,
            "HTTP/1.1 302 Found\r\nLocation: {location}\r\nX-Linked-Etag: \"{etag}\"\r\nX-Repo-Commit: {commit}\r\n\
             Content-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .ok()
    };
    match lie {
        Some(Lie::Silence) => {
            drop(state);
            return stream.read(&mut [0]).map(drop).ok(); // until the client leaves
        }
        Some(Lie::EndlessHeaders) => {
            drop(state);
            stream.write_all(b"HTTP/1.1 200 OK\r\nX: ").ok()?;
            return drip(stream, &[b'a'; 4096]);
        }
        _ => {}
    }
    if path == "/api/models/someone/model/revision/main?blobs=true" {
        if let (Some(Lie::Elsewhere(address)), true) = (lie, own.ends_with(&host)) {
            return redirect(&mut stream, &format!("{address}{path}"), "");
        }
        let body = match lie {
            Some(Lie::Listing(text)) => text.clone(),
            _ => listing(&state.folder),
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        if let Some(Lie::SlowBodies) = lie {
            drop(state);
            stream.write_all(head.as_bytes()).ok()?;
            return drip(stream, body.as_bytes());
        }
        return stream.write_all((head + &body).as_bytes()).ok();
    }
    if let (Some(Lie::Hops(most)), Some((hop, name))) =
        (lie, path.strip_prefix("/hop/").and_then(|rest| rest.split_once('/')))
    {
        let hop: usize = hop.parse().ok()?;
        let next = match hop < *most {
            true => format!("/hop/{}/{name}", hop + 1),
            false => format!("/large/{name}"),
        };
        return write!(stream, "HTTP/1.1 302 Found\r\nLocation: {next}\r\nConnection: close\r\n\r\n").ok();
    }
    let resolved = path.strip_prefix(&format!("/someone/model/resolve/{COMMIT}/"));
    let name = match (resolved, path.strip_prefix("/large/")) {
        (Some(name), _) if matches!(lie, Some(Lie::Hops(_))) => {
            return write!(stream, "HTTP/1.1 307 No\r\nLocation: /hop/1/{name}\r\nConnection: close\r\n\r\n")
                .ok();
        }
        (Some(name), _) if fs::metadata(state.folder.join(name)).ok()?.len() > 100_000 => {
            let address = match lie {
                Some(Lie::Elsewhere(address)) => address,
                _ => &own,
            };
            return redirect(&mut stream, &format!("{address}/large/{name}"), name);
        }
        (name, large) => name.or(large)?,
    };
    let mut bytes = fs::read(state.folder.join(name)).ok()?;
    let is_large = path.starts_with("/large/");
    if is_large && faults.corrupt {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }
    let end = end.min(bytes.len());
    let more = match lie {
        Some(Lie::States(more)) => *more,
        _ => 0,
    };
    let length = match lie {
        Some(Lie::Longer(_)) => String::new(),
        _ => format!("Content-Length: {}\r\n", end - start + more),
    };
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\n{length}Content-Range: bytes {start}-{}/{}\r\n\
         ETag: \"{}\"\r\nX-Repo-Commit: {commit}\r\nConnection: close\r\n\r\n",
        end - 1,
        bytes.len(),
        etag(name)
    )
    .ok()?;
    let mut sent = &bytes[start..end];
    if let (true, Some(most), 1.., true) = (is_large, faults.cut_after, faults.cuts, sent.len() > 1) {
        state.faults.cuts -= 1;
        sent = &sent[..most.min(sent.len())];
    }
    drop(state);
    stream.write_all(sent).ok()?;
    if let (Some(Lie::Longer(more)), true) = (lie, start == 0 && end > 1) {
        stream.write_all(&vec![0; *more]).ok()?;
    }
    Some(())
}

/// Sends bytes one at a time, for as long as the client takes them.
fn drip(mut stream: TcpStream, bytes: &[u8]) -> Option<()> {
    bytes
        .iter()
        .cycle()
        .try_for_each(|byte| {
            thread::sleep(Duration::from_millis(50));
            stream.write_all(&[*byte])
        })
        .ok()
}

/// The hub's answer to what a model has.
fn listing(folder: &Path) -> String {
    let mut siblings = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        if entry.path().is_file() {
            let (name, bytes) = (entry.file_name(), fs::read(entry.path()).expect("a file"));
            let mut sibling = serde_json::json!({ "rfilename": name.to_str(), "size": bytes.len() });
            if bytes.len() > 100_000 {
                let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
                sibling["lfs"] = serde_json::json!({ "sha256": hash, "size": bytes.len() });
            }
            siblings.push(sibling);
        }
    }
    serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string()
}

/// It comes as far as its first file, which is there already.
#[test]
fn a_random_model_copies_from_the_hub_without_weights() {
    let hub = TestHub::new(Path::new(TINY), Faults::default());
    let to = tempfile::tempdir().expect("a folder");
    fs::write(to.path().join("tokenizer.json"), "{}").expect("a file");
    let to = to.path().to_str().expect("a plain name");
    let output = hub.with(&["random-model", "--from", "someone/model", "--to", to], &[]);
    assert!(output.status.code() == Some(1) && stderr(&output).contains("--force"), "{}", stderr(&output));
    let asked = hub.requests();
    let has = |name: &str| asked.iter().any(|(path, _)| path.contains(name));
    assert!(has("tokenizer.json") && !has("safetensors"), "{asked:?}");
}

#[test]
fn media_fit_plans_without_weights() {
    let gguf = Path::new(TINY).join("../../qwen3-vl-gguf");
    for (folder, weights, name) in [
        (Path::new(TINY), "model.safetensors", "someone/model"),
        (gguf.as_path(), "model-Q8_0.gguf", "someone/model:Q8_0"),
    ] {
        let hub = TestHub::new(folder, Faults::default());
        let plan = |model: &str| {
            let output = hub.with(&["fit", model, "--card", "mx330", "--json", "-q"], &[]);
            assert_eq!(output.status.code(), Some(0), "{model}: {}", stderr(&output));
            stdout(&output)
        };
        let local = if weights.ends_with("gguf") { folder.join(weights) } else { folder.to_owned() };
        assert_eq!(plan(name), plan(local.to_str().expect("a path")));
        let asked = hub.requests();
        assert!(asked.iter().all(|(path, _)| !path.contains("safetensors")), "{asked:?}");
        assert!(hub.blobs().iter().all(|blob| !blob.contains(weights)), "{:?}", hub.blobs());
    }
}

#[test]
fn a_model_is_fetched_once_and_answers() {
    let hub = TestHub::new(Path::new(TINY), Faults::default());
    let arguments = ["--prompt", "What is it?", "--device", "cpu", "--greedy", "--max-new-tokens", "3"];
    let run = |model: &str| hub.with(&[&["generate", "--model", model], &arguments[..]].concat(), &[]);
    let expected = stdout(&run(TINY));
    let first = run("someone/model");
    assert_eq!((stdout(&first), first.status.code()), (expected.clone(), Some(0)), "{}", stderr(&first));
    assert!(stderr(&first).contains("fetched model.safetensors"), "{}", stderr(&first));
    let asked = hub.requests();
    assert!(asked.iter().all(|(path, _)| !path.contains("cases")), "only what loading needs: {asked:?}");

    let second = run("someone/model@main");
    assert_eq!(stdout(&second), expected);
    assert_eq!(hub.requests().len(), 1, "the listing alone");

    let offline = hub.with(&["pull", "someone/model"], &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!((hub.requests().len(), offline.status.code()), (0, Some(0)), "{}", stderr(&offline));
    let path = PathBuf::from(stdout(&offline).trim());
    assert_eq!(fs::read(path.join("config.json")).ok(), fs::read(Path::new(TINY).join("config.json")).ok());

    let to = hub.cache.path().join("to");
    let quantized =
        hub.with(&["quantize", "someone/model", "--to", to.to_str().expect("UTF-8"), "--device", "cpu"], &[]);
    assert_eq!((quantized.status.code(), hub.requests().len()), (Some(0), 1), "{}", stderr(&quantized));
    assert_eq!(names(&to).len(), 2);

    let gone = hub.with(&["pull", "someone/model"], &[("HF_ENDPOINT", "http://127.0.0.1:9")]);
    assert_eq!((stdout(&gone), gone.status.code()), (stdout(&offline), Some(0)));
    assert!(
        stderr(&gone).contains("can't be reached") && stderr(&gone).contains("in the cache"),
        "{}",
        stderr(&gone)
    );
}

#[test]
fn downloads_that_are_cut_go_on_where_they_ended() {
    let faults = Faults { cut_after: Some(100_000), cuts: 2, ..Faults::default() };
    let hub = TestHub::new(Path::new(TINY), faults);
    let output = hub.pull();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output).matches("trying again").count(), 2, "{}", stderr(&output));
    let starts: Vec<usize> =
        hub.requests().iter().filter(|(path, _)| path.starts_with("/large/")).map(|r| r.1).collect();
    assert!(starts.contains(&100_000) && starts.contains(&200_000), "{starts:?}");
    let path = Path::new(stdout(&output).trim()).join("model.safetensors");
    assert_eq!(fs::read(path).ok(), fs::read(Path::new(TINY).join("model.safetensors")).ok());
}

#[test]
fn files_that_differ_from_the_listing_are_refused_and_deleted() {
    let hub = TestHub::new(Path::new(TINY), Faults { corrupt: true, ..Faults::default() });
    let output = hub.pull();
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()));
    assert!(stderr(&output).contains("SHA-256"), "{}", stderr(&output));
    hub.state.lock().expect("no panic").faults.corrupt = false;
    assert_eq!(hub.pull().status.code(), Some(0));
}

#[test]
fn refusals_say_what_helps() {
    for (status, part) in
        [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "no such model"), (503, "can't be reached")]
    {
        let hub = TestHub::new(Path::new(TINY), Faults { status: Some(status), ..Faults::default() });
        let output = hub.with(&["pull", "someone/model"], &[("HF_TOKEN", "hf_secret")]);
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        assert!(
            text.contains(part) && text.contains("someone/model") && !text.contains("hf_secret"),
            "{text}"
        );
        assert!(hub.tokens().iter().all(|(_, token)| token.as_deref() == Some("Bearer hf_secret")));
    }
    let hub = TestHub::new(Path::new(TINY), Faults::default());
    let absent = hub.with(&["pull", "someone/model"], &[("HF_HUB_OFFLINE", "1")]);
    assert!(stderr(&absent).contains("has no copy of it"), "{}", stderr(&absent));
    assert_eq!(hub.with(&["pull", "no-model"], &[]).status.code(), Some(2));
    let kind = hub.with(&["pull", "someone/model:Q4_0"], &[]);
    assert!(stderr(&kind).contains("neither safetensors nor GGUF"), "{}", stderr(&kind));
}

/// A file beside the cache, and what is there besides.
struct Beside<'a> {
    hub: &'a TestHub,
    file: PathBuf,
}

impl<'a> Beside<'a> {
    fn new(hub: &'a TestHub) -> Self {
        let file = hub.cache.path().join("precious");
        fs::write(&file, "precious").expect("a file");
        Self { hub, file }
    }

    #[track_caller]
    fn is_untouched(&self, attack: &str) {
        assert_eq!(fs::read_to_string(&self.file).ok().as_deref(), Some("precious"), "{attack}");
        let found = names(self.hub.cache.path());
        assert!(found.iter().all(|name| name == "precious" || name == "home"), "{attack}: {found:?}");
        let mut folders = names(&self.hub.home().join("hub"));
        folders.retain(|name| name != ".locks" && name != "models--someone--model");
        assert_eq!((names(&self.hub.home()).len() < 2, folders), (true, Vec::new()), "{attack}");
    }
}

#[test]
fn etags_and_commits_that_are_no_plain_names_are_refused() {
    let hub = TestHub::new(Path::new(TINY), Faults::default());
    let beside = Beside::new(&hub);
    let path = beside.file.to_str().expect("a path in UTF-8").to_owned();
    let long = "a".repeat(300);
    for etag in [
        &*path,
        "../../../../precious",
        "../x",
        "..",
        ".",
        "",
        "a/b",
        "a\\b",
        "x.incomplete",
        "x.lock",
        &long,
    ] {
        hub.lie(Lie::Etag(etag.to_owned()));
        let output = hub.pull();
        beside.is_untouched(etag);
        assert_eq!(output.status.code(), Some(1), "{etag}: {}", stderr(&output));
        assert!(stderr(&output).contains("ETag"), "{etag}: {}", stderr(&output));
        assert_eq!(hub.blobs(), [""; 0], "{etag}");
    }
    let other = COMMIT.replace('0', "f");
    for commit in [&*path, "../../../../x", "..", "", "main", &other] {
        hub.lie(Lie::Commit(commit.to_owned()));
        let output = hub.pull();
        beside.is_untouched(commit);
        assert_eq!(output.status.code(), Some(1), "{commit}: {}", stderr(&output));
        assert!(stderr(&output).contains("commit"), "{commit}: {}", stderr(&output));
        assert_eq!(names(&hub.repo().join("snapshots")), [""; 0], "{commit}");
    }
}

#[test]
fn listings_with_names_and_sizes_that_can_not_be_are_refused() {
    let hub = TestHub::new(Path::new(TINY), Faults::default());
    let beside = Beside::new(&hub);
    let mut texts = Vec::new();
    for name in
        ["../../../../precious", "/tmp/x", "a/../../x", "a//b", "\u{1b}]0;x\u{7}.gguf", "\u{202e}fugg.gguf"]
    {
        texts.push(serde_json::json!({ "sha": COMMIT, "siblings": [{ "rfilename": name, "size": 487 }] }));
    }
    for size in [1 << 41, u64::MAX] {
        texts.push(
            serde_json::json!({ "sha": COMMIT, "siblings": [{ "rfilename": "x.gguf", "size": size }] }),
        );
    }
    for sha in ["../../../../x", "/tmp", "main", "", "0123"] {
        texts.push(serde_json::json!({ "sha": sha, "siblings": [{ "rfilename": "x.gguf", "size": 487 }] }));
    }
    let endless = format!("{{\"sha\": \"{}", "0".repeat(11 << 20));
    for text in texts.iter().map(ToString::to_string).chain([endless]) {
        hub.lie(Lie::Listing(text.clone()));
        let output = hub.pull();
        let text = &text[..text.len().min(200)];
        beside.is_untouched(text);
        assert_eq!(output.status.code(), Some(1), "{text}: {}", stderr(&output));
        assert!(stderr(&output).contains("the hub's answer"), "{text}: {}", stderr(&output));
        assert!(!stderr(&output).contains(['\x1b', '\u{202e}']), "{}", stderr(&output));
        assert_eq!(hub.requests().len(), 1, "{text}: the listing alone");
    }
}

#[cfg(unix)]
#[test]
fn links_in_the_cache_are_not_written_through() {
    use std::os::unix::fs::symlink;
    let hub = TestHub::new(Path::new(TINY), Faults::default());
    let beside = Beside::new(&hub);
    let outside = tempfile::tempdir().expect("a folder");
    for folder in ["refs", "blobs", "snapshots"] {
        fs::create_dir_all(hub.repo().join(folder)).expect("a folder");
    }
    symlink(&beside.file, hub.repo().join("refs/main")).expect("a link");
    symlink(&beside.file, hub.repo().join("blobs/model.safetensors-etag.incomplete")).expect("a link");
    symlink(&beside.file, hub.repo().join("blobs/config.json-etag")).expect("a link");
    symlink(outside.path(), hub.repo().join("snapshots").join(COMMIT)).expect("a link");
    let output = hub.pull();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("is not a folder"), "{}", stderr(&output));
    assert_eq!(names(outside.path()), [""; 0]);
    beside.is_untouched("a link to a folder");

    fs::remove_file(hub.repo().join("snapshots").join(COMMIT)).expect("the link");
    let output = hub.pull();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    beside.is_untouched("links to a file");
    assert_eq!(fs::read_to_string(hub.repo().join("refs/main")).ok().as_deref(), Some(COMMIT));
}

#[test]
fn the_token_goes_to_the_endpoint_alone() {
    let other = TestHub::new(Path::new(TINY), Faults::default());
    let token = [("HF_TOKEN", "hf_secret")];
    for other_host in [false, true] {
        let hub = TestHub::new(Path::new(TINY), Faults::default());
        hub.lie(Lie::Elsewhere(match other_host {
            true => hub.address.replace("127.0.0.1", "localhost"),
            false => other.address.clone(), // another port
        }));
        let output = hub.with(&["pull", "someone/model"], &token);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let own = hub.address.strip_prefix("http://").expect("an address").to_owned();
        let all = [hub.tokens(), other.tokens()].concat();
        let (at_home, away): (Vec<_>, Vec<_>) = all.into_iter().partition(|(host, _)| *host == own);
        let has_token = |(_, token): &(String, Option<String>)| token.as_deref() == Some("Bearer hf_secret");
        assert!(!at_home.is_empty() && at_home.iter().all(has_token), "{at_home:?}");
        assert!(!away.is_empty() && away.iter().all(|(_, token)| token.is_none()), "{away:?}");
    }
    let hub = TestHub::new(Path::new(TINY), Faults::default());
    let output = hub.with(&["pull", "someone/model"], &[("HF_TOKEN", "hf_se\r\nX: cret")]);
    assert_eq!((output.status.code(), hub.requests().len()), (Some(1), 0));
    assert!(stderr(&output).contains("HF_TOKEN") && !stderr(&output).contains("cret"), "{}", stderr(&output));
}

#[test]
fn redirects_end() {
    let hub = TestHub::new(Path::new(TINY), Lie::Hops(9).into());
    assert_eq!(hub.pull().status.code(), Some(0));
    hub.requests();
    for hops in [10, usize::MAX] {
        let hub = TestHub::new(Path::new(TINY), Lie::Hops(hops).into());
        let output = hub.pull();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("more than 10 redirects"), "{}", stderr(&output));
        assert_eq!(hub.requests().len(), 12, "the listing, a file, ten redirects");
    }
}

#[test]
fn bodies_end_at_the_size_of_the_listing() {
    for lie in [Lie::Longer(64 << 20), Lie::States(1), Lie::States(1 << 40)] {
        let hub = TestHub::new(Path::new(TINY), lie.into());
        let output = hub.pull();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("longer than 487 bytes"), "{}", stderr(&output));
        let sizes = hub.blobs().into_iter().map(|name| fs::metadata(hub.repo().join("blobs").join(name)));
        let sizes: Vec<u64> = sizes.map(|found| found.expect("a file").len()).collect();
        assert!(sizes.iter().all(|&size| size <= 487), "{sizes:?}");
        assert_eq!(names(&hub.repo().join("snapshots")), [""; 0]);
    }
}

#[test]
fn hubs_that_stall_are_given_up() {
    for (lie, reason) in [
        (Lie::Silence, "nothing came for 1 seconds"),
        (Lie::EndlessHeaders, "nothing came for 1 seconds"),
        (Lie::SlowBodies, "slower than"),
    ] {
        let hub = TestHub::new(Path::new(TINY), lie.into());
        let output = hub.with(&["pull", "someone/model"], &[("HF_HUB_DOWNLOAD_TIMEOUT", "1")]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
}

#[test]
fn a_killed_download_is_resumed_and_leaves_nothing() {
    let hub =
        TestHub::new(Path::new(TINY), Faults { cut_after: Some(200_000), cuts: 9, ..Faults::default() });
    let mut command = hub.command(&["pull", "someone/model"]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("trying again"))));
    child.kill().expect("a kill");
    child.wait().expect("an end");
    hub.state.lock().expect("no panic").faults.cuts = 0;
    hub.requests();
    let partial = hub.repo().join("blobs/model.safetensors-etag.incomplete");
    let loaded = fs::metadata(&partial).expect("a partial file").len() as usize;
    let output = hub.pull();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(hub.requests().contains(&("/large/model.safetensors".to_owned(), loaded)), "{loaded}");
    let files = names(Path::new(stdout(&output).trim()));
    let blobs: Vec<String> = files.iter().map(|file| format!("{file}-etag")).collect();
    assert_eq!(hub.blobs(), blobs, "no partial files");
    assert_eq!(names(&hub.repo()), ["blobs", "refs", "snapshots"]);

    // A partial file of other content, or one that is too long, does not stay.
    fs::remove_file(hub.repo().join("blobs/model.safetensors-etag")).expect("the blob");
    fs::write(&partial, vec![0; 3 << 20]).expect("a file");
    assert_eq!(hub.pull().status.code(), Some(0));
    fs::remove_file(hub.repo().join("blobs/model.safetensors-etag")).expect("the blob");
    fs::write(&partial, vec![0; 1 << 20]).expect("a file");
    assert!(stderr(&hub.pull()).contains("SHA-256"));
    assert_eq!(hub.pull().status.code(), Some(0));
    assert_eq!(hub.blobs(), blobs);
}

#[test]
fn two_processes_do_not_write_one_file() {
    let hub = TestHub::new(Path::new(TINY), Faults::default());
    let locks = hub.home().join("hub/.locks/models--someone--model");
    fs::create_dir_all(&locks).expect("a folder");
    let lock = File::create(locks.join("model.safetensors-etag.lock")).expect("a file");
    lock.lock().expect("a lock");
    let mut command = hub.command(&["pull", "someone/model"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("another process"))));
    assert!(!hub.blobs().iter().any(|name| name.starts_with("model.safetensors")), "{:?}", hub.blobs());
    drop(lock);
    assert!(child.wait().expect("an end").success());
}

#[test]
fn a_model_of_another_family_is_refused_before_its_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("config.json"), r#"{"model_type": "llama"}"#).expect("a file");
    fs::write(folder.path().join("model.safetensors"), vec![0; 200_000]).expect("a file");
    let hub = TestHub::new(folder.path(), Faults::default());
    let output = hub.pull();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("llama is not \"qwen3_vl\""), "{}", stderr(&output));
    let asked = hub.requests();
    assert!(asked.iter().all(|(path, _)| !path.contains("safetensors")), "{asked:?}");
}
