//! `pascaline virtual` as a user meets it.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use crate::common::program::{pascaline, stderr, stdout};
use serde_json::Value;
use std::process::{Command, Output};
use std::{env, fs};

/// The program with a file that no command of these tests loads as its library.
fn with_library(arguments: &[&str]) -> Output {
    let mut program = pascaline(&["virtual"]);
    program.env("PASCALINE_VIRTUAL_DRIVER", env::current_exe().expect("this test's path"));
    program.args(arguments).output().expect("the program starts")
}

/// Appends a line to the record of a process, as the library does.
const FINDING: &str = r#"echo '{"finding":{"kind":"OutOfBounds","kernel":"k","line":3,"block":[0,0,0],"thread":[1,0,0],"message":"m","text":"out of bounds"}}' >> "$PASCALINE_VIRTUAL_REPORT/1.jsonl""#;

#[test]
fn the_exit_status_is_the_programs_or_tells_of_a_finding() {
    let status = |script: &str| with_library(&["--", "sh", "-c", script]).status.code();
    assert_eq!(status("exit 0"), Some(0));
    assert_eq!(status("exit 7"), Some(7));
    assert_eq!(status("kill -TERM $$"), Some(143));
    assert_eq!(status(FINDING), Some(1));
    assert_eq!(status(&format!("{FINDING}; exit 7")), Some(7));
}

#[test]
fn records_of_processes_are_summed_up() {
    let launches = |n: u32| {
        format!(
            r#"echo '{{"launches":[{{"card":"c","kernel":"k","launches":{n},"seconds":0.5,"bound":"DRAM"}}]}}' >> "$PASCALINE_VIRTUAL_REPORT/"#
        )
    };
    let script =
        format!("{FINDING}; {}1.jsonl\"; {}1.jsonl\"; {}2.jsonl\"", launches(1), launches(2), launches(5));
    let output = with_library(&["--report", "json", "--", "sh", "-c", &script]);
    let json: Value = serde_json::from_str(&stderr(&output)).expect("JSON alone");
    assert_eq!(json["exit_status"], 0);
    assert_eq!(json["processes"], 2);
    assert_eq!(json["launches"][0]["launches"], 7, "the last line of each process counts: {json}");
    assert_eq!(json["findings"][0]["kernel"], "k");

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("findings.sarif");
    with_library(&["--report", "sarif", "--to", file.to_str().expect("UTF-8"), "--", "sh", "-c", FINDING]);
    let sarif: Value = serde_json::from_str(&fs::read_to_string(file).expect("the report")).expect("JSON");
    assert_eq!(sarif["version"], "2.1.0");
    assert_eq!(sarif["runs"][0]["results"][0]["ruleId"], "OutOfBounds");
}

