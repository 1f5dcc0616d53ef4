//! Runs a block: the order of its warps, and its barriers.

use std::sync::atomic::Ordering;

use super::block::{Barrier, Block, Check};
use super::regs::FULL;
use super::warp::{Stop, Wait, Warp};
use crate::config::Config;
use crate::finding::{Finding, FindingKind};
use crate::memory::POISON;
use crate::ptx::inst::BarRed;

/// Instructions that one warp runs before the next is scheduled, so that a warp may spin until another has run.
const QUANTUM: u32 = 1 << 16;
/// The same in a cooperative launch, whose blocks wait for each other and yield to each other.
const COOPERATIVE_QUANTUM: u32 = 1 << 10;

impl Block<'_> {
    pub fn run(&mut self, linear: u64) -> Check {
        self.linear = linear;
        self.id = self.coordinates(linear);
        self.steps = 0;
        self.spend(Config::BLOCK_COST)?;
        let shared = self.job.shared_arrays.bytes;
        let checks = self.job.config.checks;
        self.shared.clear();
        self.shared.resize(shared, if checks.uninitialized { POISON } else { 0 });
        if checks.uninitialized {
            self.shared_written.clear();
            self.shared_written.resize(shared, 0);
        }
        if checks.races {
            let independent = self.job.independent;
            let lockstep = self.job.config.lockstep && !independent;
            self.races.reset(shared, self.job.kernel.granule, lockstep, independent);
            self.released.clear();
        }
        self.barriers = [Barrier::default(); 16];
        let count = self.threads.div_ceil(32);
        let mut warps = std::mem::take(&mut self.warps);
        warps.resize_with(count as usize, Warp::default);
        for (w, warp) in (0..count).zip(&mut warps) {
            let lanes = (self.threads - 32 * w).min(32);
            let mask = if lanes == 32 { FULL } else { (1 << lanes) - 1 };
            warp.reset(w, mask, self.job.kernel.local_bytes as usize, checks.uninitialized);
            warp.enter(self, self.job.kernel.function as u32, mask);
        }
        let result = self.schedule(&mut warps);
        self.warps = warps;
        if !self.printed.is_empty() {
            let text = (linear, std::mem::take(&mut self.printed));
            self.job.printed.lock().unwrap_or_else(|e| e.into_inner()).push(text);
        }
        result?;
        self.spend(self.steps * 32)
    }

    fn spend(&self, cost: u64) -> Check {
        let line = self.job.kernel.line;
        self.job.spend(cost).map_err(|message| self.finding(FindingKind::Timeout, line, 0, message))
    }

    fn schedule(&mut self, warps: &mut [Warp]) -> Check {
        // The first warp is seeded, so that a result that depends on the order of warps varies with the seed.
        let n = warps.len();
        let start = (self.job.config.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(self.linear) >> 7)
            as usize;
        let quantum = if self.job.cooperative { COOPERATIVE_QUANTUM } else { QUANTUM };
        loop {
            let mut ran = false;
            for k in 0..n {
                let w = &mut warps[(start + k) % n];
                if w.done() || w.waiting.is_some() {
                    continue;
                }
                ran = true;
                match w.run(self, quantum)? {
                    Stop::Barrier => {
                        if let Some(wait) = w.waiting
                            && wait.arrive
                        {
                            self.arrive(w, wait);
                        }
                    }
                    Stop::Quantum if self.job.cooperative => std::thread::yield_now(),
                    Stop::Quantum | Stop::Done => {}
                }
                if self.steps * 32 > self.job.config.instruction_limit {
                    let limit = self.job.config.instruction_limit;
                    let w = &warps[(start + k) % n];
                    let line = if w.done() { self.job.kernel.line } else { w.line(self) };
                    let message = format!("the block has executed {limit} thread instructions");
                    return Err(self.finding(FindingKind::Timeout, line, w.first_thread(), message));
                }
            }
            if self.job.stop.load(Ordering::Relaxed) {
                // Another block faulted: the launch has failed, and this block might wait for that one for ever.
                return Ok(());
            }
            let released = self.release(warps)?;
            if warps.iter().all(|w| w.done()) {
                return Ok(());
            }
            if !ran && !released {
                return Err(self.deadlock(warps));
            }
        }
    }

    fn arrive(&mut self, w: &mut Warp, wait: Wait) {
        let b = &mut self.barriers[wait.barrier];
        b.arrivals |= 1 << w.id;
        for (c, o) in b.clock.iter_mut().zip(&w.clock) {
            *c = (*c).max(*o);
        }
        w.clock[w.id as usize] += 1;
        w.waiting = None;
    }

    /// Releases the barriers at which all threads have arrived.
    fn release(&mut self, warps: &mut [Warp]) -> Check<bool> {
        let mut released = false;
        for id in 0..self.barriers.len() {
            let here = |w: &Warp| w.waiting.is_some_and(|x| x.barrier == id);
            let Some(first) = warps.iter().find(|w| here(w)) else { continue };
            let Some(wait) = first.waiting else { continue };
            let mut came = self.barriers[id].arrivals;
            for w in warps.iter().filter(|w| here(w)) {
                came |= 1 << w.id;
                if w.waiting.is_some_and(|x| x.threads != wait.threads) {
                    let message = format!("warps wait at barrier {id} for different numbers of threads");
                    return Err(self.finding(
                        FindingKind::BarrierDivergence,
                        wait.line,
                        first.first_thread(),
                        message,
                    ));
                }
            }
            let elsewhere =
                warps.iter().find(|w| w.waiting.is_some_and(|x| x.barrier == id && x.line != wait.line));
            if self.job.config.checks.convergence
                && wait.threads.is_none()
                && let Some((other, line)) = elsewhere.and_then(|w| Some((w, w.waiting?.line)))
            {
                let message = format!(
                    "warp {} waits at barrier {id}, warp {} at another one, at {}",
                    first.id,
                    other.id,
                    self.place(line)
                );
                return Err(self.finding(
                    FindingKind::BarrierDivergence,
                    wait.line,
                    first.first_thread(),
                    message,
                ));
            }
            match wait.threads {
                Some(n) if came.count_ones() * 32 < n => continue,
                None => {
                    let alive = warps.iter().filter(|w| !w.done()).fold(0, |m, w| m | 1u32 << w.id);
                    if came & alive != alive {
                        continue;
                    }
                    // Hardware lets the others pass once a warp has ended; PTX does not promise it, unless the warp
                    // has arrived before.
                    let arrived = self.barriers[id].arrivals;
                    if self.job.config.checks.convergence
                        && let Some(gone) =
                            warps.iter().find(|w| w.live != w.exist && arrived >> w.id & 1 == 0)
                    {
                        let lane = (gone.exist & !gone.live).trailing_zeros();
                        let [x, y, z] = self.thread(gone.id * 32 + lane);
                        let message =
                            format!("thread ({x},{y},{z}) has exited and never reaches this barrier");
                        return Err(self.finding(
                            FindingKind::BarrierDivergence,
                            wait.line,
                            first.first_thread(),
                            message,
                        ));
                    }
                }
                _ => {}
            }
            self.open(id, warps);
            released = true;
        }
        Ok(released)
    }

    fn open(&mut self, id: usize, warps: &mut [Warp]) {
        let mut clock = self.barriers[id].clock;
        let count_of_warps = warps.len();
        let (mut count, mut all, mut any) = (0, true, false);
        for w in warps.iter() {
            let Some(wait) = w.waiting.filter(|x| x.barrier == id) else { continue };
            for (c, o) in clock.iter_mut().zip(&w.clock) {
                *c = (*c).max(*o);
            }
            let holds = wait.predicate & w.live;
            count += holds.count_ones();
            all &= holds == w.live;
            any |= holds != 0;
        }
        for w in warps.iter_mut() {
            let Some(wait) = w.waiting.filter(|x| x.barrier == id) else { continue };
            w.waiting = None;
            w.pass(&clock, count_of_warps);
            match wait.red {
                BarRed::None => {}
                BarRed::Popc => w.regs.row32_mut(wait.dst).fill(count),
                BarRed::And => w.regs.set_pred(wait.dst, if all { FULL } else { 0 }, wait.mask),
                BarRed::Or => w.regs.set_pred(wait.dst, if any { FULL } else { 0 }, wait.mask),
            }
        }
        self.barriers[id] = Barrier::default();
    }

    fn deadlock(&self, warps: &[Warp]) -> Box<Finding> {
        let waiting = warps.iter().find_map(|w| w.waiting.map(|x| (w, x)));
        let Some((w, wait)) = waiting else {
            return self.finding(FindingKind::BarrierDivergence, 0, 0, "no warp can go on");
        };
        let other =
            warps.iter().find(|o| o.waiting.is_none_or(|x| x.barrier != wait.barrier || x.line != wait.line));
        let message = match other {
            Some(o) if o.done() => {
                format!("warp {} waits at barrier {}, warp {} has ended", w.id, wait.barrier, o.id)
            }
            Some(o) => format!(
                "warp {} waits at barrier {}, warp {} is at {}",
                w.id,
                wait.barrier,
                o.id,
                self.place(o.line(self))
            ),
            None => {
                format!("warp {} waits at barrier {} for more threads than there are", w.id, wait.barrier)
            }
        };
        self.finding(FindingKind::BarrierDivergence, wait.line, w.first_thread(), message)
    }
}
