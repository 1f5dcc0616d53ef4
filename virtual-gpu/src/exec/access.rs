//! Loads and stores: the space of each lane's address, and global memory with all its checks.
//!
//! Global memory is shared by blocks that run on several CPU threads. All accesses to it are relaxed atomics of
//! the access's own width, so that a race of the kernel is a race of values and never undefined behaviour here.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::block::{Block, Check};
use super::global_races;
use super::races::Conflict;
use super::regs::LANES;
use super::scratch::{self, LOCAL, SHARED};
use super::traffic;
use super::warp::{Warp, lanes};
use crate::counters::Class;
use crate::finding::FindingKind;
use crate::memory::{LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES};
use crate::ptx::inst::*;

fn window(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        _ => 0,
    }
}

/// `cvta` and `isspacep`.
pub(super) fn address(w: &mut Warp, inst: &Inst, mask: u32) {
    let a = *w.regs.row64(inst.a);
    match inst.op {
        Op::Cvta { space, to, .. } => {
            let base = window(space);
            let d = w.regs.row64_mut(inst.d);
            for l in lanes(mask) {
                d[l] = if to { a[l].wrapping_sub(base) } else { a[l].wrapping_add(base) };
            }
        }
        Op::IsSpace { space } => {
            let mut t = 0;
            for (l, &a) in a.iter().enumerate() {
                t |= ((space_of(a) == space) as u32) << l;
            }
            w.regs.set_pred(inst.d, t, mask);
        }
        _ => {}
    }
}

fn space_of(address: u64) -> Space {
    if address.wrapping_sub(SHARED_WINDOW) < WINDOW_BYTES {
        Space::Shared
    } else if address.wrapping_sub(LOCAL_WINDOW) < WINDOW_BYTES {
        Space::Local
    } else {
        Space::Global
    }
}

pub(super) fn addresses(w: &Warp, inst: &Inst, wide: bool) -> [u64; LANES] {
    if wide {
        w.regs.row64(inst.a).map(|a| a.wrapping_add(inst.imm as u64))
    } else {
        w.regs.row32(inst.a).map(|a| a.wrapping_add(inst.imm as u32) as u64)
    }
}

/// Calls `f(space, addresses, lanes)` for each space that contains addresses of lanes, relative to the space's base.
pub(super) fn by_space(
    space: Space,
    at: &mut [u64; LANES],
    mask: u32,
    mut f: impl FnMut(Space, &[u64; LANES], u32) -> Check,
) -> Check {
    if space != Space::Generic {
        return f(space, at, mask);
    }
    let (mut shared, mut local) = (0u32, 0u32);
    for l in lanes(mask) {
        match space_of(at[l]) {
            Space::Shared => shared |= 1 << l,
            Space::Local => local |= 1 << l,
            _ => {}
        }
    }
    if mask & !shared & !local != 0 {
        f(Space::Global, at, mask & !shared & !local)?;
    }
    for (space, part) in [(Space::Shared, shared), (Space::Local, local)] {
        if part != 0 {
            for l in lanes(part) {
                at[l] -= window(space);
            }
            f(space, at, part)?;
        }
    }
    Ok(())
}

/// An access, as messages describe it.
#[derive(Clone, Copy)]
pub(super) struct What {
    pub verb: &'static str,
    pub bytes: u32,
    pub line: u32,
    /// Atomic or volatile: no race with its like.
    pub loose: bool,
}

/// The finding that a lane's access makes, `place` being where it is and what is wrong.
#[cold]
pub(super) fn fault(
    b: &Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    kind: FindingKind,
    place: impl std::fmt::Display,
) -> Box<crate::Finding> {
    let message = format!("{}-byte {} {place}", what.bytes, what.verb);
    b.finding(kind, what.line, w.id * 32 + lane as u32, message)
}

pub(super) fn misaligned(
    b: &Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    space: &str,
    at: u64,
) -> Box<crate::Finding> {
    fault(b, w, what, lane, FindingKind::Misaligned, format_args!("of {space} address 0x{at:x}"))
}

pub(super) fn uninitialized(
    b: &Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    space: &str,
    at: u64,
) -> Box<crate::Finding> {
    fault(b, w, what, lane, FindingKind::Uninitialized, format_args!("at {space} address 0x{at:x}"))
}

