//! Shared memory of a block and local memory of a thread: bounds, alignment, first writes, races.

use super::access::{What, extend, misaligned, race, set, uninitialized, value};
use super::block::{Block, Check};
use super::races::Party;
use super::regs::LANES;
use super::traffic;
use super::warp::{Warp, lanes};
use crate::finding::FindingKind;
use crate::ptx::inst::*;

fn count_shared(b: &mut Block<'_>, at: &[u64; LANES], mask: u32, bytes: u32, load: bool) {
    if !b.job.config.traffic {
        return;
    }
    let (waves, conflicts) = traffic::wavefronts(at, mask, bytes);
    let t = if load { &mut b.counters.shared_loads } else { &mut b.counters.shared_stores };
    t.requests += 1;
    t.units += waves as u64;
    t.bytes += mask.count_ones() as u64 * bytes as u64;
    b.counters.bank_conflicts += conflicts as u64;
}

/// Offset of one lane's shared access, after the checks on the address.
#[inline(always)]
pub(super) fn shared(b: &Block<'_>, w: &Warp, what: What, lane: usize, at: u64) -> Check<usize> {
    let size = b.shared.len() as u64;
    if at.checked_add(what.bytes as u64).is_none_or(|end| end > size) {
        let message = format!(
            "{}-byte {} at shared address 0x{at:x}, the block has {size} bytes",
            what.bytes, what.verb
        );
        return Err(b.finding(FindingKind::OutOfBounds, what.line, w.id * 32 + lane as u32, message));
    }
    if at & (what.bytes as u64 - 1) != 0 {
        return Err(misaligned(b, w, what, lane, "shared", at));
    }
    Ok(at as usize)
}

#[inline(always)]
pub(super) fn bytes_at(memory: &[u8], at: usize, size: u8) -> u64 {
    let mut v = [0; 8];
    match size {
        1 => v[..1].copy_from_slice(&memory[at..at + 1]),
        2 => v[..2].copy_from_slice(&memory[at..at + 2]),
        4 => v[..4].copy_from_slice(&memory[at..at + 4]),
        _ => v.copy_from_slice(&memory[at..at + 8]),
    }
    u64::from_le_bytes(v)
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

pub(super) fn load_shared(
    b: &mut Block<'_>,
    w: &mut Warp,
    rows: &[Row],
    a: Access,
    what: What,
    at: &[u64; LANES],
    mask: u32,
) -> Check {
    let checks = b.job.config.checks;
    let n = what.bytes as usize;
    for l in lanes(mask) {
        let o = shared(b, w, what, l, at[l])?;
        if checks.uninitialized && b.shared_written[o..o + n].contains(&0) {
            return Err(uninitialized(b, w, what, l, "shared", at[l]));
        }
        if checks.races
            && let Some(c) = b.races.read(o, n, party(w, what, l))
        {
            return Err(race(b, w, what, l, at[l], c));
        }
        for (k, &row) in rows.iter().enumerate() {
            let v = bytes_at(&b.shared, o + k * a.size as usize, a.size);
            set(w, a.wide, row, l, extend(v, a));
        }
    }
    count_shared(b, at, mask, what.bytes, true);
    Ok(())
}

pub(super) fn store_shared(
    b: &mut Block<'_>,
    w: &mut Warp,
    rows: &[Row],
    a: Access,
    what: What,
    at: &[u64; LANES],
    mask: u32,
) -> Check {
    let checks = b.job.config.checks;
    let n = what.bytes as usize;
    for l in lanes(mask) {
        let o = shared(b, w, what, l, at[l])?;
        let mut new = [0u8; 16];
        for (k, &row) in rows.iter().enumerate() {
            set_bytes(&mut new, k * a.size as usize, a.size, value(w, a.wide, row, l));
        }
        if checks.races {
            let differs = b.shared[o..o + n] != new[..n];
            if let Some(c) = b.races.write(o, n, party(w, what, l), false, differs) {
                return Err(race(b, w, what, l, at[l], c));
            }
        }
        b.shared[o..o + n].copy_from_slice(&new[..n]);
        if checks.uninitialized {
            b.shared_written[o..o + n].fill(1);
        }
    }
    count_shared(b, at, mask, what.bytes, false);
    Ok(())
}

pub(super) fn party<'w>(w: &'w Warp, what: What, lane: usize) -> Party<'w> {
    Party {
        warp: w.id as usize,
        thread: (w.id * 32 + lane as u32) as u16,
        line: what.line,
        step: w.step,
        clock: &w.clock,
    }
}

/// Place of one lane's local access in the warp's local memory.
fn local(b: &Block<'_>, w: &Warp, what: What, lane: usize, at: u64) -> Check<usize> {
    let size = w.local_bytes as u64;
    if at.checked_add(what.bytes as u64).is_none_or(|end| end > size) {
        let message =
            format!("{}-byte {} at local address 0x{at:x}, a thread has {size} bytes", what.bytes, what.verb);
        return Err(b.finding(FindingKind::OutOfBounds, what.line, w.id * 32 + lane as u32, message));
    }
    if at & (what.bytes as u64 - 1) != 0 {
        return Err(misaligned(b, w, what, lane, "local", at));
    }
    Ok(lane * w.local_bytes + at as usize)
}

pub(super) fn load_local(
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
        let o = local(b, w, what, l, at[l])?;
        if !w.local_written.is_empty() && w.local_written[o..o + n].contains(&0) {
            return Err(uninitialized(b, w, what, l, "local", at[l]));
        }
        for (k, &row) in rows.iter().enumerate() {
            let v = bytes_at(&w.local, o + k * a.size as usize, a.size);
            set(w, a.wide, row, l, extend(v, a));
        }
    }
    count_local(b, mask, what.bytes);
    Ok(())
}

pub(super) fn store_local(
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
        let o = local(b, w, what, l, at[l])?;
        for (k, &row) in rows.iter().enumerate() {
            let v = value(w, a.wide, row, l);
            set_bytes(&mut w.local, o + k * a.size as usize, a.size, v);
        }
        if !w.local_written.is_empty() {
            w.local_written[o..o + n].fill(1);
        }
    }
    count_local(b, mask, what.bytes);
    Ok(())
}

fn count_local(b: &mut Block<'_>, mask: u32, bytes: u32) {
    let t = &mut b.counters.local;
    t.requests += 1;
    // The hardware interleaves local memory by word: equal addresses of 32 lanes are neighbours.
    t.units += bytes.div_ceil(4) as u64 * 4;
    t.bytes += mask.count_ones() as u64 * bytes as u64;
}
