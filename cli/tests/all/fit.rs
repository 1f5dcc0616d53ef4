//! Plans of memory: what `fit` prints, and that answers are the same in little memory.

use crate::common::extent;
use crate::common::program::{pascaline, run, stderr, stdout};
use serde_json::Value;
use std::path::Path;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");

fn json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

#[test]
fn the_table_of_cards_is_what_fit_prints() {
    if !extent::all() {
        return extent::left_out("the table of cards, planned anew");
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cards.md");
    let written = std::fs::read_to_string(file).expect("docs/cards.md");
    assert!(
        stdout(&run(&["fit", "--table"])) == written,
        "write it anew: pascaline fit --table > docs/cards.md"
    );
}

/// The published sizes on the cards that they are meant for, with a picture of 1024 × 1024 and a context of 2048.
#[test]
fn the_family_fits_the_cards_that_it_is_meant_for() {
    for (card, limit, model, layers) in [
        ("mx330", "1.55G", "2B", 28),
        ("gtx1050ti", "3.5G", "4B", 36),
        ("gtx1080", "7.3G", "8B", 36),
        ("p40", "23.8G", "32B", 64),
    ] {
        let plan =
            json(&["fit", "--card", card, "--context", "2048", "--memory-limit", limit, "--json", "-q"]);
        let rows = plan["rows"].as_array().expect("rows");
        let row =
            rows.iter().find(|row| row["model"] == model && row["matrices"] == "Q4_K_M").expect("a row");
        assert_eq!((&row["fits"], &row["gpu_layers"]), (&Value::Bool(true), &layers.into()), "{row}");
        assert!(row["peak"].as_u64() <= plan["limit"].as_u64(), "{row}");
    }
}

#[test]
fn what_does_not_fit_is_an_error_with_what_it_needs() {
    let model = format!("{FIXTURES}/qwen3-vl/tiny");
    let output = run(&["fit", &model, "--card", "mx330", "--memory-limit", "20M"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("MiB are needed for a context of 4096 tokens"), "{}", stderr(&output));
    let output = run(&["fit", &model, "--card", "gtx980"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("mx330, gtx1050ti, gtx1060"), "{}", stderr(&output));
    for limit in ["0", "-1", "2T", "much"] {
        let output = run(&["fit", &model, "--card", "mx330", &format!("--memory-limit={limit}")]);
        assert_eq!(output.status.code(), Some(2), "{limit}: {}", stderr(&output));
    }
}

/// The tokens stay, and no more is used than is planned.
#[test]
fn answers_are_the_same_in_less_memory() {
    let model = format!("{FIXTURES}/qwen3-vl-gguf/model-Q8_0.gguf");
    let image = format!("{FIXTURES}/qwen3-vl-gguf/source/cases/square.png");
    assert!(Path::new(&image).exists());
    let mut expected = None;
    for memory in ["64000000", "11000000"] {
        let mut command = pascaline(&["generate", "--model", &model, "--image", &image, "--prompt", "What?"]);
        command.args([
            "--device",
            "virtual",
            "--greedy",
            "--max-new-tokens",
            "4",
            "--cache",
            "f32",
            "--json",
        ]);
        let output =
            command.env("PASCALINE_VIRTUAL_CARD", "mx330").env("PASCALINE_VIRTUAL_MEMORY", memory).output();
        let output = output.expect("the program starts");
        assert_eq!(output.status.code(), Some(0), "{memory}: {}", stderr(&output));
        let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        let number = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name} in {report}"));
        let used = number("peak_bytes") - number("context_bytes");
        assert!(used <= number("planned_bytes"), "{used}: {report}");
        let ids = report["generated_ids"].clone();
        assert_eq!(*expected.get_or_insert_with(|| ids.clone()), ids, "{memory}: {}", stderr(&output));
    }
}
