//! y = act(x·wᵀ + (x·aᵀ)·bᵀ + bias) + residual, or with norm(x) in place of x: a matrix beside a low-rank change (Hu et al. 2021, "LoRA"),
//! for one row of x.
//! y: [n] f32, w: [n, k], a: [rank, cols] f32, b: [n, rank] f32.
//!
//! Idea: the two small products take as long as the large one if they are launches of their own. Here the first blocks, the helpers,
//! compute x·aᵀ and publish each element. The others compute x·wᵀ as [`vector`] does, and wait for the elements
//! only before they write.
//!
//! An element is published in a word that is zero before: zero says that it is not there yet, and a sum of 0 is published as −0. So
//! a word is its own flag, and no fence is needed. Each block reads a word once, by one thread: read by each warp they are a queue
//! in the L2. A warp that has waited long computes what is missing itself, in the same order: the launch ends in whatever order its
//! blocks begin. The last block to have read the words zeroes them for the next launch.
//!
//! | kernel         | x·aᵀ                                     | x·wᵀ             |
//! |----------------|------------------------------------------|------------------|
//! | quant_lora_‹f› | four warps a row, in four parts of cols  | as quant_vector1 |
//! | quant_lora_normed_‹f› | the same, times the norm's factor  | as quant_normed1 |
//! | quant_lora_gated_‹f› | the same                            | as quant_gated1 |

use super::FORMATS;
use super::epilogue::Epilogue;
use super::vector::one::{Beside, ROWS1, Row1, SHARED1, SHARED1_NORM, normed_shuffles1, shuffles1, vector1};
use super::vector::prologue::{Declared, THREADS1, WARPS1};
use super::weights::{Matrix, Weights};
use crate::activate::IDENTITY;
use crate::device::math::{fma, rsqrt};
use crate::device::unroll::unroll;
use crate::device::{Element, Shared, opaque, prefetch, read_thread_idx_x, shared};
use core::ptr::null;
use core::sync::atomic::{AtomicU32, Ordering};
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;
use cuda_std::warp::{FULL_MASK, warp_vote_ballot};
use cuda_std::{KernelInfo, KernelSpec};

/// Warps that compute a row of x·aᵀ together.
const PARTS: u32 = 4;
/// Rows of a for each helper.
const ROWS: u32 = WARPS1 / PARTS;
/// Reads of a word before a warp computes the element itself, each of at least half a microsecond.
const PATIENCE: u32 = 4096;
/// The largest rank: a block has a thread for each.
pub const MAX_RANK: u32 = 512;

/// The parameters: y = act(x·wᵀ + (x·aᵀ)·bᵀ + bias) + residual; or silu(gate)·up + residual, where the sum is n gates, then n ups.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Lora {
    /// [n], disjoint from all else
    pub y: *mut f32,
    /// [cols], 16-byte aligned
    pub x: *const f32,
    /// As [`Vector`](super::vector::one::Vector) has it; `quant_lora` does not use it.
    pub norm: *const f32,
    /// [n, k] quants, of gates and ups [2 · n, k]
    pub w: *const u8,
    /// Of w.
    pub w_scales: *const u8,
    /// [rank, cols], 16-byte aligned
    pub a: *const f32,
    /// [n, rank], of gates and ups [2 · n, rank]
    pub b: *const f32,
    /// [1 + rank], zeros when the launch begins and when it ends: blocks that have read x·aᵀ or computed it, and x·aᵀ. Used by nothing
    /// else meanwhile.
    pub words: *mut u32,
    /// [n] or null; null for gates and ups
    pub bias: *const f32,
    /// [n] or null
    pub residual: *const f32,
    pub n: u32,
    pub k: u32,
    /// A multiple of 4, at most k.
    pub cols: u32,
    /// From 1 to [`MAX_RANK`].
    pub rank: u32,
    /// The blocks that compute x·aᵀ: [`helpers`]. With fewer, warps wait in vain and compute what is missing.
    pub helpers: u32,
    /// The activation, one of [`activate`](crate::activate)'s numbers; not used for gates and ups.
    pub activation: u32,
    /// Of the norm.
    pub eps: f32,
}

/// The blocks that compute x·aᵀ.
pub fn helpers(rank: u32) -> u32 {
    rank.div_ceil(ROWS)
}

