//! Cross-entropy and its gradient, in place.   x: [rows, cols], loss, labels: [rows]
//!
//! loss[r] = ln Σ exp(x[r, ·]) − x[r, labels[r]];   x[r, c] ← scale · (exp(x[r, c] − max) / Σ − (c = labels[r]))
//!
//! A label that is not a column gives 0 for both. The first pass keeps (max, sum) per thread; a larger max rescales the sum
//! (Milakov & Gimelshein 2018, algorithm 3).
//!
//! | kernel            | a row is handled by  | when |
//! |-------------------|----------------------|------|
//! | cross_entropy_f32 | 1 block, two passes  | all  |

use crate::device::block_reduce;
use crate::device::math::{exp, log2, rcp};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

const BLOCK: u32 = 512;
const WARPS: u32 = BLOCK / 32;

/// The parameters of the kernel.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct CrossEntropy {
    /// [gridDim.x]
    pub loss: *mut f32,
    /// [gridDim.x, cols], disjoint from loss; read and written
    pub x: *mut f32,
    /// [gridDim.x], disjoint from both
    pub labels: *const u32,
    pub cols: u32,
    pub scale: f32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[cross_entropy_f32.info()];

/// grid = [rows]
///
/// # Safety
/// [`CrossEntropy`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = BLOCK, min_blocks = 4, shared(maxima: [f32; WARPS], sums: [f32; WARPS]), shuffles = 10)]
pub unsafe fn cross_entropy_f32(CrossEntropy { loss, x, labels, cols, scale }: CrossEntropy) {
    let (row, tid) = (thread::block_idx_x() as usize, thread::thread_idx_x());
    // SAFETY: one block per row; every column is below cols. All threads are at the barriers of the reductions, before which
    // nothing is written; each thread writes its own columns.
    unsafe {
        let x = x.add(row * cols as usize);
        let label = *labels.add(row);
        let target = if label < cols { *x.add(label as usize) } else { 0.0 };
        let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
        let mut c = tid;
        while c < cols {
            let value = *x.add(c as usize);
            if value > max {
                sum *= exp(max - value);
                max = value;
            }
            sum += exp(value - max);
            c += BLOCK;
        }
        let [top] = block_reduce::reduce_once([max], WARPS, maxima, Max);
        let own = if max == f32::NEG_INFINITY { 0.0 } else { sum * exp(max - top) };
        let [sum] = block_reduce::reduce_once([own], WARPS, sums, Sum);
        let counts = label < cols;
        if tid == 0 {
            let value = log2(sum) * core::f32::consts::LN_2 - (target - top);
            *loss.add(row) = if counts { value } else { 0.0 };
        }
        let factor = scale * rcp(sum);
        let mut c = tid;
        while c < cols {
            let value = exp(*x.add(c as usize) - top) * factor;
            let value = if c == label { value - scale } else { value };
            *x.add(c as usize) = if counts { value } else { 0.0 };
            c += BLOCK;
        }
    }
}
