//! The state of one block: its shared memory, its warps, its barriers.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::job::Job;
use super::line_costs::InstructionCost;
use super::races::{Races, VectorClock};
use super::regs::{FULL, LANES};
use super::shape::{Count, Facts, Shapes};
use super::warp::Warp;
use crate::counters::Counters;
use crate::finding::{Finding, FindingKind, own};
use crate::memory::CODE_STEP;
use crate::ptx::inst::{Init, Special};

/// The result of a check, boxed because findings are rare and large.
pub(super) type Check<T = ()> = Result<T, Box<Finding>>;

/// A block being run, and reused for the next one.
pub(super) struct Block<'j> {
    pub job: &'j Job<'j>,
    pub counters: Counters,
    /// By instruction, for PTX with lines.
    pub costs: Vec<InstructionCost>,
    pub id: [u32; 3],
    pub linear: u64,
    pub threads: u32,
    pub shared: Vec<u8>,
    /// 1 where shared memory was written.
    pub shared_written: Vec<u8>,
    pub races: Races,
    /// The clocks that releases of this block left, by the generic address.
    pub released: HashMap<u64, VectorClock>,
    /// Warp instructions of this block so far.
    pub steps: u64,
    pub last_allocation: usize,
    shapes: Shapes,
    pub barriers: [Barrier; 16],
    /// Kept between blocks for their buffers.
    pub warps: Vec<Warp>,
    pub printed: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Barrier {
    /// Warps that arrived without waiting (`bar.arrive`).
    pub arrivals: u32,
    pub clock: [u32; 32],
}

impl<'j> Block<'j> {
    pub fn new(job: &'j Job<'j>) -> Self {
        let threads = job.block.iter().product();
        Self {
            job,
            counters: Counters::default(),
            costs: job.no_costs(),
            id: [0; 3],
            linear: 0,
            threads,
            shared: Vec::new(),
            shared_written: Vec::new(),
            races: Races::default(),
            released: HashMap::new(),
            steps: 0,
            last_allocation: 0,
            shapes: Shapes::new(job.instructions),
            barriers: [Barrier::default(); 16],
            warps: Vec::new(),
            printed: Vec::new(),
        }
    }

    /// Appends to the block's printed text, up to the launch's limit.
    pub fn print(&mut self, text: &[u8]) {
        let before = self.job.printed_bytes.fetch_add(text.len(), Ordering::Relaxed);
        if before + text.len() <= self.job.limits.printed {
            self.printed.extend_from_slice(text);
        }
    }

    /// Coordinates of a thread by its number in the block.
    pub fn thread(&self, linear: u32) -> [u32; 3] {
        let [x, y, _] = self.job.block;
        [linear % x, linear / x % y, linear / x / y]
    }

    /// Coordinates of a block by its number.
    pub fn coordinates(&self, linear: u64) -> [u32; 3] {
        let [gx, gy, _] = self.job.grid.map(u64::from);
        [linear % gx, linear / gx % gy, linear / gx / gy].map(|n| n as u32)
    }

    /// The facts of the access of instruction `number`, of `bytes` by each lane of `mask`.
    #[inline(always)]
    pub fn facts(&mut self, number: usize, at: &[u64; LANES], mask: u32, bytes: u32, count: Count) -> Facts {
        let count = if self.job.config.traffic { count } else { Count::Nothing };
        self.shapes.facts(number, at, mask, bytes, count)
    }

    /// Notes that a warp has executed a fence.
    pub fn fence(&self) {
        if let Some(races) = &self.job.global_races {
            races.fence(self.linear);
        }
    }

    pub fn finding(
        &self,
        kind: FindingKind,
        line: u32,
        thread: u32,
        message: impl Into<String>,
    ) -> Box<Finding> {
        Box::new(Finding {
            kind,
            kernel: self.job.kernel.name.clone(),
            line,
            block: self.id,
            thread: self.thread(thread),
            message: message.into(),
            source: self.job.lines.find(line),
        })
    }

    /// The instruction on a line of the PTX, for messages: its place in the source, if that is known.
    pub fn place(&self, line: u32) -> String {
        match own(&self.job.lines.find(line)) {
            Some(place) => place.to_string(),
            None => format!("line {line}"),
        }
    }

    /// Value of a constant row in lane `lane` of warp `warp`.
    #[inline(always)]
    pub fn init_value(&self, init: Init, warp: u32, lane: u32, local_base: i64) -> u64 {
        let job = self.job;
        let special = |s: Special| -> u32 {
            let thread = self.thread(warp * 32 + lane);
            match s {
                Special::Tid(n) => thread[n as usize],
                Special::Ntid(n) => job.block[n as usize],
                Special::Ctaid(n) => self.id[n as usize],
                Special::Nctaid(n) => job.grid[n as usize],
                Special::Laneid => lane,
                Special::Warpid => warp,
                Special::Nwarpid => 64,
                Special::Smid => (self.linear % job.config.card.sms as u64) as u32,
                Special::Nsmid => job.config.card.sms,
                Special::Gridid => job.launch_id as u32,
                Special::LanemaskEq => 1 << lane,
                Special::LanemaskLt => (1 << lane) - 1,
                Special::LanemaskLe => FULL >> (31 - lane),
                Special::LanemaskGe => FULL << lane,
                Special::LanemaskGt => (FULL << lane) << 1,
                Special::DynamicSmem => job.dynamic_shared,
                Special::TotalSmem => job.shared_bytes().next_multiple_of(256),
                Special::Workspace(0) => job.workspace as u32,
                Special::Workspace(_) => (job.workspace >> 32) as u32,
                Special::Zero => 0,
            }
        };
        match init {
            Init::Bits(v) => v,
            Init::Special(s) => special(s) as u64,
            Init::Global(v, n) => job.globals[v as usize].wrapping_add(n as u64),
            Init::Shared(v, n) => (job.shared_arrays.offset(v) as u64).wrapping_add(n as u64),
            Init::Local(n) => (local_base + n) as u64,
            Init::Function(f) => job.code + CODE_STEP * u64::from(f),
        }
    }

    /// Whether an initial value differs between the blocks of a launch.
    pub fn varies(init: Init) -> bool {
        matches!(init, Init::Special(Special::Ctaid(_) | Special::Smid))
    }

    /// Whether an initial value is the same in all lanes.
    pub fn uniform(init: Init) -> bool {
        !matches!(
            init,
            Init::Special(
                Special::Tid(_)
                    | Special::Laneid
                    | Special::LanemaskEq
                    | Special::LanemaskLt
                    | Special::LanemaskLe
                    | Special::LanemaskGe
                    | Special::LanemaskGt
            )
        )
    }
}
