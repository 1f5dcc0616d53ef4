//! A replica on each of two virtual devices: which one answers, and what the loss of a device ends. In a process of its own, because
//! device faults are permanent.

use crate::common::process::in_own_process;
use crate::common::{PATIENCE, Server, config, model, question, read_until};
use pascaline::Device;
use pascaline_driver::faults;
use pascaline_server::End;
use pascaline_server::worker::Worker;
use pascaline_virtual_gpu::{Config, GTX1080, MX330, configure, take_findings};
use qwen3_vl::batch::BatchOptions;
use serde_json::{Value, json};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";

impl Server {
    /// A number of each replica.
    fn of_replicas(&self, name: &str) -> [u64; 2] {
        let (_, text) = self.get("/metrics");
        [0, 1].map(|replica| {
            let series = format!("pascaline_replica_{name}{{replica=\"{replica}\",");
            let line = text.lines().find(|line| line.starts_with(&series)).expect("the series");
            line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
        })
    }

    /// Waits until they are these: they are counted a little after the tokens have come.
    fn wait_for_replicas(&self, name: &str, expected: [u64; 2]) {
        let begin = Instant::now();
        while self.of_replicas(name) != expected {
            assert!(begin.elapsed() < PATIENCE, "{name} is {:?}, not {expected:?}", self.of_replicas(name));
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn health_of_replicas(&self) -> (u16, String, Vec<String>) {
        let (status, health) = self.get("/health");
        let health: Value = serde_json::from_str(&health).expect("JSON");
        let replicas = health["replicas"].as_array().expect("replicas").iter();
        let text = |value: &Value| value["status"].as_str().expect("a status").to_owned();
        (status, text(&health), replicas.map(text).collect())
    }
}

/// An answer without end, of which the first token has come.
fn endless(server: &Server, text: &str) -> TcpStream {
    let mut body = question(text);
    for (name, value) in [("max_tokens", json!(3000)), ("ignore_eos", json!(true)), ("stream", json!(true))] {
        body[name] = value;
    }
    let mut stream = server.raw(CHAT, &body.to_string());
    read_until(&mut stream, "data: ");
    stream
}

/// A conversation that begins with this text, with an answer and one question more if it is not new.
fn conversation(text: &str, answer: Option<&str>) -> Value {
    let mut body = question(text);
    body["max_tokens"] = json!(4);
    if let (Some(answer), Some(messages)) = (answer, body["messages"].as_array_mut()) {
        messages.push(json!({ "role": "assistant", "content": answer }));
        messages.push(json!({ "role": "user", "content": "And then?" }));
    }
    body
}

#[test]
fn replicas_share_requests_and_outlive_each_other() {
    in_own_process!();
    configure(Config { card: &MX330, others: vec![(&GTX1080, None)], ..Config::from_env().unwrap() })
        .unwrap();
    let devices = [0, 1].map(|number| Device::virtual_gpu_number(number).expect("a virtual GPU"));
    let options = BatchOptions { max_sequences: 2, ..BatchOptions::with_room(4000) };
    let replicas = devices.iter().map(|device| (model(device), options)).collect();
    let server = Server::start_with(Worker::start_replicas(replicas, 8).expect("threads"), config());
    assert_eq!(server.health_of_replicas(), (200, "ok".into(), vec!["ok".into(), "ok".into()]));

    // A request goes to the replica that is not busy, and what follows it to where its beginning is.
    let story =
        "Once upon a time a card of the Pascal generation was asked for a story about itself and its maker.";
    let busy = endless(&server, "Go on and on");
    server.wait_for_replicas("requests_running", [1, 0]);
    let first = server.chat(&conversation(story, None));
    drop(busy);
    server.wait_for("pascaline_requests_running", 0);
    let expected = text_of(&first);
    let second = server.chat(&conversation(story, Some(&expected)));
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached >= Some(16), "{second}");
    server.wait_for_replicas("prefix_hit_tokens", [0, cached.unwrap()]);

    // Both are full, and a request more waits for each.
    let mut running: Vec<_> = (0..4).map(|at| endless(&server, &format!("{at} goes on"))).collect();
    server.wait_for_replicas("requests_running", [2, 2]);
    thread::scope(|scope| {
        let server = &server;
        let ask = |text: &'static str| move || text_of(&server.chat(&conversation(text, None)));
        let (with_beginning, without) = (scope.spawn(ask(story)), scope.spawn(ask("Something else")));
        server.wait_for("pascaline_requests_waiting", 2);
        server.wait_for_replicas("requests_waiting", [1, 1]);

        faults::script("cuGraphLaunch#1:2=700!sticky").expect("a script");
        let mut ended = Vec::new();
        for at in [1, 3] {
            let text = read_until(&mut running[at], "device_lost");
            ended.push(text.contains("\"error\""));
        }
        assert_eq!(ended, [true, true]);
        let lost = "device lost".to_owned();
        assert_eq!(server.health_of_replicas(), (200, "degraded".into(), vec!["ok".into(), lost]));
        server.wait_for_replicas("up", [1, 0]);
        assert_eq!(server.metric("pascaline_up"), 1);
        // the other's answers go on
        let (so_far, begin) = (server.metric("pascaline_generated_tokens_total"), Instant::now());
        while server.metric("pascaline_generated_tokens_total") < so_far + 4 {
            assert!(begin.elapsed() < PATIENCE, "they stand still");
        }
        running.clear();
        assert_eq!(with_beginning.join().expect("an answer"), expected, "it waited for the lost one");
        without.join().expect("an answer");
    });
    assert_eq!(text_of(&server.chat(&conversation(story, None))), expected);
    assert_eq!(server.metric("pascaline_requests_total{outcome=\"failed\"}"), 2);

    // Without the last one no answers are to be had.
    faults::script("cuGraphLaunch#0:1=700!sticky").expect("a script");
    let (status, answer) = server.post(CHAT, &conversation("Still there?", None));
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("device_lost")), "{answer}");
    let (status, health, replicas) = server.health_of_replicas();
    assert_eq!((status, &health[..]), (503, "device lost"));
    assert_eq!(replicas, ["device lost", "device lost"]);
    assert!(matches!(server.wait(), End::DeviceLost(_)));
    assert_eq!(take_findings(), []);
}

fn text_of(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
}
