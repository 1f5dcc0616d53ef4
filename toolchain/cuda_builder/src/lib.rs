//! Compiles a GPU crate to one PTX file, from a build script.
//!
//! The interface is that of Rust-CUDA's `cuda_builder`:
//!
//! ```no_run
//! # fn main() -> Result<(), cuda_builder::CudaBuilderError> {
//! use cuda_builder::{CudaBuilder, NvvmArch};
//!
//! let ptx = CudaBuilder::new("kernels-gpu").arch(NvvmArch::Compute61).copy_to("kernels.ptx").build()?;
//! # Ok(()) }
//! ```
//!
//! What is under it differs: rustc's own NVPTX back end instead of a code generator of its own, so that a stable
//! compiler suffices. `build` finds `core`'s sources (rustup's `rust-src`), runs cargo for the crate in a target
//! folder of its own and with a clean environment, and takes the PTX that fat LTO leaves behind; nothing is linked.
//! The PTX is then finished and checked by [`ptx`]: launch bounds written into the entries, `.target` and
//! `.version` as asked for, every `#[kernel]` there, nothing unresolved.
//!
//! Where the GPU target can't be built, [`CudaBuilder::prebuilt`] names a PTX file to use instead, with one cargo
//! warning that says why and what to do about it.

pub mod ptx;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

const TARGET: &str = "nvptx64-nvidia-cuda";

/// Environment variables of the outer cargo that must not reach the inner one: they would change flags, the
/// compiler (clippy runs through a wrapper) or the target folder.
const HOST_ONLY: &[&str] = &[
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_TARGET_DIR",
    "CARGO_MAKEFLAGS",
    "MAKEFLAGS",
    "CLIPPY_ARGS",
];

/// Why no PTX came of it.
#[derive(Debug, thiserror::Error)]
pub enum CudaBuilderError {
    /// The path given to [`CudaBuilder::new`] holds no `Cargo.toml`.
    #[error("no crate at {}", .0.display())]
    CratePathDoesntExist(PathBuf),
    /// The GPU crate did not compile; rustc's diagnostics are in the text.
    #[error("the GPU crate does not compile:\n{0}")]
    BuildFailed(String),
    /// The GPU target can't be built on this machine and no prebuilt PTX was named.
    #[error("the GPU target can't be built here: {0}")]
    Unavailable(String),
    /// The PTX was made and is not what was asked for.
    #[error("{}: {source}", .path.display())]
    BadPtx {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ptx::PtxError,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The GPU architectures that rustc 1.95 has in common with Rust-CUDA's enum of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvvmArch {
    /// sm_60: Tesla P100.
    Compute60,
    /// sm_61: GTX 10xx, MX1xx to MX3xx, Tesla P4 and P40.
    Compute61,
    /// sm_62: Tegra X2.
    Compute62,
    /// sm_70: V100.
    Compute70,
    /// sm_75: RTX 20xx, GTX 16xx, T4.
    Compute75,
    /// sm_80: A100.
    Compute80,
}

impl NvvmArch {
    /// As rustc and PTX spell it.
    pub fn sm(self) -> &'static str {
        match self {
            Self::Compute60 => "sm_60",
            Self::Compute61 => "sm_61",
            Self::Compute62 => "sm_62",
            Self::Compute70 => "sm_70",
            Self::Compute75 => "sm_75",
            Self::Compute80 => "sm_80",
        }
    }
}

/// What to build and where to put it.
#[derive(Clone, Debug)]
pub struct CudaBuilder {
    crate_path: PathBuf,
    arch: NvvmArch,
    isa: (u32, u32),
    copy_to: Option<PathBuf>,
    prebuilt: Option<PathBuf>,
}

impl CudaBuilder {
    /// A builder for the crate in this folder (its `Cargo.toml` needs no `crate-type`).
    pub fn new(path_to_crate_root: impl AsRef<Path>) -> Self {
        Self {
            crate_path: path_to_crate_root.as_ref().to_path_buf(),
            arch: NvvmArch::Compute61,
            isa: (6, 4),
            copy_to: None,
            prebuilt: None,
        }
    }

    /// The architecture to compile for; [`NvvmArch::Compute61`] if not given.
    pub fn arch(mut self, arch: NvvmArch) -> Self {
        self.arch = arch;
        self
    }

    /// The PTX ISA version; 6.4 if not given, which every driver since CUDA 10.1 loads. Below 6.0 there are no
    /// `.sync` shuffles.
    pub fn ptx_isa(mut self, major: u32, minor: u32) -> Self {
        self.isa = (major, minor);
        self
    }

