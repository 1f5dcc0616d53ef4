//! Reductions over the lanes of a warp and the warps of a block.

use super::shared::{Shared, Word};
use cuda_std::butterfly::Butterfly;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::{WarpShuffleValue, lane_id};

/// Combines `value` over a one-dimensional block of `warps` full warps (a multiple of 4, at most 32); the result is valid in
/// all threads. `scratch` holds `warps` elements, 16-byte aligned, and may be reused after the call.
///
/// # Safety
/// All threads of the block call it together.
#[inline(always)]
pub unsafe fn reduce<T: WarpShuffleValue + Word>(
    value: T,
    warps: u32,
    scratch: Shared<T>,
    op: impl Butterfly<T>,
) -> T {
    // SAFETY: all threads of the block are here (this function's contract). After the second barrier no thread reads
    // `scratch`.
    unsafe {
        let [total] = reduce_once([value], warps, scratch, op);
        sync_threads();
        total
    }
}

/// [`reduce`] for several values, with one barrier. `scratch` holds `N * warps` elements, which other threads may still be
/// reading after the call.
///
/// # Safety
/// As [`reduce`]; there is a barrier between any other access to these elements and this call.
#[inline(always)]
pub unsafe fn reduce_once<T: WarpShuffleValue + Word, const N: usize>(
    values: [T; N],
    warps: u32,
    scratch: Shared<T>,
    op: impl Butterfly<T>,
) -> [T; N] {
    // SAFETY: all threads of the block are here: this function's contract. Before the barrier only lane 0 of each warp
    // writes, and only its own elements.
    unsafe {
        let values = values.map(|value| op.over::<32>(value));
        if lane_id() == 0 {
            let mut own = thread_idx_x() / 32;
            // not a `for`: its iterator may keep the array in local memory
            let _ = values.map(|value| {
                scratch.set(own, value);
                own += warps;
            });
        }
        sync_threads();
        let mut first = 0;
        values.map(|_| {
            let four = |index| {
                let [a, b, c, d] = scratch.get4(first + index);
                op.combine(op.combine(a, b), op.combine(c, d))
            };
            let mut total = four(0);
            let mut index = 4;
            while index < warps {
                total = op.combine(total, four(index));
                index += 4;
            }
            first += warps;
            total
        })
    }
}
