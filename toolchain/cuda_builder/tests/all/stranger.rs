//! A project as someone else would write it by the crate's documentation, which includes its files: built by cargo from a folder
//! with spaces in its path, with compilers old and new.

use crate::extent;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{env, fs};

/// One project at a time: they share a target folder.
static TURN: Mutex<()> = Mutex::new(());

/// A copy of `tests/stranger`.
struct Project {
    root: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Project {
    fn new(name: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("a stranger's {name}"));
        let _ = fs::remove_dir_all(&root);
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let toolchain = here.parent().unwrap().to_str().unwrap().replace('\\', "/");
        for file in ["Cargo.toml", "build.rs", "src/main.rs", "kernels/Cargo.toml", "kernels/src/lib.rs"] {
            // a folder with a Cargo.toml would not be in the package, whose documentation includes files of it
            let source = file.replace("Cargo.toml", "manifest.toml");
            let text = fs::read_to_string(here.join("tests/stranger").join(source)).unwrap();
            let target = root.join(file);
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::write(target, text.replace("TOOLCHAIN", &toolchain)).unwrap();
        }
        fs::copy(here.join("../../Cargo.lock"), root.join("Cargo.lock")).unwrap();
        Self { root, _turn: turn }
    }

    fn edit(&self, file: &str, from: &str, to: &str) {
        let path = self.root.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} holds no {from:?}");
        fs::write(path, text.replace(from, to)).unwrap();
    }

    fn cargo(&self) -> Command {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.arg("run").current_dir(&self.root);
        cargo.env("CARGO_TARGET_DIR", crate::FOLDER);
        cargo.env_remove("CUDA_BUILDER_PREBUILT");
        cargo.envs([("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "false")]); // less to compile, of what is not tested
        cargo
    }

    fn ptx(&self) -> String {
        fs::read_to_string(self.root.join("kernels.ptx")).unwrap()
    }
}

fn run(cargo: &mut Command) -> (bool, String, String) {
    let Output { status, stdout, stderr } = cargo.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.success(), text(stdout).trim().to_owned(), text(stderr))
}

fn warnings(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| line.starts_with("warning:")).collect()
}

/// The sysroot of the compiler that runs the tests.
fn sysroot() -> PathBuf {
    let rustc = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    String::from_utf8(rustc.stdout).unwrap().trim().into()
}

/// Without the sources of `core` nothing is built for the GPU, so there is nothing to test.
fn no_sources() -> bool {
    let missing = !sysroot().join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file();
    if missing {
        extent::skipped("a stranger's project (the sources of `core` are missing)");
    }
    missing
}

#[test]
fn the_documented_project_builds_and_runs() {
    if no_sources() {
        return;
    }
    let project = Project::new("project");
    let (ok, stdout, stderr) = run(&mut project.cargo());
    assert!(ok, "{stderr}");
    assert_eq!(stdout, "kernels: 1, built from source");
    assert_eq!(warnings(&stderr), [""; 0], "{stderr}");
    assert!(project.ptx().contains(".target sm_61"));

    let (_, _, stderr) = run(&mut project.cargo());
    assert!(!stderr.contains("Compiling"), "nothing has changed: {stderr}");

    project.edit("kernels/src/lib.rs", "fn add", "fn plus");
    let (ok, _, stderr) = run(&mut project.cargo());
    assert!(ok, "{stderr}");
    assert!(project.ptx().contains(".entry plus("), "a change of the kernels reaches the PTX");
}

/// Kernel crates of Rust-CUDA say nothing of `no_std`.
#[test]
fn a_crate_without_attributes_gets_them() {
    if no_sources() {
        return;
    }
    let project = Project::new("attributes");
    let attributes = "#![cfg_attr(target_arch = \"nvptx64\", no_std, feature(abi_ptx))]\n";
    project.edit("kernels/src/lib.rs", attributes, "");
    let (ok, stdout, stderr) = run(&mut project.cargo());
    assert!(ok, "{stderr}");
    assert_eq!(stdout, "kernels: 1, built from source");
    assert_eq!(warnings(&stderr), [""; 0], "{stderr}");
    assert!(project.ptx().contains(".entry add("));
}

