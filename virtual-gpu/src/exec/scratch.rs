//! Shared memory of a block and local memory of a thread: bounds, alignment, first writes, races.

use super::block::{Block, Check};
use super::lane::{What, extend, fault, misaligned, set, uninitialized, value};
use super::races::{Conflict, Party};
use super::regs::LANES;
use super::traffic;
use super::warp::{Warp, lanes};
use crate::finding::{Finding, FindingKind};
use crate::ptx::inst::*;

/// Which memory a function is compiled for.
pub(super) const SHARED: bool = true;
pub(super) const LOCAL: bool = false;

/// Offset of one lane's access in the block's shared or the warp's local memory, after the checks on the address.
#[inline(always)]
pub(super) fn place<const SPACE: bool>(
    b: &Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    at: u64,
) -> Check<usize> {
    let (size, space, owner) = match SPACE {
        SHARED => (b.shared.len(), "shared", "the block"),
        LOCAL => (w.local_bytes, "local", "a thread"),
    };
    if at.checked_add(what.bytes as u64).is_none_or(|end| end > size as u64) {
        let size = if SPACE == SHARED { b.job.shared_bytes() as usize } else { size };
        let place = format_args!("at {space} address 0x{at:x}, {owner} has {size} bytes");
        return Err(fault(b, w, what, lane, FindingKind::OutOfBounds, place));
    }
    if SPACE == SHARED
        && let Some(array) = b.job.shared_arrays.beside(at as usize, what.bytes as usize)
    {
        return Err(fault(
            b,
            w,
            what,
            lane,
            FindingKind::OutOfBounds,
            format_args!("at shared address 0x{at:x}, {array}"),
        ));
    }
    if at & (what.bytes as u64 - 1) != 0 {
        return Err(misaligned(b, w, what, lane, space, at));
    }
    Ok(if SPACE == SHARED { at as usize } else { lane * w.local_bytes + at as usize })
}

/// As [`place`], of bytes that have been written.
#[inline(always)]
pub(super) fn checked<const SPACE: bool>(
    b: &Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    at: u64,
) -> Check<usize> {
    let o = place::<SPACE>(b, w, what, lane, at)?;
    let written = if SPACE == SHARED { &b.shared_written } else { &w.local_written };
    if !written.is_empty() && !all_set(&written[o..o + what.bytes as usize]) {
        let space = if SPACE == SHARED { "shared" } else { "local" };
        return Err(uninitialized(b, w, what, lane, space, at));
    }
    Ok(o)
}

#[inline(always)]
pub(super) fn bytes_at(memory: &[u8], at: usize, size: u8) -> u64 {
    // widened in a register: a word that is stored and read back wider would wait for the store
    let word = &memory[at..at + size as usize];
    match *word {
        [a] => a.into(),
        [a, b] => u16::from_le_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => unreachable!("PTX accesses 1, 2, 4 or 8 bytes"),
    }
}

/// Whether none of up to 16 bytes, as many as an access has, is 0.
#[inline(always)]
fn all_set(bytes: &[u8]) -> bool {
    match bytes.len() {
        16 => bytes_at(bytes, 0, 8) & bytes_at(bytes, 8, 8) == u64::from_ne_bytes([1; 8]),
        n => bytes_at(bytes, 0, n as u8) == u64::from_ne_bytes([1; 8]) >> (64 - 8 * n),
    }
}

#[inline(always)]
pub(super) fn set_bytes(memory: &mut [u8], at: usize, size: u8, v: u64) {
    let v = v.to_le_bytes();
    match size {
        1 => memory[at..at + 1].copy_from_slice(&v[..1]),
        2 => memory[at..at + 2].copy_from_slice(&v[..2]),
        4 => memory[at..at + 4].copy_from_slice(&v[..4]),
        _ => memory[at..at + 8].copy_from_slice(&v),
    }
}

