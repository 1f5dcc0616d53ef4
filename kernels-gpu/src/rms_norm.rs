//! y[r, c] = x[r, c] / √(mean(x[r, ·]²) + eps) · weight[c].   x, y: [rows, cols], weight: [cols]
//!
//! Idea: rows up to a length stay in registers and are read once; longer rows are read twice. With few rows, the weights are
//! loaded along with x, because nothing else would hide their latency. With many rows, another block has already brought the
//! weights into a cache, and registers are better used for more resident threads.
//! Source: Zhang & Sennrich 2019, "Root mean square layer normalization", equation 4.
//!
//! | kernel                | a row is handled by               | when          |
//! |-----------------------|-----------------------------------|---------------|
//! | rms_norm_warp_‹t›     | 8 to 32 lanes of a warp, in registers | cols ≤ 1024 |
//! | rms_norm_few_f32      | 1 block, in registers, and the weights | cols ≤ 8192, few rows |
//! | rms_norm_block_‹t›    | 1 block, in registers             | cols ≤ 8192   |
//! | rms_norm_stream_‹t›   | 1 block                           | cols > 8192   |

use crate::device::columns::each_group;
use crate::device::math::rsqrt;
use crate::device::rows::{
    Block, ROW_BLOCK, ROW_WARPS, RowKernels, Team, WARP_BLOCK, block_columns, expect_weights, warp_row,
};
use crate::device::{Columns, F16, Vector};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct RmsNorm<T> {
    /// [rows, cols]
    pub y: *mut T,
    /// [rows, cols], disjoint from y
    pub x: *const T,
    /// [cols], disjoint from y
    pub weight: *const T,
    pub rows: u32,
    pub cols: u32,
    pub eps: f32,
    /// 1 if every row of all tensors starts and ends at a multiple of 16 bytes, else 0.
    pub vectors: u32,
    /// Lanes of a warp for each row, only for the warp kernels: a power of two up to 32, at least
    /// [`row_lanes`](crate::device::rows::row_lanes).
    pub lanes: u32,
}

/// y, x: one row of at most N groups of columns.   EARLY: the weights are loaded along with x.
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
    // SAFETY: `x` is valid for the row: this function's contract.
    each_group!(columns, i < N, values[i] = unsafe { columns.load(x, i as u32, 0.0) });
    if EARLY {
        // SAFETY: `weight` is valid for the row: this function's contract.
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
    // SAFETY: all threads of the team are here: this function's contract.
    let [squares] = unsafe { team.combine(0, [squares], Sum) };
    let scale = rsqrt(squares / cols as f32 + eps);
    if team.has_row() {
        // SAFETY: `y` and `weight` are valid for the row: this function's contract.
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
    // SAFETY: all three pointers are valid for the row, and all threads of the team are here: this function's contract.
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
    ($(
        $name:ident $ty:ty:
        $warp:ident $warp_groups:literal, $block:ident $block_groups:literal, $stream:ident, few = $few:ident $(($own_few:ident))?;
    )*) => {
        $(
            /// # Safety
            /// [`RmsNorm`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements;
            /// 0 < cols ≤ [`MAX_WARP_COLS`](crate::device::rows::MAX_WARP_COLS); launched as [`RowKernels::warp`] says.
            #[kernel(block = WARP_BLOCK, min_blocks = 4, shuffles = 5)]
            pub unsafe fn $warp(p: RmsNorm<$ty>) {
                let (row, team, columns) = warp_row::<$ty>(p.rows, p.cols, p.vectors, p.lanes);
                let at = row as usize * p.cols as usize;
                // SAFETY: row < rows, so the row is inside x and y; all lanes of the warp are here.
                unsafe {
                    row_in_registers::<$ty, $warp_groups, false>(p.y.add(at), p.x.add(at), p.weight, p.cols, p.eps, columns, team);
                }
            }

            /// # Safety
            /// As the warp kernel, with a block for each of the rows and
            /// cols ≤ [`MAX_BLOCK_COLS`](crate::device::rows::MAX_BLOCK_COLS).
            #[kernel(block = ROW_BLOCK, min_blocks = 3, shared(scratch: [f32; ROW_WARPS]), shuffles = 5)]
            pub unsafe fn $block(p: RmsNorm<$ty>) {
                let (at, columns) = block_row(&p);
                let team = Block(scratch);
                // SAFETY: one block per row, so the row is inside x and y; all threads are here.
                unsafe {
                    row_in_registers::<$ty, $block_groups, false>(p.y.add(at), p.x.add(at), p.weight, p.cols, p.eps, columns, team);
                }
            }

            $(
                /// # Safety
                /// As the block kernel.
                #[kernel(block = ROW_BLOCK, min_blocks = 2, shared(scratch: [f32; ROW_WARPS]), shuffles = 5)]
                pub unsafe fn $own_few(p: RmsNorm<$ty>) {
                    let (at, columns) = block_row(&p);
                    let team = Block(scratch);
                    // SAFETY: one block per row, so the row is inside x and y; all threads are here.
                    unsafe {
                        row_in_registers::<$ty, $block_groups, true>(p.y.add(at), p.x.add(at), p.weight, p.cols, p.eps, columns, team);
                    }
                }
            )?

            /// # Safety
            /// As the block kernel, for any cols.
            #[kernel(block = ROW_BLOCK, min_blocks = 3, shared(scratch: [f32; ROW_WARPS]), shuffles = 5)]
            pub unsafe fn $stream(p: RmsNorm<$ty>) {
                let (at, columns) = block_row(&p);
                // SAFETY: one block per row, so the row is inside x and y; all threads are here.
                unsafe { stream_row(p.y.add(at), p.x.add(at), p.weight, p.cols, p.eps, columns, Block(scratch)) }
            }

            /// The kernels of this element type.
            pub const $name: RowKernels<RmsNorm<$ty>> =
                RowKernels { warp: $warp, block: $block, few: $few, stream: $stream };
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[
            $($warp.info(), $block.info(), $stream.info(), $($own_few.info(),)?)*
        ];
    };
}

kernels! {
    OF_F32 f32: rms_norm_warp_f32 8, rms_norm_block_f32 4, rms_norm_stream_f32, few = rms_norm_few_f32 (rms_norm_few_f32);
    OF_F16 F16: rms_norm_warp_f16 4, rms_norm_block_f16 2, rms_norm_stream_f16, few = rms_norm_block_f16;
}

/// The address of a block's row, and how its threads divide it.
#[inline(always)]
fn block_row<T: Vector>(p: &RmsNorm<T>) -> (usize, Columns) {
    (thread::block_idx_x() as usize * p.cols as usize, block_columns::<T>(p.cols, p.vectors))
}
