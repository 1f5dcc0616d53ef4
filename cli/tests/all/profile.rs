//! `pascaline run-ptx` and `pascaline profile` as a user meets them.

use crate::common::program::{pascaline, run, stderr, stdout};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs, process};

fn json(output: &Output) -> Value {
    let text = stdout(output);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}{}", stderr(output)))
}

/// y[i] += a · x[i] for every thread; without a bound. Line 16 loads x.
const SAXPY: &str = "\
.version 6.4
.target sm_61
.address_size 64
.visible .entry saxpy(.param .u64 y, .param .u64 x, .param .f32 a)
{
  .reg .b32 %r<5>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [y];
  ld.param.u64 %rd2, [x];
  ld.param.f32 %f1, [a];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  mul.wide.u32 %rd3, %r4, 4;
  add.u64 %rd4, %rd2, %rd3; add.u64 %rd5, %rd1, %rd3;
  ld.global.f32 %f2, [%rd4];
  ld.global.f32 %f3, [%rd5];
  fma.rn.f32 %f3, %f1, %f2, %f3;
  st.global.f32 [%rd5], %f3;
  ret;
}
";

const ELEMENTS: usize = 128;

/// A folder with the PTX, x and y, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("pascaline-{name}-{}", process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        let floats = |value: fn(usize) -> f32| -> Vec<u8> {
            (0..ELEMENTS).flat_map(|i| value(i).to_le_bytes()).collect()
        };
        for (file, bytes) in [
            ("saxpy.ptx", SAXPY.as_bytes().to_vec()),
            ("x", floats(|i| i as f32)),
            ("y", floats(|i| 1000.0 - i as f32)),
        ] {
            fs::write(folder.join(file), bytes).expect("a temporary file");
        }
        Self(folder)
    }

    /// `run-ptx` of saxpy: two blocks of 64 unless `rest` says more.
    fn saxpy(&self, blocks: &str, rest: &[&str]) -> Command {
        let at = |file: &str| self.0.join(file).to_string_lossy().into_owned();
        let inout = format!("inout:{}:{}", at("y"), at("out"));
        let (file, input) = (at("saxpy.ptx"), format!("in:{}", at("x")));
        let mut arguments = vec!["run-ptx", &file, "--kernel", "saxpy", "--grid", blocks, "--block", "64"];
        arguments.extend(["--arg", &inout, "--arg", &input]);
        arguments.extend(rest);
        pascaline(&arguments)
    }

    fn out(&self) -> PathBuf {
        self.0.join("out")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn assert_saxpy(out: &Path) {
    let bytes = fs::read(out).expect("the output file");
    let result: Vec<f32> =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let expected: Vec<f32> = (0..ELEMENTS).map(|i| 2.0 * i as f32 + (1000.0 - i as f32)).collect();
    assert_eq!(result, expected);
}

#[test]
fn run_ptx_runs_and_costs_a_kernel() {
    let folder = Folder::new("saxpy");
    let output = folder.saxpy("2", &["--arg", "f32:2"]).output().expect("the program starts");
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert_saxpy(&folder.out());
    for word in ["no findings", "ffma", "4.00 sectors/request", "registers", "GeForce MX330", "Tesla P40"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let longest = text.lines().map(|line| line.chars().count()).max();
    assert!(longest.is_some_and(|longest| longest <= 140), "{text}");
}

#[test]
fn run_ptx_writes_json_of_the_card_asked_for() {
    let folder = Folder::new("json");
    let rest = ["--arg", "f32:2", "--device", "virtual", "--card", "mx330", "--json", "-"];
    let output = folder.saxpy("2", &rest).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&output);
    let launch = &report["launch"];
    assert_eq!(report["findings"], Value::Array(Vec::new()));
    // Four warps, each with one FFMA, two loads and a store of four sectors.
    assert_eq!(launch["counts"]["mix"]["ffma"], 4);
    assert_eq!(launch["counts"]["global_loads"]["units"], 32);
    assert_eq!(launch["counts"]["global_stores"]["bytes"], 512);
    assert_eq!(launch["estimates"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&launch["estimates"][0]["card"], &launch["estimates"][0]["bound"]),
        (&"mx330".into(), &"launch".into())
    );
    assert!(stderr(&output).contains("GeForce MX330"), "the table goes to stderr");
}

#[test]
fn run_ptx_goes_through_the_driver_api_on_cuda() {
    // The driver API's device is the virtual GPU here, so that the path is taken on any machine.
    let folder = Folder::new("cuda");
    let mut command = folder.saxpy("2", &["--arg", "f32:2", "--device", "cuda", "--json", "-"]);
    let output = command.env("PASCALINE_DEVICE", "virtual").output().expect("the program starts");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_saxpy(&folder.out());
    assert!(json(&output)["milliseconds"].as_f64().is_some_and(|time| time > 0.0));
    assert!(stderr(&output).contains("no counts"), "{}", stderr(&output));
}

#[test]
fn run_ptx_names_where_a_kernel_goes_wrong() {
    let folder = Folder::new("fault");
    let output = folder.saxpy("3", &["--arg", "f32:2", "--json", "-"]).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stderr(&output);
    for word in ["out of bounds", "kernel `saxpy`", "PTX line 16", "block (2,0,0)", "thread (0,0,0)"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let finding = &json(&output)["findings"][0];
    assert_eq!((&finding["kind"], &finding["line"]), (&"OutOfBounds".into(), &16.into()));
    assert_eq!(finding["block"], serde_json::json!([2, 0, 0]));
    assert!(!folder.out().exists(), "no output of a kernel that failed");
}

#[test]
fn run_ptx_refuses_arguments_that_do_not_fit() {
    let folder = Folder::new("arguments");
    for (rest, words) in [
        (&[][..], "3 parameters, 2 --arg"),
        (&["--arg", "f64:2"], "parameter a of saxpy has 4"),
        (&["--arg", "f16:2"], "use in:FILE"),
        (&["--arg", "f32:2", "--card", "a100"], "use one of mx330"),
        (&["--arg", "f32:2", "--device", "cpu"], "use virtual, cuda"),
        (&["--arg", "f32:2", "--device", "cuda", "--card", "p40"], "--card is for"),
    ] {
        let output = folder.saxpy("2", rest).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{rest:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{words} in {}", stderr(&output));
        assert!(!folder.out().exists());
    }
}

#[test]
fn run_ptx_says_in_which_line_ptx_is_wrong() {
    let folder = Folder::new("parse");
    let broken = SAXPY.replace("fma.rn.f32", "wgmma.f32");
    fs::write(folder.0.join("saxpy.ptx"), broken).expect("a temporary file");
    let output = folder.saxpy("2", &["--arg", "f32:2"]).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("saxpy.ptx: line 18: ") && text.lines().count() == 1, "{text}");
}

#[test]
fn profile_counts_and_estimates_a_case() {
    let output = run(&["profile", "matmul_f32/m=65,n=67,k=63", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&output);
    let kernel = &report["cases"][0]["kernels"][0];
    let products = 65 * 67 * 63 / 32;
    let ffma = kernel["counts"]["mix"]["ffma"].as_u64().expect("a count");
    assert!((products..8 * products).contains(&ffma), "{ffma} FFMAs for {products} needed: {report}");
    let estimates = kernel["estimates"].as_array().expect("estimates");
    assert_eq!(estimates.len(), 6);
    let seconds: Vec<f64> = estimates.iter().filter_map(|card| card["seconds"].as_f64()).collect();
    assert!(seconds.len() == 6 && seconds.iter().all(|&s| s >= 5e-6), "{report}");
    let text = stderr(&output);
    for word in
        ["FFMA", "sectors/request", "bank conflicts/access", "diverge", "occupancy", "bound by", "model:"]
    {
        assert!(text.contains(word), "{word} in {text}");
    }
    for card in ["GeForce MX330", "GeForce GTX 1050 Ti", "GeForce GTX 1080", "Tesla P4 ", "Tesla P40"] {
        assert!(text.contains(card), "{card} in {text}");
    }
}

#[test]
fn profile_asks_for_fewer_cases() {
    for (case, words) in
        [("matmul", "cases' ids contain `matmul`"), ("no such case", "no case's id contains")]
    {
        let output = run(&["profile", case]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(words) && stdout(&output).is_empty(), "{}", stderr(&output));
    }
}

/// Several launches are added up, card by card.
#[test]
fn profile_adds_launches_up() {
    let output = run(&["profile", "softmax_f32/rows=1,cols=", "--check", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&output);
    let cases = report["cases"].as_array().expect("cases");
    assert!(cases.len() > 1, "{report}");
    let seconds = |estimates: &Value, card: &str| -> f64 {
        let on_card = estimates.as_array().expect("estimates").iter().find(|one| one["card"] == card);
        on_card.and_then(|one| one["seconds"].as_f64()).expect("seconds")
    };
    let kernels: Vec<_> =
        cases.iter().flat_map(|case| case["kernels"].as_array().expect("kernels")).collect();
    let launches = |kernel: &Value| kernel["launches"].as_u64().expect("a count");
    assert_eq!(report["total"]["launches"], kernels.iter().map(|kernel| launches(kernel)).sum::<u64>());
    for card in ["mx330", "p40"] {
        let one_by_one: f64 =
            kernels.iter().map(|kernel| launches(kernel) as f64 * seconds(&kernel["estimates"], card)).sum();
        let total = seconds(&report["total"]["cards"], card);
        assert!((total / one_by_one - 1.0).abs() < 1e-9, "{card}: {total} of {one_by_one}");
    }
    let text = stderr(&output);
    assert!(text.contains(&format!("total of {} cases, ", cases.len())), "{text}");
}

/// CUDA 13's knows no Pascal: it counts as none, unless it is named.
#[test]
#[cfg(unix)]
fn a_ptxas_without_sm_61_counts_as_none() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("new-ptxas");
    let ptxas = folder.0.join("ptxas");
    let fatal = "ptxas fatal   : Value 'sm_61' is not defined for option 'gpu-name'";
    fs::write(&ptxas, format!("#!/bin/sh\necho \"{fatal}\" >&2\nexit 255\n")).expect("a temporary file");
    fs::set_permissions(&ptxas, fs::Permissions::from_mode(0o755)).expect("it is ours");

    // not where target/ptxas may be
    let mut found = folder.saxpy("2", &["--arg", "f32:2"]);
    let output = found.current_dir(&folder.0).env("PATH", &folder.0).output().expect("the program starts");
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(
        text.contains("about ") && text.contains("does not know sm_61") && !text.contains("fatal"),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 140), "{text}");

    for variable in [false, true] {
        let path = ptxas.display().to_string();
        let rest = if variable { vec![] } else { vec!["--ptxas", &path] };
        let mut named = folder.saxpy("2", &[&["--arg", "f32:2", "--force"], &rest[..]].concat());
        if variable {
            named.env("PTXAS", &path);
        }
        let output = named.output().expect("the program starts");
        assert_eq!(output.status.code(), Some(1));
        assert!(
            stderr(&output).contains("does not work as ptxas: it does not know sm_61"),
            "{}",
            stderr(&output)
        );
    }
    let mut unset = folder.saxpy("2", &["--arg", "f32:2", "--force"]);
    assert_eq!(unset.env("PTXAS", "").output().expect("the program starts").status.code(), Some(0));
}

#[test]
fn a_ptxas_that_is_named_must_work() {
    let folder = Folder::new("ptxas");
    let rest = ["--arg", "f32:2", "--ptxas", "/no/such/ptxas"];
    let output = folder.saxpy("2", &rest).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("/no/such/ptxas does not work as ptxas: not found"),
        "{}",
        stderr(&output)
    );
}

/// A prompt and a token of a whole model: every launch of both, the token's those of a graph.
#[test]
fn profile_estimates_a_model() {
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/qwen3-vl/tiny");
    let of = |more: &[&str]| run(&[&["profile", "--model", tiny, "--json", "-"], more].concat());
    let output = of(&["--card", "mx330", "-p", "40"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&output);
    assert_eq!((report["card"].as_str(), report["cache"].as_str()), (Some("mx330"), Some("f32")));
    let passes = report["passes"].as_array().expect("passes");
    let names: Vec<_> = passes.iter().filter_map(|pass| pass["test"].as_str()).collect();
    assert_eq!(names, ["pp40", "tg1 @ d41"]);
    for (pass, in_graph) in passes.iter().zip([false, true]) {
        let kernels = pass["kernels"].as_array().expect("kernels");
        let sum = |value: &dyn Fn(&Value) -> f64| kernels.iter().map(value).sum::<f64>();
        let launches = |kernel: &Value| kernel["launches"].as_f64().expect("a count");
        let seconds = |kernel: &Value| kernel["estimates"][0]["seconds"].as_f64().expect("seconds");
        assert_eq!(pass["launches"].as_f64(), Some(sum(&launches)), "{pass}");
        let total = pass["seconds"].as_f64().expect("seconds");
        assert!((sum(&|kernel| launches(kernel) * seconds(kernel)) / total - 1.0).abs() < 1e-9, "{pass}");
        let overhead = if in_graph { 1.5e-6 } else { 5e-6 };
        assert!(kernels.iter().all(|kernel| kernel["in_graph"] == in_graph && seconds(kernel) > overhead));
        // layers repeat their launches
        assert!(kernels.iter().any(|kernel| launches(kernel) > 1.0), "{pass}");
    }
    let text = stderr(&output);
    assert!(text.contains("GeForce MX330, estimated") && text.contains("tg1 @ d41"), "{text}");

    assert_eq!(of(&["--card", "h200"]).status.code(), Some(2));
    assert_eq!(run(&["profile"]).status.code(), Some(2));
    assert_eq!(run(&["profile", "softmax", "--model", tiny]).status.code(), Some(2));
}

/// y = a.x · a.y of a structure by value, which the kernel prints.
const STRUCTURE: &str = "\
.version 7.8
.target sm_61
.address_size 64
.extern .func (.param .b32 func_retval0) vprintf(.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[6] = {37, 117, 33, 27, 10, 0};
.visible .entry multiply(.param .u64 y, .param .align 4 .b8 a[12])
{
  .local .align 8 .b8 depot[8];
  .reg .b32 %r<4>; .reg .b64 %rd<6>;
  ld.param.u32 %r1, [a];
  ld.param.u32 %r2, [a+4];
  mul.lo.u32 %r1, %r1, %r2;
  ld.param.u64 %rd1, [y];
  st.global.u32 [%rd1], %r1;
  mov.u64 %rd2, depot; st.local.u32 [%rd2], %r1; cvta.local.u64 %rd3, %rd2;
  mov.u64 %rd4, text; cvta.global.u64 %rd5, %rd4;
  { .param .b64 p0; .param .b64 p1; .param .b32 r;
    st.param.b64 [p0], %rd5; st.param.b64 [p1], %rd3;
    call.uni (r), vprintf, (p0, p1); }
  ret;
}
";

#[test]
fn run_ptx_takes_structures_and_prints_what_kernels_print() {
    let folder = Folder::new("structure");
    let path = |name: &str| folder.0.join(name).display().to_string();
    fs::write(path("k.ptx"), STRUCTURE).expect("a file");
    fs::write(path("a"), [6u32, 7, 0].map(u32::to_le_bytes).concat()).expect("a file");
    fs::write(path("short"), [0; 8]).expect("a file");
    let (y, a, short) =
        (format!("out:4:{}", path("y2")), format!("bytes:{}", path("a")), format!("bytes:{}", path("short")));
    let k = path("k.ptx");
    let of = |a: &str, more: &[&str]| {
        let common = [
            "run-ptx", &k, "--kernel", "multiply", "--grid", "1", "--block", "1", "--force", "--arg", &y,
            "--arg", a,
        ];
        run(&[&common, more].concat())
    };
    let output = of(&a, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("42!␛\n"), "{}", stdout(&output));
    assert_eq!(fs::read(path("y2")).expect("y"), 42u32.to_le_bytes());
    assert_eq!(json(&of(&a, &["--json", "-"]))["printed"], "42!\u{1b}\n");
    let output = of(&short, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--arg number 2 has 8 bytes, but parameter a of multiply has 12"),
        "{}",
        stderr(&output)
    );
}