/// The operands of the low-rank change.
#[derive(Clone, Copy)]
struct LowRank<const NORM: bool> {
    x: *const f32,
    /// Null without a norm.
    norm: *const f32,
    eps: f32,
    a: *const f32,
    b: *const f32,
    /// [rank]
    low: *mut u32,
    /// [`MAX_RANK`] elements, for those of `low` that a block has read.
    elements: Shared<f32>,
    cols: u32,
    rank: u32,
    helpers: u32,
}

/// A part of x·a[row] and, with a norm, of the sum of x's squares.
#[derive(Clone, Copy, Default)]
struct Sums {
    product: f32,
    squares: f32,
}

#[inlined]
impl<const NORM: bool> LowRank<NORM> {
    /// One of the [`PARTS`] parts of x·a[row]; the order of additions does not depend on `U`, the vectors in flight.
    ///
    /// # Safety
    /// All lanes of the warp call it together, with a row below the rank.
    unsafe fn part<const U: usize>(self, row: u32, part: u32) -> Sums {
        // SAFETY: the row exists, so it is inside a.
        let a = unsafe { self.a.add(row as usize * self.cols as usize) };
        let (mut sums, mut squares) = ([0.0f32; 4], [0.0f32; 4]);
        let mut column = (part * 32 + warp::lane_id()) * 4;
        while column < self.cols {
            // load
            let (mut xs, mut rows, mut weights) = ([[0.0; 4]; U], [[0.0; 4]; U], [[1.0; 4]; U]);
            unroll!(I < 4 => if I < U {
                let at = column + I as u32 * (128 * PARTS);
                if at < self.cols {
                    // SAFETY: four columns from `at` on are below cols, a multiple of 4; rows are aligned to 16 bytes.
                    unsafe {
                        (xs[I], rows[I]) = (f32::load4(self.x.add(at as usize)), f32::load4(a.add(at as usize)));
                        if NORM && !self.norm.is_null() {
                            weights[I] = f32::load4(self.norm.add(at as usize));
                        }
                    }
                }
            });
            // compute
            unroll!(I < 4 => if I < U {
                unroll!(J < 4 => {
                    if NORM {
                        squares[J] = fma(xs[I][J], xs[I][J], squares[J]);
                        sums[J] = fma(xs[I][J] * weights[I][J], rows[I][J], sums[J]);
                    } else {
                        sums[J] = fma(xs[I][J], rows[I][J], sums[J]);
                    }
                });
            });
            column += U as u32 * 128 * PARTS;
        }
        let lane = |x: [f32; 4]| (x[0] + x[1]) + (x[2] + x[3]);
        // SAFETY: all lanes are here: this function's contract.
        unsafe {
            let product = Sum.over::<32>(lane(sums));
            Sums { product, squares: if NORM { Sum.over::<32>(lane(squares)) } else { 0.0 } }
        }
    }

    /// x·a[row], or norm(x)·a[row], from the sums of its parts.
    fn element(self, Sums { product, squares }: Sums) -> f32 {
        match NORM && !self.norm.is_null() {
            true => product * rsqrt(squares / self.cols as f32 + self.eps),
            false => product,
        }
    }

    /// The word that publishes a sum: not zero.
    fn word(sum: f32) -> u32 {
        if sum.to_bits() == 0 { (-0.0f32).to_bits() } else { sum.to_bits() }
    }

    /// Publishes this helper's rows of x·aᵀ.
    ///
    /// # Safety
    /// All threads of a helper call it together.
    unsafe fn help(self) {
        let parts = shared::declare::<f32, { WARPS1 as usize }>();
        let squares = NORM.then(shared::declare::<f32, { WARPS1 as usize }>);
        let (tid, first) = (thread::thread_idx_x(), thread::block_idx_x() * ROWS);
        let (row, part) = (first + tid / 32 / PARTS, tid / 32 % PARTS);
        // SAFETY: whole warps have a row, and each warp its own part in shared memory, which is read after the barrier.
        unsafe {
            if row < self.rank {
                let sums = if NORM { self.part::<2>(row, part) } else { self.part::<4>(row, part) };
                if warp::lane_id() == 0 {
                    parts.set(tid / 32, sums.product);
                    if let Some(squares) = squares {
                        squares.set(tid / 32, sums.squares);
                    }
                }
            }
            sync_threads();
            let row = first + tid;
            if tid < ROWS && row < self.rank {
                let mut sums = Sums::default();
                unroll!(P < 4 => sums.product += parts.get(tid * PARTS + P as u32));
                if let Some(squares) = squares {
                    unroll!(P < 4 => sums.squares += squares.get(tid * PARTS + P as u32));
                }
                let word = Self::word(self.element(sums));
                AtomicU32::from_ptr(self.low.add(row as usize)).store(word, Ordering::Relaxed);
            }
        }
    }

