//! Row softmax: y[r, c] = exp(x[r, c] − maxᵣ) / Σ exp(x[r, ·] − maxᵣ).   x, y: [rows, cols], disjoint
//!
//! Idea: rows up to a length stay in registers and are read once. Longer rows are read twice: the online normaliser keeps
//! (max, sum), and a larger max rescales the sum; the second pass writes.
//! Source: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3.
//!
//! | kernel               | a row is handled by                  | when          |
//! |----------------------|--------------------------------------|---------------|
//! | softmax_warp_‹t›     | 8 to 32 lanes of a warp, in registers | cols ≤ 1024  |
//! | softmax_block_‹t›    | 1 block, in registers                | cols ≤ 8192   |
//! | softmax_wide_‹t›     | 1 block, in twice the registers      | cols ≤ 32768  |
//! | softmax_stream_‹t›   | 1 block of 32 warps, online          | cols > 32768  |
//! | softmax_part_‹t›     | a block per part: its max and sum    | cols > 32768, fewer rows than would fill the device |
//! | softmax_merge_‹t›    | a block per part: writes it          | after softmax_part_‹t›  |

use crate::device::columns::each_group;
use crate::device::math::{exp, rcp};
use crate::device::rows::{
    Block, ROW_BLOCK, ROW_WARPS, RowKernels, Team, WARP_BLOCK, WIDE_BLOCK, WIDE_WARPS, block_columns,
    warp_row,
};
use crate::device::{Columns, F16, Vector};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// Threads in a block of the stream kernels: rows are few or long, so one block should keep many loads in flight.
const STREAM_BLOCK: u32 = WIDE_BLOCK;
const STREAM_WARPS: u32 = WIDE_WARPS;
/// Values that a block reduces one after the other.
const COMBINED: u32 = 2;

/// The parameters of the kernels that take whole rows.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Softmax<T> {
    /// [rows, cols]
    pub y: *mut T,
    /// [rows, cols], disjoint from y
    pub x: *const T,
    pub rows: u32,
    pub cols: u32,
    /// 1 if every row of both starts and ends at a multiple of 16 bytes, else 0.
    pub vectors: u32,
    /// Lanes of a warp for each row, only for the warp kernels: a power of two up to 32, at least
    /// [`row_lanes`](crate::device::rows::row_lanes).
    pub lanes: u32,
}

/// The parameters of the kernels that find the maximum and the sum of each part of a row.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct SoftmaxPart<T> {
    /// [rows, parts, 2], disjoint from x
    pub normalizers: *mut f32,
    /// [rows, cols]
    pub x: *const T,
    pub cols: u32,
    /// A multiple of 8, with (parts − 1) · part_cols < cols ≤ parts · part_cols.
    pub part_cols: u32,
    pub parts: u32,
    /// As [`Softmax::vectors`].
    pub vectors: u32,
}

/// The parameters of the kernels that write each part of a row.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Merge<T> {
    /// [rows, cols]
    pub y: *mut T,
    /// [rows, cols], disjoint from y
    pub x: *const T,
    /// [rows, parts, 2], as the part kernel has written them
    pub normalizers: *const f32,
    pub cols: u32,
    /// As [`SoftmaxPart::part_cols`].
    pub part_cols: u32,
    pub parts: u32,
    /// As [`Softmax::vectors`].
    pub vectors: u32,
}

/// The kernels of one element type.
#[derive(Clone, Copy)]
pub struct Kernels<T> {
    pub rows: RowKernels<Softmax<T>>,
    /// grid = [rows], or with the fewer threads of [`wide_threads`](crate::device::rows::wide_threads)
    pub wide: KernelSpec<Softmax<T>>,
    /// grid = [rows · parts]
    pub part: KernelSpec<SoftmaxPart<T>>,
    /// grid = [rows · parts]
    pub merge: KernelSpec<Merge<T>>,
}

/// y, x: one row of at most N groups of columns.
///
/// # Safety
/// `x` and `y` valid for the row, disjoint; all threads of the team are here.
#[inline(always)]
unsafe fn row_in_registers<T: Vector, const N: usize>(
    y: *mut T,
    x: *const T,
    columns: Columns,
    team: impl Team,
) {
    let mut values = [T::splat(f32::NEG_INFINITY); N];
    // SAFETY: `x` is valid for the row: this function's contract.
    each_group!(columns, i < N, values[i] = unsafe { columns.load(x, i as u32, f32::NEG_INFINITY) });

    let mut own_max = f32::NEG_INFINITY;
    each_group!(columns, i < N, {
        T::map(values[i], |x| {
            own_max = own_max.max(x);
            x
        });
    });
    // SAFETY: all threads of the team are here: this function's contract.
    let [max] = unsafe { team.combine(0, [own_max], Max) };

    // Padding is −∞ and adds nothing. A row of only −∞ gives −∞ − −∞ = NaN, as by definition.
    let mut own_sum = 0.0;
    each_group!(columns, i < N, {
        values[i] = T::map(values[i], |x| {
            let e = exp(x - max);
            own_sum += e;
            e
        });
    });
    // SAFETY: all threads of the team are here: this function's contract.
    let [sum] = unsafe { team.combine(1, [own_sum], Sum) };
    let scale = rcp(sum);
    if team.has_row() {
        // SAFETY: `y` is valid for writing the row: this function's contract.
        each_group!(columns, i < N, unsafe { columns.store(y, i as u32, T::map(values[i], |e| e * scale)) });
    }
}

