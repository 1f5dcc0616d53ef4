//! Clients that want the server's memory, its time or its connections: each kind alone with its limits, and many at once
//! beside an honest one.

use crate::common::{
    PATIENCE, Server, config, extent, model, picture, plain_picture, question, read_until, shown, tiny,
};
use pascaline::Device;
use pascaline_server::worker::Worker;
use pascaline_server::{Config, Limits};
use qwen3_vl::batch::BatchOptions;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

const CHAT: &str = "/v1/chat/completions";
/// The memory that is charged to requests.
const USED: &str = "pascaline_request_memory_bytes{state=\"used\"}";
/// A file of 70 kB that takes 50 MB decoded.
static LARGE: LazyLock<String> = LazyLock::new(|| plain_picture(4096));

fn with_limits(limits: Limits) -> Server {
    Server::start(Config { limits: Limits { time: PATIENCE, ..limits }, ..config() })
}

fn code(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or_default()
}

#[test]
fn a_picture_that_takes_more_than_there_is_is_refused_by_its_header() {
    let server = with_limits(Limits { memory: 32 << 20, ..Limits::for_context(4096) });
    let (status, answer) = server.post(CHAT, &shown(std::slice::from_ref(&LARGE)));
    assert_eq!((status, code(&answer)), (413, "memory_limit"), "{answer}");
    assert_eq!(server.post(CHAT, &shown(&[picture(64, 64, 1)])).0, 200);
    server.wait_for(USED, 0);
}

#[test]
fn memory_that_others_have_is_refused_for_now() {
    // of a picture of 512 × 512 pixels or more 6 MB of patches are kept, and 3 MB more are for decoding it
    let server = with_limits(Limits { memory: 21 << 20, ..Limits::for_context(4096) });
    let mut long = shown(&[picture(512, 512, 3)]);
    (long["max_tokens"], long["ignore_eos"], long["stream"]) = (json!(3500), json!(true), json!(true));
    let hold = || {
        let mut connection = server.raw(CHAT, &long.to_string());
        read_until(&mut connection, "data: ");
        connection
    };
    let (first, _second) = (hold(), hold());
    let request = ureq::post(&server.url(CHAT)).set("Content-Type", "application/json");
    let Err(ureq::Error::Status(429, answer)) =
        request.send_string(&shown(&[picture(512, 512, 4)]).to_string())
    else {
        panic!("it has to be refused");
    };
    assert!(answer.header("retry-after").is_some());
    let answer: Value = serde_json::from_str(&answer.into_string().unwrap()).unwrap();
    assert_eq!(code(&answer), "memory_full");
    // a short question needs next to nothing
    assert_eq!(server.post(CHAT, &question("Hi")).0, 200);
    let used = server.metric(USED);
    drop(first);
    let begin = Instant::now();
    while server.metric(USED) >= used {
        assert!(begin.elapsed() < PATIENCE);
    }
    assert_eq!(server.post(CHAT, &shown(&[picture(512, 512, 4)])).0, 200);
}

/// The file is damaged after its header, so nothing but a length can be said of it before it is decoded.
#[test]
fn a_prompt_that_is_too_long_is_refused_before_its_pictures_are_decoded() {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    let file = STANDARD.decode(LARGE.split_once(',').unwrap().1).unwrap();
    let damaged = format!("data:image/png;base64,{}", STANDARD.encode(&file[..file.len() / 2]));
    let server = with_limits(Limits::for_context(1000));
    // 256 tokens each
    let (status, answer) = server.post(CHAT, &shown(&vec![damaged.clone(); 4]));
    assert_eq!((status, code(&answer)), (400, "context_length_exceeded"), "{answer}");
    let mut asked = shown(std::slice::from_ref(&damaged));
    asked["max_tokens"] = json!(900); // more than there is room for, and so cut to it
    assert_eq!(code(&server.post(CHAT, &asked).1), "invalid_image");
    let (status, answer) = server.post(CHAT, &shown(&[damaged]));
    assert_eq!((status, code(&answer)), (400, "invalid_image"), "{answer}");
    // of a text too long by far only a part is tokenised
    let (status, answer) = server.post(CHAT, &question(&"many words ".repeat(200_000)));
    assert_eq!((status, code(&answer)), (400, "context_length_exceeded"), "{answer}");
    server.wait_for(USED, 0);
}

