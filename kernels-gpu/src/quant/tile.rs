//! y = act(x·wᵀ + bias) + residual by register tiles.   y: [m, n] f32, x: [m, k] row layout, w: [n, k].
//!
//! Idea: a block computes a BM × BN tile of y, a thread TM × TN of it, from BK = 64 columns of x and w at a time in shared
//! memory, all as signed bytes; narrower quants are widened as they are stored. Both operands are in planes of 16 bytes of
//! k, so that neighbouring rows are read from neighbouring addresses. Shared memory is double-buffered: the next tile is
//! loaded into registers while the current one is multiplied.
//!
//! For 32 columns an element of y takes 8 `dp4a` and two FMAs, and no conversion. The integer sum starts at the bits of
//! 1.5 · 2²³, so it ends as the bits of the float 1.5 · 2²³ + sum. fma(that, step, −1.5 · 2²³ · step) is then step · sum,
//! correctly rounded, because the subtracted product is exact: a step has at most 17 significant bits (f16, or f16 times 6
//! bits). Where quants have an offset, the sum also starts with −offset · Σ x. Minima (Q4_K, Q5_K) take a third FMA. Steps for
//! 16 columns (Q6_K, at most 19 significant bits) take a third and a fourth.
//!
//! Threads are few, with 8 × 8 elements each, which take a third fewer shared loads than 8 × 4 and leave registers for operands in
//! different banks: each four words of w are [turned](crate::device::banks) in shared memory.
//!
//! | kernel              | tile     | threads | elements of a thread |
//! |---------------------|----------|---------|----------------------|
//! | quant_tile128_‹f›   | 128 × 64 | 128     | 8 × 8                |
//! | quant_tile64_‹f›    | 64 × 64  | 64      | 8 × 8                |
//! | quant_tile32_‹f›    | 32 × 64  | 64      | 4 × 8                |
//! | quant_gated128_‹f›  | 128 × 64 | 128     | 8 × 8: [`Gated`], where tiles of 128 rows fill the device |
//!
//! If a product has few tiles, k is in parts, each with blocks of its own ([`Parts`]). The host estimates which kernel, and how many
//! parts, take least (host/src/gpu/quant_tiles.rs).
//!
//! [`experts`](super::experts) has those for the rows of experts.

use super::activations::row_scale;
use super::blocks::RowScale;
use super::encode::activations;
use super::epilogue::Epilogue;
use super::weights::{BLOCK_VALUES, MAGIC, Matrix, Weights, chunk, half_minima, upper};
use super::{FORMATS, Gated, Product};
use crate::device::banks::{turn, turn_back};
use crate::device::element::read4;
use crate::device::int8::{dp4a, load_words};
use crate::device::math::fma;
use crate::device::ticket;
use crate::device::unroll::unroll;
use crate::device::{Element, Shared, opaque};
use crate::elementwise::silu;
use core::hint::assert_unchecked;
use core::marker::PhantomData;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;
use cuda_std::{KernelInfo, KernelSpec};

/// Columns of y in a tile.
pub const BN: u32 = 64;
/// The distance between a thread's `tm` rows of a tile of `bm`.
pub(super) const fn row_step(bm: u32, tm: u32) -> u32 {
    bm / tm
}

/// Runs of 16 values along k in a tile: two blocks.
pub(super) const RUNS: u32 = 4;
/// Columns of k in a tile.
pub const COLUMNS: u32 = RUNS * 16;
/// Blocks in a tile.
pub(super) const BLOCKS: u32 = 2;
/// Rows of padding between planes. With 2, the eight 16-byte stores of a wavefront have no bank conflicts.
const PAD: u32 = 2;

/// The layout of one block of 32 columns of a buffer of `BM` rows of x, in words.
struct Place<W, const BM: u32>(PhantomData<W>);

impl<W: Weights, const BM: u32> Place<W, BM> {
    /// Two planes of 16 bytes per row of x.
    const X: u32 = 0;
    /// Two planes of 16 bytes per row of w.
    const W: u32 = 2 * (BM + PAD) * 4;
    /// [BM] scales of x.
    const X_SCALE: u32 = Self::W + 2 * (BN + PAD) * 4;
    /// [BM] from Σ x: the initial integer sum, or the factor of the minimum. If halves have minima, [2, BM]: Σ of each half's quants.
    const X_SUM: u32 = Self::X_SCALE + BM;
    /// [BN] steps of w.
    const STEP: u32 = Self::X_SUM + if half_minima::<W>() { 2 * BM } else { BM };
    /// [BN] minima of w, negative; or the steps of the second halves of blocks, where STEP has those of the first.
    const MIN: u32 = Self::STEP + BN;
    /// [2, BN] minima of halves, negative, if they have any.
    const MINIMA: u32 = Self::MIN + BN;
    /// The last 16 words are unused, so that the planes of successive blocks begin 16 banks apart.
    const BLOCK: u32 = Self::MINIMA + if half_minima::<W>() { 2 * BN } else { 0 } + 16;
    const WORDS: u32 = BLOCKS * Self::BLOCK;

