//! Compiles `kernels-gpu`, cuts the PTX into its modules, and writes `$OUT_DIR/modules.rs`, by which
//! `host/src/cuda/archive.rs` embeds them, compressed.
//!
//! The modules are also committed, one compressed file each in `kernels-gpu/prebuilt/`. Machines that cannot compile them
//! take these, with one warning. With `PASCALINE_UPDATE_PREBUILT=1` in the environment those that changed are written
//! there; a test fails while a committed module differs from its sources.

use cuda_builder::{CudaBuilder, CudaBuilderError, NvvmArch, ptx};
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

const PREBUILT: &str = "kernels-gpu/prebuilt";
const SUFFIX: &str = ".ptx.zst";
/// Of zstd's: what a committed file is compressed with, and what is done on the way to a test.
const LEVEL_COMMITTED: i32 = 19;
const LEVEL_FAST: i32 = 3;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={PREBUILT}");
    println!("cargo:rerun-if-env-changed=PASCALINE_UPDATE_PREBUILT");
    if let Err(error) = embed() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn embed() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let modules = match CudaBuilder::new("kernels-gpu").arch(NvvmArch::Compute61).build() {
        Ok(path) => ptx::modules(&fs::read_to_string(path)?)?,
        Err(
            error @ (CudaBuilderError::NoToolchain(_)
            | CudaBuilderError::Unavailable(_)
            | CudaBuilderError::NoPrebuilt),
        ) => {
            let why = error.to_string().replace('\n', " ");
            println!("cargo:warning=using the prebuilt kernels in {PREBUILT}: {why}");
            println!("cargo:rustc-env=CUDA_BUILDER_ORIGIN=prebuilt");
            committed()?
        }
        Err(error) => return Err(error.into()),
    };
    let update = env::var_os("PASCALINE_UPDATE_PREBUILT").is_some_and(|value| value != "0");
    let mut list = String::from("[\n");
    let mut names = BTreeSet::new();
    for (name, text) in &modules {
        let file = Path::new(PREBUILT).join(file_name(name));
        names.insert(file_name(name));
        let embedded = if read(&file).is_ok_and(|committed| committed == *text) {
            env::current_dir()?.join(file)
        } else if update {
            fs::write(&file, zstd::encode_all(text.as_bytes(), LEVEL_COMMITTED)?)?;
            env::current_dir()?.join(file)
        } else {
            let file = out.join(file_name(name));
            fs::write(&file, zstd::encode_all(text.as_bytes(), LEVEL_FAST)?)?;
            file
        };
        writeln!(list, "    ({name:?}, include_bytes!({embedded:?})),")?;
    }
    list.push(']');
    fs::write(out.join("modules.rs"), list)?;
    if update {
        for entry in fs::read_dir(PREBUILT)? {
            let entry = entry?;
            if !names.contains(&*entry.file_name().to_string_lossy()) {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

/// The committed modules with their names.
fn committed() -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let mut modules = Vec::new();
    for entry in fs::read_dir(PREBUILT)? {
        let entry = entry?;
        if let Some(name) = entry.file_name().to_string_lossy().strip_suffix(SUFFIX) {
            modules.push((name.replace('.', "::"), read(&entry.path())?));
        }
    }
    modules.sort();
    Ok(modules)
}

fn file_name(module: &str) -> String {
    format!("{}{SUFFIX}", module.replace("::", "."))
}

fn read(file: &Path) -> Result<String, Box<dyn Error>> {
    Ok(String::from_utf8(zstd::decode_all(fs::File::open(file)?)?)?)
}
