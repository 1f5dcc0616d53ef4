//! Over the last extent: y[r] = Σ x[r, ·], max x[r, ·] or the index of the first maximum.   x: [rows, cols], y: [rows]
//!
//! A NaN is larger than everything, as in PyTorch: the maximum of a row with a NaN is NaN, and its index that of the
//! first NaN. −0 equals +0. A sum is added up in f32, in a fixed order.
//!
//! | kernel        | a row is handled by                                              | when        |
//! |---------------|------------------------------------------------------------------|-------------|
//! | ‹op›_warp_‹t› | 8 to 32 lanes of a warp                                          | cols ≤ 1024 |
//! | ‹op›_block_‹t› | 1 block, or as many as it has parts, of which the last merges what all found | cols > 1024 |
//!
//! What is found in the parts of a sum of f16 is kept in f32.

use crate::device::rows::{ROW_BLOCK, ROW_WARPS, WARP_BLOCK, block_columns, warp_row};
use crate::device::{Columns, Element, F16, Shared, Vector, reduce, shared, ticket};
use crate::spec::KernelSpec;
use cuda_std::butterfly;
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

    /// What this thread proposes, of columns that count from `first` on.
    #[inline(always)]
    fn proposal(self, first: u32) -> Proposal {
        Proposal { order: order(self.value), column: first.saturating_add(self.column) }
    }
}

/// A column, and what its value is ordered by.
#[derive(Clone, Copy)]
struct Proposal {
    order: u32,
    column: u32,
}

impl Proposal {
    const NONE: Self = Self { order: 0, column: u32::MAX };

    /// The better one, of equals the first.
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        let better = other.order > self.order || (other.order == self.order && other.column < self.column);
        if better { other } else { self }
    }
}

/// The part of a row that a block handles, one of `parts` neighbouring blocks that share the row. R is what is found in a
/// part.
struct Part<R> {
    row: u32,
    part: u32,
    parts: u32,
    /// Of the row: what was found in each of its parts.
    found: *mut R,
    /// Of the row: zero, which it is again afterwards.
    counter: *mut u32,
}

/// Where this block's part is: its first column and first element in x, and how the threads share it. The grid has a block
/// for each part of each row.
#[inline(always)]
fn place_part<T: Vector, R>(
    found: *mut R,
    counters: *mut u32,
    cols: u32,
    part_cols: u32,
    parts: u32,
    vectors: u32,
) -> (Part<R>, u32, usize, Columns) {
    let parts = parts.max(1); // never 0; said so, no panic is compiled in
    let (row, part) = (thread::block_idx_x() / parts, thread::block_idx_x() % parts);
    let first = part * part_cols;
    let columns = block_columns::<T>(part_cols.min(cols - first), vectors);
    let (found, counter) = (found.wrapping_add((row * parts) as usize), counters.wrapping_add(row as usize));
    let at = row as usize * cols as usize + first as usize;
    (Part { row, part, parts, found, counter }, first, at, columns)
}

