//! Global memory: the checks of an access, and what it counts for.
//!
//! Global memory is shared by blocks that run on several CPU threads. All accesses to it are relaxed atomics of
//! the access's own width, so that a race of the kernel is a race of values and never undefined behaviour here.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::block::{Block, Check};
use super::global_races::{Conflict, Party};
use super::lane::{What, extend, fault, misaligned, set, uninitialized, value};
use super::regs::{LANES, each, lanes};
use super::shape::Facts;
use super::warp::Warp;
use crate::finding::{Finding, FindingKind};
use crate::memory::Allocation;
use crate::ptx::inst::{Access, Row};

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

/// The allocation that has all addresses of an access, if there is one: it is the block's last one then.
#[inline(always)]
fn whole<'j>(b: &mut Block<'j>, low: u64, facts: &Facts) -> Option<&'j Allocation> {
    let live = &b.job.snapshot.live;
    if !facts.aligned {
        return None;
    }
    if !live.get(b.last_allocation).is_some_and(|a| a.contains(low, facts.span)) {
        b.last_allocation = b.job.snapshot.find(low)?;
    }
    let a = &live[b.last_allocation];
    (a.contains(low, facts.span) && a.is_live()).then_some(&**a)
}

#[inline(always)]
pub(super) fn load(
    b: &mut Block<'_>,
    w: &mut Warp,
    (rows, a): (&[Row], Access),
    what: What,
    at: &[u64; LANES],
    mask: u32,
    facts: &Facts,
) -> Check {
    match load_at_once(b, w, (rows, a), what, at, mask, facts) {
        true => Ok(()),
        false => load_by_lane(b, w, (rows, a), what, at, mask),
    }
}

/// A load by all lanes at once. False if a lane may have a finding, or if it reads what other devices may write: then nothing
/// has been loaded.
#[inline(always)]
fn load_at_once(
    b: &mut Block<'_>,
    w: &mut Warp,
    (rows, a): (&[Row], Access),
    what: What,
    at: &[u64; LANES],
    mask: u32,
    facts: &Facts,
) -> bool {
    let low = facts.low(at, mask);
    let Some(allocation) = whole(b, low, facts) else { return false };
    if b.job.unordered.is_some() || b.job.remote.is_some() {
        return false;
    }
    if let Some(shadow) = allocation.shadow(low) {
        let mut known = true;
        // SAFETY: `whole` found all addresses, and that they are aligned, and the shadow is aligned as the data.
        each(facts.last, |l| known &= unsafe { written(shadow.add((at[l] - low) as usize), what.bytes) });
        if !known {
            return false;
        }
    }
    if let Some(races) = b.job.global_races.as_ref().filter(|_| !what.loose)
        && let Some(watched) = races.reads(b.last_allocation, allocation, global_party(b, w, what.line))
        && !lanes(mask).all(|l| watched.read(at[l], what.bytes).is_none())
    {
        return false;
    }
    let data = allocation.host(low);
    for (k, &row) in rows.iter().enumerate() {
        let data = data.wrapping_add(k * a.size as usize);
        // SAFETY: `whole` found all addresses, and that they are aligned; element k is inside the access.
        let element = |l: usize, size| unsafe { get(data.add((at[l] - low) as usize), size) };
        match (a.size, a.wide) {
            (4, false) => {
                let d = w.regs.row32_mut(row);
                each(mask, |l| d[l] = element(l, 4) as u32);
            }
            (8, true) => {
                let d = w.regs.row64_mut(row);
                each(mask, |l| d[l] = element(l, 8));
            }
            _ => {
                for l in lanes(mask) {
                    set(w, a.wide, row, l, extend(element(l, a.size), a));
                }
            }
        }
    }
    true
}

/// One lane after the other, with the finding of the first that makes one.
#[inline(never)]
fn load_by_lane(
    b: &mut Block<'_>,
    w: &mut Warp,
    (rows, a): (&[Row], Access),
    what: What,
    at: &[u64; LANES],
    mask: u32,
) -> Check {
    for l in lanes(mask) {
        let p = checked_load(b, w, what, l, at[l])?;
        for (k, &row) in rows.iter().enumerate() {
            // SAFETY: the access was located, so its bytes from `p` on are inside the allocation, and element k is one of them.
            let v = unsafe { get(p.add(k * a.size as usize), a.size) };
            set(w, a.wide, row, l, extend(v, a));
        }
    }
    Ok(())
}

/// Up to 16 bytes of one lane, a power of two of them; the others are 0.
pub(super) fn read(b: &mut Block<'_>, w: &Warp, what: What, lane: usize, at: u64) -> Check<[u8; 16]> {
    let p = checked_load(b, w, what, lane, at)?;
    let part = what.bytes.min(8) as usize;
    let mut bytes = [0; 16];
    for from in (0..what.bytes as usize).step_by(part) {
        // SAFETY: the access was located, so its bytes from `p` on are inside the allocation, aligned to their number.
        let v = unsafe { get(p.add(from), part as u8) };
        bytes[from..from + part].copy_from_slice(&v.to_le_bytes()[..part]);
    }
    Ok(bytes)
}

