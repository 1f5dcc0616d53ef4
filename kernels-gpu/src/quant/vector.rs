//! y = act(x·wᵀ + bias) + residual for up to 8 rows of x.   y: [m, n] f32, w: [n, k].
//!
//! Idea: bound by the memory that w lies in, so a warp reads R rows of w at a time, each lane U times 16 bytes of each,
//! all on their way before the first is used, and multiplies them with all rows of x. The lanes' sums are added at the
//! end. A single row of x comes as f32: each block quantises it into its shared memory, while its first loads of w are
//! on their way; that saves the launch of a kernel that does so. More rows come quantised, and from cache.
//!
//! | kernel                | rows of x        | rows of w per warp and loads of each per lane |
//! |-----------------------|------------------|-----------------------------------------------|
//! | quant_vector1_‹f›     | 1, f32           | 2 · 4 (8 bits), 4 · 2 (Q4_0), 2 · 2 (Q4_K)     |
//! | quant_vector2_‹f›     | 1, 2, quantised  | 4 · 1                                         |
//! | quant_vector4_‹f›     | 3, 4, quantised  | 2 · 1                                         |
//! | quant_vector8_‹f›     | 5 to 8, quantised | 2 · 1                                        |

use super::encode::{LANES, activations, four};
use super::epilogue::Epilogue;
use super::unroll::unroll;
use super::weights::{Activations, GlobalRow, I8, Matrix, Q4_0, Q4K, Q8_0, SharedRow, Weights, chunk};
use crate::device::{keep_order, reduce, shared};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

const WARPS: u32 = 4;
const THREADS: u32 = WARPS * 32;
/// Warps of a block that quantises x: more would share the work, fewer have more of it.
const WARPS1: u32 = 8;
const THREADS1: u32 = WARPS1 * 32;
/// Values of x that a block has quantised at a time.
const TILE: u32 = 8192;

/// The most rows of x.
pub const MAX_M: u32 = 8;

/// Rows of w per warp of [`VECTOR1`], by format.
const ROWS1: [u32; 4] = [2, 2, 4, 2];

const fn spec1(name: &'static str, format: usize) -> KernelSpec {
    // 3 and 3 where x is quantised, 5 for each sum
    KernelSpec::new(name, THREADS1).shared_bytes(TILE + TILE / 4).shuffles(6 + 5 * ROWS1[format])
}

/// By format: one row of x, in f32. grid = any number of blocks, see [`blocks1`].
pub const VECTOR1: [KernelSpec; 4] = [
    spec1("quant_vector1_i8", 0),
    spec1("quant_vector1_q8_0", 1),
    spec1("quant_vector1_q4_0", 2),
    spec1("quant_vector1_q4_k", 3),
];

/// Blocks of [`VECTOR1`] that make every column of y at once.
pub fn blocks1(format: usize, n: u32) -> u32 {
    n.div_ceil(WARPS1 * ROWS1[format])
}

/// Rows of x and rows of w per warp of the variants, in the order of [`VECTOR`].
const VARIANTS: [(u32, u32); 3] = [(2, 4), (4, 2), (8, 2)];

const fn spec(name: &'static str, variant: usize) -> KernelSpec {
    let (m, rows) = VARIANTS[variant];
    // left to itself, ptxas takes too few registers for eight rows of x and spills
    let blocks = if m == MAX_M { 3 } else { 0 };
    KernelSpec::new(name, THREADS).min_blocks(blocks).shuffles(5 * m * rows)
}

/// By variant (2, 4, 8 rows of x) and format. grid = [ceil(n / columns per block)], see [`select`].
pub const VECTOR: [[KernelSpec; 4]; 3] = [
    [
        spec("quant_vector2_i8", 0),
        spec("quant_vector2_q8_0", 0),
        spec("quant_vector2_q4_0", 0),
        spec("quant_vector2_q4_k", 0),
    ],
    [
        spec("quant_vector4_i8", 1),
        spec("quant_vector4_q8_0", 1),
        spec("quant_vector4_q4_0", 1),
        spec("quant_vector4_q4_k", 1),
    ],
    [
        spec("quant_vector8_i8", 2),
        spec("quant_vector8_q8_0", 2),
        spec("quant_vector8_q4_0", 2),
        spec("quant_vector8_q4_k", 2),
    ],
];

/// The variant of [`VECTOR`] for `m` rows of x (at most [`MAX_M`]), and how many columns of y its blocks make.
pub fn select(m: u32) -> (usize, u32) {
    let variant = VARIANTS.iter().position(|(rows, _)| m <= *rows).unwrap_or(VARIANTS.len() - 1);
    (variant, WARPS * VARIANTS[variant].1)
}

/// Chunks `at`, `at` + 32, … of R rows, as loaded.
#[derive(Clone, Copy)]
struct Stage<W: Weights, const R: usize, const U: usize> {
    words: [[[u32; 4]; U]; R],
    raw: [[W::Raw; U]; R],
}