    /// Elements `from` + lane of x·aᵀ, zeros from the rank on.
    ///
    /// # Safety
    /// All lanes of the warp call it together.
    unsafe fn wait(self, from: u32, lane: u32) -> f32 {
        let exists = from + lane < self.rank;
        let mut word = if exists { 0 } else { 1 };
        let mut reads = 0;
        // SAFETY: words below the rank exist, and are accessed by atomics only while products are computed. What decides the loops is a
        // vote of all lanes, so all are at the votes and at the shuffles of `part`.
        unsafe {
            loop {
                if exists {
                    word = AtomicU32::from_ptr(self.low.add((from + lane) as usize)).load(Ordering::Relaxed);
                }
                let mut missing = warp_vote_ballot(FULL_MASK, word == 0);
                if missing == 0 {
                    break;
                }
                reads += 1;
                if reads < PATIENCE {
                    continue;
                }
                while missing != 0 {
                    let other = missing.trailing_zeros();
                    let mut sums = Sums::default();
                    let mut part = 0;
                    while part < opaque(PARTS) {
                        let more = self.part::<1>(from + other, part);
                        sums.product += more.product;
                        sums.squares += more.squares;
                        part += 1;
                    }
                    if lane == other {
                        word = Self::word(self.element(sums));
                    }
                    missing &= missing - 1;
                }
                break;
            }
        }
        if exists { f32::from_bits(word) } else { 0.0 }
    }
}

impl<const NORM: bool> Beside for LowRank<NORM> {
    const ANY: bool = true;

    #[inline(always)]
    fn helpers(self) -> u32 {
        self.helpers
    }

    #[inline(always)]
    fn prefetch(self, rows: [u32; ROWS1 as usize]) {
        // a sector for each lane, half of them for each row: of larger ranks than 128 a part
        const SECTOR: u32 = 8;
        let lane = warp::lane_id();
        let (row, column) = (if lane < 16 { rows[0] } else { rows[1] }, lane % 16 * SECTOR);
        if column < self.rank {
            prefetch(self.b.wrapping_add((row * self.rank + column) as usize));
        }
    }

    #[inline(always)]
    unsafe fn sums(self, rows: [u32; ROWS1 as usize], is_first: bool) -> [f32; ROWS1 as usize] {
        let lane = opaque(warp::lane_id());
        if is_first {
            let tid = read_thread_idx_x();
            // SAFETY: whole warps wait, and each thread below the rank, which is at most a block's threads, sets its own element. All
            // threads are at the barrier.
            unsafe {
                if tid - lane < self.rank {
                    let element = self.wait(tid - lane, lane);
                    self.elements.set(tid, element);
                }
                sync_threads();
            }
        }
        let mut sums = [0.0f32; ROWS1 as usize];
        let mut from = 0;
        while from < self.rank {
            let column = from + lane;
            if column < self.rank {
                unroll!(J < 2 => {
                    // SAFETY: b has the row, as w does, the column is below the rank, and the block has its element since the first call.
                    sums[J] = unsafe {
                        let b = f32::load(self.b.add(rows[J] as usize * self.rank as usize + column as usize));
                        fma(self.elements.get(column), b, sums[J])
                    };
                });
            }
            from += 32;
        }
        // SAFETY: all lanes are here: this function's contract.
        unroll!(J < 2 => sums[J] = unsafe { Sum.over::<32>(sums[J]) });
        sums
    }

    #[inline(always)]
    unsafe fn arrive(self) -> u32 {
        if thread::thread_idx_x() != 0 {
            return 0;
        }
        // SAFETY: the word before the elements counts the blocks: the parameters' contract. All accesses are atomic.
        unsafe { AtomicU32::from_ptr(self.low.sub(1)).fetch_add(1, Ordering::Relaxed) }
    }

    /// Zeroes the words if this block was the last to arrive. No fence is needed: each block has seen all elements, and so the helpers'
    /// stores are done before the last block's.
    #[inline(always)]
    unsafe fn finish(self, arrived: u32) {
        if thread::thread_idx_x() != 0 || arrived != thread::grid_dim_x() - 1 {
            return;
        }
        let mut word = 0;
        while word <= self.rank {
            // SAFETY: after the last block has arrived nobody reads the words: the parameters' contract. All accesses are atomic.
            unsafe { AtomicU32::from_ptr(self.low.sub(1).add(word as usize)).store(0, Ordering::Relaxed) };
            word += 1;
        }
    }
}

