//! Sums over rows: y[b, c] = Σ x[r, c], or Σ x[r, c] · (z[r, c] − m[r]) · s[r], over the rows r of part b.
//!
//! x, z: [rows, cols]; y: [parts, cols] f32; (m, s): [rows, 2]. The second form is the gradient of a norm's weight.
//!
//! A thread adds a 16-byte vector of every 32nd row of a part, with four rows in flight. The threads' sums are added
//! pairwise, the parts by a second launch. The order depends only on the numbers of rows and columns, so the result is the
//! same each time.
//!
//! | kernel         | 128 bytes of a part's rows are handled by | when |
//! |----------------|-------------------------------------------|------|
//! | column_sum_‹t› | 1 block, 32 rows at a time                | all  |

use crate::device::columns::Columns as Lane;
use crate::device::{Element, F16, Shared, Vector};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Threads along a row: a block has this many 16-byte vectors of columns.
pub const WIDTH: u32 = 8;
/// Rows that a block adds at a time.
const ROWS: u32 = 32;
const BLOCK: u32 = WIDTH * ROWS;
/// Rows of a thread that are loaded together.
const IN_FLIGHT: u32 = 4;

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
    /// Rows per part.
    pub part_rows: u32,
    /// Whether all rows of x and z start and end at multiples of 16 bytes.
    pub vectors: u32,
}

/// # Safety
/// As the kernels below; `sums` holds BLOCK elements for each element of a vector.
#[inline(always)]
unsafe fn sum<T: Vector>(p: Columns<T>, sums: Shared<f32>) {
    let tid = thread::thread_idx_x();
    let (group, part) = (thread::block_idx_x(), thread::block_idx_y());
    let lane = Lane::new::<T>(p.cols, tid % WIDTH, WIDTH, p.vectors != 0);
    let end = (part * p.part_rows + p.part_rows).min(p.rows);
    let mut r = part * p.part_rows + tid / WIDTH;
    // SAFETY: r < rows.
    let row = |r: u32| unsafe {
        let at = r as usize * p.cols as usize;
        let x = lane.load(p.x.add(at), group, 0.0);
        if p.z.is_null() {
            return x;
        }
        let stats = p.stats.add(2 * r as usize);
        let (m, s) = (f32::load(stats), f32::load(stats.add(1)));
        T::zip(x, lane.load(p.z.add(at), group, 0.0), |x, z| x * ((z - m) * s))
    };
    let add = |x, y| T::zip(x, y, |x, y| x + y);
    let mut sum = T::splat(0.0);
    while r + (IN_FLIGHT - 1) * ROWS < end {
        let (a, b, c, d) = (row(r), row(r + ROWS), row(r + 2 * ROWS), row(r + 3 * ROWS));
        sum = add(sum, add(add(a, b), add(c, d)));
        r += IN_FLIGHT * ROWS;
    }
    while r < end {
        sum = add(sum, row(r));
        r += ROWS;
    }

    let mut half = BLOCK / 2;
    let mut j = 0;
    sum = T::map(sum, |value| {
        // SAFETY: only this thread accesses these elements.
        unsafe { sums.set(j * BLOCK + tid, value) };
        j += 1;
        value
    });
    while half >= WIDTH {
        // SAFETY: all threads reach the barrier. After it the upper half is complete, and each thread of the lower half
        // writes only its own element.
        unsafe {
            thread::sync_threads();
            if tid < half {
                let mut j = 0;
                sum = T::map(sum, |value| {
                    let value = value + sums.get(j * BLOCK + half + tid);
                    sums.set(j * BLOCK + tid, value);
                    j += 1;
                    value
                });
            }
        }
        half /= 2;
    }
    if tid < WIDTH {
        // SAFETY: y has a row for each part.
        unsafe {
            let y = p.y.add(part as usize * p.cols as usize);
            let mut j = 0;
            let _ = T::map(sum, |value| {
                if lane.is_valid(group, j) {
                    *y.add(lane.column(group, j) as usize) = value;
                }
                j += 1;
                value
            });
        }
    }
}

/// grid = [ceil(cols / (WIDTH · T::LEN)), ceil(rows / part_rows)]
///
/// # Safety
/// [`Columns`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = BLOCK, min_blocks = 6, shared(sums: [f32; BLOCK * 4]))]
pub unsafe fn column_sum_f32(p: Columns<f32>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { sum(p, sums) }
}

/// As [`column_sum_f32`].
///
/// # Safety
/// As [`column_sum_f32`].
#[kernel(block = BLOCK, min_blocks = 3, shared(sums: [f32; BLOCK * 8]))]
pub unsafe fn column_sum_f16(p: Columns<F16>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { sum(p, sums) }
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[column_sum_f32.info(), column_sum_f16.info()];
