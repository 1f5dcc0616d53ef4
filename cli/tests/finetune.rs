//! `pascaline finetune`, and `validate --train`.

use pascaline_train::shapes;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn pascaline(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pascaline"));
    command.args(arguments).env("PASCALINE_DEVICE", "cpu").output().expect("the program starts")
}

fn succeeds(arguments: &[&str]) -> String {
    let output = pascaline(arguments);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {stdout}{stderr}");
    stdout.into_owned()
}

fn fails(arguments: &[&str]) -> (Option<i32>, String) {
    let output = pascaline(arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn validate_compares_training_with_the_reference() {
    let (model, train) = (fixture("qwen3-vl/tiny"), fixture("qwen3-vl-train/tiny"));
    let all = succeeds(&["validate", "--model", text(&model), "--train", text(&train)]);
    assert!(all.contains("all 2 runs train as the reference does"), "{all}");
    assert!(all.contains("model.visual.pos_embed.weight") && all.contains("LoRA 8"), "{all}");

    // another loss than the reference's is a miss
    let folder = tempfile::tempdir().unwrap();
    for file in ["text.safetensors", "one_image.safetensors"] {
        fs::copy(train.join(file), folder.path().join(file)).unwrap();
    }
    let cases = fs::read_to_string(train.join("cases_train.json")).unwrap();
    let cases = cases.replace("6.295584201812744", "6.2958842");
    fs::write(folder.path().join("cases_train.json"), cases).unwrap();
    let output = pascaline(&["validate", "--model", text(&model), "--train", text(folder.path())]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("1 of 2 runs DIFFER"), "{shown}");
}

#[test]
fn adapters_are_trained_stopped_resumed_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data, to) =
        (fixture("qwen3-vl/tiny"), folder.path().join("data"), folder.path().join("adapter"));
    fs::create_dir(&data).unwrap();
    shapes::write(&data, 10, 1).unwrap();
    let pairs = data.join("pairs.jsonl");
    let base = ["finetune", "--model", text(&model), "--data", text(&pairs), "--to", text(&to)];
    let options = ["--rank", "2", "--batch", "4", "--epochs", "2", "--rate", "1e-2", "--hold-out", "0.2"];
    let command: Vec<&str> = base.iter().chain(&options).copied().collect();
    let shown = succeeds(&command);
    assert!(shown.contains("step 4/4") && shown.contains("held out"), "{shown}");
    for file in ["adapter_config.json", "adapter_model.safetensors", "losses.csv", "losses.png"] {
        assert!(to.join(file).is_file(), "{file} is missing");
    }
    let csv = fs::read_to_string(to.join("losses.csv")).unwrap();
    assert_eq!(csv.lines().count(), 5, "{csv}");

    // a folder with a run is not overwritten, and a finished run has nothing left to do
    let (code, error) = fails(&command);
    assert!(code == Some(1) && error.contains("--resume"), "{error}");
    let adapter = fs::read(to.join("adapter_model.safetensors")).unwrap();
    let resumed: Vec<&str> = command.iter().copied().chain(["--resume"]).collect();
    assert!(!succeeds(&resumed).contains("step"));
    assert_eq!(fs::read(to.join("adapter_model.safetensors")).unwrap(), adapter);

    // over quantised weights
    let quantized = folder.path().join("quantized");
    let over = ["finetune", "--model", text(&model), "--data", text(&pairs), "--to", text(&quantized)];
    let over: Vec<&str> = over.iter().chain(&options).copied().chain(["--dtype", "q4_k"]).collect();
    assert!(succeeds(&over).contains("step 4/4"));
    let again: Vec<&str> = over.iter().copied().chain(["--force", "--quiet"]).collect();
    let quiet = succeeds(&again);
    assert!(!quiet.contains("step") && quiet.contains("held out"), "{quiet}");

    let picture = data.join("0000.png");
    let ask = ["generate", "--model", text(&model), "--image", text(&picture), "--prompt", "What is it?"];
    let ask: Vec<&str> = ask.iter().copied().chain(["--max-new-tokens", "4"]).collect();
    let adapted: Vec<&str> = ask.iter().copied().chain(["--adapter", text(&to)]).collect();
    assert_ne!(succeeds(&ask), succeeds(&adapted), "the adapter changes the answer");
}

#[test]
fn what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (fixture("qwen3-vl/tiny"), folder.path().join("bad.jsonl"));
    fs::write(&data, "{\"conversations\": [{\"from\": \"human\"}]}\n").unwrap();
    let to = folder.path().join("out");
    let base = ["finetune", "--model", text(&model), "--data", text(&data), "--to", text(&to)];
    let (code, error) = fails(&base);
    assert!(code == Some(1) && error.contains("line 1"), "{error}");
    let negative: Vec<&str> = base.iter().copied().chain(["--rate", "0"]).collect();
    let (code, error) = fails(&negative);
    assert!(code == Some(2) && error.contains("--rate"), "{error}");
    assert!(!to.exists(), "nothing is made where nothing is done");
}
