//! Compiles a GPU crate to one PTX file, from a build script. The interface is that of Rust-CUDA's `cuda_builder`; under it
//! is rustc's own NVPTX back end, so that a stable compiler suffices. No linker and no CUDA toolkit are needed.
//!
//! # Use
//!
//! A package that launches kernels of its own has this `build.rs`, and `cuda_builder` in its `[build-dependencies]`:
//!
//! ```no_run
#![doc = include_str!("../tests/stranger/build.rs")]
//! ```
//!
//! The kernels are a library crate in the folder `kernels`. Its manifest needs nothing but the dependency on `cuda_std`:
//!
//! ```toml
//! [package]
//! name = "kernels"
//! version = "0.1.0"
//! edition = "2024"
//!
//! [dependencies]
//! cuda_std = { package = "pascaline-cuda-std", version = "0.1" }
//! ```
//!
//! The crate is either a member of the package's workspace or the root of one (an empty `[workspace]` table in its
//! manifest). As a member it is also compiled for the host, where kernels are type-checked and linted. Its `src/lib.rs`:
//!
//! ```ignore
#![doc = include_str!("../tests/stranger/kernels/src/lib.rs")]
//! ```
//!
//! * `no_std`: there is no standard library on the GPU. `cuda_std` brings the panic handler: a panic ends the grid, and the
//!   next synchronisation reports an error. Indexing with a bounds check compiles into such a panic; `get` does not.
//!   A crate whose `src/lib.rs` does not name `no_std` gets this and the next attribute from `cuda_builder`, as with Rust-CUDA, and so do
//!   crates that it depends on get `no_std`.
//! * `feature(abi_ptx)`: the calling convention of kernels, to which `#[kernel]` changes the function. It is not stable;
//!   `cuda_builder` lets a stable compiler take it for the GPU crate alone (by `RUSTC_BOOTSTRAP`). Inline PTX needs
//!   `asm_experimental_arch` as well.
//! * `cfg_attr`: both are for the GPU alone, and the same file compiles on the host.
//!
//! The host embeds the PTX by `include_str!("../kernels.ptx")` and loads it with cust's `Module::from_ptx` or
//! Pascaline's `CudaDevice::load_ptx`. Without [`copy_to`](CudaBuilder::copy_to) the file is in `OUT_DIR`, where
//! [`build`](CudaBuilder::build) returns. Relative paths are relative to the package of the build script.
//!
//! A test or a tool compiles kernels too: [`out_dir`](CudaBuilder::out_dir) names the folder then, and nothing is printed for cargo.
//!
//! # How
//!
//! `build` runs cargo for the crate, in a target folder of its own and with a clean environment, and takes the PTX that fat
//! LTO leaves. The PTX is then finished and checked by [`ptx`]: launch bounds written into the entries, `.target` and
//! `.version` as asked for, every `#[kernel]` there, nothing unresolved.
//!
//! Two things that LLVM gets wrong before sm_70 are made right, or refused with the kernel's name. `core` is compiled from a copy of
//! its sources whose atomics have fences, because PTX has no orderings there. Remainders of floats become calls of an exact function
//! of `cuda_std`. LLVM's intermediate code, which rustc leaves beside the PTX, says how many there must be.
//!
//! # Compilers
//!
//! rustc 1.95 or later with the sources of `core` (rustup's component `rust-src`). Releases from 1.97 on list architectures from `sm_70`
//! on; their LLVM still has those before, and is asked for them by a description of the target without that limit. A build whose own rustc
//! lacks the architecture or the sources takes another toolchain that rustup has. One cargo warning says which and why. Where there is none,
//! [`CudaBuilder::prebuilt`] names a PTX file to use instead, again with one warning; without that the error says which
//! command installs what is missing. When the sources or a toolchain have been installed, cargo runs the build script
//! again.

mod core_sources;
mod ftz;
mod ir;
mod items;
mod lower;
mod messages;
mod options;
pub mod ptx;
mod remainder;
mod shared;
mod source_lines;
mod target;
mod toolchain;
mod whole;

pub use options::{DebugInfo, OptLevel};
pub use toolchain::{NoToolchain, Unusable};

use messages::Messages;
use options::Options;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fmt, fs, io};
use target::TARGET;
use toolchain::{Core, Programs, Toolchain};

