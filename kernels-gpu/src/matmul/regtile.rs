//! c = alpha·a·b + beta·c by register tiles.   c: [m, n], a: [m, k], b: [k, n], each with a leading dimension.
//!
//! Idea: a block computes a BM × BN tile of c, a thread 8 × 8 of it in registers, from BK rows of a and b at a time in
//! shared memory. Shared memory is double-buffered: the next tile is loaded into registers while the current one is
//! multiplied. 8 × 8 needs four 16-byte shared loads for 64 FMAs, smaller register tiles more for each FMA. Slices help where c
//! has too few tiles for the warps that can be resident: two or four groups of threads share a tile, each takes every second
//! or fourth BK rows, and their sums are added through shared memory at the end. Each four neighbours in a row of a tile are
//! [turned](crate::device::banks), so that factors and sums are in different register banks.
//! Source: Volkov & Demmel 2008, "Benchmarking GPUs to tune dense linear algebra"; the lanes' order within a warp is
//! that of Gray's maxas SGEMM, where every 16-byte shared load is a broadcast without conflicts; slices as in CUTLASS's
//! documentation ("sliced-K").
//!
//! | kernel                     | tile      | a thread's | slices | threads | layouts |
//! |----------------------------|-----------|------------|--------|---------|---------|
//! | matmul_tile128_‹ll›_‹t›    | 128 × 128 | 8 × 8      | 1      | 256     | all     |
//! | matmul_wide128_‹ll›_‹t›    | 128 × 128 | 16 × 8     | 1      | 128     | nn, nt  |
//! | matmul_tile64x128_‹ll›_‹t› | 64 × 128  | 8 × 8      | 1      | 128     | nn, nt  |
//! | matmul_tile64_‹ll›_‹t›     | 64 × 64   | 8 × 8      | 2      | 128     | all     |
//! | matmul_tile32_‹ll›_‹t›     | 32 × 64   | 4 × 8      | 4      | 256     | all     |
//! | matmul_strided_‹t›         | 64 × 64   | 8 × 8      | 1      | 64      | any strides and alignment, scalar loads |
//!
//! ‹ll› is nn, nt (b is the transpose of a row-major [n, k]) or tn (a is the transpose of a row-major [k, m]);
//! ‹t› is f32, f16, or mixed (a f32, b f16, c f32).

pub use super::load::BK;
use super::load::{AlongK, AlongWidth, Load, PAD, Strided};
use super::product::{Product, batch_offset, k_range, product};
use super::write;
use crate::device::banks::turn_back;
use crate::device::math::fma;
use crate::device::{Element, F16, Shared, opaque, read_thread_idx_x};
use crate::float16::Float16;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;
use cuda_std::{KernelInfo, KernelSpec};

/// Tile rows whose blocks go through the tile columns together, so that resident blocks share rows and columns in L2.
const GROUP: u32 = 8;

/// The parameters of the kernels, and the fields that all kernels of products share.
///
/// Every operand has fewer than 2³¹ elements. m, n and k are not 0. Only for these kernels: c, a and b are 16-byte aligned
/// (f16: 8-byte). n, the leading dimensions and the batch strides are multiples of 4. So are k if an operand is contiguous
/// along k, and m if a is contiguous along m.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Tile<A, B, C> {
    /// [batch, m, n], disjoint from all others
    pub c: *mut C,
    /// [batch, m, k], or its transpose as the layout says
    pub a: *const A,
    /// [batch, k, n], or its transpose as the layout says
    pub b: *const B,
    /// [splits, batch, m, n], disjoint from all others; null if splits = 1
    pub partial: *mut f32,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// Distance between the rows of a, or between its columns if it is transposed.
    pub lda: u32,
    /// Distance between the rows of b, or between its columns if it is transposed.
    pub ldb: u32,
    /// Distance between the rows of c.
    pub ldc: u32,
    /// Distance between the batch entries of a.
    pub stride_a: u32,
    pub stride_b: u32,
    pub stride_c: u32,
    /// k of each split but the last, a multiple of the kernel's step: k_chunk · (splits − 1) < k ≤ k_chunk · splits.
    pub k_chunk: u32,
    pub alpha: f32,
    pub beta: f32,
    /// [n], added to every row; or null
    pub bias: *const C,
    /// The matrix that beta scales: c itself, or disjoint from it and with its layout. With beta = 0, it is not read.
    pub addend: *const C,
}

