//! Over the last extent: y[r] = Σ x[r, ·], max x[r, ·] or the index of the first maximum.   x: [rows, cols], y: [rows]
//!
//! A NaN is larger than everything, as in PyTorch: the maximum of a row with a NaN is NaN, and its index that of the
//! first NaN. −0 equals +0. A sum is added up in f32, in a fixed order.
//!
//! | kernel             | a row is handled by  | when        |
//! |--------------------|----------------------|-------------|
//! | ‹op›_warp_‹t›      | 8 to 32 lanes of a warp | cols ≤ 1024 |
//! | ‹op›_block_‹t›     | 1 block, or as many as it has parts  | cols > 1024 |
//! | ‹op›_merge_‹t›     | 1 warp, over what was found in the parts; max has max_warp_‹t› | rows too few to fill the device |
//!
//! The parts of a sum of f16 are kept in f32: sum_part_f16.

use crate::device::rows::{Lanes, ROW_BLOCK, ROW_WARPS, WARP_BLOCK, block_columns, warp_row};
use crate::device::{Columns, Element, F16, Vector, reduce, shared};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Calls `f` with the thread's columns sixteen values at a time, as the number of their first group and the groups;
/// `padding` beyond the end.
///
/// # Safety
/// As [`Columns::load`].
#[inline(always)]
unsafe fn each_sixteen<T: Vector>(
    columns: Columns,
    row: *const T,
    padding: f32,
    mut f: impl FnMut(u32, [T::Values; 4]),
) {
    let at_once = groups::<T>();
    let mut i = 0;
    while columns.has(i) {
        let mut values = [T::splat(padding); 4];
        let mut k = 0;
        while k < at_once {
            // SAFETY: as the caller promises. Groups beyond the row load nothing.
            values[k as usize] = unsafe { columns.load(row, i + k, padding) };
            k += 1;
        }
        f(i, values);
        i += at_once;
    }
}

/// Groups of sixteen values; only so many of four are used.
#[inline(always)]
const fn groups<T: Vector>() -> u32 {
    16 / T::LEN
}

/// Calls `f` with each of sixteen values.
#[inline(always)]
fn for_each<T: Vector>(values: [T::Values; 4], mut f: impl FnMut(f32)) {
    let mut k = 0;
    while k < groups::<T>() {
        T::map(values[k as usize], |x| {
            f(x);
            x
        });
        k += 1;
    }
}

