//! Compiles `kernels-gpu`, cuts the PTX into its modules, and writes `$OUT_DIR/modules.rs`, by which
//! `host/src/cuda/archive.rs` embeds them, compressed.
//!
//! The modules are also committed, one compressed file for each family in `kernels-gpu/prebuilt/`, with a number of the sources they
//! were compiled from. As long as the sources have that number, these are taken and nothing is compiled. Machines that cannot compile changed
//! ones take them too, with one warning. In the environment
//!
//! * `CUDA_BUILDER_PREBUILT=0` compiles whatever the number says, as CI does, where a test fails while a committed module differs from its
//!   sources; `CUDA_BUILDER_PREBUILT=1` takes the committed ones, with one warning;
//! * `PASCALINE_UPDATE_PREBUILT=1` compiles, and writes the files of families that changed.

use cuda_builder::{CudaBuilder, CudaBuilderError, NvvmArch, ptx};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

#[path = "host/src/cuda/packed.rs"]
mod packed;
#[path = "build/sources.rs"]
mod sources;

/// The kernels' package in this repository, which has the compiled modules in a folder. In a package from a registry, which holds no
/// other, they are in the package that was compiled beside this one.
const KERNELS: &str = "kernels-gpu";
const SUFFIX: &str = ".ptx.zst";
/// `1` takes the committed modules, `0` compiles; by itself the build compiles what changed.
const PREBUILT: &str = "CUDA_BUILDER_PREBUILT";
/// The variable of the library's build that says where its PTX comes from.
const ORIGIN: &str = "CUDA_BUILDER_ORIGIN";
const UPDATE: &str = "PASCALINE_UPDATE_PREBUILT";
/// Of zstd's: what a committed file is compressed with, and what is done on the way to a test.
const LEVEL_COMMITTED: i32 = 19;
const LEVEL_FAST: i32 = 3;

/// PTX modules, each with its name before it.
type Modules = Vec<(String, String)>;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=host/src/cuda/packed.rs");
    println!("cargo:rerun-if-changed={KERNELS}/prebuilt");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-env-changed={PREBUILT}");
    println!("cargo:rerun-if-env-changed={UPDATE}");
    if let Err(error) = embed() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn embed() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let is_repository = Path::new(KERNELS).join("Cargo.toml").is_file();
    let kernels = match is_repository {
        true => env::current_dir()?.join(KERNELS),
        false => env::var_os("DEP_PASCALINE_KERNELS_FOLDER")
            .ok_or("the kernels' build script names their folder")?
            .into(),
    };
    let prebuilt = kernels.join("prebuilt");
    let is_update = is_repository && env::var_os(UPDATE).is_some_and(|value| value != "0");
    let is_decided = is_update || env::var_os(PREBUILT).is_some();
    let compiled = if !is_repository {
        println!("cargo:rustc-env={ORIGIN}=prebuilt");
        None
    } else if !is_decided && sources::are_unchanged(&env::current_dir()?, &prebuilt)? {
        for input in sources::INPUTS.iter().chain(&["Cargo.lock"]) {
            println!("cargo:rerun-if-changed={input}");
        }
        println!("cargo:rustc-env={ORIGIN}=prebuilt from source, unchanged since");
        None
    } else {
        compile()?
    };
    let is_compiled = compiled.is_some();
    let modules = compiled.map_or_else(|| committed(&prebuilt), Ok)?;
    let (mut families, mut ranges) = (BTreeMap::<_, String>::new(), Vec::new());
    for (name, ptx) in &modules {
        let packed = packed::pack(name, ptx);
        if packed::modules(&packed).any(|(_, packed)| packed::unpack(packed) != *ptx) {
            return Err(format!("{name} is not the same PTX after packing").into());
        }
        let family = families.entry(packed::family(name) + SUFFIX).or_default();
        let header = packed.find('\n').map_or(0, |end| end + 1);
        ranges.push(family.len() + header..family.len() + packed.len());
        family.push_str(&packed);
    }
    let mut list = String::from("static FAMILIES: &[&[u8]] = &[\n");
    for (name, text) in &families {
        let committed = prebuilt.join(name);
        let file = if read(&committed).is_ok_and(|committed| committed == *text) {
            committed
        } else {
            let (file, level) =
                if is_update { (committed, LEVEL_COMMITTED) } else { (out.join(name), LEVEL_FAST) };
            fs::write(&file, zstd::encode_all(text.as_bytes(), level)?)?;
            file
        };
        writeln!(list, "    include_bytes!({file:?}),")?;
    }
    list.push_str("];\nstatic MODULES: &[(&str, usize, std::ops::Range<usize>)] = &[\n");
    for ((name, _), range) in modules.iter().zip(ranges) {
        let family = packed::family(name) + SUFFIX;
        let place = families.keys().take_while(|other| **other != family).count();
        writeln!(list, "    ({name:?}, {place}, {range:?}),")?;
    }
    list.push_str("];\n");
    fs::write(out.join("modules.rs"), list)?;
    if is_update {
        for entry in fs::read_dir(&prebuilt)? {
            let entry = entry?;
            let name = entry.file_name();
            if name != sources::FILE && !families.contains_key(&*name.to_string_lossy()) {
                fs::remove_file(entry.path())?;
            }
        }
    }
    if is_update && is_compiled {
        fs::write(prebuilt.join(sources::FILE), sources::fingerprint(&env::current_dir()?)?)?;
    }
    Ok(())
}

/// The modules with their names; none, and a warning, where nothing compiles them.
fn compile() -> Result<Option<Modules>, Box<dyn Error>> {
    match CudaBuilder::new(KERNELS).arch(NvvmArch::Compute61).build() {
        Ok(path) => Ok(Some(ptx::modules(&fs::read_to_string(path)?)?)),
        Err(
            error @ (CudaBuilderError::NoToolchain(_)
            | CudaBuilderError::Unavailable(_)
            | CudaBuilderError::NoPrebuilt),
        ) => {
            let why = error.to_string().replace('\n', " ");
            println!("cargo:warning=using the prebuilt kernels in {KERNELS}/prebuilt: {why}");
            println!("cargo:rustc-env={ORIGIN}=prebuilt");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The committed modules with their names.
fn committed(prebuilt: &Path) -> Result<Modules, Box<dyn Error>> {
    let mut modules = Vec::new();
    for entry in fs::read_dir(prebuilt)? {
        let file = entry?.path();
        if file.to_string_lossy().ends_with(SUFFIX) {
            let family = read(&file)?;
            modules
                .extend(packed::modules(&family).map(|(name, ptx)| (name.to_owned(), packed::unpack(ptx))));
        }
    }
    modules.sort();
    Ok(modules)
}

fn read(file: &Path) -> Result<String, Box<dyn Error>> {
    Ok(String::from_utf8(zstd::decode_all(fs::File::open(file)?)?)?)
}
