//! A server in this process, and requests to it.
#![allow(dead_code)] // not all tests need all of it

#[path = "../../../../tests/all/common/extent.rs"]
pub mod extent;
#[path = "../../../../tests/all/common/process.rs"]
pub mod process;

use pascaline::Device;
use pascaline_server::worker::Worker;
use pascaline_server::{Config, End, Limits, Served, Stop, run};
use qwen3_vl::{ControlTokens, LanguageModel, LoadOptions, Options, Qwen3Vl};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// The longest that a test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny")
}

/// The tiny model in f32.
pub fn model(device: &Device) -> LanguageModel {
    let options = LoadOptions { dtype: pascaline::DType::F32, ..LoadOptions::for_device(device) };
    Qwen3Vl::load_with(tiny(), device, options, |_| {}).expect("the fixture loads").into()
}

pub fn config() -> Config {
    Config {
        name: "tiny".into(),
        defaults: Options { max_new_tokens: 16, ..Options::default() },
        seed: None,
        limits: Limits { time: PATIENCE, ..Limits::for_context(4096) },
        control_tokens: ControlTokens::AsText,
        api_key: None,
        adapters: Vec::new(),
        cors_origins: Vec::new(),
        allowed_hosts: Vec::new(),
        grace: PATIENCE,
    }
}

/// A running server. One that is dropped ends at once.
pub struct Server {
    pub address: SocketAddr,
    stop: UnboundedSender<()>,
    thread: Option<JoinHandle<End>>,
}

impl Server {
    pub fn start(config: Config) -> Self {
        Self::with(model(&Device::Cpu), 256, config)
    }

    pub fn with(model: LanguageModel, queue: usize, config: Config) -> Self {
        Self::start_with(Worker::start(model, queue).expect("a thread"), config)
    }

    pub fn start_with(served: impl Into<Served>, config: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let (stop, stopped) = unbounded_channel();
        let served = served.into();
        let serve = move || run(listener, served, config, Stop::Messages(stopped)).expect("it runs");
        Self { address, stop, thread: Some(thread::spawn(serve)) }
    }

    /// Asks it to end, as SIGTERM does.
    pub fn stop(&self) {
        let _ = self.stop.send(()); // it may have ended
    }

    /// How it ended.
    pub fn wait(mut self) -> End {
        self.thread.take().expect("it is waited for once").join().expect("no panic")
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_text(path, &body.to_string())
    }

    pub fn post_text(&self, path: &str, body: &str) -> (u16, Value) {
        let request = ureq::post(&self.url(path)).set("Content-Type", "application/json");
        answer(request.timeout(PATIENCE).send_string(body))
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        match ureq::get(&self.url(path)).timeout(PATIENCE).call() {
            Ok(response) | Err(ureq::Error::Status(_, response)) => {
                (response.status(), response.into_string().expect("text"))
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The text of an answer that must be one.
    pub fn chat(&self, body: &Value) -> Value {
        let (status, value) = self.post("/v1/chat/completions", body);
        assert_eq!(status, 200, "{value}");
        value
    }

    /// The events of a stream, `[DONE]` as a string.
    pub fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let request = ureq::post(&self.url(path)).set("Content-Type", "application/json");
        let response = request.timeout(PATIENCE).send_string(&body.to_string()).expect("a stream");
        assert_eq!(response.content_type(), "text/event-stream");
        let lines = BufReader::new(response.into_reader()).lines().map(|line| line.expect("a line"));
        let data = lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned));
        data.map(|data| serde_json::from_str(&data).unwrap_or(Value::String(data))).collect()
    }

    /// A counter or gauge.
    pub fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.get("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in\n{text}"))
    }

    /// Waits until a metric has this value.
    pub fn wait_for(&self, name: &str, value: u64) {
        let begin = Instant::now();
        while self.metric(name) != value {
            assert!(begin.elapsed() < PATIENCE, "{name} is {}, not {value}", self.metric(name));
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends bytes as they are and reads the answer up to the connection's end.
    pub fn send(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Sends a request as bytes and gives the connection.
    pub fn raw(&self, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("it reads");
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic has been printed
        }
    }
}

fn answer(result: Result<ureq::Response, ureq::Error>) -> (u16, Value) {
    match result {
        Ok(response) | Err(ureq::Error::Status(_, response)) => {
            let status = response.status();
            let text = response.into_string().expect("text");
            (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text}")))
        }
        Err(error) => panic!("{error}"),
    }
}

/// Reads from a connection until a text has come.
pub fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let (mut found, mut piece) = (Vec::new(), [0; 1024]);
    loop {
        let count = stream.read(&mut piece).expect("it answers");
        assert!(count > 0, "it ends before {text:?}: {}", String::from_utf8_lossy(&found));
        found.extend_from_slice(&piece[..count]);
        let so_far = String::from_utf8_lossy(&found);
        if so_far.contains(text) {
            return so_far.into_owned();
        }
    }
}

/// A request with one message.
pub fn question(text: &str) -> Value {
    json!({ "model": "tiny", "messages": [{ "role": "user", "content": text }] })
}

/// A data URL of a PNG of one colour: large, and a small file.
pub fn plain_picture(side: u32) -> String {
    use base64::Engine;
    let mut file = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(side, side).write_to(&mut file, image::ImageFormat::Png).expect("a PNG");
    format!("data:image/png;base64,{}", base64::engine::general_purpose::STANDARD.encode(file.into_inner()))
}

/// A message of these pictures.
pub fn shown(pictures: &[String]) -> Value {
    let parts: Vec<Value> =
        pictures.iter().map(|url| json!({ "type": "image_url", "image_url": url })).collect();
    json!({ "messages": [{ "role": "user", "content": parts }] })
}

/// A data URL of a PNG of these colours.
pub fn picture(width: u32, height: u32, shade: u8) -> String {
    use base64::Engine;
    let pixel = |x, y| image::Rgb([(x * 5) as u8, (y * 3) as u8 ^ shade, shade]);
    let mut file = std::io::Cursor::new(Vec::new());
    image::RgbImage::from_fn(width, height, pixel)
        .write_to(&mut file, image::ImageFormat::Png)
        .expect("a PNG");
    format!("data:image/png;base64,{}", base64::engine::general_purpose::STANDARD.encode(file.into_inner()))
}
