//! y[h, c, :] = mean of rows c · block … of x[h, :, :], the last block of as many rows as there are.
//!
//! x: [b, heads, rows, head_dim] with free outer strides; y: [b · heads, ceil(rows / block), head_dim] f32.

use crate::attention::{Strides, not_zero};
use crate::device::{Element, F16};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// A thread for each column.
const THREADS: u32 = 128;

/// The largest head_dim.
pub const MAX_HEAD_DIM: u32 = THREADS;

/// f32 and f16: grid = [ceil(rows / block), b · heads].
pub const BLOCK_MEAN: [KernelSpec; 2] = [
    KernelSpec::new("attention_block_mean_f32", THREADS),
    KernelSpec::new("attention_block_mean_f16", THREADS),
];

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn block_mean<T: Element>(
    y: *mut f32,
    x: *const T,
    strides: Strides,
    heads: u32,
    rows: u32,
    head_dim: u32,
    block: u32,
) {
    let (c, h, column) = (thread::block_idx_x(), thread::block_idx_y(), thread::thread_idx_x());
    if column >= head_dim {
        return; // no barrier follows
    }
    // SAFETY: as the caller promises; the grid has only heads and blocks that there are, so neither divisor is 0.
    unsafe {
        not_zero(heads);
        let x = x.add((strides.offset(h / heads, h % heads) + column) as usize);
        let (mut row, end) = (c * block, (c * block + block).min(rows));
        let count = (end - row) as f32;
        let mut sum = 0.0;
        while row < end {
            sum += T::load(x.add((row * strides.row) as usize));
            row += 1;
        }
        *y.add(((h * thread::grid_dim_x() + c) * head_dim + column) as usize) = sum / count;
    }
}

macro_rules! kernels {
    ($($name:ident: $t:ty;)*) => {$(
        /// # Safety
        /// `x`, `y`: as the module's head says, x of less than 2³¹ elements with gaps and y of less than 2³², disjoint,
        /// valid on the launching stream; head_dim ≤ [`MAX_HEAD_DIM`]. Launched as [`BLOCK_MEAN`] says.
        #[kernel(launch_bounds(THREADS))]
        pub unsafe fn $name(
            y: *mut f32, x: *const $t, x_batch: u32, x_head: u32, x_row: u32,
            heads: u32, rows: u32, head_dim: u32, block: u32,
        ) {
            let strides = Strides { batch: x_batch, head: x_head, row: x_row };
            // SAFETY: this kernel's contract is the body's.
            unsafe { block_mean(y, x, strides, heads, rows, head_dim, block) }
        }
    )*};
}

kernels! {
    attention_block_mean_f32: f32;
    attention_block_mean_f16: F16;
}