impl<W: Weights, const R: usize, const U: usize> Stage<W, R, U> {
    /// Loads those of the chunks that are below `end`; rows beyond the last are the last.
    ///
    /// # Safety
    /// `w` has n > 0 rows of at least `end` chunks.
    #[inline(always)]
    unsafe fn load(w: Matrix, first: u32, n: u32, at: u32, end: u32) -> Self {
        let mut stage = Self { words: [[[0; 4]; U]; R], raw: [[W::Raw::default(); U]; R] };
        unroll!(V < 4 => if V < U && end > at + 32 * V as u32 {
            unroll!(J < 4 => if J < R {
                let row = (first + J as u32).min(n - 1);
                // SAFETY: the row is cut off at the last, the chunk is below the end.
                unsafe {
                    stage.words[J][V] = chunk::<W>(w, row, at + 32 * V as u32);
                    stage.raw[J][V] = W::raw(w, row, at + 32 * V as u32);
                }
            });
        });
        keep_order(); // the compiler would move each load to where it is used
        stage
    }

    /// acc += w · x for chunk `V` of the stage, which is chunk `at` of `x`.
    ///
    /// # Safety
    /// `x` has the chunk.
    #[inline(always)]
    unsafe fn multiply<const V: usize, A: Activations>(&self, acc: &mut [f32; R], x: A, at: u32) {
        // SAFETY: as the caller promises.
        let inputs = unsafe { W::inputs(x, at) };
        unroll!(J < 4 => if J < R {
            acc[J] = W::dot(self.words[J][V], W::scale(self.raw[J][V], at), &inputs, acc[J]);
        });
    }
}

