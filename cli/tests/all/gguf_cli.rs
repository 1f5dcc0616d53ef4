//! Models in GGUF files, as a user meets them.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl-gguf")
}

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny")
}

fn pascaline(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_pascaline"));
    program.args(arguments).env("PASCALINE_DEVICE", "cpu").output().expect("the program starts")
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The JSON of a command that succeeds.
fn json(arguments: &[&str]) -> Value {
    let output = pascaline(&[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The message of a command that fails.
fn refused(arguments: &[&str], status: i32) -> String {
    let output = pascaline(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
    said
}

/// All runs, with the pixel limits of the reference in the folder of what the files were made from.
#[test]
fn generate_gives_the_references_ids() {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| fs::copy(fixtures().join(from), folder.path().join(to)).unwrap();
    copy("mmproj-F16.gguf", "mmproj-F16.gguf");
    fs::create_dir(folder.path().join("source")).unwrap();
    copy("source/preprocessor_config.json", "source/preprocessor_config.json");
    let cases: Value =
        serde_json::from_slice(&fs::read(fixtures().join("cases_gguf.json")).unwrap()).unwrap();
    for run in cases["runs"].as_array().unwrap() {
        let file = run["file"].as_str().unwrap();
        copy(file, file);
        let model = folder.path().join(file);
        for (name, case) in cases["cases"].as_object().unwrap() {
            let images: Vec<_> = case["images"].as_array().unwrap().iter().collect();
            let images: Vec<_> =
                images.iter().map(|image| fixtures().join("source").join(image.as_str().unwrap())).collect();
            let mut arguments = vec!["generate", "--model", path(&model), "--dtype", "f32", "--greedy"];
            arguments.extend(["--ignore-eos", "--max-new-tokens", "24"]);
            arguments.extend(["--prompt", case["question"].as_str().unwrap()]);
            arguments.extend(images.iter().flat_map(|image| ["--image", path(image)]));
            assert_eq!(json(&arguments)["generated_ids"], run["generated_ids"][name], "{file} {name}");
        }
    }
}

#[test]
fn validate_runs_the_cases_beside_a_file() {
    let model = fixtures().join("model-Q6_K.gguf");
    let found = json(&["validate", "--model", path(&model)]);
    assert_eq!((&found["passed"], found["runs"].as_array().unwrap().len()), (&Value::Bool(true), 3));
    let folder = tempfile::tempdir().unwrap();
    fs::copy(&model, folder.path().join("other.gguf")).unwrap();
    let said = refused(&["validate", "--model", path(&folder.path().join("other.gguf"))], 1);
    assert!(said.contains("cases_gguf.json"), "{said}");
}

#[test]
fn models_that_are_none_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = ["--prompt", "x"];
    let of = |model: &Path, more: &[&str]| {
        refused(&[&["generate", "--model", path(model)], &prompt[..], more].concat(), 1)
    };
    let missing = of(&folder.path().join("none.gguf"), &[]);
    assert!(missing.contains("none.gguf") && missing.contains("no such"), "{missing}");
    let text = folder.path().join("text.gguf");
    fs::write(&text, "hello").unwrap();
    assert!(of(&text, &[]).contains("text.gguf"));
    fs::copy(fixtures().join("model-IQ4_XS.gguf"), &text).unwrap();
    assert!(of(&text, &[]).contains("--mmproj"));
    assert!(of(&text, &["--mmproj", path(&text)]).contains("general.architecture"));
    let many = of(&fixtures(), &[]);
    assert!(many.contains("has 5 models") && many.contains("model-Q4_K_M.gguf"), "{many}");
    let directory = of(&tiny(), &["--mmproj", path(&fixtures().join("mmproj-F16.gguf"))]);
    assert!(directory.contains("belongs to a GGUF file"), "{directory}");
}

#[test]
fn quantize_writes_a_pair_that_loads() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("out");
    let quantize = |kind: &'static str| {
        ["quantize", path(&tiny()), "--to", path(&to), "--type", kind].map(str::to_owned)
    };
    let arguments = quantize("q8_0");
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let found = json(&arguments);
    let (text, vision) = (to.join("model-Q8_0.gguf"), to.join("mmproj-F16.gguf"));
    for (file, written) in [&text, &vision].into_iter().zip(found["files"].as_array().unwrap()) {
        assert_eq!(written["file"], path(file));
        assert_eq!(written["bytes"], fs::metadata(file).unwrap().len());
    }
    for tensor in found["tensors"].as_array().unwrap() {
        let (kind, error) = (tensor["type"].as_str().unwrap(), tensor["relative_rms"].as_f64().unwrap());
        let most = match kind {
            "F32" => 0.0,
            "F16" => 5e-4,
            "Q8_0" => 8e-3,
            other => panic!("{other}"),
        };
        assert!(error <= most, "{tensor}");
    }
    assert_eq!(fs::read_dir(&to).unwrap().count(), 2, "nothing else stays");
    assert!(refused(&arguments, 1).contains("--force"));

    // The folder has one model, and its matrices are the bits that quantising while loading gives.
    let of = |model: &Path, more: &[&str]| {
        let generate =
            ["generate", "--model", path(model), "--prompt", "Hello?", "--greedy", "--max-new-tokens", "12"];
        json(&[&generate[..], more].concat())["generated_ids"].clone()
    };
    assert_eq!(of(&to, &[]), of(&tiny(), &["--dtype", "q8_0"]));
    let square = tiny().join("cases/square.png");
    let image = ["--image", path(&square), "--dtype", "f32"];
    assert_eq!(of(&to, &image).as_array().unwrap().len(), 12);

    let named = folder.path().join("named.gguf");
    json(&["quantize", path(&tiny()), "--to", path(&named), "--type", "F16", "--no-mmproj"]);
    let mmproj = ["--mmproj", path(&vision), "--dtype", "f32"];
    assert_eq!(of(&named, &mmproj), of(&tiny(), &["--dtype", "f32"]));
}

#[test]
fn quantize_refuses_what_is_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let said = refused(&["quantize", path(folder.path()), "--to", path(&folder.path().join("x"))], 1);
    assert!(said.contains("config.json"), "{said}");
    let said = refused(&["quantize", path(&tiny()), "--to", path(folder.path()), "--type", "Q9"], 2);
    assert!(said.contains("Q4_K_M"), "{said}");
}