    /// Run `run` of 16 columns of row `row`, in `planes` of `rows` rows.
    #[inline(always)]
    const fn run(planes: u32, rows: u32, run: u32, row: u32) -> u32 {
        run / 2 * Self::BLOCK + planes + (run % 2 * (rows + PAD) + row) * 4
    }
}

/// Words of shared memory of a block.
pub(super) const fn shared_words<W: Weights, const BM: u32>() -> u32 {
    2 * Place::<W, BM>::WORDS
}

/// The activations.
#[derive(Clone, Copy)]
pub(super) struct Rows<O> {
    pub quants: *const u8,
    pub scales: *const u8,
    /// This block's first row.
    pub first: u32,
    /// The end of the rows that it may read.
    pub m: u32,
    /// The tile's rows that it computes, a multiple of [`row_step`].
    pub live: u32,
    pub k: u32,
    /// Where a row is in memory.
    pub order: O,
}

/// Where the rows of a tile are in memory, of those that a thread loads.
#[inlined]
pub(super) trait Order: Copy {
    /// Where the quants of row `row` begin, of which the thread loads its run number `unit`: bytes.
    fn quants(self, unit: usize, row: u32, k: u32) -> usize;

    /// Where the scales of row `row` begin, of which the thread loads its scale number `unit`: bytes.
    fn scales(self, unit: usize, row: u32, k: u32) -> usize;

    /// A row of w from whose number its address is computed.
    fn row(self, row: u32) -> u32 {
        row
    }
}

/// One after the other.
#[derive(Clone, Copy)]
pub(super) struct InOrder;

#[inlined]
impl Order for InOrder {
    fn quants(self, _: usize, row: u32, k: u32) -> usize {
        row as usize * k as usize
    }

    fn scales(self, _: usize, row: u32, k: u32) -> usize {
        row as usize * (k / 4) as usize
    }
}

/// The output that a block computes from its tile's sums.
#[inlined]
pub(super) trait Output: Copy {
    /// The matrix that place `place` of the block's tile is from.
    fn matrix(self, w: Matrix, _place: u32) -> Matrix {
        w
    }

    /// The row of w in place `place` of the block's tile. Past the last row it is that one.
    fn row(self, place: u32) -> u32;

    /// Writes the results of a thread's sums, of rows `row`, `row` + `step`, … of x and places `place`, `place` + BN / TN, … of w.
    ///
    /// # Safety
    /// All threads of the warp call it together, each for its own sums; w and m are the product's.
    unsafe fn finish<W: Weights, const TM: usize, const TN: usize>(
        self,
        acc: [[f32; TN]; TM],
        row: u32,
        place: u32,
        step: u32,
        w: Matrix,
        m: u32,
    );
}

/// A product with the n rows of w from row `from_row` on.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub epilogue: Epilogue,
    pub from_row: u32,
}

#[inlined]
impl Output for Columns {
    fn row(self, place: u32) -> u32 {
        self.from_row + (thread::block_idx_y() * BN + place).min(self.epilogue.n - 1)
    }

    unsafe fn finish<W: Weights, const TM: usize, const TN: usize>(
        self,
        acc: [[f32; TN]; TM],
        row: u32,
        place: u32,
        step: u32,
        w: Matrix,
        m: u32,
    ) {
        let column = thread::block_idx_y() * BN + place;
        let mut values = acc;
        unroll!(J < 8 => if J < TN {
            // SAFETY: the column is a row of w, or the last one.
            let scale = unsafe {
                W::row_scale(w, self.from_row + (column + apart::<TN>() * J as u32).min(self.epilogue.n - 1))
            };
            unroll!(I < 8 => if I < TM { values[I][J] *= scale; });
        });
        // SAFETY: the sums are this thread's: this function's contract.
        unsafe { self.epilogue.write_tile(values, [row, column], [step, apart::<TN>()], m) };
    }
}

/// silu(gate)·up, quantised. Half of a tile's places are gates, the other half their ups, so that a tile gives one block of
/// 32 values of a row. A thread's gates are neighbours in the result, and eight lanes have the block.
#[derive(Clone, Copy)]
pub(super) struct GatedRows {
    pub quants: *mut u32,
    pub scales: *mut RowScale,
    /// Gates of a row, and ups.
    pub n: u32,
    /// Of the result's rows in memory.
    pub k: u32,
    /// The first row of the gates in w.
    pub gates: u32,
    /// The matrix of the ups, and the first of their rows.
    pub up: (Matrix, u32),
}

