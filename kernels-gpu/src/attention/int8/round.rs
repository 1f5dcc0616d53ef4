//! Rounds rows of Q or K to 8-bit integers.   quants: [b · heads, padded, words]; scales: [b · heads, padded]; x: [b, heads, rows, head_dim]
//!
//! scale = [`scale_of`](max |x − c|), quant = nearest((x − c) / scale), ties to even. c is 0, or the mean of [`SAMPLES`] rows of the head, of numbers
//! ⌊s · rows / SAMPLES⌋: their sum is that of eight partial sums in order, each of eight rows in order. The host computes the same bits.
//!
//! A warp has 16 rows, a lane four columns. Rows past the last are zeros with a scale of 0.

use super::rounded::{ROWS, words};
use crate::attention::tensors::{Strides, not_zero};
use crate::device::unroll::unroll;
use crate::device::{Element, Shared};
use crate::quant::blocks::{abs_max, inverse, pack_i8, scale_i8};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Rows whose mean is subtracted.
pub const SAMPLES: u32 = 64;
/// Rows of a partial sum.
pub const IN_ORDER: u32 = SAMPLES / WARPS;
const WARPS: u32 = 8;
const THREADS: u32 = 32 * WARPS;
/// Columns of a row of the partial sums.
const WIDTH: u32 = 128;

/// The parameters of the kernel.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Round {
    /// [gridDim.x, [`ROWS`] · gridDim.y, [`words`]], 16-byte aligned
    pub quants: *mut u32,
    /// [gridDim.x, [`ROWS`] · gridDim.y], disjoint from the quants
    pub scales: *mut f32,
    /// [gridDim.x / heads, heads, rows, head_dim], disjoint from both, with less than 2³¹ elements; first elements and strides are
    /// multiples of 8 elements
    pub x: *const f32,
    pub strides: Strides,
    pub heads: u32,
    pub rows: u32,
    /// A multiple of 8, at least 8 and at most 128.
    pub head_dim: u32,
    /// 1 if a mean is subtracted, else 0.
    pub centred: u32,
    /// Written scales are multiplied by it.
    pub factor: f32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[attention_int8_round.info()];

/// The scale of a row: 1/127 of its largest |value|, with 22 bits, so that 1.5 · 2²³ times it is exact.
#[inline(always)]
pub fn scale_of(abs_max: f32) -> f32 {
    f32::from_bits(scale_i8(abs_max).to_bits() & !3)
}

/// The number of sample `s` of `rows` rows.
#[inline(always)]
pub fn sample(s: u32, rows: u32) -> u32 {
    rows / SAMPLES * s + rows % SAMPLES * s / SAMPLES
}

/// grid = [b · heads, ceil(rows / [`ROWS`])]
///
/// # Safety
/// [`Round`] constrains the pointers, which are valid on the launching stream, and the numbers.
#[kernel(block = THREADS, min_blocks = 4, module = "attention_int8", shuffles = 5, shared(partial: [f32; WARPS * WIDTH]))]
pub unsafe fn attention_int8_round(p: Round) {
    // SAFETY: the contract is the body's; `partial` belongs to the block.
    unsafe { round(p, partial) }
}

/// # Safety
/// As the kernel; `partial`: [WARPS, WIDTH].
#[inline(always)]
unsafe fn round(p: Round, partial: Shared<f32>) {
    let Round { quants, scales, x, strides, heads, rows, head_dim, centred, factor } = p;
    let (plane, tid) = (thread::block_idx_x(), thread::thread_idx_x());
    let (warp, column) = (tid / 32, tid % 32 * 4);
    let words = words(head_dim);
    // SAFETY: the grid has a block, so there is a head.
    unsafe { not_zero(heads) };
    let head = strides.offset(plane / heads, plane % heads);
    let row_of = |row: u32| match column < head_dim {
        // SAFETY: callers' rows are below `rows`; four columns from a multiple of four on are below head_dim, a multiple of eight.
        true => unsafe { f32::load4(x.add((head + row * strides.row + column) as usize)) },
        false => [0.0; 4],
    };
    let add = |a: [f32; 4], b: [f32; 4]| [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]];

    let mut mean = [0.0; 4];
    if centred != 0 {
        let mut s = 0;
        while s < IN_ORDER {
            mean = add(mean, row_of(sample(warp * IN_ORDER + s, rows)));
            s += 1;
        }
        // SAFETY: the same branch for the whole block. Each thread writes its own elements, and reads after the barrier.
        unsafe {
            partial.at(warp * WIDTH + column).set4(0, mean);
            thread::sync_threads();
            mean = [0.0; 4];
            unroll!(W < 8 => { mean = add(mean, partial.at(W as u32 * WIDTH + column).get4(0)); });
        }
        mean = mean.map(|sum| sum * (1.0 / SAMPLES as f32));
    }

    let padded = ROWS * thread::grid_dim_y();
    let mut i = 0;
    while i < ROWS / WARPS {
        let row = thread::block_idx_y() * ROWS + warp * (ROWS / WARPS) + i;
        let mut values = [0.0; 4];
        if row < rows && column < head_dim {
            let x = row_of(row);
            unroll!(E < 4 => { values[E] = x[E] - mean[E]; });
        }
        // SAFETY: all lanes are here, as `i` is the same for all of them. Row and column are inside quants and scales.
        unsafe {
            let largest = f32::from_bits(Max.over::<32>(abs_max(&values).to_bits()));
            let scale = scale_of(largest);
            let at = plane * padded + row;
            if column < 4 * words {
                *quants.add((at * words + tid % 32) as usize) = pack_i8(values, inverse(scale));
            }
            if tid.is_multiple_of(32) {
                *scales.add(at as usize) = scale * factor;
            }
        }
        i += 1;
    }
}