    /// Also copies the PTX to this path.
    pub fn copy_to(mut self, path: impl AsRef<Path>) -> Self {
        self.copy_to = Some(path.as_ref().to_path_buf());
        self
    }

    /// A PTX file to use where the GPU target can't be built. `CUDA_BUILDER_PREBUILT=1` in the environment asks for
    /// it everywhere.
    pub fn prebuilt(mut self, path: impl AsRef<Path>) -> Self {
        self.prebuilt = Some(path.as_ref().to_path_buf());
        self
    }

    /// Builds and gives the path of the PTX file.
    ///
    /// In a build script this prints the `cargo:rerun-if-changed` lines for everything the PTX depends on, and sets
    /// `CUDA_BUILDER_ORIGIN` for the crate's `env!`: `built from source` or `prebuilt`.
    ///
    /// # Errors
    /// [`CudaBuilderError`]. A crate that does not compile is always an error; only a machine that can't build for
    /// the GPU at all falls back to the prebuilt file.
    pub fn build(self) -> Result<PathBuf, CudaBuilderError> {
        println!("cargo:rerun-if-env-changed=CUDA_BUILDER_PREBUILT");
        println!("cargo:rerun-if-changed={}", self.crate_path.join("src").display());
        let manifest = self.crate_path.join("Cargo.toml");
        if !manifest.is_file() {
            return Err(CudaBuilderError::CratePathDoesntExist(self.crate_path));
        }
        let name = crate_name(&manifest)?;
        let out_dir = env::var_os("OUT_DIR").map_or_else(|| self.crate_path.join("target"), PathBuf::from);
        let ptx_path = out_dir.join(format!("{name}.ptx"));

        match self.compile(&manifest, &name, &out_dir) {
            Ok(raw) => {
                let finished = ptx::finish(&raw)
                    .and_then(|text| ptx::check(&text, self.arch.sm(), self.isa).map(|()| text))
                    .map_err(|source| CudaBuilderError::BadPtx { path: ptx_path.clone(), source })?;
                write(&ptx_path, &finished)?;
                println!("cargo:rustc-env=CUDA_BUILDER_ORIGIN=built from source");
            }
            Err(CudaBuilderError::Unavailable(why)) => {
                let Some(prebuilt) = &self.prebuilt else {
                    return Err(CudaBuilderError::Unavailable(why));
                };
                println!("cargo:rerun-if-changed={}", prebuilt.display());
                println!("cargo:warning=using the prebuilt {}: {why}", prebuilt.display());
                let text = read(prebuilt)?;
                ptx::check(&text, self.arch.sm(), self.isa)
                    .map_err(|source| CudaBuilderError::BadPtx { path: prebuilt.clone(), source })?;
                write(&ptx_path, &text)?;
                println!("cargo:rustc-env=CUDA_BUILDER_ORIGIN=prebuilt");
            }
            Err(other) => return Err(other),
        }
        if let Some(copy) = &self.copy_to {
            write(copy, &read(&ptx_path)?)?;
        }
        Ok(ptx_path)
    }

    /// Runs cargo for the crate and gives the PTX as LLVM wrote it.
    fn compile(&self, manifest: &Path, name: &str, out_dir: &Path) -> Result<String, CudaBuilderError> {
        if env::var_os("CUDA_BUILDER_PREBUILT").is_some_and(|value| value != "0") {
            return Err(CudaBuilderError::Unavailable("CUDA_BUILDER_PREBUILT is set".into()));
        }
        let core = Core::find()?;
        let target_dir = shared_target_dir(out_dir);
        let (major, minor) = self.isa;
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(["rustc", "--release", "--lib", "--crate-type=cdylib", "--target", TARGET])
            .arg("--manifest-path")
            .arg(manifest)
            .arg("--target-dir")
            .arg(&target_dir);
        if core == Core::Sources {
            cargo.arg("-Zbuild-std=core");
        }
        cargo.args(["--", "--emit=asm"]);
        for variable in HOST_ONLY {
            cargo.env_remove(variable);
        }
        for (variable, _) in env::vars_os() {
            if variable.to_string_lossy().starts_with("CARGO_PROFILE_") {
                cargo.env_remove(&variable);
            }
        }
        // Fat LTO merges everything inside rustc and leaves the whole program as one PTX file. What the linker
        // would then make of it is of no use, so this program stands in for the linker and does nothing.
        let linker = env::current_exe()
            .map_err(|source| CudaBuilderError::Io { path: "the running executable".into(), source })?;
        let flags = [
            format!("-Ctarget-cpu={}", self.arch.sm()),
            format!("-Ctarget-feature=+ptx{major}{minor}"),
            format!("-Clinker={}", linker.display()),
        ];
        cargo
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .env(STAND_IN_LINKER, "1")
            .env("RUSTC_BOOTSTRAP", "1") // build-std, the kernel ABI and PTX asm! are not stable
            .env("CARGO_PROFILE_RELEASE_LTO", "fat")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
            .env("CARGO_PROFILE_RELEASE_STRIP", "none");

        let output = cargo
            .output()
            .map_err(|error| CudaBuilderError::Unavailable(format!("cargo does not start: {error}")))?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            // Anything but a compile error (no network for what -Zbuild-std resolves, say) is the machine's state.
            return Err(if log.contains("error: could not compile") || log.contains("error[E") {
                CudaBuilderError::BuildFailed(log)
            } else {
                let first = log.lines().find(|line| line.starts_with("error")).unwrap_or("cargo failed");
                CudaBuilderError::Unavailable(first.to_owned())
            });
        }
        let release = target_dir.join(TARGET).join("release");
        let stem = name.replace('-', "_");
        rerun_if_dependencies_change(&release.join(format!("{stem}.d")));
        read(&release.join("deps").join(format!("{stem}.s")))
    }
}

