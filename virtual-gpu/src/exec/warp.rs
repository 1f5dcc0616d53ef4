//! The state of one warp: its registers, its local memory, its reconvergence stack.

use std::collections::VecDeque;

use super::races::VectorClock;
use super::regs::{LANES, Regs};
use crate::memory::POISON;
use crate::ptx::inst::{BarRed, Row};

/// A warp at a block barrier.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub barrier: usize,
    /// `None`: all threads of the block.
    pub threads: Option<u32>,
    pub red: BarRed,
    pub arrive: bool,
    pub predicate: u32,
    pub mask: u32,
    pub dst: Row,
    pub line: u32,
}

/// Why a warp stopped running.
pub(super) enum Stop {
    Barrier,
    Quantum,
    Done,
}

/// Lanes that run together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub pc: u32,
    /// Reconvergence PC: where they rejoin the lanes of the entry below.
    pub rpc: u32,
    pub mask: u32,
}

/// A function being executed.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub function: u32,
    /// Stack entries from here up belong to this frame.
    pub floor: usize,
    pub local_base: u32,
    pub mask: u32,
}

/// Lanes with a call stack and a reconvergence stack of their own.
#[derive(Clone)]
pub(super) struct Path {
    pub frames: Vec<Frame>,
    pub stack: Vec<Entry>,
    pub waits: Option<Meeting>,
}

/// Lanes of a path that wait for others at an instruction.
#[derive(Clone, Copy)]
pub(super) struct Meeting {
    pub place: Place,
    /// The lanes that have to come, if they have not exited.
    pub named: u32,
    pub lanes: u32,
}

/// An instruction, and the frame of registers that it has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub function: u32,
    pub pc: u32,
    pub bases: [usize; 3],
}

#[derive(Default)]
pub(super) struct Warp {
    pub id: u32,
    /// Lanes that the block has.
    pub exist: u32,
    /// Lanes that have not exited.
    pub live: u32,
    pub regs: Regs,
    /// Whether it has run the kernel for an earlier block.
    pub entered: bool,
    pub waiting: Option<Wait>,
    pub clock: VectorClock,
    /// At most the clock of each other warp of the block.
    pub floor: u32,
    /// Instructions executed, for the race check.
    pub step: u32,
    /// Warp barriers and fences passed, for the race check.
    pub sync: u32,
    /// Local memory: `local_bytes` per lane, lane after lane.
    pub local: Vec<u8>,
    pub local_written: Vec<u8>,
    pub local_bytes: usize,
    pub frames: Vec<Frame>,
    pub stack: Vec<Entry>,
    /// The paths of lanes that are not running now, from Volta on.
    pub parked: VecDeque<Path>,
    /// The clock at the last fence, and what strong reads since then saw released: see `order`.
    pub fenced: VectorClock,
    pub seen: VectorClock,
}

impl Warp {
    pub fn reset(&mut self, id: u32, exist: u32, local_bytes: usize, track: bool) {
        self.id = id;
        self.exist = exist;
        self.live = exist;
        self.waiting = None;
        self.clock = [0; 32];
        self.clock[id as usize] = 1;
        self.floor = 0;
        self.step = 0;
        self.sync = 0;
        self.local_bytes = local_bytes;
        self.local.clear();
        self.local.resize(local_bytes * LANES, POISON);
        self.local_written.clear();
        if track {
            self.local_written.resize(local_bytes * LANES, 0);
        }
        self.regs.unwritten.clear();
        self.frames.clear();
        self.stack.clear();
        self.parked.clear();
        (self.fenced, self.seen) = ([0; 32], [0; 32]);
        (self.regs.base32, self.regs.base64, self.regs.base_pred) = (0, 0, 0);
    }

    /// Takes over the clock of a barrier of a block of `warps` warps.
    pub fn pass(&mut self, clock: &VectorClock, warps: usize) {
        let own = self.id as usize;
        self.clock = *clock;
        self.clock[own] += 1;
        let others = clock[..warps].iter().enumerate().filter(|&(warp, _)| warp != own);
        self.floor = others.map(|(_, &clock)| clock).min().unwrap_or(0);
    }

    pub fn done(&self) -> bool {
        self.live == 0
    }

    pub fn first_thread(&self) -> u32 {
        self.id * 32 + if self.live != 0 { self.live.trailing_zeros() } else { 0 }
    }

    /// Index in `local` of a lane's copy of the running function's variable.
    pub fn local_place(&self, offset: u32, lane: usize) -> usize {
        let base = self.frames.last().map_or(0, |frame| frame.local_base);
        lane * self.local_bytes + (base + offset) as usize
    }

    #[inline]
    pub fn copy_local(&mut self, from: usize, to: usize, bytes: usize) {
        self.local.copy_within(from..from + bytes, to);
        if !self.local_written.is_empty() {
            self.local_written.copy_within(from..from + bytes, to);
        }
    }

    /// Removes lanes from the stack's entries from `floor` up.
    #[inline]
    pub fn remove(&mut self, mask: u32, floor: usize) {
        for e in &mut self.stack[floor..] {
            e.mask &= !mask;
        }
    }
}
