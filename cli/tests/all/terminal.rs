//! The command line on a terminal: what is typed, what fits, what is never sent there.
#![cfg(unix)]

use crate::common::program::{pascaline, run, stdout};
use crate::common::terminal::{Terminal, plain};
use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny")
}

/// A file that is removed when dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("pascaline-{}-{name}", process::id())))
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&fs::read(&self.0).expect("the report")).expect("JSON")
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A conversation with the tiny checkpoint, at its first prompt.
fn chat(report: &Temporary, arguments: &[&str]) -> Terminal {
    let (model, report) = (tiny().display().to_string(), report.path());
    let fixed = ["chat", "--model", &model, "--device", "cpu", "--json", &report];
    // the conversation is not part of these tests
    let mut terminal = Terminal::start(pascaline(&[&fixed[..], &["--no-save"], arguments].concat()), 80);
    terminal.wait_for("/help lists the commands");
    terminal.wait_for("> ");
    terminal
}

/// Types a message and waits for the end of its answer.
fn say(terminal: &mut Terminal, keys: &str) {
    terminal.send(keys);
    terminal.wait_for("first token after");
    terminal.wait_for("> ");
}

#[test]
fn what_is_pasted_is_one_message_and_arrows_bring_it_back() {
    let report = Temporary::new("paste.json");
    let mut terminal = chat(&report, &["--max-new-tokens", "3"]);
    say(&mut terminal, "\x1b[200~What is\n\tthis?\x1b[201~\r");
    say(&mut terminal, "Moee\x7f\x1b[Dr\r");
    say(&mut terminal, "\x1b[A\x1b[A\r");
    terminal.send("/quit\r");
    let (status, printed) = terminal.end();
    assert_eq!(status.code(), Some(0), "{printed}");
    let turns = report.json()["turns"].clone();
    let messages: Vec<_> = turns.as_array().expect("turns").iter().map(|turn| &turn["message"]).collect();
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert_eq!((messages[0], messages[1]), (messages[2], &"More".into()));
    let lines: Vec<_> = messages[0].as_str().expect("a text").lines().map(str::trim).collect();
    assert_eq!(lines, ["What is", "this?"]);
}

#[test]
fn ctrl_c_ends_the_answer_and_keeps_the_conversation() {
    let report = Temporary::new("interrupt.json");
    let mut terminal = chat(&report, &["--max-new-tokens", "4000", "--ignore-eos"]);
    terminal.send("Count.\r");
    // the message's echo is shorter
    terminal.wait_until("some of the answer", |printed| (printed.len() > 200).then_some(printed.len()));
    terminal.send("\x03");
    terminal.wait_for("ended by Ctrl-C; ");
    terminal.wait_for("> ");
    terminal.send("More.\r");
    terminal.wait_until("some of the answer", |printed| (printed.len() > 200).then_some(printed.len()));
    terminal.send("\x03");
    terminal.wait_for("ended by Ctrl-C; ");
    terminal.wait_for("> ");
    // at the prompt it takes two
    terminal.send("something\x03");
    terminal.wait_for("Ctrl-C once more");
    terminal.wait_for("> ");
    terminal.send("\x03");
    let (status, printed) = terminal.end();
    assert_eq!(status.code(), Some(0), "{printed}");
    let report = report.json();
    let turns = report["turns"].as_array().expect("turns");
    assert_eq!(turns.len(), 2);
    for turn in turns {
        assert_eq!(turn["stop_reason"], "cancelled");
        assert!(!turn["text"].as_str().expect("a text").is_empty());
    }
    let count = |turn: usize, what: &str| turns[turn]["statistics"][what].as_u64().expect("a count");
    let kept = count(1, "prompt_tokens") - count(1, "prefill_tokens");
    assert!(kept >= count(0, "prompt_tokens"), "{kept} of the first turn's tokens were in the cache");
}

/// The picture never comes: its address takes the connection and is silent.
#[test]
fn ctrl_c_ends_the_wait_for_a_picture() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let report = Temporary::new("silent.json");
    let mut terminal = chat(&report, &["--max-new-tokens", "2"]);
    for _ in 0..2 {
        terminal.send(&format!("/image http://{}/a.png\r", silent.local_addr().expect("an address")));
        let _client = silent.accept().expect("a connection");
        terminal.send("\x03");
        terminal.wait_for("left out by Ctrl-C");
        terminal.wait_for("> ");
    }
    say(&mut terminal, "What colour?\r");
    terminal.send("\x04");
    let (status, printed) = terminal.end();
    assert_eq!(status.code(), Some(0), "{printed}");
    assert_eq!(report.json()["turns"][0]["images"], 0);
}

#[test]
fn pictures_are_confirmed_and_mistakes_named() {
    let report = Temporary::new("image.json");
    let picture = Temporary::new("a square.png");
    fs::copy(tiny().join("cases/square.png"), &picture.0).expect("a copy");
    let mut terminal = chat(&report, &["--max-new-tokens", "2"]);
    terminal.send(&format!("/image '{}'\r", picture.path()));
    terminal.wait_for("tokens; shown with the next message");
    terminal.send("/image /none.png\r");
    terminal.wait_for("No such file");
    terminal.send("/imag\r");
    terminal.wait_for("/help lists them");
    terminal.send("/help\r");
    terminal.wait_for("/drop");
    terminal.wait_for("> ");
    say(&mut terminal, "What colour?\r");
    terminal.send("\x04");
    let (status, printed) = terminal.end();
    assert_eq!(status.code(), Some(0), "slips that were seen are no failure: {printed}");
    assert_eq!(report.json()["turns"][0]["images"], 1);
}

#[test]
fn control_characters_of_the_model_do_not_reach_the_terminal() {
    let (model, image) =
        (tiny().display().to_string(), tiny().join("cases/square.png").display().to_string());
    let arguments = ["generate", "--model", &model, "--device", "cpu", "--image", &image];
    let rest = ["--prompt", "What colour is the circle?", "--max-new-tokens", "24", "--greedy", "--quiet"];
    let arguments = [&arguments[..], &rest].concat();
    let raw = stdout(&run(&arguments));
    assert!(raw.contains('\x11') && raw.contains('\x12'), "a pipe gets what the model says: {raw:?}");
    let (status, printed) = Terminal::start(pascaline(&arguments), 80).end();
    assert_eq!(status.code(), Some(0), "{printed}");
    assert!(!printed.contains(['\x11', '\x12']), "{printed:?}");
    assert!(printed.contains('␑') && printed.contains('␒'), "{printed:?}");
}

/// Prose may be wrapped by the terminal, but here all of it is wrapped between words.
#[test]
fn everything_fits_80_columns() {
    let model = tiny().display().to_string();
    for arguments in [
        &["bench", "--device", "cpu", "--only", "softmax_f32/rows=4096,cols=128"][..],
        &["validate", "--device", "cpu", "--only", "softmax"],
        &["validate", "--device", "cpu", "--model", &model],
        &["profile", "softmax_f32/rows=1,cols="],
        &["profile", "matmul_f32/m=65,n=67,k=63"],
        &["doctor"],
        &["tune", "--help"],
    ] {
        let (status, printed) = Terminal::start(pascaline(arguments), 80).end();
        let text = plain(&printed);
        assert_eq!(status.code(), Some(0), "{arguments:?}: {text}");
        // a path may be longer, and is left whole
        let long = |line: &&str| line.chars().count() > 80 && line.trim().contains(' ');
        let long: Vec<_> = text.split(['\n', '\r']).filter(long).collect();
        assert!(long.is_empty(), "{arguments:?} prints {long:#?}");
    }
}
