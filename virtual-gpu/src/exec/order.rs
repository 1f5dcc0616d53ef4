//! What releases and acquires order between the warps of a block, from Volta on, for the race check of shared memory.
//!
//! A release leaves its warp's clock at its address, and an acquire that reads there takes it over. A fence makes later strong writes
//! releases and earlier strong reads acquires. Scopes are not told apart, nor which write a read saw: so no right exchange is reported.

use super::block::Block;
use super::lane::window;
use super::races::VectorClock;
use super::regs::{LANES, lanes};
use super::warp::Warp;
use crate::ptx::inst::{Order, Space};

fn join(clock: &mut VectorClock, other: &VectorClock) {
    clock.iter_mut().zip(other).for_each(|(a, b)| *a = (*a).max(*b));
}

/// A fence.
pub(super) fn fence(w: &mut Warp) {
    let seen = w.seen;
    join(&mut w.clock, &seen);
    w.fenced = w.clock;
    w.clock[w.id as usize] += 1;
}

/// A strong access.
#[derive(Clone, Copy)]
pub(super) struct Strong {
    pub reads: bool,
    pub writes: bool,
    pub order: Order,
}

/// Notes a strong access by the lanes of `mask`, at addresses in a space.
pub(super) fn note(
    b: &mut Block<'_>,
    w: &mut Warp,
    Strong { reads, writes, order }: Strong,
    (space, at): (Space, &[u64; LANES]),
    mask: u32,
) {
    let place = |lane: usize| at[lane].wrapping_add(window(space));
    if reads {
        for released in lanes(mask).filter_map(|lane| b.released.get(&place(lane))) {
            join(if order.acquires() { &mut w.clock } else { &mut w.seen }, released);
        }
    }
    if writes {
        let left = if order.releases() { w.clock } else { w.fenced };
        let leaves_nothing = left == [0; 32];
        for lane in lanes(mask) {
            if leaves_nothing {
                if !reads {
                    b.released.remove(&place(lane));
                }
                continue;
            }
            let at_place = b.released.entry(place(lane)).or_insert([0; 32]);
            if !reads {
                *at_place = [0; 32];
            }
            join(at_place, &left);
        }
        if order.releases() {
            w.clock[w.id as usize] += 1;
        }
    }
}
