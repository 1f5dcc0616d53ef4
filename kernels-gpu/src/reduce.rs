//! Reduction of the last dimension: y[r] = Σ x[r, ·], max x[r, ·] or the index of the first maximum.   x: [rows, cols], y: [rows]
//!
//! A NaN is larger than everything, as in PyTorch: the maximum of a row with a NaN is NaN, and its index that of the
//! first NaN. −0 equals +0. Sums are f32, in a fixed order.
//!
//! | kernel        | a row is handled by                                              | when        |
//! |---------------|------------------------------------------------------------------|-------------|
//! | ‹op›_warp_‹t› | 8 to 32 lanes of a warp                                          | cols ≤ 1024 |
//! | ‹op›_block_‹t› | 1 block, or one for each of its parts, of which the last to finish merges the partial results | cols > 1024 |
//!
//! Partial sums of f16 are kept in f32.

use crate::device::rows::{ROW_BLOCK, ROW_WARPS, WARP_BLOCK, block_columns, warp_row};
use crate::device::{Columns, Element, F16, Shared, Vector, block_reduce, ticket};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec, butterfly};

/// Calls `f` with the thread's columns, sixteen values at a time: the index of the first group, and the groups. Columns past
/// the end are `padding`.
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
            // SAFETY: `row` has `cols` readable elements: this function's contract. Groups beyond the row load nothing.
            values[k as usize] = unsafe { columns.load(row, i + k, padding) };
            k += 1;
        }
        f(i, values);
        i += at_once;
    }
}

/// Number of groups of sixteen values; only these of the four are used.
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

/// An integer with the order of the values: −0 equals +0, NaN is above all. It is never zero.
///
/// By bits and not by branches: LLVM would copy the shuffles of the following reduction into the branches.
#[inline(always)]
fn order(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits(); // −0 + 0 = +0
    let negative = (bits as i32 >> 31) as u32;
    let nan = 0u32.wrapping_sub(u32::from(x.is_nan()));
    (bits ^ (negative | 1 << 31)) | nan
}

/// The thread's largest value and its first column.
#[derive(Clone, Copy)]
struct Best {
    value: f32,
    column: u32,
}

#[inlined]
impl Best {
    /// The first of equal values is kept, so columns must come in increasing order.
    fn push(&mut self, column: u32, x: f32) {
        if x > self.value || (x.is_nan() && !self.value.is_nan()) {
            *self = Self { value: x, column };
        }
    }

    /// This thread's candidate; its columns are relative to `first`.
    fn proposal(self, first: u32) -> Proposal {
        Proposal { order: order(self.value), column: first.saturating_add(self.column) }
    }
}

/// A column, and the order of its value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Proposal {
    order: u32,
    column: u32,
}

impl Proposal {
    const NONE: Self = Self { order: 0, column: u32::MAX };

    /// The better of the two; the first column if they are equal.
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        let better = other.order > self.order || (other.order == self.order && other.column < self.column);
        if better { other } else { self }
    }
}

/// The part of a row that a block handles, one of `parts` neighbouring blocks that share the row. R is the type of a part's
/// result.
struct Part<R> {
    row: u32,
    part: u32,
    parts: u32,
    /// The results of the row's parts.
    found: *mut R,
    /// The row's counter; zero before and after the launch.
    counter: *mut u32,
}

/// This block's part: its first column and first element in x, and how the threads divide it. The grid has a block for each
/// part of each row.
#[inline(always)]
fn place_part<R, T: Vector, F>(p: &Parts<R, T, F>) -> (Part<F>, u32, usize, Columns) {
    let parts = p.parts.max(1); // never 0; stated so that no panic is compiled in
    let (row, part) = (thread::block_idx_x() / parts, thread::block_idx_x() % parts);
    let first = part * p.part_cols;
    let columns = block_columns::<T>(p.part_cols.min(p.cols - first), p.vectors);
    let found = p.found.wrapping_add((row * parts) as usize);
    let counter = p.counters.wrapping_add(row as usize);
    let at = row as usize * p.cols as usize + first as usize;
    (Part { row, part, parts, found, counter }, first, at, columns)
}