/// Environment variables of the outer cargo that must not reach the inner one: they would change flags, the
/// compiler (clippy runs through a wrapper) or the target folder.
const HOST_ONLY: &[&str] = &[
    "RUSTFLAGS",
    "CARGO_BUILD_RUSTC",
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

/// Why no PTX was built. `Debug`, by which `unwrap` and `main` print an error, gives the same text as `Display`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CudaBuilderError {
    /// The path given to [`CudaBuilder::new`] holds no `Cargo.toml`.
    #[error("no crate at {}", .0.display())]
    CratePathDoesntExist(PathBuf),
    /// The GPU crate did not compile; rustc's diagnostics are in the text.
    #[error("the GPU crate does not compile:\n{0}")]
    BuildFailed(String),
    /// No compiler on this machine builds for the GPU, and no prebuilt PTX was named.
    #[error("no compiler for the GPU: {0}")]
    NoToolchain(#[from] NoToolchain),
    /// Cargo could not begin to compile the GPU crate, and no prebuilt PTX was named; cargo's own text.
    #[error("the GPU crate can't be built here: {0}")]
    Unavailable(String),
    /// `CUDA_BUILDER_PREBUILT` asks for the prebuilt PTX, and none was named.
    #[error("CUDA_BUILDER_PREBUILT is set, so nothing is compiled")]
    NoPrebuilt,
    /// The PTX was built, or is prebuilt, and did not pass its checks.
    #[error("{}: {source}", .path.display())]
    BadPtx {
        /// The file.
        path: PathBuf,
        /// The fault in it.
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

impl fmt::Debug for CudaBuilderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
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

/// The crate to build, and where its PTX goes.
#[derive(Clone, Debug)]
pub struct CudaBuilder {
    crate_path: PathBuf,
    arch: NvvmArch,
    isa: Option<(u32, u32)>,
    out_dir: Option<PathBuf>,
    copy_to: Option<PathBuf>,
    prebuilt: Option<PathBuf>,
    options: Options,
}

impl CudaBuilder {
    /// A builder for the crate in this folder, which is relative to the package of the build script. Its `Cargo.toml` needs
    /// no `crate-type`.
    pub fn new(path_to_crate_root: impl AsRef<Path>) -> Self {
        Self {
            crate_path: path_to_crate_root.as_ref().to_path_buf(),
            arch: NvvmArch::Compute61,
            isa: None,
            out_dir: None,
            copy_to: None,
            prebuilt: None,
            options: Options::default(),
        }
    }

    /// The architecture to compile for; [`NvvmArch::Compute61`] if not given.
    pub fn arch(mut self, arch: NvvmArch) -> Self {
        self.arch = arch;
        self
    }

    /// The PTX ISA version; 6.4 if not given, which every driver since CUDA 10.1 loads, or 7.0 (CUDA 11) where that is the
    /// oldest that the compiler writes: rustc 1.97 or later for sm_70 or newer. Below 6.0 there are no `.sync` shuffles.
    pub fn ptx_isa(mut self, major: u32, minor: u32) -> Self {
        self.isa = Some((major, minor));
        self
    }

    /// Where files are written in place of `OUT_DIR`, for a program that is no build script: a test, a tool. Nothing is printed for
    /// cargo then. That the PTX is prebuilt or by another toolchain is said on the standard error; the compiler's warnings are dropped.
    ///
    /// Builds may share a folder, at the same time too. Each crate, architecture and set of options has a PTX file of its own there.
    pub fn out_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.out_dir = Some(path.as_ref().to_path_buf());
        self
    }

    /// Also copies the PTX to this path. A file with the same contents is not written again.
    pub fn copy_to(mut self, path: impl AsRef<Path>) -> Self {
        self.copy_to = Some(path.as_ref().to_path_buf());
        self
    }

    /// A PTX file to use where the GPU crate can't be built. `CUDA_BUILDER_PREBUILT=1` in the environment asks for it
    /// everywhere.
    pub fn prebuilt(mut self, path: impl AsRef<Path>) -> Self {
        self.prebuilt = Some(path.as_ref().to_path_buf());
        self
    }

    /// Builds the PTX file and returns its path, which is in `OUT_DIR` or in [`out_dir`](Self::out_dir).
    ///
    /// In a build script this prints the `cargo:rerun-if-changed` lines for everything the PTX depends on, and sets
    /// `CUDA_BUILDER_ORIGIN` for the crate's `env!`: `built from source`, the same with the toolchain's name where it
    /// is not this build's own, or `prebuilt`.
    ///
    /// # Errors
    /// [`CudaBuilderError`]. A crate that does not compile is always an error; only a machine that can't build for
    /// the GPU at all falls back to the prebuilt file.
    pub fn build(self) -> Result<PathBuf, CudaBuilderError> {
        self.tell("rerun-if-env-changed", FORCE_PREBUILT);
        let base = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
        let crate_path = base.join(&self.crate_path);
        let manifest = crate_path.join("Cargo.toml");
        if !manifest.is_file() {
            return Err(CudaBuilderError::CratePathDoesntExist(crate_path));
        }
        for path in ["Cargo.toml", "Cargo.lock", "src"].map(|name| crate_path.join(name)) {
            self.rerun_if_changed(&path);
        }
        let (ptx_path, target_dir) = self.places(&base, &crate_path);
        let _turn = turn(&target_dir)?;
        let force_prebuilt = env::var_os(FORCE_PREBUILT).is_some_and(|value| value != "0");
        let built = if force_prebuilt {
            Err(CudaBuilderError::NoPrebuilt)
        } else {
            self.compile(&manifest, &target_dir)
        };
        let (text, origin) = match (built, &self.prebuilt) {
            (Ok((raw, facts, toolchain)), _) => {
                let lowered = lower::lower(&raw, &facts).and_then(|raw| shared::place(&raw));
                let finished = lowered.and_then(|raw| ptx::finish(&raw)).and_then(|text| {
                    let text = if self.options.ftz { ftz::flush(&text) } else { text };
                    ptx::check(&text, self.arch.sm(), self.isa_by(&toolchain))?;
                    Ok(text)
                });
                let text =
                    finished.map_err(|source| CudaBuilderError::BadPtx { path: ptx_path.clone(), source })?;
                let by = toolchain.name.map(|name| format!(" by {name} (rustc {})", toolchain.version));
                (text, format!("built from source{}", by.unwrap_or_default()))
            }
            (
                Err(
                    why @ (CudaBuilderError::NoToolchain(_)
                    | CudaBuilderError::Unavailable(_)
                    | CudaBuilderError::NoPrebuilt),
                ),
                Some(prebuilt),
            ) => {
                let path = base.join(prebuilt);
                self.rerun_if_changed(&path);
                self.warn(&format!("using the prebuilt {}: {why}", prebuilt.display()));
                let text = read(&path)?;
                // whichever compiler wrote it
                let isa = self.isa.map_or_else(|| ptx::version(&text), Ok);
                isa.and_then(|isa| ptx::check(&text, self.arch.sm(), isa))
                    .map_err(|source| CudaBuilderError::BadPtx { path, source })?;
                (text, "prebuilt".to_owned())
            }
            (Err(other), _) => return Err(other),
        };
        self.tell("rustc-env", format_args!("CUDA_BUILDER_ORIGIN={origin}"));
        write(&ptx_path, &text)?;
        if let Some(copy) = &self.copy_to {
            write(&base.join(copy), &text)?;
        }
        Ok(ptx_path)
    }

    /// The PTX file, and cargo's target folder.
    fn places(&self, base: &Path, crate_path: &Path) -> (PathBuf, PathBuf) {
        let name = self.file_name(crate_path);
        if let Some(folder) = &self.out_dir {
            let folder = base.join(folder);
            return (folder.join(name), folder.join(TARGET_DIR));
        }
        let folder = env::var_os("OUT_DIR").map_or_else(|| crate_path.join("target"), PathBuf::from);
        (folder.join(name), shared_target_dir(&folder))
    }

    /// `kernels-sm_61.ptx` for the crate in `kernels`: one build script may build several crates, and one crate for
    /// several architectures. In [`out_dir`](Self::out_dir) a hash follows: tests build crates of one name, and one with several options.
    fn file_name(&self, crate_path: &Path) -> String {
        let whole = crate_path.canonicalize();
        let whole = whole.as_deref().unwrap_or(crate_path);
        let folder = whole.file_name().unwrap_or(OsStr::new("kernels")).to_string_lossy();
        let sm = self.arch.sm();
        if self.out_dir.is_none() {
            return format!("{folder}-{sm}.ptx");
        }
        let mut hasher = DefaultHasher::new();
        (whole, self.isa, &self.options).hash(&mut hasher);
        format!("{folder}-{sm}-{:016x}.ptx", hasher.finish())
    }

    /// Tells cargo something, from a build script.
    fn tell(&self, instruction: &str, value: impl fmt::Display) {
        if self.out_dir.is_none() {
            println!("cargo:{instruction}={value}");
        }
    }

    /// Cargo treats a missing path as always changed, so only existing paths are named.
    fn rerun_if_changed(&self, path: &Path) {
        if path.exists() {
            self.tell("rerun-if-changed", path.display());
        }
    }

    /// Tells cargo about every source file that the GPU build read, from the dep-info file it left (make's syntax).
    fn rerun_if_dependencies_change(&self, dep_info: &Path) {
        let Ok(text) = fs::read_to_string(dep_info) else { return };
        let Some((_, files)) = text.split_once(": ") else { return };
        let files = files.replace("\\ ", "\0");
        for file in files.split_whitespace() {
            self.rerun_if_changed(Path::new(&file.replace('\0', " ")));
        }
    }

    /// Warns of where the PTX comes from, through cargo or by itself.
    fn warn(&self, text: &str) {
        self.tell("warning", one_line(text));
        if self.out_dir.is_some() {
            eprintln!("warning: {}", one_line(text));
        }
    }

    /// The ISA version that is asked for, or the oldest from 6.4 on that the compiler writes.
    fn isa_by(&self, toolchain: &Toolchain) -> (u32, u32) {
        self.isa.unwrap_or_else(|| toolchain.oldest_isa().max((6, 4)))
    }

    /// Runs cargo for the crate. Returns the PTX as LLVM wrote it, what LLVM's intermediate code says of it, and the toolchain.
    fn compile(
        &self,
        manifest: &Path,
        target_dir: &Path,
    ) -> Result<(String, ir::Facts, Toolchain), CudaBuilderError> {
        let search = Programs::of_this_build().find(self.arch.sm());
        for path in &search.watch {
            self.rerun_if_changed(path);
        }
        let (toolchain, why_not_own) = search.result()?;
        if let (Some(name), Some(why)) = (&toolchain.name, why_not_own) {
            self.warn(&format!("the GPU crate is compiled by {name} (rustc {}): {why}", toolchain.version));
        }
        let output = self
            .cargo(&toolchain, manifest, target_dir)?
            .output()
            .map_err(|error| CudaBuilderError::Unavailable(format!("cargo can't be started: {error}")))?;
        let messages = Messages::parse(&String::from_utf8_lossy(&output.stdout));
        if !output.status.success() {
            let log = messages.rendered() + &String::from_utf8_lossy(&output.stderr);
            // Anything but a compile error (no network for what -Zbuild-std resolves, say) is the machine's state.
            return Err(if log.contains("error: could not compile") || log.contains("error[E") {
                CudaBuilderError::BuildFailed(log)
            } else {
                let lines = log.lines().skip_while(|line| !line.starts_with("error"));
                CudaBuilderError::Unavailable(lines.collect::<Vec<_>>().join("\n"))
            });
        }
        for warning in messages.warnings() {
            self.tell("warning", one_line(&warning));
        }
        let archive = messages
            .archive()
            .ok_or_else(|| CudaBuilderError::Unavailable("cargo's messages name no library".into()))?;
        self.rerun_if_dependencies_change(&archive.with_extension("d"));
        let asm = assembly_of(&archive, &target_dir.join(TARGET).join("release"))?;
        let ir = read(&asm.with_extension("ll"))?;
        Ok((source_lines::annotate(&read(&asm)?, &ir), ir::facts(&ir), toolchain))
    }

    /// The command that compiles the GPU crate.
    fn cargo(
        &self,
        toolchain: &Toolchain,
        manifest: &Path,
        target_dir: &Path,
    ) -> Result<Command, CudaBuilderError> {
        let mut cargo = Command::new(&toolchain.cargo);
        // A static library is archived by rustc itself. Fat LTO, which runs before that, leaves the whole
        // program as one PTX file, so that no linker is needed.
        cargo
            .args(["rustc", "--release", "--lib", "--crate-type=staticlib"])
            .args(["--message-format=json", "--manifest-path"])
            .arg(manifest)
            .arg("--target-dir")
            .arg(target_dir)
            .args(self.options.cargo_arguments());
        cargo.arg("--target");
        match &toolchain.description {
            None => cargo.arg(TARGET),
            Some(description) => {
                let written = target::write(target_dir, self.arch.sm(), description)
                    .map_err(|source| CudaBuilderError::Io { path: target_dir.to_path_buf(), source })?;
                cargo.arg(written).arg("-Zjson-target-spec")
            }
        };
        if toolchain.core == Core::Sources {
            cargo.arg("-Zbuild-std=core");
            let library = toolchain.sysroot.join("lib/rustlib/src/rust/library");
            let folder = target_dir.join(format!("core-{}", toolchain.version));
            let sources = core_sources::with_fences(&library, &folder)
                .map_err(|source| CudaBuilderError::Io { path: folder, source })?;
            // Cargo has no stable name for this. Without it, orderings are found in LLVM's code and refused.
            if let Some(sources) = sources {
                cargo.env("__CARGO_TESTS_ONLY_SRC_ROOT", sources);
            }
        }
        cargo.args(["--", "--emit=asm,llvm-ir"]).args(self.options.crate_arguments());
        let needs_attributes = needs_attributes(manifest);
        if needs_attributes {
            cargo.args(
                ["abi_ptx", "asm_experimental_arch"].map(|name| format!("-Zcrate-attr=feature({name})")),
            );
        }
        for variable in HOST_ONLY {
            cargo.env_remove(variable);
        }
        for (variable, _) in env::vars_os() {
            if variable.to_string_lossy().starts_with("CARGO_PROFILE_") {
                cargo.env_remove(&variable);
            }
        }
        let (major, minor) = self.isa_by(toolchain);
        let mut flags = vec![
            format!("-Ctarget-cpu={}", self.arch.sm()),
            format!("-Ctarget-feature=+ptx{major}{minor}"),
            // Jump threading copies a call into the arms of a branch where that decides a later branch. rustc's does not
            // know convergent functions. LLVM's first such pass does, but does not see those in functions that are not inlined yet.
            "-Zmir-enable-passes=-JumpThreading".to_owned(),
            "-Cllvm-args=-simplifycfg-max-small-block-size=0".to_owned(),
        ];
        if needs_attributes {
            // those that have it have it twice
            flags.extend(["-Zcrate-attr=no_std", "-Aunused_attributes"].map(str::to_owned));
        }
        flags.extend(self.options.rustc_arguments());
        cargo
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .env("RUSTC", &toolchain.rustc)
            .env("RUSTC_WRAPPER", "") // empty, so that a wrapper from a configuration file is not used either
            .env("RUSTC_WORKSPACE_WRAPPER", "")
            .env("RUSTC_BOOTSTRAP", "1") // build-std, the kernel ABI and PTX asm! are not stable
            .env("CARGO_BUILD_BUILD_DIR", target_dir)
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_RELEASE_LTO", "fat")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
            .envs(self.options.profile())
            .env("CARGO_PROFILE_RELEASE_STRIP", "none");
        if let Some(name) = &toolchain.name {
            cargo.env("RUSTUP_TOOLCHAIN", name);
        }
        Ok(cargo)
    }
}

/// Whether the crate says nothing of `no_std`, as kernel crates of Rust-CUDA don't: there it and what it depends on get it from the builder.
fn needs_attributes(manifest: &Path) -> bool {
    fs::read_to_string(manifest.with_file_name("src").join("lib.rs"))
        .is_ok_and(|text| !text.contains("no_std"))
}

/// The variable that asks for the prebuilt PTX.
const FORCE_PREBUILT: &str = "CUDA_BUILDER_PREBUILT";

/// The PTX file that rustc wrote beside a static library. Cargo links the library, under a name with a hash, to the place it
/// reports; versions of the crate that were built with other flags or dependencies are in the same folder.
fn assembly_of(archive: &Path, release: &Path) -> Result<PathBuf, CudaBuilderError> {
    let wanted = fs::read(archive).map_err(|source| CudaBuilderError::Io { path: archive.into(), source })?;
    let mut folders = vec![release.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let stem = path.file_stem().and_then(OsStr::to_str).and_then(|stem| stem.strip_prefix("lib"));
            let (Some(stem), Some("a")) = (stem, path.extension().and_then(OsStr::to_str)) else { continue };
            let asm = path.with_file_name(format!("{stem}.s"));
            if asm.is_file() && fs::read(&path).is_ok_and(|bytes| bytes == wanted) {
                return Ok(asm);
            }
        }
    }
    let reason = format!("rustc left no PTX for {}", archive.display());
    Err(CudaBuilderError::Unavailable(reason))
}

/// The name of cargo's target folder.
const TARGET_DIR: &str = "cuda-builder";

/// `target/cuda-builder`, shared by the host's debug and release builds, since the PTX is the same for both; where
/// cargo's layout is not recognised, a folder below `OUT_DIR`.
fn shared_target_dir(out_dir: &Path) -> PathBuf {
    let build = out_dir.ancestors().find(|path| path.file_name() == Some(OsStr::new("build")));
    let target = build.and_then(Path::parent).and_then(Path::parent);
    target.unwrap_or(out_dir).join(TARGET_DIR)
}

/// Waits until no other build is in this folder, where the next would put another archive into the place of this one's. A file system
/// without locks has no turns.
fn turn(target_dir: &Path) -> Result<File, CudaBuilderError> {
    let path = target_dir.join("lock");
    let file = fs::create_dir_all(target_dir).and_then(|()| File::create(&path));
    let file = file.map_err(|source| CudaBuilderError::Io { path, source })?;
    let _ = file.lock();
    Ok(file)
}

/// A warning of cargo's is one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn read(path: &Path) -> Result<String, CudaBuilderError> {
    fs::read_to_string(path).map_err(|source| CudaBuilderError::Io { path: path.to_path_buf(), source })
}

