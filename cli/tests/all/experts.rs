//! `--experts` and `--expert-cache`: the tokens are the same, plans know it, and what makes no sense is refused.

use crate::common::extent;
use crate::common::program::{pascaline, run, stderr, stdout};
use serde_json::Value;
use std::process::Output;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/qwen3-vl");

fn moe() -> String {
    format!("{FIXTURES}/moe")
}

fn parsed(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    serde_json::from_str(&stdout(output)).expect("JSON")
}

fn generate(more: &[&str]) -> Output {
    let model = moe();
    let arguments =
        ["generate", "--model", &model, "--device", "virtual", "--greedy", "--max-new-tokens", "12"];
    run(&[&arguments, &["--prompt", "Count the warps in a block.", "--json"][..], more].concat())
}

#[test]
fn the_tokens_are_the_same_wherever_experts_are() {
    let expected = parsed(&generate(&[]));
    assert_eq!(expected["host_expert_layers"], 0);
    assert_ne!(expected["graph_launches"], Value::Null);
    let layer = (3 * 8 * 96 * 160 * 2).to_string(); // matrices, experts, rows, columns, bytes of a value
    for (more, host) in [
        (&["--experts", "gpu"][..], 0),
        (&["--experts", "stream"], 3),
        (&["--experts", "cpu"], 3),
        (&["--experts", "auto"], 0),
        (&["--experts", "stream", "--expert-cache", &layer], 3),
        (&["--dtype", "f16", "--expert-cache", &layer], 3), // auto, and two experts of each layer may stay
    ] {
        let output = generate(more);
        let found = parsed(&output);
        assert_eq!(found["generated_ids"], expected["generated_ids"], "{more:?}");
        assert_eq!(found["host_expert_layers"], host, "{more:?}: {}", stderr(&output));
        assert_eq!(found["graph_launches"] == Value::Null, host > 0, "{more:?}");
        let number = |name: &str| found[name].as_u64().unwrap_or_else(|| panic!("{name} in {found}"));
        assert_eq!(
            found["expert_hit_rate"] != Value::Null,
            more.contains(&"--expert-cache"),
            "{more:?}: {found}"
        );
        let used = number("peak_bytes") - number("context_bytes");
        assert!(used <= number("planned_bytes"), "{more:?}: {used}: {found}");
        let notes = stderr(&output);
        assert_eq!(notes.contains("of host memory"), host > 0, "{more:?}: {notes}");
    }
}

#[test]
fn a_plan_states_device_and_host_bytes() {
    let model = moe();
    let fit = |more: &[&str]| {
        let arguments =
            ["fit", &model, "--card", "gtx1080", "--image", "0x0", "--context", "256", "--json", "-q"];
        parsed(&run(&[&arguments, more].concat()))["rows"][0].clone()
    };
    let host = |row: &Value| row["footprint"]["host"].as_u64().expect("bytes");
    let layer = 3 * 8 * 96 * 160 * 2;
    let (gpu, stream, cpu) =
        (fit(&["--experts", "gpu"]), fit(&["--experts", "stream"]), fit(&["--experts", "cpu"]));
    assert_eq!((&gpu["experts"], &gpu["cached_experts"]), (&"gpu".into(), &8.into()));
    assert_eq!((&stream["experts"], &stream["cached_experts"]), (&"stream".into(), &0.into()));
    assert_eq!([host(&stream), host(&cpu)].map(|bytes| bytes - host(&gpu)), [3 * layer; 2]);
    assert_eq!(fit(&[])["experts"], "gpu", "auto, with room");
    let one = 3 * layer / 8; // an expert of each layer
    for (bytes, cached) in [(one - 1, 0), (one, 1), (2 * one + 5, 2)] {
        let bytes = bytes.to_string();
        for place in ["stream", "auto"] {
            let row = fit(&["--experts", place, "--expert-cache", &bytes]);
            assert_eq!((&row["experts"], &row["cached_experts"]), (&place.into(), &cached.into()), "{bytes}");
        }
    }
    let all = (3 * layer).to_string();
    assert_eq!(fit(&["--expert-cache", &all])["experts"], "gpu", "all may stay");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (moe, tiny) = (moe(), format!("{FIXTURES}/tiny"));
    for (model, more, reason) in [
        (&moe, &["--experts", "disk"][..], "auto, gpu, stream, cpu"),
        (&moe, &["--expert-cache", "much"], "number of bytes"),
        (&moe, &["--experts", "gpu", "--expert-cache", "1G"], "with --experts gpu all are on the GPU"),
        (&moe, &["--experts", "stream", "--gpu-layers", "1"], "or whole layers"),
        (&tiny, &["--experts", "stream"], "this model is dense"),
        (&tiny, &["--expert-cache", "1G"], "this model is dense"),
    ] {
        let arguments = ["generate", "--model", model, "--device", "virtual", "--prompt", "Hi"];
        let output = run(&[&arguments, more].concat());
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(reason), "{more:?}: {}", stderr(&output));
    }
    let on_cpu = ["generate", "--model", &moe, "--device", "cpu", "--prompt", "Hi", "--experts", "cpu"];
    let output = run(&on_cpu);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("on the CPU all weights are in host memory"), "{}", stderr(&output));
    // experts that were to be on the GPU and do not fit, with a remedy
    let mut command = pascaline(&[
        "generate",
        "--model",
        &moe,
        "--device",
        "virtual",
        "--prompt",
        "Hi",
        "--experts",
        "gpu",
    ]);
    let output = command.args(["--memory-limit", "1M"]).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("leave out --experts"), "{}", stderr(&output));
}

#[test]
fn a_model_is_validated_wherever_its_experts_are() {
    for place in extent::first_of(1, &["cpu", "stream", "auto"], "places of experts that are validated") {
        let report =
            run(&["validate", "--model", &moe(), "--device", "virtual", "--experts", place, "--json", "-"]);
        assert_eq!(report.status.code(), Some(0), "{place}: {}{}", stdout(&report), stderr(&report));
    }
}
