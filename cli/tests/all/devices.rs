//! A model over several virtual devices, as a user starts it: the reference's results, memory limits, faults of one device,
//! and wrong arguments.

use crate::common::program::{pascaline, stderr, stdout};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Output;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/qwen3-vl");

fn tiny() -> String {
    format!("{FIXTURES}/tiny")
}

/// The checkpoint of 32 layers, where it is there.
fn wide() -> Option<PathBuf> {
    let beside = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/fixtures/qwen3-vl/wide"));
    let wide = std::env::var_os("QWEN3_VL_WIDE").map_or(beside, PathBuf::from);
    wide.exists().then_some(wide)
}

/// On two devices of 64 MiB, or as `environment` says.
fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = pascaline(arguments);
    command.env("PASCALINE_VIRTUAL_DEVICES", "mx330,gtx1060").env("PASCALINE_VIRTUAL_TRAFFIC", "0");
    command.envs(environment.iter().copied()).output().expect("the program starts")
}

fn json(arguments: &[&str], environment: &[(&str, &str)]) -> Value {
    let output = run(arguments, environment);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

const THREE: (&str, &str) = ("PASCALINE_VIRTUAL_DEVICES", "mx330,gtx1060,gtx1080");

fn no_findings(output: &Output) {
    assert!(!stderr(output).contains("virtual GPU:"), "{}", stderr(output));
}

#[test]
fn models_over_devices_are_the_references() {
    // scripts in .ci do so with the checkpoint of 32 layers, which takes an optimised program
    let cases = [
        (tiny(), "text,small_image", "0,1", ["--split", "2,1"], "peer", None),
        (tiny(), "small_image", "auto", ["--split", "1,1,1"], "pinned", Some(THREE)),
        (tiny(), "text,small_image", "1,0", ["--split-mode", "row"], "pinned", None),
    ];
    for (model, runs, devices, [how, split], between, environment) in cases {
        let fixed = ["validate", "--model", &model, "--device", "virtual", "--runs", runs];
        let spread = ["--devices", devices, how, split, "--between", between];
        let arguments = [&fixed[..], &spread].concat();
        let output = run(&arguments, environment.as_slice());
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
        assert!(stdout(&output).contains("runs are the reference's"), "{}", stdout(&output));
        no_findings(&output);
    }
}

fn generate(more: &[&str], environment: &[(&str, &str)]) -> Value {
    let model = tiny();
    let fixed =
        ["generate", "--model", &model, "--device", "virtual", "--prompt", "Hello", "--max-new-tokens", "6"];
    json(&[&fixed[..], more, &["--json", "--quiet"]].concat(), environment)
}

#[test]
fn answers_are_the_same_and_memory_is_as_planned() {
    let one = generate(&[], &[]);
    let two = generate(&["--devices", "0,1", "--split", "1,2"], &[]);
    assert_eq!(one["generated_ids"], two["generated_ids"]);
    let parts = two["devices"].as_array().expect("two devices");
    let layers: Vec<_> = parts.iter().map(|part| part["layers"].as_u64()).collect();
    assert_eq!(layers, [Some(1), Some(2)]);
    let rows = generate(&["--devices", "0,1", "--split-mode", "row", "--between", "peer"], &[]);
    assert_eq!(one["generated_ids"], rows["generated_ids"]);
    let halves = rows["devices"].as_array().expect("two devices");
    for half in halves {
        assert_eq!((half["layers"].as_u64(), half["sharing_each_layer"].as_u64()), (Some(3), Some(2)));
    }
    for part in parts.iter().chain(halves) {
        assert!(part["pool_peak_bytes"].as_u64() <= part["planned_bytes"].as_u64(), "{part}");
        assert!(part["pool_peak_bytes"].as_u64() > Some(0), "{part}");
    }
    // a card that has little room gets fewer layers, and the pool keeps to the limit
    let plan = |memory: &'static str| {
        let model = wide().map_or_else(tiny, |wide| wide.display().to_string());
        json(
            &[
                "fit",
                &model,
                "--device",
                "virtual",
                "--devices",
                "auto",
                "--context",
                "512",
                "--image",
                "0x0",
                "--json",
                "-q",
            ],
            &[("PASCALINE_VIRTUAL_MEMORY", memory)],
        )
    };
    let layers = |plan: &Value| {
        let row = &plan["rows"][plan["chosen"].as_u64().expect("one is chosen") as usize];
        let devices = row["devices"].as_array().expect("devices");
        for device in devices {
            assert!(device["peak"].as_u64() <= device["limit"].as_u64(), "{device}");
        }
        devices.iter().map(|device| device["layers"].as_u64().expect("layers")).collect::<Vec<_>>()
    };
    let roomy = layers(&plan("2000000000,2000000000"));
    assert!(roomy[0] < roomy[1], "the second card's memory is three times as fast: {roomy:?}");
    if wide().is_some() {
        let tight = layers(&plan("2000000000,14000000"));
        assert!(
            tight[1] < roomy[1] && tight.iter().sum::<u64>() == roomy.iter().sum::<u64>(),
            "{tight:?} {roomy:?}"
        );
    }
}

