//! Over the last extent: y[r] = Σ x[r, ·], max x[r, ·] or the index of the first maximum.   x: [rows, cols], y: [rows]
//!
//! A NaN is larger than everything, as in PyTorch: the maximum of a row with a NaN is NaN, and its index that of the
//! first NaN. −0 equals +0. A sum is added up in f32, in a fixed order.
//!
//! | kernel             | a row is handled by  | when        |
//! |--------------------|----------------------|-------------|
//! | ‹op›_warp_‹t›      | 1 warp               | cols ≤ 1024 |
//! | ‹op›_block_‹t›     | 1 block of 16 warps  | cols > 1024 |

use crate::device::{Columns, Element, F16, Vector, reduce, shared};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Threads in a block of the warp kernels.
const WARP_BLOCK: u32 = 256;
/// Threads in a block of the block kernels. Large, so that one long row (a vocabulary's logits) has many loads in
/// flight; small enough for four blocks per multiprocessor.
const ROW_BLOCK: u32 = 512;
const ROW_WARPS: u32 = ROW_BLOCK / 32;

/// Rows that a block of the warp kernels handles.
pub const ROWS_PER_BLOCK: u32 = WARP_BLOCK / 32;
/// The most columns for which a warp per row is the better choice.
pub const MAX_WARP_COLS: u32 = 1024;

/// Calls `f` with the column and value of this thread's part of the row, columns increasing; `padding` beyond the end.
///
/// # Safety
/// As [`Columns::load`].
#[inline(always)]
unsafe fn for_each<T: Vector>(columns: Columns, row: *const T, padding: f32, mut f: impl FnMut(u32, f32)) {
    // sixteen values at a time
    let at_once = 16 / T::LEN;
    let mut i = 0;
    while columns.has(i) {
        let mut groups = [T::splat(padding); 4];
        let mut k = 0;
        while k < at_once {
            // SAFETY: as the caller promises. Groups beyond the row load nothing.
            groups[k as usize] = unsafe { columns.load(row, i + k, padding) };
            k += 1;
        }
        let mut k = 0;
        while k < at_once {
            let mut j = 0;
            T::map(groups[k as usize], |x| {
                f(columns.column(i + k, j), x);
                j += 1;
                x
            });
            k += 1;
        }
        i += at_once;
    }
}

