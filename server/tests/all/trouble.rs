//! Clients that leave, servers that are stopped, and a thousand requests of all kinds; on the CPU.

use crate::common::process::in_own_process;
use crate::common::{PATIENCE, Server, config, question, read_until};
use pascaline_server::{Config, End};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
/// The memory that is charged to requests.
const USED: &str = "pascaline_request_memory_bytes{state=\"used\"}";

fn long(stream: bool) -> String {
    let fields = json!({ "max_tokens": 4000, "ignore_eos": true, "stream": stream });
    let mut body = question("Go on and on");
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body.to_string()
}

#[test]
fn an_answer_ends_when_its_client_leaves() {
    in_own_process!();
    let server = Server::start(config());
    for (stream, more) in [(true, ""), (false, ""), (false, "x"), (true, "GET / HTTP/1.1\r\n")] {
        let mut connection = server.raw(CHAT, &long(stream));
        // bytes of a next request do not hide that it leaves
        connection.write_all(more.as_bytes()).unwrap();
        if stream {
            read_until(&mut connection, "data: ");
        } else {
            server.wait_for("pascaline_requests_running", 1);
        }
        drop(connection);
        server.wait_for("pascaline_requests_running", 0);
    }
    assert_eq!(server.metric("pascaline_requests_total{outcome=\"left\"}"), 4);
    assert_eq!(server.metric("pascaline_requests_total{outcome=\"finished\"}"), 0);
    server.wait_for(USED, 0);
}

#[test]
fn running_answers_end_before_the_server() {
    in_own_process!();
    let server = Server::start(config());
    let mut body: Value = serde_json::from_str(&long(true)).unwrap();
    body["max_tokens"] = json!(60);
    let mut connection = server.raw(CHAT, &body.to_string());
    read_until(&mut connection, "data: ");
    server.stop();
    read_until(&mut connection, "[DONE]");
    let address = server.address;
    assert_eq!(server.wait(), End::Stopped { cut_off: 0 });
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn answers_that_take_longer_than_the_grace_are_cut_off() {
    in_own_process!();
    let server = Server::start(Config { grace: Duration::from_millis(200), ..config() });
    let mut connection = server.raw(CHAT, &long(true));
    read_until(&mut connection, "data: ");
    server.stop();
    assert_eq!(server.wait(), End::Stopped { cut_off: 1 });
    let mut rest = String::new();
    let _ = connection.read_to_string(&mut rest); // it may end in a reset
    assert!(!rest.contains("[DONE]"));
}

#[test]
fn a_second_stop_ends_the_grace() {
    in_own_process!();
    let server = Server::start(config());
    let mut connection = server.raw(CHAT, &long(true));
    read_until(&mut connection, "data: ");
    server.stop();
    server.stop();
    let begin = Instant::now();
    assert_eq!(server.wait(), End::Stopped { cut_off: 1 });
    assert!(begin.elapsed() < PATIENCE / 2);
}

#[test]
fn connections_without_requests_are_no_hindrance() {
    in_own_process!();
    let server = Server::start(config());
    let idle: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    assert_eq!(server.post(CHAT, &question("Hi")).0, 200);
    server.stop();
    assert_eq!(server.wait(), End::Stopped { cut_off: 0 });
    drop(idle);
}

/// Memory of this process in KiB, and its open files; other systems do not say.
fn in_use() -> Option<(usize, usize)> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let memory = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some((memory, fs::read_dir("/proc/self/fd").ok()?.count()))
}

const MALFORMED: [&str; 8] = [
    "",
    "{",
    "{\"messages\": 5}",
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": \"data:,\"}]}]}",
    "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"temperature\": \"x\"}",
    "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": -1}",
    "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": 5}}}}",
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": \"data:image/png;base64,iVBORw0KGgo=\"}]}]}",
];

/// A third are answered, a third leave and a third are malformed. Nothing is leaked, no answer is wrong.
#[test]
fn a_thousand_requests_leave_no_trace() {
    in_own_process!();
    const REQUESTS: usize = 1000;
    const CLIENTS: usize = 8;
    let server = Server::start(config());
    let body = |at: usize, stream: bool| {
        let mut body = question(&format!("Question {}", at % 5));
        body["max_tokens"] = json!(6);
        body["stream"] = json!(stream);
        body
    };
    let expected: Vec<Value> = (0..5).map(|at| server.chat(&body(at, false))["choices"].clone()).collect();
    let (next, left) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let one = |at: usize| match at % 3 {
        0 => assert_eq!(server.chat(&body(at, false))["choices"], expected[at % 5]),
        1 => {
            // some leave while they wait, some between tokens, some with half a request sent
            let mut connection = server.raw(CHAT, &body(at, at & 1 == 0).to_string());
            if at & 3 == 0 {
                let _ = connection.read(&mut [0; 64]);
            }
            left.fetch_add(1, Ordering::Relaxed);
        }
        _ => {
            let (status, answer) = server.post_text(CHAT, MALFORMED[at / 3 % MALFORMED.len()]);
            assert_eq!(status, 400, "{answer}");
            assert!(answer["error"]["message"].is_string());
        }
    };
    let many = |until: usize| {
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        if at >= until {
                            break;
                        }
                        one(at);
                    }
                });
            }
        });
        next.store(until, Ordering::Relaxed);
        server.wait_for("pascaline_requests_running", 0);
        server.wait_for("pascaline_requests_waiting", 0);
        thread::sleep(Duration::from_millis(100)); // sockets close
        in_use()
    };
    let before = many(REQUESTS / 2);
    let after = many(REQUESTS);
    if let (Some((memory, files)), Some((memory_after, files_after))) = (before, after) {
        assert!(files_after <= files + 4, "{files} open files, then {files_after}");
        assert!(memory_after < memory + (16 << 10), "{memory} KiB, then {memory_after}");
    }
    let count =
        |outcome: &str| server.metric(&format!("pascaline_requests_total{{outcome=\"{outcome}\"}}")) as usize;
    assert_eq!(count("failed"), 0);
    assert_eq!(count("malformed"), (0..REQUESTS).filter(|at| at % 3 == 2).count());
    let answered = (0..REQUESTS).filter(|at| at % 3 == 0).count() + expected.len();
    assert!(count("finished") >= answered, "{} of {answered}", count("finished"));
    assert!(count("finished") + count("left") <= answered + left.load(Ordering::Relaxed));
    server.stop();
    assert_eq!(server.wait(), End::Stopped { cut_off: 0 });
}
