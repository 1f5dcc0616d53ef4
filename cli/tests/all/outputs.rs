//! Files that the program writes: nothing is overwritten unasked, and no partial files are left.

use crate::common::program::{pascaline, run, stderr, stdout};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny")
}

/// A folder of its own, removed at its end.
fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a temporary folder with a plain name")
}

/// The name and bytes of every file.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.map(|entry| (name(&entry), fs::read(entry.path()).unwrap())).collect()
}

fn name(entry: &fs::DirEntry) -> String {
    entry.file_name().into_string().unwrap()
}

fn refused(output: &Output, status: i32, part: &str) {
    assert_eq!(output.status.code(), Some(status), "{}", stderr(output));
    assert!(stderr(output).contains(part), "{part} is not in {}", stderr(output));
}

fn random_model(from: &Path, to: &Path) -> Command {
    pascaline(&["random-model", "--from", path(from), "--to", path(to)])
}

#[test]
fn random_model_overwrites_no_checkpoint() {
    let (from, to) = (folder(), folder());
    for entry in fs::read_dir(tiny()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), from.path().join(entry.file_name())).unwrap();
    }
    let before = contents(from.path());
    let roundabout = to.path().join("..").join(from.path().file_name().unwrap());
    for to in [from.path(), &roundabout] {
        for force in [&[][..], &["--force"]] {
            refused(&random_model(from.path(), to).args(force).output().unwrap(), 2, "name another folder");
            assert!(contents(from.path()) == before);
        }
    }
    for name in ["model.safetensors", "tokenizer.json", "config.json"] {
        fs::write(to.path().join(name), "the user's own").unwrap();
        refused(&random_model(from.path(), to.path()).output().unwrap(), 1, "--force");
        assert_eq!(contents(to.path()), [(name.into(), b"the user's own".to_vec())].into());
        fs::remove_file(to.path().join(name)).unwrap();
    }
}

/// The same command in a shell that lets no file grow beyond so many KiB: the disk is full.
#[cfg(unix)]
fn on_a_disk_of(kib: usize, command: &Command) -> Output {
    // POSIX counts in blocks of 512 bytes; the signal would end the program before it sees the error
    let limit = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", 2 * kib);
    let mut shell = Command::new("sh");
    shell.args(["-c", &limit, "sh"]).arg(command.get_program()).args(command.get_args());
    shell.env_remove("PASCALINE_DEVICE").output().expect("a shell")
}

/// The model has 4 GB and is never written to its end here.
#[cfg(unix)]
#[test]
fn a_random_model_that_is_cut_short_leaves_nothing() {
    let to = folder();
    let mut child = random_model(&tiny(), to.path()).spawn().expect("the program starts");
    let sizes =
        || fs::read_dir(to.path()).unwrap().filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()));
    while sizes().max().unwrap_or(0) < 4 << 20 {
        assert!(child.try_wait().unwrap().is_none(), "it ends before it is stopped");
        std::thread::sleep(Duration::from_millis(2));
    }
    let parts = || {
        let entries = fs::read_dir(to.path()).unwrap().map(Result::unwrap).map(|entry| name(&entry));
        let (parts, named): (Vec<_>, Vec<_>) = entries.partition(|name| name.ends_with(".part"));
        assert_eq!(named, Vec::<String>::new());
        parts
    };
    // it writes no more, and lives
    let process = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGSTOP).unwrap();
    // a report beside it does not take the part of a living process for one of a dead one
    let with = |name: &str| run(&[&VALIDATE, &["--json", path(&to.path().join(name))][..]].concat());
    let report = |name: &str| {
        assert_eq!(with(name).status.code(), Some(0));
        fs::remove_file(to.path().join(name)).unwrap();
    };
    let growing = parts();
    report("first");
    assert!(!growing.is_empty() && parts() == growing, "{growing:?}, {:?}", parts());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!parts().is_empty());
    report("second");
    assert_eq!(parts(), Vec::<String>::new());

    let to = folder();
    let output = on_a_disk_of(8 << 10, &random_model(&tiny(), to.path()));
    refused(&output, 1, "model.safetensors can't be written");
    assert_eq!(contents(to.path()), BTreeMap::new());
}

