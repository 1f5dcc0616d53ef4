//! PTX text → [`Module`]: kernels decoded for execution, with the facts that a launch needs.
//!
//! Source of all syntax and semantics: NVIDIA's "Parallel Thread Execution ISA" document, version 6.4 and,
//! where it is clearer, later editions of the same sections.

mod body;
pub(crate) mod carriers;
mod decode;
mod flow;
pub(crate) mod inst;
mod lexer;
mod lines;
mod link;
pub(crate) mod matrix;
mod operand;
mod parser;
mod pointers;
mod recursion;
mod registers;
pub(crate) mod texture;
pub(crate) mod video;
mod words;

use std::fmt;

use crate::arch::Arch;

pub(crate) use lines::Lines;
pub use lines::SourceLine;

/// Why a text is not PTX that the device can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxError {
    /// 1-based line of the text.
    pub line: u32,
    pub reason: String,
}

impl PtxError {
    pub(crate) fn new(line: u32, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for PtxError {}

/// A parsed and decoded PTX file.
#[derive(Debug)]
pub struct Module {
    pub(crate) functions: Vec<inst::Function>,
    pub(crate) variables: Vec<Variable>,
    kernels: Vec<Kernel>,
    version: (u32, u32),
    /// The architecture whose instructions it may use.
    pub(crate) arch: Arch,
    pub(crate) lines: Lines,
}

/// An `.entry` of a module.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    pub name: String,
    /// Line of its `.entry`.
    pub line: u32,
    pub params: Vec<Param>,
    /// Bytes of the parameter block.
    pub param_bytes: u32,
    /// `.maxntid`, each dimension at least 1.
    pub max_ntid: Option<[u32; 3]>,
    /// `.reqntid`.
    pub req_ntid: Option<[u32; 3]>,
    /// `.minnctapersm`.
    pub min_blocks_per_sm: Option<u32>,
    /// `.maxnreg`.
    pub max_registers: Option<u32>,
    /// Statically declared shared memory, that of called functions included.
    pub shared_bytes: u32,
    /// Local memory of one thread, that of called functions included.
    pub local_bytes: u32,
    /// Constant memory of the module, in bytes.
    pub const_bytes: u32,
    /// Uses `.extern .shared` memory, whose size the launch gives.
    pub dynamic_shared: bool,
    pub(crate) function: usize,
    /// The functions that it may run, itself first.
    pub(crate) reached: Vec<u32>,
    /// Where each shared variable lies: (variable, offset).
    pub(crate) shared_layout: Vec<(u32, u32)>,
    /// Where dynamic shared memory begins.
    pub(crate) dynamic_start: u32,
    /// Smallest shared access in bytes, the unit in which races are tracked.
    pub(crate) granule: u8,
    /// Smallest store to global memory in bytes, the unit in which races are tracked there.
    pub(crate) store_granule: u8,
    /// Whether it or a function that it may run calls `vprintf`.
    pub(crate) prints: bool,
}

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    pub name: String,
    pub bytes: u32,
    pub align: u32,
    /// Its offset in the parameter block.
    pub offset: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VarSpace {
    Global,
    Const,
    Shared,
    /// `.global .texref`: its address stands for what is bound to it.
    Texture,
    /// `.global .surfref`
    Surface,
}

/// A pointer in an initialiser.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pointer {
    /// A variable and an addend.
    Variable(u32, i64),
    Function(u32),
}

/// A module-level variable, or a shared variable of any scope.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub name: String,
    pub space: VarSpace,
    pub bytes: u64,
    pub align: u64,
    /// Empty: zeroes.
    pub init: Vec<u8>,
    /// Pointers in the initialiser, each where it lies.
    pub relocs: Vec<(usize, Pointer)>,
    /// `.extern .shared x[]`: the launch gives its size.
    pub dynamic: bool,
}

impl Module {
    /// Reads PTX of ISA versions up to 8.x, as long as target and instructions are those of sm_61.
    ///
    /// Anything not understood is an error, never skipped.
    pub fn parse(text: &str) -> Result<Self, PtxError> {
        Self::parse_for(text, Arch::Sm61)
    }

    /// Reads PTX whose target a device of this architecture can run. Its instructions are those that its own target has.
    pub fn parse_for(text: &str, device: Arch) -> Result<Self, PtxError> {
        parser::parse(text, device)
    }

    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|k| k.name == name)
    }

    /// Whether the file holds lines of its source (`.file` and `.loc`).
    pub fn has_lines(&self) -> bool {
        !self.lines.is_empty()
    }

    /// The places in the source of the instruction on a line of the PTX, from the inside out: first its own, then where its
    /// function was inlined. None where they are not known.
    pub fn source(&self, ptx_line: u32) -> Vec<SourceLine> {
        self.lines.find(ptx_line)
    }

    /// The ISA version the file declares.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }
}