impl<R: Copy> Part<R> {
    /// Calls `write` with the row's result, in one thread. `own` is each thread's result. `combine` reduces the results of
    /// the block's threads, with at least one barrier. `fold` adds another part's result to a thread's.
    ///
    /// # Safety
    /// All threads call it together. With several parts, only blocks of this row access `found` and `counter`.
    #[inline(always)]
    unsafe fn finish(
        self,
        own: R,
        empty: R,
        combine: impl Fn(R) -> R,
        fold: impl Fn(R, R) -> R,
        write: impl FnOnce(R),
    ) {
        let mut whole = combine(own);
        if self.parts > 1 {
            // SAFETY: each block writes its own element, and the last block reads after all of them (`ticket`).
            unsafe {
                if thread::thread_idx_x() == 0 {
                    *self.found.add(self.part as usize) = whole;
                }
                if !ticket::is_last(self.counter, self.parts) {
                    return;
                }
                let (mut own, mut index) = (empty, thread::thread_idx_x());
                while index < self.parts {
                    own = fold(own, *self.found.add(index as usize));
                    index += thread::block_dim_x();
                }
                whole = combine(own);
            }
        }
        if thread::thread_idx_x() == 0 {
            write(whole);
        }
    }
}

/// # Safety
/// As [`Columns::load`], for x and all rows that follow.
#[inline(always)]
unsafe fn own_sum<T: Vector>(x: *const T, columns: Columns) -> f32 {
    let mut sum = 0.0;
    // SAFETY: the row is valid and nothing writes it: this function's contract.
    unsafe { each_sixteen(columns, x, 0.0, |_, values| for_each::<T>(values, |x| sum += x)) };
    sum
}

/// # Safety
/// As [`own_sum`].
#[inline(always)]
unsafe fn own_max<T: Vector>(x: *const T, columns: Columns) -> f32 {
    let mut max = f32::NEG_INFINITY;
    // SAFETY: the row is valid and nothing writes it: this function's contract.
    unsafe {
        each_sixteen(columns, x, max, |_, values| for_each::<T>(values, |x| max = MaxOrNan.combine(max, x)))
    };
    max
}

/// The thread's best candidate. Sixteen values are searched only if one of them is better than the best so far. If no value
/// is better than −∞, the result is the first column.
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
    // SAFETY: the row is valid and nothing writes it: this function's contract.
    unsafe { each_sixteen(columns, x, f32::NEG_INFINITY, search) };
    best
}

/// The parameters of the warp kernels. R is the type of a row's result.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct ReduceRows<R, T> {
    /// [rows], disjoint from x
    pub y: *mut R,
    /// [rows, cols]
    pub x: *const T,
    pub rows: u32,
    pub cols: u32,
    /// 1 if every row of x starts and ends at a multiple of 16 bytes, else 0.
    pub vectors: u32,
    /// Lanes of a warp for each row: a power of two up to 32, not below [`row_lanes`](crate::device::rows::row_lanes).
    pub lanes: u32,
}

/// The parameters of the block kernels. R is the type of a row's result, F that of a part's.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Parts<R, T, F> {
    /// [rows], disjoint from all else
    pub y: *mut R,
    /// [rows, parts] if parts > 1, disjoint from all else
    pub found: *mut F,
    /// [rows] zeros if parts > 1, left zero; disjoint from all else
    pub counters: *mut u32,
    /// [rows, cols]
    pub x: *const T,
    pub cols: u32,
    /// (parts − 1) · part_cols < cols ≤ parts · part_cols; a multiple of 8 with `vectors`.
    pub part_cols: u32,
    pub parts: u32,
    /// As [`ReduceRows::vectors`].
    pub vectors: u32,
}

/// The kernels of one op and element type.
#[derive(Clone, Copy)]
pub struct Kernels<R, T, F> {
    /// grid = [ceil(rows / rows of a block)], in blocks of any multiple of 32 threads up to its own
    pub warp: KernelSpec<ReduceRows<R, T>>,
    /// grid = [rows · parts], or with the fewer threads of [`row_threads`](crate::device::rows::row_threads)
    pub block: KernelSpec<Parts<R, T, F>>,
}