impl GatedRows {
    /// The column of the result that place `place` of the gates or of the ups contributes to.
    #[inline(always)]
    fn column(place: u32) -> u32 {
        thread::block_idx_y() * BLOCK_VALUES + place % 8 * 4 + place / 8
    }
}

#[inlined]
impl Output for GatedRows {
    fn matrix(self, w: Matrix, place: u32) -> Matrix {
        if place < BLOCK_VALUES { w } else { self.up.0 }
    }

    fn row(self, place: u32) -> u32 {
        Self::column(place % BLOCK_VALUES).min(self.n - 1)
            + if place < BLOCK_VALUES { self.gates } else { self.up.1 }
    }

    unsafe fn finish<W: Weights, const TM: usize, const TN: usize>(
        self,
        acc: [[f32; TN]; TM],
        row: u32,
        place: u32,
        step: u32,
        w: Matrix,
        m: u32,
    ) {
        const { assert!(TN == 8, "a thread has four gates and their ups") };
        let (first, (up, ups)) = (Self::column(place), self.up);
        unroll!(I < 8 => if I < TM {
            let mut values = [0.0; 4];
            unroll!(J < 4 => {
                let column = first + J as u32;
                if column < self.n {
                    // SAFETY: the column is a row of the gates and of the ups.
                    let scales = unsafe { [W::row_scale(w, self.gates + column), W::row_scale(up, ups + column)] };
                    values[J] = silu(acc[I][J] * scales[0]) * (acc[I][J + 4] * scales[1]);
                }
            });
            // SAFETY: all lanes of the warp are here: this function's contract. The eight lanes of a row have its 32 values.
            let (packed, scale) = unsafe { activations(values) };
            let row = row + step * I as u32;
            if row < m {
                let word = row as usize * (self.k / 4) as usize + (first / 4) as usize;
                // SAFETY: the grid covers k columns, so the word is inside the row, and it is this thread's; the block's scale
                // is that of its first lane.
                unsafe {
                    *self.quants.add(word) = packed;
                    if place == 0 {
                        *self.scales.add(word / 8) = scale;
                    }
                }
            }
        });
    }
}

/// A thread's part of a tile in flight, in registers. Elements past what a thread loads are never used.
#[derive(Clone, Copy)]
struct Stage<W: Weights> {
    x: [[u32; 4]; 4],
    x_scale: [RowScale; 2],
    w: [[u32; 4]; 4],
    w_upper: [W::Upper; 4],
    w_scale: [W::Packed; 2],
}

impl<W: Weights> Stage<W> {
    #[inline(always)]
    fn zeros() -> Self {
        Self {
            x: [[0; 4]; 4],
            x_scale: [RowScale { scale: 0.0, sum: 0 }; 2],
            w: [[0; 4]; 4],
            w_upper: [W::Upper::default(); 4],
            w_scale: [W::Packed::default(); 2],
        }
    }
}

/// Chunks of w in a row of a tile.
const fn chunks<W: Weights>() -> u32 {
    BLOCKS * 32 / W::CHUNK
}

/// Loads thread `tid`'s part of a slice: of columns 64·`index` to 64·`index` + 63 of x and w.
///
/// # Safety
/// As the kernels below; all columns exist in x. Of blocks past the end of w the quants or the scales may be others.
#[inline(always)]
unsafe fn load<W: Weights, const BM: u32, const THREADS: u32, const STRAIGHT: bool>(
    tid: u32,
    x: Rows<impl Order>,
    w: Matrix,
    output: impl Output,
    index: u32,
) -> Stage<W> {
    let mut stage = Stage::zeros();
    // SAFETY: rows are clamped to the last one, and blocks of w past the row's end are not read.
    unsafe {
        unroll!(I < 4 => if I as u32 * THREADS < RUNS * BM {
            let unit = tid + I as u32 * THREADS;
            if unit < RUNS * x.live {
                let row = x.order.quants(I, (x.first + unit / RUNS).min(x.m - 1), x.k);
                let column = (index * RUNS + unit % RUNS) * 16;
                stage.x[I] = load_words(x.quants.add(row + column as usize));
            }
        });
        unroll!(I < 2 => if I as u32 * THREADS < BLOCKS * BM {
            stage.x_scale[I] = rows_scale(I, tid + I as u32 * THREADS, x, index);
        });
        unroll!(I < 4 => if I as u32 * THREADS < chunks::<W>() * BN {
            let unit = tid + I as u32 * THREADS;
            if unit < chunks::<W>() * BN {
                let place = unit / chunks::<W>();
                let (row, w) = (x.order.row(output.row(place)), output.matrix(w, place));
                let at = index * chunks::<W>() + unit % chunks::<W>();
                let exists = W::WHOLE || at * W::CHUNK < w.k;
                // where blocks have steps, any quants will do past the end, and the load needs no branch
                let stepped = STRAIGHT && size_of::<W::Packed>() > 0;
                if exists || stepped {
                    let at = if exists { at } else { 0 };
                    stage.w[I] = chunk::<W>(w, row, at);
                    stage.w_upper[I] = upper::<W>(w, row, at);
                }
            }
        });
        unroll!(I < 2 => if I as u32 * THREADS < BLOCKS * BN {
            let unit = tid + I as u32 * THREADS;
            if unit < BLOCKS * BN {
                let (row, w) = (x.order.row(output.row(unit / BLOCKS)), output.matrix(w, unit / BLOCKS));
                let block = index * BLOCKS + unit % BLOCKS;
                // `store` has zeros past the end; with a branch inside this one, ptxas may load w after the products, not before them
                let exists = W::WHOLE || block * 32 < w.k;
                if exists || STRAIGHT {
                    stage.w_scale[I] = W::packed(w, row, if exists { block } else { 0 });
                }
            }
        });
    }
    stage
}

