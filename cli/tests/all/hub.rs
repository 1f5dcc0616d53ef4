//! Models by their names on the hub, served by a hub of this machine that cuts connections and lies.

use crate::common::program::{pascaline, stderr, stdout};
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::{fs, thread};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/qwen3-vl/tiny");
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The hub's faults.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// The first transfers of each large file end after this many bytes.
    cut_after: Option<usize>,
    /// How many of them.
    cuts: usize,
    /// One byte of each large file is another than its SHA-256 is of.
    corrupt: bool,
    /// The status of every answer.
    status: Option<u16>,
}

struct State {
    folder: PathBuf,
    faults: Faults,
    /// Every request: its path and the byte that its range begins with.
    requests: Vec<(String, usize)>,
    token: Option<String>,
}

/// A hub that serves the files of a folder as the model `someone/model`, and files of over 100 kB from another address,
/// as the real one does.
struct TestHub {
    address: String,
    state: Arc<Mutex<State>>,
    cache: tempfile::TempDir,
}

impl TestHub {
    fn of(folder: &Path, faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let state = State { folder: folder.to_owned(), faults, requests: Vec::new(), token: None };
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
        let mut command = pascaline(arguments);
        for variable in ["HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE"] {
            command.env_remove(variable);
        }
        command.env("HF_HOME", self.cache.path()).env("HF_ENDPOINT", &self.address);
        command.envs(variables.iter().copied()).output().expect("the program starts")
    }

    fn pull(&self) -> Output {
        self.with(&["pull", "someone/model"], &[])
    }

    fn requests(&self) -> Vec<(String, usize)> {
        std::mem::take(&mut self.state.lock().expect("no panic").requests)
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let (mut start, mut end, mut token) = (0, usize::MAX, None);
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
        }
    }
    let mut state = state.lock().expect("no panic");
    state.requests.push((path.clone(), start));
    state.token = token;
    let faults = state.faults;
    if let Some(status) = faults.status {
        return write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").ok();
    }
    if path == "/api/models/someone/model/revision/main?blobs=true" {
        let body = listing(&state.folder);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        return stream.write_all((head + &body).as_bytes()).ok();
    }
    let name =
        match (path.strip_prefix(&format!("/someone/model/resolve/{COMMIT}/")), path.strip_prefix("/large/"))
        {
            (Some(name), _) if fs::metadata(state.folder.join(name)).ok()?.len() > 100_000 => {
                return write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: http://{}/large/{name}\r\nX-Linked-Etag: \"{name}-etag\"\r\n\
                 X-Repo-Commit: {COMMIT}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                stream.local_addr().ok()?
            )
            .ok();
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
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{}\r\n\
         ETag: \"{name}-etag\"\r\nX-Repo-Commit: {COMMIT}\r\nConnection: close\r\n\r\n",
        end - start,
        end - 1,
        bytes.len()
    )
    .ok()?;
    let mut sent = &bytes[start..end];
    if let (true, Some(most), 1.., true) = (is_large, faults.cut_after, faults.cuts, sent.len() > 1) {
        state.faults.cuts -= 1;
        sent = &sent[..most.min(sent.len())];
    }
    stream.write_all(sent).ok()
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

#[test]
fn a_model_is_fetched_once_and_answers() {
    let hub = TestHub::of(Path::new(TINY), Faults::default());
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
    let hub = TestHub::of(Path::new(TINY), faults);
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
fn what_differs_from_the_listing_is_refused_and_deleted() {
    let hub = TestHub::of(Path::new(TINY), Faults { corrupt: true, ..Faults::default() });
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
        let hub = TestHub::of(Path::new(TINY), Faults { status: Some(status), ..Faults::default() });
        let output = hub.with(&["pull", "someone/model"], &[("HF_TOKEN", "hf_secret")]);
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        assert!(
            text.contains(part) && text.contains("someone/model") && !text.contains("hf_secret"),
            "{text}"
        );
        assert_eq!(hub.state.lock().expect("no panic").token.as_deref(), Some("Bearer hf_secret"));
    }
    let hub = TestHub::of(Path::new(TINY), Faults::default());
    let absent = hub.with(&["pull", "someone/model"], &[("HF_HUB_OFFLINE", "1")]);
    assert!(stderr(&absent).contains("has no copy of it"), "{}", stderr(&absent));
    assert_eq!(hub.with(&["pull", "no-model"], &[]).status.code(), Some(2));
    let kind = hub.with(&["pull", "someone/model:Q4_0"], &[]);
    assert!(stderr(&kind).contains("neither safetensors nor GGUF"), "{}", stderr(&kind));
}
