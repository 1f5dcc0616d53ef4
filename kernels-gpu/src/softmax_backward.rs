//! The gradient of softmax: dx[r, c] = y[r, c] · (dy[r, c] − Σ dy[r, ·]·y[r, ·]).   dx, dy, y: [rows, cols]
//!
//! | kernel                     | a row is handled by   | when        |
//! |----------------------------|-----------------------|-------------|
//! | softmax_backward_warp_‹t›  | 8 to 32 lanes of a warp | cols ≤ 1024 |
//! | softmax_backward_block_‹t› | 1 block               | cols > 1024 |

use crate::device::rows::{
    Block, ROW_BLOCK, ROW_WARPS, RowKernels, Team, WARP_BLOCK, block_columns, warp_row,
};
use crate::device::{Columns, F16, Vector};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct SoftmaxBackward<T> {
    /// [rows, cols]
    pub dx: *mut T,
    /// [rows, cols], disjoint from dx
    pub dy: *const T,
    /// [rows, cols], disjoint from dx
    pub y: *const T,
    pub rows: u32,
    pub cols: u32,
    /// 1 if every row of all tensors starts and ends at a multiple of 16 bytes, else 0.
    pub vectors: u32,
    /// Lanes of a warp for each row, only for the warp kernels: a power of two up to 32, at least
    /// [`row_lanes`](crate::device::rows::row_lanes).
    pub lanes: u32,
}

/// One row.
///
/// # Safety
/// The pointers are valid for the row, dx disjoint from the others; all threads of the team are here.
#[inline(always)]
unsafe fn row<T: Vector>(dx: *mut T, dy: *const T, y: *const T, columns: Columns, team: impl Team) {
    // SAFETY: the pointers are valid for the row, and all threads of the team are here: this function's contract.
    unsafe {
        let mut sum = 0.0;
        let mut i = 0;
        while columns.has(i) {
            T::zip(columns.load(dy, i, 0.0), columns.load(y, i, 0.0), |dy, y| {
                sum += dy * y;
                dy
            });
            i += 1;
        }
        let [sum] = team.combine(0, [sum], Sum);
        if team.has_row() {
            let mut i = 0;
            while columns.has(i) {
                let (dy, y) = (columns.load(dy, i, 0.0), columns.load(y, i, 0.0));
                columns.store(dx, i, T::zip(dy, y, |dy, y| y * (dy - sum)));
                i += 1;
            }
        }
    }
}

macro_rules! kernels {
    ($($name:ident $ty:ty: $warp:ident, $block:ident;)*) => {
        $(
            /// # Safety
            /// [`SoftmaxBackward`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements;
            /// launched as [`RowKernels::warp`] says, with at least one row.
            #[kernel(block = WARP_BLOCK, min_blocks = 8, shuffles = 5)]
            pub unsafe fn $warp(p: SoftmaxBackward<$ty>) {
                let (r, team, columns) = warp_row::<$ty>(p.rows, p.cols, p.vectors, p.lanes);
                let at = r as usize * p.cols as usize;
                // SAFETY: r < rows, so the row is inside the tensors; all lanes of the warp are here.
                unsafe { row(p.dx.add(at), p.dy.add(at), p.y.add(at), columns, team) }
            }

            /// # Safety
            /// As the warp kernel, with a block for each of the rows.
            #[kernel(block = ROW_BLOCK, min_blocks = 4, shared(scratch: [f32; ROW_WARPS]), shuffles = 5)]
            pub unsafe fn $block(p: SoftmaxBackward<$ty>) {
                let at = thread::block_idx_x() as usize * p.cols as usize;
                let columns = block_columns::<$ty>(p.cols, p.vectors);
                // SAFETY: one block per row, so the row is inside the tensors; all threads are here.
                unsafe { row(p.dx.add(at), p.dy.add(at), p.y.add(at), columns, Block(scratch)) }
            }

            /// The kernels of this element type.
            pub const $name: RowKernels<SoftmaxBackward<$ty>> =
                RowKernels { warp: $warp, block: $block, few: $block, stream: $block };
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($warp.info(), $block.info(),)*];
    };
}

kernels! {
    OF_F32 f32: softmax_backward_warp_f32, softmax_backward_block_f32;
    OF_F16 F16: softmax_backward_warp_f16, softmax_backward_block_f16;
}
