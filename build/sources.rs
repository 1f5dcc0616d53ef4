//! What the committed PTX was compiled from, as one number: where it is still the same, nothing needs to be compiled.
//!
//! It does not tell who changed a file: the test that compares compiles the kernels.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The file with the number, among the committed modules.
pub const FILE: &str = "sources.txt";

/// Files and folders on which the PTX depends, besides the lock file.
pub const INPUTS: &[&str] = &[
    "kernels-gpu/Cargo.toml",
    "kernels-gpu/src",
    "rust-toolchain.toml",
    "toolchain/cuda_builder/Cargo.toml",
    "toolchain/cuda_builder/src",
    "toolchain/cuda_std/Cargo.toml",
    "toolchain/cuda_std/src",
    "toolchain/cuda_std_macros/Cargo.toml",
    "toolchain/cuda_std_macros/src",
];
/// Whose functions the kernels call.
const CRATE: &str = "name = \"libm\"\n";

/// The number of the sources in the repository's folder, in hexadecimal: 64-bit FNV-1a of names and contents, in the order of their names.
/// Line ends of Windows count as those of others.
pub fn fingerprint(repository: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for input in INPUTS {
        list(repository, Path::new(input), &mut files)?;
    }
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for &byte in bytes.iter().filter(|&&byte| byte != b'\r').chain(b"\0") {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for file in files {
        let name: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
        add(name.join("/").as_bytes());
        add(&fs::read(repository.join(&file))?);
    }
    let lock = fs::read_to_string(repository.join("Cargo.lock"))?.replace('\r', "");
    let locked = lock.split("[[package]]\n").find(|package| package.starts_with(CRATE));
    add(locked.unwrap_or_default().trim_end().as_bytes());
    Ok(format!("{hash:016x}\n"))
}

fn list(repository: &Path, below: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let path = repository.join(below);
    if !path.is_dir() {
        files.push(below.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        list(repository, &below.join(entry?.file_name()), files)?;
    }
    Ok(())
}

/// Whether the committed number is that of these sources.
pub fn are_unchanged(repository: &Path, prebuilt: &Path) -> io::Result<bool> {
    let committed = fs::read_to_string(prebuilt.join(FILE)).unwrap_or_default();
    Ok(committed.trim_end() == fingerprint(repository)?.trim_end())
}
