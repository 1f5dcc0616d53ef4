//! The command line as a user meets it: the program is run, and what it prints and how it exits is looked at.

use crate::common::extent;
use crate::common::program::{pascaline, run, stderr, stdout};
use pascaline_testing::{self as testing, Purpose};
use serde_json::Value;
use std::env;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

const CASE: &str = "softmax_f32/rows=4096,cols=128";

#[test]
fn bench_prints_a_line_for_each_case() {
    let output = run(&["bench", "--device", "cpu", "--only", CASE]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "", "there is no progress bar in a pipe");
    assert!(!text.contains('\x1b'), "there are no colours in a pipe");
    let header = text.lines().find(|line| line.starts_with("case ")).expect("a header");
    let line = text.lines().find(|line| line.starts_with(CASE)).expect("the case's line");
    for (title, unit) in [("median", "s"), ("min", "s"), ("rate", "GB/s"), ("of ceiling", "copy")] {
        let end = header.find(title).map(|at| header[..at].chars().count() + title.len());
        let end = end.unwrap_or_else(|| panic!("no {title} in {header}"));
        let cell: String = line.chars().take(end).collect();
        assert!(cell.ends_with(unit), "{title} ends where its column does:\n{header}\n{line}");
    }
    assert!(line.ends_with("  cpu"), "{line}");
    assert!(text.contains("1 case right within its tolerance"), "{text}");
}

