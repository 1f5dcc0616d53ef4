//! Conversations of `chat` that last: saved, gone on with, taken back, answered again.

use crate::common::program::{pascaline, stderr};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use tempfile::TempDir;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny")
}

/// A folder for the state of the program and the files of a test.
fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// `chat` with these lines as its input, and the turns that it reports.
fn piped(state: &TempDir, arguments: &[&str], input: &str) -> (Output, Vec<Value>) {
    let (model, report) = (tiny().display().to_string(), state.path().join("report.json"));
    let report_path = report.display().to_string();
    let fixed =
        ["chat", "--model", &model, "--device", "cpu", "--max-new-tokens", "4", "--json", &report_path];
    let _ = fs::remove_file(&report); // that of an earlier run
    let mut command = pascaline(&[&fixed, arguments].concat());
    command.env("XDG_STATE_HOME", state.path());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let _ = child.stdin.take().expect("its input").write_all(input.as_bytes()); // it may refuse before it reads
    let output = child.wait_with_output().expect("its output");
    let turns = fs::read(&report).ok().and_then(|report| serde_json::from_slice::<Value>(&report).ok());
    (output, turns.map_or_else(Vec::new, |json| json["turns"].as_array().cloned().unwrap_or_default()))
}

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).expect("a file");
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Tokens of a turn's prompt that were in the cache.
fn cached(turn: &Value) -> u64 {
    let count = |name: &str| turn["statistics"][name].as_u64().expect("a count");
    count("prompt_tokens") - count("prefill_tokens")
}

#[test]
fn a_turn_that_is_taken_back_leaves_the_cache() {
    let state = folder();
    let picture = tiny().join("cases/square.png").display().to_string();
    let input = format!(
        "/image {picture}\nWhat colour?\nAnd now?\n/undo\nAnd now?\n/undo\n/undo\nHello?\n/undo\n/undo\n"
    );
    let (output, turns) = piped(&state, &["--greedy"], &input);
    let notes = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "the last one is refused: {notes}");
    assert_eq!(notes.matches("are taken back").count(), 4, "{notes}");
    assert_eq!(notes.matches("there is no message to take back").count(), 1, "{notes}");
    let [first, second, again, alone] = &turns[..] else { panic!("{turns:?}") };
    assert_eq!((&again["text"], &again["generated_ids"]), (&second["text"], &second["generated_ids"]));
    assert!(cached(second) >= first["statistics"]["prompt_tokens"].as_u64().expect("a count"));
    assert!(cached(again) >= cached(second), "the common prefix is computed once");
    // pictures and answers are gone
    assert_eq!(alone["images"], 0);
    let count = |turn: &Value| turn["statistics"]["prompt_tokens"].as_u64().expect("a count");
    assert!(count(alone) < count(first));
}

#[test]
fn answers_again_have_other_seeds() {
    let state = folder();
    let picture = tiny().join("cases/square.png").display().to_string();
    let input = format!("Hello?\n/image {picture}\n/retry\n/retry\nAnd this?\n");
    let (output, turns) = piped(&state, &["--temperature", "1", "--seed", "5"], &input);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let seeds: Vec<_> = turns.iter().map(|turn| turn["seed"].as_u64()).collect();
    assert_eq!(seeds, [Some(5), Some(6), Some(7), Some(5)]);
    let messages: Vec<_> = turns.iter().map(|turn| turn["message"].as_str().expect("a text")).collect();
    assert_eq!(messages, ["Hello?", "Hello?", "Hello?", "And this?"]);
    assert!(turns[..3].iter().any(|turn| turn["generated_ids"] != turns[0]["generated_ids"]));
    // the picture waited meanwhile
    let images: Vec<_> = turns.iter().map(|turn| turn["images"].as_u64()).collect();
    assert_eq!(images, [Some(0), Some(0), Some(0), Some(1)]);
}