#[test]
fn the_manifest_may_rename_and_move_the_library() {
    if no_sources() {
        return;
    }
    let project = Project::new("manifest");
    let tables = "[package.metadata.badge]\nname = \"not this\"\n\n[lib]\nname = \"gpu_code\"\npath = \"gpu.rs\"\n\n[package]";
    project.edit("kernels/Cargo.toml", "[package]", tables);
    fs::rename(project.root.join("kernels/src/lib.rs"), project.root.join("kernels/gpu.rs")).unwrap();
    let (ok, stdout, stderr) = run(&mut project.cargo());
    assert!(ok, "{stderr}");
    assert_eq!(stdout, "kernels: 1, built from source");

    project.edit("kernels/gpu.rs", "fn add", "fn plus");
    let (ok, _, stderr) = run(&mut project.cargo());
    assert!(ok && project.ptx().contains(".entry plus("), "{stderr}");

    // an earlier state of dependencies or flags, which cargo still has, must not bring another state's PTX
    let lines = ".debug(cuda_builder::DebugInfo::LineTables)";
    project.edit("build.rs", ".copy_to", &format!("{lines}.copy_to"));
    let (ok, _, stderr) = run(&mut project.cargo());
    assert!(ok && project.ptx().contains("\t.loc\t"), "{stderr}");
    project.edit("build.rs", lines, "");
    let (ok, _, stderr) = run(&mut project.cargo());
    assert!(ok && !project.ptx().contains("\t.loc\t"), "{stderr}");
}

#[test]
fn what_the_compiler_says_of_the_kernels_is_shown() {
    if no_sources() {
        return;
    }
    let project = Project::new("mistake");
    project.edit("kernels/src/lib.rs", "a + b", "a + c");
    let (ok, _, stderr) = run(&mut project.cargo());
    assert!(!ok);
    assert!(stderr.contains("cannot find value `c` in this scope"), "{stderr}");
    let folder = "no such folder";
    project.edit("build.rs", "\"kernels\"", &format!("{folder:?}"));
    let (ok, _, stderr) = run(&mut project.cargo());
    assert!(
        !ok && stderr.contains(&format!("no crate at {}", project.root.join(folder).display())),
        "{stderr}"
    );
}

#[test]
fn options_reach_the_compiler() {
    if no_sources() {
        return;
    }
    let project = Project::new("options");
    project.edit(
        "kernels/Cargo.toml",
        "[dependencies]",
        "[features]\nextra = []\n\n[lints.rust]\nunexpected_cfgs = \"allow\"\n\n[dependencies]",
    );
    let kernels = fs::read_to_string(project.root.join("kernels/src/lib.rs")).unwrap();
    fs::write(project.root.join("kernels/src/lib.rs"), kernels + OPTIONAL_KERNELS).unwrap();
    let (ok, _, stderr) = run(&mut project.cargo());
    assert!(ok, "{stderr}");
    assert_eq!(warnings(&stderr), [""; 0], "{stderr}");
    let text = project.ptx();
    for part in [".entry extra(", ".entry special(", ".ftz", ".loc", ".file"] {
        assert!(!text.contains(part), "{part} is not there if not asked for: {text}");
    }
    let fused = |text: &str| text[text.find(".entry fused(").unwrap()..].contains("fma.rn.");
    assert!(!fused(&text), "{text}");
    let sums = |text: &str| {
        let kernel = &text[text.find(".entry summed(").unwrap()..];
        kernel[..kernel.find("\n}").unwrap()].matches("ld.volatile").count()
    };
    assert_eq!(sums(&text), 12, "the loop is unrolled: {text}");

    // what is asked for, and a warning about the kernels
    let options = ".features([\"extra\"]).opt_level(cuda_builder::OptLevel::Size).debug(cuda_builder::DebugInfo::LineTables)\
                   .rustc_args([\"--cfg\", \"special\"]).copy_to";
    project.edit("build.rs", ".copy_to", options);
    project.edit("kernels/src/lib.rs", "let unused = 0;", "let unused = 0; let not_used = 1;");
    let (ok, _, stderr) = run(&mut project.cargo());
    assert!(ok, "{stderr}");
    let [warning] = warnings(&stderr)[..] else { panic!("expected one warning: {stderr}") };
    assert!(warning.contains("lib.rs:") && warning.ends_with(": unused variable: `not_used`"), "{warning}");
    let text = project.ptx();
    for part in [".entry extra(", ".entry special(", "\t.loc", ".file", ".target sm_61\n"] {
        assert!(text.contains(part), "no {part:?}: {text}");
    }
    assert!(sums(&text) < 12, "the loop is not unrolled: {text}");
    project.edit("kernels/src/lib.rs", " let not_used = 1;", "");
    project.edit("build.rs", options, ".fma_contraction(true).ftz(true).copy_to");
    let (ok, _, stderr) = run(&mut project.cargo());
    assert!(ok, "{stderr}");
    assert_eq!(warnings(&stderr), [""; 0], "{stderr}");
    let text = project.ptx();
    assert!(fused(&text) && text.contains("fma.rn.ftz.f32") && !text.contains(".loc"), "{text}");

    if !extent::all() {
        return extent::left_out("options of LLVM alone, for which `core` is built again");
    }
    project.edit("build.rs", ".fma_contraction(true).ftz(true)", ".llvm_args([\"-nvptx-fma-level=2\"])");
    let (ok, _, stderr) = run(&mut project.cargo());
    assert!(ok, "{stderr}");
    assert!(fused(&project.ptx()) && !project.ptx().contains(".ftz"), "{}", project.ptx());
}

