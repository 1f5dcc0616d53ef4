//! y = act(x·wᵀ + bias) + residual by register tiles.   y: [m, n] f32, x: [m, k] row layout, w: [n, k].
//!
//! Idea: a block makes a BM × BN tile of y, a thread TM × 4 of it, from BK = 64 columns of x and w at a time in shared
//! memory, all as signed bytes: quants of 4 bits are widened on the way. Both operands lie in planes of 16 bytes of k,
//! so that the 16-byte reads of neighbouring rows are neighbours. Shared memory is double-buffered and the next tile is
//! on its way to registers while this one is multiplied.
//!
//! Per 32 columns an element of y takes 8 `dp4a` and two FMAs, and no conversion: the integer sum starts at the bits of
//! 1.5 · 2²³, so that it ends as the bits of the float 1.5 · 2²³ + sum, and fma(that, step, −1.5 · 2²³ · step) is
//! step · sum, correctly rounded, because the product that is taken away is exact: steps have at most 17 significant
//! bits (f16, or f16 times 6 bits). Where quants have an offset, −offset · Σ x starts the sum too. Minima (Q4_K) cost a
//! third FMA.
//!
//! | kernel              | tile     | threads | when                                   |
//! |---------------------|----------|---------|----------------------------------------|
//! | quant_tile128_‹f›   | 128 × 64 | 256     | it gives every multiprocessor a block  |
//! | quant_tile32_‹f›    | 32 × 64  | 256     | fewer rows                             |

use super::blocks::RowScale;
use super::epilogue::Epilogue;
use super::weights::{I8, Matrix, Q4_0, Q4K, Q8_0, Weights, chunk, row_scale};
use crate::device::int8::{dp4a, load_words, nibbles};
use crate::device::math::fma;
use crate::device::{Shared, shared};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

const THREADS: u32 = 256;
/// Columns of y in a tile.
pub const BN: u32 = 64;
/// Columns of y that a thread makes, 16 apart.
const TN: usize = 4;
/// Runs of 16 values along k in a tile: two blocks.
const RUNS: u32 = 4;
/// Blocks in a tile.
const BLOCKS: u32 = 2;
/// Rows between planes beyond a tile's: with 2, the eight 16-byte stores that go together are conflict-free.
const PAD: u32 = 2;
/// 1.5 · 2²³
const MAGIC: f32 = 12_582_912.0;

/// Where things lie in one buffer of `BM` rows of x, in words.
struct Place<const BM: u32>;

impl<const BM: u32> Place<BM> {
    const X: u32 = 0;
    const W: u32 = RUNS * (BM + PAD) * 4;
    /// [BLOCKS, BM] scales of x.
    const X_SCALE: u32 = Self::W + RUNS * (BN + PAD) * 4;
    /// [BLOCKS, BM] what Σ x of a block is for: the sum's start, or the factor of the minimum.
    const X_SUM: u32 = Self::X_SCALE + BLOCKS * BM;
    /// [BLOCKS, BN] steps of w.
    const STEP: u32 = Self::X_SUM + BLOCKS * BM;
    /// [BLOCKS, BN] minima of w.
    const MIN: u32 = Self::STEP + BLOCKS * BN;
    const WORDS: u32 = Self::MIN + BLOCKS * BN;
}

/// Words of shared memory of a block.
const fn shared_words<const BM: u32>() -> u32 {
    2 * Place::<BM>::WORDS
}

const fn spec(name: &'static str, bm: u32) -> KernelSpec {
    let words = if bm == 128 { shared_words::<128>() } else { shared_words::<32>() };
    KernelSpec::new(name, THREADS).min_blocks(2).shared_bytes(words * 4)
}

