//! Row softmax: y[r, c] = exp(x[r, c] − maxᵣ) / Σ exp(x[r, ·] − maxᵣ).   x, y: [rows, cols], may be the same.
//!
//! Idea: the online normaliser: one pass keeps (max, sum), a larger max rescales the sum; the second pass writes.
//! Source: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3.
//!
//! | kernel             | a row is handled by | when        |
//! |--------------------|---------------------|-------------|
//! | softmax_warp_‹t›   | 1 warp              | cols ≤ 1024 |
//! | softmax_block_‹t›  | 1 block of 8 warps  | cols > 1024 |

use crate::device::math::{exp, rcp};
use crate::device::{Element, F16, reduce, shared};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Threads in a block of either kernel.
const BLOCK: u32 = 256;
const WARPS: u32 = BLOCK / 32;

/// Rows that a block of the warp kernels handles.
pub const ROWS_PER_BLOCK: u32 = WARPS;
/// The most columns for which a warp per row is the better choice: above it too few warps read at a time.
pub const MAX_WARP_COLS: u32 = 1024;

/// grid = [ceil(rows / ROWS_PER_BLOCK)]
pub const WARP_F32: KernelSpec = KernelSpec::new("softmax_warp_f32", BLOCK).shuffles(10);
/// As [`WARP_F32`].
pub const WARP_F16: KernelSpec = KernelSpec::new("softmax_warp_f16", BLOCK).shuffles(10);
/// grid = [rows]
pub const BLOCK_F32: KernelSpec =
    KernelSpec::new("softmax_block_f32", BLOCK).shared_bytes(2 * WARPS * 4).shuffles(10);
/// As [`BLOCK_F32`].
pub const BLOCK_F16: KernelSpec =
    KernelSpec::new("softmax_block_f16", BLOCK).shared_bytes(2 * WARPS * 4).shuffles(10);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &[WARP_F32, WARP_F16, BLOCK_F32, BLOCK_F16];

/// The running maximum, and the sum of exponentials relative to it.
#[derive(Clone, Copy)]
struct Normalizer {
    max: f32,
    sum: f32,
}

impl Normalizer {
    const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Takes one more value in. A row of −∞ alone keeps sum 0 and so gives 0/0 = NaN, as the definition does.
    #[inline(always)]
    fn push(self, x: f32) -> Self {
        if x > self.max {
            Self { max: x, sum: self.sum * exp(self.max - x) + 1.0 }
        } else {
            // x ≤ max, or a NaN, which the sum then carries on
            Self { max: self.max, sum: self.sum + exp(x - self.max) }
        }
    }
}

/// y, x: one row of `cols` elements; the caller's `width` threads each own columns lane, lane + width, …
///
/// # Safety
/// `x` and `y` valid for `cols` elements.
#[inline(always)]
unsafe fn row_normalizer<T: Element>(x: *const T, cols: u32, lane: u32, width: u32) -> Normalizer {
    let mut normalizer = Normalizer::EMPTY;
    let mut c = lane;
    while c < cols {
        // SAFETY: c < cols
        normalizer = normalizer.push(unsafe { (*x.add(c as usize)).to_f32() });
        c += width;
    }
    normalizer
}

/// # Safety
/// As [`row_normalizer`].
#[inline(always)]
unsafe fn write_row<T: Element>(
    y: *mut T,
    x: *const T,
    cols: u32,
    lane: u32,
    width: u32,
    max: f32,
    sum: f32,
) {
    let scale = rcp(sum);
    let mut c = lane;
    while c < cols {
        // SAFETY: c < cols
        unsafe { *y.add(c as usize) = T::from_f32(exp((*x.add(c as usize)).to_f32() - max) * scale) };
        c += width;
    }
}

/// The sum that a thread contributes once the row's maximum is known.
#[inline(always)]
fn rescaled(own: Normalizer, max: f32) -> f32 {
    // A thread without columns, or with −∞ only, has max = −∞ and contributes its sum as it is (0, or NaN).
    if own.max == max || own.max == f32::NEG_INFINITY { own.sum } else { own.sum * exp(own.max - max) }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn warp_rows<T: Element>(y: *mut T, x: *const T, rows: u32, cols: u32) {
    let row = thread::block_idx_x() * ROWS_PER_BLOCK + thread::thread_idx_x() / 32;
    if row >= rows {
        return; // whole warps only, so the shuffles below have all lanes
    }
    let lane = warp::lane_id();
    // SAFETY: row < rows, so the row lies inside x and y; all lanes of the warp are here.
    unsafe {
        let (x, y) = (x.add(row as usize * cols as usize), y.add(row as usize * cols as usize));
        let own = row_normalizer(x, cols, lane, 32);
        let max = reduce::warp(own.max, 32, f32::max);
        let sum = reduce::warp(rescaled(own, max), 32, |a, b| a + b);
        write_row(y, x, cols, lane, 32, max, sum);
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn block_row<T: Element>(y: *mut T, x: *const T, cols: u32) {
    let maxima = shared::declare::<f32, { WARPS as usize }>();
    let sums = shared::declare::<f32, { WARPS as usize }>();
    let (row, tid) = (thread::block_idx_x() as usize, thread::thread_idx_x());
    // SAFETY: one block per row, so the row lies inside x and y; all threads are here.
    unsafe {
        let (x, y) = (x.add(row * cols as usize), y.add(row * cols as usize));
        let own = row_normalizer(x, cols, tid, BLOCK);
        let max = reduce::block(own.max, WARPS, maxima, f32::max);
        let sum = reduce::block(rescaled(own, max), WARPS, sums, |a, b| a + b);
        write_row(y, x, cols, tid, BLOCK, max, sum);
    }
}

/// # Safety
/// `x`, `y`: [rows, cols], valid on the launching stream, the same or disjoint; launched as [`WARP_F32`] says.
#[kernel(launch_bounds(BLOCK))]
pub unsafe fn softmax_warp_f32(y: *mut f32, x: *const f32, rows: u32, cols: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { warp_rows(y, x, rows, cols) }
}

/// # Safety
/// `x`, `y`: [rows, cols], valid on the launching stream, the same or disjoint; launched as [`WARP_F16`] says.
#[kernel(launch_bounds(BLOCK))]
pub unsafe fn softmax_warp_f16(y: *mut F16, x: *const F16, rows: u32, cols: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { warp_rows(y, x, rows, cols) }
}

/// # Safety
/// `x`, `y`: [gridDim.x, cols], valid on the launching stream, the same or disjoint; launched as [`BLOCK_F32`] says.
#[kernel(launch_bounds(BLOCK))]
pub unsafe fn softmax_block_f32(y: *mut f32, x: *const f32, cols: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { block_row(y, x, cols) }
}

/// # Safety
/// `x`, `y`: [gridDim.x, cols], valid on the launching stream, the same or disjoint; launched as [`BLOCK_F16`] says.
#[kernel(launch_bounds(BLOCK))]
pub unsafe fn softmax_block_f16(y: *mut F16, x: *const F16, cols: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { block_row(y, x, cols) }
}
