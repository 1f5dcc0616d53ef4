//! Race detection: which warp touched which shared memory since the last barrier.
//!
//! Each warp has a vector clock; a barrier joins the clocks of those that meet there. An access races with an
//! earlier one of another warp that is not in its clock. Lanes of one instruction must not store different values. Hardware runs a
//! warp in lockstep, which compilers do not know: if it is not to be relied on, a lane that reads what another wrote needs a warp
//! barrier. Source: Flanagan and Freund 2009, "FastTrack", per warp instead of per thread and with the readers of one epoch as a bit mask.

/// `clock[w]`: the latest step of warp w that is known to happen before.
pub(super) type VectorClock = [u32; 32];

#[derive(Clone, Copy, Default)]
struct Cell {
    write_clock: u32,
    write_line: u32,
    /// Instruction count of the writing warp.
    write_step: u32,
    write_thread: u16,
    write_warp: u8,
    write_atomic: bool,
    /// Atomic or volatile.
    write_loose: bool,
    /// Warp barriers that the writing warp had passed.
    write_sync: u32,
    read_clock: u32,
    read_warps: u32,
    read_line: u32,
    read_thread: u16,
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
}

#[derive(Default)]
pub(super) struct Races {
    cells: Vec<Cell>,
    shift: u32,
    /// Whether lanes of a warp may rely on lockstep.
    lockstep: bool,
}

impl Races {
    pub fn reset(&mut self, bytes: usize, granule: u8, lockstep: bool) {
        self.lockstep = lockstep;
        self.shift = granule.trailing_zeros();
        self.cells.clear();
        self.cells.resize(bytes.div_ceil(granule as usize), Cell::default());
    }

    fn range(&self, at: usize, bytes: usize) -> std::ops::RangeInclusive<usize> {
        at >> self.shift..=(at + bytes - 1) >> self.shift
    }

    pub fn read(&mut self, at: usize, bytes: usize, p: Party<'_>) -> Option<Conflict> {
        for n in self.range(at, bytes) {
            let c = &mut self.cells[n];
            if c.write_clock > p.clock[c.write_warp as usize] && c.write_warp as usize != p.warp {
                return Some(Conflict::Wrote { thread: c.write_thread, line: c.write_line });
            }
            let now = p.clock[p.warp];
            let is_of_warp =
                c.write_warp as usize == p.warp && c.write_clock == now && c.write_sync == p.sync;
            if !self.lockstep && is_of_warp && c.write_thread != p.thread && !c.write_loose && !p.loose {
                return Some(Conflict::WroteInWarp { thread: c.write_thread, line: c.write_line });
            }
            if now > c.read_clock {
                c.read_clock = now;
                c.read_warps = 0;
            }
            if now == c.read_clock {
                c.read_warps |= 1 << p.warp;
            }
            c.read_thread = p.thread;
            c.read_line = p.line;
        }
        None
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
        for n in self.range(at, bytes) {
            let c = &mut self.cells[n];
            let other = c.write_warp as usize != p.warp;
            let same_instruction =
                !other && c.write_step == p.step && c.write_clock != 0 && differs && !atomic;
            let unordered =
                other && c.write_clock > p.clock[c.write_warp as usize] && !(atomic && c.write_atomic);
            if same_instruction || unordered {
                return Some(Conflict::Wrote { thread: c.write_thread, line: c.write_line });
            }
            let mut readers = c.read_warps; // the own warp's reads are in its clock
            while readers != 0 {
                let w = readers.trailing_zeros() as usize;
                readers &= readers - 1;
                if c.read_clock > p.clock[w] {
                    return Some(match c.read_thread as usize / 32 == w {
                        true => Conflict::Read { thread: c.read_thread, line: c.read_line },
                        false => Conflict::ReadBy { warp: w },
                    });
                }
            }
            *c = Cell {
                write_clock: p.clock[p.warp],
                write_line: p.line,
                write_step: p.step,
                write_thread: p.thread,
                write_warp: p.warp as u8,
                write_atomic: atomic,
                // lanes that store the same value with one instruction have it themselves
                write_loose: p.loose || !other && c.write_step == p.step && c.write_clock != 0,
                write_sync: p.sync,
                ..*c
            };
        }
        None
    }
}
