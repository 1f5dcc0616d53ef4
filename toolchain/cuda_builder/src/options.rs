//! How the GPU crate is compiled: features, optimisation, arithmetic, and arguments for the compiler.

use crate::CudaBuilder;

/// How much the compiler optimises, and for what. There is no level 0: without inlining, exchanges between lanes are calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OptLevel {
    /// Level 1: compiled faster.
    O1,
    /// Level 2.
    O2,
    /// Level 3, the default.
    O3,
    /// Level `s`: smaller code.
    Size,
    /// Level `z`: the smallest code, loops are not vectorised.
    MinSize,
}

/// What the PTX says of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DebugInfo {
    /// Nothing.
    None,
    /// The line of each instruction (`.file` and `.loc`), by which profilers show the source. The code stays optimised. The PTX then
    /// holds paths of this machine.
    LineTables,
}

/// The options beyond the crate, its architecture and where the PTX goes.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Options {
    features: Vec<String>,
    opt_level: OptLevel,
    debug: DebugInfo,
    fma_contraction: bool,
    pub ftz: bool,
    rustc_args: Vec<String>,
    llvm_args: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            features: Vec::new(),
            opt_level: OptLevel::O3,
            debug: DebugInfo::None,
            fma_contraction: false,
            ftz: false,
            rustc_args: Vec::new(),
            llvm_args: Vec::new(),
        }
    }
}

impl Options {
    /// Cargo's arguments.
    pub fn cargo_arguments(&self) -> Vec<String> {
        self.features.iter().map(|feature| format!("--features={feature}")).collect()
    }

    /// `opt-level` and `debug` of cargo's profile.
    pub fn profile(&self) -> [(&'static str, &'static str); 2] {
        let level = match self.opt_level {
            OptLevel::O1 => "1",
            OptLevel::O2 => "2",
            OptLevel::O3 => "3",
            OptLevel::Size => "s",
            OptLevel::MinSize => "z",
        };
        let debug = match self.debug {
            DebugInfo::None => "false",
            // with `line-tables-only` LLVM marks the PTX as `debug`, for which ptxas does not optimise
            DebugInfo::LineTables => "line-directives-only",
        };
        [("CARGO_PROFILE_RELEASE_OPT_LEVEL", level), ("CARGO_PROFILE_RELEASE_DEBUG", debug)]
    }

    /// rustc's arguments for all crates, `core` among them, of which each set of arguments has its own.
    pub fn rustc_arguments(&self) -> Vec<String> {
        let llvm = self.llvm_args.iter().map(|argument| format!("-Cllvm-args={argument}"));
        self.rustc_args.iter().cloned().chain(llvm).collect()
    }

    /// Those for the GPU crate alone, with which all machine code is written.
    pub fn crate_arguments(&self) -> Option<&'static str> {
        self.fma_contraction.then_some("-Cllvm-args=-nvptx-fma-level=2")
    }
}

fn strings(texts: impl IntoIterator<Item = impl Into<String>>) -> impl Iterator<Item = String> {
    texts.into_iter().map(Into::into)
}

impl CudaBuilder {
    /// Features of the GPU crate, besides its default ones. Repeated calls add.
    pub fn features(mut self, features: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.options.features.extend(strings(features));
        self
    }

    /// How much is optimised; [`OptLevel::O3`] if not given.
    pub fn opt_level(mut self, level: OptLevel) -> Self {
        self.options.opt_level = level;
        self
    }

    /// What the PTX says of its source; [`DebugInfo::None`] if not given.
    pub fn debug(mut self, debug: DebugInfo) -> Self {
        self.options.debug = debug;
        self
    }

    /// Whether a product and a sum become one `fma`, with one rounding instead of two; `false` if not given, so that a kernel has the
    /// bits of the host's code. (Rust-CUDA's default is `true`.) The driver's compiler may contract more than LLVM.
    /// It changes the functions of `cuda_std::GpuFloat`, too.
    pub fn fma_contraction(mut self, contract: bool) -> Self {
        self.options.fma_contraction = contract;
        self
    }

    /// Whether f32 instructions take subnormal arguments as zeros and return zeros for subnormal results (`.ftz`); `false` if not given.
    /// f64 is not affected. It holds for inline PTX and for the functions of `cuda_std::GpuFloat`, too.
    pub fn ftz(mut self, flush: bool) -> Self {
        self.options.ftz = flush;
        self
    }

    /// Further arguments for rustc, `["--cfg", "name"]` for one, for the GPU crate and all that it depends on, `core` included.
    /// Repeated calls add.
    pub fn rustc_args(mut self, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.options.rustc_args.extend(strings(arguments));
        self
    }

    /// Further arguments for LLVM, `["-nvptx-prec-divf32=1"]` for one: those that `rustc -C llvm-args=--help-list-hidden` lists.
    /// Repeated calls add. What the optimiser must not do, for [convergence](crate#how), is the caller's to know.
    pub fn llvm_args(mut self, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.options.llvm_args.extend(strings(arguments));
        self
    }
}