/// The parameters of the kernels for any strides: fields without a comment are as [`Tile`] has them.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct AnyStrides<A, B, C> {
    pub c: *mut C,
    /// [batch, m, k]
    pub a: *const A,
    /// [batch, k, n]
    pub b: *const B,
    pub partial: *mut f32,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// Distance between the rows of a.
    pub row_a: u32,
    /// Distance between the columns of a.
    pub col_a: u32,
    pub row_b: u32,
    pub col_b: u32,
    pub ldc: u32,
    pub stride_a: u32,
    pub stride_b: u32,
    pub stride_c: u32,
    pub k_chunk: u32,
    pub alpha: f32,
    pub beta: f32,
    pub bias: *const C,
    pub addend: *const C,
}

/// The tile sizes, in the order of [`FAMILIES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Tile128,
    Wide128,
    Tile64x128,
    Tile64,
    Tile32,
}

impl Size {
    /// The properties that the kernels of this size share.
    pub fn family(self) -> &'static Family {
        &FAMILIES[self as usize]
    }
}

/// The properties that all kernels of a tile size share, whatever their types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    pub size: Size,
    /// The part of its kernels' names that names the size.
    pub name: &'static str,
    /// Rows of c that a block computes.
    pub bm: u32,
    /// Columns of c that a block computes.
    pub bn: u32,
    /// Number of slices of k.
    pub slices: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Resident blocks per multiprocessor of sm_61.
    pub resident: u32,
    /// How many of nn, nt and tn have kernels.
    pub layouts: usize,
}

/// The kernels of a tile size for nn, nt and tn, as far as they exist: grid = [ceil(m / BM) · ceil(n / BN), splits, batch]
pub type ByLayouts<P> = [Option<KernelSpec<P>>; 3];

/// Bytes of the two buffers of both operands' tiles, for all slices.
pub(super) const fn shared_bytes(bm: u32, bn: u32, slices: u32) -> u32 {
    slices * 2 * BK * (bm + PAD + bn + PAD) * 4
}

/// Repeats a statement for the constants below `$count`, which is 4, 8 or 16, so that arrays indexed by them are registers.
macro_rules! each {
    ($i:ident < 8 => $body:expr) => {
        each!(@ $i => $body; 0 1 2 3 4 5 6 7)
    };
    ($i:ident < $count:ident => $body:expr) => {{
        each!(@ $i => $body; 0 1 2 3);
        if $count > 4 {
            each!(@ $i => $body; 4 5 6 7);
        }
        if $count > 8 {
            each!(@ $i => $body; 8 9 10 11 12 13 14 15);
        }
    }};
    (@ $i:ident => $body:expr; $($value:literal)*) => {{
        $({
            const $i: usize = $value;
            $body
        })*
    }};
}

/// acc += outer product of row `K` of both tiles, whose rows are `SA` and `SB` apart. A thread's rows of c are groups of
/// four, `HM` apart. Its columns are two groups of four, `HN` apart.
///
/// # Safety
/// `a` and `b` are at this thread's first element in row 0, and a barrier has passed since the tiles were stored.
#[inline(always)]
unsafe fn multiply_row<
    const K: u32,
    const ROWS: usize,
    const SA: u32,
    const SB: u32,
    const HM: u32,
    const HN: u32,
>(
    acc: &mut [[f32; 8]; ROWS],
    a: Shared<f32>,
    b: Shared<f32>,
) {
    let (mut reg_m, mut reg_n) = ([0.0; ROWS], [0.0; 8]);
    // SAFETY: `a` and `b` are inside tiles that were stored before a barrier (this function's contract). All offsets are
    // multiples of four elements.
    unsafe {
        reg_m[..4].copy_from_slice(&turn_back(a.get4_at::<K, SA, 0, HM>()));
        if ROWS > 4 {
            reg_m[4..8].copy_from_slice(&turn_back(a.get4_at::<K, SA, 1, HM>()));
        }
        if ROWS > 8 {
            reg_m[8..12].copy_from_slice(&turn_back(a.get4_at::<K, SA, 2, HM>()));
            reg_m[12..16].copy_from_slice(&turn_back(a.get4_at::<K, SA, 3, HM>()));
        }
        reg_n[..4].copy_from_slice(&turn_back(b.get4_at::<K, SB, 0, HN>()));
        reg_n[4..].copy_from_slice(&turn_back(b.get4_at::<K, SB, 1, HN>()));
    }
    each!(I < ROWS => each!(J < 8 => acc[I][J] = fma(reg_m[I], reg_n[J], acc[I][J])));
}

