//! Embeddings and rankings, beside the reference's.

use crate::common::program::{pascaline, stderr, stdout};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::process::Stdio;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/qwen3-vl/tiny");
const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/qwen3-vl-embed/tiny.json");

fn reference() -> Value {
    serde_json::from_slice(&fs::read(REFERENCE).expect("the reference")).expect("JSON")
}

/// The lines that a command writes to lines on its stdin.
fn lines(arguments: &[&str], input: &[Value]) -> Vec<Value> {
    let mut command = pascaline(arguments);
    command.current_dir(TINY).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let text: String = input.iter().map(|line| format!("{line}\n")).collect();
    child.stdin.take().expect("stdin").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn vector(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

/// The fields that `embed` reads, of a case of the reference.
fn item(case: &Value) -> Value {
    let mut item = json!({});
    for name in ["text", "images", "instruction"] {
        if let Some(value) = case.get(name) {
            item[name] = value.clone();
        }
    }
    item
}

#[test]
fn media_embeddings_are_the_reference_s() {
    let reference = reference();
    let cases = reference["embeddings"].as_array().expect("cases");
    let input: Vec<Value> = cases.iter().map(item).collect();
    for device in ["cpu", "virtual"] {
        let found = lines(&["embed", "-m", TINY, "--device", device, "--dtype", "f32", "-q"], &input);
        assert_eq!(found.len(), cases.len());
        for (case, found) in cases.iter().zip(&found) {
            assert_eq!(found["tokens"], case["n_tokens"], "{}", case["prompt"]);
            let (found, want) = (vector(&found["embedding"]), vector(&case["embedding"]));
            let worst = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(found.len() == want.len() && worst <= 1e-5, "{device}: {worst:e} of {}", case["prompt"]);
        }
    }
}

#[test]
fn media_rankings_are_the_reference_s() {
    let reference = reference();
    let cases = reference["reranking"].as_array().expect("cases");
    let input: Vec<Value> = cases.iter().map(|case| item(&case["document"])).collect();
    let query = cases[0]["query"]["text"].as_str().expect("a query");
    for device in ["cpu", "virtual"] {
        let arguments = ["rerank", "-m", TINY, "--device", device, "--dtype", "f32", "-q", "--query", query];
        let found = lines(&arguments, &input);
        assert_eq!(found.len(), cases.len());
        let scores: Vec<f64> = found.iter().map(|line| line["score"].as_f64().expect("a score")).collect();
        assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
        for line in &found {
            let index = line["index"].as_u64().expect("an index") as usize;
            let (found, want) = (line["score"].as_f64(), cases[index]["score"].as_f64());
            let (found, want) = (found.expect("a score"), want.expect("a score"));
            assert!((found - want).abs() <= 1e-5, "{device}: {found} instead of {want}");
        }
        assert_eq!(lines(&[&arguments[..], &["--top", "1"]].concat(), &input), found[..1]);
    }
}

#[test]
fn media_a_search_finds_the_text_itself() {
    let embed = ["embed", "-m", TINY, "--device", "cpu", "-q"];
    let texts = ["red green blue", "A warp is thirty-two threads.", "What is a warp?"];
    let stored = lines(&[&embed[..], &["--dimensions", "16"]].concat(), &texts.map(Value::from));
    assert!(stored.iter().all(|line| line["embedding"].as_array().map(Vec::len) == Some(16)));
    let length = vector(&stored[0]["embedding"]).iter().map(|value| value * value).sum::<f64>();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text: String = stored.iter().map(|line| format!("{line}\n")).collect();
    fs::write(file.path(), text).expect("a file");
    let search = ["--search", file.path().to_str().expect("a path"), "--top", "2"];
    let found = lines(&[&embed[..], &search, &["--dimensions", "16", "--text", texts[1]]].concat(), &[]);
    assert_eq!((found.len(), &found[0]["text"]), (2, &json!(texts[1])));
    assert!(found[0]["score"].as_f64().is_some_and(|score| (score - 1.0).abs() < 1e-5), "{found:?}");

    for wrong in [vec!["--dimensions", "0"], vec!["--dimensions", "65", "--text", "x"], vec!["--top", "2"]] {
        let output =
            pascaline(&[&embed[..], &wrong].concat()).stdin(Stdio::null()).output().expect("it starts");
        assert_ne!(output.status.code(), Some(0), "{wrong:?}");
    }
    let output = pascaline(&[&embed[..], &search, &["--text", "x"]].concat()).output().expect("it starts");
    assert!(stderr(&output).contains("--dimensions"), "{}", stderr(&output));
}
