//! `pascaline report`, in reduced time on the virtual GPU.

use crate::common::extent;
use crate::common::program::{pascaline, run, stderr, stdout};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Runs a report in a folder, with these arguments besides.
fn report(folder: &Path, arguments: &[&str]) -> std::process::Output {
    let all: Vec<&str> = ["report", "--device", "virtual"].iter().chain(arguments).copied().collect();
    let mut command = pascaline(&all);
    command.current_dir(folder).env("PASCALINE_VIRTUAL_CARD", "p40");
    command.output().expect("the program starts")
}

fn json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).expect("the report is there")).expect("JSON")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn count(value: &Value, path: &str) -> usize {
    value.pointer(path).and_then(Value::as_array).unwrap_or_else(|| panic!("{path} is no list")).len()
}

#[test]
fn a_report_has_every_part_and_says_nothing_of_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = report(folder.path(), &["--minutes", if extent::all() { "1" } else { "0.1" }]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    assert_eq!(names(folder.path()), ["pascaline-report.json", "pascaline-report.md"], "nothing else stays");

    let file = folder.path().join("pascaline-report.json");
    let found = json(&file);
    assert_eq!(found["environment"]["gpu"]["name"], "Virtual Tesla P40");
    assert_eq!(found["validate"]["passed"], true);
    // how many there is time for is a matter of the machine
    assert!(count(&found, "/validate/cases") > 0);
    assert!(count(&found, "/bench/cases") > 0);
    assert_eq!(count(&found, "/estimates/cases"), count(&found, "/bench/cases"));
    let counted = found["estimates"]["cases"].as_array().into_iter().flatten();
    assert!(counted.filter(|estimate| estimate["by"] == "counts").count() >= 1, "{}", found["estimates"]);
    let probes = found["probes"]["probes"].as_array().expect("probes");
    assert!(probes.len() > 20, "{}", found["probes"]);
    for probe in probes {
        assert_eq!(probe["right"], true, "{probe}");
        assert!(probe["assumed_clocks"].as_f64() > Some(0.2), "{probe}");
        assert_eq!(probe["measured_clocks"], Value::Null, "the virtual GPU has no clock: {probe}");
    }
    assert_eq!(found["model"]["message"], Value::Null);
    assert!(found["model"]["measured"]["decode_tokens"].as_u64() > Some(10), "{}", found["model"]);
    assert!(found["seconds_taken"].as_f64() > Some(0.0), "{}", found["seconds_taken"]);

    let page = fs::read_to_string(folder.path().join("pascaline-report.md")).expect("the page");
    for part in
        ["# Report of Virtual Tesla P40", "## Checks", "## Model", "## Probes", "## Temperature", "## Times"]
    {
        assert!(page.contains(part), "{part} is missing in:\n{page}");
    }
    let text = fs::read_to_string(&file).expect("text") + &page;
    for private in private_names(folder.path()) {
        assert!(!text.contains(&private), "`{private}` is in the report");
    }

    // The virtual GPU's times are the cost model's own, so they agree with its estimates.
    let file = file.to_str().expect("UTF-8");
    let output = run(&["report", "--compare", file, file, "--json", "-", "--quiet"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let compared: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(count(&compared, "/reports"), 2);
    let mean = compared["cost_model"]["geometric_mean"].as_f64().expect("a mean");
    assert!((mean - 1.0).abs() < 0.02, "the virtual GPU is {mean} of itself: {}", compared["cost_model"]);
}

/// As a card would send it: two sources in one bank cost nothing there.
#[test]
fn compared_probes_are_measured_beside_assumed() {
    let probe = |id: &str, measured: Option<f64>| serde_json::json!({"id": id, "what": id, "slots": 2.0, "assumed_clocks": 0.5, "measured_clocks": measured, "right": true});
    let card = serde_json::json!({"name": "GTX", "multiprocessors": 5, "clock_mhz": 1400, "memory_clock_mhz": 3500,
        "memory_bus_bits": 128, "bandwidth": 112.0, "memory_bytes": 1u64 << 31, "l2_bytes": 1 << 20});
    let mut text = serde_json::json!({
        "report": 1, "environment": {"pascaline": "0"}, "estimates": {"card": card, "cases": []},
        "probes": {"slots_of": "ptxas 12.6", "probes": [probe("free", Some(0.25)), probe("unknown", None)], "message": null},
    });
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("card.json");
    let compare = |text: &Value| {
        fs::write(&file, text.to_string()).expect("written");
        let output = run(&["report", "--compare", file.to_str().expect("UTF-8")]);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let found = compare(&text);
    let row = |name: &str| {
        found.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_default().to_owned()
    };
    let words = |name: &str| row(name).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words("free"), ["free", "2.00", "0.50", "0.25", "0.50×"], "{found}");
    assert_eq!(words("unknown"), ["unknown", "2.00", "0.50"], "{found}");
    assert!(found.contains("ptxas 12.6"), "{found}");
    assert!(found.contains("all values are right"), "{found}");
    text["probes"]["probes"][1]["right"] = false.into();
    let wrong = compare(&text);
    assert!(wrong.contains("WRONG") && !wrong.contains("all values are right"), "{wrong}");
    // a report of an earlier version has none
    text.as_object_mut().expect("an object").remove("probes");
    assert!(!compare(&text).contains("ptxas"));
}

#[test]
fn probes_alone_write_no_files_and_the_cpu_has_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = report(folder.path(), &["--probes"]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("FFMA, two sources in one bank"), "{}", stdout(&output));
    assert!(stdout(&output).contains("all values are right"), "{}", stdout(&output));
    assert_eq!(names(folder.path()), [""; 0]);
    let output = run(&["report", "--probes", "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("nothing to probe"), "{}", stderr(&output));
}

/// The folders, the user and the host.
fn private_names(folder: &Path) -> Vec<String> {
    let host = Command::new("hostname").output().map(|output| stdout(&output).trim().to_owned());
    let here = env::current_dir().expect("a folder");
    let folders = [folder, &here, &env::temp_dir(), &env::home_dir().expect("a home")];
    let folders = folders.map(|folder| folder.to_str().expect("UTF-8").to_owned());
    folders.into_iter().chain(host).filter(|name| name.len() > 1).collect()
}

#[test]
fn a_report_is_not_replaced_unasked_and_begins_with_no_work_for_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("pascaline-report.json"), "mine").expect("written");
    let output = report(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--force"), "{}", stderr(&output));
    let output =
        pascaline(&["report", "--device", "cpu"]).current_dir(folder.path()).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("of a GPU"), "{}", stderr(&output));
}

#[test]
fn what_is_no_report_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("other.json");
    let compare = |text: &str| {
        fs::write(&file, text).expect("written");
        let output = run(&["report", "--compare", file.to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        stderr(&output)
    };
    for text in ["", "{}", "[1]"] {
        assert!(compare(text).contains("is no report"), "{text}");
    }
    let later = r#"{"report": 2, "environment": {"pascaline": "9"}}"#;
    assert!(compare(later).contains("form 2"));
    let early = r#"{"report": 1, "environment": {"pascaline": "0"}, "bench": null, "estimates": null, "model": null}"#;
    assert!(compare(early).contains("interrupted"));
}