#[test]
fn bench_measures_a_model_over_devices() {
    let model = tiny();
    let fixed = ["bench", "--model", &model, "--device", "virtual", "--json", "-", "--quiet"];
    let tests = ["-p", "8", "-n", "2", "-r", "1"];
    for split in [&["--split", "2,1"][..], &["--split-mode", "row"]] {
        let report = json(&[&fixed[..], &tests, &["--devices", "0,1"], split].concat(), &[]);
        let devices = report["model"]["device"].as_str().unwrap();
        assert!(
            devices.contains("MX330") && devices.contains(" + ") && devices.contains("1060"),
            "{devices}"
        );
        assert_eq!(report["tests"].as_array().unwrap().len(), 2);
    }
    let alone = run(&["bench", "--device", "virtual", "--devices", "0,1"], &[]);
    assert_eq!(alone.status.code(), Some(2), "{}", stderr(&alone));
    assert!(stderr(&alone).contains("--model"), "{}", stderr(&alone));
}

#[test]
fn a_plan_has_a_line_for_each_card() {
    let model = tiny();
    let output = run(&["fit", &model, "--card", "p40", "--card", "gtx1080", "--split", "2,1"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("Tesla P40") && text.contains("GeForce GTX 1080") && text.contains("2/3"),
        "{text}"
    );
    let rows = ["fit", &model, "--card", "p40", "--card", "p40", "--split-mode", "row"];
    let output = run(&rows, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    // half of the MLP's width is 80 values, no whole blocks
    assert_eq!((text.matches("3/3").count(), text.matches("indivisible").count()), (2, 4), "{text}");
    let output = run(&[&rows[..], &["--card", "p40"]].concat(), &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stderr(&output).contains("num_key_value_heads 2"), "{}", stderr(&output));
    let output = run(&["fit", &model, "--card", "p40", "--card", "gtx1080", "--memory-limit", "20M"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("are needed for a context"), "{}", stderr(&output));
}

/// The loss of a device ends what ran on it, with its error and without an answer.
#[test]
fn a_fault_of_one_device_ends_the_answer() {
    let model = tiny();
    let fixed =
        ["generate", "--model", &model, "--device", "virtual", "--prompt", "Hello", "--max-new-tokens", "6"];
    let faults = [
        ("0", "cuGraphLaunch", "layer"),
        ("1", "cuGraphLaunch", "layer"),
        ("0", "cuGraphLaunch", "row"),
        ("1", "cuLaunchKernel", "row"),
    ];
    for (device, call, mode) in faults {
        let faults = format!("{call}#{device}:3=719@sync!sticky");
        let arguments =
            [&fixed[..], &["--devices", "0,1", "--split-mode", mode, "--json", "--quiet"]].concat();
        let output = run(&arguments, &[("PASCALINE_FAULTS", &faults)]);
        assert_eq!(output.status.code(), Some(1), "{faults}: {}", stderr(&output));
        assert!(stderr(&output).contains("719"), "{faults}: {}", stderr(&output));
        assert!(!stdout(&output).contains("generated_ids"), "no answer is handed out");
        // what runs on the other device does not notice
        let other = if device == "0" { "1" } else { "0" };
        let arguments = [&fixed[..], &["--devices", other, "--json", "--quiet"]].concat();
        let output = run(&arguments, &[("PASCALINE_FAULTS", &faults)]);
        assert_eq!(output.status.code(), Some(0), "{faults}: {}", stderr(&output));
    }
}

#[test]
fn wrong_devices_are_refused_clearly() {
    let model = tiny();
    let fixed = ["generate", "--model", &model, "--device", "virtual", "--prompt", "x"];
    for (arguments, code, says) in [
        (&["--devices", "0,0"][..], 2, "device 0 is named twice"),
        (&["--devices", "0,1", "--split", "1,2,3"], 2, "--split has 3 shares for 2 devices"),
        (&["--devices", "0,1", "--split", "0,0"], 2, "all shares are 0"),
        (&["--devices", "0,7"], 1, "device 7 does not exist; the driver sees 2"),
        (&["--devices", "x"], 2, "numbers of devices such as 0,1"),
        (&["--devices", "0,1", "--gpu-layers", "1"], 2, "layers through one GPU"),
        (&["--devices", "0,1", "--between", "peer"], 1, "no peer access"),
        (&["--devices", "0,1", "--memory-limit", "100000"], 1, "does not fit"),
        (&["--devices", "0,1", "--split-mode", "row", "--memory-limit", "100000"], 1, "does not fit"),
        (&["--devices", "0,1", "--split-mode", "row", "--split", "1,1"], 2, "an equal part of every layer"),
        (&["--devices", "0,1", "--split-mode", "column"], 2, "layer, row"),
        (&["--devices", "0,1", "--split-mode", "row", "--between", "nccl"], 1, "there is no NCCL"),
        (&["--devices", "0,1", "--between", "nccl"], 2, "the sums of --split-mode row"),
    ] {
        let peers = if says == "no peer access" { "0" } else { "1" };
        let output = run(&[&fixed[..], arguments].concat(), &[("PASCALINE_VIRTUAL_PEERS", peers)]);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{arguments:?}: {}", stderr(&output));
    }
    let output =
        run(&["generate", "--model", &model, "--device", "cpu", "--devices", "0", "--prompt", "x"], &[]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let output = run(&["validate", "--model", &model, "--runs", "none"], &[]);
    assert!(stderr(&output).contains("there is no \"none\", only text"), "{}", stderr(&output));
    let output = run(&["validate", "--devices", "0,1"], &[]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn doctor_shows_all_devices_and_each_has_a_name() {
    let output = run(&["doctor"], &[("PASCALINE_DEVICE", "virtual")]);
    let text = stdout(&output);
    assert!(text.contains("cuda:0") && text.contains("Virtual GeForce MX330"), "{text}");
    assert!(text.contains("cuda:1") && text.contains("Virtual GeForce GTX 1060 6GB"), "{text}");
    let second = generate(&["--devices", "1"], &[]);
    assert!(second["device"].as_str().is_some_and(|device| device.contains("cuda:1")), "{second}");
    let model = tiny();
    let arguments =
        ["generate", "--model", &model, "--prompt", "Hello", "--max-new-tokens", "1", "--json", "--quiet"];
    let named = json(&[&arguments[..], &["--device", "virtual:1"]].concat(), &[]);
    assert_eq!(named["device"], second["device"]);
}
