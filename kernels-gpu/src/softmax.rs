//! Row softmax: y[r, c] = exp(x[r, c] − maxᵣ) / Σ exp(x[r, ·] − maxᵣ).   x, y: [rows, cols], disjoint
//!
//! Idea: rows that fit stay in registers and are read once. Longer rows are read twice: the online normaliser keeps
//! (max, sum), a larger max rescales the sum; the second pass writes.
//! Source: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3.
//!
//! | kernel               | a row is handled by                  | when          |
//! |----------------------|--------------------------------------|---------------|
//! | softmax_warp_‹t›     | 1 warp, in registers                 | cols ≤ 1024   |
//! | softmax_block_‹t›    | 1 block of 16 warps, in registers    | cols ≤ 8192   |
//! | softmax_stream_‹t›   | 1 block of 32 warps, online          | cols > 8192   |
//! | softmax_textbook_f32 | 1 block of 8 warps, three passes     | the baseline of benches |

use crate::device::columns::each_group;
use crate::device::math::{exp, rcp};
use crate::device::{Columns, F16, Vector, reduce, shared, textbook};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// The most threads in a block of the warp kernels: the host chooses by occupancy and by the number of rows.
const WARP_BLOCK: u32 = 256;
/// Threads in a block of the block kernels.
const ROW_BLOCK: u32 = 512;
const ROW_WARPS: u32 = ROW_BLOCK / 32;
/// Threads in a block of the stream kernels: as many as there can be, since there may be only a few rows.
const STREAM_BLOCK: u32 = 1024;
const STREAM_WARPS: u32 = STREAM_BLOCK / 32;

/// The most columns of the warp kernels: 32 registers of values per lane.
pub const MAX_WARP_COLS: u32 = 1024;
/// The most columns of the block kernels: 16 registers of values per thread.
pub const MAX_BLOCK_COLS: u32 = 8192;

/// block = [any multiple of 32 up to this], grid = [ceil(rows / warps of a block)]
pub const WARP_F32: KernelSpec = KernelSpec::new("softmax_warp_f32", WARP_BLOCK).shuffles(10);
/// As [`WARP_F32`].
pub const WARP_F16: KernelSpec = KernelSpec::new("softmax_warp_f16", WARP_BLOCK).shuffles(10);
/// grid = [rows]
pub const BLOCK_F32: KernelSpec = block_spec("softmax_block_f32", ROW_BLOCK);
/// As [`BLOCK_F32`].
pub const BLOCK_F16: KernelSpec = block_spec("softmax_block_f16", ROW_BLOCK);
/// grid = [rows]
pub const STREAM_F32: KernelSpec = block_spec("softmax_stream_f32", STREAM_BLOCK);
/// As [`STREAM_F32`].
pub const STREAM_F16: KernelSpec = block_spec("softmax_stream_f16", STREAM_BLOCK);
/// grid = [rows]
pub const TEXTBOOK_F32: KernelSpec =
    KernelSpec::new("softmax_textbook_f32", textbook::BLOCK).shared_bytes(textbook::BLOCK * 4);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] =
    &[WARP_F32, WARP_F16, BLOCK_F32, BLOCK_F16, STREAM_F32, STREAM_F16, TEXTBOOK_F32];

const fn block_spec(name: &'static str, threads: u32) -> KernelSpec {
    KernelSpec::new(name, threads).shared_bytes(threads / 32 * 4).shuffles(10)
}

/// y, x: one row, N groups of whose columns fit; `max` and `sum` combine over the threads of the row.
///
/// # Safety
/// `x` and `y` valid for the row, disjoint; all threads that `max` and `sum` need are here.
#[inline(always)]
unsafe fn row_in_registers<T: Vector, const N: usize>(
    y: *mut T,
    x: *const T,
    columns: Columns,
    max: impl Fn(f32) -> f32,
    sum: impl Fn(f32) -> f32,
) {
    let mut values = [T::splat(f32::NEG_INFINITY); N];
    // SAFETY: as the caller promises.
    each_group!(columns, i < N, values[i] = unsafe { columns.load(x, i as u32, f32::NEG_INFINITY) });

    let mut own_max = f32::NEG_INFINITY;
    each_group!(columns, i < N, {
        T::map(values[i], |x| {
            own_max = own_max.max(x);
            x
        });
    });
    let max = max(own_max);

    // Padding is −∞ and adds nothing. A row of −∞ alone gives −∞ − −∞ = NaN, as the definition does.
    let mut own_sum = 0.0;
    each_group!(columns, i < N, {
        values[i] = T::map(values[i], |x| {
            let e = exp(x - max);
            own_sum += e;
            e
        });
    });
    let scale = rcp(sum(own_sum));
    // SAFETY: as the caller promises.
    each_group!(columns, i < N, unsafe { columns.store(y, i as u32, T::map(values[i], |e| e * scale)) });
}