macro_rules! kernels {
    ($($ty:ty {
        $($name:ident $warp:ident $block:ident: $own:ident, $empty:expr, $fold:expr;)*
        @ $argmax:ident $argmax_warp:ident $argmax_block:ident
    })*) => {
    $(
        $(
            /// # Safety
            /// [`ReduceRows`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements;
            /// cols > 0 unless it is a sum. Launched as [`Kernels::warp`] says.
            #[kernel(block = WARP_BLOCK, min_blocks = 5, shuffles = 5)]
            pub unsafe fn $warp(p: ReduceRows<$ty, $ty>) {
                let (row, team, columns) = warp_row::<$ty>(p.rows, p.cols, p.vectors, p.lanes);
                // SAFETY: row < rows, so the row is inside x; all lanes of the warp are here.
                unsafe {
                    let whole = team.reduce($own(p.x.add(row as usize * p.cols as usize), columns), $fold);
                    if team.writes_result() {
                        *p.y.add(row as usize) = <$ty>::from_f32(whole);
                    }
                }
            }

            /// # Safety
            /// [`Parts`] constrains the pointers, which are valid as the warp kernel's, and the parts. Launched as
            /// [`Kernels::block`] says.
            #[kernel(block = ROW_BLOCK, min_blocks = 2, shared(scratch: [f32; ROW_WARPS]), shuffles = 10)]
            pub unsafe fn $block(p: Parts<$ty, $ty, f32>) {
                let (part, _, at, columns) = place_part(&p);
                let row = part.row as usize;
                // SAFETY: each block has one part, which is inside x. All threads are here, and there are barriers between
                // two uses of the scratch memory.
                unsafe {
                    let combine = |own| block_reduce::reduce_once([own], thread::block_dim_x() / 32, scratch, $fold)[0];
                    let write = |whole| *p.y.add(row) = <$ty>::from_f32(whole);
                    part.finish($own(p.x.add(at), columns), $empty, combine, |a, b| $fold.combine(a, b), write);
                }
            }

            /// The kernels of this op and element type.
            pub const $name: Kernels<$ty, $ty, f32> = Kernels { warp: $warp, block: $block };
        )*

        /// # Safety
        /// As the warp kernel of the maximum.
        #[kernel(block = WARP_BLOCK, min_blocks = 4, shuffles = 10)]
        pub unsafe fn $argmax_warp(p: ReduceRows<u32, $ty>) {
            let (row, team, columns) = warp_row::<$ty>(p.rows, p.cols, p.vectors, p.lanes);
            // SAFETY: row < rows, so the row is inside x; all lanes of the warp are here.
            unsafe {
                let own = own_best(p.x.add(row as usize * p.cols as usize), columns).proposal(0);
                let (_, column) = team.argmax(own.order, own.column);
                if team.writes_result() {
                    *p.y.add(row as usize) = column;
                }
            }
        }

        /// # Safety
        /// As the block kernel of the maximum.
        #[kernel(block = ROW_BLOCK, min_blocks = 2, shared(scratch: [u32; 2 * ROW_WARPS]), shuffles = 20)]
        pub unsafe fn $argmax_block(p: Parts<u32, $ty, Proposal>) {
            let (part, first, at, columns) = place_part(&p);
            let row = part.row as usize;
            // SAFETY: each block has one part, which is inside x. All threads are here, and there are barriers between two
            // uses of the scratch memory.
            unsafe {
                let own = own_best(p.x.add(at), columns).proposal(first);
                let write = |best: Proposal| *p.y.add(row) = best.column;
                part.finish(own, Proposal::NONE, |own| block_best(own, scratch), Proposal::or, write);
            }
        }

        /// The kernels of the argmax of this element type.
        pub const $argmax: Kernels<u32, $ty, Proposal> = Kernels { warp: $argmax_warp, block: $argmax_block };
    )*
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$(
            $($warp.info(), $block.info(),)*
            $argmax_warp.info(), $argmax_block.info(),
        )*];
    };
}

/// The best candidate of a block's threads; valid in all of them.
///
/// # Safety
/// All threads are here; `scratch` has two words for each warp, which no thread has used since a barrier.
#[inline(always)]
unsafe fn block_best(own: Proposal, scratch: Shared<u32>) -> Proposal {
    let warps = thread::block_dim_x() / 32;
    // SAFETY: all threads are here and `scratch` has two words per warp: this function's contract. Reads come after the
    // barrier.
    unsafe {
        let (order, column) = butterfly::argmax(own.order, own.column, 32);
        if warp::lane_id() == 0 {
            let own = thread::thread_idx_x() / 32;
            scratch.set(own, order);
            scratch.set(own + warps, column);
        }
        thread::sync_threads();
        let four = |index| {
            let (orders, columns) = (scratch.get4(index), scratch.get4(index + warps));
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| Proposal { order: orders[i], column: columns[i] });
            a.or(b).or(c.or(d))
        };
        let mut best = four(0);
        let mut index = 4;
        while index < warps {
            best = best.or(four(index));
            index += 4;
        }
        best
    }
}

kernels! {
    f32 {
        SUM_F32 sum_warp_f32 sum_block_f32: own_sum, 0.0, Sum;
        MAX_F32 max_warp_f32 max_block_f32: own_max, f32::NEG_INFINITY, MaxOrNan;
        @ ARGMAX_F32 argmax_warp_f32 argmax_block_f32
    }
    F16 {
        SUM_F16 sum_warp_f16 sum_block_f16: own_sum, 0.0, Sum;
        MAX_F16 max_warp_f16 max_block_f16: own_max, f32::NEG_INFINITY, MaxOrNan;
        @ ARGMAX_F16 argmax_warp_f16 argmax_block_f16
    }
}