/// The scale of unit `unit` of a tile's scales of x, which is the thread's number `number`, if there is one.
///
/// # Safety
/// As [`load`].
#[inline(always)]
unsafe fn rows_scale(number: usize, unit: u32, x: Rows<impl Order>, index: u32) -> RowScale {
    if unit >= BLOCKS * x.live {
        return RowScale { scale: 0.0, sum: 0 };
    }
    let row = x.order.scales(number, (x.first + unit / BLOCKS).min(x.m - 1), x.k);
    // SAFETY: the row is clamped to the last one, and rows of x hold all blocks of a tile.
    unsafe { row_scale(x.scales.add(row), index * BLOCKS + unit % BLOCKS) }
}

/// Stores the loaded values of tile `index` in a buffer.
///
/// # Safety
/// `buffer` has the words of a [`Place`], and no thread reads it.
#[inline(always)]
unsafe fn store<W: Weights, const BM: u32, const THREADS: u32, const STRAIGHT: bool>(
    buffer: Shared<u32>,
    tid: u32,
    live: u32,
    k: u32,
    index: u32,
    stage: Stage<W>,
) {
    // SAFETY: every thread writes its own words, inside the places. Rows are clamped to the last one, and blocks of w past the
    // row's end are not read.
    unsafe {
        unroll!(I < 4 => if I as u32 * THREADS < RUNS * BM {
            let unit = tid + I as u32 * THREADS;
            if unit < RUNS * live {
                let (run, row) = (unit % RUNS, unit / RUNS);
                buffer.set4(Place::<W, BM>::run(Place::<W, BM>::X, BM, run, row), stage.x[I]);
                if half_minima::<W>() {
                    let sum = stage.x[I].iter().fold(0, |sum, x| dp4a(*x, 0x0101_0101, sum)) as f32;
                    let at = run / 2 * Place::<W, BM>::BLOCK + run % 2 * BM + row;
                    buffer.set(Place::<W, BM>::X_SUM + at, sum.to_bits());
                }
            }
        });
        unroll!(I < 2 => if I as u32 * THREADS < BLOCKS * BM {
            let unit = tid + I as u32 * THREADS;
            if unit < BLOCKS * live {
                let at = unit % BLOCKS * Place::<W, BM>::BLOCK + unit / BLOCKS;
                let RowScale { scale, sum } = stage.x_scale[I];
                buffer.set(Place::<W, BM>::X_SCALE + at, scale.to_bits());
                if W::MINIMUM && !W::HALVES {
                    buffer.set(Place::<W, BM>::X_SUM + at, (sum as f32 * scale).to_bits());
                } else if W::OFFSET != 0 {
                    buffer.set(Place::<W, BM>::X_SUM + at, (MAGIC.to_bits() as i32 - W::OFFSET * sum) as u32);
                }
            }
        });
        unroll!(I < 4 => if I as u32 * THREADS < chunks::<W>() * BN {
            let unit = tid + I as u32 * THREADS;
            if unit < chunks::<W>() * BN {
                let (row, at) = (unit / chunks::<W>(), unit % chunks::<W>());
                let plane = |run| Place::<W, BM>::run(Place::<W, BM>::W, BN, run, row);
                if W::BITS == 8 {
                    buffer.set4(plane(at), turn(stage.w[I]));
                } else {
                    // the low halves are run `low`, the high halves run `low` + HIGH
                    let low = if W::HIGH == 1 { at * 2 } else { at };
                    let [low_run, high_run] = W::widen(stage.w[I], stage.w_upper[I]);
                    buffer.set4(plane(low), turn(low_run));
                    buffer.set4(plane(low + W::HIGH), turn(high_run));
                }
            }
        });
        unroll!(I < 2 => if I as u32 * THREADS < BLOCKS * BN {
            let unit = tid + I as u32 * THREADS;
            if unit < BLOCKS * BN {
                let at = unit % BLOCKS * Place::<W, BM>::BLOCK + unit / BLOCKS;
                let block = index * BLOCKS + unit % BLOCKS;
                let exists = !STRAIGHT || W::WHOLE || block * 32 < k;
                let scales = if exists { stage.w_scale[I] } else { W::Packed::default() };
                let (step, min) = W::step_min(scales, block);
                buffer.set(Place::<W, BM>::STEP + at, step.to_bits());
                if W::HALVES {
                    buffer.set(Place::<W, BM>::MIN + at, min.to_bits());
                } else if W::MINIMUM {
                    buffer.set(Place::<W, BM>::MIN + at, (-min).to_bits());
                }
                if half_minima::<W>() {
                    let (first, second) = W::minima(scales, block);
                    buffer.set(Place::<W, BM>::MINIMA + at, (-first).to_bits());
                    buffer.set(Place::<W, BM>::MINIMA + BN + at, (-second).to_bits());
                }
            }
        });
    }
}