/// The running maximum, and the sum of exponentials relative to it.
#[derive(Clone, Copy)]
struct Normalizer {
    max: f32,
    sum: f32,
}

#[inlined]
impl Normalizer {
    const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// The base of the exponents. It is zero while all values are −∞ (or NaN), so that each −∞ adds e^−∞ = 0 and a NaN is
    /// propagated.
    fn base(self) -> f32 {
        if self.max == f32::NEG_INFINITY { 0.0 } else { self.max }
    }

    /// The same sum relative to a larger maximum.
    fn rescaled(self, max: f32) -> Self {
        let new = Self { max, sum: self.sum };
        Self { max, sum: self.sum * exp(self.max - new.base()) }
    }

    fn push<T: Vector>(self, values: T::Values) -> Self {
        let mut max = self.max;
        T::map(values, |x| {
            max = max.max(x);
            x
        });
        let mut new = self.rescaled(max);
        let base = new.base();
        T::map(values, |x| {
            new.sum += exp(x - base);
            x
        });
        new
    }
}

#[inlined]
impl Normalizer {
    /// The normaliser of a thread's part of a row.
    ///
    /// # Safety
    /// `x` valid for the row.
    unsafe fn read<T: Vector>(x: *const T, columns: Columns) -> Self {
        let mut own = Self::EMPTY;
        let mut i = 0;
        while columns.has(i) {
            // SAFETY: `x` is valid for the row: this function's contract.
            let (first, second) =
                unsafe { (columns.load(x, i, f32::NEG_INFINITY), columns.load(x, i + 1, f32::NEG_INFINITY)) };
            own = own.push::<T>(first).push::<T>(second);
            i += 2;
        }
        own
    }

    /// The normaliser of all threads of the team.
    ///
    /// # Safety
    /// All threads of the team are here.
    unsafe fn together(self, team: impl Team) -> Self {
        // SAFETY: all threads of the team are here: this function's contract.
        unsafe {
            let [max] = team.combine(0, [self.max], Max);
            let [sum] = team.combine(1, [self.rescaled(max).sum], Sum);
            Self { max, sum }
        }
    }

    /// y = exp(x − max) / sum over a thread's part of a row.
    ///
    /// # Safety
    /// `x` and `y` valid for the row, disjoint.
    unsafe fn write<T: Vector>(self, y: *mut T, x: *const T, columns: Columns) {
        let scale = rcp(self.sum);
        let mut i = 0;
        while columns.has(i) {
            // SAFETY: `x` and `y` are valid for the row, and disjoint: this function's contract.
            unsafe {
                let (first, second) = (columns.load(x, i, 0.0), columns.load(x, i + 1, 0.0));
                columns.store(y, i, T::map(first, |x| exp(x - self.max) * scale));
                columns.store(y, i + 1, T::map(second, |x| exp(x - self.max) * scale));
            }
            i += 2;
        }
    }
}

/// The part of a row that a block of the part and merge kernels handles: its index, its first element in x, and how the
/// threads divide it.
#[inline(always)]
fn place_part<T: Vector>(cols: u32, part_cols: u32, parts: u32, vectors: u32) -> (u32, usize, Columns) {
    let part = thread::block_idx_x();
    let parts = parts.max(1); // never 0; stated so that no panic is compiled in
    let (row, first) = (part / parts, part % parts * part_cols);
    let columns = block_columns::<T>(part_cols.min(cols - first), vectors);
    (part, row as usize * cols as usize + first as usize, columns)
}

