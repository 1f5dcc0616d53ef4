//! c = alpha·a·b + beta·c by register tiles.   c: [m, n], a: [m, k], b: [k, n], each with a leading dimension.
//!
//! Idea: a block makes a BM × BN tile of c, a thread 8 × 8 of it in registers, from BK rows of a and b at a time in
//! shared memory. Shared memory is double-buffered and the next tile is on its way to registers while this one is
//! multiplied. 8 × 8 is the smallest register tile whose 16-byte shared loads can feed the FMA units. Where c has too
//! few tiles for all warps that a multiprocessor can hold, slices help: two or four groups of threads share a tile, each
//! takes every second or fourth BK rows, and in the end their sums are added through shared memory.
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

use super::load::{AlongK, AlongWidth, Load, PAD, Strided};
use super::{Product, write};
use crate::device::math::fma;
use crate::device::{Element, F16, Shared, shared};
use crate::spec::KernelSpec;
use cuda_std::gpu_only;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

/// Rows of a and b that a slice has in shared memory at a time.
pub const BK: u32 = 8;
/// Tile rows that run together through the tile columns, so that the blocks at work share rows and columns in L2.
const GROUP: u32 = 8;

/// A tile size and its kernels.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The name in its kernels' names.
    pub name: &'static str,
    /// Rows of c that a block makes.
    pub bm: u32,
    /// Columns of c that a block makes.
    pub bn: u32,
    /// Groups of threads that share the k of a tile.
    pub slices: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Blocks that fit a multiprocessor of sm_61.
    pub resident: u32,
    /// [nn, nt, tn][f32, f16, mixed]; some families have no tn. grid = [ceil(m / bm) · ceil(n / bn), splits, batch]
    pub specs: &'static [[KernelSpec; 3]],
}

/// Bytes of both buffers of both tiles, for every slice.
const fn shared_bytes(bm: u32, bn: u32, slices: u32) -> u32 {
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

/// acc += outer product of row `K` of both tiles, whose rows are `SA` and `SB` apart. A thread's rows of c are fours
/// that are `HM` apart, its columns two fours `HN` apart.
///
/// # Safety
/// `a` and `b` are at this thread's first element in row 0, and a barrier lies behind the tiles' stores.
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
    // SAFETY: as the caller promises; all offsets are multiples of four elements.
    unsafe {
        reg_m[..4].copy_from_slice(&a.get4_at::<K, SA, 0, HM>());
        if ROWS > 4 {
            reg_m[4..8].copy_from_slice(&a.get4_at::<K, SA, 1, HM>());
        }
        if ROWS > 8 {
            reg_m[8..12].copy_from_slice(&a.get4_at::<K, SA, 2, HM>());
            reg_m[12..16].copy_from_slice(&a.get4_at::<K, SA, 3, HM>());
        }
        reg_n[..4].copy_from_slice(&b.get4_at::<K, SB, 0, HN>());
        reg_n[4..].copy_from_slice(&b.get4_at::<K, SB, 1, HN>());
    }
    each!(I < ROWS => each!(J < 8 => acc[I][J] = fma(reg_m[I], reg_n[J], acc[I][J])));
}