/// The running maximum, and the sum of exponentials relative to it.
#[derive(Clone, Copy)]
struct Normalizer {
    max: f32,
    sum: f32,
}

impl Normalizer {
    const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// What exponents are relative to. While there are only −∞ (and NaN) this is zero, so that each −∞ adds
    /// e^−∞ = 0 and a NaN is carried on.
    #[inline(always)]
    fn base(self) -> f32 {
        if self.max == f32::NEG_INFINITY { 0.0 } else { self.max }
    }

    /// The same sum relative to a larger maximum.
    #[inline(always)]
    fn rescaled(self, max: f32) -> Self {
        let new = Self { max, sum: self.sum };
        Self { max, sum: self.sum * exp(self.max - new.base()) }
    }

    #[inline(always)]
    fn push<T: Vector>(self, values: T::Values) -> Self {
        let mut max = self.max;
        T::map(values, |x| {
            max = max.max(x);
            x
        });
        let mut new = self.rescaled(max);
        let base = new.base();
        T::map(values, |x| {
            new.sum += exp(x - base);
            x
        });
        new
    }
}

/// # Safety
/// As [`softmax_warp_f32`].
#[inline(always)]
unsafe fn warp_rows<T: Vector, const N: usize>(y: *mut T, x: *const T, rows: u32, cols: u32, vectors: u32) {
    let row = thread::block_idx_x() * (thread::block_dim_x() / 32) + thread::thread_idx_x() / 32;
    if row >= rows {
        return; // whole warps only, so the shuffles below have all lanes
    }
    let at = row as usize * cols as usize;
    let columns = Columns::new::<T>(cols, warp::lane_id(), 32, vectors != 0);
    // SAFETY: row < rows, so the row lies inside x and y; all lanes of the warp are here.
    unsafe {
        row_in_registers::<T, N>(
            y.add(at),
            x.add(at),
            columns,
            |max| reduce::warp(max, 32, f32::max),
            |sum| reduce::warp(sum, 32, |a, b| a + b),
        );
    }
}

/// # Safety
/// As [`softmax_block_f32`].
#[inline(always)]
unsafe fn block_row<T: Vector, const N: usize>(y: *mut T, x: *const T, cols: u32, vectors: u32) {
    let scratch = shared::declare::<f32, { ROW_WARPS as usize }>();
    let at = thread::block_idx_x() as usize * cols as usize;
    let columns = Columns::new::<T>(cols, thread::thread_idx_x(), ROW_BLOCK, vectors != 0);
    // SAFETY: one block per row, so the row lies inside x and y; all threads are here.
    unsafe {
        row_in_registers::<T, N>(
            y.add(at),
            x.add(at),
            columns,
            |max| reduce::block(max, ROW_WARPS, scratch, f32::max),
            |sum| reduce::block(sum, ROW_WARPS, scratch, |a, b| a + b),
        );
    }
}