#[test]
fn checks_have_a_short_name_too() {
    for option in ["--checks", "--check"] {
        let script = "exec test \"$PASCALINE_VIRTUAL_CHECKS\" = races,uninit";
        let output = with_library(&[option, "races,uninit", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(0), "{option}: {}", stderr(&output));
    }
    let help = pascaline(&["virtual", "--help"]).output().expect("the program starts");
    assert!(stdout(&help).contains("--check]"), "{}", stdout(&help));
}

#[test]
fn an_architecture_has_its_card() {
    let devices = |options: &[&str], want: &str| {
        let script = format!("exec test \"$PASCALINE_VIRTUAL_ARCH $PASCALINE_VIRTUAL_DEVICES\" = \"{want}\"");
        let arguments = [options, &["--", "sh", "-c", &script]].concat();
        let output = with_library(&arguments);
        assert_eq!(output.status.code(), Some(0), "{options:?}: {}", stderr(&output));
    };
    devices(&[], "sm_61 gtx1080");
    devices(&["--arch", "sm_70"], "sm_70 v100");
    devices(&["--card", "t4", "--devices", "2"], "sm_75 t4,t4");
    devices(&["--card", "p4", "--arch", "sm_61"], "sm_61 p4");
    let output = with_library(&["--card", "p4", "--arch", "sm_70", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--arch sm_70, and the card p4 is sm_61"), "{}", stderr(&output));
    assert_eq!(with_library(&["--arch", "sm_80", "--", "true"]).status.code(), Some(2));
    let launch = r#"echo '{"launches":[{"card":"Tesla V100","kernel":"k","launches":1,"seconds":0.5,"bound":"DRAM"}]}' >> "$PASCALINE_VIRTUAL_REPORT/1.jsonl""#;
    let output = with_library(&["--", "sh", "-c", launch]);
    assert!(stderr(&output).contains("estimated with Pascal's model on Tesla V100"), "{}", stderr(&output));
}

#[test]
fn mistakes_are_said_in_a_sentence() {
    let mut program = pascaline(&["virtual", "--", "true"]);
    let output = program.env("PASCALINE_VIRTUAL_DRIVER", "/nowhere").output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("PASCALINE_VIRTUAL_DRIVER=/nowhere"), "{}", stderr(&output));
    let output = with_library(&["--", "/no/such/program"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/no/such/program can't be started"), "{}", stderr(&output));
    assert_eq!(with_library(&["--card", "a100", "--", "true"]).status.code(), Some(2));
    assert_eq!(with_library(&["--devices", "0", "--", "true"]).status.code(), Some(2));
    assert_eq!(with_library(&[]).status.code(), Some(2));
    let output = with_library(&["--", "true"]);
    assert!(stderr(&output).contains("has not loaded libcuda.so.1"), "{}", stderr(&output));
}

/// out[i] = i for every thread; a second block writes 4 GiB further on.
const PTX: &str = ".version 6.4\n.target sm_61\n.address_size 64
.visible .entry store(.param .u64 out) {
.reg .b64 %rd<4>; .reg .b32 %r<3>;
ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
cvt.u64.u32 %rd3, %r2; shl.b64 %rd3, %rd3, 32; add.u64 %rd1, %rd1, %rd3;
mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd1, %rd2;
st.global.u32 [%rd2], %r1;
ret;
}
";

#[test]
fn a_program_runs_on_the_library_and_its_findings_are_reported() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    // beside the program, where it looks for it
    let own = folder.path().join("pascaline");
    let library = "libpascaline_virtual_driver.so";
    let test = env::current_exe().expect("this test's path");
    fs::hard_link(pascaline(&[]).get_program(), &own).expect("the program");
    fs::hard_link(test.with_file_name(library), folder.path().join(library)).expect("the library");

    let ptx = folder.path().join("store.ptx");
    fs::write(&ptx, PTX).expect("a file");
    let report = folder.path().join("report.json");
    let on_the_driver_of = |card: &str, blocks: &str| {
        let buffer = format!("out:256:{}", folder.path().join(format!("{card}-{blocks}")).display());
        let mut program = Command::new(&own);
        program.args(["virtual", "--card", card, "--report", "json", "--to"]).arg(&report).arg("--");
        // the program itself as a client of libcuda.so.1
        program.arg(&own).arg("run-ptx").arg(&ptx);
        program.args([
            "--kernel", "store", "--grid", blocks, "--block", "64", "--device", "cuda", "--arg", &buffer,
        ]);
        program.output().expect("the program starts")
    };
    let on_the_driver = |blocks: &str| on_the_driver_of("p4", blocks);
    let json = || -> Value {
        serde_json::from_str(&fs::read_to_string(&report).expect("the report")).expect("JSON")
    };
    let output = on_the_driver("1");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("Virtual Tesla P4"), "{}", stdout(&output));
    assert_eq!(json()["launches"][0]["kernel"], "store");
    assert_eq!(json()["launches"][0]["launches"], 1);
    let output = on_the_driver("2");
    assert_ne!(output.status.code(), Some(0));
    assert_eq!(json()["findings"][0]["kind"], "OutOfBounds");

    let output = on_the_driver_of("t4", "1");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("Virtual Tesla T4"), "{}", stdout(&output));
    assert_eq!(json()["launches"][0]["card"], "Tesla T4");
}
