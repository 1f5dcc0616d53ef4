//! The commands that take a model, as a user meets them.

use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny")
}

fn pascaline(command: &str, model: &Path, arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_pascaline"));
    program.arg(command).arg("--model").arg(model).args(["--device", "cpu"]).args(arguments);
    program.env_remove("PASCALINE_DEVICE");
    program
}

fn run(command: &str, model: &Path, arguments: &[&str]) -> Output {
    pascaline(command, model, arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

fn square() -> String {
    tiny().join("cases/square.png").display().to_string()
}

#[test]
fn generate_prints_the_references_answer() {
    let arguments = [
        "--image",
        &square(),
        "--prompt",
        "What colour is the circle?",
        "--max-new-tokens",
        "24",
        "--greedy",
    ];
    let output = run("generate", &tiny(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let cases: Value = serde_json::from_slice(&fs::read(tiny().join("cases.json")).unwrap()).unwrap();
    let want = &cases["runs"][1];
    assert_eq!(text(&output.stdout), format!("{}\n", want["generated_text"].as_str().unwrap()));

    let output = run("generate", &tiny(), &[&arguments[..], &["--json"]].concat());
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["generated_ids"], want["generated_ids"]);
    assert_eq!(json["text"], want["generated_text"]);
    assert_eq!(json["stop_reason"], "max_new_tokens");
    assert_eq!(json["prompt_ids"].as_array().unwrap().len(), 35);
    for number in ["time_to_first_token", "prefill_tokens_per_second", "decode_tokens_per_second"] {
        assert!(json[number].as_f64().unwrap() > 0.0, "{number}");
    }
}

#[test]
fn errors_name_the_file_and_set_the_exit_status() {
    for (model, arguments, status, part) in [
        (tiny(), vec!["--prompt", "x", "--image", "/none.png"], 1, "/none.png"),
        (tiny().join("none"), vec!["--prompt", "x"], 1, "config.json"),
        (tiny(), vec!["--prompt", "x", "--temperature=-1"], 1, "temperature"),
        (tiny(), vec!["--prompt", "x", "--greedy", "--top-k", "3"], 2, "--greedy"),
        (tiny(), vec!["--prompt", "x", "--gpu-layers", "1"], 1, "on the CPU all weights are in host memory"),
        (tiny(), vec![], 2, "--prompt"),
    ] {
        let output = run("generate", &model, &arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{arguments:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn chat_keeps_the_conversation() {
    let mut child = pascaline("chat", &tiny(), &["--max-new-tokens", "3"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let input = format!(
        "/image {}\nWhat colour?\nAnd now?\n/image /none.png\n/what\n/reset\nHello?\n/quit\nno\n",
        square()
    );
    child.stdin.take().expect("stdin is a pipe").write_all(input.as_bytes()).expect("chat reads");
    let output = child.wait_with_output().expect("chat ends");
    let notes = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{notes}");
    assert_eq!(notes.matches("prompt tokens").count(), 3, "{notes}");
    assert_eq!(notes.matches("cached").count(), 2, "{notes}"); // the turn's beginning is the same everywhere
    for part in ["/none.png", "/what is no command", "forgotten"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

/// A copy of the checkpoint whose last weight is another number.
fn changed() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("pascaline-changed-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("cases")).unwrap();
    for from in [tiny(), tiny().join("cases")] {
        let to = if from == tiny() { folder.clone() } else { folder.join("cases") };
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    let file = folder.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&9f32.to_le_bytes());
    fs::write(file, bytes).unwrap();
    folder
}

#[test]
fn validate_tells_a_right_model_from_a_wrong_one() {
    let output = run("validate", &tiny(), &["--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["passed"], &json["capacity"]["text_layers"]), (&Value::Bool(true), &3.into()));
    assert_eq!(json["runs"].as_array().unwrap().len(), 6);

    let changed = changed();
    let output = run("validate", &changed, &[]);
    fs::remove_dir_all(&changed).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let table = text(&output.stdout);
    assert!(table.contains("FAIL") && table.contains("PASS") && table.contains("DIFFER"), "{table}");
}

#[test]
fn layers_from_host_memory_are_reported() {
    let generate = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_pascaline"));
        program.args([
            "generate",
            "--device",
            "virtual",
            "--greedy",
            "--prompt",
            "Hi",
            "--max-new-tokens",
            "2",
        ]);
        let output = program.arg("--model").arg(tiny()).args(arguments).output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    };
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_slice(&generate(&[&["--json"], arguments].concat()).stdout).unwrap()
    };
    let (resident, streamed) = (json(&[]), json(&["--gpu-layers", "0"]));
    assert_eq!(resident["generated_ids"], streamed["generated_ids"]);
    assert_eq!((&streamed["streamed_layers"], &streamed["graph_launches"]), (&3.into(), &Value::Null));
    assert_eq!(resident["streamed_layers"], 0);
    let notes = String::from_utf8(generate(&["--gpu-layers", "0"]).stderr).unwrap();
    assert!(notes.contains("3 layers from host memory, launched kernel by kernel"), "{notes}");
}