/// Set for the inner cargo, and so for the linker that rustc starts, which is this same executable.
const STAND_IN_LINKER: &str = "CUDA_BUILDER_STAND_IN_LINKER";

/// To be called first in the `main` of a build script that uses [`CudaBuilder`]: ends the process at once where the
/// build script has been started as the linker of the GPU crate, whose output nobody needs.
pub fn stand_in_as_linker() {
    if env::var_os(STAND_IN_LINKER).is_some() {
        std::process::exit(0);
    }
}

/// Where `core` for the GPU comes from.
#[derive(PartialEq, Eq)]
enum Core {
    /// `rust-src`: compiled along with the crate.
    Sources,
    /// A compiled `core` in the sysroot (rustup's target component).
    Compiled,
}

impl Core {
    fn find() -> Result<Self, CudaBuilderError> {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let sysroot = Command::new(rustc)
            .args(["--print", "sysroot"])
            .output()
            .map_err(|error| CudaBuilderError::Unavailable(format!("rustc does not start: {error}")))?;
        let lib = Path::new(String::from_utf8_lossy(&sysroot.stdout).trim()).join("lib/rustlib");
        // The standard library's manifest names `core`; without its sources beside it cargo fails late and oddly.
        if lib.join("src/rust/library/core/src/lib.rs").is_file() {
            return Ok(Self::Sources);
        }
        let has_core = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with("libcore-");
        let compiled = fs::read_dir(lib.join(TARGET).join("lib"));
        if compiled.is_ok_and(|entries| entries.flatten().any(has_core)) {
            return Ok(Self::Compiled);
        }
        Err(CudaBuilderError::Unavailable(
            "the sources of `core` are missing; `rustup component add rust-src` installs them".into(),
        ))
    }
}

/// `target/cuda-builder`, shared by the host's debug and release builds, since the PTX is the same for both; where
/// cargo's layout is not recognised, a folder below `OUT_DIR`.
fn shared_target_dir(out_dir: &Path) -> PathBuf {
    let build = out_dir.ancestors().find(|path| path.file_name() == Some(OsStr::new("build")));
    let target = build.and_then(Path::parent).and_then(Path::parent);
    target.unwrap_or(out_dir).join("cuda-builder")
}

/// The `name` of the package in a manifest.
fn crate_name(manifest: &Path) -> Result<String, CudaBuilderError> {
    let text = read(manifest)?;
    let name = text.lines().find_map(|line| {
        let value = line.trim().strip_prefix("name")?.trim_start().strip_prefix('=')?.trim();
        value.strip_prefix('"')?.strip_suffix('"').map(str::to_owned)
    });
    name.ok_or_else(|| CudaBuilderError::CratePathDoesntExist(manifest.to_path_buf()))
}

/// Tells cargo about every source file that the GPU build read, from the dep-info file it left (make's syntax).
fn rerun_if_dependencies_change(dep_info: &Path) {
    let Ok(text) = fs::read_to_string(dep_info) else { return };
    let Some((_, files)) = text.split_once(": ") else { return };
    let files = files.replace("\\ ", "\0");
    for file in files.split_whitespace() {
        println!("cargo:rerun-if-changed={}", file.replace('\0', " "));
    }
}

fn read(path: &Path) -> Result<String, CudaBuilderError> {
    fs::read_to_string(path).map_err(|source| CudaBuilderError::Io { path: path.to_path_buf(), source })
}

fn write(path: &Path, text: &str) -> Result<(), CudaBuilderError> {
    fs::write(path, text).map_err(|source| CudaBuilderError::Io { path: path.to_path_buf(), source })
}