/// Adds the sums of the upper half of 2 · `HALF` slices to those of the lower, through shared memory.
///
/// # Safety
/// All threads of the block call this; `memory` holds `HALF` slices' sums, 16-byte aligned, and no thread reads its contents
/// any more.
#[inline(always)]
unsafe fn fold<const HALF: u32, const ROWS: usize>(
    acc: &mut [[f32; 8]; ROWS],
    memory: Shared<f32>,
    slice: u32,
    (tid, threads): (u32, u32),
) {
    let own = memory.at((slice % HALF * ROWS as u32 * 2 * threads + tid) * 4);
    // SAFETY: each of a thread's rows has two fours, and those of neighbouring threads are neighbours. There are barriers
    // between the writes of one slice and the reads of the other, and after these.
    unsafe {
        sync_threads();
        if slice >= HALF && slice < 2 * HALF {
            each!(I < ROWS => {
                let [x0, x1, x2, x3, x4, x5, x6, x7] = acc[I];
                own.set4(I as u32 * 2 * threads * 4, [x0, x1, x2, x3]);
                own.set4((I as u32 * 2 + 1) * threads * 4, [x4, x5, x6, x7]);
            });
        }
        sync_threads();
        if slice < HALF {
            each!(I < ROWS => {
                let [x0, x1, x2, x3] = own.get4(I as u32 * 2 * threads * 4);
                let [x4, x5, x6, x7] = own.get4((I as u32 * 2 + 1) * threads * 4);
                let more = [x0, x1, x2, x3, x4, x5, x6, x7];
                each!(J < 8 => acc[I][J] += more[J]);
            });
        }
    }
}

/// This thread's first row and column in its warp's part. Lanes are arranged HM / 4 down and the others across; a lane has
/// groups of four.
#[inline(always)]
fn lane_place<const HM: u32>(lane: u32) -> (u32, u32) {
    match HM / 4 {
        8 => ((lane << 1) & 28, ((lane & 1) | (lane >> 4) << 1) * 4),
        4 => (((lane & 1) | (lane >> 4) << 1) * 4, (lane << 1) & 28),
        lanes_m => (lane % lanes_m * 4, lane / lanes_m * 4),
    }
}

/// The tile of c that block `index` computes: `GROUP` tile rows at a time, column by column.
#[inline(always)]
pub(super) fn tile_place(index: u32, tiles_m: u32, tiles_n: u32) -> (u32, u32) {
    let per_group = (GROUP * tiles_n).max(1); // .max: otherwise divisions have a branch to a panic
    let first = index / per_group * GROUP;
    let rows = GROUP.min(tiles_m - first).max(1);
    let within = index % per_group;
    (first + within % rows, within / rows)
}

/// Computes the tile of c at (`row`, `column`) from `k_count` rows of both operands. `SLICES` groups of `THREADS` threads
/// share it: of every `BK · SLICES` rows, group `slice` takes the `BK` from `BK · slice` on.
///
/// # Safety
/// `c` and `p` are of this block's batch entry, as [`Tile`] says. The operands have `k_count` > 0 rows from the loaders'
/// rows of slice 0 on, and the loaders are at the slice's first row. `shared` has two buffers of a tile of each operand for
/// each slice. With `VECTOR`, n and ldc are multiples of 4 and c is aligned to 4 elements.
#[inline(always)]
pub(super) unsafe fn tile<
    LA: Load,
    LB: Load,
    C: Element,
    const ROWS: usize,
    const SLICES: u32,
    const THREADS: u32,
    const SA: u32,
    const SB: u32,
    const HM: u32,
    const HN: u32,
    const VECTOR: bool,
