//! Loads and stores: the space of each lane's address, and its memory.

use super::block::{Block, Check};
use super::carried;
use super::global::{self, count_global};
use super::lane::{What, extend, fault, set, window};
use super::order::{self, Strong};
use super::regs::{LANES, lanes};
use super::scratch::{self, LOCAL, SHARED};
use super::shape::{Count, Facts};
use super::warp::Warp;
use crate::counters::Class;
use crate::finding::FindingKind;
use crate::memory::{LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES};
use crate::ptx::inst::*;

/// `cvta` and `isspacep`.
#[inline(always)]
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

#[inline(always)]
pub(super) fn addresses(w: &Warp, inst: &Inst, wide: bool) -> [u64; LANES] {
    if wide {
        w.regs.row64(inst.a).map(|a| a.wrapping_add(inst.imm as u64))
    } else {
        w.regs.row32(inst.a).map(|a| a.wrapping_add(inst.imm as u32) as u64)
    }
}

/// The spaces that contain addresses of lanes, each with these lanes, whose addresses become relative to the space's base.
#[inline(always)]
pub(super) fn by_space(space: Space, at: &mut [u64; LANES], mask: u32) -> [(Space, u32); 3] {
    if space != Space::Generic {
        return [(space, mask), (space, 0), (space, 0)];
    }
    let (mut shared, mut local) = (0u32, 0u32);
    for l in lanes(mask) {
        match space_of(at[l]) {
            Space::Shared => shared |= 1 << l,
            Space::Local => local |= 1 << l,
            _ => {}
        }
    }
    for (space, part) in [(Space::Shared, shared), (Space::Local, local)] {
        for l in lanes(part) {
            at[l] -= window(space);
        }
    }
    [(Space::Global, mask & !shared & !local), (Space::Shared, shared), (Space::Local, local)]
}

/// `number`: that of the instruction in its module.
#[inline(always)]
pub(super) fn load(
    b: &mut Block<'_>,
    w: &mut Warp,
    f: &Function,
    (inst, number): (&Inst, usize),
    a: Access,
    mask: u32,
) -> Check {
    let what = What { verb: "load", bytes: (a.size * a.count) as u32, line: inst.line, loose: a.strong };
    let bytes = what.bytes;
    let rows = a.rows(f, &inst.d);
    if !w.regs.unwritten.is_empty() {
        carried::forget(w, rows, a.wide, mask);
    }
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
    for (space, mask) in by_space(a.space, &mut at, mask).into_iter().filter(|&(_, mask)| mask != 0) {
        let at = &at;
        match space {
            Space::Shared => {
                let facts = b.facts(number, at, mask, bytes, Count::Wavefronts);
                scratch::load::<SHARED>(b, w, (rows, a), what, at, mask, &facts)?;
            }
            Space::Local => scratch::load::<LOCAL>(b, w, (rows, a), what, at, mask, &Facts::default())?,
            _ => {
                let facts = b.facts(number, at, mask, bytes, Count::Sectors);
                global::load(b, w, (rows, a), what, at, mask, &facts)?;
                if inst.class != Class::Constant {
                    count_global(b, at, mask, bytes, true, &facts);
                }
            }
        }
        if a.strong && b.job.orders && space != Space::Local {
            let strong = Strong { reads: true, writes: false, order: a.order };
            order::note(b, w, strong, (space, at), mask);
        }
    }
    Ok(())
}

/// As [`load`].
#[inline(always)]
pub(super) fn store(
    b: &mut Block<'_>,
    w: &mut Warp,
    f: &Function,
    (inst, number): (&Inst, usize),
    a: Access,
    mask: u32,
) -> Check {
    let what = What { verb: "store", bytes: (a.size * a.count) as u32, line: inst.line, loose: a.strong };
    let bytes = what.bytes;
    let rows = a.rows(f, &inst.b);
    let mut at = addresses(w, inst, a.addr_wide);
    for (space, mask) in by_space(a.space, &mut at, mask).into_iter().filter(|&(_, mask)| mask != 0) {
        let at = &at;
        if space != Space::Local && !w.regs.unwritten.is_empty() {
            carried::leave(b, w, (rows, a), what, (space, at), mask)?;
        }
        match space {
            Space::Shared => {
                let facts = b.facts(number, at, mask, bytes, Count::Wavefronts);
                scratch::store::<SHARED>(b, w, (rows, a), what, at, mask, &facts)?;
            }
            Space::Local => {
                scratch::store::<LOCAL>(b, w, (rows, a), what, at, mask, &Facts::default())?;
                if !w.regs.unwritten.is_empty() {
                    carried::store(b, w, (rows, a), at, mask);
                }
            }
            _ => {
                let facts = b.facts(number, at, mask, bytes, Count::Sectors);
                global::store(b, w, (rows, a), what, at, mask, &facts)?;
                count_global(b, at, mask, bytes, false, &facts);
            }
        }
        if a.strong && b.job.orders && space != Space::Local {
            let strong = Strong { reads: false, writes: true, order: a.order };
            order::note(b, w, strong, (space, at), mask);
        }
    }
    Ok(())
}
