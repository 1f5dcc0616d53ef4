//! Bytes that nothing has written, on their way from local memory to local memory through registers that do nothing else. They are
//! unwritten in the copy too; another use of them is a finding.

use super::block::{Block, Check};
use super::lane::{What, fault, uninitialized};
use super::regs::{LANES, lanes};
use super::warp::Warp;
use crate::finding::FindingKind;
use crate::ptx::carriers::carriers;
use crate::ptx::inst::{Access, Row, Space};

fn key(w: &Warp, wide: bool, row: Row) -> (bool, usize) {
    (wide, row as usize + if wide { w.regs.base64 } else { w.regs.base32 })
}

/// Whether a register of the running function only carries.
fn carries(b: &Block<'_>, w: &Warp, wide: bool, row: Row) -> bool {
    w.frames.last().is_some_and(|frame| {
        let f = &b.job.functions[frame.function as usize];
        let slot = if wide { f.rows32 + row } else { row };
        f.carriers.get_or_init(|| carriers(f)).get(slot as usize).copied().unwrap_or(false)
    })
}

/// By lane, of the bytes that a store takes from a register those that nothing has written. `None`: none of any lane.
fn unwritten(b: &Block<'_>, w: &Warp, a: Access, row: Row) -> Option<[u8; LANES]> {
    // a register of a function that has returned may have had the row
    let lanes = w.regs.unwritten.get(&key(w, a.wide, row)).filter(|_| carries(b, w, a.wide, row))?;
    Some(lanes.map(|bytes| bytes & (u8::MAX >> (8 - a.size))))
}

/// Registers are loaded anew.
pub(super) fn forget(w: &mut Warp, rows: &[Row], wide: bool, mask: u32) {
    for &row in rows {
        let key = key(w, wide, row);
        if let Some(of_lanes) = w.regs.unwritten.get_mut(&key) {
            lanes(mask).for_each(|lane| of_lanes[lane] = 0);
            if *of_lanes == [0; LANES] {
                w.regs.unwritten.remove(&key);
            }
        }
    }
}

/// After a check of a load's place: notes bytes that nothing has written. A finding if a register with one does more than carry it.
pub(super) fn load(
    b: &Block<'_>,
    w: &mut Warp,
    (rows, a): (&[Row], Access),
    what: What,
    lane: usize,
    (at, place): (u64, usize),
) -> Check {
    for (k, &row) in rows.iter().enumerate() {
        let written = &w.local_written[place + k * a.size as usize..][..a.size as usize];
        let missing = written.iter().rev().fold(0u8, |bits, &written| bits << 1 | (written ^ 1));
        if missing == 0 {
            continue;
        }
        if !carries(b, w, a.wide, row) {
            return Err(uninitialized(b, w, what, lane, "local", at));
        }
        let key = key(w, a.wide, row);
        w.regs.unwritten.entry(key).or_insert([0; LANES])[lane] = missing;
    }
    Ok(())
}

/// After a store to local memory: the bytes that nothing has written are unwritten there.
pub(super) fn store(b: &Block<'_>, w: &mut Warp, (rows, a): (&[Row], Access), at: &[u64; LANES], mask: u32) {
    for (k, &row) in rows.iter().enumerate() {
        let Some(missing) = unwritten(b, w, a, row) else { continue };
        for lane in lanes(mask) {
            let place = lane * w.local_bytes + at[lane] as usize + k * a.size as usize;
            let written = w.local_written[place..][..a.size as usize].iter_mut().enumerate();
            written.filter(|(n, _)| missing[lane] >> n & 1 != 0).for_each(|(_, written)| *written = 0);
        }
    }
}

/// Before a store to other memory.
pub(super) fn leave(
    b: &Block<'_>,
    w: &Warp,
    (rows, a): (&[Row], Access),
    what: What,
    (space, at): (Space, &[u64; LANES]),
    mask: u32,
) -> Check {
    for missing in rows.iter().filter_map(|&row| unwritten(b, w, a, row)) {
        if let Some(lane) = lanes(mask).find(|&lane| missing[lane] != 0) {
            let space = if space == Space::Shared { "shared address " } else { "" };
            let at = at[lane];
            let place =
                format_args!("at {space}0x{at:x} of bytes from local memory that nothing has written");
            return Err(fault(b, w, what, lane, FindingKind::Uninitialized, place));
        }
    }
    Ok(())
}
