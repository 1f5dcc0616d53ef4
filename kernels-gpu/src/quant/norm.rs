//! y = the rows x[r, ·] / √(mean(x[r, ·]²) + eps) · weight, quantised to 8 bits.   x: [rows, cols], weight: [cols]
//!
//! Idea: between a norm and a product of quantised rows, the normalised values need not be stored. A row stays in registers,
//! as in [`rms_norm`](crate::rms_norm); four values of a thread and of its seven neighbours are a block of 32.
//!
//! Squares are added in an order that does not depend on the number of threads: over runs of 128 values by a warp each, then over
//! the runs. So a row has the same bits here and in the kernels for one row of x ([`vector`](super::vector)), which normalise it
//! themselves.
//!
//! | kernel              | a row is handled by   | when                                       |
//! |---------------------|-----------------------|--------------------------------------------|
//! | quant_rms_norm_f32  | 1 block, in registers | cols ≤ 8192, a multiple of 4, rows aligned |

use super::blocks::RowScale;
use super::encode::activations;
use crate::device::math::rsqrt;
use crate::device::rows::{MAX_BLOCK_COLS, ROW_BLOCK};
use crate::device::unroll::unroll;
use crate::device::{Element, Shared};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

/// Values whose squares a warp adds.
pub(super) const RUN: u32 = 128;
/// The most runs of a row.
pub(super) const RUNS: u32 = MAX_BLOCK_COLS / RUN;

/// The sum of the squares of a run, of which each lane has four values.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub(super) unsafe fn run_squares(values: [f32; 4]) -> f32 {
    let mut squares = 0.0;
    unroll!(J < 4 => squares += values[J] * values[J]);
    // SAFETY: all lanes are here: this function's contract.
    unsafe { Sum.over::<32>(squares) }
}

/// What the values of a row of `cols` are multiplied by, from its runs' sums.
///
/// # Safety
/// All 32 lanes call it together, after the sums of all `runs` are written.
#[inline(always)]
pub(super) unsafe fn row_factor(sums: Shared<f32>, runs: u32, cols: u32, eps: f32) -> f32 {
    let lane = warp::lane_id();
    // SAFETY: runs below their number are written, and all lanes are here: this function's contract.
    unsafe {
        let run = |run: u32| if run < runs { sums.get(run) } else { 0.0 };
        rsqrt(Sum.over::<32>(run(lane) + run(lane + 32)) / cols as f32 + eps)
    }
}

/// Groups of four values that a thread holds.
const GROUPS: u32 = 4;

/// The parameters of the kernel.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Norm {
    /// [gridDim.x, k / 4] words of four quants
    pub quants: *mut u32,
    /// [gridDim.x, k / 32], disjoint from the quants
    pub scales: *mut RowScale,
    /// [gridDim.x, cols], 16-byte aligned, disjoint from both
    pub x: *const f32,
    /// [cols], 16-byte aligned, disjoint from both
    pub weight: *const f32,
    /// A multiple of 4, not 0.
    pub cols: u32,
    /// At least cols, a multiple of 128, at most 16 values for each thread.
    pub k: u32,
    pub eps: f32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[quant_rms_norm_f32.info()];

/// grid = [rows], with the threads of [`row_threads`](crate::device::rows::row_threads) for k
///
/// # Safety
/// [`Norm`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ values.
#[kernel(block = ROW_BLOCK, min_blocks = 2, shared(sums: [f32; RUNS]), module = "quant_encode_rows", shuffles = 49)]
pub unsafe fn quant_rms_norm_f32(Norm { quants, scales, x, weight, cols, k, eps }: Norm) {
    let row = thread::block_idx_x() as usize;
    let (tid, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    // SAFETY: one block per row, so the row is inside x and the results; columns are below cols where x and the weight are
    // read, and below k where results are written. All threads are at the barrier, and k is a multiple of 128, so that
    // all lanes of a warp are at the shuffles, and the first writes the run's sum.
    unsafe {
        let x = x.add(row * cols as usize);
        let (mut values, mut weights) = ([[0.0; 4]; GROUPS as usize], [[0.0; 4]; GROUPS as usize]);
        unroll!(I < 4 => {
            let column = (tid + I as u32 * threads) * 4;
            if column < cols {
                values[I] = f32::load4(x.add(column as usize));
                weights[I] = f32::load4(weight.add(column as usize));
            }
        });
        unroll!(I < 4 => {
            let word = tid + I as u32 * threads;
            if word * 4 < k {
                let squares = run_squares(values[I]);
                if word.is_multiple_of(32) {
                    sums.set(word / 32, squares);
                }
            }
        });
        sync_threads();
        let scale = row_factor(sums, k / RUN, cols, eps);
        unroll!(I < 4 => {
            let word = tid + I as u32 * threads;
            if word * 4 < k {
                let mut normed = [0.0; 4];
                unroll!(J < 4 => normed[J] = values[I][J] * scale * weights[I][J]);
                let (packed, scale) = activations(normed);
                let at = row * (k / 4) as usize + word as usize;
                *quants.add(at) = packed;
                if word.is_multiple_of(8) {
                    *scales.add(at / 8) = scale;
                }
            }
        });
    }
}