#[test]
fn choices_share_a_prompt_and_its_pictures() {
    let server = with_limits(Limits::for_context(4096));
    let used = |choices: usize| {
        let mut long = shown(&[picture(512, 512, 3)]);
        (long["max_tokens"], long["ignore_eos"]) = (json!(3500), json!(true));
        (long["n"], long["stream"]) = (json!(choices), json!(true));
        let mut connection = server.raw(CHAT, &long.to_string());
        read_until(&mut connection, "data: ");
        let used = server.metric(USED);
        drop(connection);
        server.wait_for(USED, 0);
        used
    };
    let (one, sixteen) = (used(1), used(16));
    assert!(one > 6 << 20 && sixteen < one + (1 << 20), "{one} bytes, and {sixteen} for 16 choices");
}

#[test]
fn work_whose_client_leaves_stops() {
    let server = with_limits(Limits { memory: 2 << 30, pictures: 64, ..Limits::for_context(20_000) });
    let body = shown(&vec![LARGE.clone(); 64]).to_string();
    let connection = server.raw(CHAT, &body);
    let begin = Instant::now();
    while server.metric(USED) < 50 << 20 {
        assert!(begin.elapsed() < PATIENCE, "the pictures are never decoded");
    }
    drop(connection);
    let begin = Instant::now();
    server.wait_for(USED, 0);
    // it takes 0.3 s where nothing else runs, and all the pictures would take far longer than this
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[test]
fn unknown_json_is_skipped_and_known_json_is_charged() {
    let server = with_limits(Limits { memory: 128 << 20, ..Limits::for_context(4096) });
    let nested = format!("[{}[]]", "{\"a\":[{}]},".repeat(1 << 19));
    let body = |name: &str| {
        format!(
            "{{\"{name}\": {nested}, \"max_tokens\": 1, \"messages\": [{{\"role\": \"user\", \"content\": \"Hi\", \"{name}\": {nested}}}]}}"
        )
    };
    let (status, answer) = server.post_text(CHAT, &body("unknown"));
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = server.post_text(CHAT, &body("stop"));
    assert_eq!((status, code(&answer)), (413, "memory_limit"), "{answer}");
    server.wait_for(USED, 0);
}

#[test]
fn clients_that_stand_still_hold_no_connection() {
    let limits = Limits { connections: 4, time: Duration::from_secs(2), ..config().limits };
    let server = Server::start(Config { limits, ..config() });
    let begun = Instant::now();
    // these read nothing of much, and those send a part of a request
    let many = "GET /math.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2000);
    let mut held: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    for stream in &mut held {
        stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let _ = stream.write_all(many.as_bytes()); // as much as it takes
    }
    for part in [
        "POST /v1/chat",
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    ] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(part.as_bytes()).unwrap();
        held.push(stream);
    }
    thread::sleep(Duration::from_millis(200));
    let health = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert!(server.send(health).starts_with("HTTP/1.1 200"), "while all connections are taken");
    let models = server.send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(begun.elapsed() > Duration::from_secs(2) || models.starts_with("HTTP/1.1 503"), "{models}");
    assert!(begun.elapsed() < Duration::from_secs(20), "/health has to be answered at once");
    // their time passes, and they are cut off
    thread::sleep(Duration::from_secs(3));
    let page = server.get("/math.js").1.len();
    for mut stream in held {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer); // it may end in a reset
        assert!(answer.len() < 2000 * page, "all was written, at the client's leisure");
    }
    assert_eq!(server.post(CHAT, &question("Hi")).0, 200);
}

/// A page whose name was made to resolve to this machine has its own name in `Host`.
#[test]
fn a_page_that_rebinds_its_name_is_not_answered() {
    let server = Server::start(config());
    let get =
        |head: &str| server.send(&format!("GET /v1/models HTTP/1.1\r\nConnection: close\r\n{head}\r\n"));
    for head in [
        "Host: evil.example\r\n",
        "Host: evil.example:8080\r\n",
        "Host: localhost.evil.example\r\n",
        "Host: localhost\r\nOrigin: http://evil.example\r\n",
        "Host: localhost\r\nOrigin: null\r\n",
    ] {
        let answer = get(head);
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("--"), "{head}: {answer}");
    }
    let absolute = "GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(server.send(absolute).starts_with("HTTP/1.1 403"));
    let own = format!("Host: {0}\r\nOrigin: http://{0}\r\n", server.address);
    for head in ["Host: localhost:1\r\n", "Host: [::1]\r\n", &own] {
        assert!(get(head).starts_with("HTTP/1.1 200"), "{head}");
    }
    let named = Server::start(Config { allowed_hosts: vec!["chat.example".into()], ..config() });
    let head = "Host: chat.example\r\nOrigin: https://chat.example\r\nConnection: close\r\n";
    assert!(named.send(&format!("GET /v1/models HTTP/1.1\r\n{head}\r\n")).starts_with("HTTP/1.1 200"));
}

