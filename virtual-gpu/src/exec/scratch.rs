//! Shared memory of a block and local memory of a thread: bounds, alignment, first writes, races.

use super::block::{Block, Check};
use super::carried;
use super::lane::{What, extend, fault, misaligned, set, uninitialized, value};
use super::races::{Conflict, Party};
use super::regs::{LANES, each, lanes};
use super::shape::Facts;
use super::warp::Warp;
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

#[inline(always)]
pub(super) fn load<const SPACE: bool>(
    b: &mut Block<'_>,
    w: &mut Warp,
    (rows, a): (&[Row], Access),
    what: What,
    at: &[u64; LANES],
    mask: u32,
    facts: &Facts,
) -> Check {
    if SPACE == SHARED && shared_load(b, w, (rows, a), what, at, mask, facts) {
        count::<SPACE>(b, facts, mask, what.bytes, true);
        return Ok(());
    }
    load_by_lane::<SPACE>(b, w, rows, a, what, at, mask)?;
    count::<SPACE>(b, facts, mask, what.bytes, true);
    Ok(())
}

/// A load by all lanes at once. False if a lane may have a finding: then nothing has been loaded.
#[inline(always)]
fn shared_load(
    b: &mut Block<'_>,
    w: &mut Warp,
    (rows, a): (&[Row], Access),
    what: What,
    at: &[u64; LANES],
    mask: u32,
    facts: &Facts,
) -> bool {
    let n = what.bytes as usize;
    let low = facts.low(at, mask);
    if !facts.aligned || !b.job.shared_arrays.has(low, facts.span) {
        return false;
    }
    let (low, end) = (low as usize, (low + facts.span) as usize);
    if !b.shared_written.is_empty() {
        let written = match facts.last.count_ones() as usize * n == end - low {
            true => b.shared_written[low..end].iter().fold(1, |all, written| all & written) == 1,
            false => lanes(facts.last).all(|l| all_set(&b.shared_written[at[l] as usize..][..n])),
        };
        if !written {
            return false;
        }
    }
    if b.job.config.checks.races && !b.races.read_all(at, facts.last, n, party(w, what, 0)) {
        return false;
    }
    for (k, &row) in rows.iter().enumerate() {
        let memory = &b.shared[k * a.size as usize..end];
        match (a.size, a.wide) {
            (4, false) => {
                let d = w.regs.row32_mut(row);
                each(mask, |l| d[l] = bytes_at(memory, at[l] as usize, 4) as u32);
            }
            (8, true) => {
                let d = w.regs.row64_mut(row);
                each(mask, |l| d[l] = bytes_at(memory, at[l] as usize, 8));
            }
            _ => {
                for l in lanes(mask) {
                    set(w, a.wide, row, l, extend(bytes_at(memory, at[l] as usize, a.size), a));
                }
            }
        }
    }
    true
}

/// One lane after the other, with the finding of the first that makes one.
#[inline(never)]
fn load_by_lane<const SPACE: bool>(
    b: &mut Block<'_>,
    w: &mut Warp,
    rows: &[Row],
    a: Access,
    what: What,
    at: &[u64; LANES],
    mask: u32,
) -> Check {
    for l in lanes(mask) {
        let o = match SPACE {
            SHARED => checked::<SHARED>(b, w, what, l, at[l])?,
            LOCAL => place::<LOCAL>(b, w, what, l, at[l])?,
        };
        if SPACE == LOCAL
            && !w.local_written.is_empty()
            && !all_set(&w.local_written[o..][..what.bytes as usize])
        {
            carried::load(b, w, (rows, a), what, l, (at[l], o))?;
        }
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
    Ok(())
}

#[inline(always)]
pub(super) fn store<const SPACE: bool>(
    b: &mut Block<'_>,
    w: &mut Warp,
    (rows, a): (&[Row], Access),
    what: What,
    at: &[u64; LANES],
    mask: u32,
    facts: &Facts,
) -> Check {
    if SPACE == LOCAL || !shared_store(b, w, (rows, a), what, at, mask, facts) {
        store_by_lane::<SPACE>(b, w, rows, a, what, at, mask)?;
    }
    count::<SPACE>(b, facts, mask, what.bytes, false);
    Ok(())
}

/// A store by all lanes at once. False if a lane may have a finding, or two store to the same place: then nothing has been stored.
#[inline(always)]
fn shared_store(
    b: &mut Block<'_>,
    w: &mut Warp,
    (rows, a): (&[Row], Access),
    what: What,
    at: &[u64; LANES],
    mask: u32,
    facts: &Facts,
) -> bool {
    let n = what.bytes as usize;
    let low = facts.low(at, mask);
    if !facts.aligned || facts.last != mask || !b.job.shared_arrays.has(low, facts.span) {
        return false;
    }
    if b.job.config.checks.races && !b.races.write_all(at, mask, n, party(w, what, 0)) {
        return false;
    }
    for (k, &row) in rows.iter().enumerate() {
        let memory = &mut b.shared[k * a.size as usize..(low + facts.span) as usize];
        match (a.size, a.wide) {
            (4, false) => {
                let v = w.regs.row32(row);
                each(mask, |l| set_bytes(memory, at[l] as usize, 4, v[l].into()));
            }
            _ => each(mask, |l| set_bytes(memory, at[l] as usize, a.size, value(w, a.wide, row, l))),
        }
    }
    if !b.shared_written.is_empty() {
        match mask.count_ones() as u64 * n as u64 == facts.span {
            true => b.shared_written[low as usize..][..facts.span as usize].fill(1),
            false => each(mask, |l| set_written(&mut b.shared_written, at[l] as usize, n)),
        }
    }
    true
}

/// Notes that `n` bytes, as many as an access has, are written.
#[inline(always)]
fn set_written(written: &mut [u8], at: usize, n: usize) {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    match n {
        16 => {
            set_bytes(written, at, 8, ONES);
            set_bytes(written, at + 8, 8, ONES);
        }
        n => set_bytes(written, at, n as u8, ONES),
    }
}

/// As [`load_by_lane`].
#[inline(never)]
fn store_by_lane<const SPACE: bool>(
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
        floor: w.floor,
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

#[inline(always)]
fn count<const SPACE: bool>(b: &mut Block<'_>, facts: &Facts, mask: u32, bytes: u32, load: bool) {
    if SPACE == LOCAL {
        // The hardware interleaves local memory by word: equal addresses of 32 lanes are neighbours.
        b.counters.local.count(bytes.div_ceil(4) * 4, mask, bytes);
    } else if b.job.config.traffic {
        let t = if load { &mut b.counters.shared_loads } else { &mut b.counters.shared_stores };
        t.count(facts.units, mask, bytes);
        b.counters.bank_conflicts += facts.conflicts as u64;
    }
}
