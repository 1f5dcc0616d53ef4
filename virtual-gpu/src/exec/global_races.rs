//! Race detection in global memory: between blocks, and between warps of a block.
//!
//! Only memory that the launch writes is watched. A cell is as large as the kernel's smallest store and remembers the last
//! write and a reader. Within a block, the vector clocks of the race check of shared memory order accesses. Between blocks,
//! an access counts as ordered after an earlier one if that block has executed a fence since and this one has
//! executed one at all: this is what a release and an acquire are on sm_61. Accesses by atomics and volatile ones are never races.
//!
//! Missed, so that nothing is reported wrongly: a store of the value that is there already, and what a reader did before
//! the launch's first write to an allocation.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::races::VectorClock;
use super::sparse::Sparse;
use crate::memory::Allocation;

#[derive(Default)]
struct Cell {
    write: AtomicU64,
    read: AtomicU64,
}

/// Bits of a cell's word from the lowest: PTX line within the kernel, fences, clock, warp, block + 1. 0 is nobody.
const LINE: u32 = 15;
const FENCES: u32 = 7;
const CLOCK: u32 = 11;
const WARP: u32 = 5;
const BLOCK: u32 = 64 - LINE - FENCES - CLOCK - WARP;
/// Readers of several blocks.
const SEVERAL: u64 = (1 << BLOCK) - 1;

/// A warp that accesses global memory.
#[derive(Clone, Copy)]
pub(super) struct Party<'a> {
    pub block: u64,
    pub warp: usize,
    pub clock: &'a VectorClock,
    /// PTX line.
    pub line: u32,
}

/// The other party of a race.
pub(super) struct Conflict {
    pub is_write: bool,
    /// `None`: several blocks.
    pub block: Option<u64>,
    pub warp: usize,
    /// PTX line, if known.
    pub line: Option<u32>,
}

/// An access is aligned, so that its cells are in one part.
type Cells = Sparse<Cell, 2048>;

pub(super) struct GlobalRaces {
    /// By allocation, from its first write on.
    cells: Vec<OnceLock<Cells>>,
    /// Fences that each block has executed, up to the most that a cell holds.
    fences: Box<[AtomicU8]>,
    shift: u32,
    first_line: u32,
}

impl GlobalRaces {
    /// `granule`: bytes of the kernel's smallest store. `None` for more blocks than a cell can tell apart.
    pub fn new(allocations: usize, blocks: u64, granule: u8, first_line: u32) -> Option<Self> {
        if blocks >= SEVERAL - 1 {
            return None;
        }
        let fences = Box::new_zeroed_slice(blocks as usize);
        Some(Self {
            cells: (0..allocations).map(|_| OnceLock::new()).collect(),
            // SAFETY: zero is a value of an atomic number.
            fences: unsafe { fences.assume_init() },
            shift: granule.trailing_zeros(),
            first_line,
        })
    }

    pub fn fence(&self, block: u64) {
        let fences = &self.fences[block as usize];
        let count = fences.load(Ordering::Relaxed);
        fences.store((count + 1).min((1 << FENCES) - 1), Ordering::Relaxed);
    }

    fn fences(&self, block: u64) -> u64 {
        self.fences[block as usize].load(Ordering::Relaxed).into()
    }

    /// For reads of allocation `n`; `None` if the launch has not written to it.
    #[inline(always)]
    pub fn reads<'a>(&'a self, n: usize, a: &Allocation, by: Party<'a>) -> Option<Watched<'a>> {
        let cells = self.cells[n].get()?;
        Some(Watched { races: self, cells, base: self.base(a), now: self.word(by), by })
    }

    /// For writes to allocation `n`.
    #[inline(always)]
    pub fn writes<'a>(&'a self, n: usize, a: &Allocation, by: Party<'a>) -> Watched<'a> {
        let base = self.base(a);
        let cells =
            self.cells[n].get_or_init(|| Cells::new(1 + (((a.base + a.size) >> self.shift) - base) as usize));
        Watched { races: self, cells, base, now: self.word(by), by }
    }