/// Ctrl-C, unlike a kill, leaves no hidden files, and says what to do.
#[cfg(unix)]
#[test]
fn a_random_model_leaves_nothing_at_ctrl_c() {
    let to = folder();
    for more in [&[][..], &["--type", "Q4_K_M"]] {
        let mut command = random_model(&tiny(), to.path());
        command.args(more);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        while fs::read_dir(to.path()).unwrap().next().is_none() {
            assert!(child.try_wait().unwrap().is_none(), "it ends before it is stopped");
        }
        let process = nix::unistd::Pid::from_raw(child.id() as i32);
        nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGINT).unwrap();
        let output = child.wait_with_output().unwrap();
        refused(&output, 130, "the same command begins anew");
        assert_eq!(contents(to.path()), BTreeMap::new());
    }
}

const VALIDATE: [&str; 5] = ["validate", "--device", "cpu", "--only", "softmax_f32/rows=1,"];

#[test]
fn a_report_replaces_no_file_unasked() {
    let folder = folder();
    let file = folder.path().join("report.json");
    let with = |more: &[&str]| run(&[&VALIDATE, &["--json", path(&file)][..], more].concat());
    assert_eq!(with(&[]).status.code(), Some(0));
    let first = fs::read(&file).unwrap();
    let second = with(&[]);
    refused(&second, 1, "report.json exists; --force replaces it");
    assert_eq!(stdout(&second), "", "it is refused before any work");
    assert_eq!(fs::read(&file).unwrap(), first);
    assert_eq!(with(&["--force"]).status.code(), Some(0));
}

/// The old file stays whole, and no partial report replaces it.
#[cfg(unix)]
#[test]
fn a_report_that_cannot_be_written_leaves_the_old_one() {
    let folder = folder();
    let file = folder.path().join("report.json");
    fs::write(&file, "the old one").unwrap();
    let arguments = [&VALIDATE, &["--json", path(&file), "--force"][..]].concat();
    refused(&on_a_disk_of(0, &pascaline(&arguments)), 1, "can't be written");
    assert_eq!(contents(folder.path()), [("report.json".into(), b"the old one".to_vec())].into());
}

