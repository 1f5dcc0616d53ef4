//! c = alpha·a·b + beta·c by register tiles.   c: [m, n], a: [m, k], b: [k, n], each with a leading dimension.
//!
//! Idea: a block makes a BM × BN tile of c, a thread 8 × 8 of it in registers, from BK rows of a and b at a time in
//! shared memory. Shared memory is double-buffered and the next tile is on its way to registers while this one is
//! multiplied. 8 × 8 is the smallest register tile whose 16-byte shared loads can feed the FMA units.
//! Source: Volkov & Demmel 2008, "Benchmarking GPUs to tune dense linear algebra"; the lanes' order within a warp is
//! that of Gray's maxas SGEMM, where every 16-byte shared load is a broadcast without conflicts.
//!
//! | kernel                     | tile      | threads | when                                       |
//! |----------------------------|-----------|---------|--------------------------------------------|
//! | matmul_tile128_‹ll›_‹t›    | 128 × 128 | 256     | it gives every multiprocessor a block      |
//! | matmul_tile64_‹ll›_‹t›     | 64 × 64   | 64      | smaller products                           |
//! | matmul_strided_‹t›         | 64 × 64   | 64      | any strides and alignment, scalar loads    |
//!
//! ‹ll› is nn, nt (b is the transpose of a row-major [n, k]) or tn (a is the transpose of a row-major [k, m]);
//! ‹t› is f32, f16, or mixed (a f32, b f16, c f32).

use super::{Product, write};
use crate::device::math::fma;
use crate::device::{Element, F16, Shared, shared};
use crate::float16::Float16;
use crate::spec::KernelSpec;
use cuda_std::gpu_only;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

/// Rows of a and b in shared memory at a time.
pub const BK: u32 = 8;
/// Floats between the rows of a tile in shared memory beyond its width: with 4, the transposing stores of a warp go
/// to 32 different banks and every row begins at a multiple of 16 bytes.
const PAD: u32 = 4;
/// Tile rows that run together through the tile columns, so that the blocks at work share rows and columns in L2.
const GROUP: u32 = 8;

/// Bytes of both buffers of both tiles.
const fn shared_bytes(bm: u32, bn: u32) -> u32 {
    2 * BK * (bm + PAD + bn + PAD) * 4
}

/// One operand's way from global memory into a tile [BK, STRIDE] of shared memory.
trait Load: Copy {
    /// What is on its way, in registers.
    type Stage: Copy;

    /// Loads the next tile, of which only the first `valid` of `BK` rows exist; the rest is zero.
    ///
    /// # Safety
    /// Those rows lie in the operand.
    unsafe fn load_first(&self, valid: u32) -> Self::Stage;

    /// Loads the next tile, all of it.
    ///
    /// # Safety
    /// As [`load_first`](Self::load_first).
    unsafe fn load(&self) -> Self::Stage;

    /// Goes `rows` rows on.
    fn advance(&mut self, rows: u32);

    /// The element of a tile that this thread stores first.
    fn place(&self) -> u32;

    /// Puts what was loaded into a tile.
    ///
    /// # Safety
    /// `to` is [`place`](Self::place) in a tile of `BK` rows that are `STRIDE` apart, and nobody reads it.
    unsafe fn store(&self, to: Shared<f32>, stage: Self::Stage);
}

/// For an operand whose neighbours in memory are neighbours in k: a thread takes four k of one column and turns them
/// into a column of the tile.
#[derive(Clone, Copy)]
struct AlongK<T, const STRIDE: u32, const THREADS: u32, const VECTORS: usize> {
    from: [*const T; VECTORS],
    tid: u32,
}

/// For an operand whose neighbours in memory are neighbours in the tile's width: a thread takes four of one row.
#[derive(Clone, Copy)]
struct AlongWidth<T, const STRIDE: u32, const THREADS: u32, const VECTORS: usize> {
    from: *const T,
    tid: u32,
    row_stride: u32,
}

impl<T: Element, const STRIDE: u32, const THREADS: u32, const VECTORS: usize>
    AlongK<T, STRIDE, THREADS, VECTORS>
{
    /// Four k at a time.
    const QUADS: u32 = BK / 4;

    /// Columns `first..` of the operand at `base`, whose columns are `ld` apart. Columns from `extent` on are read as
    /// its last, and not used.
    #[inline(always)]
    fn new(base: *const T, ld: u32, first: u32, extent: u32, tid: u32) -> Self {
        let mut from = [base; VECTORS];
        let mut v = 0;
        while v < VECTORS {
            let index = tid + v as u32 * THREADS;
            let column = (first + index / Self::QUADS).min(extent - 1);
            from[v] = base.wrapping_add((column * ld + index % Self::QUADS * 4) as usize);
            v += 1;
        }
        Self { from, tid }
    }
}