/// Kernels by which the effects of options are seen.
const OPTIONAL_KERNELS: &str = "
#[cfg(feature = \"extra\")]
#[kernel]
pub unsafe fn extra() {}

#[cfg(special)]
#[kernel]
pub unsafe fn special() {}

#[kernel]
pub unsafe fn summed(x: *mut u32) {
    let unused = 0;
    let _ = unused;
    // SAFETY: a test reads its text.
    unsafe { *x = (0..12).map(|i| x.add(i).read_volatile()).sum() };
}

#[kernel]
pub unsafe fn fused(x: *mut f32, a: f32, b: f32) {
    // SAFETY: a test reads its text.
    unsafe { *x = *x * a + b };
}
";

/// A compiler without `sm_61`, its sources of `core` present: rustc with it taken out of what it lists, and with no description of the target.
#[cfg(unix)]
mod newer {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn script(path: &Path, body: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The tests' own rustc, changed by two environment variables: `FORGET`, a pattern of CPUs that it does not list, and
    /// `SYSROOT`. All tests share the file, or cargo would compile everything again for each.
    fn rustc() -> PathBuf {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("a stranger's rustc");
        let real = sysroot().join("bin/rustc");
        let body = format!(
            "real='{}'\ncase \"$*\" in\n*target-cpus*) \"$real\" \"$@\" | grep -v \"${{FORGET:-nothing}}\"; exit;;\n\
             *target-spec-json*) test \"$FORGET\" && exit 1;;\n\
             '--print sysroot') test \"$SYSROOT\" && echo \"$SYSROOT\" && exit;;\nesac\nexec \"$real\" \"$@\"",
            real.display(),
        );
        if !fs::read_to_string(&path).is_ok_and(|text| text.contains(&body)) {
            script(&path, &body);
        }
        path
    }

    /// A rustup that has this one toolchain, which is the tests' own, or none.
    fn rustup(project: &Project, toolchain: Option<&str>) -> String {
        let list = toolchain.unwrap_or("no installed toolchains");
        let body = format!(
            "case \"$1\" in\ntoolchain) echo '{list}';;\nrun) echo \"{}\";;\nshow) echo /no/home;;\nesac",
            sysroot().display()
        );
        script(&project.root.join("bin/rustup"), &body);
        let path = env::var("PATH").unwrap();
        format!("{}:{path}", project.root.join("bin").display())
    }

    #[test]
    fn another_toolchain_is_taken_and_named() {
        if no_sources() {
            return;
        }
        let project = Project::new("newer compiler");
        let mut cargo = project.cargo();
        cargo
            .env("RUSTC", rustc())
            .env("FORGET", "sm_6")
            .env("PATH", rustup(&project, Some("1.95.0-here (active)")));
        let (ok, stdout, stderr) = run(&mut cargo);
        assert!(ok, "{stderr}");
        assert!(stdout.starts_with("kernels: 1, built from source by 1.95.0-here (rustc 1."), "{stdout}");
        let [warning] = warnings(&stderr)[..] else { panic!("expected one warning: {stderr}") };
        assert!(warning.contains("is compiled by 1.95.0-here (rustc 1."), "{warning}");
        assert!(warning.ends_with("does not compile for sm_61"), "{warning}");
        assert!(project.ptx().contains(".target sm_61"));

        if !extent::all() {
            return extent::left_out(
                "an architecture that the newer compiler has, for which `core` is built again",
            );
        }
        // an architecture that it has needs no other
        project.edit("build.rs", ".copy_to", ".arch(cuda_builder::NvvmArch::Compute75).copy_to");
        let (ok, stdout, stderr) = run(&mut cargo);
        assert!(ok, "{stderr}");
        assert_eq!(stdout, "kernels: 1, built from source");
        assert!(project.ptx().contains(".target sm_75"));
    }

    #[test]
    fn without_another_toolchain_the_prebuilt_ptx_or_an_error_that_says_what_to_install() {
        if no_sources() {
            return;
        }
        let project = Project::new("newer compiler alone");
        let mut cargo = project.cargo();
        cargo.env("RUSTC", rustc()).env("FORGET", "sm_6").env("PATH", rustup(&project, None));
        let (ok, _, stderr) = run(&mut cargo);
        assert!(!ok);
        assert!(stderr.contains("does not compile for sm_61; `rustup toolchain install 1.95.0 "), "{stderr}");

        prebuilt(&project);
        let (ok, stdout, stderr) = run(&mut cargo);
        assert!(ok, "{stderr}");
        assert_eq!(stdout, "kernels: 1, prebuilt");
        let [warning] = warnings(&stderr)[..] else { panic!("expected one warning: {stderr}") };
        assert!(
            warning.contains("using the prebuilt add.ptx: no compiler for the GPU: rustc 1."),
            "{warning}"
        );
    }

    #[test]
    fn the_build_script_runs_again_when_the_sources_appear() {
        if no_sources() {
            return;
        }
        let project = Project::new("machine without sources");
        let sysroot = project.root.join("sysroot");
        fs::create_dir_all(sysroot.join("lib/rustlib")).unwrap();
        let mut cargo = project.cargo();
        cargo.env("RUSTC", rustc()).env("SYSROOT", &sysroot).env("PATH", rustup(&project, None));
        prebuilt(&project);
        for _ in 0..2 {
            let (ok, stdout, stderr) = run(&mut cargo);
            assert!(ok, "{stderr}");
            assert_eq!(stdout, "kernels: 1, prebuilt");
            assert!(stderr.contains("lacks the sources of `core`"), "{stderr}");
        }
        let (_, _, stderr) = run(&mut cargo);
        assert!(!stderr.contains("Compiling"), "nothing has changed: {stderr}");

        let sources = sysroot.join("lib/rustlib/src");
        fs::create_dir(&sources).unwrap();
        std::os::unix::fs::symlink(super::sysroot().join("lib/rustlib/src/rust"), sources.join("rust"))
            .unwrap();
        let (ok, stdout, stderr) = run(&mut cargo);
        assert!(ok, "{stderr}");
        assert_eq!(stdout, "kernels: 1, built from source");
    }

    fn prebuilt(project: &Project) {
        let entry = ".version 6.4\n.target sm_61\n.address_size 64\n\n.visible .entry add()\n{\n\tret;\n}\n";
        fs::write(project.root.join("add.ptx"), entry).unwrap();
        project.edit("build.rs", ".copy_to", ".prebuilt(\"add.ptx\").copy_to");
    }
}