/// acc += x · wᵀ for a block of 32 columns. The thread's rows are `row`, `row` + BM / TM, … of `live`, its columns
/// `column`, `column` + BN / TN, ….
///
/// # Safety
/// The block is filled, and a barrier has passed since.
#[inline(always)]
unsafe fn multiply<W: Weights, const BM: u32, const TM: usize, const TN: usize>(
    acc: &mut [[f32; TN]; TM],
    block: Shared<u32>,
    row: u32,
    column: u32,
    live: u32,
) {
    let next_row = row_step(BM, TM as u32);
    // SAFETY: the block was filled before a barrier: this function's contract. All indices are inside its places.
    unsafe {
        let (from_x, from_w) =
            (block.at(Place::<W, BM>::X + row * 4), block.at(Place::<W, BM>::W + column * 4));
        let (x_scales, steps) =
            (block.at(Place::<W, BM>::X_SCALE + row), block.at(Place::<W, BM>::STEP + column));
        let mut w = [[0; 8]; TN];
        let (mut step, mut base) = ([0.0; TN], [0.0; TN]);
        unroll!(J < 8 => if J < TN {
            let [low, high] = runs(from_w, BN, apart::<TN>() * J as u32);
            w[J] = joined(turn_back(low), turn_back(high));
            step[J] = f32::from_bits(steps.get(apart::<TN>() * J as u32));
            base[J] = -MAGIC * step[J];
        });
        unroll!(I < 8 => if I < TM && next_row * (I as u32) < live {
            let [low, high] = runs(from_x, BM, next_row * I as u32);
            let x = joined(low, high);
            let scale = f32::from_bits(x_scales.get(next_row * I as u32));
            let mut start = MAGIC.to_bits();
            if W::OFFSET != 0 {
                start = x_scales.get(BM + next_row * I as u32);
            }
            let mut sums = [start as i32; TN];
            unroll!(WORD < 8 => unroll!(J < 8 => if J < TN { sums[J] = dp4a(x[WORD], w[J][WORD], sums[J]) }));
            unroll!(J < 8 => if J < TN {
                let product = fma(f32::from_bits(sums[J] as u32), step[J], base[J]);
                acc[I][J] = fma(product, scale, acc[I][J]);
            });
        });
    }
}

/// As [`multiply`], for formats whose half blocks have different steps: one half after the other.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn multiply_halves<W: Weights, const BM: u32, const TM: usize, const TN: usize>(
    acc: &mut [[f32; TN]; TM],
    block: Shared<u32>,
    row: u32,
    column: u32,
    live: u32,
) {
    let next_row = row_step(BM, TM as u32);
    // SAFETY: the block was filled before a barrier: this function's contract. All indices are inside its places.
    unsafe {
        let x_scales = block.at(Place::<W, BM>::X_SCALE + row);
        unroll!(HALF < 2 => {
            const RUN: u32 = HALF as u32;
            let from_x = block.at(Place::<W, BM>::run(Place::<W, BM>::X, BM, RUN, row));
            let from_w = block.at(Place::<W, BM>::run(Place::<W, BM>::W, BN, RUN, column));
            let steps = block.at(if HALF == 0 { Place::<W, BM>::STEP } else { Place::<W, BM>::MIN } + column);
            let mut w = [[0; 4]; TN];
            let (mut step, mut base) = ([0.0; TN], [0.0; TN]);
            unroll!(J < 8 => if J < TN {
                w[J] = turn_back(from_w.get4(4 * apart::<TN>() * J as u32));
                step[J] = f32::from_bits(steps.get(apart::<TN>() * J as u32));
                base[J] = -MAGIC * step[J];
            });
            unroll!(I < 8 => if I < TM && next_row * (I as u32) < live {
                let x = from_x.get4(4 * next_row * I as u32);
                let scale = f32::from_bits(x_scales.get(next_row * I as u32));
                let mut sums = [MAGIC.to_bits() as i32; TN];
                unroll!(WORD < 4 => unroll!(J < 8 => if J < TN { sums[J] = dp4a(x[WORD], w[J][WORD], sums[J]) }));
                unroll!(J < 8 => if J < TN {
                    let product = fma(f32::from_bits(sums[J] as u32), step[J], base[J]);
                    acc[I][J] = fma(product, scale, acc[I][J]);
                });
            });
        });
    }
}