/// By format. grid = [ceil(m / 128), ceil(n / BN)]
pub const TILE128: [KernelSpec; 4] = [
    spec("quant_tile128_i8", 128),
    spec("quant_tile128_q8_0", 128),
    spec("quant_tile128_q4_0", 128),
    spec("quant_tile128_q4_k", 128),
];
/// By format. grid = [ceil(m / 32), ceil(n / BN)]
pub const TILE32: [KernelSpec; 4] = [
    spec("quant_tile32_i8", 32),
    spec("quant_tile32_q8_0", 32),
    spec("quant_tile32_q4_0", 32),
    spec("quant_tile32_q4_k", 32),
];

/// The activations.
#[derive(Clone, Copy)]
struct Rows {
    quants: *const u8,
    scales: *const u8,
    m: u32,
    k: u32,
}

/// A tile on its way, in registers.
#[derive(Clone, Copy)]
struct Stage<const X: usize> {
    x: [[u32; 4]; X],
    x_scale: RowScale,
    w: [u32; 4],
    step: f32,
    min: f32,
}

/// Loads this thread's share of columns 64·`index` to 64·`index` + 63 of x and w.
///
/// # Safety
/// As the kernels below; some of these columns exist in w, and all in x.
#[inline(always)]
unsafe fn load<W: Weights, const BM: u32, const X: usize>(
    x: Rows,
    w: Matrix,
    n: u32,
    index: u32,
) -> Stage<X> {
    let tid = thread::thread_idx_x();
    let (row_0, column_0) = (thread::block_idx_x() * BM, thread::block_idx_y() * BN);
    let mut stage =
        Stage { x: [[0; 4]; X], x_scale: RowScale { scale: 0.0, sum: 0 }, w: [0; 4], step: 0.0, min: 0.0 };
    // SAFETY: rows are cut off at the last, and blocks of w at the row's end.
    unsafe {
        let mut i = 0;
        while i < X {
            let unit = tid + i as u32 * THREADS;
            if unit < RUNS * BM {
                let row = (row_0 + unit / RUNS).min(x.m - 1);
                let column = (index * RUNS + unit % RUNS) * 16;
                stage.x[i] = load_words(x.quants.add(row as usize * x.k as usize + column as usize));
            }
            i += 1;
        }
        if tid < BLOCKS * BM {
            let row = (row_0 + tid / BLOCKS).min(x.m - 1) as usize;
            stage.x_scale = row_scale(x.scales.add(row * (x.k / 4) as usize), index * BLOCKS + tid % BLOCKS);
        }
        let chunks = BLOCKS * 32 / W::CHUNK;
        if tid < chunks * BN {
            let row = (column_0 + tid / chunks).min(n - 1);
            let at = index * chunks + tid % chunks;
            if at * W::CHUNK < w.k {
                stage.w = chunk::<W>(w, row, at);
            }
        }
        if tid < BLOCKS * BN {
            let row = (column_0 + tid / BLOCKS).min(n - 1);
            let block = index * BLOCKS + tid % BLOCKS;
            if block * 32 < w.k {
                (stage.step, stage.min) = W::block(w, row, block);
            }
        }
    }
    stage
}

