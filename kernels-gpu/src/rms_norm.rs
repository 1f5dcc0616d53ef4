//! y[r, c] = x[r, c] / √(mean(x[r, ·]²) + eps) · weight[c].   x, y: [rows, cols], weight: [cols]
//!
//! Idea: rows that fit stay in registers and are read once; longer rows are read twice. Where rows are few, the weights
//! are read before anything waits: nothing else fills the time that they take. Else they are in a cache by then, and
//! the registers are better used by more threads.
//! Source: Zhang & Sennrich 2019, "Root mean square layer normalization", equation 4.
//!
//! | kernel                | a row is handled by               | when          |
//! |-----------------------|-----------------------------------|---------------|
//! | rms_norm_warp_‹t›     | 8 to 32 lanes of a warp, in registers | cols ≤ 1024 |
//! | rms_norm_few_f32      | 1 block, in registers, and the weights | cols ≤ 8192, few rows |
//! | rms_norm_block_‹t›    | 1 block, in registers             | cols ≤ 8192   |
//! | rms_norm_stream_‹t›   | 1 block                           | cols > 8192   |
//! | rms_norm_textbook_f32 | 1 block of 8 warps, two passes    | the baseline of benches |

use crate::device::columns::each_group;
use crate::device::math::rsqrt;
use crate::device::rows::{
    Block, ROW_BLOCK, ROW_WARPS, Team, WARP_BLOCK, block_columns, expect_weights, warp_row,
};
use crate::device::{Columns, F16, Vector, shared, textbook};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// block = [any multiple of 32 up to this], grid = [ceil(rows / warps of a block)]
pub const WARP_F32: KernelSpec = KernelSpec::new("rms_norm_warp_f32", WARP_BLOCK).shuffles(5);
/// As [`WARP_F32`].
pub const WARP_F16: KernelSpec = KernelSpec::new("rms_norm_warp_f16", WARP_BLOCK).shuffles(5);
/// grid = [rows], or with the fewer threads of [`row_threads`](crate::device::rows::row_threads)
pub const BLOCK_F32: KernelSpec = block_spec("rms_norm_block_f32");
/// As [`BLOCK_F32`].
pub const BLOCK_F16: KernelSpec = block_spec("rms_norm_block_f16");
/// As [`BLOCK_F32`].
pub const FEW_F32: KernelSpec = block_spec("rms_norm_few_f32");
/// grid = [rows]
pub const STREAM_F32: KernelSpec = block_spec("rms_norm_stream_f32");
/// As [`STREAM_F32`].
pub const STREAM_F16: KernelSpec = block_spec("rms_norm_stream_f16");
/// grid = [rows]
pub const TEXTBOOK_F32: KernelSpec =
    KernelSpec::new("rms_norm_textbook_f32", textbook::BLOCK).shared_bytes(textbook::BLOCK * 4);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] =
    &[WARP_F32, WARP_F16, BLOCK_F32, BLOCK_F16, FEW_F32, STREAM_F32, STREAM_F16, TEXTBOOK_F32];

const fn block_spec(name: &'static str) -> KernelSpec {
    KernelSpec::new(name, ROW_BLOCK).shared_bytes(ROW_WARPS * 4).shuffles(5)
}

/// y, x: one row, N groups of whose columns fit.   EARLY: the weights are loaded along with x.
///
/// # Safety
/// `x`, `y` and `weight` valid for the row, y disjoint from both; all threads of the team are here.
#[inline(always)]
unsafe fn row_in_registers<T: Vector, const N: usize, const EARLY: bool>(
    y: *mut T,
    x: *const T,
    weight: *const T,
    cols: u32,
    eps: f32,
    columns: Columns,
    team: impl Team,
) {
    let [mut values, mut weights] = [[T::splat(0.0); N]; 2];
    // SAFETY: as the caller promises.
    each_group!(columns, i < N, values[i] = unsafe { columns.load(x, i as u32, 0.0) });
    if EARLY {
        // SAFETY: as the caller promises.
        each_group!(columns, i < N, weights[i] = unsafe { columns.load(weight, i as u32, 0.0) });
    } else {
        expect_weights(columns, weight);
    }
    let mut squares = 0.0;
    each_group!(columns, i < N, {
        T::map(values[i], |x| {
            squares += x * x;
            x
        });
    });
    // SAFETY: as the caller promises.
    let [squares] = unsafe { team.combine(0, [squares], Sum) };
    let scale = rsqrt(squares / cols as f32 + eps);
    if team.has_row() {
        // SAFETY: as the caller promises.
        each_group!(columns, i < N, unsafe {
            let weight = if EARLY { weights[i] } else { columns.load(weight, i as u32, 0.0) };
            columns.store(y, i as u32, T::zip(values[i], weight, |x, weight| x * scale * weight));
        });
    }
}

