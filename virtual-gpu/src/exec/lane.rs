//! One lane's part of an access: its value in a register, and the finding that it makes.

use super::block::Block;
use super::warp::Warp;
use crate::finding::{Finding, FindingKind};
use crate::memory::{LOCAL_WINDOW, SHARED_WINDOW};
use crate::ptx::inst::{Access, Row, Space};

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
) -> Box<Finding> {
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
) -> Box<Finding> {
    fault(b, w, what, lane, FindingKind::Misaligned, format_args!("of {space} address 0x{at:x}"))
}

pub(super) fn uninitialized(
    b: &Block<'_>,
    w: &Warp,
    what: What,
    lane: usize,
    space: &str,
    at: u64,
) -> Box<Finding> {
    fault(b, w, what, lane, FindingKind::Uninitialized, format_args!("at {space} address 0x{at:x}"))
}

/// Where a space begins in the generic addresses.
pub(super) fn window(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        _ => 0,
    }
}

#[inline]
pub(super) fn extend(v: u64, a: Access) -> u64 {
    if a.signed {
        let n = 64 - 8 * a.size as u32;
        ((v << n) as i64 >> n) as u64
    } else {
        v
    }
}

#[inline(always)]
pub(super) fn set(w: &mut Warp, wide: bool, row: Row, lane: usize, v: u64) {
    if wide {
        w.regs.row64_mut(row)[lane] = v;
    } else {
        w.regs.row32_mut(row)[lane] = v as u32;
    }
}

#[inline]
pub(super) fn value(w: &Warp, wide: bool, row: Row, lane: usize) -> u64 {
    if wide { w.regs.row64(row)[lane] } else { w.regs.row32(row)[lane] as u64 }
}