/// # Safety
/// As [`softmax_stream_f32`].
#[inline(always)]
unsafe fn stream_row<T: Vector>(y: *mut T, x: *const T, cols: u32, vectors: u32) {
    let scratch = shared::declare::<f32, { STREAM_WARPS as usize }>();
    let at = thread::block_idx_x() as usize * cols as usize;
    let columns = Columns::new::<T>(cols, thread::thread_idx_x(), STREAM_BLOCK, vectors != 0);
    // SAFETY: one block per row, so the row lies inside x and y; all threads are here.
    unsafe {
        let (x, y) = (x.add(at), y.add(at));
        let mut own = Normalizer::EMPTY;
        let mut i = 0;
        while columns.has(i) {
            let first = columns.load(x, i, f32::NEG_INFINITY);
            let second = columns.load(x, i + 1, f32::NEG_INFINITY);
            own = own.push::<T>(first).push::<T>(second);
            i += 2;
        }
        let max = reduce::block(own.max, STREAM_WARPS, scratch, f32::max);
        let sum = reduce::block(own.rescaled(max).sum, STREAM_WARPS, scratch, |a, b| a + b);
        let scale = rcp(sum);
        let mut i = 0;
        while columns.has(i) {
            let first = columns.load(x, i, 0.0);
            let second = columns.load(x, i + 1, 0.0);
            columns.store(y, i, T::map(first, |x| exp(x - max) * scale));
            columns.store(y, i + 1, T::map(second, |x| exp(x - max) * scale));
            i += 2;
        }
    }
}

/// # Safety
/// `x`, `y`: [rows, cols], valid on the launching stream, disjoint, below 2³¹ elements; cols ≤ [`MAX_WARP_COLS`];
/// `vectors` only if every row of both starts and ends at a multiple of 16 bytes; launched as [`WARP_F32`] says.
#[kernel(launch_bounds(WARP_BLOCK))]
pub unsafe fn softmax_warp_f32(y: *mut f32, x: *const f32, rows: u32, cols: u32, vectors: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { warp_rows::<f32, 8>(y, x, rows, cols, vectors) }
}

/// # Safety
/// As [`softmax_warp_f32`].
#[kernel(launch_bounds(WARP_BLOCK))]
pub unsafe fn softmax_warp_f16(y: *mut F16, x: *const F16, rows: u32, cols: u32, vectors: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { warp_rows::<F16, 4>(y, x, rows, cols, vectors) }
}

/// # Safety
/// As [`softmax_warp_f32`], with rows = gridDim.x and cols ≤ [`MAX_BLOCK_COLS`]; launched as [`BLOCK_F32`] says.
#[kernel(launch_bounds(ROW_BLOCK))]
pub unsafe fn softmax_block_f32(y: *mut f32, x: *const f32, cols: u32, vectors: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { block_row::<f32, 4>(y, x, cols, vectors) }
}

/// # Safety
/// As [`softmax_block_f32`].
#[kernel(launch_bounds(ROW_BLOCK))]
pub unsafe fn softmax_block_f16(y: *mut F16, x: *const F16, cols: u32, vectors: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { block_row::<F16, 2>(y, x, cols, vectors) }
}

/// # Safety
/// As [`softmax_block_f32`] for any cols; launched as [`STREAM_F32`] says.
#[kernel(launch_bounds(STREAM_BLOCK))]
pub unsafe fn softmax_stream_f32(y: *mut f32, x: *const f32, cols: u32, vectors: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { stream_row(y, x, cols, vectors) }
}

/// # Safety
/// As [`softmax_stream_f32`].
#[kernel(launch_bounds(STREAM_BLOCK))]
pub unsafe fn softmax_stream_f16(y: *mut F16, x: *const F16, cols: u32, vectors: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { stream_row(y, x, cols, vectors) }
}

/// # Safety
/// `x`, `y`: [gridDim.x, cols], valid on the launching stream; launched as [`TEXTBOOK_F32`] says.
#[kernel(launch_bounds(textbook::BLOCK))]
pub unsafe fn softmax_textbook_f32(y: *mut f32, x: *const f32, cols: u32) {
    let scratch = shared::declare::<f32, { textbook::BLOCK as usize }>();
    let at = thread::block_idx_x() as usize * cols as usize;
    // SAFETY: one block per row, so the row lies inside x and y; all threads are here.
    unsafe {
        let (x, y) = (x.add(at), y.add(at));
        let max = textbook::fold(x, cols, f32::NEG_INFINITY, f32::max);
        let max = textbook::reduce(max, scratch, f32::max);
        let sum = textbook::fold(x, cols, 0.0, |sum, x| sum + exp(x - max));
        let sum = textbook::reduce(sum, scratch, |a, b| a + b);
        textbook::write(y, x, cols, |_, x| exp(x - max) / sum);
    }
}
