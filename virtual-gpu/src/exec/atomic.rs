//! Atomics on global and shared memory.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use half::f16;

use super::access::{addresses, by_space};
use super::block::{Block, Check};
use super::float::{canonical, flush};
use super::global::{footprint, global, mark, written};
use super::lane::{What, fault, set, uninitialized, value};
use super::order::{self, Strong};
use super::regs::lanes;
use super::scratch::{SHARED, bytes_at, checked, no_race, party, set_bytes};
use super::shape::Count;
use super::warp::Warp;
use crate::finding::FindingKind;
use crate::ptx::inst::*;

pub(super) fn atomic(
    b: &mut Block<'_>,
    w: &mut Warp,
    (inst, number): (&Inst, usize),
    (op, ty, order): (Atom, Num, Order),
    (space, addr_wide): (Space, bool),
    mask: u32,
) -> Check {
    let size = (ty.bits() / 8) as u8;
    let what = What { verb: "atomic", bytes: size as u32, line: inst.line, loose: true };
    let wide = size == 8;
    let mut at = addresses(w, inst, addr_wide);
    for (space, mask) in by_space(space, &mut at, mask).into_iter().filter(|&(_, mask)| mask != 0) {
        let at = &at;
        if space == Space::Local {
            let l = mask.trailing_zeros() as usize;
            let place = format_args!("at local address 0x{:x}", at[l]);
            return Err(fault(b, w, what, l, FindingKind::OutOfBounds, place));
        }
        for l in lanes(mask) {
            let bits = u64::MAX >> (64 - ty.bits());
            let x = value(w, wide, inst.b, l) & bits;
            let y = if inst.c == NONE { 0 } else { value(w, wide, inst.c, l) & bits };
            let old = if space == Space::Shared {
                shared_atomic(b, w, what, l, at[l], |old| combine(op, ty, false, old, x, y))?
            } else {
                let (p, shadow) = global(b, w, what, l, at[l])?;
                if let Some(s) = shadow {
                    // SAFETY: `global` checked bounds and alignment; the shadow is aligned as the data.
                    if !unsafe { written(s, size as u32) } && op != Atom::Exch {
                        return Err(uninitialized(b, w, what, l, "global", at[l]));
                    }
                    // SAFETY: the access was located, so the shadow has `size` bytes from `s` on.
                    unsafe { mark(s, size as u32, b.job.writer) };
                }
                // SAFETY: the access was located and is aligned, so `p` points to `size` bytes of the allocation.
                unsafe { update(p, size, |old| combine(op, ty, true, old, x, y)) }
            };
            if inst.d != NONE {
                set(w, wide, inst.d, l, old);
            }
        }
        if b.job.orders {
            order::note(b, w, Strong { reads: true, writes: true, order }, (space, at), mask);
        }
        if b.job.config.traffic && space == Space::Global {
            let facts = b.facts(number, at, mask, size.into(), Count::Sectors);
            b.counters.atomics.count(facts.units, mask, size.into());
            footprint(b, at, mask, &facts);
        }
    }
    Ok(())
}

fn shared_atomic(
    b: &mut Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    at: u64,
    f: impl Fn(u64) -> u64,
) -> Check<u64> {
    let n = what.bytes as usize;
    let o = checked::<SHARED>(b, w, what, lane, at)?;
    if b.job.config.checks.races {
        let conflict = b.races.write(o, n, party(w, what, lane), true, true);
        no_race(b, w, what, lane, at, conflict)?;
    }
    let old = bytes_at(&b.shared, o, n as u8);
    set_bytes(&mut b.shared, o, n as u8, f(old));
    Ok(old)
}

/// Atomically replaces a value and returns the old one.
///
/// # Safety
/// As [`super::global::get`], with a size of 2, 4 or 8.
unsafe fn update(p: *mut u8, size: u8, f: impl Fn(u64) -> u64) -> u64 {
    // SAFETY: `p` points to `size` bytes of a live allocation, aligned: this function's contract.
    unsafe {
        if size == 2 {
            let a = AtomicU16::from_ptr(p.cast());
            let r = a.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| Some(f(v as u64) as u16));
            r.unwrap_or_else(|v| v) as u64
        } else if size == 4 {
            let a = AtomicU32::from_ptr(p.cast());
            let r = a.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| Some(f(v as u64) as u32));
            r.unwrap_or_else(|v| v) as u64
        } else {
            let a = AtomicU64::from_ptr(p.cast());
            a.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| Some(f(v))).unwrap_or_else(|v| v)
        }
    }
}

/// The value that an atomic stores: `x` is its operand, for `cas` the value compared with and `y` the new one.
fn combine(op: Atom, ty: Num, global: bool, old: u64, x: u64, y: u64) -> u64 {
    match (op, ty) {
        (Atom::And, _) => old & x,
        (Atom::Or, _) => old | x,
        (Atom::Xor, _) => old ^ x,
        (Atom::Exch, _) => x,
        (Atom::Cas, _) if old == x => y,
        (Atom::Cas, _) => old,
        // On global memory subnormal inputs and results are flushed, on shared memory kept.
        (Atom::Add, Num::F32) => {
            let (old, x) = (f32::from_bits(old as u32), f32::from_bits(x as u32));
            let sum = if global { flush(canonical(flush(old) + flush(x))) } else { canonical(old + x) };
            sum.to_bits() as u64
        }
        (Atom::Add, Num::F16) => {
            let sum = f16::from_bits(old as u16).to_f64() + f16::from_bits(x as u16).to_f64();
            u64::from(if sum.is_nan() { 0x7fff } else { f16::from_f64(sum).to_bits() })
        }
        (Atom::Add, Num::F64) => (f64::from_bits(old) + f64::from_bits(x)).to_bits(),
        (Atom::Add, _) => old.wrapping_add(x),
        (Atom::Inc, _) if old >= x => 0,
        (Atom::Inc, _) => old + 1,
        (Atom::Dec, _) if old == 0 || old > x => x,
        (Atom::Dec, _) => old - 1,
        (Atom::Min, Num::S32) => (old as i32).min(x as i32) as u32 as u64,
        (Atom::Max, Num::S32) => (old as i32).max(x as i32) as u32 as u64,
        (Atom::Min, Num::S64) => (old as i64).min(x as i64) as u64,
        (Atom::Max, Num::S64) => (old as i64).max(x as i64) as u64,
        (Atom::Min, _) => old.min(x),
        (Atom::Max, _) => old.max(x),
    }
}