/// A copy of the checkpoint of its own.
fn checkpoint(folder: &Path) {
    for entry in fs::read_dir(tiny()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
}

/// Links of both kinds from the place of each command's outputs to its inputs.
#[cfg(unix)]
#[test]
fn no_output_replaces_an_input_under_another_name() {
    let (model, to) = (folder(), folder());
    checkpoint(model.path());
    let (from, at) = (|name: &str| model.path().join(name), |name: &str| to.path().join(name));
    let (prompt, trace, data) = (at("prompt.txt"), at("trace.txt"), at("data.jsonl"));
    fs::write(&prompt, "What?").unwrap();
    fs::write(&trace, "a 1 256 0\n").unwrap();
    fs::write(&data, "{}").unwrap();
    let before = (contents(model.path()), contents(to.path()));
    let weights = from("model.safetensors");
    let weights = weights.as_path();
    let (model, text) = (path(model.path()), format!("@{}", path(&prompt)));
    let at_out = at("out");
    let out = path(&at_out);
    let json = ["--json", out, "--force"];
    let cases: Vec<(&str, &Path, Vec<&str>)> = vec![
        (
            "model-Q8_0.gguf",
            weights,
            vec!["quantize", model, "--to", path(to.path()), "--type", "Q8_0", "--force"],
        ),
        (
            "mmproj-F16.gguf",
            weights,
            vec!["quantize", model, "--to", path(to.path()), "--type", "Q8_0", "--force"],
        ),
        ("out", weights, [&["quantize", model, "--to", path(to.path())], &json[..]].concat()),
        ("out", weights, [&["float16", path(weights)], &json[..]].concat()),
        (
            "out",
            weights,
            [&["generate", "--model", model, "--device", "cpu", "--prompt", "x"], &json[..]].concat(),
        ),
        (
            "out",
            prompt.as_path(),
            [&["generate", "--model", model, "--device", "cpu", "--prompt", &text], &json[..]].concat(),
        ),
        (
            "out",
            weights,
            vec![
                "generate",
                "--model",
                model,
                "--device",
                "virtual",
                "--prompt",
                "x",
                "--memory-trace",
                out,
                "--force",
            ],
        ),
        (
            "out",
            trace.as_path(),
            [&["bench", "--memory", "--device", "virtual", "--trace", path(&trace)], &json[..]].concat(),
        ),
        (
            "model.safetensors",
            weights,
            vec!["random-model", "--from", model, "--to", path(to.path()), "--force"],
        ),
        ("config.json", weights, vec!["random-model", "--from", model, "--to", path(to.path()), "--force"]),
        ("out", weights, [&["random-model", "--from", model, "--to", path(to.path())], &json[..]].concat()),
        (
            "out",
            data.as_path(),
            [&["finetune", "--model", model, "--data", path(&data), "--to", path(to.path())], &json[..]]
                .concat(),
        ),
    ];
    for (name, input, arguments) in &cases {
        for hard in [false, true] {
            match hard {
                true => fs::hard_link(input, at(name)).unwrap(),
                false => std::os::unix::fs::symlink(input, at(name)).unwrap(),
            }
            let output = run(arguments);
            fs::remove_file(at(name)).unwrap();
            let found = (contents(Path::new(model)), contents(to.path()));
            assert!(found == before, "{arguments:?}, a hard link: {hard}: {}", stderr(&output));
            refused(&output, 2, "name another file");
        }
    }
}

/// Devices and pipes are no files to read, and nothing waits for a pipe's writer.
#[cfg(unix)]
#[test]
fn no_command_waits_for_a_pipe_in_the_place_of_a_file() {
    let (folder, model) = (folder(), folder());
    checkpoint(model.path());
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    let (ptx, to) = (folder.path().join("copy.ptx"), folder.path().join("to"));
    fs::write(&ptx, COPY).unwrap();
    for file in [&*pipe, &link, Path::new("/dev/zero")] {
        let file = path(file);
        let (input, bytes) = (format!("in:{file}"), format!("bytes:{file}"));
        let launch = ["--kernel", "copy", "--grid", "1", "--block", "1"];
        let cases = [
            [&["run-ptx", file], &launch[..]].concat(),
            [&["run-ptx", path(&ptx), "--arg", &input], &launch[..]].concat(),
            [&["run-ptx", path(&ptx), "--arg", &bytes], &launch[..]].concat(),
            vec!["report", "--compare", file],
            vec!["bench", "--memory", "--device", "virtual", "--trace", file],
            vec!["float16", file],
            vec!["finetune", "--model", path(model.path()), "--data", file, "--to", path(&to)],
            vec!["generate", "--model", path(model.path()), "--image", file, "--prompt", "x"],
        ];
        for arguments in cases {
            let mut child = pascaline(&arguments);
            let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let since = std::time::Instant::now();
            while child.try_wait().unwrap().is_none() {
                if since.elapsed() > Duration::from_secs(60) {
                    child.kill().unwrap();
                    panic!("{arguments:?} waits");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            refused(&child.wait_with_output().unwrap(), 1, "not an ordinary file");
        }
    }
}

const COPY: &str = ".version 6.4\n.target sm_61\n.address_size 64\n.visible .entry copy(.param .u64 a)\n{\n\
    .reg .b32 %r<2>;\n.reg .b64 %rd<3>;\nld.param.u64 %rd1, [a];\ncvta.to.global.u64 %rd2, %rd1;\nmov.u32 %r1, 7;\n\
    st.global.u32 [%rd2], %r1;\nret;\n}\n";

#[test]
fn a_kernels_output_replaces_no_file_unasked() {
    let folder = folder();
    let (ptx, held) = (folder.path().join("copy.ptx"), folder.path().join("held.bin"));
    fs::write(&ptx, COPY).unwrap();
    fs::write(&held, [1, 2, 3, 4]).unwrap();
    let with = |argument: String, more: &[&str]| {
        let arguments = ["run-ptx", path(&ptx), "--kernel", "copy", "--grid", "1", "--block", "1", "--arg"];
        run(&[&arguments, &[&*argument][..], more].concat())
    };
    let own = path(&held);
    refused(&with(format!("out:4:{own}"), &[]), 1, "--force");
    refused(&with(format!("inout:{own}:{own}"), &["--force"]), 2, "name another file");
    assert_eq!(fs::read(&held).unwrap(), [1, 2, 3, 4]);
    assert_eq!(with(format!("out:4:{own}"), &["--force"]).status.code(), Some(0));
    assert_eq!(fs::read(&held).unwrap(), [7, 0, 0, 0]);
}

#[test]
fn a_memory_trace_replaces_no_file_unasked() {
    let folder = folder();
    let file = folder.path().join("trace");
    fs::write(&file, "the old one").unwrap();
    let model = tiny();
    let arguments = ["generate", "--model", path(&model), "--prompt", "x", "--memory-trace", path(&file)];
    refused(&run(&[&arguments[..], &["--device", "virtual"]].concat()), 1, "--force");
    assert_eq!(fs::read(&file).unwrap(), b"the old one");
}

/// A kernel that faults, whose finding is printed by the virtual GPU itself.
const FAULT: &str = ".version 6.4\n.target sm_61\n.address_size 64\n.visible .entry fault()\n{\n.reg .b64 %rd<2>;\n\
    .reg .b32 %r<2>;\nmov.u64 %rd1, 8;\nld.global.u32 %r1, [%rd1];\nret;\n}\n";

/// There is nobody left to tell, but what was asked for has failed all the same.
#[cfg(unix)]
#[test]
fn an_error_that_nobody_can_read_sets_the_exit_status() {
    let folder = folder();
    let ptx = folder.path().join("fault.ptx");
    fs::write(&ptx, FAULT).unwrap();
    let model = tiny();
    for (arguments, status) in [
        (&["generate", "--model", "/none", "--prompt", "x"][..], None),
        (&["validate", "--device", "cpu", "--only", "no such case"], None),
        (&["run-ptx", path(&ptx), "--kernel", "fault", "--grid", "1", "--block", "1"], Some(1)),
        (
            &[
                "generate",
                "--model",
                path(&model),
                "--device",
                "cpu",
                "--prompt",
                "x",
                "--max-new-tokens",
                "1",
            ],
            Some(0),
        ),
    ] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let unread = pascaline(arguments).stderr(full).output().unwrap().status.code();
        assert_eq!(unread, run(arguments).status.code(), "{arguments:?}");
        assert!(unread.is_some_and(|code| code < 3), "{arguments:?} panics");
        assert!(status.is_none_or(|status| unread == Some(status)), "{arguments:?}: {unread:?}");
    }
}

/// An endless loop that two warps keep up for long.
const LOOP: &str =
    ".version 6.4\n.target sm_61\n.address_size 64\n.visible .entry forever()\n{\n$L: bra $L;\n}\n";

#[test]
fn a_kernel_without_end_is_stopped_by_the_clock() {
    let folder = folder();
    let (ptx, json) = (folder.path().join("loop.ptx"), folder.path().join("report.json"));
    fs::write(&ptx, LOOP).unwrap();
    let arguments =
        ["run-ptx", path(&ptx), "--kernel", "forever", "--grid", "1", "--block", "64", "--time-limit", "1"];
    let since = std::time::Instant::now();
    let output = run(&[&arguments, &["--json", path(&json)][..]].concat());
    assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
    refused(&output, 1, "stopped after 1 s");
    assert!(stderr(&output).contains("--time-limit") && !json.exists());
}