fn write(path: &Path, text: &str) -> Result<(), CudaBuilderError> {
    if fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes()) {
        return Ok(()); // a new modification time would make cargo rebuild what embeds it
    }
    let parent = path.parent().map_or(Ok(()), fs::create_dir_all);
    parent
        .and_then(|()| fs::write(path, text))
        .map_err(|source| CudaBuilderError::Io { path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_outside_of_build_scripts_stays_in_its_folder() {
        // a build script's files are below `build`, beside which the target folder is
        let folder = Path::new("/somebody's/build/of/project/out");
        let builder = CudaBuilder::new("kernels").out_dir(folder);
        let (ptx, target) = builder.places(Path::new("/elsewhere"), Path::new("/elsewhere/kernels"));
        assert_eq!((ptx.parent(), target), (Some(folder), folder.join(TARGET_DIR)));
        let (ptx, _) = builder.out_dir("out").places(Path::new("/elsewhere"), Path::new("kernels"));
        assert_eq!(ptx.parent(), Some(Path::new("/elsewhere/out")));
    }

    #[test]
    fn each_crate_and_set_of_options_has_a_file_of_its_own() {
        let kernels = Path::new("kernels");
        let builder = CudaBuilder::new(kernels);
        assert_eq!(builder.file_name(kernels), "kernels-sm_61.ptx", "as embedded by its name in OUT_DIR");
        assert_eq!(builder.clone().ftz(true).file_name(kernels), "kernels-sm_61.ptx");
        let builder = builder.out_dir("out");
        let names = [
            builder.file_name(kernels),
            builder.file_name(Path::new("other/kernels")),
            builder.clone().arch(NvvmArch::Compute75).file_name(kernels),
            builder.clone().ptx_isa(6, 0).file_name(kernels),
            builder.clone().features(["f"]).file_name(kernels),
            builder.clone().opt_level(OptLevel::Size).file_name(kernels),
            builder.clone().debug(DebugInfo::LineTables).file_name(kernels),
            builder.clone().fma_contraction(true).file_name(kernels),
            builder.clone().ftz(true).file_name(kernels),
            builder.clone().rustc_args(["a"]).file_name(kernels),
            builder.clone().llvm_args(["a"]).file_name(kernels),
        ];
        for (i, name) in names.iter().enumerate() {
            assert!(name.starts_with("kernels-sm_") && name.ends_with(".ptx"), "{name}");
            assert!(!names[..i].contains(name), "{name} is that of other options too");
        }
        assert_eq!(builder.file_name(kernels), names[0]);
    }
}
