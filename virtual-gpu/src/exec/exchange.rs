//! Shuffles, votes and warp barriers, and the check that the lanes they name are converged.

use super::block::{Block, Check};
use super::regs::{FULL, LANES, Scalar, lanes, load_wide};
use super::warp::Warp;
use crate::finding::FindingKind;
use crate::ptx::inst::*;

/// Checks that the lanes of each executing lane's mask execute this instruction together.
///
/// On sm_61 the hardware ignores the mask. A diverged lane does not execute it, and the result is silently
/// wrong.
#[inline(always)]
pub(super) fn converged(b: &Block<'_>, w: &Warp, inst: &Inst, mask: u32) -> Check {
    if mask == 0 || !b.job.config.checks.convergence {
        return Ok(());
    }
    let named = w.regs.row32(inst.imm as Row);
    // the usual case: each lane names those that are here
    if (0..LANES).fold(0, |differ, l| differ | (named[l] ^ mask) & (mask >> l & 1).wrapping_neg()) == 0 {
        return Ok(());
    }
    for lane in lanes(mask) {
        let thread = w.id * 32 + lane as u32;
        if named[lane] >> lane & 1 == 0 {
            let message = format!("the mask 0x{:08x} does not name the executing lane {lane}", named[lane]);
            return Err(b.finding(FindingKind::NotConverged, inst.line, thread, message));
        }
        let missing = named[lane] & w.live & !mask;
        if missing != 0 {
            let message = format!(
                "the mask 0x{:08x} names lane {}, which is not here: the lanes 0x{mask:08x} execute this together",
                named[lane],
                missing.trailing_zeros()
            );
            return Err(b.finding(FindingKind::NotConverged, inst.line, thread, message));
        }
        if mask & !named[lane] != 0 {
            let message = format!(
                "the mask 0x{:08x} leaves out lane {}, which executes this too",
                named[lane],
                (mask & !named[lane]).trailing_zeros()
            );
            return Err(b.finding(FindingKind::NotConverged, inst.line, thread, message));
        }
    }
    Ok(())
}

#[inline(always)]
pub(super) fn shuffle(b: &Block<'_>, w: &mut Warp, inst: &Inst, mode: Shfl, sync: bool, mask: u32) -> Check {
    if sync {
        converged(b, w, inst, mask)?;
    }
    let value = *w.regs.row32(inst.a);
    let (amount, clamp) = (*w.regs.row32(inst.b), *w.regs.row32(inst.c));
    let (mut out, mut sources, mut inside) = (value, [0; LANES], 0u32);
    for lane in 0..LANES {
        // Source: the pseudo-code of shfl in the PTX ISA.
        let bound = clamp[lane] & 31;
        let segment = clamp[lane] >> 8 & 31;
        let (l, n) = (lane as u32, amount[lane] & 31);
        let most = (l & segment) | (bound & !segment);
        let least = l & segment;
        let (source, ok) = match mode {
            Shfl::Up => (l.wrapping_sub(n), l as i32 - n as i32 >= most as i32),
            Shfl::Down => (l + n, l + n <= most),
            Shfl::Bfly => (l ^ n, l ^ n <= most),
            Shfl::Idx => (least | (n & !segment), least | (n & !segment) <= most),
        };
        sources[lane] = if ok { source } else { l } % LANES as u32;
        inside |= (ok as u32) << lane;
        out[lane] = value[sources[lane] as usize];
    }
    if b.job.config.checks.convergence
        && mask != FULL
        && let Some(lane) = lanes(mask).find(|&lane| mask >> sources[lane] & 1 == 0)
    {
        let message = format!("lane {lane} reads lane {}, which is not active", sources[lane]);
        let thread = w.id * 32 + lane as u32;
        return Err(b.finding(FindingKind::ShuffleInactive, inst.line, thread, message));
    }
    u32::store(&mut w.regs, inst.d, &out, mask);
    if inst.e != NONE {
        w.regs.set_pred(inst.e, inside, mask);
    }
    Ok(())
}

/// `match.any`, and `match.all` if it has a predicate.
pub(super) fn equal_lanes(b: &Block<'_>, w: &mut Warp, inst: &Inst, wide: bool, mask: u32) -> Check {
    converged(b, w, inst, mask)?;
    let value = load_wide(&w.regs, inst.a, wide);
    let equal: [u32; LANES] = std::array::from_fn(|l| {
        lanes(mask).filter(|&other| value[other] == value[l]).fold(0, |all, other| all | 1 << other)
    });
    let all = inst.e != NONE;
    let d = w.regs.row32_mut(inst.d);
    for lane in lanes(mask) {
        d[lane] = if all && equal[lane] != mask { 0 } else { equal[lane] };
    }
    if all {
        let first = mask.trailing_zeros() as usize % LANES;
        w.regs.set_pred(inst.e, if equal[first] == mask { FULL } else { 0 }, mask);
    }
    Ok(())
}

pub(super) fn vote(b: &Block<'_>, w: &mut Warp, inst: &Inst, mode: Vote, sync: bool, mask: u32) -> Check {
    if sync {
        converged(b, w, inst, mask)?;
    }
    let yes = w.regs.pred(inst.a) & mask;
    let all = |t: bool| if t { FULL } else { 0 };
    match mode {
        Vote::All => w.regs.set_pred(inst.d, all(yes == mask), mask),
        Vote::Any => w.regs.set_pred(inst.d, all(yes != 0), mask),
        Vote::Uni => w.regs.set_pred(inst.d, all(yes == mask || yes == 0), mask),
        Vote::Ballot => {
            let d = w.regs.row32_mut(inst.d);
            for lane in lanes(mask) {
                d[lane] = yes;
            }
        }
    }
    Ok(())
}