pub(super) fn load<const SPACE: bool>(
    b: &mut Block<'_>,
    w: &mut Warp,
    rows: &[Row],
    a: Access,
    what: What,
    at: &[u64; LANES],
    mask: u32,
) -> Check {
    for l in lanes(mask) {
        let o = checked::<SPACE>(b, w, what, l, at[l])?;
        if SPACE == SHARED && b.job.config.checks.races {
            let conflict = b.races.read(o, what.bytes as usize, party(w, what, l));
            no_race(b, w, what, l, at[l], conflict)?;
        }
        for (k, &row) in rows.iter().enumerate() {
            let memory = if SPACE == SHARED { &b.shared } else { &w.local };
            let v = bytes_at(memory, o + k * a.size as usize, a.size);
            set(w, a.wide, row, l, extend(v, a));
        }
    }
    count::<SPACE>(b, at, mask, what.bytes, true);
    Ok(())
}

pub(super) fn store<const SPACE: bool>(
    b: &mut Block<'_>,
    w: &mut Warp,
    rows: &[Row],
    a: Access,
    what: What,
    at: &[u64; LANES],
    mask: u32,
) -> Check {
    let n = what.bytes as usize;
    for l in lanes(mask) {
        let o = place::<SPACE>(b, w, what, l, at[l])?;
        let mut new = [0u8; 16];
        for (k, &row) in rows.iter().enumerate() {
            set_bytes(&mut new, k * a.size as usize, a.size, value(w, a.wide, row, l));
        }
        if SPACE == SHARED && b.job.config.checks.races {
            let differs = b.shared[o..o + n] != new[..n];
            let conflict = b.races.write(o, n, party(w, what, l), false, differs);
            no_race(b, w, what, l, at[l], conflict)?;
        }
        let (memory, written) = match SPACE {
            SHARED => (&mut b.shared, &mut b.shared_written),
            LOCAL => (&mut w.local, &mut w.local_written),
        };
        memory[o..o + n].copy_from_slice(&new[..n]);
        if !written.is_empty() {
            written[o..o + n].fill(1);
        }
    }
    count::<SPACE>(b, at, mask, what.bytes, false);
    Ok(())
}

#[inline]
pub(super) fn party<'w>(w: &'w Warp, what: What, lane: usize) -> Party<'w> {
    Party {
        warp: w.id as usize,
        thread: (w.id * 32 + lane as u32) as u16,
        line: what.line,
        step: w.step,
        sync: w.sync,
        loose: what.loose,
        clock: &w.clock,
    }
}

#[inline(always)]
pub(super) fn no_race(
    b: &Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    at: u64,
    conflict: Option<Conflict>,
) -> Check {
    conflict.map_or(Ok(()), |conflict| Err(race(b, w, what, lane, at, conflict)))
}

#[cold]
fn race(b: &Block<'_>, w: &Warp, what: What, lane: usize, at: u64, c: Conflict) -> Box<Finding> {
    let by = |thread: u16, did, line| {
        let [x, y, z] = b.thread(thread as u32);
        format!("thread ({x},{y},{z}) {did} at {}", b.place(line))
    };
    let other = match c {
        Conflict::Wrote { thread, line } => by(thread, "wrote", line),
        Conflict::Read { thread, line } => by(thread, "read", line),
        Conflict::ReadBy { warp } => format!("warp {warp} read"),
        Conflict::WroteInWarp { thread, line } => {
            let other = by(thread, "wrote", line);
            let place = format_args!(
                "at shared address 0x{at:x}, which {other} in the same warp with no sync_warp between"
            );
            return fault(b, w, what, lane, FindingKind::SharedRace, place);
        }
    };
    let place = format_args!("at shared address 0x{at:x}, which {other} with no barrier between");
    fault(b, w, what, lane, FindingKind::SharedRace, place)
}

fn count<const SPACE: bool>(b: &mut Block<'_>, at: &[u64; LANES], mask: u32, bytes: u32, load: bool) {
    if SPACE == LOCAL {
        // The hardware interleaves local memory by word: equal addresses of 32 lanes are neighbours.
        b.counters.local.count(bytes.div_ceil(4) * 4, mask, bytes);
    } else if b.job.config.traffic {
        let (waves, conflicts) = traffic::wavefronts(at, mask, bytes);
        let t = if load { &mut b.counters.shared_loads } else { &mut b.counters.shared_stores };
        t.count(waves, mask, bytes);
        b.counters.bank_conflicts += conflicts as u64;
    }
}
