//! Findings: the faults that the checks report.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, OnceLock};

use crate::ptx::SourceLine;

/// The check that a kernel failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// Access outside every live allocation, the block's shared memory, or the thread's local memory.
    OutOfBounds,
    /// Access to an allocation that was freed, or not yet made on this stream.
    UseAfterFree,
    /// Address not a multiple of the access's size.
    Misaligned,
    /// Read of memory that nothing ever wrote.
    Uninitialized,
    /// Two warps touch the same shared memory without a barrier in between, two lanes of a warp without a warp barrier, or two
    /// lanes of one instruction store different values to the same address.
    SharedRace,
    /// Two warps touch the same global memory, and neither a barrier of their block nor fences order them.
    GlobalRace,
    /// A block barrier that not all threads reach, or at which warps wait in different places.
    BarrierDivergence,
    /// A shuffle, vote or warp barrier whose named lanes do not execute it together.
    NotConverged,
    /// A shuffle that reads a lane which does not execute it.
    ShuffleInactive,
    /// A pointer to memory of another device, without peer access to it.
    WrongDevice,
    /// Work that reads what another device writes, or overwrites what it reads, without waiting for it.
    MissingWait,
    /// A handle of no live texture or surface object, of one whose array was destroyed, of a reference to which nothing is bound, or of
    /// one that is not for the instruction.
    WrongObject,
    /// An access outside of a surface by an instruction that traps there.
    SurfaceTrap,
    /// `trap` was executed.
    Trap,
    /// An `assert` of the kernel failed.
    AssertFailed,
    /// A call by a pointer that is null, or to no function of these parameters.
    WrongCall,
    /// Calls by pointer deeper than a thread's local memory.
    StackOverflow,
    /// More instructions than the configured limit: an endless loop.
    Timeout,
    /// The launch exceeds a limit of sm_61 or of the kernel.
    InvalidLaunch,
    /// The launch asks for more threads than the kernel's `.maxntid` allows.
    TooManyThreads,
}

impl FindingKind {
    /// The `CUresult` that hardware would give.
    pub fn code(self) -> u32 {
        match self {
            Self::OutOfBounds | Self::UseAfterFree | Self::WrongDevice => 700,
            Self::Misaligned => 716,
            Self::Timeout => 702,
            Self::AssertFailed => 710,
            Self::StackOverflow => 714,
            Self::WrongCall => 718,
            Self::InvalidLaunch => 1,
            Self::TooManyThreads => 701,
            _ => 719,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::OutOfBounds => "access out of bounds",
            Self::UseAfterFree => "use after free",
            Self::Misaligned => "misaligned access",
            Self::Uninitialized => "read of memory never written",
            Self::SharedRace => "shared-memory race",
            Self::GlobalRace => "global-memory race",
            Self::BarrierDivergence => "barrier not reached by all",
            Self::NotConverged => "lanes not converged",
            Self::ShuffleInactive => "shuffle from an inactive lane",
            Self::WrongDevice => "memory of another device",
            Self::MissingWait => "missing wait between devices",
            Self::WrongObject => "wrong texture or surface",
            Self::SurfaceTrap => "access outside of a surface",
            Self::Trap => "trap",
            Self::AssertFailed => "assertion failed",
            Self::WrongCall => "wrong call by pointer",
            Self::StackOverflow => "calls too deep",
            Self::Timeout => "time-out",
            Self::InvalidLaunch => "invalid launch",
            Self::TooManyThreads => "too many threads for the kernel",
        }
    }
}

/// A fault of a kernel, with everything needed to find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: FindingKind,
    pub kernel: String,
    /// Line of the PTX text; 0 for a launch that never began.
    pub line: u32,
    pub block: [u32; 3],
    pub thread: [u32; 3],
    pub message: String,
    /// The places in the kernel's source: that of the instruction, where its function was inlined, and the calls that lead to
    /// it, from the inside out. Empty for PTX without `.loc`.
    pub source: Vec<SourceLine>,
}

impl Finding {
    /// Of no instruction.
    pub(crate) fn new(kind: FindingKind, kernel: impl Into<String>, message: String) -> Self {
        let kernel = kernel.into();
        Self { kind, kernel, line: 0, block: [0; 3], thread: [0; 3], message, source: Vec::new() }
    }

    /// The innermost place that the kernel's author wrote: outside of the standard library and `cuda_std`, if there is one.
    pub fn place(&self) -> Option<&SourceLine> {
        own(&self.source)
    }
}

/// The innermost place outside of the libraries, or the innermost of all.
pub(crate) fn own(source: &[SourceLine]) -> Option<&SourceLine> {
    source.iter().find(|place| !place.is_library()).or(source.first())
}

/// The error of a failed launch.
pub type Fault = Finding;

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} in kernel `{}`", self.kind.text(), self.message, self.kernel)?;
        let place = self.place();
        if let Some(place) = place {
            write!(f, " at {place}")?;
        }
        if self.line > 0 {
            let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
            write!(f, ", PTX line {}, block ({bx},{by},{bz}), thread ({tx},{ty},{tz})", self.line)?;
        }
        if let Some(text) = place.and_then(SourceLine::text) {
            write!(f, "\n    {text}")?;
        }
        let callers = self.source.iter().skip_while(|other| Some(*other) != place).skip(1);
        for caller in callers.filter(|caller| !caller.is_library()) {
            write!(f, "\n  called at {caller}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Finding {}

static FINDINGS: Mutex<Vec<Finding>> = Mutex::new(Vec::new());

/// Prints a line for users. If stderr can't be written, the line is lost; `eprintln!` would panic.
pub(crate) fn say(what: &impl fmt::Display) {
    let _ = writeln!(io::stderr(), "virtual GPU: {what}");
}

static OBSERVER: OnceLock<fn(&Finding)> = OnceLock::new();

/// From now on calls `observer` for each finding as it is made; a second observer is ignored. It must not call the driver API.
pub fn on_finding(observer: fn(&Finding)) {
    let _ = OBSERVER.set(observer);
}

/// Prints a finding and keeps it for [`take_findings`].
pub(crate) fn report(finding: Finding) {
    say(&finding);
    OBSERVER.get().iter().for_each(|observer| observer(&finding));
    FINDINGS.lock().unwrap_or_else(|e| e.into_inner()).push(finding);
}

/// Takes all findings that launches through the driver API have made in this process so far.
pub fn take_findings() -> Vec<Finding> {
    std::mem::take(&mut FINDINGS.lock().unwrap_or_else(|e| e.into_inner()))
}
