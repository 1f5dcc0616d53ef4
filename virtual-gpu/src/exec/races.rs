//! Race detection: which warp touched which shared memory since the last barrier.
//!
//! Each warp has a vector clock; a barrier joins the clocks of those that meet there. An access races with an
//! earlier one of another warp that is not in its clock. Lanes of one instruction must not store different values. Hardware runs a
//! warp in lockstep, which compilers do not know: if it is not to be relied on, a lane that reads what another wrote needs a warp
//! barrier. Source: Flanagan and Freund 2009, "FastTrack", per warp instead of per thread and with the readers of one epoch as a bit mask.

use super::regs::{LANES, lanes};

/// `clock[w]`: the latest step of warp w that is known to happen before.
pub(super) type VectorClock = [u32; 32];

/// The last write to a cell.
#[derive(Clone, Copy, Default)]
struct Write {
    clock: u32,
    line: u32,
    /// Instruction count of the writing warp.
    step: u32,
    /// Warp barriers that the writing warp had passed.
    sync: u32,
    thread: u16,
    warp: u8,
    atomic: bool,
    /// Atomic or volatile.
    loose: bool,
}

/// The reads of a cell with the highest clock, and the last one.
#[derive(Clone, Copy, Default)]
struct Read {
    clock: u32,
    warps: u32,
    line: u32,
    thread: u32,
}

/// The other party of a race.
pub(super) enum Conflict {
    Wrote {
        thread: u16,
        line: u32,
    },
    Read {
        thread: u16,
        line: u32,
    },
    /// A read of the same memory by another warp came after it, so the thread and its line are not known.
    ReadBy {
        warp: usize,
    },
    /// Another lane of the same warp.
    WroteInWarp {
        thread: u16,
        line: u32,
    },
}

/// The access being checked.
#[derive(Clone, Copy)]
pub(super) struct Party<'a> {
    pub warp: usize,
    pub thread: u16,
    pub line: u32,
    pub step: u32,
    /// Warp barriers passed.
    pub sync: u32,
    /// Atomic or volatile.
    pub loose: bool,
    pub clock: &'a VectorClock,
    /// At most the clock of each other warp of the block.
    pub floor: u32,
}

#[derive(Default)]
pub(super) struct Races {
    writes: Vec<Write>,
    reads: Vec<Read>,
    shift: u32,
    /// Whether lanes of a warp may rely on lockstep.
    lockstep: bool,
    /// Whether strong accesses, those that are loose, race with none of their like: from Volta on.
    strong: bool,
}

impl Races {
    pub fn reset(&mut self, bytes: usize, granule: u8, lockstep: bool, strong: bool) {
        self.strong = strong;
        self.lockstep = lockstep;
        self.shift = granule.trailing_zeros();
        let cells = bytes.div_ceil(granule as usize);
        self.writes.clear();
        self.writes.resize(cells, Write::default());
        self.reads.clear();
        self.reads.resize(cells, Read::default());
    }

    fn range(&self, at: usize, bytes: usize) -> std::ops::RangeInclusive<usize> {
        at >> self.shift..=(at + bytes - 1) >> self.shift
    }

    pub fn read(&mut self, at: usize, bytes: usize, p: Party<'_>) -> Option<Conflict> {
        for n in self.range(at, bytes) {
            let w = &self.writes[n];
            if self.strong && p.loose && w.atomic {
                continue;
            }
            if w.clock > p.clock[w.warp as usize] && w.warp as usize != p.warp {
                return Some(Conflict::Wrote { thread: w.thread, line: w.line });
            }
            let now = p.clock[p.warp];
            let is_of_warp = w.warp as usize == p.warp && w.clock == now && w.sync == p.sync;
            if !self.lockstep && is_of_warp && w.thread != p.thread && !w.loose && !p.loose {
                return Some(Conflict::WroteInWarp { thread: w.thread, line: w.line });
            }
            if !(self.strong && p.loose) {
                self.reads[n].note(now, p);
            }
        }
        None
    }

