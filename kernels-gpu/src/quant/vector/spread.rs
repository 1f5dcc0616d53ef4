//! Sums over the lanes of a warp, several at a time: in each step a lane passes half of its sums to its partner and adds the partner's
//! to the other half.

use crate::device::unroll::unroll;
use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};

/// The sums over all lanes of K values each, spread over the lanes.
pub(super) struct Spread<const K: usize>;

#[inlined]
impl<const K: usize> Spread<K> {
    /// Number of shuffles.
    pub const SHUFFLES: u32 = K as u32 - 1 + 5 - K.ilog2();

    /// The sum of the values with this lane's [`number`](Self::number). The order of additions is [`Sum`]'s: lanes 16 apart
    /// first, neighbours last.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    pub unsafe fn sum(mut values: [f32; 32]) -> f32 {
        let lane = warp::lane_id();
        unroll!(STEP < 8 => if STEP < 5 {
            const DISTANCE: u32 = [16, 8, 4, 2, 1][STEP % 5];
            let half = K >> (STEP + 1);
            // SAFETY: all 32 lanes are here: this function's contract.
            let from = |value| unsafe { warp_shuffle_xor(FULL_MASK, value, DISTANCE, 32).0 };
            if half == 0 {
                values[0] += from(values[0]);
            }
            let second = lane & DISTANCE != 0;
            unroll!(I < 16 => if I < half {
                let other = values[(I + half) % 32];
                let (own, others) = if second { (other, values[I]) } else { (values[I], other) };
                values[I] = own + from(others);
            });
        });
        values[0]
    }

    /// The index of the value whose sum this lane has; `None` if a lower lane has the same one.
    pub fn number() -> Option<u32> {
        let (lane, sharers) = (warp::lane_id(), 32 / K as u32);
        lane.is_multiple_of(sharers).then(|| lane / sharers)
    }
}
