//! Lanes that are scheduled on their own, as from Volta on.
//!
//! The lanes of a warp are in one path or in several, each with a call stack and a reconvergence stack. Lanes that wait for others at an
//! instruction that names lanes become a path. So do diverged lanes that have run for [`SLICE`] instructions: the others run on too, in
//! turn, so that a lane which spins never keeps one from running that it waits for. Paths join again at such instructions.

use super::block::{Block, Check};
use super::regs::{FULL, lanes};
use super::warp::{Entry, Frame, Meeting, Path, Place, Stop, Warp};
use crate::finding::{Finding, FindingKind};
use crate::ptx::inst::*;

/// Instructions that a path runs before another one's turn.
const SLICE: u32 = 1 << 12;

/// What [`Warp::meet`] found.
pub(super) enum Met {
    /// All lanes that execute the instruction do it together.
    All,
    /// These groups of lanes, one after the other; maybe none.
    Groups(Vec<u32>),
}

/// Whether lanes wait for each other at an instruction.
#[inline(always)]
pub(super) fn meets(op: Op) -> bool {
    match op {
        Op::Shfl { sync, .. } | Op::Vote { sync, .. } => sync,
        _ => matches!(op, Op::Match { .. } | Op::WarpSync | Op::Bar { .. } | Op::Mma(_) | Op::LoadMatrix(_)),
    }
}

/// The row of the lanes that an instruction names; `None`: all.
fn named_row(inst: &Inst) -> Option<Row> {
    matches!(inst.op, Op::Shfl { .. } | Op::Vote { .. } | Op::Match { .. } | Op::WarpSync)
        .then_some(inst.imm as Row)
}

impl Warp {
    /// Runs until the warp ends, waits, or has used up its quantum.
    pub(super) fn run_paths(&mut self, b: &mut Block<'_>, quantum: u32) -> Check<Stop> {
        let mut left = quantum;
        loop {
            let slice = left.min(SLICE);
            match self.run_instructions(b, slice)? {
                Stop::Barrier => return Ok(Stop::Barrier),
                Stop::Done if self.parked.is_empty() => return Ok(Stop::Done),
                Stop::Done if !self.take_next(b) => return Err(self.stuck(b)),
                Stop::Done => left = left.saturating_sub(1),
                Stop::Quantum => {
                    self.take_turns(b);
                    left -= slice;
                }
            }
            if left == 0 {
                return Ok(Stop::Quantum);
            }
        }
    }

    /// Lanes of `mask` have come to an instruction at which they wait for those that they name. Those that still have to wait leave
    /// the running path.
    #[inline(never)]
    pub(super) fn meet(&mut self, b: &Block<'_>, pc: u32, inst: &Inst, mask: u32) -> Check<Met> {
        let row = named_row(inst);
        let named = |w: &Self, lane: usize| row.map_or(FULL, |row| w.regs.row32(row)[lane]);
        if self.parked.is_empty() && lanes(mask).all(|lane| named(self, lane) & self.live == mask) {
            return Ok(Met::All);
        }
        let Some(function) = self.frames.last().map(|frame| frame.function) else { return Ok(Met::All) };
        let place = Place { function, pc, bases: [self.regs.base32, self.regs.base64, self.regs.base_pred] };
        let (mut rest, mut groups) = (mask, Vec::new());
        while rest != 0 {
            let first = rest.trailing_zeros() as usize;
            let names = named(self, first);
            let here = lanes(rest).filter(|&lane| named(self, lane) == names).fold(0, |all, l| all | 1 << l);
            rest &= !here;
            if let Some(lane) = lanes(here & !names).next() {
                let message = format!("the mask 0x{names:08x} does not name the executing lane {lane}");
                let thread = self.id * 32 + lane as u32;
                return Err(b.finding(FindingKind::NotConverged, inst.line, thread, message));
            }
            let meeting = Meeting { place, named: names, lanes: here };
            let group = here | self.waiting_lanes(&meeting);
            if names & self.live & !group == 0 {
                for path in self.parked.iter_mut().filter(|path| is_at(path, &meeting)) {
                    path.waits = None;
                    if let Some(top) = path.stack.last_mut() {
                        top.pc = pc + 1;
                    }
                }
                groups.push(group);
            } else {
                if let Some(top) = self.stack.last_mut() {
                    top.pc = pc;
                }
                let path = self.split(here);
                self.parked.push_back(Path { waits: Some(meeting), ..path });
            }
        }
        Ok(Met::Groups(groups))
    }

    /// Lanes of parked paths that wait at a meeting.
    fn waiting_lanes(&self, meeting: &Meeting) -> u32 {
        let there = self.parked.iter().filter(|path| is_at(path, meeting));
        there.filter_map(|path| path.waits).fold(0, |all, waits| all | waits.lanes)
    }

    /// Takes lanes out of the running path: they have the same place in one of their own.
    fn split(&mut self, mask: u32) -> Path {
        let (mut frames, mut stack) = (self.frames.clone(), self.stack.clone());
        frames.iter_mut().for_each(|frame| frame.mask &= mask);
        stack.iter_mut().for_each(|entry| entry.mask &= mask);
        prune(&mut frames, &mut stack);
        self.frames.iter_mut().for_each(|frame| frame.mask &= !mask);
        self.remove(mask, 0);
        Path { frames, stack, waits: None }
    }

