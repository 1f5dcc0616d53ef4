//! `x-request-id`: the client's own if it is a plain word, otherwise one of the server's.

use crate::common::{PATIENCE, Server, config};
use pascaline_server::{Config, Limits};
use std::sync::LazyLock;

static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(config()));

/// The id in the answer to a request with this one.
fn answered(server: &Server, path: &str, id: &str) -> String {
    let answer = server.send(&format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: {id}\r\nConnection: close\r\n\r\n"
    ));
    let ids: Vec<_> = answer.lines().filter_map(|line| line.strip_prefix("x-request-id: ")).collect();
    match ids[..] {
        [id] => id.to_owned(),
        _ => panic!("{ids:?} in {answer}"),
    }
}

#[test]
fn a_plain_id_comes_back() {
    let longest = "x".repeat(64);
    // an answer, an unknown address, a method that is not taken
    for path in ["/health", "/nowhere", "/v1/messages"] {
        for id in ["trace-1_b.C", &longest] {
            assert_eq!(answered(&SERVER, path, id), id);
        }
    }
}

#[test]
fn any_other_id_is_replaced() {
    let longer = "x".repeat(65);
    for id in ["", "two words", "a;b", "\u{9b}31m", "\"quoted\"", "a\tb", "{{7*7}}", &longer] {
        let (one, other) = (answered(&SERVER, "/health", id), answered(&SERVER, "/health", id));
        assert!(one.starts_with("req_") && one.len() <= 64, "{one}");
        assert_ne!(one, other);
    }
}

#[test]
fn refusals_have_an_id_too() {
    let limits = Limits { time: PATIENCE, ..Limits::for_context(4096) };
    let server = Server::start(Config { api_key: Some("key".into()), limits, ..config() });
    assert_eq!(answered(&server, "/v1/models", "mine"), "mine");
    // a name that the server does not answer to
    let answer = SERVER.send("GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(answer.contains("x-request-id: req_"), "{answer}");
}