>(
    c: *mut C,
    p: &Product<C>,
    (row, column): (u32, u32),
    k_count: u32,
    (mut load_a, mut load_b): (LA, LB),
    shared: Shared<f32>,
) {
    // place tile
    let (slice, tid) = (thread::thread_idx_x() / THREADS, thread::thread_idx_x() % THREADS);
    let place = |tid: u32| {
        let (warp, (lane_row, lane_column)) = (tid / 32, lane_place::<HM>(tid % 32));
        let warps_m = ((SA - PAD) / (ROWS as u32 / 4 * HM)).max(1);
        (warp % warps_m * (ROWS as u32 / 4 * HM) + lane_row, warp / warps_m * 2 * HN + lane_column)
    };
    let (thread_m, thread_n) = place(tid);
    let tile_a = shared.at(slice * 2 * BK * (SA + SB));
    let tile_b = tile_a.at(2 * BK * SA);
    let mut acc = [[0.0; 8]; ROWS];

    // The remainder of k comes first, so that all later tiles are full.
    let step = BK * SLICES;
    let first = if k_count.is_multiple_of(step) { step } else { k_count % step };
    let mut left = (k_count - first) / step;
    let (mut read_a, mut read_b) = (tile_a.at(thread_m), tile_b.at(thread_n));
    let (mut write_a, mut write_b) = (tile_a.at(load_a.place()), tile_b.at(load_b.place()));
    // The distance from the current buffer to the other one; its sign alternates.
    let (mut other_a, mut other_b) = (BK * SA, BK * SB);
    // SAFETY: the operands have `k_count` rows, of which `first + left · step` are read. All threads reach the barriers,
    // because `left` is the same in all. A buffer is written only after the barrier that follows its last reads. The buffers
    // have room for the sums of half the slices, which every kernel asserts.
    unsafe {
        let valid = first.saturating_sub(slice * BK);
        let mut next = (load_a.load_first(valid), load_b.load_first(valid));
        load_a.advance(first);
        load_b.advance(first);
        load_a.store(write_a, next.0);
        load_b.store(write_b, next.1);
        sync_threads();
        loop {
            // load
            if left > 0 {
                next = (load_a.load(), load_b.load());
                load_a.advance(step);
                load_b.advance(step);
            }
            // compute
            multiply_row::<0, ROWS, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<1, ROWS, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<2, ROWS, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<3, ROWS, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<4, ROWS, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<5, ROWS, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<6, ROWS, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<7, ROWS, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            // `next` and this branch depend on the same number. If LLVM knew that, it would duplicate the last iteration and
            // sink its multiplications into the branches of the write below, which takes hundreds of registers.
            left = opaque(left);
            if left == 0 {
                break;
            }
            (read_a, read_b) = (read_a.at(other_a), read_b.at(other_b));
            (write_a, write_b) = (write_a.at(other_a), write_b.at(other_b));
            (other_a, other_b) = (0u32.wrapping_sub(other_a), 0u32.wrapping_sub(other_b));
            load_a.store(write_a, next.0);
            load_b.store(write_b, next.1);
            // sync
            sync_threads();
            left -= 1;
        }

        // fold slices
        if SLICES > 2 {
            fold::<2, ROWS>(&mut acc, shared, slice, (tid, THREADS));
        }
        if SLICES > 1 {
            fold::<1, ROWS>(&mut acc, shared, slice, (tid, THREADS));
            if slice > 0 {
                return;
            }
        }

        // write; with many sums the place is computed anew, as its registers are needed in the loop
        let (thread_m, thread_n) = match ROWS > 4 {
            true => place(read_thread_idx_x() % THREADS),
            false => (thread_m, thread_n),
        };
        each!(I < ROWS => {
            let i = I as u32;
            let r = row + thread_m + i % 4 + i / 4 * HM;
            if r < p.m {
                let [x0, x1, x2, x3, x4, x5, x6, x7] = acc[I];
                let col = column + thread_n;
                write::quad::<C, VECTOR>(c, p, r, col, [x0, x1, x2, x3]);
                write::quad::<C, VECTOR>(c, p, r, col + HN, [x4, x5, x6, x7]);
            }
        });
    }
}

macro_rules! loader {
    (n $operand:ident $($generics:tt)*) => { loader!(@ $operand n $($generics)*) };
    (t $operand:ident $($generics:tt)*) => { loader!(@ $operand t $($generics)*) };
    // a is [m, k]: row-major it runs along k
    (@ a n $T:ty, $threads:ident, $vectors:ident) => { AlongK::<$T, { BM + PAD }, $threads, $vectors> };
    (@ a t $T:ty, $threads:ident, $vectors:ident) => { AlongWidth::<$T, { BM + PAD }, $threads, $vectors> };
    // b is [k, n]: row-major it runs along n
    (@ b n $T:ty, $threads:ident, $vectors:ident) => { AlongWidth::<$T, { BN + PAD }, $threads, $vectors> };
    (@ b t $T:ty, $threads:ident, $vectors:ident) => { AlongK::<$T, { BN + PAD }, $threads, $vectors> };
}

