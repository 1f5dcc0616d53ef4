//! y[r, c] = (x[r, c] − meanᵣ) / √(varᵣ + eps) · weight[c] + bias[c].   x, y: [rows, cols]; weight, bias: [cols]
//!
//! Idea: the corrected two-pass algorithm. d = x − m with m the rounded mean; then mean = m + δ with δ = mean(d), and
//! var = mean(d²) − δ². δ corrects the rounding of m, so rows far from zero and rows with outliers keep their accuracy.
//! LayerNorm that fit stay in registers and are read once; longer rows are read three times. With few rows, weights and biases
//! are loaded early, as in `rms_norm`.
//! Source: Ba et al. 2016, "Layer normalization"; Chan, Golub & LeVeque 1983, "Algorithms for computing the sample
//! variance", equation 1.7.
//!
//! | kernel                  | a row is handled by               | when          |
//! |-------------------------|-----------------------------------|---------------|
//! | layer_norm_warp_‹t›     | 8 to 32 lanes of a warp, in registers | cols ≤ 1024 |
//! | layer_norm_few_f32      | 1 block, in registers, and weights and biases | cols ≤ 8192, few rows |
//! | layer_norm_block_‹t›    | 1 block, in registers             | cols ≤ 8192   |
//! | layer_norm_stream_‹t›   | 1 block                           | cols > 8192   |

use crate::device::columns::each_group;
use crate::device::math::{fma, rsqrt};
use crate::device::rows::{
    Block, ROW_BLOCK, ROW_WARPS, RowKernels, Team, WARP_BLOCK, block_columns, expect_weights, warp_row,
};
use crate::device::{Columns, F16, Vector};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Words of scratch memory: three sums per warp.
const SCRATCH: u32 = 3 * ROW_WARPS;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct LayerNorm<T> {
    /// [rows, cols]
    pub y: *mut T,
    /// [rows, cols], disjoint from y
    pub x: *const T,
    /// [cols], disjoint from y
    pub weight: *const T,
    /// [cols], disjoint from y
    pub bias: *const T,
    pub rows: u32,
    pub cols: u32,
    pub eps: f32,
    /// 1 if every row of all tensors starts and ends at a multiple of 16 bytes, else 0.
    pub vectors: u32,
    /// Lanes per row, only for the warp kernels: a power of two up to 32, at least
    /// [`row_lanes`](crate::device::rows::row_lanes).
    pub lanes: u32,
}

#[inlined]
impl<T> LayerNorm<T> {
    /// The parameters with y and x at this row.
    ///
    /// # Safety
    /// row < rows, and the pointers are valid for their tensors.
    unsafe fn at(self, row: u32) -> Self {
        let at = row as usize * self.cols as usize;
        // SAFETY: the row is inside x and y: this function's contract.
        unsafe { Self { y: self.y.add(at), x: self.x.add(at), ..self } }
    }
}

/// δ, which is subtracted from x − m, and 1/√(var + eps).
struct Scale {
    delta: f32,
    factor: f32,
}

#[inlined]
impl Scale {
    /// From the sums of d and of d², and 1 / cols.
    fn new([sum, squares]: [f32; 2], per_col: f32, eps: f32) -> Self {
        let delta = sum * per_col;
        let variance = (squares * per_col - delta * delta).max(0.0);
        // max() drops a NaN, but it stays in the sum and reaches every result through delta
        Self { delta, factor: rsqrt(variance + eps) }
    }

    fn apply(&self, d: f32, weight: f32, bias: f32) -> f32 {
        fma((d - self.delta) * self.factor, weight, bias)
    }
}

/// y = f(d, weight, bias) of one group.
///
/// # Safety
/// `y` valid for writing the row.
#[inline(always)]
unsafe fn write_group<T: Vector>(
    y: *mut T,
    columns: Columns,
    i: u32,
    [d, weight, bias]: [T::Values; 3],
    scale: &Scale,
) {
    let mut j = 0;
    let values = T::zip(d, weight, |d, weight| {
        let value = scale.apply(d, weight, bias[j]);
        j += 1;
        value
    });
    // SAFETY: `y` is valid for writing the row: this function's contract.
    unsafe { columns.store(y, i, values) };
}

/// One row of at most N groups of columns.   EARLY: weights and biases are loaded along with x.
///
/// # Safety
/// `x`, `y`, `weight` and `bias` valid for the row, y disjoint from the others; all threads of the team are here.
#[inline(always)]
unsafe fn row_in_registers<T: Vector, const N: usize, const EARLY: bool>(
    LayerNorm { y, x, weight, bias, cols, eps, .. }: LayerNorm<T>,
    columns: Columns,
    team: impl Team,
) {
    let per_col = 1.0 / cols as f32;
    let [mut values, mut weights, mut biases] = [[T::splat(0.0); N]; 3];
    // SAFETY: `x` is valid for the row: this function's contract.
    each_group!(columns, i < N, values[i] = unsafe { columns.load(x, i as u32, 0.0) });
    if EARLY {
        // SAFETY: `weight` and `bias` are valid for the row: this function's contract.
        each_group!(columns, i < N, unsafe {
            weights[i] = columns.load(weight, i as u32, 0.0);
            biases[i] = columns.load(bias, i as u32, 0.0);
        });
    } else {
        expect_weights(columns, weight);
        expect_weights(columns, bias);
    }
    let mut total = 0.0;
    each_group!(columns, i < N, {
        T::map(values[i], |x| {
            total += x;
            x
        });
    });
    // SAFETY: all threads of the team are here: this function's contract.
    let [total] = unsafe { team.combine(0, [total], Sum) };
    let mean = total * per_col;

    let (mut total, mut squares) = (0.0, 0.0);
    each_group!(columns, i < N, {
        values[i] = T::map(columns.centre::<T>(i as u32, values[i], mean), |d| {
            total += d;
            squares += d * d;
            d
        });
    });
    // SAFETY: all threads of the team are here: this function's contract.
    let sums = unsafe { team.combine(1, [total, squares], Sum) };
    let scale = Scale::new(sums, per_col, eps);
    if team.has_row() {
        // SAFETY: `y`, `weight` and `bias` are valid for the row: this function's contract.
        each_group!(columns, i < N, unsafe {
            let [weight, bias] = match EARLY {
                true => [weights[i], biases[i]],
                false => [weight, bias].map(|of| columns.load(of, i as u32, 0.0)),
            };
            write_group::<T>(y, columns, i as u32, [values[i], weight, bias], &scale);
        });
    }
}

