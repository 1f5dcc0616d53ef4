//! Global memory: the checks of an access, and what it counts for.
//!
//! Global memory is shared by blocks that run on several CPU threads. All accesses to it are relaxed atomics of
//! the access's own width, so that a race of the kernel is a race of values and never undefined behaviour here.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::block::{Block, Check};
use super::global_races::{Conflict, Party};
use super::lane::{What, fault, misaligned};
use super::regs::LANES;
use super::traffic;
use super::warp::{Warp, lanes};
use crate::finding::{Finding, FindingKind};

#[cold]
fn outside(b: &Block<'_>, w: &Warp, what: What, lane: usize, at: u64) -> Box<Finding> {
    if let Some(device) = b.job.memory.foreign(at) {
        let place = format_args!(
            "at 0x{at:x}, which is memory of device {device} (peer access to it is not enabled, or it is not live)"
        );
        return fault(b, w, what, lane, FindingKind::WrongDevice, place);
    }
    let (freed, near) = b.job.memory.describe(at);
    let kind = if freed { FindingKind::UseAfterFree } else { FindingKind::OutOfBounds };
    fault(b, w, what, lane, kind, format_args!("at 0x{at:x}, {near}"))
}

/// A load of bytes that another device writes, without a wait for that work.
#[cold]
pub(super) fn unordered(b: &Block<'_>, w: &Warp, what: What, lane: usize, at: u64) -> Box<Finding> {
    let place = format_args!("at 0x{at:x} without waiting for the work on another device that writes it");
    fault(b, w, what, lane, FindingKind::MissingWait, place)
}

/// Host pointer and shadow of one lane's global access, after all checks.
#[inline(always)]
pub(super) fn global(
    b: &mut Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    at: u64,
) -> Check<(*mut u8, Option<*mut u8>)> {
    let bytes = what.bytes as u64;
    if at & (bytes - 1) != 0 {
        return Err(misaligned(b, w, what, lane, "global", at));
    }
    let live = &b.job.snapshot.live;
    let hit = live.get(b.last_allocation).is_some_and(|a| a.contains(at, bytes));
    if !hit {
        b.last_allocation = match b.job.snapshot.find(at) {
            Some(i) => i,
            None => return Err(outside(b, w, what, lane, at)),
        };
    }
    let a = &live[b.last_allocation];
    if !a.contains(at, bytes) || !a.is_live() {
        return Err(outside(b, w, what, lane, at));
    }
    Ok((a.host(at), a.shadow(at)))
}

/// # Safety
/// `p` points to `size` bytes of a live allocation, aligned to `size`, which is 1, 2, 4 or 8.
#[inline(always)]
pub(super) unsafe fn get(p: *mut u8, size: u8) -> u64 {
    // SAFETY: `p` is live and aligned: this function's contract. Other threads access these bytes through atomics only.
    unsafe {
        match size {
            1 => AtomicU8::from_ptr(p).load(Ordering::Relaxed) as u64,
            2 => AtomicU16::from_ptr(p.cast()).load(Ordering::Relaxed) as u64,
            4 => AtomicU32::from_ptr(p.cast()).load(Ordering::Relaxed) as u64,
            _ => AtomicU64::from_ptr(p.cast()).load(Ordering::Relaxed),
        }
    }
}

/// # Safety
/// As [`get`].
#[inline(always)]
pub(super) unsafe fn put(p: *mut u8, size: u8, v: u64) {
    // SAFETY: `p` is live and aligned: this function's contract. Other threads access these bytes through atomics only.
    unsafe {
        match size {
            1 => AtomicU8::from_ptr(p).store(v as u8, Ordering::Relaxed),
            2 => AtomicU16::from_ptr(p.cast()).store(v as u16, Ordering::Relaxed),
            4 => AtomicU32::from_ptr(p.cast()).store(v as u32, Ordering::Relaxed),
            _ => AtomicU64::from_ptr(p.cast()).store(v, Ordering::Relaxed),
        }
    }
}

/// Whether all shadow bytes of an aligned access of 1 to 16 bytes are set.
///
/// # Safety
/// `s` points to `bytes` shadow bytes, aligned to `bytes`.
#[inline(always)]
pub(super) unsafe fn written(s: *mut u8, bytes: u32) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // whether no byte is 0: Warren, "Hacker's Delight", section 6-1
    let none_is_zero = |v: u64| v.wrapping_sub(ONES) & !v & (ONES << 7) == 0;
    // SAFETY: `s` points to `bytes` aligned shadow bytes: this function's contract.
    unsafe {
        match bytes {
            16 => none_is_zero(get(s, 8)) && none_is_zero(get(s.add(8), 8)),
            8 => none_is_zero(get(s, 8)),
            n => none_is_zero(get(s, n as u8) | u64::MAX << (8 * n)),
        }
    }
}

/// # Safety
/// As [`written`].
#[inline(always)]
pub(super) unsafe fn mark(s: *mut u8, bytes: u32, writer: u8) {
    let writers = u64::from_ne_bytes([writer; 8]);
    // SAFETY: `s` points to `bytes` aligned shadow bytes: this function's contract.
    unsafe {
        match bytes {
            16 => {
                put(s, 8, writers);
                put(s.add(8), 8, writers);
            }
            n => put(s, n as u8, writers),
        }
    }
}

#[inline]
pub(super) fn global_party<'w>(b: &Block<'_>, w: &'w Warp, line: u32) -> Party<'w> {
    Party { block: b.linear, warp: w.id as usize, clock: &w.clock, line }
}

#[inline(always)]
pub(super) fn no_global_race(
    b: &Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    at: u64,
    conflict: Option<Conflict>,
) -> Check {
    conflict.map_or(Ok(()), |conflict| Err(global_race(b, w, what, lane, at, conflict)))
}

#[cold]
fn global_race(b: &Block<'_>, w: &Warp, what: What, lane: usize, at: u64, c: Conflict) -> Box<Finding> {
    let who = match c.block.map(|block| (block, b.coordinates(block))) {
        Some((block, _)) if block == b.linear => format!("warp {} of the same block", c.warp),
        Some((_, [x, y, z])) => format!("block ({x},{y},{z})"),
        None => "several blocks".to_owned(),
    };
    let did = match c.is_write {
        true => "wrote",
        false => "read",
    };
    let line = c.line.map_or(String::new(), |line| format!(" at {}", b.place(line)));
    let missing = match c.block {
        Some(block) if block == b.linear => "barrier",
        _ => "fences and flag",
    };
    let place = format_args!("at 0x{at:x}, which {who} {did}{line} with no {missing} between");
    fault(b, w, what, lane, FindingKind::GlobalRace, place)
}

#[inline]
pub(super) fn count_global(b: &mut Block<'_>, at: &[u64; LANES], mask: u32, bytes: u32, load: bool) {
    if b.job.config.traffic {
        let t = if load { &mut b.counters.global_loads } else { &mut b.counters.global_stores };
        t.count(traffic::sectors(at, mask, bytes), mask, bytes);
        footprint(b, at, mask);
    }
}

#[inline]
pub(super) fn footprint(b: &mut Block<'_>, at: &[u64; LANES], mask: u32) {
    let mut last = u64::MAX;
    for l in lanes(mask) {
        if at[l] >> 5 == last {
            continue;
        }
        last = at[l] >> 5;
        if !b.job.snapshot.live.get(b.last_allocation).is_some_and(|a| a.contains(at[l], 1)) {
            let Some(n) = b.job.snapshot.find(at[l]) else { continue };
            b.last_allocation = n;
        }
        b.counters.distinct_sectors += b.job.touch(b.last_allocation, at[l]) as u64;
    }
}