/// The index of a layout among [nn, nt, tn].
macro_rules! layouts {
    (n n) => {
        0
    };
    (n t) => {
        1
    };
    (t n) => {
        2
    };
}

/// The kernels of one tile size.
macro_rules! tile_kernels {
    (
        $(#[$doc:meta])*
        $module:ident: BM = $bm:literal, BN = $bn:literal, ROWS = $rows:literal, LANES_M = $lanes_m:literal,
        SLICES = $slices:literal, MIN_BLOCKS = $min_blocks:literal;
        $($table:ident: $A:ty, $B:ty, $C:ty { $($name:ident: $a:ident $b:ident;)* })*
    ) => {
        $(#[$doc])*
        pub mod $module {
            use super::*;

            /// Rows of c that a block computes.
            pub const BM: u32 = $bm;
            /// Columns of c that a block computes.
            pub const BN: u32 = $bn;
            /// Rows of c that a thread computes, with eight columns each.
            const ROWS: usize = $rows;
            /// Number of slices of k.
            pub const SLICES: u32 = $slices;
            /// Threads of one slice.
            const GROUP_THREADS: u32 = BM * BN / (ROWS as u32 * 8);
            /// Threads of a block.
            pub const THREADS: u32 = GROUP_THREADS * SLICES;
            /// Resident blocks per multiprocessor of sm_61.
            pub const MIN_BLOCKS: u32 = $min_blocks;
            const VECTORS_A: usize = (BM * BK / 4 / GROUP_THREADS) as usize;
            const VECTORS_B: usize = (BN * BK / 4 / GROUP_THREADS) as usize;
            const SHARED: u32 = shared_bytes(BM, BN, SLICES);
            const _: () = assert!(SLICES == 1 || SLICES / 2 * BM * BN * 4 <= SHARED);
            /// Half the width of a warp's part along m and n: 8 × 8 elements each for 32 lanes.
            const HM: u32 = $lanes_m * 4;
            const HN: u32 = 32 / $lanes_m * 4;

            $($(
                /// # Safety
                /// [`Tile`] constrains the pointers, which are valid on the launching stream, and the numbers;
                /// launched as [`ByLayouts`] says.
                #[kernel(
                    block = THREADS, min_blocks = MIN_BLOCKS, module = stringify!($name), shared(shared: [f32; SHARED / 4])
                )]
                pub unsafe fn $name(p: Tile<$A, $B, $C>) {
                    let (slice, tid) = (thread::thread_idx_x() / GROUP_THREADS, thread::thread_idx_x() % GROUP_THREADS);
                    let product = product!(p);
                    let (k_first, k_count) = k_range(p.k, p.k_chunk);
                    let (tile_m, tile_n) = tile_place(thread::block_idx_x(), p.m.div_ceil(BM), p.n.div_ceil(BN));
                    let (row, column) = (tile_m * BM, tile_n * BN);
                    let c = p.c.wrapping_add(batch_offset(p.stride_c));
                    let a = p.a.wrapping_add(batch_offset(p.stride_a));
                    let b = p.b.wrapping_add(batch_offset(p.stride_b));
                    type LoadA = loader!($a a $A, GROUP_THREADS, VECTORS_A);
                    type LoadB = loader!($b b $B, GROUP_THREADS, VECTORS_B);
                    let mut load_a = LoadA::new(a, p.lda, row, p.m, tid);
                    let mut load_b = LoadB::new(b, p.ldb, column, p.n, tid);
                    load_a.advance(k_first + slice * BK);
                    load_b.advance(k_first + slice * BK);
                    // SAFETY: the block's part of k is not empty and inside the operands; n, ldc and c are aligned to 4.
                    unsafe {
                        tile::<_, _, _, ROWS, SLICES, GROUP_THREADS, { BM + PAD }, { BN + PAD }, HM, HN, true>(
                            c, &product, (row, column), k_count, (load_a, load_b), shared,
                        );
                    }
                }
            )*)*

            $(
                /// The kernels of these types.
                pub(in crate::matmul) const $table: ByLayouts<Tile<$A, $B, $C>> = {
                    let mut all = [None; 3];
                    $(all[layouts!($a $b)] = Some($name);)*
                    all
                };
            )*

            /// All kernels of this tile size.
            pub const KERNELS: &[KernelInfo] = &[$($($name.info()),*),*];
        }
    };
}