impl<R: Copy> Part<R> {
    /// Gives the row's result from `own`, what each thread found, to `write` in one thread: `combine` makes what a block
    /// found of what its threads did, by a barrier or more, and `fold` adds what was found in another part to a thread's.
    ///
    /// # Safety
    /// All threads call it together. With several parts, `found` and `counter` are this row's alone.
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
            // SAFETY: each block has its own element, and the last to come reads behind all of them.
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
    unsafe {
        each_sixteen(columns, x, max, |_, values| for_each::<T>(values, |x| max = MaxOrNan.combine(max, x)))
    };
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

macro_rules! kernels {
    ($($ty:ty {
        $($warp_spec:ident $warp:ident $block_spec:ident $block:ident: $own:ident, $empty:expr, $fold:expr;)*
        @ $argmax_warp_spec:ident $argmax_warp:ident $argmax_block_spec:ident $argmax_block:ident
    })*) => {
    $(
        $(
            /// block = [any multiple of 32 up to this], grid = [ceil(rows / rows of a block)]
            pub const $warp_spec: KernelSpec = KernelSpec::new(stringify!($warp), WARP_BLOCK).shuffles(5);
            /// # Safety
            /// `x`: [rows, cols], `y`: [rows], valid on the launching stream, disjoint, below 2³¹ elements; cols > 0
            /// unless it is a sum; `vectors` only if every row of x starts at a multiple of 16 bytes and ends at one;
            /// `lanes` as in `softmax`. Launched as the spec of its name says.
            #[kernel(launch_bounds(WARP_BLOCK))]
            pub unsafe fn $warp(y: *mut $ty, x: *const $ty, rows: u32, cols: u32, vectors: u32, lanes: u32) {
                let (row, team, columns) = warp_row::<$ty>(rows, cols, vectors, lanes);
                // SAFETY: row < rows, so the row lies inside x; all lanes of the warp are here.
                unsafe {
                    let whole = team.reduce($own(x.add(row as usize * cols as usize), columns), $fold);
                    if team.writes_result() {
                        *y.add(row as usize) = <$ty>::from_f32(whole);
                    }
                }
            }

            /// grid = [rows · parts], or with the fewer threads of [`row_threads`](crate::device::rows::row_threads)
            pub const $block_spec: KernelSpec =
                KernelSpec::new(stringify!($block), ROW_BLOCK).shared_bytes(ROW_WARPS * 4).shuffles(10);
            /// # Safety
            /// As the warp kernel; (parts − 1) · part_cols < cols ≤ parts · part_cols, and with `vectors` part_cols is a
            /// multiple of 8. If parts > 1, `found`: [rows, parts], and `counters`: [rows] zeros, which they are again
            /// afterwards, disjoint from all else.
            #[kernel(launch_bounds(ROW_BLOCK))]
            pub unsafe fn $block(
                y: *mut $ty, found: *mut f32, counters: *mut u32, x: *const $ty, cols: u32, part_cols: u32,
                parts: u32, vectors: u32,
            ) {
                let scratch = shared::declare::<f32, { ROW_WARPS as usize }>();
                let (part, _, at, columns) =
                    place_part::<$ty, f32>(found, counters, cols, part_cols, parts, vectors);
                let row = part.row as usize;
                // SAFETY: a block per part, which lies inside x; all threads are here, and between two uses of the
                // scratch memory they meet at barriers.
                unsafe {
                    let combine = |own| reduce::block_once([own], thread::block_dim_x() / 32, scratch, $fold)[0];
                    let write = |whole| *y.add(row) = <$ty>::from_f32(whole);
                    part.finish($own(x.add(at), columns), $empty, combine, |a, b| $fold.combine(a, b), write);
                }
            }
        )*

        /// block = [any multiple of 32 up to this], grid = [ceil(rows / rows of a block)]
        pub const $argmax_warp_spec: KernelSpec =
            KernelSpec::new(stringify!($argmax_warp), WARP_BLOCK).shuffles(10);
        /// # Safety
        /// As the warp kernel of the maximum.
        #[kernel(launch_bounds(WARP_BLOCK))]
        pub unsafe fn $argmax_warp(y: *mut u32, x: *const $ty, rows: u32, cols: u32, vectors: u32, lanes: u32) {
            let (row, team, columns) = warp_row::<$ty>(rows, cols, vectors, lanes);
            // SAFETY: row < rows, so the row lies inside x; all lanes of the warp are here.
            unsafe {
                let own = own_best(x.add(row as usize * cols as usize), columns).proposal(0);
                let (_, column) = team.argmax(own.order, own.column);
                if team.writes_result() {
                    *y.add(row as usize) = column;
                }
            }
        }

        /// As the block kernel of the maximum.
        pub const $argmax_block_spec: KernelSpec =
            KernelSpec::new(stringify!($argmax_block), ROW_BLOCK).shared_bytes(2 * ROW_WARPS * 4).shuffles(20);
        /// # Safety
        /// As the block kernel of the maximum, `found`: [rows, parts, 2].
        #[kernel(launch_bounds(ROW_BLOCK))]
        pub unsafe fn $argmax_block(
            y: *mut u32, found: *mut u32, counters: *mut u32, x: *const $ty, cols: u32, part_cols: u32, parts: u32,
            vectors: u32,
        ) {
            let scratch = shared::declare::<u32, { 2 * ROW_WARPS as usize }>();
            let (part, first, at, columns) =
                place_part::<$ty, Proposal>(found.cast(), counters, cols, part_cols, parts, vectors);
            let row = part.row as usize;
            // SAFETY: a block per part, which lies inside x; all threads are here, and between two uses of the scratch
            // memory they meet at barriers.
            unsafe {
                let own = own_best(x.add(at), columns).proposal(first);
                let write = |best: Proposal| *y.add(row) = best.column;
                part.finish(own, Proposal::NONE, |own| block_best(own, scratch), Proposal::or, write);
            }
        }
    )*
        /// All kernels of this file.
        pub const KERNELS: &[KernelSpec] = &[$(
            $($warp_spec, $block_spec,)*
            $argmax_warp_spec, $argmax_block_spec,
        )*];
    };
}

/// The best of a block's threads; valid in all of them.
///
/// # Safety
/// All threads are here; `scratch` has two words for each warp, used by nobody since a barrier.
#[inline(always)]
unsafe fn block_best(own: Proposal, scratch: Shared<u32>) -> Proposal {
    let warps = thread::block_dim_x() / 32;
    // SAFETY: as the caller promises.
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
        SUM_WARP_F32 sum_warp_f32 SUM_BLOCK_F32 sum_block_f32: own_sum, 0.0, Sum;
        MAX_WARP_F32 max_warp_f32 MAX_BLOCK_F32 max_block_f32: own_max, f32::NEG_INFINITY, MaxOrNan;
        @ ARGMAX_WARP_F32 argmax_warp_f32 ARGMAX_BLOCK_F32 argmax_block_f32
    }
    F16 {
        SUM_WARP_F16 sum_warp_f16 SUM_BLOCK_F16 sum_block_f16: own_sum, 0.0, Sum;
        MAX_WARP_F16 max_warp_f16 MAX_BLOCK_F16 max_block_f16: own_max, f32::NEG_INFINITY, MaxOrNan;
        @ ARGMAX_WARP_F16 argmax_warp_f16 ARGMAX_BLOCK_F16 argmax_block_f16
    }
}