impl<T: Element, const STRIDE: u32, const THREADS: u32, const VECTORS: usize> Load
    for AlongK<T, STRIDE, THREADS, VECTORS>
{
    type Stage = [T::Packed4; VECTORS];

    #[inline(always)]
    unsafe fn load_first(&self, valid: u32) -> Self::Stage {
        let mut stage = [T::zero4(); VECTORS];
        let mut v = 0;
        while v < VECTORS {
            if (self.tid + v as u32 * THREADS) % Self::QUADS * 4 < valid {
                // SAFETY: k is a multiple of 4, so four rows exist where one does; aligned as the kernel demands.
                stage[v] = unsafe { T::load4_packed(self.from[v]) };
            }
            v += 1;
        }
        stage
    }

    #[inline(always)]
    unsafe fn load(&self) -> Self::Stage {
        let mut stage = [T::zero4(); VECTORS];
        let mut v = 0;
        while v < VECTORS {
            // SAFETY: the caller's tile exists in full; aligned as the kernel demands.
            stage[v] = unsafe { T::load4_packed(self.from[v]) };
            v += 1;
        }
        stage
    }

    #[inline(always)]
    fn advance(&mut self, rows: u32) {
        let mut v = 0;
        while v < VECTORS {
            self.from[v] = self.from[v].wrapping_add(rows as usize);
            v += 1;
        }
    }

    #[inline(always)]
    fn place(&self) -> u32 {
        self.tid % Self::QUADS * 4 * STRIDE + self.tid / Self::QUADS
    }

    #[inline(always)]
    unsafe fn store(&self, to: Shared<f32>, stage: Self::Stage) {
        let mut v = 0;
        while v < VECTORS {
            let to = to.at(v as u32 * (THREADS / Self::QUADS));
            let [x, y, z, w] = T::unpack4(stage[v]);
            // SAFETY: four rows of one column, inside the tile.
            unsafe {
                to.set_at::<0, STRIDE>(x);
                to.set_at::<1, STRIDE>(y);
                to.set_at::<2, STRIDE>(z);
                to.set_at::<3, STRIDE>(w);
            }
            v += 1;
        }
    }
}

impl<T: Element, const STRIDE: u32, const THREADS: u32, const VECTORS: usize>
    AlongWidth<T, STRIDE, THREADS, VECTORS>
{
    /// Four columns at a time.
    const QUADS: u32 = (STRIDE - PAD) / 4;

    /// Columns `first..` of the operand at `base`, whose rows are `ld` apart. Columns from `extent` on are read as
    /// its last four, and not used.
    #[inline(always)]
    fn new(base: *const T, ld: u32, first: u32, extent: u32, tid: u32) -> Self {
        let column = (first + tid % Self::QUADS * 4).min(extent - 4);
        Self { from: base.wrapping_add((tid / Self::QUADS * ld + column) as usize), tid, row_stride: ld }
    }

    /// This thread's `v`-th four.
    #[inline(always)]
    fn vector(&self, v: usize) -> *const T {
        let rows = v as u32 * (THREADS / Self::QUADS);
        self.from.wrapping_add((rows * self.row_stride) as usize)
    }
}

impl<T: Element, const STRIDE: u32, const THREADS: u32, const VECTORS: usize> Load
    for AlongWidth<T, STRIDE, THREADS, VECTORS>
{
    type Stage = [T::Packed4; VECTORS];

    #[inline(always)]
    unsafe fn load_first(&self, valid: u32) -> Self::Stage {
        let mut stage = [T::zero4(); VECTORS];
        let mut v = 0;
        while v < VECTORS {
            if (self.tid + v as u32 * THREADS) / Self::QUADS < valid {
                // SAFETY: the row exists; the width is a multiple of 4; aligned as the kernel demands.
                stage[v] = unsafe { T::load4_packed(self.vector(v)) };
            }
            v += 1;
        }
        stage
    }

    #[inline(always)]
    unsafe fn load(&self) -> Self::Stage {
        let mut stage = [T::zero4(); VECTORS];
        let mut v = 0;
        while v < VECTORS {
            // SAFETY: the caller's tile exists in full; aligned as the kernel demands.
            stage[v] = unsafe { T::load4_packed(self.vector(v)) };
            v += 1;
        }
        stage
    }

    #[inline(always)]
    fn advance(&mut self, rows: u32) {
        self.from = self.from.wrapping_add((rows * self.row_stride) as usize);
    }

    #[inline(always)]
    fn place(&self) -> u32 {
        self.tid / Self::QUADS * STRIDE + self.tid % Self::QUADS * 4
    }

    #[inline(always)]
    unsafe fn store(&self, to: Shared<f32>, stage: Self::Stage) {
        let mut v = 0;
        while v < VECTORS {
            // SAFETY: four columns of one row, inside the tile; the address is a multiple of 16 bytes.
            unsafe { to.set4(v as u32 * (THREADS / Self::QUADS) * STRIDE, T::unpack4(stage[v])) };
            v += 1;
        }
    }
}