#[test]
fn bench_writes_json_that_agrees_with_itself() {
    let output = run(&["bench", "--device", "cpu", "--only", CASE, "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains(CASE), "the table goes to stderr");
    let report = json(&stdout(&output));
    assert_eq!(report["environment"]["device"], "cpu");
    assert_eq!(report["cases_to_run"], 0, "none was left when it was written");
    let bench_cases = testing::cases().iter().filter(|case| case.purpose() == Purpose::Bench).count();
    assert_eq!(report["cases_in_table"], bench_cases, "of all cases, not of those that --only takes");
    let number =
        |name: &str| report["cases"][0][name].as_f64().unwrap_or_else(|| panic!("{name} in {report}"));
    assert_eq!((&report["cases"][0]["id"], &report["cases"][0]["status"]), (&CASE.into(), &"ok".into()));
    assert!(0.0 < number("min_ms") && number("min_ms") <= number("median_ms"));
    assert!(number("worst_share") <= 1.0 && number("max_error") > 0.0);
    let bytes = 2.0 * 4.0 * 4096.0 * 128.0;
    let gbps = bytes / number("median_ms") / 1e6;
    assert!((number("gbps") / gbps - 1.0).abs() < 1e-6, "{report}");
    let ceiling = report["ceilings"]["memory"]["per_second"].as_f64().expect("a ceiling");
    assert!((number("percent") / (100.0 * 1e9 * gbps / ceiling) - 1.0).abs() < 1e-6, "{report}");
}

#[test]
fn bench_says_how_many_cases_it_leaves_out() {
    let id = "softmax_f32/rows=4096,cols=";
    let output = run(&["bench", "--device", "cpu", "--only", id, "--json", "-"]);
    let report = json(&stdout(&output));
    let cases = report["cases"].as_array().expect("cases");
    let left_out = cases.iter().filter(|case| case["status"] == "left out").count();
    assert!(left_out > 0 && left_out < cases.len(), "{report}");
    assert!(stderr(&output).contains(&format!("{left_out} left out: too large")), "{}", stderr(&output));
    assert!(report["left_out_rule"].is_string());
}

#[test]
fn bench_measures_memory_against_its_goals() {
    let folder = env::temp_dir().join(format!("pascaline-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let trace = folder.join("small.trace");
    std::fs::write(&trace, "a 0 5000 0\na 1 3000000 0\nf 0 0\nf 1 0\n").expect("a writable folder");
    let trace = trace.display().to_string();
    let output = run(&["bench", "--memory", "--device", "virtual", "--trace", &trace, "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&stdout(&output));
    assert_eq!(report["trace_allocations"], 2);
    assert_eq!(report["leaks"], serde_json::json!([]), "everything was given back");
    assert_eq!(report["pool"]["live"], 0);
    let measured = report["measured"].as_array().expect("a list");
    let goals = measured.iter().filter(|one| !one["goal"].is_null());
    assert_eq!(goals.count(), 9);
    let find = |what: &str| measured.iter().find(|one| one["what"] == what).expect(what)["value"].as_f64();
    let asked_for = Some(3_005_000.0 / (1 << 20) as f64);
    assert_eq!(find("peak: tensors' bytes, as asked for"), asked_for);
    assert_eq!(find("all tensors' bytes of the pass, none freed"), asked_for);
    assert_eq!(find("peak: live in the pool, rounded"), Some((5120 + 3_000_064) as f64 / (1 << 20) as f64));
    assert!(find("peak: taken by the driver, one cuMemAlloc a live tensor") >= asked_for);
    assert!(find("peak: taken by the driver in the pass, each freed at once") >= asked_for);

    std::fs::write(folder.join("small.trace"), "a 0\n").expect("a writable folder");
    let output = run(&["bench", "--memory", "--device", "virtual", "--trace", &trace]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("line 1 is not an entry of a memory trace: a 0"), "{}", stderr(&output));
    let output = run(&["bench", "--memory", "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("add `--device cuda`"), "{}", stderr(&output));
}

#[test]
fn validate_passes_on_the_cpu() {
    let file = env::temp_dir().join(format!("pascaline-validate-{}.json", std::process::id()));
    let mut arguments = vec!["validate", "--device", "cpu", "--json", file.to_str().expect("UTF-8")];
    if !extent::all() {
        extent::left_out("cases of `validate --device cpu` but softmax's and two products'");
        arguments.extend(["--only", "softmax", "--only", "matmul_f32", "--only", "quant_matmul_q4_0"]);
    }
    let output = run(&arguments);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(text.lines().any(|line| line.starts_with("softmax ") && line.contains("PASS")), "{text}");
    assert!(text.contains("cases pass on cpu"), "{text}");
    let report = json(&std::fs::read_to_string(&file).expect("the report"));
    std::fs::remove_file(&file).expect("the report is ours");
    assert_eq!(report["passed"], true);
    let cases = report["cases"].as_array().expect("cases");
    assert!(cases.len() > 20 && cases.iter().all(|case| case["passed"] == true), "{report}");
}

#[test]
fn the_device_may_come_from_the_environment() {
    let output =
        pascaline(&["validate", "--only", "softmax_f32/rows=1,"]).env("PASCALINE_DEVICE", "cpu").output();
    let output = output.expect("the program starts");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("cpu: "), "{}", stdout(&output));
    assert!(!stdout(&output).contains("taken because"), "it was said, not chosen");
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let with = |variable| {
        let mut command = pascaline(&["validate", "--only", "softmax_f32/rows=1,", "--json", "--quiet"]);
        let output = command.env("PASCALINE_DEVICE", variable).output().expect("the program starts");
        (output.status.code(), stderr(&output), stdout(&output))
    };
    let (status, said, report) = with("");
    assert_eq!((status, said), (Some(0), String::new()));
    assert!(json(&report)["environment"]["device"].is_string());
    assert_eq!(with("gpu").0, Some(2), "another that is no device is an error");
}

#[test]
fn tune_without_a_gpu_does_not_send_to_the_cpu() {
    let output = run(&["tune", "--device", "cuda:77"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("without a GPU there is nothing to tune") && !text.contains("--device cpu"),
        "{text}"
    );
}

/// In every subcommand JSON goes to stdout or to a file, and nothing else is printed then if nobody wants it.
#[test]
fn json_is_the_same_everywhere() {
    let folder = env::temp_dir().join(format!("pascaline-json-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let tensors = folder.join("x.safetensors");
    std::fs::write(&tensors, safetensors(&[("x", &[1.0, 2.0])])).expect("a writable folder");
    let file = folder.join("report.json").display().to_string();
    for arguments in [
        &["doctor"][..],
        &["float16", &tensors.display().to_string()],
        &["validate", "--device", "cpu", "--only", "softmax_f32/rows=1,"],
        &["bench", "--device", "cpu", "--only", CASE],
        &["profile", "softmax_f32/rows=3,cols=31"],
    ] {
        let quiet = run(&[arguments, &["--quiet", "--json"]].concat());
        assert_eq!((quiet.status.code(), stderr(&quiet)), (Some(0), String::new()), "{arguments:?}");
        let keys =
            |text: &str| json(text).as_object().map(|report| report.keys().cloned().collect::<Vec<_>>());
        assert_eq!(
            run(&[arguments, &["--force", "--json", &file]].concat()).status.code(),
            Some(0),
            "{arguments:?}"
        );
        let written = std::fs::read_to_string(&file).expect("the report");
        assert_eq!(keys(&written), keys(&stdout(&quiet)), "{arguments:?}");
    }
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
}

#[test]
fn shells_get_their_completions() {
    for (shell, part) in
        [("bash", "complete -F"), ("zsh", "#compdef pascaline"), ("fish", "complete -c pascaline")]
    {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let script = stdout(&output);
        assert!(
            script.contains(part) && script.contains("generate") && script.contains("gpu-layers"),
            "{script}"
        );
    }
    assert_eq!(run(&["completions", "csh"]).status.code(), Some(2));
}

#[test]
fn doctor_tells_what_is_here_with_or_without_a_driver() {
    let output = run(&["doctor"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for word in ["Kernels", "PTX 6.4", "sm_61", "CPU", "Driver", "auto takes", "because"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    // the program may be Windows' where this test is not
    assert!(["libcuda.so.1: ", "nvcuda.dll: "].iter().any(|library| text.contains(library)), "{text}");
    let report = json(&stdout(&run(&["doctor", "--json"])));
    let auto = report["auto"].as_str().expect("auto");
    let devices = report["devices"].as_array().expect("devices");
    assert_eq!(auto == "cpu", devices.iter().all(|device| device["problem"].is_string()), "{report}");
    assert_eq!(report["kernels"]["target"], "sm_61");
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_with_a_reason() {
    let report = json(&stdout(&run(&["doctor", "--json"])));
    let output = run(&["validate", "--device", "cuda:77"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    match report["driver"]["found"].is_null() {
        true => assert!(text.contains("no usable GPU") && text.contains("driver"), "{text}"),
        false => assert!(text.contains("device 77 does not exist"), "{text}"),
    }
    assert!(
        text.contains("`--device cpu`") && text.lines().count() == 1,
        "one sentence with a remedy: {text}"
    );
}

#[test]
fn nonsense_is_a_usage_error() {
    for arguments in [
        &["bench", "--device", "gpu"][..],
        &["validate", "--device", "cuda:x"],
        &["bench", "--against", "mkl"],
        &["frobnicate"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty() && !stderr(&output).is_empty());
    }
    let alone = run(&[]);
    assert_eq!(alone.status.code(), Some(0), "{}", stderr(&alone));
    assert!(stdout(&alone).contains("Usage: pascaline"), "the help: {}", stdout(&alone));
    assert!(stderr(&run(&["bench", "--device", "gpu"])).contains("use auto, cpu, cuda, cuda:N or virtual"));
}

#[test]
fn what_cannot_be_done_says_what_to_do() {
    for (arguments, status, remedy) in [
        (&["bench", "--device", "cpu", "--only", "no such case"][..], 2, "the ops are "),
        (&["bench", "--device", "cpu", "--json", "/no/such/folder/x.json"], 1, "choose another path"),
        (&["bench", "--device", "cpu", "--against", "cublas"], 2, "--device cuda"),
        (&["tune", "--device", "cpu"], 2, "the CPU has none to choose from; with a GPU, use `--device cuda`"),
        (&["tune", "--device", "virtual"], 2, "`tune` needs a real one"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        let text = stderr(&output);
        assert!(text.starts_with("error: ") && text.contains(remedy) && text.lines().count() == 1, "{text}");
        assert_eq!(stdout(&output), "", "{arguments:?} fails before any work");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = pascaline(&["bench", "--device", "cpu", "--only", CASE])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut first = String::new();
    let mut reader = BufReader::with_capacity(1, child.stdout.take().expect("a pipe"));
    reader.read_line(&mut first).expect("a line");
    drop(reader);
    let output = child.wait_with_output().expect("it ends");
    assert!(first.starts_with("cpu: "), "{first}");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

/// A safetensors file of f32 tensors.
fn safetensors(tensors: &[(&str, &[f32])]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, values) in tensors {
        let begin = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let range = format!("[{begin},{}]", data.len());
        entries
            .push(format!(r#""{name}":{{"dtype":"F32","shape":[{}],"data_offsets":{range}}}"#, values.len()));
    }
    let header = format!("{{{}}}", entries.join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

#[test]
fn float16_names_the_format_that_loses_least() {
    let file = env::temp_dir().join(format!("pascaline-float16-{}.safetensors", std::process::id()));
    let path = file.to_str().expect("a temporary folder with a plain name");
    // within one power of two precision counts, over sixty of them range
    let narrow: Vec<f32> = (0..512).map(|i| 1.0 + i as f32 / 600.0).collect();
    let wide: Vec<f32> = (0..512).map(|i| (1.0 + i as f32 / 600.0) * 2f32.powi(i % 61 - 30)).collect();
    let whole = safetensors(&[("narrow", &narrow), ("wide", &wide), ("odd", &[1.0, f32::NAN])]);
    std::fs::write(&file, &whole).expect("the temporary folder can be written");

    let output = run(&["float16", path]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(text.contains("narrow: 2 exponent, 13 mantissa bits"), "{text}");
    assert!(text.contains("odd: skipped: ") && text.contains("element 1 is NaN"), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("of 3 tensors, 2 measured")), "{text}");
    assert_eq!(stdout(&run(&["float16", path, "--tensor", "wide", "--all"])).lines().count(), 8);
    let report = json(&stdout(&run(&["float16", path, "--json"])));
    let tensor = |name: &str| {
        let tensors = report["tensors"].as_array().expect("tensors");
        tensors.iter().find(|tensor| tensor["name"] == name).expect("the tensor")
    };
    assert_eq!((&tensor("narrow")["best"], &report["best_for"]["2"]), (&2.into(), &1.into()));
    assert_eq!(tensor("narrow")["formats"].as_array().map(Vec::len), Some(7));
    assert!(tensor("odd")["skipped"].as_str().is_some_and(|reason| reason.contains("NaN")), "{report}");

    let failure = |arguments: &[&str], code, what: &str| {
        let output = run(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(what) && !said.contains("panicked"), "{arguments:?}: {said}");
    };
    failure(&["float16", path, "--tensor", "none"], 2, "the file has 3");
    failure(&["float16", path, "--tensor", "odd"], 1, "none of the tensors could be measured");
    std::fs::write(&file, &whole[..whole.len() - 4]).expect("the temporary folder can be written");
    failure(&["float16", path], 1, "truncated");
    std::fs::write(&file, b"no safetensors file").expect("the temporary folder can be written");
    failure(&["float16", path], 1, path);
    std::fs::remove_file(&file).expect("it is there");
    failure(&["float16", path], 1, path);
}