/// One row of any length.
///
/// # Safety
/// As [`row_in_registers`].
#[inline(always)]
unsafe fn stream_row<T: Vector>(
    LayerNorm { y, x, weight, bias, cols, eps, .. }: LayerNorm<T>,
    columns: Columns,
    team: impl Team,
) {
    // SAFETY: all four pointers are valid for the row, and all threads of the team are here: this function's contract.
    unsafe {
        let per_col = 1.0 / cols as f32;
        let mut total = 0.0;
        let mut i = 0;
        while columns.has(i) {
            let (first, second) = (columns.load(x, i, 0.0), columns.load(x, i + 1, 0.0));
            T::zip(first, second, |a, b| {
                total += a + b;
                a
            });
            i += 2;
        }
        let [total] = team.combine(0, [total], Sum);
        let mean = total * per_col;

        let (mut total, mut squares) = (0.0, 0.0);
        let mut i = 0;
        while columns.has(i) {
            let (first, second) = (columns.load(x, i, 0.0), columns.load(x, i + 1, 0.0));
            let first = columns.centre::<T>(i, first, mean);
            T::zip(first, columns.centre::<T>(i + 1, second, mean), |a, b| {
                total += a + b;
                squares += a * a + b * b;
                a
            });
            i += 2;
        }
        let scale = Scale::new(team.combine(1, [total, squares], Sum), per_col, eps);

        let mut i = 0;
        while columns.has(i) {
            let d = T::map(columns.load(x, i, 0.0), |x| x - mean);
            let [weight, bias] = [weight, bias].map(|of| columns.load(of, i, 0.0));
            write_group::<T>(y, columns, i, [d, weight, bias], &scale);
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
            /// [`LayerNorm`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements;
            /// 0 < cols ≤ [`MAX_WARP_COLS`](crate::device::rows::MAX_WARP_COLS); launched as [`RowKernels::warp`] says.
            #[kernel(block = WARP_BLOCK, min_blocks = 3, shuffles = 15)]
            pub unsafe fn $warp(p: LayerNorm<$ty>) {
                let (row, team, columns) = warp_row::<$ty>(p.rows, p.cols, p.vectors, p.lanes);
                // SAFETY: row < rows, so the row is inside x and y; all lanes of the warp are here.
                unsafe { row_in_registers::<$ty, $warp_groups, false>(p.at(row), columns, team) }
            }

            /// # Safety
            /// As the warp kernel, with a block for each of the rows and
            /// cols ≤ [`MAX_BLOCK_COLS`](crate::device::rows::MAX_BLOCK_COLS).
            #[kernel(block = ROW_BLOCK, min_blocks = 2, shared(scratch: [f32; SCRATCH]), shuffles = 15)]
            pub unsafe fn $block(p: LayerNorm<$ty>) {
                let columns = block_columns::<$ty>(p.cols, p.vectors);
                let row = thread::block_idx_x();
                // SAFETY: one block per row, so the row is inside x and y; all threads are here.
                unsafe { row_in_registers::<$ty, $block_groups, false>(p.at(row), columns, Block(scratch)) }
            }

            $(
                /// # Safety
                /// As the block kernel.
                #[kernel(block = ROW_BLOCK, min_blocks = 1, shared(scratch: [f32; SCRATCH]), shuffles = 15)]
                pub unsafe fn $own_few(p: LayerNorm<$ty>) {
                    let columns = block_columns::<$ty>(p.cols, p.vectors);
                    let row = thread::block_idx_x();
                    // SAFETY: one block per row, so the row is inside x and y; all threads are here.
                    unsafe { row_in_registers::<$ty, $block_groups, true>(p.at(row), columns, Block(scratch)) }
                }
            )?

            /// # Safety
            /// As the block kernel, for any cols.
            #[kernel(block = ROW_BLOCK, min_blocks = 2, shared(scratch: [f32; SCRATCH]), shuffles = 15)]
            pub unsafe fn $stream(p: LayerNorm<$ty>) {
                let columns = block_columns::<$ty>(p.cols, p.vectors);
                let row = thread::block_idx_x();
                // SAFETY: one block per row, so the row is inside x and y; all threads are here.
                unsafe { stream_row(p.at(row), columns, Block(scratch)) }
            }

            /// The kernels of this element type.
            pub const $name: RowKernels<LayerNorm<$ty>> =
                RowKernels { warp: $warp, block: $block, few: $few, stream: $stream };
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[
            $($warp.info(), $block.info(), $stream.info(), $($own_few.info(),)?)*
        ];
    };
}

kernels! {
    OF_F32 f32: layer_norm_warp_f32 8, layer_norm_block_f32 4, layer_norm_stream_f32, few = layer_norm_few_f32 (layer_norm_few_f32);
    OF_F16 F16: layer_norm_warp_f16 4, layer_norm_block_f16 2, layer_norm_stream_f16, few = layer_norm_block_f16;
}