#[test]
fn a_saved_conversation_goes_on() {
    let state = folder();
    let file = state.path().join("a chat.jsonl");
    let picture = tiny().join("cases/square.png").display().to_string();
    let input = format!("/image {picture}\nWhat colour?\nAnd now?\n/save '{}'\n", file.display());
    let (output, turns) = piped(&state, &["--greedy", "--system", "Be brief."], &input);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let saved = lines(&file);
    let roles: Vec<_> = saved.iter().map(|line| line["role"].as_str().expect("a role")).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    let shown = saved[1]["content"][0]["image"].as_str().expect("a path");
    assert!(Path::new(shown).is_absolute() && Path::new(shown).is_file(), "{shown}");
    assert_eq!(
        (&saved[1]["content"][1]["text"], &saved[3]["content"]),
        (&"What colour?".into(), &"And now?".into())
    );
    assert_eq!(saved[4]["content"], turns[1]["text"]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    }
    // nothing else is kept where nobody types
    assert!(!state.path().join("pascaline").exists());

    let name = file.display().to_string();
    let (output, again) = piped(&state, &["--greedy", "--resume", &name], "/undo\nAnd now?\nMore?\n/save\n");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(again[0]["generated_ids"], turns[1]["generated_ids"]);
    assert_eq!(again[0]["statistics"]["prompt_tokens"], turns[1]["statistics"]["prompt_tokens"]);
    let longer = lines(&file);
    assert_eq!((longer.len(), &longer[..5]), (7, &saved[..]));

    // a file that is there is not replaced by chance
    let other = state.path().join("other");
    fs::write(&other, "mine").expect("a file");
    let (output, _) = piped(&state, &["--resume", &name], &format!("/save {}\n", other.display()));
    assert!(stderr(&output).contains("exists; --force replaces it"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(&other).expect("a file"), "mine");
}

#[test]
fn a_cut_or_foreign_file_is_refused_by_name_and_line() {
    let state = folder();
    let file = state.path().join("chat.jsonl");
    let (question, answer) = (r#"{"role":"user","content":"a"}"#, r#"{"role":"assistant","content":"b"}"#);
    for (text, part) in [
        (format!("{question}\n{}", &answer[..20]), "chat.jsonl, line 2: "),
        (format!("{question}\n{answer}\n{question}\n"), "chat.jsonl, line 4: the answer is missing"),
        ("{\"loads\": []}\n".to_owned(), "chat.jsonl, line 1: it is no message"),
    ] {
        fs::write(&file, text).expect("a file");
        let (output, _) = piped(&state, &["--resume", &file.display().to_string()], "Hello?\n");
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    }
    let (output, _) = piped(&state, &["--resume"], "Hello?\n");
    assert!(stderr(&output).contains("no conversation is saved in"), "{}", stderr(&output));
}

#[cfg(unix)]
mod terminal {
    use super::*;
    use crate::common::terminal::Terminal;
    use std::os::unix::fs::PermissionsExt;

    /// At its first prompt.
    fn typed(state: &TempDir, arguments: &[&str], editor: &str) -> Terminal {
        let (model, report) = (tiny().display().to_string(), state.path().join("report.json"));
        let report = report.display().to_string();
        let fixed = [
            "chat",
            "--model",
            &model,
            "--device",
            "cpu",
            "--max-new-tokens",
            "3",
            "--force",
            "--json",
            &report,
        ];
        let mut command = pascaline(&[&fixed, arguments].concat());
        command.env("XDG_STATE_HOME", state.path()).env("VISUAL", editor);
        let mut terminal = Terminal::start(command, 80);
        terminal.wait_for("/help lists the commands");
        terminal.wait_for("> ");
        terminal
    }

    fn say(terminal: &mut Terminal, keys: &str, answer: &str) {
        terminal.send(keys);
        terminal.wait_for(answer);
        terminal.wait_for("> ");
    }

    fn turns(state: &TempDir) -> Vec<Value> {
        let report = fs::read(state.path().join("report.json")).expect("a report");
        let report: Value = serde_json::from_slice(&report).expect("JSON");
        report["turns"].as_array().expect("turns").clone()
    }

    /// The one saved conversation.
    fn saved(state: &TempDir) -> PathBuf {
        let files = fs::read_dir(state.path().join("pascaline/chats")).expect("a folder");
        let files: Vec<_> = files.map(|entry| entry.expect("an entry").path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }

    #[test]
    fn a_conversation_lasts() {
        let state = folder();
        let mut terminal = typed(&state, &[], "false");
        say(&mut terminal, "One\\\rtwo\r", "first token after");
        say(&mut terminal, "Three\x1b\rfour\r", "first token after");
        say(&mut terminal, "/undo\r", "are taken back");
        say(&mut terminal, "/retry\r", "first token after");
        terminal.send("/quit\r");
        let (status, printed) = terminal.end();
        assert_eq!(status.code(), Some(0), "{printed}");
        assert!(printed.contains("--resume goes on with it"), "{printed}");
        let found = turns(&state);
        let messages: Vec<_> = found.iter().map(|turn| turn["message"].as_str().expect("a text")).collect();
        assert_eq!(messages, ["One\ntwo", "Three\nfour", "One\ntwo"]);
        let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
        let file = saved(&state);
        let history = state.path().join("pascaline/history.jsonl");
        assert_eq!(
            (mode(&file), mode(&history), mode(file.parent().expect("a folder"))),
            (0o600, 0o600, 0o700)
        );
        assert_eq!(lines(&file).len(), 2);
        assert_eq!(lines(&file)[0]["content"], "One\ntwo");

        // a line that a crash has cut is passed over
        fs::OpenOptions::new()
            .append(true)
            .open(&history)
            .expect("a file")
            .write_all(b"\"ha")
            .expect("it is written");
        let mut terminal = typed(&state, &["--resume"], "false");
        // up to the second of the five messages before
        say(&mut terminal, "\x1b[A\x1b[A\x1b[A\x1b[A\r", "first token after");
        terminal.send("\x04");
        assert_eq!(terminal.end().0.code(), Some(0));
        assert_eq!(turns(&state)[0]["message"], "Three\nfour");
        assert_eq!(lines(&saved(&state)).len(), 4);

        let alone = folder();
        let mut terminal = typed(&alone, &["--no-save"], "false");
        say(&mut terminal, "Hello\r", "first token after");
        terminal.send("\x04");
        terminal.end();
        assert!(!alone.path().join("pascaline").exists());
    }

    #[test]
    fn the_last_message_is_changed_in_an_editor() {
        let state = folder();
        let script = state.path().join("my editor");
        // no shell reads the command: its words come as they are
        let text = "#!/bin/sh\n[ \"$1\" = '$(date)' ] || exit 3\ncat \"$2\" > \"$0.seen\"\nprintf 'Edited\\nhere\\n' > \"$2\"\n";
        fs::write(&script, text).expect("a file");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).expect("it runs");
        let mut terminal = typed(&state, &[], &format!("'{}' '$(date)'", script.display()));
        say(&mut terminal, "/edit\r", "there is no message");
        say(&mut terminal, "Hello\r", "first token after");
        say(&mut terminal, "/edit\r", "first token after");
        say(&mut terminal, "/edit\r", "the message is as it was");
        terminal.send("\x04");
        assert_eq!(terminal.end().0.code(), Some(0));
        let found = turns(&state);
        assert_eq!((found.len(), &found[1]["message"]), (2, &"Edited\nhere".into()));
        assert_eq!(fs::read_to_string(state.path().join("my editor.seen")).expect("a text"), "Edited\nhere");
        assert_eq!(lines(&saved(&state))[0]["content"], "Edited\nhere");

        let mut terminal = typed(&state, &[], "false");
        say(&mut terminal, "Hello\r", "first token after");
        say(&mut terminal, "/edit\r", "nothing is changed");
        say(&mut terminal, "More\r", "first token after");
        terminal.send("\x04");
        terminal.end();
        assert_eq!(turns(&state).len(), 2);
    }

    #[test]
    fn tab_completes_and_dropped_paths_are_pictures() {
        let state = folder();
        let picture = state.path().join("a square.png");
        fs::copy(tiny().join("cases/square.png"), &picture).expect("a copy");
        let path = picture.display().to_string();
        let mut terminal = typed(&state, &[], "false");
        say(&mut terminal, "/und\t\r", "there is no message to take back");
        let beginning = path.strip_suffix("square.png").expect("its name").replace(' ', "\\ ");
        say(&mut terminal, &format!("/im\t{beginning}\t\r"), "shown with the next message");
        say(&mut terminal, &format!("'{path}' \r"), "shown with the next message");
        say(&mut terminal, &format!("{}\r", path.replace(' ', "\\ ")), "shown with the next message");
        let address = format!("/image file://{}\r", path.replace(' ', "%20"));
        say(&mut terminal, &address, "shown with the next message");
        say(&mut terminal, "What?\r", "first token after");
        terminal.send("\x04");
        assert_eq!(terminal.end().0.code(), Some(0));
        assert_eq!(turns(&state)[0]["images"], 4);
        let content = lines(&saved(&state))[0]["content"].clone();
        assert_eq!(content.as_array().expect("parts").len(), 5);
        assert!((0..4).all(|at| content[at]["image"] == path.as_str()), "{content}");
    }
}