/// For any strides: a thread takes single elements, its neighbours those that are nearest in memory.
#[derive(Clone, Copy)]
struct Strided<T, const STRIDE: u32, const THREADS: u32, const ELEMENTS: usize> {
    from: *const T,
    /// Elements between two of this thread's.
    step: u32,
    /// Elements between two rows.
    row_stride: u32,
    /// This thread's first element in the tile, and how far apart its elements are there.
    row: u32,
    column: u32,
    row_step: u32,
    column_step: u32,
    /// Columns that exist from the tile's first on.
    columns: u32,
}

impl<T: Element, const STRIDE: u32, const THREADS: u32, const ELEMENTS: usize>
    Strided<T, STRIDE, THREADS, ELEMENTS>
{
    const WIDTH: u32 = STRIDE - PAD;

    /// Columns `first..extent` of the operand at `base` with these strides between rows and columns.
    #[inline(always)]
    fn new(base: *const T, row_stride: u32, column_stride: u32, first: u32, extent: u32, tid: u32) -> Self {
        let (row, column, row_step, column_step) = if row_stride <= column_stride {
            (tid % BK, tid / BK, 0, THREADS / BK)
        } else {
            (tid / Self::WIDTH, tid % Self::WIDTH, THREADS / Self::WIDTH, 0)
        };
        Self {
            from: base.wrapping_add(
                (row * row_stride) as usize + ((first + column) as usize * column_stride as usize),
            ),
            step: row_step * row_stride + column_step * column_stride,
            row_stride,
            row,
            column,
            row_step,
            column_step,
            columns: extent - first,
        }
    }
}

impl<T: Element, const STRIDE: u32, const THREADS: u32, const ELEMENTS: usize> Load
    for Strided<T, STRIDE, THREADS, ELEMENTS>
{
    type Stage = [f32; ELEMENTS];

    #[inline(always)]
    unsafe fn load_first(&self, valid: u32) -> Self::Stage {
        let mut stage = [0.0; ELEMENTS];
        let mut e = 0;
        while e < ELEMENTS {
            let (row, column) =
                (self.row + e as u32 * self.row_step, self.column + e as u32 * self.column_step);
            if row < valid && column < self.columns {
                // SAFETY: row and column exist.
                stage[e] = unsafe { T::load(self.from.wrapping_add(e * self.step as usize)) };
            }
            e += 1;
        }
        stage
    }

    #[inline(always)]
    unsafe fn load(&self) -> Self::Stage {
        // SAFETY: the caller's tile exists in full.
        unsafe { self.load_first(BK) }
    }

    #[inline(always)]
    fn advance(&mut self, rows: u32) {
        self.from = self.from.wrapping_add(rows as usize * self.row_stride as usize);
    }

    #[inline(always)]
    fn place(&self) -> u32 {
        self.row * STRIDE + self.column
    }

    #[inline(always)]
    unsafe fn store(&self, to: Shared<f32>, stage: Self::Stage) {
        let step = self.row_step * STRIDE + self.column_step;
        let mut e = 0;
        while e < ELEMENTS {
            // SAFETY: THREADS · ELEMENTS = BK · WIDTH, so every element is inside the tile.
            unsafe { to.set(e as u32 * step, stage[e]) };
            e += 1;
        }
    }
}

/// A thread's part of c.
type Accumulators = [[f32; 8]; 8];

