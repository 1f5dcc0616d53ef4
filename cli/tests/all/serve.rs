//! `pascaline serve` as a supervisor meets it: where it listens, how it ends and with which status.
#![cfg(unix)]

use crate::common::program::{pascaline, run, stderr, stdout};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use ureq::Agent;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/qwen3-vl/tiny");
/// The longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server of its own; one that is dropped is killed.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(device: &str, arguments: &[&str], faults: Option<&str>) -> Self {
        Self::start_saying(device, arguments, faults).0
    }

    /// And what it says when it takes requests.
    fn start_saying(device: &str, arguments: &[&str], faults: Option<&str>) -> (Self, Value) {
        Self::start_logging(device, arguments, faults, Stdio::null())
    }

    /// With its standard error there.
    fn start_logging(device: &str, arguments: &[&str], faults: Option<&str>, log: Stdio) -> (Self, Value) {
        let mut command = pascaline(&["serve", "--model", TINY, "--device", device, "--port", "0", "--json"]);
        command.env("PASCALINE_VIRTUAL_DEVICES", "mx330,gtx1080");
        command.args(arguments).stdout(Stdio::piped()).stderr(log);
        if let Some(faults) = faults {
            command.env("PASCALINE_FAULTS", faults);
        }
        let mut child = command.spawn().expect("the program starts");
        let mut text = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("its output"));
        // JSON on several lines, the last of which is the brace
        while !text.ends_with("}\n") {
            assert!(stdout.read_line(&mut text).expect("text") > 0, "it ends early: {text}");
        }
        let found: Value = serde_json::from_str(&text).expect("JSON");
        (Self { child, url: found["address"].as_str().expect("an address").to_owned() }, found)
    }

    fn ask(&self, body: &Value) -> Result<ureq::Response, Box<ureq::Error>> {
        let agent = Agent::new();
        let request = agent.post(&format!("{}/v1/chat/completions", self.url)).timeout(PATIENCE);
        request.set("Content-Type", "application/json").send_string(&body.to_string()).map_err(Box::new)
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill is there").success());
    }

    /// Its exit status.
    fn wait(mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code();
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

fn question(tokens: usize, stream: bool) -> Value {
    json!({
        "messages": [{ "role": "user", "content": "Hello" }],
        "max_tokens": tokens, "ignore_eos": true, "stream": stream,
    })
}

#[test]
fn an_answer_is_that_of_generate() {
    let server = Server::start("cpu", &["--max-new-tokens", "9"], None);
    let answer =
        server.ask(&json!({ "messages": [{ "role": "user", "content": "Hello" }] })).expect("an answer");
    let answer: Value = serde_json::from_str(&answer.into_string().expect("text")).expect("JSON");
    let arguments = [
        "generate",
        "--model",
        TINY,
        "--device",
        "cpu",
        "--prompt",
        "Hello",
        "--max-new-tokens",
        "9",
        "--json",
    ];
    let generated: Value = serde_json::from_str(&stdout(&run(&arguments))).expect("JSON");
    assert_eq!(answer["choices"][0]["message"]["content"], generated["text"]);
    assert_eq!(answer["usage"]["prompt_tokens"], generated["prompt_tokens"]);
    assert_eq!(answer["model"], "tiny");
}

#[test]
fn a_signal_ends_it_after_what_runs() {
    for signal in ["-TERM", "-INT"] {
        let server = Server::start("cpu", &[], None);
        let mut body = BufReader::new(server.ask(&question(300, true)).expect("a stream").into_reader());
        let mut text = String::new();
        body.read_line(&mut text).expect("the first event");
        server.signal(signal);
        body.read_to_string(&mut text).expect("the others");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        assert_eq!(server.wait(), Some(0), "{signal}");
    }
}

#[test]
fn a_lost_gpu_ends_it_with_a_status_of_its_own() {
    let server = Server::start("virtual", &[], Some("cuGraphLaunch:2=700"));
    match server.ask(&question(8, false)).map_err(|error| *error) {
        Err(ureq::Error::Status(503, response)) => {
            let text = response.into_string().expect("text");
            assert!(text.contains("device_lost"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    match ureq::get(&format!("{}/health", server.url)).call() {
        Err(ureq::Error::Status(503, _)) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(server.wait(), Some(75));
}

#[test]
fn replicas_outlive_one_of_their_gpus() {
    let (server, found) =
        Server::start_saying("virtual", &["--replicas", "auto"], Some("cuGraphLaunch#0:2=700!sticky"));
    let replicas = found["replicas"].as_array().expect("replicas");
    let numbers: Vec<_> =
        replicas.iter().filter_map(|device| device.as_str()).map(|device| &device[..6]).collect();
    assert_eq!(numbers, ["cuda:0", "cuda:1"]);
    match server.ask(&question(8, false)).map_err(|error| *error) {
        Err(ureq::Error::Status(503, response)) => {
            let text = response.into_string().expect("text");
            assert!(text.contains("device_lost"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let answer = server.ask(&question(8, false)).expect("an answer of the other");
    assert!(answer.into_string().expect("text").contains("\"length\""));
    let health = ureq::get(&format!("{}/health", server.url)).call().expect("200");
    let health: Value = serde_json::from_str(&health.into_string().expect("text")).expect("JSON");
    assert_eq!(health["status"], "degraded");
    server.signal("-TERM");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn load_is_measured() {
    let server = Server::start("cpu", &[], None);
    let arguments = [
        "bench",
        "--serve",
        &server.url,
        "--clients",
        "1,4",
        "--tokens",
        "8",
        "--long-prompt",
        "100",
        "--json",
    ];
    let output = run(&arguments);
    let found: Value =
        serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let loads = found["loads"].as_array().expect("loads");
    let clients: Vec<_> = loads.iter().map(|load| load["clients"].as_u64()).collect();
    assert_eq!(clients, [Some(1), Some(4)]);
    for load in loads {
        assert_eq!(load["failed"], 0);
        for name in ["first_token", "next_token"] {
            assert!(load[name]["median"].as_f64() <= load[name]["p95"].as_f64());
        }
        assert!(load["tokens_per_second"].as_f64() > Some(0.0));
    }
    assert!(found["long_prompt"]["prompt_tokens"].as_u64() > Some(100));
    let burst = ["bench", "--serve", &server.url, "--burst", "--clients", "3", "--tokens", "4", "--json"];
    let found: Value = serde_json::from_str(&stdout(&run(&burst))).expect("JSON");
    let burst = &found["bursts"][0];
    assert_eq!(
        (&burst["clients"], &burst["failed"], found["loads"].as_array()),
        (&json!(3), &json!(0), Some(&vec![]))
    );
    let tokens = burst["prompt_tokens"].as_u64().expect("a number");
    assert!((390..=410).contains(&tokens), "{tokens}"); // 400, by the tokens of another question
    let [both, prompts, answers, share] = ["seconds", "prompts_alone", "answers_alone", "share"]
        .map(|name| burst[name].as_f64().expect("a number"));
    assert!(((prompts + answers) / both - share).abs() < 1e-9 && prompts.min(answers) > 0.0, "{burst}");
    assert_eq!(run(&["bench", "--serve", "http://127.0.0.1:1"]).status.code(), Some(1));
    let full = Server::start("cpu", &["--max-queue", "1", "--max-running", "1"], None);
    let output = run(&["bench", "--serve", &full.url, "--clients", "8", "--tokens", "64", "--json"]);
    let said = stderr(&output);
    assert!(
        output.status.code() == Some(1) && said.contains("× 429, ") && said.contains("requests are waiting"),
        "{said}"
    );
    assert_eq!(run(&["bench", "--clients", "4"]).status.code(), Some(2));
}

/// 32 of them run and 32 wait, far from the 256 that may; all are answered.
#[test]
fn sixty_four_clients_at_the_same_instant_are_all_answered() {
    const CLIENTS: usize = 64;
    let server = Server::start("cpu", &[], None);
    let together = Barrier::new(CLIENTS);
    let statuses: Vec<u16> = thread::scope(|scope| {
        let ask = || {
            together.wait();
            match server.ask(&question(2, false)) {
                Ok(response) => response.status(),
                Err(error) => panic!("{error}"),
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        clients.into_iter().map(|client| client.join().expect("an answer")).collect()
    });
    assert_eq!(statuses, [200; CLIENTS]);
}

#[test]
fn what_can_not_be_served_is_refused_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port().to_string();
    for (arguments, status, part) in [
        (&["--port", &port][..], 1, "in use"),
        (&["--host", "nowhere.invalid"], 1, "nowhere.invalid"),
        (&["--api-key", " "], 2, "empty"),
        (&["--context", "1"], 2, "--context"),
        (&["--request-timeout", "0"], 2, "--request-timeout"),
        (&["--replicas", "0"], 2, "--replicas"),
        (&["--replicas", "2"], 2, "--device cpu is another place"),
        (&["--replicas", "2", "--split", "1,1"], 2, "--split"),
    ] {
        let output = run(&[&["serve", "--model", TINY, "--device", "cpu"], arguments].concat());
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
    for (arguments, status, part) in [
        (&["--replicas", "3"][..], 1, "the driver sees 2 devices"),
        (&["--replicas", "1", "--devices", "0,1"], 2, "--devices names 2"),
        (&["--replicas", "auto", "--memory-limit", "8M"], 1, "does not fit"),
    ] {
        let mut command = pascaline(&["serve", "--model", TINY, "--device", "virtual", "--port", "0"]);
        command.env("PASCALINE_VIRTUAL_DEVICES", "mx330,gtx1080");
        let output = command.args(arguments).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

/// The log of a server that was asked for an answer, for a stream, in vain, and by a client that left.
fn log(arguments: &[&str]) -> String {
    let file = tempfile::tempfile().expect("a file");
    let to = Stdio::from(file.try_clone().expect("a handle"));
    let (server, _) = Server::start_logging("cpu", arguments, None, to);
    let post = |id: &str, body: &Value| {
        let request = ureq::post(&format!("{}/v1/chat/completions", server.url)).timeout(PATIENCE);
        let request = request.set("Content-Type", "application/json").set("x-request-id", id);
        let answer = match request.send_string(&body.to_string()) {
            Ok(answer) | Err(ureq::Error::Status(_, answer)) => answer,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(answer.header("x-request-id"), Some(id));
        answer.into_string().expect("text")
    };
    post("whole", &question(5, false));
    post("stream", &question(5, true));
    post("again", &json!({ "messages": [{ "role": "user", "content": "SECRET" }], "max_tokens": 1 }));
    post("refused", &json!({ "messages": [{ "role": "SECRET", "content": "Hello" }] }));
    ureq::get(&format!("{}/health", server.url)).call().expect("200");
    let connect = || TcpStream::connect(server.url.trim_start_matches("http://")).expect("it listens");
    let mut raw = connect();
    raw.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let head = "GET /\u{9b}31m\u{202e}x?SECRET HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer SECRET\r\n\
                x-request-id: \u{9b}31m\r\nConnection: close\r\n\r\n";
    raw.write_all(head.as_bytes()).expect("it reads");
    raw.read_to_end(&mut Vec::new()).expect("an answer");
    let mut left = connect();
    let body = question(100_000, true).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         x-request-id: leaves\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    left.write_all(head.as_bytes()).expect("it reads");
    left.read_exact(&mut [0; 400]).expect("the beginning of an answer");
    drop(left);
    server.signal("-TERM");
    assert_eq!(server.wait(), Some(0));
    // the handle of the program has the same place in it
    let mut file = file;
    let mut text = String::new();
    std::io::Seek::rewind(&mut file).expect("a file");
    file.read_to_string(&mut text).expect("UTF-8");
    assert!(!text.contains("SECRET") && !text.contains("Hello"), "{text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'), "{text:?}");
    text
}

#[test]
fn each_request_is_a_line_of_json() {
    let text = log(&["--log-format", "json", "--log-level", "debug"]);
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let of = |id: &str| {
        let found: Vec<_> = lines.iter().filter(|line| line["request_id"] == id).collect();
        assert_eq!(found.len(), 1, "{id} in {text}");
        found[0]
    };
    for id in ["whole", "stream"] {
        let line = of(id);
        assert_eq!((&line["level"], &line["message"]), (&json!("INFO"), &json!("request")));
        assert_eq!((&line["method"], &line["path"]), (&json!("POST"), &json!("/v1/chat/completions")));
        assert_eq!((&line["status"], &line["end"]), (&json!(200), &json!("length")));
        assert_eq!((&line["model"], &line["generated_tokens"]), (&json!("tiny"), &json!(5)));
        assert!(line["prompt_tokens"].as_u64() > Some(5) && line["cached_tokens"].is_u64(), "{line}");
        let time = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name} in {line}"));
        assert!(time("queued_ms") <= time("first_token_ms") && time("first_token_ms") <= time("total_ms"));
        assert!(line["timestamp"].is_string());
    }
    assert_eq!(of("stream")["prompt_tokens"], of("whole")["prompt_tokens"]);
    assert_eq!(of("again")["generated_tokens"], 1);
    let refused = of("refused");
    assert_eq!((&refused["level"], &refused["status"]), (&json!("WARN"), &json!(400)));
    assert_eq!((&refused["end"], &refused["prompt_tokens"]), (&json!("invalid_value"), &Value::Null));
    let left = of("leaves");
    assert_eq!((&left["status"], &left["end"]), (&json!(200), &json!("left")));
    assert!(left["generated_tokens"].as_u64() > Some(0), "{left}");
    let at = |path: &str| lines.iter().find(|line| line["path"] == path).expect(path);
    assert_eq!((&at("/health")["level"], &at("/health")["end"]), (&json!("DEBUG"), &json!("done")));
    let strange = at("/%C2%9B31m%E2%80%AEx");
    assert_eq!((&strange["status"], &strange["end"]), (&json!(404), &json!("not_found")));
    assert!(strange["request_id"].as_str().expect("an id").starts_with("req_"));
    // remarks are lines of their own
    assert!(lines.iter().any(|line| line["message"].as_str().is_some_and(|text| text.contains("web page"))));
}

#[test]
fn each_request_is_a_line_of_text() {
    let text = log(&[]);
    let line = |part: &str| {
        let found: Vec<_> = text.lines().filter(|line| line.contains(part)).collect();
        assert_eq!(found.len(), 1, "{part} in {text}");
        found[0]
    };
    let whole = line("request_id=\"whole\"");
    for part in
        [" INFO ", "method=\"POST\"", "status=200", "model=\"tiny\"", "generated_tokens=5", "end=\"length\""]
    {
        assert!(whole.contains(part), "{part} in {whole}");
    }
    assert!(line("request_id=\"leaves\"").contains("end=\"left\""));
    assert!(line("/%C2%9B31m%E2%80%AEx").contains("WARN"));
    assert!(!text.contains("/health"), "it is no information: {text}");
    // errors alone
    assert_eq!(log(&["--quiet"]), "");
    let warnings = log(&["--quiet", "--log-level", "warn"]);
    assert_eq!(warnings.lines().count(), 2, "{warnings}");
}
