//! y[r, c] = x[r, c] / √(mean(x[r, ·]²) + eps) · weight[c].   x, y: [rows, cols], weight: [cols]
//!
//! Idea: rows that fit stay in registers and are read once; longer rows are read twice.
//! Source: Zhang & Sennrich 2019, "Root mean square layer normalization", equation 4.
//!
//! | kernel                | a row is handled by               | when          |
//! |-----------------------|-----------------------------------|---------------|
//! | rms_norm_warp_‹t›     | 1 warp, in registers              | cols ≤ 1024   |
//! | rms_norm_block_‹t›    | 1 block of 16 warps, in registers | cols ≤ 8192   |
//! | rms_norm_stream_‹t›   | 1 block of 16 warps               | cols > 8192   |
//! | rms_norm_textbook_f32 | 1 block of 8 warps, two passes    | the baseline of benches |

use crate::device::columns::each_group;
use crate::device::math::rsqrt;
use crate::device::{Columns, F16, Vector, reduce, shared, textbook};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Threads in a block of the warp kernels.
const WARP_BLOCK: u32 = 256;
/// Threads in a block of the block and stream kernels.
const ROW_BLOCK: u32 = 512;
const ROW_WARPS: u32 = ROW_BLOCK / 32;

/// Rows that a block of the warp kernels handles.
pub const ROWS_PER_BLOCK: u32 = WARP_BLOCK / 32;
/// The most columns of the warp kernels: 32 registers of values per lane.
pub const MAX_WARP_COLS: u32 = 1024;
/// The most columns of the block kernels: 16 registers of values per thread.
pub const MAX_BLOCK_COLS: u32 = 8192;

/// grid = [ceil(rows / ROWS_PER_BLOCK)]
pub const WARP_F32: KernelSpec = KernelSpec::new("rms_norm_warp_f32", WARP_BLOCK).shuffles(5);
/// As [`WARP_F32`].
pub const WARP_F16: KernelSpec = KernelSpec::new("rms_norm_warp_f16", WARP_BLOCK).shuffles(5);
/// grid = [rows]
pub const BLOCK_F32: KernelSpec = block_spec("rms_norm_block_f32");
/// As [`BLOCK_F32`].
pub const BLOCK_F16: KernelSpec = block_spec("rms_norm_block_f16");
/// grid = [rows]
pub const STREAM_F32: KernelSpec = block_spec("rms_norm_stream_f32");
/// As [`STREAM_F32`].
pub const STREAM_F16: KernelSpec = block_spec("rms_norm_stream_f16");
/// grid = [rows]
pub const TEXTBOOK_F32: KernelSpec =
    KernelSpec::new("rms_norm_textbook_f32", textbook::BLOCK).shared_bytes(textbook::BLOCK * 4);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] =
    &[WARP_F32, WARP_F16, BLOCK_F32, BLOCK_F16, STREAM_F32, STREAM_F16, TEXTBOOK_F32];

const fn block_spec(name: &'static str) -> KernelSpec {
    KernelSpec::new(name, ROW_BLOCK).shared_bytes(ROW_WARPS * 4).shuffles(5)
}

/// y, x: one row, N groups of whose columns fit; `sum` combines over the threads of the row.
///
/// # Safety
/// `x`, `y` and `weight` valid for the row, y disjoint from both; all threads that `sum` needs are here.
#[inline(always)]
unsafe fn row_in_registers<T: Vector, const N: usize>(
    y: *mut T,
    x: *const T,
    weight: *const T,
    cols: u32,
    eps: f32,
    columns: Columns,
    sum: impl Fn(f32) -> f32,
) {
    let mut values = [T::splat(0.0); N];
    // SAFETY: as the caller promises.
    each_group!(columns, i < N, values[i] = unsafe { columns.load(x, i as u32, 0.0) });
    let mut squares = 0.0;
    each_group!(columns, i < N, {
        T::map(values[i], |x| {
            squares += x * x;
            x
        });
    });
    let scale = rsqrt(sum(squares) / cols as f32 + eps);
    // SAFETY: as the caller promises.
    each_group!(columns, i < N, unsafe {
        let weight = columns.load(weight, i as u32, 0.0);
        columns.store(y, i as u32, T::zip(values[i], weight, |x, weight| x * scale * weight));
    });
}

/// # Safety
/// As [`rms_norm_warp_f32`].
#[inline(always)]
unsafe fn warp_rows<T: Vector, const N: usize>(
    y: *mut T,
    x: *const T,
    weight: *const T,
    rows: u32,
    cols: u32,
    eps: f32,
    vectors: u32,
) {
    let row = thread::block_idx_x() * ROWS_PER_BLOCK + thread::thread_idx_x() / 32;
    if row >= rows {
        return; // whole warps only, so the shuffles below have all lanes
    }
    let at = row as usize * cols as usize;
    let columns = Columns::new::<T>(cols, warp::lane_id(), 32, vectors != 0);
    // SAFETY: row < rows, so the row lies inside x and y; all lanes of the warp are here.
    unsafe {
        let sum = |own| reduce::warp(own, 32, |a, b| a + b);
        row_in_registers::<T, N>(y.add(at), x.add(at), weight, cols, eps, columns, sum);
    }
}