/// The larger of two, a NaN if there is one.
#[inline(always)]
fn max_or_nan(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// A number that orders as the values do: −0 and +0 alike, NaN above all, never zero.
///
/// By bits and not by branches: LLVM would copy the shuffles of a reduction behind it into their arms.
#[inline(always)]
fn order(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits(); // −0 + 0 = +0
    let negative = (bits as i32 >> 31) as u32;
    let nan = 0u32.wrapping_sub(u32::from(x.is_nan()));
    (bits ^ (negative | 1 << 31)) | nan
}

/// The thread's largest value, and where it is first.
#[derive(Clone, Copy)]
struct Best {
    value: f32,
    column: u32,
}

impl Best {
    /// Of equals the first stays, so columns must come in increasing order.
    #[inline(always)]
    fn push(&mut self, column: u32, x: f32) {
        if x > self.value || (x.is_nan() && !self.value.is_nan()) {
            *self = Self { value: x, column };
        }
    }

    /// What this thread proposes when the row's largest is `order`.
    #[inline(always)]
    fn column_if(self, largest: u32) -> u32 {
        if order(self.value) == largest { self.column } else { u32::MAX }
    }
}

/// The row and the part of it that this block handles: the index of its result, its first element in x, and how the
/// threads share it. The grid has a block for each part of each row.
#[inline(always)]
fn place_part<T: Vector>(cols: u32, part_cols: u32, parts: u32, vectors: u32) -> (usize, usize, Columns) {
    let part = thread::block_idx_x();
    let parts = parts.max(1); // never 0; said so, no panic is compiled in
    let (row, first) = (part / parts, part % parts * part_cols);
    let columns = block_columns::<T>(part_cols.min(cols - first), vectors);
    (part as usize, row as usize * cols as usize + first as usize, columns)
}

/// # Safety
/// As [`Columns::load`], for x and all rows that follow.
#[inline(always)]
unsafe fn own_sum<T: Vector>(x: *const T, columns: Columns) -> f32 {
    let mut sum = 0.0;
    // SAFETY: as the caller promises.
    unsafe { each_sixteen(columns, x, 0.0, |_, values| for_each::<T>(values, |x| sum += x)) };
    sum
}

/// # Safety
/// As [`own_sum`].
#[inline(always)]
unsafe fn own_max<T: Vector>(x: *const T, columns: Columns) -> f32 {
    let mut max = f32::NEG_INFINITY;
    // SAFETY: as the caller promises.
    unsafe { each_sixteen(columns, x, max, |_, values| for_each::<T>(values, |x| max = max_or_nan(max, x))) };
    max
}

/// The best of this thread, looked for only in sixteens with something better than before. Columns without a value
/// better than −∞ leave the first.
///
/// # Safety
/// As [`own_sum`].
#[inline(always)]
unsafe fn own_best<T: Vector>(x: *const T, columns: Columns) -> Best {
    let first = if columns.is_valid(0, 0) { columns.column(0, 0) } else { u32::MAX };
    let mut best = Best { value: f32::NEG_INFINITY, column: first };
    let search = |i, values: [T::Values; 4]| {
        let (mut max, mut nan) = (f32::NEG_INFINITY, false);
        for_each::<T>(values, |x| {
            max = max.max(x);
            nan |= x.is_nan();
        });
        if max > best.value || (nan && !best.value.is_nan()) {
            let mut n = 0;
            for_each::<T>(values, |x| {
                best.push(columns.column(i + n / T::LEN, n % T::LEN), x);
                n += 1;
            });
        }
    };
    // Padding is −∞, which is never better.
    // SAFETY: as the caller promises.
    unsafe { each_sixteen(columns, x, f32::NEG_INFINITY, search) };
    best
}

/// The column of the best of a row's lanes.
///
/// # Safety
/// All lanes of the warp are here.
#[inline(always)]
unsafe fn best_column(own: Best, lanes: Lanes) -> u32 {
    // SAFETY: as the caller promises.
    unsafe {
        let largest = lanes.reduce(order(own.value), u32::max);
        lanes.reduce(own.column_if(largest), u32::min)
    }
}

macro_rules! sum_kernels {
    ($($spec:ident $warp:ident: $from:ty => $to:ty;)* @ $($part_spec:ident $part:ident: $part_from:ty => $part_to:ty;)*) => {
        $(
            /// block = [any multiple of 32 up to this], grid = [ceil(rows / warps of a block)]
            pub const $spec: KernelSpec = KernelSpec::new(stringify!($warp), WARP_BLOCK).shuffles(5);
            /// # Safety
            /// `x`: [rows, cols], `y`: [rows], valid on the launching stream, disjoint, below 2³¹ elements; `vectors`
            /// only if every row of x starts at a multiple of 16 bytes and ends at one. Launched as the spec of its
            /// name says.
            #[kernel(launch_bounds(WARP_BLOCK))]
            pub unsafe fn $warp(y: *mut $to, x: *const $from, rows: u32, cols: u32, vectors: u32, lanes: u32) {
                let (row, team, columns) = warp_row::<$from>(rows, cols, vectors, lanes);
                // SAFETY: row < rows, so the row lies inside x; all lanes of the warp are here.
                unsafe {
                    let own = own_sum(x.add(row as usize * cols as usize), columns);
                    let sum = team.reduce(own, |a, b| a + b);
                    if team.writes_result() {
                        *y.add(row as usize) = <$to>::from_f32(sum);
                    }
                }
            }
        )*
        $(
            /// grid = [rows · parts], or with the fewer threads of [`row_threads`](crate::device::rows::row_threads)
            pub const $part_spec: KernelSpec =
                KernelSpec::new(stringify!($part), ROW_BLOCK).shared_bytes(ROW_WARPS * 4).shuffles(5);
            /// # Safety
            /// As the warp kernel, `y`: [rows, parts]; (parts − 1) · part_cols < cols ≤ parts · part_cols, and with
            /// `vectors` part_cols is a multiple of 8.
            #[kernel(launch_bounds(ROW_BLOCK))]
            pub unsafe fn $part(
                y: *mut $part_to, x: *const $part_from, cols: u32, part_cols: u32, parts: u32, vectors: u32,
            ) {
                let scratch = shared::declare::<f32, { ROW_WARPS as usize }>();
                let (part, at, columns) = place_part::<$part_from>(cols, part_cols, parts, vectors);
                // SAFETY: a block per part, which lies inside x; all threads are here.
                unsafe {
                    let warps = thread::block_dim_x() / 32;
                    let [sum] = reduce::block_once([own_sum(x.add(at), columns)], warps, scratch, |a, b| a + b);
                    if thread::thread_idx_x() == 0 {
                        *y.add(part) = <$part_to>::from_f32(sum);
                    }
                }
            }
        )*
    };
}

sum_kernels! {
    SUM_WARP_F32 sum_warp_f32: f32 => f32;
    SUM_WARP_F16 sum_warp_f16: F16 => F16;
    SUM_MERGE_F16 sum_merge_f16: f32 => F16;
    @
    SUM_BLOCK_F32 sum_block_f32: f32 => f32;
    SUM_BLOCK_F16 sum_block_f16: F16 => F16;
    SUM_PART_F16 sum_part_f16: F16 => f32;
}

macro_rules! max_kernels {
    ($($ty:ty {
        $max_warp_spec:ident $max_warp:ident $max_block_spec:ident $max_block:ident
        $argmax_warp_spec:ident $argmax_warp:ident $argmax_block_spec:ident $argmax_block:ident
        $argmax_merge_spec:ident $argmax_merge:ident
    })*) => {$(
        /// block = [any multiple of 32 up to this], grid = [ceil(rows / warps of a block)]
        pub const $max_warp_spec: KernelSpec = KernelSpec::new(stringify!($max_warp), WARP_BLOCK).shuffles(5);
        /// # Safety
        /// As the warp kernel of the sum; cols > 0.
        #[kernel(launch_bounds(WARP_BLOCK))]
        pub unsafe fn $max_warp(y: *mut $ty, x: *const $ty, rows: u32, cols: u32, vectors: u32, lanes: u32) {
            let (row, team, columns) = warp_row::<$ty>(rows, cols, vectors, lanes);
            // SAFETY: row < rows, so the row lies inside x; all lanes of the warp are here.
            unsafe {
                let own = own_max(x.add(row as usize * cols as usize), columns);
                let max = team.reduce(own, max_or_nan);
                if team.writes_result() {
                    *y.add(row as usize) = <$ty>::from_f32(max);
                }
            }
        }

        /// As the block kernel of the sum.
        pub const $max_block_spec: KernelSpec =
            KernelSpec::new(stringify!($max_block), ROW_BLOCK).shared_bytes(ROW_WARPS * 4).shuffles(5);
        /// # Safety
        /// As the block kernel of the sum; cols > 0.
        #[kernel(launch_bounds(ROW_BLOCK))]
        pub unsafe fn $max_block(
            y: *mut $ty, x: *const $ty, cols: u32, part_cols: u32, parts: u32, vectors: u32,
        ) {
            let scratch = shared::declare::<f32, { ROW_WARPS as usize }>();
            let (part, at, columns) = place_part::<$ty>(cols, part_cols, parts, vectors);
            // SAFETY: a block per part, which lies inside x; all threads are here.
            unsafe {
                let warps = thread::block_dim_x() / 32;
                let [max] = reduce::block_once([own_max(x.add(at), columns)], warps, scratch, max_or_nan);
                if thread::thread_idx_x() == 0 {
                    *y.add(part) = <$ty>::from_f32(max);
                }
            }
        }

        /// block = [any multiple of 32 up to this], grid = [ceil(rows / warps of a block)]
        pub const $argmax_warp_spec: KernelSpec =
            KernelSpec::new(stringify!($argmax_warp), WARP_BLOCK).shuffles(10);
        /// # Safety
        /// As the warp kernel of the sum; cols > 0.
        #[kernel(launch_bounds(WARP_BLOCK))]
        pub unsafe fn $argmax_warp(y: *mut u32, x: *const $ty, rows: u32, cols: u32, vectors: u32, lanes: u32) {
            let (row, team, columns) = warp_row::<$ty>(rows, cols, vectors, lanes);
            // SAFETY: row < rows, so the row lies inside x; all lanes of the warp are here.
            unsafe {
                let column = best_column(own_best(x.add(row as usize * cols as usize), columns), team);
                if team.writes_result() {
                    *y.add(row as usize) = column;
                }
            }
        }

        /// As the block kernel of the sum.
        pub const $argmax_block_spec: KernelSpec =
            KernelSpec::new(stringify!($argmax_block), ROW_BLOCK).shared_bytes(2 * ROW_WARPS * 4).shuffles(10);
        /// Columns in y count from the start of the part.
        ///
        /// # Safety
        /// As the block kernel of the sum; cols > 0.
        #[kernel(launch_bounds(ROW_BLOCK))]
        pub unsafe fn $argmax_block(
            y: *mut u32, x: *const $ty, cols: u32, part_cols: u32, parts: u32, vectors: u32,
        ) {
            let scratch = shared::declare::<u32, { 2 * ROW_WARPS as usize }>();
            let (part, at, columns) = place_part::<$ty>(cols, part_cols, parts, vectors);
            // SAFETY: a block per part, which lies inside x; all threads are here.
            unsafe {
                let (best, warps) = (own_best(x.add(at), columns), thread::block_dim_x() / 32);
                let [largest] = reduce::block_once([order(best.value)], warps, scratch, u32::max);
                let (column, scratch) = ([best.column_if(largest)], scratch.at(warps));
                let [column] = reduce::block_once(column, warps, scratch, u32::min);
                if thread::thread_idx_x() == 0 {
                    *y.add(part) = column;
                }
            }
        }

        /// block = [any multiple of 32 up to this], grid = [ceil(rows / warps of a block)]
        pub const $argmax_merge_spec: KernelSpec =
            KernelSpec::new(stringify!($argmax_merge), WARP_BLOCK).shuffles(10);
        /// # Safety
        /// As the block kernel, which has written `columns`: [rows, parts]; `y`: [rows].
        #[kernel(launch_bounds(WARP_BLOCK))]
        pub unsafe fn $argmax_merge(
            y: *mut u32, x: *const $ty, columns: *const u32, rows: u32, cols: u32, part_cols: u32, parts: u32,
            lanes: u32,
        ) {
            let (row, team, _) = warp_row::<$ty>(rows, cols, 0, lanes);
            let mut best = Best { value: f32::NEG_INFINITY, column: u32::MAX };
            let mut part = warp::lane_id();
            while part < parts {
                // SAFETY: row < rows and part < parts, whose best column is below cols.
                unsafe {
                    let column = part * part_cols + *columns.add((row * parts + part) as usize);
                    let value = <$ty>::load(x.add(row as usize * cols as usize + column as usize));
                    if best.column == u32::MAX {
                        best.column = column;
                    }
                    best.push(column, value);
                }
                part += 32;
            }
            // SAFETY: all lanes of the warp are here.
            let column = unsafe { best_column(best, team) };
            if team.writes_result() {
                // SAFETY: row < rows.
                unsafe { *y.add(row as usize) = column };
            }
        }
    )*
        /// All kernels of this file.
        pub const KERNELS: &[KernelSpec] = &[
            SUM_WARP_F32, SUM_WARP_F16, SUM_MERGE_F16, SUM_BLOCK_F32, SUM_BLOCK_F16, SUM_PART_F16,
            $(
                $max_warp_spec, $max_block_spec,
                $argmax_warp_spec, $argmax_block_spec, $argmax_merge_spec,
            )*
        ];
    };
}

max_kernels! {
    f32 {
        MAX_WARP_F32 max_warp_f32 MAX_BLOCK_F32 max_block_f32
        ARGMAX_WARP_F32 argmax_warp_f32 ARGMAX_BLOCK_F32 argmax_block_f32
        ARGMAX_MERGE_F32 argmax_merge_f32
    }
    F16 {
        MAX_WARP_F16 max_warp_f16 MAX_BLOCK_F16 max_block_f16
        ARGMAX_WARP_F16 argmax_warp_f16 ARGMAX_BLOCK_F16 argmax_block_f16
        ARGMAX_MERGE_F16 argmax_merge_f16
    }
}