/// Puts what was loaded into a buffer.
///
/// # Safety
/// `buffer` has the words of a [`Place`], and nobody reads it.
#[inline(always)]
unsafe fn store<W: Weights, const BM: u32, const X: usize>(buffer: Shared<u32>, stage: Stage<X>) {
    let tid = thread::thread_idx_x();
    // SAFETY: every thread writes words of its own, inside the places.
    unsafe {
        let mut i = 0;
        while i < X {
            let unit = tid + i as u32 * THREADS;
            if unit < RUNS * BM {
                buffer.set4(Place::<BM>::X + (unit % RUNS * (BM + PAD) + unit / RUNS) * 4, stage.x[i]);
            }
            i += 1;
        }
        if tid < BLOCKS * BM {
            let at = tid % BLOCKS * BM + tid / BLOCKS;
            let RowScale { scale, sum } = stage.x_scale;
            buffer.set(Place::<BM>::X_SCALE + at, scale.to_bits());
            if W::MINIMUM {
                buffer.set(Place::<BM>::X_SUM + at, (sum as f32 * scale).to_bits());
            } else if W::OFFSET != 0 {
                buffer.set(Place::<BM>::X_SUM + at, (MAGIC.to_bits() as i32 - W::OFFSET * sum) as u32);
            }
        }
        let chunks = BLOCKS * 32 / W::CHUNK;
        if tid < chunks * BN {
            let (row, at) = (tid / chunks, tid % chunks);
            let plane = |run: u32| Place::<BM>::W + (run * (BN + PAD) + row) * 4;
            if W::BITS == 8 {
                buffer.set4(plane(at), stage.w);
            } else {
                // the low halves are run `low`, the high halves the run HIGH behind it
                let low = if W::HIGH == 1 { at * 2 } else { at };
                buffer.set4(plane(low), stage.w.map(|word| nibbles(word).0));
                buffer.set4(plane(low + W::HIGH), stage.w.map(|word| nibbles(word).1));
            }
        }
        if tid < BLOCKS * BN {
            let at = tid % BLOCKS * BN + tid / BLOCKS;
            buffer.set(Place::<BM>::STEP + at, stage.step.to_bits());
            if W::MINIMUM {
                buffer.set(Place::<BM>::MIN + at, stage.min.to_bits());
            }
        }
    }
}

/// acc += x · wᵀ for the columns of a buffer. The thread's rows are `row`, `row` + 16, …, its columns likewise.
///
/// # Safety
/// The buffer is filled, and a barrier lies between.
#[inline(always)]
unsafe fn multiply<W: Weights, const BM: u32, const TM: usize>(
    acc: &mut [[f32; TN]; TM],
    buffer: Shared<u32>,
    row: u32,
    column: u32,
) {
    // SAFETY: as the caller promises; all indices are inside the places.
    unsafe {
        let mut block = 0;
        while block < BLOCKS {
            // this block's 32 columns of four rows of w, in registers
            let mut w = [[0; 8]; TN];
            let (mut step, mut base, mut min) = ([0.0; TN], [0.0; TN], [0.0; TN]);
            let mut j = 0;
            while j < TN {
                let own = column + 16 * j as u32;
                let low = buffer.get4(Place::<BM>::W + ((2 * block) * (BN + PAD) + own) * 4);
                let high = buffer.get4(Place::<BM>::W + ((2 * block + 1) * (BN + PAD) + own) * 4);
                w[j] = [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]];
                step[j] = f32::from_bits(buffer.get(Place::<BM>::STEP + block * BN + own));
                base[j] = -MAGIC * step[j];
                if W::MINIMUM {
                    min[j] = -f32::from_bits(buffer.get(Place::<BM>::MIN + block * BN + own));
                }
                j += 1;
            }
            let mut i = 0;
            while i < TM {
                let own = row + 16 * i as u32;
                let low = buffer.get4(Place::<BM>::X + ((2 * block) * (BM + PAD) + own) * 4);
                let high = buffer.get4(Place::<BM>::X + ((2 * block + 1) * (BM + PAD) + own) * 4);
                let x = [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]];
                let scale = f32::from_bits(buffer.get(Place::<BM>::X_SCALE + block * BM + own));
                let mut start = MAGIC.to_bits();
                let mut carried = 0.0;
                if W::MINIMUM {
                    carried = f32::from_bits(buffer.get(Place::<BM>::X_SUM + block * BM + own));
                } else if W::OFFSET != 0 {
                    start = buffer.get(Place::<BM>::X_SUM + block * BM + own);
                }
                let mut sums = [start as i32; TN];
                let mut word = 0;
                while word < 8 {
                    let mut j = 0;
                    while j < TN {
                        sums[j] = dp4a(x[word], w[j][word], sums[j]);
                        j += 1;
                    }
                    word += 1;
                }
                let mut j = 0;
                while j < TN {
                    let product = fma(f32::from_bits(sums[j] as u32), step[j], base[j]);
                    acc[i][j] = fma(product, scale, acc[i][j]);
                    if W::MINIMUM {
                        acc[i][j] = fma(min[j], carried, acc[i][j]);
                    }
                    j += 1;
                }
                i += 1;
            }
            block += 1;
        }
    }
}