/// Adds the sums of the upper half of 2 · `HALF` slices to those of the lower, through shared memory.
///
/// # Safety
/// All threads of the block call this; `memory` holds `HALF` slices' sums, 16-byte aligned, and nobody reads it any more.
#[inline(always)]
unsafe fn fold<const HALF: u32, const ROWS: usize>(
    acc: &mut [[f32; 8]; ROWS],
    memory: Shared<f32>,
    slice: u32,
    (tid, threads): (u32, u32),
) {
    let own = memory.at((slice % HALF * ROWS as u32 * 2 * threads + tid) * 4);
    // SAFETY: two fours for each of a thread's rows, those of neighbouring threads side by side; barriers lie between
    // the writes of one slice and the reads of the other, and behind them.
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

/// This thread's place in its warp, whose lanes are HM / 4 down and as many as that leaves across.
#[inline(always)]
fn lane_place<const HM: u32>(lane: u32) -> (u32, u32) {
    match HM / 4 {
        8 => ((lane >> 1) & 7, (lane & 1) | (lane >> 4) << 1),
        4 => ((lane & 1) | (lane >> 4) << 1, (lane >> 1) & 7),
        lanes_m => (lane % lanes_m, lane / lanes_m),
    }
}

/// The tile of c that block `index` makes: `GROUP` tile rows at a time, their columns one after the other.
#[inline(always)]
fn tile_place(index: u32, tiles_m: u32, tiles_n: u32) -> (u32, u32) {
    let per_group = (GROUP * tiles_n).max(1); // .max: divisions have a branch to a panic otherwise
    let first = index / per_group * GROUP;
    let rows = GROUP.min(tiles_m - first).max(1);
    let within = index % per_group;
    (first + within % rows, within / rows)
}

/// The same value, of which the compiler knows nothing.
#[gpu_only]
#[inline(always)]
fn opaque(value: u32) -> u32 {
    let same;
    // SAFETY: a comment.
    unsafe {
        core::arch::asm!("// {}", inout(reg32) value => same, options(pure, nomem, nostack, preserves_flags))
    };
    same
}

/// The tile of c at (`row`, `column`), from `k` = `k_count` rows of both operands, which `SLICES` groups of `THREADS`
/// threads share: of every `BK · SLICES` rows, the group `slice` takes the `BK` from `BK · slice` on.
///
/// # Safety
/// As the kernels below; `shared` are `SLICES` times two buffers of a tile of each operand, and the loaders are at the
/// slice's first row.
#[inline(always)]
unsafe fn tile<
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
    let (warp, (lane_m, lane_n)) = (tid / 32, lane_place::<HM>(tid % 32));
    let warps_m = ((SA - PAD) / (ROWS as u32 / 4 * HM)).max(1);
    let thread_m = warp % warps_m * (ROWS as u32 / 4 * HM) + lane_m * 4;
    let thread_n = warp / warps_m * 2 * HN + lane_n * 4;
    let tile_a = shared.at(slice * 2 * BK * (SA + SB));
    let tile_b = tile_a.at(2 * BK * SA);
    let mut acc = [[0.0; 8]; ROWS];

    // The remainder of k comes first, so that all further tiles are full.
    let step = BK * SLICES;
    let first = if k_count.is_multiple_of(step) { step } else { k_count % step };
    let mut left = (k_count - first) / step;
    let (mut read_a, mut read_b) = (tile_a.at(thread_m), tile_b.at(thread_n));
    let (mut write_a, mut write_b) = (tile_a.at(load_a.place()), tile_b.at(load_b.place()));
    // From the buffer in use to the other one, and back.
    let (mut other_a, mut other_b) = (BK * SA, BK * SB);
    // SAFETY: the caller's operands hold `k_count` rows, of which `first + left · step` are visited. The barriers are
    // reached by all threads, as `left` is the same in all. A buffer is written only after the barrier behind its
    // last reads; the buffers hold the sums of half the slices, as every kernel checks.
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
            // `next` and this branch depend on the same number. If LLVM saw that, it would make the last round a copy of
            // its own and sink its multiplications into the branches of the write below: hundreds of registers.
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

        // write
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

/// The kernels of one tile size, and the table of their contracts: [nn, nt, tn][f32, f16, mixed].
macro_rules! tile_kernels {
    (
        $(#[$doc:meta])*
        $module:ident: BM = $bm:literal, BN = $bn:literal, ROWS = $rows:literal, LANES_M = $lanes_m:literal,
        SLICES = $slices:literal, MIN_BLOCKS = $min_blocks:literal;
        $([$($name:ident: $a:ident $b:ident, $A:ty, $B:ty, $C:ty;)*])*
    ) => {
        $(#[$doc])*
        pub mod $module {
            use super::*;

            /// Rows of c that a block makes.
            pub const BM: u32 = $bm;
            /// Columns of c that a block makes.
            pub const BN: u32 = $bn;
            /// Rows of c that a thread makes; of columns it makes eight.
            const ROWS: usize = $rows;
            /// Groups of threads that share the k of a tile.
            pub const SLICES: u32 = $slices;
            /// Threads of one of them.
            const GROUP_THREADS: u32 = BM * BN / (ROWS as u32 * 8);
            /// Threads of a block.
            pub const THREADS: u32 = GROUP_THREADS * SLICES;
            /// Blocks that fit a multiprocessor of sm_61.
            pub const MIN_BLOCKS: u32 = $min_blocks;
            const VECTORS_A: usize = (BM * BK / 4 / GROUP_THREADS) as usize;
            const VECTORS_B: usize = (BN * BK / 4 / GROUP_THREADS) as usize;
            const SHARED: u32 = shared_bytes(BM, BN, SLICES);
            const _: () = assert!(SLICES == 1 || SLICES / 2 * BM * BN * 4 <= SHARED);
            /// Half the width of a warp's part along m and n: 8 × 8 elements each for 32 lanes.
            const HM: u32 = $lanes_m * 4;
            const HN: u32 = 32 / $lanes_m * 4;

            /// [nn, nt, tn][f32, f16, mixed]. grid = [ceil(m / BM) · ceil(n / BN), splits, batch]
            pub const SPECS: &[[KernelSpec; 3]] = & [$([$(
                KernelSpec::new(stringify!($name), THREADS).min_blocks(MIN_BLOCKS).shared_bytes(SHARED),
            )*]),*];

            $($(
                /// # Safety
                /// `c`, `a`, `b` as [`Product`] says, in this kernel's layouts, 16-byte aligned (f16: 8-byte); `n`, the
                /// leading dimensions and batch strides are multiples of 4, and so are `k` where an operand runs
                /// along k and `m` where `a` runs along m; launched as [`SPECS`] says.
                #[kernel(launch_bounds(THREADS, MIN_BLOCKS))]
                pub unsafe fn $name(
                    c: *mut $C, a: *const $A, b: *const $B, partial: *mut f32,
                    m: u32, n: u32, k: u32, lda: u32, ldb: u32, ldc: u32,
                    stride_a: u32, stride_b: u32, stride_c: u32, k_chunk: u32, alpha: f32, beta: f32,
                    bias: *const $C, addend: *const $C,
                ) {
                    let shared = shared::declare::<f32, { SHARED as usize / 4 }>();
                    let (slice, tid) = (thread::thread_idx_x() / GROUP_THREADS, thread::thread_idx_x() % GROUP_THREADS);
                    let p = Product::new(partial, [m, n, ldc, stride_c], [alpha, beta], bias, addend);
                    let (k_first, k_count) = crate::matmul::k_range(k, k_chunk);
                    let (tile_m, tile_n) = tile_place(thread::block_idx_x(), m.div_ceil(BM), n.div_ceil(BN));
                    let (row, column) = (tile_m * BM, tile_n * BN);
                    let batch = thread::block_idx_z();
                    let c = c.wrapping_add((batch * stride_c) as usize);
                    let a = a.wrapping_add((batch * stride_a) as usize);
                    let b = b.wrapping_add((batch * stride_b) as usize);
                    type LoadA = loader!($a a $A, GROUP_THREADS, VECTORS_A);
                    type LoadB = loader!($b b $B, GROUP_THREADS, VECTORS_B);
                    let mut load_a = LoadA::new(a, lda, row, m, tid);
                    let mut load_b = LoadB::new(b, ldb, column, n, tid);
                    load_a.advance(k_first + slice * BK);
                    load_b.advance(k_first + slice * BK);
                    // SAFETY: this kernel's contract is the body's.
                    unsafe {
                        tile::<_, _, _, ROWS, SLICES, GROUP_THREADS, { BM + PAD }, { BN + PAD }, HM, HN, true>(
                            c, &p, (row, column), k_count, (load_a, load_b), shared,
                        );
                    }
                }
            )*)*

            /// This tile size.
            pub const FAMILY: Family = Family {
                name: stringify!($module), bm: BM, bn: BN, slices: SLICES, warps: THREADS / 32, resident: MIN_BLOCKS, specs: SPECS,
            };

            /// All kernels of this tile size.
            pub const KERNELS: &[KernelSpec] = SPECS.as_flattened();
        }
    };
}

tile_kernels! {
    /// 128 × 128, 8 × 8 a thread: 16 warps on a multiprocessor.
    tile128: BM = 128, BN = 128, ROWS = 8, LANES_M = 8, SLICES = 1, MIN_BLOCKS = 2;
    [
        matmul_tile128_nn_f32: n n, f32, f32, f32;
        matmul_tile128_nn_f16: n n, F16, F16, F16;
        matmul_tile128_nn_mixed: n n, f32, F16, f32;
    ]
    [
        matmul_tile128_nt_f32: n t, f32, f32, f32;
        matmul_tile128_nt_f16: n t, F16, F16, F16;
        matmul_tile128_nt_mixed: n t, f32, F16, f32;
    ]
    [
        matmul_tile128_tn_f32: t n, f32, f32, f32;
        matmul_tile128_tn_f16: t n, F16, F16, F16;
        matmul_tile128_tn_mixed: t n, f32, F16, f32;
    ]
}

tile_kernels! {
    /// 128 × 128, 16 × 8 a thread: six shared loads for 128 multiply-adds instead of eight, but 8 warps.
    wide128: BM = 128, BN = 128, ROWS = 16, LANES_M = 8, SLICES = 1, MIN_BLOCKS = 2;
    [
        matmul_wide128_nn_f32: n n, f32, f32, f32;
        matmul_wide128_nn_f16: n n, F16, F16, F16;
        matmul_wide128_nn_mixed: n n, f32, F16, f32;
    ]
    [
        matmul_wide128_nt_f32: n t, f32, f32, f32;
        matmul_wide128_nt_f16: n t, F16, F16, F16;
        matmul_wide128_nt_mixed: n t, f32, F16, f32;
    ]
}

tile_kernels! {
    /// 64 × 128, 8 × 8 a thread: 16 warps.
    tile64x128: BM = 64, BN = 128, ROWS = 8, LANES_M = 8, SLICES = 1, MIN_BLOCKS = 4;
    [
        matmul_tile64x128_nn_f32: n n, f32, f32, f32;
        matmul_tile64x128_nn_f16: n n, F16, F16, F16;
        matmul_tile64x128_nn_mixed: n n, f32, F16, f32;
    ]
    [
        matmul_tile64x128_nt_f32: n t, f32, f32, f32;
        matmul_tile64x128_nt_f16: n t, F16, F16, F16;
        matmul_tile64x128_nt_mixed: n t, f32, F16, f32;
    ]
}

tile_kernels! {
    /// 64 × 64, 8 × 8 a thread, in two slices: 12 warps.
    tile64: BM = 64, BN = 64, ROWS = 8, LANES_M = 8, SLICES = 2, MIN_BLOCKS = 3;
    [
        matmul_tile64_nn_f32: n n, f32, f32, f32;
        matmul_tile64_nn_f16: n n, F16, F16, F16;
        matmul_tile64_nn_mixed: n n, f32, F16, f32;
    ]
    [
        matmul_tile64_nt_f32: n t, f32, f32, f32;
        matmul_tile64_nt_f16: n t, F16, F16, F16;
        matmul_tile64_nt_mixed: n t, f32, F16, f32;
    ]
    [
        matmul_tile64_tn_f32: t n, f32, f32, f32;
        matmul_tile64_tn_f16: t n, F16, F16, F16;
        matmul_tile64_tn_mixed: t n, f32, F16, f32;
    ]
}

tile_kernels! {
    /// 32 × 64, 4 × 8 a thread, in four slices: 16 warps.
    tile32: BM = 32, BN = 64, ROWS = 4, LANES_M = 8, SLICES = 4, MIN_BLOCKS = 2;
    [
        matmul_tile32_nn_f32: n n, f32, f32, f32;
        matmul_tile32_nn_f16: n n, F16, F16, F16;
        matmul_tile32_nn_mixed: n n, f32, F16, f32;
    ]
    [
        matmul_tile32_nt_f32: n t, f32, f32, f32;
        matmul_tile32_nt_f16: n t, F16, F16, F16;
        matmul_tile32_nt_mixed: n t, f32, F16, f32;
    ]
    [
        matmul_tile32_tn_f32: t n, f32, f32, f32;
        matmul_tile32_tn_f16: t n, F16, F16, F16;
        matmul_tile32_tn_mixed: t n, f32, F16, f32;
    ]
}

/// All tile sizes.
pub const FAMILIES: &[Family] =
    &[tile128::FAMILY, wide128::FAMILY, tile64x128::FAMILY, tile64::FAMILY, tile32::FAMILY];

/// The kernels for any strides: 64 × 64.
pub mod strided {
    use super::*;

    /// Rows of c that a block makes.
    pub const BM: u32 = 64;
    /// Columns of c that a block makes.
    pub const BN: u32 = 64;
    const THREADS: u32 = BM * BN / 64;
    const ELEMENTS: usize = (BM * BK / THREADS) as usize;
    const SHARED: u32 = shared_bytes(BM, BN, 1);

    /// [f32, f16, mixed]. grid = [ceil(m / BM) · ceil(n / BN), splits, batch]
    pub const SPECS: [KernelSpec; 3] = [
        KernelSpec::new("matmul_strided_f32", THREADS).shared_bytes(SHARED),
        KernelSpec::new("matmul_strided_f16", THREADS).shared_bytes(SHARED),
        KernelSpec::new("matmul_strided_mixed", THREADS).shared_bytes(SHARED),
    ];

    /// All kernels for any strides.
    pub const KERNELS: &[KernelSpec] = &SPECS;

    macro_rules! kernels {
        ($($name:ident: $A:ty, $B:ty, $C:ty;)*) => {$(
            /// # Safety
            /// `c`, `a`, `b` as [`Product`] says, with any strides (`row_a` between the rows of a, `col_a` between its
            /// columns, and so on); launched as [`SPECS`] says.
            #[kernel(launch_bounds(THREADS))]
            pub unsafe fn $name(
                c: *mut $C, a: *const $A, b: *const $B, partial: *mut f32,
                m: u32, n: u32, k: u32, row_a: u32, col_a: u32, row_b: u32, col_b: u32, ldc: u32,
                stride_a: u32, stride_b: u32, stride_c: u32, k_chunk: u32, alpha: f32, beta: f32,
                bias: *const $C, addend: *const $C,
            ) {
                let shared = shared::declare::<f32, { SHARED as usize / 4 }>();
                let tid = thread::thread_idx_x();
                let p = Product::new(partial, [m, n, ldc, stride_c], [alpha, beta], bias, addend);
                let (k_first, k_count) = crate::matmul::k_range(k, k_chunk);
                let (tile_m, tile_n) = tile_place(thread::block_idx_x(), m.div_ceil(BM), n.div_ceil(BN));
                let (row, column) = (tile_m * BM, tile_n * BN);
                let batch = thread::block_idx_z();
                let c = c.wrapping_add((batch * stride_c) as usize);
                let a = a.wrapping_add((batch * stride_a) as usize);
                let b = b.wrapping_add((batch * stride_b) as usize);
                let mut load_a = Strided::<$A, { BM + PAD }, THREADS, ELEMENTS>::new(a, col_a, row_a, row, m, tid);
                let mut load_b = Strided::<$B, { BN + PAD }, THREADS, ELEMENTS>::new(b, row_b, col_b, column, n, tid);
                load_a.advance(k_first);
                load_b.advance(k_first);
                // SAFETY: this kernel's contract is the body's.
                unsafe {
                    tile::<_, _, _, 8, 1, THREADS, { BM + PAD }, { BN + PAD }, 32, 16, false>(
                        c, &p, (row, column), k_count, (load_a, load_b), shared,
                    );
                }
            }
        )*};
    }

    kernels! {
        matmul_strided_f32: f32, f32, f32;
        matmul_strided_f16: F16, F16, F16;
        matmul_strided_mixed: f32, F16, f32;
    }
}