/// The account of the server under attack.
const MEMORY: usize = 384 << 20;
/// The tokens of its cache, whose memory is taken when they are first written.
const ROOM: usize = 40_000;
/// Set in the process of that server.
const ROLE: &str = "PASCALINE_HOSTILE_SERVER";

/// The server under attack: it runs until its input ends.
fn serve_the_attacked() {
    let worker = Worker::start_with(model(&Device::Cpu), 256, BatchOptions::with_room(ROOM)).unwrap();
    let limits = Limits { memory: MEMORY, time: Duration::from_secs(30), ..Limits::for_context(4096) };
    let server = Server::start_with(worker, Config { limits, ..config() });
    println!("\nlistening {}", server.address);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

struct Attacked {
    process: Child,
    address: SocketAddr,
}

impl Attacked {
    fn start(test: &str) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let address =
            lines.find_map(|line| line.strip_prefix("listening ")?.parse().ok()).expect("it starts");
        thread::spawn(move || lines.count()); // so that it can go on printing
        Self { process, address }
    }

    /// A line of its memory in bytes; `None` where the system does not say.
    fn memory(&self, name: &str) -> Option<usize> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok().map(|kilobytes| kilobytes << 10)
    }

    /// How long an honest question takes, asked again while there is no room.
    fn ask(&self) -> Duration {
        let mut body = question("Why is the sky blue?");
        (body["max_tokens"], body["ignore_eos"]) = (json!(16), json!(true));
        let begin = Instant::now();
        loop {
            let request = ureq::post(&format!("http://{}{CHAT}", self.address)).timeout(PATIENCE);
            match request.set("Content-Type", "application/json").send_string(&body.to_string()) {
                // as OpenAI's clients do; the time goes on
                Err(ureq::Error::Status(429 | 503, _)) if begin.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(50));
                }
                answer => {
                    assert_eq!(answer.expect("an answer").status(), 200);
                    return begin.elapsed();
                }
            }
        }
    }
}

impl Drop for Attacked {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A hostile client's request, and how it treats the answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hostile {
    /// Asks for 16 answers to a large picture.
    Pictures,
    /// Asks for 40 times as many pictures' tokens as fit.
    TooLong,
    /// Sends what takes long to prepare, and leaves.
    Leaves,
    /// Sends JSON that is larger parsed, in a known field and in an unknown one.
    Json,
    /// Reads nothing of what it asks for.
    ReadsNothing,
    /// Sends nothing more than the head of a request.
    SendsNothing,
}

const KINDS: [Hostile; 6] = [
    Hostile::Pictures,
    Hostile::TooLong,
    Hostile::Leaves,
    Hostile::Json,
    Hostile::ReadsNothing,
    Hostile::SendsNothing,
];

impl Hostile {
    fn body(self) -> String {
        match self {
            Self::Pictures | Self::Leaves => {
                let mut body = shown(std::slice::from_ref(&LARGE));
                (body["n"], body["max_tokens"]) = (json!(16), json!(1));
                body.to_string()
            }
            Self::TooLong => shown(&vec![LARGE.clone(); 16]).to_string(),
            Self::Json => {
                let nested = format!("[{}[]]", "{\"a\":[]},".repeat(1 << 16));
                format!("{{\"unknown\": {nested}, \"stop\": {nested}, \"messages\": {nested}}}")
            }
            Self::ReadsNothing | Self::SendsNothing => question("Hi").to_string(),
        }
    }

