//! The gradients of RMS norm and layer norm with respect to their input.   dx, dy, x: [rows, cols], weight: [cols]
//!
//! With d = x − m, s = 1/√(mean(d²) + eps) and g = dy · weight (m is the row's mean, and 0 for RMS norm):
//! dx = s · (g − mean(g) − d · s² · mean(g · d)), for RMS norm without mean(g).
//!
//! (m, s) of each row are written to `stats`, from which [`column_sum`](crate::column_sum) computes the weights' gradient.
//!
//! | kernel                        | a row is handled by   | when        |
//! |-------------------------------|-----------------------|-------------|
//! | ‹norm›_backward_warp_‹t›      | 8 to 32 lanes of a warp | cols ≤ 1024 |
//! | ‹norm›_backward_block_‹t›     | 1 block               | cols > 1024 |

use crate::device::math::rsqrt;
use crate::device::rows::{
    Block, ROW_BLOCK, ROW_WARPS, RowKernels, Team, WARP_BLOCK, block_columns, warp_row,
};
use crate::device::{Columns, F16, Vector};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct NormBackward<T> {
    /// [rows, cols]
    pub dx: *mut T,
    /// [rows, 2], disjoint from the others
    pub stats: *mut f32,
    /// [rows, cols], disjoint from dx
    pub dy: *const T,
    /// [rows, cols], disjoint from dx
    pub x: *const T,
    /// [cols], disjoint from dx
    pub weight: *const T,
    pub rows: u32,
    pub cols: u32,
    pub eps: f32,
    /// 1 if every row of all tensors but `stats` starts and ends at a multiple of 16 bytes, else 0.
    pub vectors: u32,
    /// Lanes of a warp for each row, only for the warp kernels: a power of two up to 32, at least
    /// [`row_lanes`](crate::device::rows::row_lanes).
    pub lanes: u32,
}

/// Number of values that are combined over a row's threads.
const COMBINED: u32 = 4;

/// Computes row `r`. CENTRED: for layer norm.
///
/// # Safety
/// [`NormBackward`] holds of p, and r < rows; all threads of the team are here.
#[inline(always)]
unsafe fn row<T: Vector, const CENTRED: bool>(
    p: &NormBackward<T>,
    r: u32,
    columns: Columns,
    team: impl Team,
) {
    let at = r as usize * p.cols as usize;
    let per_col = 1.0 / p.cols as f32;
    // SAFETY: r < rows, so the row is inside the tensors, and all threads of the team are here: this function's contract.
    unsafe {
        let (dx, dy, x) = (p.dx.add(at), p.dy.add(at), p.x.add(at));
        let mut mean = 0.0;
        if CENTRED {
            let mut sum = 0.0;
            let mut i = 0;
            while columns.has(i) {
                T::map(columns.load(x, i, 0.0), |x| {
                    sum += x;
                    x
                });
                i += 1;
            }
            let [sum] = team.combine(0, [sum], Sum);
            mean = sum * per_col;
        }
        // (g, d) of a group; zero past the end of the row
        let group = |i: u32| {
            let d = columns.load(x, i, 0.0);
            let d = if CENTRED { columns.centre::<T>(i, d, mean) } else { d };
            let g =
                T::zip(columns.load(dy, i, 0.0), columns.load(p.weight, i, 0.0), |dy, weight| dy * weight);
            (g, d)
        };
        let (mut squares, mut products, mut shift) = (0.0, 0.0, 0.0);
        let mut i = 0;
        while columns.has(i) {
            let (g, d) = group(i);
            T::zip(g, d, |g, d| {
                squares += d * d;
                products += g * d;
                shift += g;
                g
            });
            i += 1;
        }
        if CENTRED {
            [squares, products, shift] = team.combine(1, [squares, products, shift], Sum);
        } else {
            [squares, products] = team.combine(1, [squares, products], Sum);
            shift = 0.0;
        }
        let scale = rsqrt(squares * per_col + p.eps);
        let (along, shift) = (scale * scale * products * per_col, shift * per_col);
        if team.has_row() {
            if columns.column(0, 0) == 0 {
                let stats = p.stats.add(2 * r as usize);
                *stats = mean;
                *stats.add(1) = scale;
            }
            let mut i = 0;
            while columns.has(i) {
                let (g, d) = group(i);
                columns.store(dx, i, T::zip(g, d, |g, d| scale * (g - shift - d * along)));
                i += 1;
            }
        }
    }
}

macro_rules! kernels {
    ($($name:ident $ty:ty, $centred:literal, $shuffles:literal: $warp:ident, $block:ident;)*) => {
        $(
            /// # Safety
            /// [`NormBackward`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements;
            /// launched as [`RowKernels::warp`] says, with at least one row.
            #[kernel(block = WARP_BLOCK, min_blocks = 5, shuffles = $shuffles)]
            pub unsafe fn $warp(p: NormBackward<$ty>) {
                let (r, team, columns) = warp_row::<$ty>(p.rows, p.cols, p.vectors, p.lanes);
                // SAFETY: r < rows; all lanes of the warp are here.
                unsafe { row::<$ty, $centred>(&p, r, columns, team) }
            }

            /// # Safety
            /// As the warp kernel, with a block for each of the rows.
            #[kernel(block = ROW_BLOCK, min_blocks = 2, shared(scratch: [f32; COMBINED * ROW_WARPS]), shuffles = $shuffles)]
            pub unsafe fn $block(p: NormBackward<$ty>) {
                let columns = block_columns::<$ty>(p.cols, p.vectors);
                // SAFETY: one block per row; all threads are here.
                unsafe { row::<$ty, $centred>(&p, thread::block_idx_x(), columns, Block(scratch)) }
            }

            /// The kernels of this norm and element type.
            pub const $name: RowKernels<NormBackward<$ty>> =
                RowKernels { warp: $warp, block: $block, few: $block, stream: $block };
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($warp.info(), $block.info(),)*];
    };
}

kernels! {
    RMS_F32 f32, false, 10: rms_norm_backward_warp_f32, rms_norm_backward_block_f32;
    RMS_F16 F16, false, 10: rms_norm_backward_warp_f16, rms_norm_backward_block_f16;
    LAYER_F32 f32, true, 20: layer_norm_backward_warp_f32, layer_norm_backward_block_f32;
    LAYER_F16 F16, true, 20: layer_norm_backward_warp_f16, layer_norm_backward_block_f16;
}