/// # Safety
/// As the kernels below; `buffers` has the words of two [`Place`]s.
#[inline(always)]
unsafe fn tile<W: Weights, const BM: u32, const TM: usize, const X: usize>(
    epilogue: Epilogue,
    x: Rows,
    w: Matrix,
    buffers: Shared<u32>,
) {
    // place tile: a warp has 4 × 8 threads, so that its reads of x are broadcast to 8 lanes and those of w to 4
    let (warp, lane) = (thread::thread_idx_x() / 32, thread::thread_idx_x() % 32);
    let (row, column) = (warp / 2 * 4 + lane / 8, warp % 2 * 8 + lane % 8);
    let mut acc = [[0.0f32; TN]; TM];
    let tiles = w.k.div_ceil(RUNS * 16);
    // SAFETY: all threads reach every barrier. Between two of them one buffer is read and the other is written; the
    // barrier before made sure that nobody still reads the latter.
    unsafe {
        store::<W, BM, X>(buffers, load::<W, BM, X>(x, w, epilogue.n, 0));
        sync_threads();
        let mut index = 1;
        let mut current = 0;
        while index < tiles {
            // load
            let stage = load::<W, BM, X>(x, w, epilogue.n, index);
            // compute
            multiply::<W, BM, TM>(&mut acc, buffers.at(current), row, column);
            current = Place::<BM>::WORDS - current;
            store::<W, BM, X>(buffers.at(current), stage);
            // sync
            sync_threads();
            index += 1;
        }
        multiply::<W, BM, TM>(&mut acc, buffers.at(current), row, column);

        // write
        let (row, column) = (thread::block_idx_x() * BM + row, thread::block_idx_y() * BN + column);
        let mut j = 0;
        while j < TN {
            let column = column + 16 * j as u32;
            if column < epilogue.n {
                let scale = W::row_scale(w, column);
                let mut i = 0;
                while i < TM {
                    let row = row + 16 * i as u32;
                    if row < x.m {
                        epilogue.write(row, column, acc[i][j] * scale);
                    }
                    i += 1;
                }
            }
            j += 1;
        }
    }
}

macro_rules! tiles {
    ($($name:ident: $weights:ident, $bm:literal, $tm:literal, $x:literal;)*) => {$(
        /// # Safety
        /// `y`, `residual`: [m, n], `bias`: [n], `x`: [m, x_k] quants with their scales `x_scales`, `w`: [n, k] with its
        /// scales, as the layouts say, valid on the launching stream; `bias` and `residual` may be null; `y` overlaps
        /// nothing; m, n, k > 0, x_k ≥ k and a multiple of 64; launched as [`TILE128`] says.
        #[kernel(launch_bounds(THREADS, 2))]
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
            let buffers = shared::declare::<u32, { shared_words::<$bm>() as usize }>();
            let epilogue = Epilogue { y, bias, residual, n, activation };
            let x = Rows { quants: x, scales: x_scales, m, k: x_k };
            let w = Matrix { quants: w, scales: w_scales, k };
            // SAFETY: this kernel's contract is the body's.
            unsafe { tile::<$weights, $bm, $tm, $x>(epilogue, x, w, buffers) }
        }
    )*};
}

tiles! {
    quant_tile128_i8: I8, 128, 8, 2;
    quant_tile128_q8_0: Q8_0, 128, 8, 2;
    quant_tile128_q4_0: Q4_0, 128, 8, 2;
    quant_tile128_q4_k: Q4K, 128, 8, 2;
    quant_tile32_i8: I8, 32, 2, 1;
    quant_tile32_q8_0: Q8_0, 32, 2, 1;
    quant_tile32_q4_0: Q4_0, 32, 2, 1;
    quant_tile32_q4_k: Q4K, 32, 2, 1;
}