    /// The number of the first cell of an allocation, whose parts are aligned although registered memory may begin anywhere.
    #[inline(always)]
    fn base(&self, a: &Allocation) -> u64 {
        (a.base >> self.shift) / Cells::PART * Cells::PART
    }

    fn word(&self, by: Party<'_>) -> u64 {
        let most = |bits: u32| (1u64 << bits) - 1;
        let line = by.line.checked_sub(self.first_line).map_or(0, |line| u64::from(line) + 1);
        let line = if line > most(LINE) { 0 } else { line };
        let clock = u64::from(by.clock[by.warp]).min(most(CLOCK));
        let word = (by.block + 1) << WARP | by.warp as u64;
        ((word << CLOCK | clock) << FENCES | self.fences(by.block)) << LINE | line
    }

    /// Whether an access that was not ordered before this one left the word in a cell.
    #[inline(always)]
    fn conflict(&self, word: u64, by: Party<'_>, is_write: bool) -> Option<Conflict> {
        let own = (by.block + 1) << WARP | by.warp as u64;
        if word == 0 || word >> (64 - BLOCK - WARP) == own {
            return None;
        }
        self.conflict_with_other(word, by, is_write)
    }

    fn conflict_with_other(&self, word: u64, by: Party<'_>, is_write: bool) -> Option<Conflict> {
        let field = |from: u32, bits: u32| word >> from & ((1 << bits) - 1);
        let block = field(64 - BLOCK, BLOCK);
        if block == 0 {
            return None;
        }
        let warp = field(LINE + FENCES + CLOCK, WARP) as usize;
        let (clock, fences) = (field(LINE + FENCES, CLOCK), field(LINE, FENCES));
        let published = match block {
            SEVERAL => true,
            _ => fences == (1 << FENCES) - 1 || self.fences(block - 1) > fences,
        };
        let ordered = match block == by.block + 1 {
            true => warp == by.warp || clock == (1 << CLOCK) - 1 || clock <= u64::from(by.clock[warp]),
            false => false,
        };
        if ordered || published && self.fences(by.block) > 0 {
            return None;
        }
        let line = field(0, LINE).checked_sub(1).map(|line| line as u32 + self.first_line);
        Some(Conflict { is_write, block: (block != SEVERAL).then(|| block - 1), warp, line })
    }
}

/// The cells of an allocation, and a party that accesses them.
#[derive(Clone, Copy)]
pub(super) struct Watched<'a> {
    races: &'a GlobalRaces,
    cells: &'a Cells,
    /// The number of the first cell.
    base: u64,
    /// What the party leaves in a cell.
    now: u64,
    by: Party<'a>,
}

impl<'a> Watched<'a> {
    #[inline(always)]
    fn range(&self, at: u64, bytes: u32) -> &'a [Cell] {
        let cell = |at: u64| ((at >> self.races.shift) - self.base) as usize;
        self.cells.range(cell(at), cell(at + u64::from(bytes) - 1))
    }

    #[inline(always)]
    pub fn read(&self, at: u64, bytes: u32) -> Option<Conflict> {
        for cell in self.range(at, bytes) {
            let before = cell.read.load(Ordering::Relaxed);
            let block = before >> (64 - BLOCK);
            let is_first = block == 0 || block == self.by.block + 1;
            let word = if is_first { self.now } else { self.now | SEVERAL << (64 - BLOCK) };
            if word != before {
                cell.read.store(word, Ordering::Relaxed);
            }
            let conflict = self.races.conflict(cell.write.load(Ordering::Relaxed), self.by, true);
            if conflict.is_some() {
                return conflict;
            }
        }
        None
    }

    /// `differs`: the bytes there differ from those about to be written.
    #[inline(always)]
    pub fn write(&self, at: u64, bytes: u32, differs: bool) -> Option<Conflict> {
        for cell in self.range(at, bytes) {
            let before = cell.write.load(Ordering::Relaxed);
            cell.write.store(self.now, Ordering::Relaxed);
            if !differs {
                continue;
            }
            let read = cell.read.load(Ordering::Relaxed);
            let conflict = self.races.conflict(before, self.by, true);
            let conflict = conflict.or_else(|| self.races.conflict(read, self.by, false));
            if conflict.is_some() {
                return conflict;
            }
        }
        None
    }
}