    /// [`Self::read`] by each lane of a warp whose last lane at an address is in `last`, `p` being its first thread. False if a
    /// lane has to be looked at: each may be read again.
    #[inline(always)]
    pub fn read_all(&mut self, at: &[u64; LANES], last: u32, bytes: usize, p: Party<'_>) -> bool {
        let now = p.clock[p.warp];
        if !self.lockstep {
            return false;
        }
        for l in lanes(last) {
            let range = self.range(at[l] as usize, bytes);
            let p = Party { thread: p.thread + l as u16, ..p };
            for (w, r) in self.writes[range.clone()].iter().zip(&mut self.reads[range]) {
                if w.clock > p.floor && w.warp as usize != p.warp {
                    return false;
                }
                r.note(now, p);
            }
        }
        true
    }

    /// [`Self::write`] by each lane of `mask`, all to different cells, as [`Self::read_all`]. Nothing is noted if it is false.
    #[inline(always)]
    pub fn write_all(&mut self, at: &[u64; LANES], mask: u32, bytes: usize, p: Party<'_>) -> bool {
        if self.strong && p.loose {
            return false;
        }
        for l in lanes(mask) {
            let range = self.range(at[l] as usize, bytes);
            for (w, r) in self.writes[range.clone()].iter().zip(&self.reads[range]) {
                let is_after_write = w.clock <= p.floor || w.warp as usize == p.warp;
                let is_after_reads = r.clock <= p.floor || r.warps & !(1 << p.warp) == 0;
                if !is_after_write || !is_after_reads {
                    return false;
                }
            }
        }
        for l in lanes(mask) {
            let range = self.range(at[l] as usize, bytes);
            let p = Party { thread: p.thread + l as u16, ..p };
            self.writes[range].fill(Write::by(p, false, p.loose));
        }
        true
    }

    /// `differs`: the bytes already there differ from those about to be written.
    pub fn write(
        &mut self,
        at: usize,
        bytes: usize,
        p: Party<'_>,
        atomic: bool,
        differs: bool,
    ) -> Option<Conflict> {
        let atomic = atomic || self.strong && p.loose;
        for n in self.range(at, bytes) {
            let (w, r) = (&mut self.writes[n], &self.reads[n]);
            let other = w.warp as usize != p.warp;
            let same_instruction = !other && w.step == p.step && w.clock != 0 && differs && !atomic;
            let unordered = other && w.clock > p.clock[w.warp as usize] && !(atomic && w.atomic);
            if same_instruction || unordered {
                return Some(Conflict::Wrote { thread: w.thread, line: w.line });
            }
            // the own warp's reads are in its clock
            if let Some(warp) = lanes(r.warps).find(|&warp| r.clock > p.clock[warp]) {
                return Some(match r.thread as usize / 32 == warp {
                    true => Conflict::Read { thread: r.thread as u16, line: r.line },
                    false => Conflict::ReadBy { warp },
                });
            }
            // lanes that store the same value with one instruction have it themselves
            let loose = p.loose || !other && w.step == p.step && w.clock != 0;
            *w = Write::by(p, atomic, loose);
        }
        None
    }
}

impl Write {
    #[inline(always)]
    fn by(p: Party<'_>, atomic: bool, loose: bool) -> Self {
        let Party { thread, line, step, sync, .. } = p;
        Self { clock: p.clock[p.warp], line, step, sync, thread, warp: p.warp as u8, atomic, loose }
    }
}

impl Read {
    /// A read at the clock `now`.
    #[inline(always)]
    fn note(&mut self, now: u32, p: Party<'_>) {
        let (clock, warps) = (self.clock, self.warps);
        let own = if now < clock { 0 } else { 1 << p.warp };
        let others = if now > clock { 0 } else { warps };
        *self = Self { clock: clock.max(now), warps: own | others, line: p.line, thread: p.thread.into() };
    }
}