/// acc −= minima · Σ x for a block of 32 columns.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn subtract_minima<W: Weights, const BM: u32, const TM: usize, const TN: usize>(
    acc: &mut [[f32; TN]; TM],
    block: Shared<u32>,
    row: u32,
    column: u32,
    live: u32,
) {
    let next_row = row_step(BM, TM as u32);
    // SAFETY: the block was filled before a barrier: this function's contract. All indices are inside its places.
    unsafe {
        let (sums, minima) = (block.at(Place::<W, BM>::X_SUM + row), block.at(Place::<W, BM>::MIN + column));
        let mut min = [0.0; TN];
        unroll!(J < 8 => if J < TN { min[J] = f32::from_bits(minima.get(apart::<TN>() * J as u32)) });
        unroll!(I < 8 => if I < TM && next_row * (I as u32) < live {
            let sum = f32::from_bits(sums.get(next_row * I as u32));
            unroll!(J < 8 => if J < TN { acc[I][J] = fma(min[J], sum, acc[I][J]) });
        });
    }
}

/// As [`subtract_minima`], for minima of halves.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn subtract_half_minima<W: Weights, const BM: u32, const TM: usize, const TN: usize>(
    acc: &mut [[f32; TN]; TM],
    block: Shared<u32>,
    row: u32,
    column: u32,
    live: u32,
) {
    let next_row = row_step(BM, TM as u32);
    // SAFETY: the block was filled before a barrier: this function's contract. All indices are inside its places.
    unsafe {
        let scales = block.at(Place::<W, BM>::X_SCALE + row);
        unroll!(HALF < 2 => {
            const SECOND: u32 = HALF as u32;
            let sums = block.at(Place::<W, BM>::X_SUM + SECOND * BM + row);
            let minima = block.at(Place::<W, BM>::MINIMA + SECOND * BN + column);
            let mut min = [0.0; TN];
            unroll!(J < 8 => if J < TN { min[J] = f32::from_bits(minima.get(apart::<TN>() * J as u32)) });
            unroll!(I < 8 => if I < TM && next_row * (I as u32) < live {
                let sum = f32::from_bits(sums.get(next_row * I as u32)) * f32::from_bits(scales.get(next_row * I as u32));
                unroll!(J < 8 => if J < TN { acc[I][J] = fma(min[J], sum, acc[I][J]) });
            });
        });
    }
}

/// acc += x · wᵀ for a tile.
///
/// # Safety
/// The buffer is filled, and a barrier has passed since.
#[inline(always)]
unsafe fn multiply_tile<W: Weights, const BM: u32, const TM: usize, const TN: usize>(
    acc: &mut [[f32; TN]; TM],
    buffer: Shared<u32>,
    row: u32,
    column: u32,
    live: u32,
) {
    // SAFETY: the buffer was filled before a barrier: this function's contract. Its blocks are `Place::BLOCK` words
    // apart.
    unsafe {
        let mut block = 0;
        while block < BLOCKS {
            let at = buffer.at(block * Place::<W, BM>::BLOCK);
            if W::HALVES {
                multiply_halves::<W, BM, TM, TN>(acc, at, row, column, live);
            } else {
                multiply::<W, BM, TM, TN>(acc, at, row, column, live);
            }
            block += 1;
        }
        // a separate loop, because otherwise its registers are live together with w's
        let mut block = 0;
        while W::MINIMUM && block < BLOCKS {
            let at = buffer.at(block * Place::<W, BM>::BLOCK);
            if W::HALVES {
                subtract_half_minima::<W, BM, TM, TN>(acc, at, row, column, live);
            } else {
                subtract_minima::<W, BM, TM, TN>(acc, at, row, column, live);
            }
            block += 1;
        }
    }
}

/// The 32 columns of row `row`, in planes of `rows` rows.
///
/// # Safety
/// They are inside the planes and filled, and a barrier has passed since.
#[inline(always)]
unsafe fn runs(planes: Shared<u32>, rows: u32, row: u32) -> [[u32; 4]; 2] {
    // SAFETY: the rows are inside the planes and were filled before a barrier: this function's contract. A row of a
    // plane is 16 bytes.
    unsafe { [planes.get4(row * 4), planes.get4((rows + PAD + row) * 4)] }
}

