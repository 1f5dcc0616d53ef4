//! The two products of a tile, each over one chunk in shared memory, as outer products of registers.

use super::block::v_keys;
use super::factors::Factors;
use crate::device::Shared;
use crate::device::math::fma;
use crate::device::unroll::unroll;

/// s += Q Kᵀ over the first COLUMNS of a chunk, for the first SEEN of a thread's keys. `q`: this thread's first row in Qᵀ; `k`: its first key
/// in Kᵀ, whose rows are Q_STRIDE and K_STRIDE apart. Each has two pointers: for columns below eight, and for the others.
///
/// # Safety
/// The chunk is written and a barrier has passed.
#[inline(always)]
pub(in crate::attention) unsafe fn scores<
    F: Factors,
    const COLUMNS: usize,
    const KEYS: usize,
    const SEEN: usize,
    const Q_STRIDE: u32,
    const K_STRIDE: u32,
>(
    s: &mut [[f32; KEYS]; 8],
    q: [Shared<f32>; 2],
    k: [Shared<f32>; 2],
) {
    unroll!(C < 16 => { if C < COLUMNS {
        // SAFETY: eight rows from 16 warp + 8 ty on, below 64, and keys 4 tx + 0 … 3 and 64 further, below BN.
        let (rows, keys) = unsafe {
            let (q, k) = (q[C / 8], k[C / 8]);
            let (a, b) = (q.get4_at::<{ C as u32 }, Q_STRIDE, 0, 0>(), q.get4_at::<{ C as u32 }, Q_STRIDE, 1, 4>());
            let c = k.get4_at::<{ C as u32 }, K_STRIDE, 0, 0>();
            ([a, b], [c, if SEEN == 8 { k.get4_at::<{ C as u32 }, K_STRIDE, 1, 64>() } else { c }])
        };
        unroll!(I < 8 => {
            unroll!(J < SEEN => { s[I][J] = F::multiply_add(rows[I / 4][I % 4], keys[J / 4][J % 4], s[I][J]); });
        });
    } });
}

/// o += P V over one chunk of keys: of each row columns 4·tx + 64g + (0..4), and with X column 64 G + tx. `p[x]`: this thread's
/// first four rows at the chunk's first key, with the number of the four exchanged by x. `v`: its first column, `further`: its
/// column 64 G + tx if there is one.
///
/// # Safety
/// The chunk and P are written and a barrier has passed.
#[inline(always)]
pub(super) unsafe fn weighted_values<const WARPS: u32, const G: usize, const X: usize>(
    o: &mut [[[f32; 4]; G]; 8],
    o_further: &mut [[f32; X]; 8],
    p: [Shared<f32>; 4],
    v: Shared<f32>,
    further: Shared<f32>,
) {
    unroll!(K < 16 => { if (K as u32) < v_keys(WARPS) {
        // SAFETY: eight rows from 16 warp + 8 ty on, below 64, at one of the chunk's keys.
        let weights = unsafe { [
            p[K / 2 % 4].get4_at::<{ K as u32 }, 16, 0, 0>(),
            p[(K / 2 % 4) ^ 1].get4_at::<{ K as u32 }, 16, 0, 0>(),
        ] };
        let mut values = [[0.0; 4]; G];
        let mut g = 0;
        while g < G {
            // SAFETY: of group g's [v_keys, 64].
            values[g] = unsafe { v.at(g as u32 * v_keys(WARPS) * 64).get4_at::<{ K as u32 }, 64, 0, 0>() };
            g += 1;
        }
        unroll!(I < 8 => {
            let mut g = 0;
            while g < G {
                unroll!(E < 4 => { o[I][g][E] = fma(weights[I / 4][I % 4], values[g][E], o[I][g][E]); });
                g += 1;
            }
        });
        if X > 0 {
            // SAFETY: of [v_keys, 16] after the groups.
            let value = unsafe { further.get(K as u32 * 16) };
            unroll!(I < 8 => { o_further[I][0] = fma(weights[I / 4][I % 4], value, o_further[I][0]); });
        }
    } });
}
