//! Sums over rows: y[b, c] = Σ x[r, c], or Σ x[r, c] · (z[r, c] − m[r]) · s[r], over the rows r of part b.
//!
//! x, z: [rows, cols]; y: [parts, cols] f32; (m, s): [rows, 2]. The second form is the gradient of a norm's weight.
//!
//! The rows of a part are added in an order that depends on their number alone, and parts by a second launch, so the result is
//! the same each time.
//!
//! | kernel         | 32 columns of a part are handled by | when |
//! |----------------|-------------------------------------|------|
//! | column_sum_‹t› | 1 block, 8 rows at a time           | all  |

use crate::device::{Element, F16, Shared};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Columns of a block.
pub const COLUMNS: u32 = 32;
/// Rows that a block adds at a time.
const ROWS: u32 = 8;
const BLOCK: u32 = COLUMNS * ROWS;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Columns<T> {
    /// [gridDim.y, cols]
    pub y: *mut f32,
    /// [rows, cols], disjoint from y
    pub x: *const T,
    /// [rows, cols], disjoint from y; or null
    pub z: *const T,
    /// [rows, 2], disjoint from y; read only where z is not null
    pub stats: *const f32,
    pub rows: u32,
    pub cols: u32,
    /// Rows of a part.
    pub part_rows: u32,
}

/// # Safety
/// As the kernels below; `sums` holds BLOCK elements.
#[inline(always)]
unsafe fn sum<T: Element>(p: Columns<T>, sums: Shared<f32>) {
    let (tx, ty) = (thread::thread_idx_x() % COLUMNS, thread::thread_idx_x() / COLUMNS);
    let (column, part) = (thread::block_idx_x() * COLUMNS + tx, thread::block_idx_y());
    let first = part * p.part_rows;
    let end = (first + p.part_rows).min(p.rows);
    let mut sum = 0.0;
    if column < p.cols {
        let mut r = first + ty;
        while r < end {
            let at = r as usize * p.cols as usize + column as usize;
            // SAFETY: r < rows and column < cols.
            unsafe {
                let x = T::load(p.x.add(at));
                if p.z.is_null() {
                    sum += x;
                } else {
                    let stats = p.stats.add(2 * r as usize);
                    sum += x * ((T::load(p.z.add(at)) - f32::load(stats)) * f32::load(stats.add(1)));
                }
            }
            r += ROWS;
        }
    }
    // SAFETY: each thread its own element; all threads reach the barrier.
    unsafe {
        sums.set(thread::thread_idx_x(), sum);
        thread::sync_threads();
        if ty == 0 && column < p.cols {
            let mut i = 1;
            while i < ROWS {
                sum += sums.get(i * COLUMNS + tx);
                i += 1;
            }
            *p.y.add(part as usize * p.cols as usize + column as usize) = sum;
        }
    }
}

/// grid = [ceil(cols / COLUMNS), ceil(rows / part_rows)]
///
/// # Safety
/// [`Columns`] says what holds of the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = BLOCK, shared(sums: [f32; BLOCK]))]
pub unsafe fn column_sum_f32(p: Columns<f32>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { sum(p, sums) }
}

/// As [`column_sum_f32`].
///
/// # Safety
/// As [`column_sum_f32`].
#[kernel(block = BLOCK, shared(sums: [f32; BLOCK]))]
pub unsafe fn column_sum_f16(p: Columns<F16>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { sum(p, sums) }
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[column_sum_f32.info(), column_sum_f16.info()];