/// Two runs as the words of 32 columns.
#[inline(always)]
fn joined(low: [u32; 4], high: [u32; 4]) -> [u32; 8] {
    [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
}

/// Threads that compute a tile of `bm` rows, each `tm` × `tn` values.
pub(super) const fn threads(bm: u32, tm: u32, tn: u32) -> u32 {
    row_step(bm, tm) * BN / tn
}

/// The distance between the TN columns of y that a thread computes.
const fn apart<const TN: usize>() -> u32 {
    BN / TN as u32
}

/// The sums of tiles whose k is in parts, grid.z of them: every block leaves its own in memory, and the last one of a tile adds them.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// [tiles, parts, TM · TN / 4, THREADS, 4]
    partial: *mut f32,
    /// [tiles], zero
    counters: *mut u32,
}

impl Parts {
    /// The first tile of k of this block's part, and how many further the next one is. Unknown to the optimiser: it would keep
    /// the addresses' steps in registers.
    #[inline(always)]
    fn steps() -> [u32; 2] {
        [opaque(thread::block_idx_z()), opaque(thread::grid_dim_z())]
    }

    /// This thread's sums of all parts, in their order, if its block is the tile's last.
    ///
    /// # Safety
    /// All threads of the block call it together. Where there are several parts, the pointers have room for all blocks and are these
    /// launch's alone.
    #[inline(always)]
    unsafe fn total<const TM: usize, const TN: usize, const THREADS: u32>(
        self,
        acc: [[f32; TN]; TM],
    ) -> Option<[[f32; TN]; TM]> {
        let (part, parts) = (thread::block_idx_z(), thread::grid_dim_z());
        if parts == 1 {
            return Some(acc);
        }
        let tile = thread::block_idx_y() * thread::grid_dim_x() + thread::block_idx_x();
        let size = (TM * TN) as u32 * THREADS;
        let mut total = [[0.0; TN]; TM];
        // SAFETY: each thread stores at its own places of its block's record. The last block reads what all have stored.
        unsafe {
            let own = self.partial.add((tile * parts * size + thread::thread_idx_x() * 4) as usize);
            let place = |part: u32, i: usize, j: usize| {
                own.add((part * size) as usize + (i * TN + j) * THREADS as usize)
            };
            unroll!(I < 8 => if I < TM { unroll!(J < 2 => if 4 * J < TN {
                let sums = [acc[I][4 * J], acc[I][4 * J + 1], acc[I][4 * J + 2], acc[I][4 * J + 3]];
                f32::store4(place(part, I, 4 * J), sums);
            }) });
            if !ticket::is_last(self.counters.add(tile as usize), parts) {
                return None;
            }
            let mut part = 0;
            while part < parts {
                unroll!(I < 8 => if I < TM { unroll!(J < 2 => if 4 * J < TN {
                    let sums = read4(place(part, I, 4 * J));
                    unroll!(K < 4 => { total[I][4 * J + K] += sums[K]; });
                }) });
                part += 1;
            }
        }
        Some(total)
    }
}

/// Computes a tile, or a part of one. With `STRAIGHT`, a thread's loads of w have no branches, which takes a few registers more.
///
/// # Safety
/// As the kernels below; `buffers` has the words of two [`Place`]s.
#[inline(always)]
pub(super) unsafe fn tile<
    W: Weights,
    const BM: u32,
    const TM: usize,
    const TN: usize,
    const THREADS: u32,
    const STRAIGHT: bool,
>(
    output: impl Output,
    x: Rows<impl Order>,
    w: Matrix,
    parts: Option<Parts>,
    buffers: Shared<u32>,
) {
    // place tile: a warp has 4 × 8 threads, so that its reads of x are broadcast to 8 lanes and those of w to 4
    let tid = thread::thread_idx_x();
    if STRAIGHT {
        // SAFETY: a block has THREADS threads, as the kernels declare.
        unsafe { assert_unchecked(tid < THREADS) };
    }
    let (warp, lane) = (tid / 32, tid % 32);
    let across = apart::<TN>() / 8;
    let (row, column) = (warp / across * 4 + lane / 8, warp % across * 8 + lane % 8);
    let mut acc = [[0.0f32; TN]; TM];
    let tiles = w.k.div_ceil(COLUMNS);
    let [first, step] = if parts.is_some() { Parts::steps() } else { [0, 1] };
    // SAFETY: all threads reach every barrier. Between two of them one buffer is read and the other is written. After the
    // previous barrier no thread reads the latter.
    unsafe {
        let load = |index| load::<W, BM, THREADS, STRAIGHT>(tid, x, w, output, index);
        store::<W, BM, THREADS, STRAIGHT>(buffers, tid, x.live, w.k, first, load(first));
        sync_threads();
        let mut index = first + step;
        let mut current = 0;
        while index < tiles {
            // load, at addresses that are not kept in registers
            let stage = load(opaque(index));
            // compute
            multiply_tile::<W, BM, TM, TN>(&mut acc, buffers.at(current), row, column, x.live);
            current = Place::<W, BM>::WORDS - current;
            store::<W, BM, THREADS, STRAIGHT>(buffers.at(current), tid, x.live, w.k, index, stage);
            // sync
            sync_threads();
            index += step;
        }
        multiply_tile::<W, BM, TM, TN>(&mut acc, buffers.at(current), row, column, x.live);
        if let Some(parts) = parts {
            match parts.total::<TM, TN, THREADS>(acc) {
                Some(total) => acc = total,
                None => return,
            }
        }

        // write
        output.finish::<W, TM, TN>(acc, x.first + row, column, row_step(BM, TM as u32), w, x.m);
    }
}

