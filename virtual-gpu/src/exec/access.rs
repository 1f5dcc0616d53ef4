//! Loads, stores and atomics, with every check on them.
//!
//! Global memory is shared by blocks that run on several CPU threads. All accesses to it are relaxed atomics of
//! the access's own width, so that a race of the kernel is a race of values and never undefined behaviour here.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::block::{Block, Check};
use super::races::{Conflict, Party};
use super::regs::LANES;
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

fn addresses(w: &Warp, inst: &Inst, wide: bool) -> [u64; LANES] {
    if wide {
        w.regs.row64(inst.a).map(|a| a.wrapping_add(inst.imm as u64))
    } else {
        w.regs.row32(inst.a).map(|a| a.wrapping_add(inst.imm as u32) as u64)
    }
}

/// Calls `f(space, addresses, lanes)` for each space that the lanes' addresses lie in, relative to its base.
fn by_space(
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

/// What an access does, for messages.
#[derive(Clone, Copy)]
struct What {
    verb: &'static str,
    bytes: u32,
    line: u32,
}

fn misaligned(b: &Block<'_>, w: &Warp, what: What, lane: usize, space: &str, at: u64) -> Box<crate::Finding> {
    let message = format!("{}-byte {} of {space} address 0x{at:x}", what.bytes, what.verb);
    b.finding(FindingKind::Misaligned, what.line, w.id * 32 + lane as u32, message)
}

#[cold]
fn outside(b: &Block<'_>, w: &Warp, what: What, lane: usize, at: u64) -> Box<crate::Finding> {
    let (freed, near) = b.job.memory.describe(at);
    let kind = if freed { FindingKind::UseAfterFree } else { FindingKind::OutOfBounds };
    let message = format!("{}-byte {} at 0x{at:x}, {near}", what.bytes, what.verb);
    b.finding(kind, what.line, w.id * 32 + lane as u32, message)
}

/// Host pointer and shadow of one lane's global access, after all checks.
#[inline(always)]
fn global(
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
unsafe fn get(p: *mut u8, size: u8) -> u64 {
    // SAFETY: the caller's promise; other threads access these bytes through atomics only.
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
    // SAFETY: the caller's promise; other threads access these bytes through atomics only.
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
unsafe fn written(s: *mut u8, bytes: u32) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // SAFETY: the caller's promise.
    unsafe {
        match bytes {
            16 => get(s, 8) == ONES && get(s.add(8), 8) == ONES,
            n => get(s, n as u8) == ONES >> (64 - 8 * n),
        }
    }
}

/// # Safety
/// As [`written`].
#[inline(always)]
unsafe fn mark(s: *mut u8, bytes: u32) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // SAFETY: the caller's promise.
    unsafe {
        match bytes {
            16 => {
                put(s, 8, ONES);
                put(s.add(8), 8, ONES);
            }
            n => put(s, n as u8, ONES),
        }
    }
}

fn extend(v: u64, a: Access) -> u64 {
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
fn set(w: &mut Warp, wide: bool, row: Row, lane: usize, v: u64) {
    if wide {
        w.regs.row64_mut(row)[lane] = v;
    } else {
        w.regs.row32_mut(row)[lane] = v as u32;
    }
}

fn value(w: &Warp, wide: bool, row: Row, lane: usize) -> u64 {
    if wide { w.regs.row64(row)[lane] } else { w.regs.row32(row)[lane] as u64 }
}

fn unread(b: &Block<'_>, w: &Warp, what: What, lane: usize, space: &str, at: u64) -> Box<crate::Finding> {
    let message = format!("{}-byte {} at {space} address 0x{at:x}", what.bytes, what.verb);
    b.finding(FindingKind::Uninitialized, what.line, w.id * 32 + lane as u32, message)
}

fn race(b: &Block<'_>, w: &Warp, what: What, lane: usize, at: u64, c: Conflict) -> Box<crate::Finding> {
    let [x, y, z] = b.thread(c.thread as u32);
    let did = if c.wrote { "wrote" } else { "read" };
    let message = format!(
        "{}-byte {} at shared address 0x{at:x}, which thread ({x},{y},{z}) {did} at line {} with no barrier between",
        what.bytes, what.verb, c.line
    );
    b.finding(FindingKind::SharedRace, what.line, w.id * 32 + lane as u32, message)
}

pub(super) fn load(
    b: &mut Block<'_>,
    w: &mut Warp,
    f: &Function,
    inst: &Inst,
    a: Access,
    mask: u32,
) -> Check {
    let what = What { verb: "load", bytes: (a.size * a.count) as u32, line: inst.line };
    let bytes = what.bytes;
    let rows = rows(f, &inst.d, a);
    if a.space == Space::Param {
        let at = inst.imm as usize;
        let Some(data) = b.job.params.get(at..at + bytes as usize) else {
            let message = format!("{bytes}-byte load at parameter offset {at}");
            return Err(b.finding(
                FindingKind::OutOfBounds,
                inst.line,
                w.id * 32 + mask.trailing_zeros(),
                message,
            ));
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
        Space::Shared => load_shared(b, w, rows, a, what, at, mask),
        Space::Local => load_local(b, w, rows, a, what, at, mask),
        _ => {
            for l in lanes(mask) {
                let (p, shadow) = global(b, w, what, l, at[l])?;
                // SAFETY: `global` checked bounds and alignment; the shadow is aligned as the data.
                let known = shadow.is_none_or(|s| unsafe { written(s, bytes) });
                if !known {
                    return Err(unread(b, w, what, l, "global", at[l]));
                }
                for (k, &row) in rows.iter().enumerate() {
                    // SAFETY: as above; element k lies inside the checked access.
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
    let what = What { verb: "store", bytes: (a.size * a.count) as u32, line: inst.line };
    let bytes = what.bytes;
    let rows = rows(f, &inst.b, a);
    let mut at = addresses(w, inst, a.addr_wide);
    by_space(a.space, &mut at, mask, |space, at, mask| match space {
        Space::Shared => store_shared(b, w, rows, a, what, at, mask),
        Space::Local => store_local(b, w, rows, a, what, at, mask),
        _ => {
            for l in lanes(mask) {
                let (p, shadow) = global(b, w, what, l, at[l])?;
                for (k, &row) in rows.iter().enumerate() {
                    // SAFETY: `global` checked bounds and alignment; element k lies inside the access.
                    unsafe { put(p.add(k * a.size as usize), a.size, value(w, a.wide, row, l)) };
                }
                if let Some(s) = shadow {
                    // SAFETY: the shadow has the data's size and alignment.
                    unsafe { mark(s, bytes) };
                }
            }
            count_global(b, at, mask, bytes, false);
            Ok(())
        }
    })
}

fn count_global(b: &mut Block<'_>, at: &[u64; LANES], mask: u32, bytes: u32, load: bool) {
    if !b.job.config.traffic {
        return;
    }
    let t = if load { &mut b.counters.global_loads } else { &mut b.counters.global_stores };
    t.requests += 1;
    t.units += traffic::sectors(at, mask, bytes) as u64;
    t.bytes += mask.count_ones() as u64 * bytes as u64;
    footprint(b, at, mask);
}

fn footprint(b: &mut Block<'_>, at: &[u64; LANES], mask: u32) {
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
fn shared(b: &Block<'_>, w: &Warp, what: What, lane: usize, at: u64) -> Check<usize> {
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
fn bytes_at(memory: &[u8], at: usize, size: u8) -> u64 {
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
fn set_bytes(memory: &mut [u8], at: usize, size: u8, v: u64) {
    let v = v.to_le_bytes();
    match size {
        1 => memory[at..at + 1].copy_from_slice(&v[..1]),
        2 => memory[at..at + 2].copy_from_slice(&v[..2]),
        4 => memory[at..at + 4].copy_from_slice(&v[..4]),
        _ => memory[at..at + 8].copy_from_slice(&v),
    }
}

fn load_shared(
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
            return Err(unread(b, w, what, l, "shared", at[l]));
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

fn store_shared(
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

fn party<'w>(w: &'w Warp, what: What, lane: usize) -> Party<'w> {
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

fn load_local(
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
            return Err(unread(b, w, what, l, "local", at[l]));
        }
        for (k, &row) in rows.iter().enumerate() {
            let v = bytes_at(&w.local, o + k * a.size as usize, a.size);
            set(w, a.wide, row, l, extend(v, a));
        }
    }
    count_local(b, mask, what.bytes);
    Ok(())
}

fn store_local(
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

pub(super) fn atomic(
    b: &mut Block<'_>,
    w: &mut Warp,
    inst: &Inst,
    op: Atom,
    ty: Num,
    space: Space,
    addr_wide: bool,
    mask: u32,
) -> Check {
    let size = (ty.bits() / 8) as u8;
    let what = What { verb: "atomic", bytes: size as u32, line: inst.line };
    let wide = size == 8;
    let mut at = addresses(w, inst, addr_wide);
    by_space(space, &mut at, mask, |space, at, mask| {
        if space == Space::Local {
            let l = mask.trailing_zeros();
            let message = format!("{size}-byte atomic at local address 0x{:x}", at[l as usize]);
            return Err(b.finding(FindingKind::OutOfBounds, inst.line, w.id * 32 + l, message));
        }
        for l in lanes(mask) {
            let x = value(w, wide, inst.b, l);
            let y = if inst.c == NONE { 0 } else { value(w, wide, inst.c, l) };
            let old = if space == Space::Shared {
                shared_atomic(b, w, what, l, at[l], |old| combine(op, ty, old, x, y))?
            } else {
                let (p, shadow) = global(b, w, what, l, at[l])?;
                if let Some(s) = shadow {
                    // SAFETY: `global` checked bounds and alignment; the shadow is as the data.
                    if !unsafe { written(s, size as u32) } && op != Atom::Exch {
                        return Err(unread(b, w, what, l, "global", at[l]));
                    }
                    // SAFETY: as above.
                    unsafe { mark(s, size as u32) };
                }
                // SAFETY: as above.
                unsafe { update(p, size, |old| combine(op, ty, old, x, y)) }
            };
            if inst.d != NONE {
                set(w, wide, inst.d, l, old);
            }
        }
        if b.job.config.traffic && space == Space::Global {
            let t = &mut b.counters.atomics;
            t.requests += 1;
            t.units += traffic::sectors(at, mask, size as u32) as u64;
            t.bytes += mask.count_ones() as u64 * size as u64;
            footprint(b, at, mask);
        }
        Ok(())
    })
}

fn shared_atomic(
    b: &mut Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    at: u64,
    f: impl Fn(u64) -> u64,
) -> Check<u64> {
    let checks = b.job.config.checks;
    let n = what.bytes as usize;
    let o = shared(b, w, what, lane, at)?;
    if checks.uninitialized && b.shared_written[o..o + n].contains(&0) {
        return Err(unread(b, w, what, lane, "shared", at));
    }
    if checks.races
        && let Some(c) = b.races.write(o, n, party(w, what, lane), true, true)
    {
        return Err(race(b, w, what, lane, at, c));
    }
    let old = bytes_at(&b.shared, o, n as u8);
    set_bytes(&mut b.shared, o, n as u8, f(old));
    Ok(old)
}

/// Atomically replaces a value and returns the old one.
///
/// # Safety
/// As [`get`], with a size of 4 or 8.
unsafe fn update(p: *mut u8, size: u8, f: impl Fn(u64) -> u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        if size == 4 {
            let a = AtomicU32::from_ptr(p.cast());
            let r = a.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| Some(f(v as u64) as u32));
            r.unwrap_or_else(|v| v) as u64
        } else {
            let a = AtomicU64::from_ptr(p.cast());
            a.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| Some(f(v))).unwrap_or_else(|v| v)
        }
    }
}

/// The value that an atomic leaves: `x` its operand, `y` the new value of `cas`.
fn combine(op: Atom, ty: Num, old: u64, x: u64, y: u64) -> u64 {
    let f32_sum = || {
        // Shared and global f32 atomics round to nearest; the global ones flush subnormals.
        (f32::from_bits(old as u32) + f32::from_bits(x as u32)).to_bits() as u64
    };
    match (op, ty) {
        (Atom::And, _) => old & x,
        (Atom::Or, _) => old | x,
        (Atom::Xor, _) => old ^ x,
        (Atom::Exch, _) => x,
        (Atom::Cas, _) => {
            if old == x {
                y
            } else {
                old
            }
        }
        (Atom::Add, Num::F32) => f32_sum(),
        (Atom::Add, Num::F64) => (f64::from_bits(old) + f64::from_bits(x)).to_bits(),
        (Atom::Add, _) => old.wrapping_add(x),
        (Atom::Inc, _) => {
            if old >= x {
                0
            } else {
                old + 1
            }
        }
        (Atom::Dec, _) => {
            if old == 0 || old > x {
                x
            } else {
                old - 1
            }
        }
        (Atom::Min, Num::S32) => (old as i32).min(x as i32) as u32 as u64,
        (Atom::Max, Num::S32) => (old as i32).max(x as i32) as u32 as u64,
        (Atom::Min, Num::S64) => (old as i64).min(x as i64) as u64,
        (Atom::Max, Num::S64) => (old as i64).max(x as i64) as u64,
        (Atom::Min, _) => old.min(x),
        (Atom::Max, _) => old.max(x),
    }
}