macro_rules! kernels {
    ($(
        $name:ident $ty:ty: $warp:ident $warp_groups:literal, $block:ident $block_groups:literal,
        $wide:ident $wide_groups:literal, $stream:ident, $part:ident,
        $merge:ident;
    )*) => {
        $(
            /// # Safety
            /// [`Softmax`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements;
            /// cols ≤ [`MAX_WARP_COLS`](crate::device::rows::MAX_WARP_COLS); launched as [`RowKernels::warp`] says.
            #[kernel(block = WARP_BLOCK, min_blocks = 4, shuffles = 10)]
            pub unsafe fn $warp(p: Softmax<$ty>) {
                let (row, team, columns) = warp_row::<$ty>(p.rows, p.cols, p.vectors, p.lanes);
                let at = row as usize * p.cols as usize;
                // SAFETY: row < rows, so the row is inside x and y; all lanes of the warp are here.
                unsafe { row_in_registers::<$ty, $warp_groups>(p.y.add(at), p.x.add(at), columns, team) }
            }

            /// # Safety
            /// As the warp kernel, with a block for each of the rows and
            /// cols ≤ [`MAX_BLOCK_COLS`](crate::device::rows::MAX_BLOCK_COLS).
            #[kernel(block = ROW_BLOCK, min_blocks = 3, shared(scratch: [f32; COMBINED * ROW_WARPS]), shuffles = 10)]
            pub unsafe fn $block(p: Softmax<$ty>) {
                let at = thread::block_idx_x() as usize * p.cols as usize;
                let columns = block_columns::<$ty>(p.cols, p.vectors);
                // SAFETY: one block per row, so the row is inside x and y; all threads are here.
                unsafe { row_in_registers::<$ty, $block_groups>(p.y.add(at), p.x.add(at), columns, Block(scratch)) }
            }

            /// # Safety
            /// As the block kernel, with cols ≤ [`MAX_WIDE_COLS`](crate::device::rows::MAX_WIDE_COLS).
            #[kernel(block = WIDE_BLOCK, min_blocks = 1, shared(scratch: [f32; COMBINED * WIDE_WARPS]), shuffles = 10)]
            pub unsafe fn $wide(p: Softmax<$ty>) {
                let at = thread::block_idx_x() as usize * p.cols as usize;
                let columns = block_columns::<$ty>(p.cols, p.vectors);
                // SAFETY: one block per row, so the row is inside x and y; all threads are here.
                unsafe { row_in_registers::<$ty, $wide_groups>(p.y.add(at), p.x.add(at), columns, Block(scratch)) }
            }

            /// # Safety
            /// As the block kernel, for any cols.
            #[kernel(block = STREAM_BLOCK, min_blocks = 1, shared(scratch: [f32; COMBINED * STREAM_WARPS]), shuffles = 10)]
            pub unsafe fn $stream(p: Softmax<$ty>) {
                let at = thread::block_idx_x() as usize * p.cols as usize;
                let columns = block_columns::<$ty>(p.cols, p.vectors);
                // SAFETY: one block per row, so the row is inside x and y; all threads are here.
                unsafe {
                    let whole = Normalizer::read(p.x.add(at), columns).together(Block(scratch));
                    whole.write(p.y.add(at), p.x.add(at), columns)
                }
            }

            /// # Safety
            /// [`SoftmaxPart`] constrains the pointers, which are valid as the warp kernel's, and part_cols.
            #[kernel(block = ROW_BLOCK, min_blocks = 2, shared(scratch: [f32; COMBINED * ROW_WARPS]), shuffles = 10)]
            pub unsafe fn $part(p: SoftmaxPart<$ty>) {
                let (part, at, columns) = place_part::<$ty>(p.cols, p.part_cols, p.parts, p.vectors);
                // SAFETY: a block per part, so it is inside x and its normalizer inside theirs; all threads are here.
                unsafe {
                    let own = Normalizer::read(p.x.add(at), columns).together(Block(scratch));
                    if thread::thread_idx_x() == 0 {
                        *p.normalizers.add(2 * part as usize) = own.max;
                        *p.normalizers.add(2 * part as usize + 1) = own.sum;
                    }
                }
            }

            /// # Safety
            /// [`Merge`] constrains the pointers, which are valid as the warp kernel's, and part_cols.
            #[kernel(block = ROW_BLOCK, min_blocks = 2, shared(scratch: [f32; COMBINED * ROW_WARPS]), shuffles = 10)]
            pub unsafe fn $merge(p: Merge<$ty>) {
                let (part, at, columns) = place_part::<$ty>(p.cols, p.part_cols, p.parts, p.vectors);
                // SAFETY: a block per part, so it is inside x and y, and so do its row's normalizers; all threads are here.
                unsafe {
                    let mut own = Normalizer::EMPTY;
                    let (mut index, row) = (thread::thread_idx_x(), part - part % p.parts.max(1));
                    while index < p.parts {
                        let [max, sum] = [0, 1].map(|k| *p.normalizers.add(2 * (row + index) as usize + k));
                        let larger = own.max.max(max);
                        let sum = own.rescaled(larger).sum + Normalizer { max, sum }.rescaled(larger).sum;
                        own = Normalizer { max: larger, sum };
                        index += thread::block_dim_x();
                    }
                    own.together(Block(scratch)).write(p.y.add(at), p.x.add(at), columns);
                }
            }

            /// The kernels of this element type.
            pub const $name: Kernels<$ty> = {
                let rows = RowKernels { warp: $warp, block: $block, few: $block, stream: $stream };
                Kernels { rows, wide: $wide, part: $part, merge: $merge }
            };
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[
            $($warp.info(), $block.info(), $wide.info(), $stream.info(), $part.info(), $merge.info(),)*
        ];
    };
}

kernels! {
    OF_F32 f32: softmax_warp_f32 8, softmax_block_f32 4,
        softmax_wide_f32 8, softmax_stream_f32, softmax_part_f32,
        softmax_merge_f32;
    OF_F16 F16: softmax_warp_f16 4, softmax_block_f16 2,
        softmax_wide_f16 4, softmax_stream_f16, softmax_part_f16,
        softmax_merge_f16;
}