/// The properties of a tile size's kernels.
macro_rules! family {
    ($size:ident $module:ident) => {
        Family {
            size: Size::$size,
            name: stringify!($module),
            bm: $module::BM,
            bn: $module::BN,
            slices: $module::SLICES,
            warps: $module::THREADS / 32,
            resident: $module::MIN_BLOCKS,
            layouts: $module::OF_F32[2].is_some() as usize + 2,
        }
    };
}

tile_kernels! {
    /// 128 × 128, 8 × 8 a thread: 16 resident warps.
    tile128: BM = 128, BN = 128, ROWS = 8, LANES_M = 8, SLICES = 1, MIN_BLOCKS = 2;
    OF_F32: f32, f32, f32 {
        matmul_tile128_nn_f32: n n;
        matmul_tile128_nt_f32: n t;
        matmul_tile128_tn_f32: t n;
    }
    OF_F16: F16, F16, F16 {
        matmul_tile128_nn_f16: n n;
        matmul_tile128_nt_f16: n t;
        matmul_tile128_tn_f16: t n;
    }
    OF_MIXED: f32, F16, f32 {
        matmul_tile128_nn_mixed: n n;
        matmul_tile128_nt_mixed: n t;
        matmul_tile128_tn_mixed: t n;
    }
}

tile_kernels! {
    /// 128 × 128, 16 × 8 a thread: six shared loads for 128 multiply-adds instead of eight, but 8 warps.
    wide128: BM = 128, BN = 128, ROWS = 16, LANES_M = 8, SLICES = 1, MIN_BLOCKS = 2;
    OF_F32: f32, f32, f32 {
        matmul_wide128_nn_f32: n n;
        matmul_wide128_nt_f32: n t;
    }
    OF_F16: F16, F16, F16 {
        matmul_wide128_nn_f16: n n;
        matmul_wide128_nt_f16: n t;
    }
    OF_MIXED: f32, F16, f32 {
        matmul_wide128_nn_mixed: n n;
        matmul_wide128_nt_mixed: n t;
    }
}

tile_kernels! {
    /// 64 × 128, 8 × 8 a thread: 16 resident warps.
    tile64x128: BM = 64, BN = 128, ROWS = 8, LANES_M = 8, SLICES = 1, MIN_BLOCKS = 4;
    OF_F32: f32, f32, f32 {
        matmul_tile64x128_nn_f32: n n;
        matmul_tile64x128_nt_f32: n t;
    }
    OF_F16: F16, F16, F16 {
        matmul_tile64x128_nn_f16: n n;
        matmul_tile64x128_nt_f16: n t;
    }
    OF_MIXED: f32, F16, f32 {
        matmul_tile64x128_nn_mixed: n n;
        matmul_tile64x128_nt_mixed: n t;
    }
}

tile_kernels! {
    /// 64 × 64, 8 × 8 a thread, in two slices: 12 resident warps.
    tile64: BM = 64, BN = 64, ROWS = 8, LANES_M = 8, SLICES = 2, MIN_BLOCKS = 3;
    OF_F32: f32, f32, f32 {
        matmul_tile64_nn_f32: n n;
        matmul_tile64_nt_f32: n t;
        matmul_tile64_tn_f32: t n;
    }
    OF_F16: F16, F16, F16 {
        matmul_tile64_nn_f16: n n;
        matmul_tile64_nt_f16: n t;
        matmul_tile64_tn_f16: t n;
    }
    OF_MIXED: f32, F16, f32 {
        matmul_tile64_nn_mixed: n n;
        matmul_tile64_nt_mixed: n t;
        matmul_tile64_tn_mixed: t n;
    }
}

