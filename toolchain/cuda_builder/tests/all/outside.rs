//! Builds in a program that is no build script.

use cuda_builder::CudaBuilder;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Set for the process that is started, to how it builds.
const CHILD: &str = "CUDA_BUILDER_TEST_CHILD";

const PTX: &str = ".version 6.4\n.target sm_61\n.address_size 64\n\n.visible .entry add()\n{\n\tret;\n}\n";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside of build scripts")
}

/// In processes of their own, whose streams are read: as a build script, and with `out_dir`.
#[test]
fn nothing_is_printed_for_cargo() {
    let folder = folder();
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("prebuilt.ptx"), PTX).unwrap();
    let child = |how: &str, out_dir: &str| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "outside::child", "--nocapture"]).env("CUDA_BUILDER_PREBUILT", "1");
        let output = command.env("OUT_DIR", folder.join(out_dir)).env(CHILD, how).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
        (stdout, stderr)
    };
    let (stdout, stderr) = child("script", "script");
    assert!(stdout.contains("cargo:rerun-if-changed=") && stdout.contains("cargo:warning=using"), "{stdout}");
    assert!(!stderr.contains("using the prebuilt"), "{stderr}");
    assert!(folder.join("script/convergence-sm_61.ptx").is_file());

    let (stdout, stderr) = child("program", "not used");
    assert!(!stdout.contains("cargo:"), "{stdout}");
    assert!(stderr.contains("warning: using the prebuilt"), "{stderr}");
    assert!(!folder.join("not used").exists());
}

#[test]
fn child() {
    let Some(how) = env::var_os(CHILD) else { return };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let builder = CudaBuilder::new(here.join("tests/convergence")).prebuilt(folder().join("prebuilt.ptx"));
    let builder = if how == "script" { builder } else { builder.out_dir(folder().join("program")) };
    let path = builder.build().unwrap();
    assert!(path.starts_with(folder().join(how)), "{}", path.display());
    assert_eq!(fs::read_to_string(path).unwrap(), PTX);
}