/// Host pointer to what a lane loads, after all checks.
#[inline(always)]
fn checked_load(b: &mut Block<'_>, w: &Warp, what: What, l: usize, at: u64) -> Check<*mut u8> {
    let bytes = what.bytes;
    let (p, shadow) = global(b, w, what, l, at)?;
    // SAFETY: `global` checked bounds and alignment; the shadow is aligned as the data.
    let known = shadow.is_none_or(|s| unsafe { written(s, bytes) });
    if !known {
        return Err(uninitialized(b, w, what, l, "global", at));
    }
    if let (Some(not_yet), Some(s)) = (&b.job.unordered, shadow) {
        // SAFETY: the access was located, so the shadow has `bytes` bytes from `s` on; one is read after the other.
        let early = |i| not_yet[unsafe { get(s.add(i), 1) } as usize];
        if (0..bytes as usize).any(early) {
            return Err(unordered(b, w, what, l, at));
        }
    }
    if let Some(remote) = &b.job.remote
        && (b.job.memory.foreign(at).is_some() || crate::memory::device_of(at).is_none())
    {
        remote.note(at, bytes.into());
    }
    if let Some(races) = b.job.global_races.as_ref().filter(|_| !what.loose) {
        let n = b.last_allocation;
        let watched = races.reads(n, &b.job.snapshot.live[n], global_party(b, w, what.line));
        let conflict = watched.and_then(|watched| watched.read(at, bytes));
        no_global_race(b, w, what, l, at, conflict)?;
    }
    Ok(p)
}

#[inline(always)]
pub(super) fn store(
    b: &mut Block<'_>,
    w: &mut Warp,
    (rows, a): (&[Row], Access),
    what: What,
    at: &[u64; LANES],
    mask: u32,
    facts: &Facts,
) -> Check {
    let low = facts.low(at, mask);
    match whole(b, low, facts) {
        Some(allocation) => store_at_once(b, w, (rows, a), what, at, mask, (low, allocation)),
        None => {
            for l in lanes(mask) {
                global(b, w, what, l, at[l])?;
                let allocation = &b.job.snapshot.live[b.last_allocation];
                store_at_once(b, w, (rows, a), what, at, 1 << l, (at[l], allocation))?;
            }
            Ok(())
        }
    }
}
/// A store by lanes whose addresses are aligned and in an allocation, with the lowest address and that allocation.
#[inline(always)]
fn store_at_once(
    b: &mut Block<'_>,
    w: &mut Warp,
    (rows, a): (&[Row], Access),
    what: What,
    at: &[u64; LANES],
    mask: u32,
    (low, allocation): (u64, &Allocation),
) -> Check {
    let (data, shadow) = (allocation.host(low), allocation.shadow(low));
    let job = b.job;
    let races = job.global_races.as_ref().filter(|_| !what.loose);
    let watched = races.map(|r| r.writes(b.last_allocation, allocation, global_party(b, w, what.line)));
    for l in lanes(mask) {
        let from = (at[l] - low) as usize;
        let p = data.wrapping_add(from);
        if let Some(watched) = watched {
            let differs = rows.iter().enumerate().any(|(k, &row)| {
                // SAFETY: the lane's bytes are inside the allocation, and aligned; element k is inside the access.
                let old = unsafe { get(p.add(k * a.size as usize), a.size) };
                old != value(w, a.wide, row, l) & (u64::MAX >> (64 - 8 * u32::from(a.size)))
            });
            no_global_race(b, w, what, l, at[l], watched.write(at[l], what.bytes, differs))?;
        }
        for (k, &row) in rows.iter().enumerate() {
            // SAFETY: the lane's bytes are inside the allocation, and aligned; element k is inside the access.
            unsafe { put(p.add(k * a.size as usize), a.size, value(w, a.wide, row, l)) };
        }
        if let Some(s) = shadow {
            // SAFETY: the shadow has the data's size and alignment.
            unsafe { mark(s.add(from), what.bytes, job.writer) };
        }
    }
    Ok(())
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

#[inline(always)]
pub(super) fn count_global(
    b: &mut Block<'_>,
    at: &[u64; LANES],
    mask: u32,
    bytes: u32,
    load: bool,
    facts: &Facts,
) {
    if b.job.config.traffic {
        let t = if load { &mut b.counters.global_loads } else { &mut b.counters.global_stores };
        t.count(facts.units, mask, bytes);
        footprint(b, at, mask, facts);
    }
}

#[inline(always)]
pub(super) fn footprint(b: &mut Block<'_>, at: &[u64; LANES], mask: u32, facts: &Facts) {
    let low = facts.low(at, mask);
    let one = b.job.snapshot.live.get(b.last_allocation).is_some_and(|a| a.contains(low, facts.span));
    match one && facts.sector_bits != 0 {
        true => b.counters.distinct_sectors += b.job.touch(b.last_allocation, low, facts.sector_bits),
        false => footprint_by_lane(b, at, mask),
    }
}

#[inline(never)]
fn footprint_by_lane(b: &mut Block<'_>, at: &[u64; LANES], mask: u32) {
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
        b.counters.distinct_sectors += b.job.touch(b.last_allocation, at[l], 1);
    }
}