    /// Joins parked paths that are at the running one's place.
    pub(super) fn join(&mut self, b: &Block<'_>) {
        if self.parked.is_empty() {
            return;
        }
        self.frames.iter_mut().for_each(|frame| frame.mask &= self.live);
        prune(&mut self.frames, &mut self.stack);
        self.set_bases(b);
        let mut n = 0;
        while n < self.parked.len() {
            let path = &self.parked[n];
            if path.waits.is_some() || !same_place((&path.frames, &path.stack), (&self.frames, &self.stack)) {
                n += 1;
                continue;
            }
            let Some(path) = self.parked.remove(n) else { break };
            self.frames.iter_mut().zip(path.frames).for_each(|(to, from)| to.mask |= from.mask);
            self.stack.iter_mut().zip(path.stack).for_each(|(to, from)| to.mask |= from.mask);
        }
    }

    /// The registers of the running path's frame.
    fn set_bases(&mut self, b: &Block<'_>) {
        let callers = &self.frames[..self.frames.len().saturating_sub(1)];
        let functions = callers.iter().map(|frame| &b.job.functions[frame.function as usize]);
        let (mut base32, mut base64, mut base_pred) = (0, 0, 0);
        for f in functions {
            base32 += f.rows32 as usize;
            base64 += f.rows64 as usize;
            base_pred += f.preds as usize;
        }
        (self.regs.base32, self.regs.base64, self.regs.base_pred) = (base32, base64, base_pred);
    }

    /// After a slice: lets other lanes run.
    fn take_turns(&mut self, b: &Block<'_>) {
        self.join(b);
        let Some(&Entry { mask: running, .. }) = self.stack.last() else { return };
        if self.stack.iter().any(|entry| entry.mask & !running != 0) {
            let path = self.split(running);
            self.parked.push_back(path);
            self.join(b);
        } else if self.parked.iter().any(|path| self.is_ready(path)) {
            let (frames, stack) = (std::mem::take(&mut self.frames), std::mem::take(&mut self.stack));
            self.parked.push_back(Path { frames, stack, waits: None });
            self.take_next(b);
        }
    }

    fn is_ready(&self, path: &Path) -> bool {
        path.waits.is_none_or(|meeting| meeting.named & self.live & !self.waiting_lanes(&meeting) == 0)
    }

    /// Runs the parked path that can run and waits longest, instead of the running one. False if none can.
    fn take_next(&mut self, b: &Block<'_>) -> bool {
        let ready = self.parked.iter().position(|path| self.is_ready(path));
        let Some(path) = ready.and_then(|n| self.parked.remove(n)) else { return false };
        // one whose last missing lane has exited comes to its instruction once more
        (self.frames, self.stack) = (path.frames, path.stack);
        self.set_bases(b);
        true
    }

    /// All paths wait for lanes that wait elsewhere.
    fn stuck(&self, b: &Block<'_>) -> Box<Finding> {
        let Some(meeting) = self.parked.iter().find_map(|path| path.waits) else {
            return b.finding(FindingKind::NotConverged, 0, self.first_thread(), "no lane can go on");
        };
        let here = self.waiting_lanes(&meeting);
        let (missing, thread) = (meeting.named & self.live & !here, self.id * 32 + here.trailing_zeros());
        let inst = &b.job.functions[meeting.place.function as usize].code[meeting.place.pc as usize];
        if matches!(inst.op, Op::Bar { .. }) {
            let [x, y, z] = b.thread(self.id * 32 + missing.trailing_zeros());
            let message = format!("thread ({x},{y},{z}) of the same warp is not at this barrier");
            return b.finding(FindingKind::BarrierDivergence, inst.line, thread, message);
        }
        let message = format!(
            "the mask 0x{:08x} names lane {}, which waits elsewhere: the lanes 0x{here:08x} wait here",
            meeting.named,
            missing.trailing_zeros()
        );
        b.finding(FindingKind::NotConverged, inst.line, thread, message)
    }
}

fn is_at(path: &Path, meeting: &Meeting) -> bool {
    path.waits.is_some_and(|waits| waits.place == meeting.place && waits.named == meeting.named)
}

/// Removes entries without lanes, and frames in which no lane is any more.
fn prune(frames: &mut Vec<Frame>, stack: &mut Vec<Entry>) {
    while frames.len() > 1 && frames.last().is_some_and(|frame| frame.mask == 0) {
        if let Some(frame) = frames.pop() {
            stack.truncate(frame.floor);
        }
    }
    for frame in frames.iter_mut() {
        frame.floor = stack[..frame.floor.min(stack.len())].iter().filter(|entry| entry.mask != 0).count();
    }
    stack.retain(|entry| entry.mask != 0);
}

fn same_place(a: (&[Frame], &[Entry]), b: (&[Frame], &[Entry])) -> bool {
    let frame = |f: &Frame| (f.function, f.floor, f.local_base);
    let entry = |e: &Entry| (e.pc, e.rpc);
    a.0.iter().map(frame).eq(b.0.iter().map(frame)) && a.1.iter().map(entry).eq(b.1.iter().map(entry))
}