/// The rows of the block's tile of all m.
#[inline(always)]
fn all_rows<const BM: u32>((quants, scales): (*const u8, *const u8), m: u32, k: u32) -> Rows<InOrder> {
    Rows { quants, scales, first: thread::block_idx_x() * BM, m, live: BM, k, order: InOrder }
}

macro_rules! tiles {
    ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
        /// By format.
        mod kernels {
            $(pub mod $file {
                use super::super::*;
                use crate::quant::formats::$file::$format;

                tiles! { @ tile128 $format $name "quant_tile128_" BM = 128, TM = 8, TN = 8, MIN_BLOCKS = 2 }
                tiles! { @ tile64 $format $name "quant_tile64_" BM = 64, TM = 8, TN = 8, MIN_BLOCKS = 4 }
                tiles! { @ tile32 $format $name "quant_tile32_" BM = 32, TM = 4, TN = 8, MIN_BLOCKS = 6 }

                /// # Safety
                /// [`Gated`] constrains the pointers, which are valid on the launching stream; m, n, k > 0, and x_k is a multiple
                /// of 64.
                #[kernel(
                    name = concat!("quant_gated128_", $name), block = threads(128, 8, 8), min_blocks = 2,
                    shared(buffers: [u32; shared_words::<$format, 128>()]), shuffles = 48
                )]
                pub unsafe fn gated128(p: Gated) {
                    let Gated { quants, scales, m, n, k, x_k, y_k, .. } = p;
                    let x = all_rows::<128>((p.x, p.x_scales), m, x_k);
                    let w = Matrix { quants: p.w, scales: p.w_scales, k };
                    let output = GatedRows { quants, scales, n: n / 2, k: y_k, gates: 0, up: (w, n / 2) };
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { tile::<$format, 128, 8, 8, { threads(128, 8, 8) }, true>(output, x, w, None, buffers) }
                }
            })*
        }

        /// By format. grid = [ceil(m / 128), ceil(n / BN), parts of k]
        pub const TILE128: [KernelSpec<Product>; FORMATS] = [$(kernels::$file::tile128),*];
        /// By format. grid = [ceil(m / 64), ceil(n / BN), parts of k]
        pub const TILE64: [KernelSpec<Product>; FORMATS] = [$(kernels::$file::tile64),*];
        /// By format. grid = [ceil(m / 32), ceil(n / BN), parts of k]
        pub const TILE32: [KernelSpec<Product>; FORMATS] = [$(kernels::$file::tile32),*];
        /// By format. grid = [ceil(m / 128), y_k / 32]
        pub const GATED128: [KernelSpec<Gated>; FORMATS] = [$(kernels::$file::gated128),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$(
            kernels::$file::tile128.info(),
            kernels::$file::tile64.info(),
            kernels::$file::tile32.info(),
            kernels::$file::gated128.info(),
        )*];
    };
    (
        @ $kernel:ident $format:ident $name:literal $begin:literal
        BM = $bm:literal, TM = $tm:literal, TN = $tn:literal, MIN_BLOCKS = $blocks:literal
    ) => {
        /// # Safety
        /// [`Product`] constrains the pointers, which are valid on the launching stream; m, n, k > 0 and x_k is a
        /// multiple of 64; grid.z is no more than k's tiles of 64 columns.
        #[kernel(
            name = concat!($begin, $name), block = threads($bm, $tm, $tn), min_blocks = $blocks,
            shared(buffers: [u32; shared_words::<$format, $bm>()])
        )]
        pub unsafe fn $kernel(p: Product) {
            let Product { y, bias, residual, m, n, k, x_k, activation, .. } = p;
            let output = Columns { epilogue: Epilogue { y, bias, residual, n, activation }, from_row: 0 };
            let x = all_rows::<$bm>((p.x, p.x_scales), m, x_k);
            let w = Matrix { quants: p.w, scales: p.w_scales, k };
            let parts = Some(Parts { partial: p.partial, counters: p.counters });
            // SAFETY: this kernel's contract is the body's.
            unsafe { tile::<$format, $bm, $tm, $tn, { threads($bm, $tm, $tn) }, true>(output, x, w, parts, buffers) }
        }
    };
}

crate::for_each_format!(tiles);