    /// One attack; errors are the server's defence.
    fn attack(self, address: SocketAddr, body: &str, ends: &AtomicBool) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        stream.set_write_timeout(Some(Duration::from_millis(500)))?;
        let head = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length:";
        write!(stream, "POST {CHAT} HTTP/1.1\r\n{head} {}\r\n\r\n", body.len())?;
        if self == Self::ReadsNothing {
            stream.write_all(body.as_bytes())?;
            stream.write_all("GET /math.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000).as_bytes())?;
        } else if self != Self::SendsNothing {
            stream.write_all(body.as_bytes())?;
        }
        if self == Self::Leaves {
            thread::sleep(Duration::from_millis(30));
            return Ok(());
        }
        let is_silent = matches!(self, Self::ReadsNothing | Self::SendsNothing);
        let begin = Instant::now();
        while !ends.load(Ordering::Relaxed) && begin.elapsed() < Duration::from_secs(10) {
            if is_silent {
                thread::sleep(Duration::from_millis(50));
            } else if stream.peek(&mut [0; 1]).is_ok() {
                break; // answered, or closed
            }
        }
        Ok(())
    }
}

/// Ends the attack when it is dropped, also by a failed assertion.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Attacks with `clients` of each of these kinds for this time, while an honest client asks. Returns the honest one's times.
fn attack(server: &Attacked, kinds: &[Hostile], clients: usize, time: Duration) -> Vec<Duration> {
    let (ends, attacks) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for &kind in kinds {
            let body = kind.body();
            for _ in 0..clients {
                let (ends, attacks, body) = (&ends, &attacks, body.clone());
                scope.spawn(move || {
                    while !ends.load(Ordering::Relaxed) {
                        let _ = kind.attack(server.address, &body, ends);
                        attacks.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        }
        let _ends = Ends(&ends);
        thread::sleep(Duration::from_millis(500)); // until all are at it
        let begin = Instant::now();
        let mut times = Vec::new();
        while begin.elapsed() < time || times.len() < 3 {
            times.push(server.ask());
        }
        println!("{kinds:?}: {} attacks", attacks.load(Ordering::Relaxed));
        times
    })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Hostile clients of each kind, alone and all kinds at once. `PASCALINE_TESTS=all PASCALINE_HOSTILE=1` takes 64 of each kind, for longer.
#[test]
fn an_honest_client_is_answered_and_memory_stays_within_the_account() {
    if env::var_os(ROLE).is_some() {
        return serve_the_attacked();
    }
    let all = extent::all() && env::var_os("PASCALINE_HOSTILE").is_some(); // of many idle processors
    let (clients, time) = if all { (64, Duration::from_secs(10)) } else { (8, Duration::from_millis(500)) };
    if !all {
        extent::left_out(
            "56 of 64 hostile clients of each kind, and each kind alone: with PASCALINE_HOSTILE=1",
        );
    }
    let test = concat!(module_path!(), "::an_honest_client_is_answered_and_memory_stays_within_the_account");
    let server = Attacked::start(test.split_once("::").expect("the crate's name").1);
    let quiet = median((0..5).map(|_| server.ask()).collect());
    let before = server.memory("VmRSS:");
    let alone: &[&[Hostile]] =
        &[&KINDS[..1], &KINDS[1..2], &KINDS[2..3], &KINDS[3..4], &KINDS[4..5], &KINDS[5..]];
    let rounds = if all { [alone, &[&KINDS[..]]].concat() } else { vec![&KINDS[..]] };
    for kinds in rounds {
        let times = attack(&server, kinds, clients, time);
        let (count, slowest, median) = (times.len(), times.iter().max().copied(), median(times));
        println!(
            "quiet {quiet:?}; attacked {median:?}, at most {slowest:?} of {count}; memory {} MB, peak {} MB, before {} MB",
            server.memory("VmRSS:").unwrap_or(0) >> 20,
            server.memory("VmHWM:").unwrap_or(0) >> 20,
            before.unwrap_or(0) >> 20
        );
        // three times the quiet time; processors that other tests have take the rest
        assert!(median < 3 * quiet + Duration::from_secs(2), "quiet {quiet:?}, attacked {median:?}");
    }
    if let (Some(before), Some(peak)) = (before, server.memory("VmHWM:")) {
        let text = qwen3_vl::config::load(&tiny()).unwrap().text;
        let token = 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim * size_of::<f32>();
        let cache = ROOM * token;
        assert!(
            peak - before < MEMORY + cache,
            "{} MB more than the {} MB before, {} MB of them for the cache",
            (peak - before) >> 20,
            before >> 20,
            cache >> 20
        );
    }
}