tile_kernels! {
    /// 32 × 64, 4 × 8 a thread, in four slices: 16 resident warps.
    tile32: BM = 32, BN = 64, ROWS = 4, LANES_M = 8, SLICES = 4, MIN_BLOCKS = 2;
    OF_F32: f32, f32, f32 {
        matmul_tile32_nn_f32: n n;
        matmul_tile32_nt_f32: n t;
        matmul_tile32_tn_f32: t n;
    }
    OF_F16: F16, F16, F16 {
        matmul_tile32_nn_f16: n n;
        matmul_tile32_nt_f16: n t;
        matmul_tile32_tn_f16: t n;
    }
    OF_MIXED: f32, F16, f32 {
        matmul_tile32_nn_mixed: n n;
        matmul_tile32_nt_mixed: n t;
        matmul_tile32_tn_mixed: t n;
    }
}

tile_kernels! {
    /// 64 × 64, a f32, b in a 16-bit format of 4 or 8 exponent bits, c f32; the loader converts b. Of the tiles that compute
    /// products of any size, these have the least PTX.
    tile64_coded: BM = 64, BN = 64, ROWS = 8, LANES_M = 8, SLICES = 2, MIN_BLOCKS = 3;
    OF_E4: f32, Float16<4>, f32 {
        matmul_tile64_nt_e4: n t;
    }
    OF_E8: f32, Float16<8>, f32 {
        matmul_tile64_nt_e8: n t;
    }
}

/// All tile sizes.
pub const FAMILIES: &[Family] = &[
    family!(Tile128 tile128),
    family!(Wide128 wide128),
    family!(Tile64x128 tile64x128),
    family!(Tile64 tile64),
    family!(Tile32 tile32),
];

const _: () = {
    let mut i = 0;
    while i < FAMILIES.len() {
        assert!(FAMILIES[i].size as usize == i, "in the order of the sizes");
        i += 1;
    }
};

/// The kernels for any strides: 64 × 64.
pub mod strided {
    use super::*;

    /// Rows of c that a block computes.
    pub const BM: u32 = 64;
    /// Columns of c that a block computes.
    pub const BN: u32 = 64;
    const THREADS: u32 = BM * BN / 64;
    const ELEMENTS: usize = (BM * BK / THREADS) as usize;
    const SHARED: u32 = shared_bytes(BM, BN, 1);

    macro_rules! kernels {
        ($($name:ident: $A:ty, $B:ty, $C:ty;)*) => {
            $(
                /// grid = [ceil(m / BM) · ceil(n / BN), splits, batch]
                ///
                /// # Safety
                /// [`AnyStrides`] constrains the pointers, which are valid on the launching stream, and the numbers.
                #[kernel(block = THREADS, min_blocks = 4, module = stringify!($name), shared(shared: [f32; SHARED / 4]))]
                pub unsafe fn $name(p: AnyStrides<$A, $B, $C>) {
                    let tid = thread::thread_idx_x();
                    let product = product!(p);
                    let (k_first, k_count) = k_range(p.k, p.k_chunk);
                    let (tile_m, tile_n) = tile_place(thread::block_idx_x(), p.m.div_ceil(BM), p.n.div_ceil(BN));
                    let (row, column) = (tile_m * BM, tile_n * BN);
                    let c = p.c.wrapping_add(batch_offset(p.stride_c));
                    let a = p.a.wrapping_add(batch_offset(p.stride_a));
                    let b = p.b.wrapping_add(batch_offset(p.stride_b));
                    let mut load_a =
                        Strided::<$A, { BM + PAD }, THREADS, ELEMENTS>::new(a, p.col_a, p.row_a, row, p.m, tid);
                    let mut load_b =
                        Strided::<$B, { BN + PAD }, THREADS, ELEMENTS>::new(b, p.row_b, p.col_b, column, p.n, tid);
                    load_a.advance(k_first);
                    load_b.advance(k_first);
                    // SAFETY: the block's part of k is not empty and inside the operands.
                    unsafe {
                        tile::<_, _, _, 8, 1, THREADS, { BM + PAD }, { BN + PAD }, 32, 16, false>(
                            c, &product, (row, column), k_count, (load_a, load_b), shared,
                        );
                    }
                }
            )*

            /// All kernels for any strides.
            pub const KERNELS: &[KernelInfo] = &[$($name.info()),*];
        };
    }

    kernels! {
        matmul_strided_f32: f32, f32, f32;
        matmul_strided_f16: F16, F16, F16;
        matmul_strided_mixed: f32, F16, f32;
    }
}
