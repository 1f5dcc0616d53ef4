//! A running launch, as its blocks and warps see it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::alu::Fast;
use super::global_races::GlobalRaces;
use super::line_costs::InstructionCost;
use super::remote_reads::RemoteReads;
use super::shared_arrays::SharedArrays;
use super::sparse::Sparse;
use crate::config::Config;
use crate::finding::Finding;
use crate::memory::{Memory, Snapshot};
use crate::ptx::inst::{Function, MAX_LOCAL};
use crate::ptx::{Kernel, Lines};
use crate::texture::Objects;

/// What the threads of a launch may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchLimits {
    /// Bytes of a thread's stack where calls are by pointer or recursive. A kernel has what its other calls need, if that is more.
    pub stack: u32,
    /// Bytes of text that the launch may print.
    pub printed: usize,
}

impl LaunchLimits {
    /// As much stack as a thread has local memory, and the default size of CUDA's buffer for text.
    pub const DEFAULT: Self = Self { stack: MAX_LOCAL, printed: 1 << 20 };
}

/// A running launch: the state that all its blocks share.
pub(super) struct Job<'a> {
    pub functions: &'a [Function],
    /// The number of each function's first instruction: all are numbered one after the other.
    pub starts: Vec<usize>,
    /// How many there are.
    pub instructions: usize,
    pub kernel: &'a Kernel,
    pub lines: &'a Lines,
    /// Whether the PTX has lines.
    pub has_lines: bool,
    pub memory: &'a Memory,
    pub snapshot: Snapshot,
    pub config: &'a Config,
    pub fast: Fast,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    pub params: &'a [u8],
    pub globals: &'a [u64],
    /// Address of the module's first function.
    pub code: u64,
    pub shared_arrays: SharedArrays,
    /// `None` without the check.
    pub global_races: Option<GlobalRaces>,
    pub launch_id: u64,
    pub writer: u8,
    pub unordered: Option<Box<[bool; 256]>>,
    pub remote: Option<Arc<RemoteReads>>,
    pub cooperative: bool,
    pub objects: Objects,
    pub limits: LaunchLimits,
    /// Lanes of a warp are scheduled on their own.
    pub independent: bool,
    /// What releases and acquires order is tracked.
    pub orders: bool,
    /// The address of a cooperative launch's workspace, 0 for other launches.
    pub workspace: u64,
    pub next: AtomicU64,
    pub stop: AtomicBool,
    /// Thread instructions of all blocks so remote, and what their starts cost.
    pub spent: AtomicU64,
    /// Per allocation one bit for each 32-byte sector touched; allocated at the first access.
    pub touched: Vec<OnceLock<Sparse<AtomicU64, 128>>>,
    /// The fault of the lowest block that had one.
    pub fault: Mutex<Option<(u64, Finding)>>,
    /// Each block's printed text.
    pub printed: Mutex<Vec<(u64, Vec<u8>)>>,
    /// Bytes printed, those beyond the limit included.
    pub printed_bytes: AtomicUsize,
}

impl Job<'_> {
    /// Bytes of shared memory of one block.
    pub fn shared_bytes(&self) -> u32 {
        self.kernel.dynamic_start + self.dynamic_shared
    }

    /// Adds what a block costs. An error if the launch exceeds its limit.
    pub fn spend(&self, cost: u64) -> Result<(), String> {
        let (before, limit) = (self.spent.fetch_add(cost, Ordering::Relaxed), self.config.launch_limit);
        match before.saturating_add(cost) > limit {
            true => Err(format!("the launch costs more than {limit} thread instructions")),
            false => Ok(()),
        }
    }

    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| n as u64).product()
    }

    /// Notes that sectors of allocation `n` are touched: that of the address, and those after it for which `bits` has ones. How many
    /// of them are touched the first time.
    pub fn touch(&self, n: usize, address: u64, bits: u64) -> u64 {
        let a = &self.snapshot.live[n];
        let sector = (address >> 5) - (a.base >> 5);
        let touched = self.touched[n].get_or_init(|| {
            let words = (a.size / 32 + 2).div_ceil(64) as usize;
            Sparse::new(words)
        });
        let (word, shift) = ((sector / 64) as usize, sector % 64);
        let mut new = 0;
        for (word, bits) in [(word, bits << shift), (word + 1, bits >> 1 >> (63 - shift))] {
            if bits == 0 {
                continue;
            }
            let Some(word) = touched.get(word) else { continue };
            if word.load(Ordering::Relaxed) & bits != bits {
                new += (!word.fetch_or(bits, Ordering::Relaxed) & bits).count_ones();
            }
        }
        new.into()
    }

    /// For each instruction of the module; none for PTX without lines.
    pub fn no_costs(&self) -> Vec<InstructionCost> {
        vec![InstructionCost::default(); if self.has_lines { self.instructions } else { 0 }]
    }
}