/// # Safety
/// As [`rms_norm_block_f32`].
#[inline(always)]
unsafe fn block_row<T: Vector, const N: usize>(
    y: *mut T,
    x: *const T,
    weight: *const T,
    cols: u32,
    eps: f32,
    vectors: u32,
) {
    let scratch = shared::declare::<f32, { ROW_WARPS as usize }>();
    let at = thread::block_idx_x() as usize * cols as usize;
    let columns = Columns::new::<T>(cols, thread::thread_idx_x(), ROW_BLOCK, vectors != 0);
    // SAFETY: one block per row, so the row lies inside x and y; all threads are here.
    unsafe {
        let sum = |own| reduce::block(own, ROW_WARPS, scratch, |a, b| a + b);
        row_in_registers::<T, N>(y.add(at), x.add(at), weight, cols, eps, columns, sum);
    }
}

/// # Safety
/// As [`rms_norm_stream_f32`].
#[inline(always)]
unsafe fn stream_row<T: Vector>(y: *mut T, x: *const T, weight: *const T, cols: u32, eps: f32, vectors: u32) {
    let scratch = shared::declare::<f32, { ROW_WARPS as usize }>();
    let at = thread::block_idx_x() as usize * cols as usize;
    let columns = Columns::new::<T>(cols, thread::thread_idx_x(), ROW_BLOCK, vectors != 0);
    // SAFETY: one block per row, so the row lies inside x and y; all threads are here.
    unsafe {
        let (x, y) = (x.add(at), y.add(at));
        let mut squares = 0.0;
        let mut i = 0;
        while columns.has(i) {
            let (first, second) = (columns.load(x, i, 0.0), columns.load(x, i + 1, 0.0));
            T::zip(first, second, |a, b| {
                squares += a * a + b * b;
                a
            });
            i += 2;
        }
        let squares = reduce::block(squares, ROW_WARPS, scratch, |a, b| a + b);
        let scale = rsqrt(squares / cols as f32 + eps);
        let mut i = 0;
        while columns.has(i) {
            let (x, weight) = (columns.load(x, i, 0.0), columns.load(weight, i, 0.0));
            columns.store(y, i, T::zip(x, weight, |x, weight| x * scale * weight));
            i += 1;
        }
    }
}

macro_rules! kernels {
    ($($ty:ty: $warp:ident $warp_groups:literal $block:ident $block_groups:literal $stream:ident;)*) => {$(
        /// # Safety
        /// `x`, `y`: [rows, cols], `weight`: [cols], valid on the launching stream, y disjoint from both, below 2³¹
        /// elements; 0 < cols ≤ [`MAX_WARP_COLS`]; `vectors` only if every row of all three starts and ends at a
        /// multiple of 16 bytes; launched as the spec of its name says.
        #[kernel(launch_bounds(WARP_BLOCK))]
        pub unsafe fn $warp(
            y: *mut $ty, x: *const $ty, weight: *const $ty, rows: u32, cols: u32, eps: f32, vectors: u32,
        ) {
            // SAFETY: this kernel's contract is the body's.
            unsafe { warp_rows::<$ty, $warp_groups>(y, x, weight, rows, cols, eps, vectors) }
        }

        /// # Safety
        /// As the warp kernel, with rows = gridDim.x and cols ≤ [`MAX_BLOCK_COLS`].
        #[kernel(launch_bounds(ROW_BLOCK))]
        pub unsafe fn $block(
            y: *mut $ty, x: *const $ty, weight: *const $ty, cols: u32, eps: f32, vectors: u32,
        ) {
            // SAFETY: this kernel's contract is the body's.
            unsafe { block_row::<$ty, $block_groups>(y, x, weight, cols, eps, vectors) }
        }

        /// # Safety
        /// As the block kernel, for any cols.
        #[kernel(launch_bounds(ROW_BLOCK))]
        pub unsafe fn $stream(
            y: *mut $ty, x: *const $ty, weight: *const $ty, cols: u32, eps: f32, vectors: u32,
        ) {
            // SAFETY: this kernel's contract is the body's.
            unsafe { stream_row(y, x, weight, cols, eps, vectors) }
        }
    )*};
}

kernels! {
    f32: rms_norm_warp_f32 8 rms_norm_block_f32 4 rms_norm_stream_f32;
    F16: rms_norm_warp_f16 4 rms_norm_block_f16 2 rms_norm_stream_f16;
}

/// # Safety
/// As [`rms_norm_stream_f32`]; launched as [`TEXTBOOK_F32`] says.
#[kernel(launch_bounds(textbook::BLOCK))]
pub unsafe fn rms_norm_textbook_f32(y: *mut f32, x: *const f32, weight: *const f32, cols: u32, eps: f32) {
    let scratch = shared::declare::<f32, { textbook::BLOCK as usize }>();
    let at = thread::block_idx_x() as usize * cols as usize;
    // SAFETY: one block per row, so the row lies inside x and y; all threads are here; c < cols.
    unsafe {
        let (x, y) = (x.add(at), y.add(at));
        let squares = textbook::fold(x, cols, 0.0, |sum, x| sum + x * x);
        let squares = textbook::reduce(squares, scratch, |a, b| a + b);
        let scale = rsqrt(squares / cols as f32 + eps);
        textbook::write(y, x, cols, |c, x| x * scale * *weight.add(c));
    }
}