/// Repeats a statement for 0 to 7 as constants, so that arrays indexed by them are registers.
macro_rules! each_of_8 {
    ($i:ident => $body:expr) => {
        each_of_8!(@ $i => $body; 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident => $body:expr; $($value:literal)*) => {
        {$({
            const $i: usize = $value;
            $body
        })*}
    };
}

/// acc += outer product of row `K` of both tiles, whose rows are `SA` and `SB` apart. A thread's columns are four here
/// and four `HM` (in b: `HN`) further on.
///
/// # Safety
/// `a` and `b` are at this thread's first element in row 0, and a barrier lies behind the tiles' stores.
#[inline(always)]
unsafe fn multiply_row<const K: u32, const SA: u32, const SB: u32, const HM: u32, const HN: u32>(
    acc: &mut Accumulators,
    a: Shared<f32>,
    b: Shared<f32>,
) {
    // SAFETY: as the caller promises; all offsets are multiples of four elements.
    let (a0, a1, b0, b1) = unsafe {
        (a.get4_at::<K, SA, 0>(), a.get4_at::<K, SA, HM>(), b.get4_at::<K, SB, 0>(), b.get4_at::<K, SB, HN>())
    };
    let reg_m = [a0[0], a0[1], a0[2], a0[3], a1[0], a1[1], a1[2], a1[3]];
    let reg_n = [b0[0], b0[1], b0[2], b0[3], b1[0], b1[1], b1[2], b1[3]];
    each_of_8!(I => each_of_8!(J => acc[I][J] = fma(reg_m[I], reg_n[J], acc[I][J])));
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

/// The tile of c at (`row`, `column`), from `k` = `k_count` rows of both operands.
///
/// # Safety
/// As the kernels below; `tile_a` and `tile_b` have two buffers each.
#[inline(always)]
unsafe fn tile<
    LA: Load,
    LB: Load,
    C: Element,
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
    (tile_a, tile_b): (Shared<f32>, Shared<f32>),
) {
    // place tile
    let tid = thread::thread_idx_x();
    let (warp, (lane_m, lane_n)) = (tid / 32, lane_place::<HM>(tid % 32));
    let warps_m = (SA - PAD) / (2 * HM);
    let thread_m = warp % warps_m * 2 * HM + lane_m * 4;
    let thread_n = warp / warps_m * 2 * HN + lane_n * 4;
    let mut acc: Accumulators = [[0.0; 8]; 8];

    // The remainder of k comes first, so that all further tiles are full.
    let first = if k_count.is_multiple_of(BK) { BK } else { k_count % BK };
    let mut left = (k_count - first) / BK;
    let (mut read_a, mut read_b) = (tile_a.at(thread_m), tile_b.at(thread_n));
    let (mut write_a, mut write_b) = (tile_a.at(load_a.place()), tile_b.at(load_b.place()));
    // From the buffer in use to the other one, and back.
    let (mut other_a, mut other_b) = (BK * SA, BK * SB);
    // SAFETY: the caller's operands hold `k_count` rows, of which `first + left · BK` are visited. The barriers are
    // reached by all threads, as `left` is the same in all. A buffer is written only after the barrier behind its
    // last reads.
    unsafe {
        let mut next = (load_a.load_first(first), load_b.load_first(first));
        load_a.advance(first);
        load_b.advance(first);
        load_a.store(write_a, next.0);
        load_b.store(write_b, next.1);
        sync_threads();
        loop {
            // load
            if left > 0 {
                next = (load_a.load(), load_b.load());
                load_a.advance(BK);
                load_b.advance(BK);
            }
            // compute
            multiply_row::<0, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<1, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<2, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<3, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<4, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<5, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<6, SA, SB, HM, HN>(&mut acc, read_a, read_b);
            multiply_row::<7, SA, SB, HM, HN>(&mut acc, read_a, read_b);
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

        // write
        each_of_8!(I => {
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
        $module:ident [$columns:literal]: BM = $bm:literal, BN = $bn:literal, LANES_M = $lanes_m:literal, MIN_BLOCKS = $min_blocks:literal;
        $([$($name:ident: $a:ident $b:ident, $A:ty, $B:ty, $C:ty;)*])*
    ) => {
        $(#[$doc])*
        pub mod $module {
            use super::*;

            const COLUMNS: usize = $columns;
            /// Rows of c that a block makes.
            pub const BM: u32 = $bm;
            /// Columns of c that a block makes.
            pub const BN: u32 = $bn;
            const THREADS: u32 = BM * BN / 64;
            const VECTORS_A: usize = (BM * BK / 4 / THREADS) as usize;
            const VECTORS_B: usize = (BN * BK / 4 / THREADS) as usize;
            const SHARED: u32 = shared_bytes(BM, BN);
            /// Half the width of a warp's part along m and n: 8 × 8 elements each for 32 lanes.
            const HM: u32 = $lanes_m * 4;
            const HN: u32 = 32 / $lanes_m * 4;

            /// [nn, nt, tn][f32, f16, mixed], or [nt][E = 4, 8]. grid = [ceil(m / BM) · ceil(n / BN), splits, batch]
            pub const SPECS: &[[KernelSpec; COLUMNS]] = & [$([$(
                KernelSpec::new(stringify!($name), THREADS).min_blocks($min_blocks).shared_bytes(SHARED),
            )*]),*];

            $($(
                /// # Safety
                /// `c`, `a`, `b` as [`Product`] says, in this kernel's layouts, 16-byte aligned (f16: 8-byte); `n`, the
                /// leading dimensions and batch strides are multiples of 4, and so are `k` where an operand runs
                /// along k and `m` where `a` runs along m; launched as [`SPECS`] says.
                #[kernel(launch_bounds(THREADS, $min_blocks))]
                pub unsafe fn $name(
                    c: *mut $C, a: *const $A, b: *const $B, partial: *mut f32,
                    m: u32, n: u32, k: u32, lda: u32, ldb: u32, ldc: u32,
                    stride_a: u32, stride_b: u32, stride_c: u32, k_chunk: u32, alpha: f32, beta: f32,
                    bias: *const $C, addend: *const $C,
                ) {
                    let tile_a = shared::declare::<f32, { (2 * BK * (BM + PAD)) as usize }>();
                    let tile_b = shared::declare::<f32, { (2 * BK * (BN + PAD)) as usize }>();
                    let tid = thread::thread_idx_x();
                    let p = Product::new(partial, [m, n, ldc, stride_c], [alpha, beta], bias, addend);
                    let (k_first, k_count) = crate::matmul::k_range(k, k_chunk);
                    let (tile_m, tile_n) = tile_place(thread::block_idx_x(), m.div_ceil(BM), n.div_ceil(BN));
                    let (row, column) = (tile_m * BM, tile_n * BN);
                    let batch = thread::block_idx_z();
                    let c = c.wrapping_add((batch * stride_c) as usize);
                    let a = a.wrapping_add((batch * stride_a) as usize);
                    let b = b.wrapping_add((batch * stride_b) as usize);
                    type LoadA = loader!($a a $A, THREADS, VECTORS_A);
                    type LoadB = loader!($b b $B, THREADS, VECTORS_B);
                    let mut load_a = LoadA::new(a, lda, row, m, tid);
                    let mut load_b = LoadB::new(b, ldb, column, n, tid);
                    load_a.advance(k_first);
                    load_b.advance(k_first);
                    // SAFETY: this kernel's contract is the body's.
                    unsafe {
                        tile::<_, _, _, { BM + PAD }, { BN + PAD }, HM, HN, true>(
                            c, &p, (row, column), k_count, (load_a, load_b), (tile_a, tile_b),
                        );
                    }
                }
            )*)*

            /// All kernels of this tile size.
            pub const KERNELS: &[KernelSpec] = SPECS.as_flattened();
        }
    };
}

tile_kernels! {
    /// 128 × 128: two blocks of 256 threads on a multiprocessor.
    tile128 [3]: BM = 128, BN = 128, LANES_M = 8, MIN_BLOCKS = 2;
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
    /// 64 × 64: six blocks of 64 threads on a multiprocessor.
    tile64 [3]: BM = 64, BN = 64, LANES_M = 8, MIN_BLOCKS = 6;
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
    /// 32 × 64: a block is one warp. For products with up to 32 rows, so without tn.
    tile32 [3]: BM = 32, BN = 64, LANES_M = 4, MIN_BLOCKS = 12;
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
}

tile_kernels! {
    /// 64 × 64, a f32, b in a 16-bit format of 4 or 8 exponent bits, c f32: what loads it converts it. In bytes of PTX
    /// these are the cheapest that do products of any size.
    tile64_coded [2]: BM = 64, BN = 64, LANES_M = 8, MIN_BLOCKS = 6;
    [
        matmul_tile64_nt_e4: n t, f32, Float16<4>, f32;
        matmul_tile64_nt_e8: n t, f32, Float16<8>, f32;
    ]
}

/// The kernels for any strides: 64 × 64.
pub mod strided {
    use super::*;

    /// Rows of c that a block makes.
    pub const BM: u32 = 64;
    /// Columns of c that a block makes.
    pub const BN: u32 = 64;
    const THREADS: u32 = BM * BN / 64;
    const ELEMENTS: usize = (BM * BK / THREADS) as usize;
    const SHARED: u32 = shared_bytes(BM, BN);

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
                let tile_a = shared::declare::<f32, { (2 * BK * (BM + PAD)) as usize }>();
                let tile_b = shared::declare::<f32, { (2 * BK * (BN + PAD)) as usize }>();
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
                    tile::<_, _, _, { BM + PAD }, { BN + PAD }, 32, 16, false>(
                        c, &p, (row, column), k_count, (load_a, load_b), (tile_a, tile_b),
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