/// The kernels' body.
///
/// # Safety
/// As theirs.
#[inline(always)]
unsafe fn lora<W: Weights, const U: usize, const X: usize, const NORM: bool, const GATED: bool>(p: Lora) {
    let Lora { x, norm, eps, a, b, cols, rank, helpers, .. } = p;
    // SAFETY: this function's contract. All threads of a block take the same branch.
    unsafe {
        let elements = shared::declare::<f32, { MAX_RANK as usize }>();
        let change =
            LowRank::<NORM> { x, norm, eps, a, b, low: p.words.add(1), elements, cols, rank, helpers };
        if thread::block_idx_x() < helpers {
            change.help();
            sync_threads();
            change.finish(change.arrive());
        } else {
            let (bias, activation) = if GATED { (null(), IDENTITY) } else { (p.bias, p.activation) };
            let epilogue = Epilogue { y: p.y, bias, residual: p.residual, n: p.n, activation };
            let w = Matrix { quants: p.w, scales: p.w_scales, k: p.k };
            let x = if NORM { Row1::normed(x, cols, norm, eps) } else { Row1::new(x, 0, cols) };
            vector1::<W, _, U, X, false, NORM, GATED>(epilogue, x, w, 0, change, Declared);
        }
    }
}

macro_rules! loras {
    ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
        /// By format.
        mod kernels {
            $(pub mod $file {
                use super::super::*;
                use crate::quant::formats::$file::$format;

                /// Registers do not suffice for more.
                const EARLY: usize = if $format::EARLY > 0 { $format::EARLY - 1 } else { 0 };
                /// Those of quant_vector1, and 5 for each sum.
                const SHUFFLES: u32 = shuffles1(EARLY) + 5 * (2 + ROWS1);
                /// Those of quant_normed1, and 5 for each sum, of x·aᵀ and of squares.
                const SHUFFLES_NORM: u32 = normed_shuffles1(EARLY) + 5 * (4 + ROWS1);

                /// grid = the helpers, then any number of blocks, see [`blocks1`](crate::quant::vector::one::blocks1).
                ///
                /// # Safety
                /// [`Lora`] constrains the pointers, which are valid on the launching stream; n, k > 0.
                #[kernel(
                    name = concat!("quant_lora_", $name),
                    block = THREADS1, min_blocks = 2, shared_bytes = SHARED1 + 4 * (MAX_RANK + WARPS1), shuffles = SHUFFLES
                )]
                pub unsafe fn plain(p: Lora) {
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { lora::<$format, { $format::LANE_UNITS }, EARLY, false, false>(p) }
                }

                /// As [`plain`], with a norm.
                ///
                /// # Safety
                /// As [`plain`].
                #[kernel(
                    name = concat!("quant_lora_normed_", $name),
                    block = THREADS1, min_blocks = 2, shared_bytes = SHARED1_NORM + 4 * (MAX_RANK + 2 * WARPS1), shuffles = SHUFFLES_NORM
                )]
                pub unsafe fn normed(p: Lora) {
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { lora::<$format, { $format::LANE_UNITS }, EARLY, true, false>(p) }
                }

                /// As [`plain`], of gates and ups: see [`gated_blocks1`](crate::quant::vector::one::gated_blocks1).
                ///
                /// # Safety
                /// As [`plain`].
                #[kernel(
                    name = concat!("quant_lora_gated_", $name),
                    block = THREADS1, min_blocks = 2, shared_bytes = SHARED1_NORM + 4 * (MAX_RANK + 2 * WARPS1), shuffles = SHUFFLES_NORM
                )]
                pub unsafe fn gated(p: Lora) {
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { lora::<$format, { $format::LANE_UNITS }, EARLY, true, true>(p) }
                }
            })*
        }

        /// By format. grid = [`helpers`] and any number of blocks
        pub const LORA: [KernelSpec<Lora>; FORMATS] = [$(kernels::$file::plain),*];
        /// The same with a norm.
        pub const LORA_NORMED: [KernelSpec<Lora>; FORMATS] = [$(kernels::$file::normed),*];
        /// The same of gates and ups, with a norm or without.
        pub const LORA_GATED: [KernelSpec<Lora>; FORMATS] = [$(kernels::$file::gated),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$(
            kernels::$file::plain.info(),
            kernels::$file::normed.info(),
            kernels::$file::gated.info(),
        )*];
    };
}

crate::for_each_format!(loras);