/// y, x: one row of any length.
///
/// # Safety
/// As [`row_in_registers`].
#[inline(always)]
unsafe fn stream_row<T: Vector>(
    y: *mut T,
    x: *const T,
    weight: *const T,
    cols: u32,
    eps: f32,
    columns: Columns,
    team: impl Team,
) {
    // SAFETY: as the caller promises.
    unsafe {
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
        let [squares] = team.combine(0, [squares], Sum);
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
    ($($ty:ty: $warp:ident $warp_groups:literal $block:ident $block_groups:literal $stream:ident $($few:ident)?;)*) => {$(
        /// # Safety
        /// `x`, `y`: [rows, cols], `weight`: [cols], valid on the launching stream, y disjoint from both, below 2³¹
        /// elements; 0 < cols ≤ [`MAX_WARP_COLS`](crate::device::rows::MAX_WARP_COLS); `vectors` only if every row of
        /// all three starts and ends at a multiple of 16 bytes; `lanes` as in `softmax`; launched as the spec of its name
        /// says.
        #[kernel(launch_bounds(WARP_BLOCK))]
        pub unsafe fn $warp(
            y: *mut $ty, x: *const $ty, weight: *const $ty, rows: u32, cols: u32, eps: f32, vectors: u32,
            lanes: u32,
        ) {
            let (row, team, columns) = warp_row::<$ty>(rows, cols, vectors, lanes);
            let at = row as usize * cols as usize;
            // SAFETY: row < rows, so the row lies inside x and y; all lanes of the warp are here.
            unsafe {
                row_in_registers::<$ty, $warp_groups, false>(y.add(at), x.add(at), weight, cols, eps, columns, team);
            }
        }

        /// # Safety
        /// As the warp kernel, with a block for each of the rows and
        /// cols ≤ [`MAX_BLOCK_COLS`](crate::device::rows::MAX_BLOCK_COLS).
        #[kernel(launch_bounds(ROW_BLOCK))]
        pub unsafe fn $block(
            y: *mut $ty, x: *const $ty, weight: *const $ty, _rows: u32, cols: u32, eps: f32, vectors: u32,
        ) {
            let team = Block(shared::declare::<f32, { ROW_WARPS as usize }>());
            let (at, columns) =
                (thread::block_idx_x() as usize * cols as usize, block_columns::<$ty>(cols, vectors));
            // SAFETY: one block per row, so the row lies inside x and y; all threads are here.
            unsafe {
                row_in_registers::<$ty, $block_groups, false>(y.add(at), x.add(at), weight, cols, eps, columns, team);
            }
        }

        $(
        /// # Safety
        /// As the block kernel.
        #[kernel(launch_bounds(ROW_BLOCK))]
        pub unsafe fn $few(
            y: *mut $ty, x: *const $ty, weight: *const $ty, _rows: u32, cols: u32, eps: f32, vectors: u32,
        ) {
            let team = Block(shared::declare::<f32, { ROW_WARPS as usize }>());
            let (at, columns) =
                (thread::block_idx_x() as usize * cols as usize, block_columns::<$ty>(cols, vectors));
            // SAFETY: as in the block kernel.
            unsafe {
                row_in_registers::<$ty, $block_groups, true>(y.add(at), x.add(at), weight, cols, eps, columns, team);
            }
        }
        )?

        /// # Safety
        /// As the block kernel, for any cols.
        #[kernel(launch_bounds(ROW_BLOCK))]
        pub unsafe fn $stream(
            y: *mut $ty, x: *const $ty, weight: *const $ty, _rows: u32, cols: u32, eps: f32, vectors: u32,
        ) {
            let team = Block(shared::declare::<f32, { ROW_WARPS as usize }>());
            let (at, columns) =
                (thread::block_idx_x() as usize * cols as usize, block_columns::<$ty>(cols, vectors));
            // SAFETY: as in the block kernel.
            unsafe { stream_row(y.add(at), x.add(at), weight, cols, eps, columns, team) }
        }
    )*};
}

kernels! {
    f32: rms_norm_warp_f32 8 rms_norm_block_f32 4 rms_norm_stream_f32 rms_norm_few_f32;
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
