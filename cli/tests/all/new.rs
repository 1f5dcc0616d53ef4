//! `pascaline new`: the project's files, and what is refused. `scripts/publish --dry-run` builds and tests such a project.

use crate::common::program::{pascaline, stderr, stdout};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn new(folder: &Path, options: &[&str]) -> Output {
    pascaline(&["new"]).arg(folder).args(options).output().unwrap()
}

/// The names of the packages that cargo reads in a project.
fn packages(project: &Path) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = output.current_dir(project).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names =
        metadata["packages"].as_array().unwrap().iter().map(|package| package["name"].as_str().unwrap());
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_project_has_the_example_s_files_and_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("my-kernels");
    let output = new(&project, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("cargo test"), "{}", stdout(&output));
    for file in ["build.rs", "src/main.rs", "kernels/src/lib.rs", ".github/workflows/test.yml"] {
        let example = fs::read_to_string(repository().join("examples/own-kernel").join(file)).unwrap();
        assert_eq!(fs::read_to_string(project.join(file)).unwrap(), example, "{file}");
    }
    let manifest = fs::read_to_string(project.join("Cargo.toml")).unwrap();
    let kernels = fs::read_to_string(project.join("kernels/Cargo.toml")).unwrap();
    assert!(!manifest.contains("../") && !kernels.contains("../"), "{manifest}{kernels}");
    let version = format!("version = \"{}\"", env!("CARGO_PKG_VERSION"));
    for (name, manifest) in [("pascaline", &manifest), ("cuda_builder", &manifest), ("cuda_std", &kernels)] {
        let line = manifest.lines().find(|line| line.starts_with(&format!("{name} = "))).unwrap();
        assert!(line.contains(&version), "{line}");
    }
    assert!(packages(&project).contains("my-kernels"));

    fs::write(project.join("src/main.rs"), "the user's own").unwrap();
    let again = new(&project, &[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("exists"), "{}", stderr(&again));
    assert_eq!(fs::read_to_string(project.join("src/main.rs")).unwrap(), "the user's own");
}

#[test]
fn a_project_takes_the_crates_of_a_clone() {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("mine");
    let output = new(&project, &["--sources", repository().to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text =
        ["Cargo.toml", "kernels/Cargo.toml"].map(|file| fs::read_to_string(project.join(file)).unwrap());
    let paths = text
        .iter()
        .flat_map(|text| text.split("path = \"").skip(1))
        .map(|rest| rest.split('"').next().unwrap());
    let outside = paths.filter(|path| *path != "kernels").inspect(|path| {
        assert!(Path::new(path).join("Cargo.toml").is_file(), "{path}");
    });
    assert_eq!(outside.count(), 4);
    assert!(!project.join("find_cuda_helper").exists());
    assert!(packages(&project).contains("mine"));
}

#[test]
fn names_that_cargo_does_not_take_are_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["kernels", "1st", "two words", "größe", "test", ".."] {
        let output = new(&folder.path().join(name), &[]);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", stderr(&output));
        assert!(stderr(&output).contains("names the package"), "{}", stderr(&output));
    }
    let output = new(&folder.path().join("mine"), &["--sources", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no clone"), "{}", stderr(&output));
    let output = new(&folder.path().join("not/there"), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("can't be written"), "{}", stderr(&output));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
