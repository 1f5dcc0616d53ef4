//! y[h, c, :] = mean of rows c · block … of x[h, :, :]. The last block has the rows that are left.
//!
//! x: [b, heads, rows, head_dim] with any outer strides; y: [b · heads, ceil(rows / block), head_dim] f32.

use crate::attention::tensors::{Strides, not_zero};
use crate::device::{Element, F16};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// A thread for each column.
const THREADS: u32 = 128;

/// The largest head_dim.
pub const MAX_HEAD_DIM: u32 = THREADS;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct BlockMean<T> {
    /// [b · heads, ceil(rows / block), head_dim], fewer than 2³² elements, disjoint from x
    pub y: *mut f32,
    /// [b, heads, rows, head_dim], spanning less than 2³¹ elements with gaps
    pub x: *const T,
    pub x_strides: Strides,
    pub heads: u32,
    pub rows: u32,
    /// At most [`MAX_HEAD_DIM`].
    pub head_dim: u32,
    /// Rows of a block, not 0.
    pub block: u32,
}

/// # Safety
/// [`BlockMean`] constrains the pointers, which are valid on the launching stream, and the numbers; a thread for
/// each column, a block for each of ceil(rows / block) along x and of b · heads along y.
#[inline(always)]
unsafe fn block_mean<T: Element>(p: BlockMean<T>) {
    let BlockMean { y, x, x_strides, heads, rows, head_dim, block } = p;
    let (c, h, column) = (thread::block_idx_x(), thread::block_idx_y(), thread::thread_idx_x());
    if column >= head_dim {
        return; // no barrier follows
    }
    // SAFETY: the grid has only heads and blocks that exist, so neither divisor is 0, the rows and the column are inside x,
    // and their mean is inside y.
    unsafe {
        not_zero(heads);
        let x = x.add((x_strides.offset(h / heads, h % heads) + column) as usize);
        let (mut row, end) = (c * block, (c * block + block).min(rows));
        let count = (end - row) as f32;
        let mut sum = 0.0;
        while row < end {
            sum += T::load(x.add((row * x_strides.row) as usize));
            row += 1;
        }
        *y.add(((h * thread::grid_dim_x() + c) * head_dim + column) as usize) = sum / count;
    }
}

macro_rules! kernels {
    ($($name:ident: $t:ty;)*) => {
        $(
            /// grid = [ceil(rows / block), b · heads]
            ///
            /// # Safety
            /// [`BlockMean`] constrains the pointers, which are valid on the launching stream, and the numbers.
            #[kernel(block = THREADS, min_blocks = 16, module = "attention_block_mean")]
            pub unsafe fn $name(p: BlockMean<$t>) {
                // SAFETY: the parameters and the grid fulfil the body's contract.
                unsafe { block_mean(p) }
            }
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($name.info()),*];
    };
}

kernels! {
    attention_block_mean_f32: f32;
    attention_block_mean_f16: F16;
}
