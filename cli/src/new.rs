//! `pascaline new`: writes a project with a kernel of its own. Its files are those of `examples/own-kernel`.

use super::failure::Failure;
use super::screen::Screen;
use std::fs;
use std::io;
use std::path::{Path, PathBuf, absolute};

/// Writes a project: a crate with a kernel, a program that launches it, a test on the virtual GPU, and a job that runs it on GitHub.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The folder to make. Its name is the package's.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// A clone of Pascaline's repository, whose crates the project takes instead of the registry's.
    #[arg(long, value_name = "DIR")]
    sources: Option<PathBuf>,
}

macro_rules! files {
    ($folder:literal: $($name:literal),+ $(,)?) => {
        [$(($name, include_str!(concat!("../../", $folder, "/", $name)))),+]
    };
}

const MANIFESTS: [&str; 2] = ["Cargo.toml", "kernels/Cargo.toml"];
const EXAMPLE: [(&str, &str); 8] = files!("examples/own-kernel":
    "Cargo.toml", "build.rs", "src/main.rs", "kernels/Cargo.toml", "kernels/src/lib.rs", "prebuilt.ptx", ".gitignore",
    ".github/workflows/test.yml",
);
/// What the manifest's `[patch]` names. A project that takes crates from the registry has a copy.
const PATCH: [(&str, &str); 2] =
    files!("driver": "find_cuda_helper/Cargo.toml", "find_cuda_helper/src/lib.rs");

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let folder = &args.folder;
    let name = package_name(folder)?;
    let crates = args.sources.as_deref().map(clone).transpose()?;
    fs::create_dir(folder).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::Failed(format!("{} exists; a project is written into a new folder", folder.display()))
        }
        _ => cannot_write(folder, &error),
    })?;
    for (file, text) in EXAMPLE {
        match MANIFESTS.contains(&file) {
            true => write(folder, file, &manifest(text, name, crates.as_deref()))?,
            false => write(folder, file, text)?,
        }
    }
    if crates.is_none() {
        PATCH.iter().try_for_each(|(file, text)| write(folder, file, text))?;
    }
    let mut screen = Screen::new(false, false);
    screen.line(&format!(
        "{}: the kernel is in kernels/src/lib.rs, its launch in src/main.rs",
        folder.display()
    ))?;
    screen.line(
        "`cargo test` runs it on the virtual GPU, `cargo run` on the first CUDA device if there is one",
    )?;
    Ok(())
}

/// The folder's last part, if cargo takes it for a program beside the crate `kernels`.
fn package_name(folder: &Path) -> Result<&str, Failure> {
    const TAKEN: [&str; 10] = [
        "kernels",
        "pascaline",
        "test",
        "core",
        "std",
        "build",
        "deps",
        "examples",
        "incremental",
        "find_cuda_helper",
    ];
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_plain = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter));
    if !is_plain || TAKEN.contains(&name) {
        return Err(Failure::Usage(format!(
            "{}: its last part names the package, which takes a letter and then letters, digits, - and _, and none of {}",
            folder.display(),
            TAKEN.join(", ")
        )));
    }
    Ok(name)
}

/// The path of a clone as a manifest has it, without a slash at its end.
fn clone(folder: &Path) -> Result<String, Failure> {
    let path = absolute(folder).map_err(|error| Failure::Usage(format!("{}: {error}", folder.display())))?;
    if !path.join("toolchain/cuda_builder/Cargo.toml").is_file() {
        return Err(Failure::Usage(format!("{} is no clone of Pascaline's repository", folder.display())));
    }
    let text = path.to_str().map(|path| path.replace('\\', "/").trim_end_matches('/').to_owned());
    text.ok_or_else(|| Failure::Usage(format!("{} is not UTF-8, which a manifest is", path.display())))
}

/// A manifest of the example, with the package's name, and crates by the version of this program or in a clone.
fn manifest(text: &str, name: &str, clone: Option<&str>) -> String {
    let text = text.replace("name = \"own-kernel\"", &format!("name = \"{name}\""));
    let mut rest = text.as_str();
    let mut result = String::new();
    while let Some((before, after)) = rest.split_once("path = \"../") {
        let (path, after) = after.split_once('"').expect("a string of the example's ends");
        let path = path.trim_start_matches("../").trim_start_matches("..");
        let source = match clone {
            Some(clone) => {
                format!("path = {}", serde_json::Value::from(format!("{clone}/{path}").trim_end_matches('/')))
            }
            None if path == "driver/find_cuda_helper" => "path = \"find_cuda_helper\"".into(),
            None => format!("version = \"{}\"", env!("CARGO_PKG_VERSION")),
        };
        result += before;
        result += &source;
        rest = after;
    }
    result + rest
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let file = folder.join(name);
    let parent = file.parent().unwrap_or(folder);
    fs::create_dir_all(parent).map_err(|error| cannot_write(parent, &error))?;
    fs::write(&file, text).map_err(|error| cannot_write(&file, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("{} can't be written: {error}", path.display()))
}