#[cold]
fn outside(b: &Block<'_>, w: &Warp, what: What, lane: usize, at: u64) -> Box<crate::Finding> {
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
fn unordered(b: &Block<'_>, w: &Warp, what: What, lane: usize, at: u64) -> Box<crate::Finding> {
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
unsafe fn put(p: *mut u8, size: u8, v: u64) {
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

pub(super) fn extend(v: u64, a: Access) -> u64 {
    if a.signed {
        let n = 64 - 8 * a.size as u32;
        ((v << n) as i64 >> n) as u64
    } else {
        v
    }
}

/// The data registers of an access.
fn rows<'f>(f: &'f Function, single: &'f Row, a: Access) -> &'f [Row] {
    if a.count == 1 { std::slice::from_ref(single) } else { &f.lists[*single as usize..][..a.count as usize] }
}

#[inline(always)]
pub(super) fn set(w: &mut Warp, wide: bool, row: Row, lane: usize, v: u64) {
    if wide {
        w.regs.row64_mut(row)[lane] = v;
    } else {
        w.regs.row32_mut(row)[lane] = v as u32;
    }
}

pub(super) fn value(w: &Warp, wide: bool, row: Row, lane: usize) -> u64 {
    if wide { w.regs.row64(row)[lane] } else { w.regs.row32(row)[lane] as u64 }
}

pub(super) fn race(
    b: &Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    at: u64,
    c: Conflict,
) -> Box<crate::Finding> {
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

pub(super) fn load(
    b: &mut Block<'_>,
    w: &mut Warp,
    f: &Function,
    inst: &Inst,
    a: Access,
    mask: u32,
) -> Check {
    let what = What { verb: "load", bytes: (a.size * a.count) as u32, line: inst.line, loose: a.volatile };
    let bytes = what.bytes;
    let rows = rows(f, &inst.d, a);
    if a.space == Space::Param && inst.a != NONE {
        let at = addresses(w, inst, a.addr_wide);
        for l in lanes(mask) {
            let from = usize::try_from(at[l]).unwrap_or(usize::MAX);
            let data = b.job.params.get(from..from.saturating_add(bytes as usize));
            let Some(data) = data.filter(|_| from.is_multiple_of(bytes as usize)) else {
                let place = format_args!("at parameter offset {from}");
                return Err(fault(b, w, what, l, FindingKind::OutOfBounds, place));
            };
            for (k, &row) in rows.iter().enumerate() {
                let mut v = [0; 8];
                v[..a.size as usize].copy_from_slice(&data[k * a.size as usize..][..a.size as usize]);
                set(w, a.wide, row, l, extend(u64::from_le_bytes(v), a));
            }
        }
        return Ok(());
    }
    if a.space == Space::Param {
        let at = inst.imm as usize;
        let Some(data) = b.job.params.get(at..at + bytes as usize) else {
            let (first, place) = (mask.trailing_zeros() as usize, format_args!("at parameter offset {at}"));
            return Err(fault(b, w, what, first, FindingKind::OutOfBounds, place));
        };
        for (k, &row) in rows.iter().enumerate() {
            let mut v = [0; 8];
            v[..a.size as usize].copy_from_slice(&data[k * a.size as usize..][..a.size as usize]);
            let v = extend(u64::from_le_bytes(v), a);
            for l in lanes(mask) {
                set(w, a.wide, row, l, v);
            }
        }
        return Ok(());
    }
    let mut at = addresses(w, inst, a.addr_wide);
    by_space(a.space, &mut at, mask, |space, at, mask| match space {
        Space::Shared => scratch::load::<SHARED>(b, w, rows, a, what, at, mask),
        Space::Local => scratch::load::<LOCAL>(b, w, rows, a, what, at, mask),
        _ => {
            for l in lanes(mask) {
                let (p, shadow) = global(b, w, what, l, at[l])?;
                // SAFETY: `global` checked bounds and alignment; the shadow is aligned as the data.
                let known = shadow.is_none_or(|s| unsafe { written(s, bytes) });
                if !known {
                    return Err(uninitialized(b, w, what, l, "global", at[l]));
                }
                if let (Some(not_yet), Some(s)) = (&b.job.unordered, shadow) {
                    // SAFETY: the access was located, so the shadow has `bytes` bytes from `s` on; one is read after the other.
                    let early = |i| not_yet[unsafe { get(s.add(i), 1) } as usize];
                    if (0..bytes as usize).any(early) {
                        return Err(unordered(b, w, what, l, at[l]));
                    }
                }
                if let Some(remote) = &b.job.remote
                    && (b.job.memory.foreign(at[l]).is_some() || crate::memory::device_of(at[l]).is_none())
                {
                    remote.note(at[l], bytes.into());
                }
                if let Some(races) = b.job.global_races.as_ref().filter(|_| !what.loose) {
                    let n = b.last_allocation;
                    let by = global_party(b, w, what.line);
                    let conflict = races.read(n, &b.job.snapshot.live[n], at[l], bytes, by);
                    no_global_race(b, w, what, l, at[l], conflict)?;
                }
                for (k, &row) in rows.iter().enumerate() {
                    // SAFETY: the access was located, so its bytes from `p` on are inside the allocation, and element k is one of them.
                    let v = unsafe { get(p.add(k * a.size as usize), a.size) };
                    set(w, a.wide, row, l, extend(v, a));
                }
            }
            if inst.class != Class::Constant {
                count_global(b, at, mask, bytes, true);
            }
            Ok(())
        }
    })
}

pub(super) fn store(
    b: &mut Block<'_>,
    w: &mut Warp,
    f: &Function,
    inst: &Inst,
    a: Access,
    mask: u32,
) -> Check {
    let what = What { verb: "store", bytes: (a.size * a.count) as u32, line: inst.line, loose: a.volatile };
    let bytes = what.bytes;
    let rows = rows(f, &inst.b, a);
    let mut at = addresses(w, inst, a.addr_wide);
    by_space(a.space, &mut at, mask, |space, at, mask| match space {
        Space::Shared => scratch::store::<SHARED>(b, w, rows, a, what, at, mask),
        Space::Local => scratch::store::<LOCAL>(b, w, rows, a, what, at, mask),
        _ => {
            for l in lanes(mask) {
                let (p, shadow) = global(b, w, what, l, at[l])?;
                if let Some(races) = b.job.global_races.as_ref().filter(|_| !what.loose) {
                    let differs = rows.iter().enumerate().any(|(k, &row)| {
                        // SAFETY: `global` checked bounds and alignment; element k is inside the access.
                        let old = unsafe { get(p.add(k * a.size as usize), a.size) };
                        old != value(w, a.wide, row, l) & (u64::MAX >> (64 - 8 * u32::from(a.size)))
                    });
                    let n = b.last_allocation;
                    let by = global_party(b, w, what.line);
                    let conflict = races.write(n, &b.job.snapshot.live[n], at[l], bytes, by, differs);
                    no_global_race(b, w, what, l, at[l], conflict)?;
                }
                for (k, &row) in rows.iter().enumerate() {
                    // SAFETY: `global` checked bounds and alignment; element k is inside the access.
                    unsafe { put(p.add(k * a.size as usize), a.size, value(w, a.wide, row, l)) };
                }
                if let Some(s) = shadow {
                    // SAFETY: the shadow has the data's size and alignment.
                    unsafe { mark(s, bytes, b.job.writer) };
                }
            }
            count_global(b, at, mask, bytes, false);
            Ok(())
        }
    })
}

fn global_party<'w>(b: &Block<'_>, w: &'w Warp, line: u32) -> global_races::Party<'w> {
    global_races::Party { block: b.linear, warp: w.id as usize, clock: &w.clock, line }
}

#[inline(always)]
fn no_global_race(
    b: &Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    at: u64,
    conflict: Option<global_races::Conflict>,
) -> Check {
    conflict.map_or(Ok(()), |conflict| Err(global_race(b, w, what, lane, at, conflict)))
}

#[cold]
fn global_race(
    b: &Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    at: u64,
    c: global_races::Conflict,
) -> Box<crate::Finding> {
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

fn count_global(b: &mut Block<'_>, at: &[u64; LANES], mask: u32, bytes: u32, load: bool) {
    if b.job.config.traffic {
        let t = if load { &mut b.counters.global_loads } else { &mut b.counters.global_stores };
        t.count(traffic::sectors(at, mask, bytes), mask, bytes);
        footprint(b, at, mask);
    }
}

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