/// The larger of two, a NaN if there is one.
#[inline(always)]
fn max_or_nan(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// A number that orders as the values do: −0 and +0 alike, NaN above all, never zero.
#[inline(always)]
fn order(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits(); // −0 + 0 = +0
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    if x.is_nan() { u32::MAX } else { ordered }
}

/// The order of the thread's largest value, and where it is first.
#[derive(Clone, Copy)]
struct Best {
    order: u32,
    column: u32,
}

impl Best {
    const NONE: Self = Self { order: 0, column: u32::MAX };

    /// Of equals the first stays, so columns must come in increasing order.
    #[inline(always)]
    fn push(self, column: u32, x: f32) -> Self {
        let order = order(x);
        if order > self.order { Self { order, column } } else { self }
    }

    /// What this thread proposes when the row's largest is `order`.
    #[inline(always)]
    fn column_if(self, order: u32) -> u32 {
        if self.order == order { self.column } else { u32::MAX }
    }
}

/// The row of this warp, if there is one, and how its lanes share it. Whole warps have a row or have none.
#[inline(always)]
fn warp_row<T: Vector>(rows: u32, cols: u32, vectors: u32) -> Option<(u32, Columns)> {
    let row = thread::block_idx_x() * ROWS_PER_BLOCK + thread::thread_idx_x() / 32;
    (row < rows).then(|| (row, Columns::new::<T>(cols, warp::lane_id(), 32, vectors != 0)))
}

#[inline(always)]
fn block_row<T: Vector>(cols: u32, vectors: u32) -> (u32, Columns) {
    (thread::block_idx_x(), Columns::new::<T>(cols, thread::thread_idx_x(), ROW_BLOCK, vectors != 0))
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn own_sum<T: Vector>(x: *const T, row: u32, cols: u32, columns: Columns) -> f32 {
    let mut sum = 0.0;
    // SAFETY: row < rows, so the row lies inside x.
    unsafe { for_each(columns, x.add(row as usize * cols as usize), 0.0, |_, x| sum += x) };
    sum
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn own_max<T: Vector>(x: *const T, row: u32, cols: u32, columns: Columns) -> f32 {
    let mut max = f32::NEG_INFINITY;
    let row = row as usize * cols as usize;
    // SAFETY: row < rows, so the row lies inside x.
    unsafe { for_each(columns, x.add(row), max, |_, x| max = max_or_nan(max, x)) };
    max
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn own_best<T: Vector>(x: *const T, row: u32, cols: u32, columns: Columns) -> Best {
    let mut best = Best::NONE;
    let row = row as usize * cols as usize;
    // Padding is −∞ at columns beyond the row, so a −∞ in the row comes first.
    // SAFETY: row < rows, so the row lies inside x.
    unsafe { for_each(columns, x.add(row), f32::NEG_INFINITY, |column, x| best = best.push(column, x)) };
    best
}

macro_rules! kernels {
    ($($ty:ty {
        $sum_warp_spec:ident $sum_warp:ident $sum_block_spec:ident $sum_block:ident
        $max_warp_spec:ident $max_warp:ident $max_block_spec:ident $max_block:ident
        $argmax_warp_spec:ident $argmax_warp:ident $argmax_block_spec:ident $argmax_block:ident
    })*) => {$(
        /// grid = [ceil(rows / ROWS_PER_BLOCK)]
        pub const $sum_warp_spec: KernelSpec = KernelSpec::new(stringify!($sum_warp), WARP_BLOCK).shuffles(5);
        /// # Safety
        /// `x`: [rows, cols], `y`: [rows], valid on the launching stream, disjoint, below 2³¹ elements; `vectors`
        /// only if every row of x starts at a multiple of 16 bytes and ends at one. Launched as the spec of its name
        /// says.
        #[kernel(launch_bounds(WARP_BLOCK))]
        pub unsafe fn $sum_warp(y: *mut $ty, x: *const $ty, rows: u32, cols: u32, vectors: u32) {
            let Some((row, columns)) = warp_row::<$ty>(rows, cols, vectors) else { return };
            // SAFETY: row < rows; all lanes of the warp are here.
            unsafe {
                let sum = reduce::warp(own_sum(x, row, cols, columns), 32, |a, b| a + b);
                if warp::lane_id() == 0 {
                    *y.add(row as usize) = <$ty>::from_f32(sum);
                }
            }
        }

        /// grid = [rows]
        pub const $sum_block_spec: KernelSpec =
            KernelSpec::new(stringify!($sum_block), ROW_BLOCK).shared_bytes(ROW_WARPS * 4).shuffles(5);
        /// # Safety
        /// As the warp kernel, `rows` = gridDim.x.
        #[kernel(launch_bounds(ROW_BLOCK))]
        pub unsafe fn $sum_block(y: *mut $ty, x: *const $ty, cols: u32, vectors: u32) {
            let scratch = shared::declare::<f32, { ROW_WARPS as usize }>();
            let (row, columns) = block_row::<$ty>(cols, vectors);
            // SAFETY: a block per row; all threads are here.
            unsafe {
                let sum = reduce::block(own_sum(x, row, cols, columns), ROW_WARPS, scratch, |a, b| a + b);
                if thread::thread_idx_x() == 0 {
                    *y.add(row as usize) = <$ty>::from_f32(sum);
                }
            }
        }

        /// grid = [ceil(rows / ROWS_PER_BLOCK)]
        pub const $max_warp_spec: KernelSpec = KernelSpec::new(stringify!($max_warp), WARP_BLOCK).shuffles(5);
        /// # Safety
        /// As the warp kernel of the sum; cols > 0.
        #[kernel(launch_bounds(WARP_BLOCK))]
        pub unsafe fn $max_warp(y: *mut $ty, x: *const $ty, rows: u32, cols: u32, vectors: u32) {
            let Some((row, columns)) = warp_row::<$ty>(rows, cols, vectors) else { return };
            // SAFETY: row < rows; all lanes of the warp are here.
            unsafe {
                let max = reduce::warp(own_max(x, row, cols, columns), 32, max_or_nan);
                if warp::lane_id() == 0 {
                    *y.add(row as usize) = <$ty>::from_f32(max);
                }
            }
        }

        /// grid = [rows]
        pub const $max_block_spec: KernelSpec =
            KernelSpec::new(stringify!($max_block), ROW_BLOCK).shared_bytes(ROW_WARPS * 4).shuffles(5);
        /// # Safety
        /// As the warp kernel, `rows` = gridDim.x.
        #[kernel(launch_bounds(ROW_BLOCK))]
        pub unsafe fn $max_block(y: *mut $ty, x: *const $ty, cols: u32, vectors: u32) {
            let scratch = shared::declare::<f32, { ROW_WARPS as usize }>();
            let (row, columns) = block_row::<$ty>(cols, vectors);
            // SAFETY: a block per row; all threads are here.
            unsafe {
                let max = reduce::block(own_max(x, row, cols, columns), ROW_WARPS, scratch, max_or_nan);
                if thread::thread_idx_x() == 0 {
                    *y.add(row as usize) = <$ty>::from_f32(max);
                }
            }
        }

        /// grid = [ceil(rows / ROWS_PER_BLOCK)]
        pub const $argmax_warp_spec: KernelSpec =
            KernelSpec::new(stringify!($argmax_warp), WARP_BLOCK).shuffles(10);
        /// # Safety
        /// As the warp kernel of the sum; cols > 0.
        #[kernel(launch_bounds(WARP_BLOCK))]
        pub unsafe fn $argmax_warp(y: *mut u32, x: *const $ty, rows: u32, cols: u32, vectors: u32) {
            let Some((row, columns)) = warp_row::<$ty>(rows, cols, vectors) else { return };
            // SAFETY: row < rows; all lanes of the warp are here.
            unsafe {
                let best = own_best(x, row, cols, columns);
                let order = reduce::warp(best.order, 32, u32::max);
                let column = reduce::warp(best.column_if(order), 32, u32::min);
                if warp::lane_id() == 0 {
                    *y.add(row as usize) = column;
                }
            }
        }

        /// grid = [rows]
        pub const $argmax_block_spec: KernelSpec =
            KernelSpec::new(stringify!($argmax_block), ROW_BLOCK).shared_bytes(ROW_WARPS * 4).shuffles(10);
        /// # Safety
        /// As the warp kernel, `rows` = gridDim.x.
        #[kernel(launch_bounds(ROW_BLOCK))]
        pub unsafe fn $argmax_block(y: *mut u32, x: *const $ty, cols: u32, vectors: u32) {
            let scratch = shared::declare::<u32, { ROW_WARPS as usize }>();
            let (row, columns) = block_row::<$ty>(cols, vectors);
            // SAFETY: a block per row; all threads are here.
            unsafe {
                let best = own_best(x, row, cols, columns);
                let order = reduce::block(best.order, ROW_WARPS, scratch, u32::max);
                let column = reduce::block(best.column_if(order), ROW_WARPS, scratch, u32::min);
                if thread::thread_idx_x() == 0 {
                    *y.add(row as usize) = column;
                }
            }
        }
    )*
        /// All kernels of this file.
        pub const KERNELS: &[KernelSpec] = &[$(
            $sum_warp_spec, $sum_block_spec,
            $max_warp_spec, $max_block_spec,
            $argmax_warp_spec, $argmax_block_spec,
        )*];
    };
}

kernels! {
    f32 {
        SUM_WARP_F32 sum_warp_f32 SUM_BLOCK_F32 sum_block_f32
        MAX_WARP_F32 max_warp_f32 MAX_BLOCK_F32 max_block_f32
        ARGMAX_WARP_F32 argmax_warp_f32 ARGMAX_BLOCK_F32 argmax_block_f32
    }
    F16 {
        SUM_WARP_F16 sum_warp_f16 SUM_BLOCK_F16 sum_block_f16
        MAX_WARP_F16 max_warp_f16 MAX_BLOCK_F16 max_block_f16
        ARGMAX_WARP_F16 argmax_warp_f16 ARGMAX_BLOCK_F16 argmax_block_f16
    }
}