/// Quantises values `from` to `to` of x, zeros beyond its `cols`, into shared memory.
///
/// # Safety
/// All threads of the block call it together, nobody reads `into`, which has room; x has `cols` values, aligned to 16
/// bytes.
#[inline(always)]
unsafe fn quantize(into: SharedRow, x: *const f32, cols: u32, from: u32, to: u32) {
    let mut word = thread::thread_idx_x();
    // SAFETY: whole warps go round, so all lanes are at the shuffles, and the words of a warp are inside the tile, as it
    // is a multiple of what a warp makes; the rest is the caller's promise.
    unsafe {
        while from + word / 32 * 128 < to {
            let (packed, scale) = activations(four(x, from + word * 4, cols));
            into.quants.set(word, packed);
            if word.is_multiple_of(LANES) {
                into.scales.set(word / LANES * 2, scale.scale.to_bits());
                into.scales.set(word / LANES * 2 + 1, scale.sum as u32);
            }
            word += THREADS1;
        }
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn vector1<W: Weights, const R: usize, const U: usize>(
    epilogue: Epilogue,
    x: *const f32,
    w: Matrix,
    cols: u32,
) {
    let row = SharedRow {
        quants: shared::declare::<u32, { (TILE / 4) as usize }>(),
        scales: shared::declare::<u32, { (TILE / 16) as usize }>(),
    };
    let (warp, lane) = (thread::thread_idx_x() / 32, warp::lane_id());
    let n = epilogue.n;
    let columns = WARPS1 * R as u32;
    let mut base = thread::block_idx_x() * columns;
    let mut quantized = false;
    while base < n {
        // place: this warp's rows of w; those beyond the last are the last, read again and not written
        let first = base + warp * R as u32;
        let mut acc = [0.0f32; R];
        let mut from = 0;
        // SAFETY: the loops' bounds are the block's, so all threads are at every barrier and shuffle. Rows of w are cut
        // off at the last and chunks at the tile's end; the tile of x is read behind a barrier.
        unsafe {
            while from < w.k {
                let to = (from + TILE).min(w.k);
                let (from_chunk, chunks) = (from / W::CHUNK, (to - from) / W::CHUNK);
                // load
                let mut stage = Stage::<W, R, U>::load(w, first, n, from_chunk + lane, from_chunk + chunks);
                if !quantized {
                    quantize(row, x, cols, from, to);
                    sync_threads();
                }
                // compute
                let mut at = 0;
                loop {
                    unroll!(V < 4 => if V < U && chunks > at + 32 * V as u32 + lane {
                        stage.multiply::<V, _>(&mut acc, row, at + 32 * V as u32 + lane);
                    });
                    at += 32 * U as u32;
                    if at >= chunks {
                        break;
                    }
                    stage = Stage::load(w, first, n, from_chunk + at + lane, from_chunk + chunks);
                }
                from = to;
                quantized = w.k <= TILE;
                if !quantized {
                    sync_threads();
                }
            }
            // write: lane r has element r
            let mut own = 0.0;
            unroll!(J < 4 => if J < R {
                let sum = reduce::warp(acc[J], 32, |a, b| a + b);
                own = if lane == J as u32 { sum } else { own };
            });
            let column = first + lane;
            if lane < R as u32 && column < n {
                epilogue.write(0, column, own * W::row_scale(w, column));
            }
        }
        base += thread::grid_dim_x() * columns;
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn vector<W: Weights, const M: usize, const R: usize>(
    epilogue: Epilogue,
    x: *const u8,
    x_scales: *const u8,
    w: Matrix,
    m: u32,
    x_k: u32,
) {
    // place: this warp's rows of w; those beyond the last are the last, read again and not written
    let n = epilogue.n;
    let first = (thread::block_idx_x() * WARPS + thread::thread_idx_x() / 32) * R as u32;
    if first >= n {
        return; // whole warps only, so the shuffles below have all lanes
    }
    let lane = warp::lane_id();
    let chunks = w.k / W::CHUNK;
    let mut acc = [[0.0f32; R]; M];
    // SAFETY: rows of x and w are cut off at the last, chunks at the row's end; rows of x are no shorter than those
    // of w. All lanes of the warp reach the shuffles.
    unsafe {
        let mut at = lane;
        while at < chunks {
            // load
            let stage = Stage::<W, R, 1>::load(w, first, n, at, chunks);
            // compute
            unroll!(I < 8 => if I < M {
                let row = (I as u32).min(m - 1) as usize * x_k as usize;
                let x = GlobalRow { quants: x.add(row), scales: x_scales.add(row / 4) };
                stage.multiply::<0, _>(&mut acc[I], x, at);
            });
            at += 32;
        }
        // write: lane i·R + r has element (i, r)
        let mut own = 0.0;
        unroll!(I < 8 => if I < M {
            unroll!(J < 4 => if J < R {
                let sum = reduce::warp(acc[I][J], 32, |a, b| a + b);
                own = if lane == (I * R + J) as u32 { sum } else { own };
            });
        });
        let (row, column) = (lane / R as u32, first + lane % R as u32);
        if row < m && row < M as u32 && column < n {
            epilogue.write(row, column, own * W::row_scale(w, column));
        }
    }
}

macro_rules! vectors1 {
    ($($name:ident: $weights:ident, $r:literal, $u:literal;)*) => {$(
        /// # Safety
        /// `y`, `residual`, `bias`: [n], `x`: [cols] aligned to 16 bytes, `w`: [n, k] with its scales, as the layouts say,
        /// cols ≤ k, valid on the launching stream; `bias` and `residual` may be null; `y` overlaps nothing; n, k > 0;
        /// launched as [`VECTOR1`] says.
        #[kernel(launch_bounds(THREADS1))]
        pub unsafe fn $name(
            y: *mut f32,
            x: *const f32,
            w: *const u8,
            w_scales: *const u8,
            bias: *const f32,
            residual: *const f32,
            n: u32,
            k: u32,
            cols: u32,
            activation: u32,
        ) {
            let epilogue = Epilogue { y, bias, residual, n, activation };
            let w = Matrix { quants: w, scales: w_scales, k };
            // SAFETY: this kernel's contract is the body's.
            unsafe { vector1::<$weights, $r, $u>(epilogue, x, w, cols) }
        }
    )*};
}

vectors1! {
    quant_vector1_i8: I8, 2, 4;
    quant_vector1_q8_0: Q8_0, 2, 4;
    quant_vector1_q4_0: Q4_0, 4, 2;
    quant_vector1_q4_k: Q4K, 2, 2;
}

macro_rules! vectors {
    ($($name:ident: $weights:ident, $m:literal, $r:literal, $bounds:tt;)*) => {$(
        /// # Safety
        /// `y`, `residual`: [m, n], `bias`: [n], `x`: [m, x_k] quants with their scales `x_scales`, `w`: [n, k] with its
        /// scales, as the layouts say, valid on the launching stream; `bias` and `residual` may be null; `y` overlaps
        /// nothing; 1 ≤ m ≤ the variant's rows, x_k ≥ k; launched as [`VECTOR`] says.
        #[kernel(launch_bounds $bounds)]
        pub unsafe fn $name(
            y: *mut f32,
            x: *const u8,
            x_scales: *const u8,
            w: *const u8,
            w_scales: *const u8,
            bias: *const f32,
            residual: *const f32,
            m: u32,
            n: u32,
            k: u32,
            x_k: u32,
            activation: u32,
        ) {
            let epilogue = Epilogue { y, bias, residual, n, activation };
            let w = Matrix { quants: w, scales: w_scales, k };
            // SAFETY: this kernel's contract is the body's.
            unsafe { vector::<$weights, $m, $r>(epilogue, x, x_scales, w, m, x_k) }
        }
    )*};
}

vectors! {
    quant_vector2_i8: I8, 2, 4, (THREADS);
    quant_vector4_i8: I8, 4, 2, (THREADS);
    quant_vector8_i8: I8, 8, 2, (THREADS, 3);
    quant_vector2_q8_0: Q8_0, 2, 4, (THREADS);
    quant_vector4_q8_0: Q8_0, 4, 2, (THREADS);
    quant_vector8_q8_0: Q8_0, 8, 2, (THREADS, 3);
    quant_vector2_q4_0: Q4_0, 2, 4, (THREADS);
    quant_vector4_q4_0: Q4_0, 4, 2, (THREADS);
    quant_vector8_q4_0: Q4_0, 8, 2, (THREADS, 3);
    quant_vector2_q4_k: Q4K, 2, 4, (THREADS);
    quant_vector4_q4_k: Q4K, 4, 2, (THREADS);
    quant_vector8_q4_k: Q4K, 8, 2, (THREADS, 3);
}
