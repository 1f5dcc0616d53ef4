//! y = act(x·wᵀ + bias) + residual for up to 16 rows of x.   y: [m, n] f32, w: [n, k].
//!
//! Idea: it is bound by reading w. A warp reads R rows of w at a time, and each lane U units of each row. A unit is a block
//! of 32 values; in formats with super-blocks it is two blocks, which mostly share bytes. All loads are in flight before the
//! first unit is multiplied with all rows of x. The lanes' sums are added at the end, several at a time: in each step a lane
//! passes half of its sums to its partner and adds the partner's to the other half (see [`Spread`]).
//!
//! A single row of x is f32. Each block quantises it into its shared memory, which saves a launch. The first values of x are
//! loaded before those of w, since they would otherwise queue after them, and are quantised while w is in flight. Blocks are
//! large and all resident at once, so the row is quantised as few times as possible. Where x is to be normalised, each block does
//! that too ([`norm`](super::norm) has the order of additions): the wait for w hides it, and it saves another launch. Several rows
//! of x are already quantised, and are read through the cache.
//!
//! For each unit and row, an integer sum is multiplied by one scale. The sum starts from the bits of a float, so that it
//! ends as a float (see [`tile`]). A lane past the last unit of a row reads the last unit again, and multiplies it by zeros
//! of x.
//!
//! [`tile`]: super::tile
//!
//! | kernel                | rows of x        | rows of w per warp and units of each per lane |
//! |-----------------------|------------------|-----------------------------------------------|
//! | quant_vector1_‹f›     | 1, f32           | 2 · [`LANE_UNITS`](Weights::LANE_UNITS)       |
//! | quant_normed1_‹f›     | 1, f32, with a norm | as quant_vector1                        |
//! | quant_gated1_‹f›      | 1, f32, with a norm or without; y = silu(gate)·up, of a row of w each | as quant_vector1 |
//! | quant_experts1_‹f›    | 1, f32, and an expert's rows of w, for each pair | as quant_vector1 |
//! | quant_vector2_‹f›     | 1, 2, quantised  | 4 · 1                                         |
//! | quant_vector4_‹f›     | 3, 4, quantised  | 2 · 1                                         |
//! | quant_vector8_‹f›     | 5 to 8, quantised | 2 · 1                                        |
//! | quant_vector16_‹f›    | 9 to 16, quantised | 2 · 1                                       |
//!
//! All of them add the sum of an element in the same order. So a row of y has the same bits whatever the other rows of x are
//! and however many, up to 16.

use super::activations::{Activations, GlobalRow, Inputs, SharedRow, block_words, quant_words};
use super::encode::{LANES, activations, four, four_of};
use super::epilogue::Epilogue;
use super::norm::{RUN, RUNS, row_factor, run_squares};
use super::weights::{Matrix, Weights};
use super::{FORMATS, Product};
use crate::activate::IDENTITY;
use crate::device::unroll::unroll;
use crate::device::{Shared, keep_order, opaque, prefetch, read_thread_idx_x, shared};
use crate::elementwise::silu;
use crate::experts::{Place, place};
use core::ptr::null;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};
use cuda_std::{KernelInfo, KernelSpec};

const WARPS: u32 = 4;
const THREADS: u32 = WARPS * 32;
/// Warps of a block that quantises x. With more warps fewer blocks quantise it, but each barrier waits for more warps.
pub(super) const WARPS1: u32 = 16;
pub(super) const THREADS1: u32 = WARPS1 * 32;
/// Quantised values of x that a block holds at a time.
const TILE: u32 = 8192;
/// Bytes of the quantised values in shared memory.
const TILE_BYTES: u32 = 4 * (quant_words(TILE) + block_words(TILE));
/// Bytes of shared memory of [`vector1`] without `ONCE` and without a norm.
pub(super) const SHARED1: u32 = TILE_BYTES + 4 * THREADS1;
/// Bytes of shared memory with a norm.
const SHARED1_NORM: u32 = SHARED1 + 4 * RUNS;
/// Rows of w per warp of [`VECTOR1`].
pub(super) const ROWS1: u32 = 2;

/// The most rows of x.
pub const MAX_M: u32 = 16;

/// The parameters of the kernels for one row: y = act(norm(x)·wᵀ + bias) + residual; or silu(gate)·up + residual, where the
/// product is n gates, then n ups.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Vector1 {
    /// [n], disjoint from all else
    pub y: *mut f32,
    /// [cols], 16-byte aligned
    pub x: *const f32,
    /// [cols], 16-byte aligned: the weight of an RMS norm of x. Then cols is a multiple of 4 and at most
    /// [`MAX_BLOCK_COLS`](crate::device::rows::MAX_BLOCK_COLS). Or null: x is not normalised. `quant_vector1` does not use it.
    pub norm: *const f32,
    /// [n, k] quants, of gates and ups [2 · n, k]
    pub w: *const u8,
    /// Of w.
    pub w_scales: *const u8,
    /// [n] or null; null for gates and ups
    pub bias: *const f32,
    /// [n] or null
    pub residual: *const f32,
    pub n: u32,
    pub k: u32,
    /// At most k.
    pub cols: u32,
    /// The activation, one of [`activate`](crate::activate)'s numbers; not used for gates and ups.
    pub activation: u32,
    /// Of the norm.
    pub eps: f32,
}

/// The parameters of the kernels for one row of each pair of a token and an expert: y[p] = x[p / sharing] · w[ids[p]]ᵀ.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Experts1 {
    /// [pairs, n], disjoint from all else
    pub y: *mut f32,
    /// [pairs / sharing, cols], 16-byte aligned
    pub x: *const f32,
    /// [experts · n, k] quants
    pub w: *const u8,
    /// Of w.
    pub w_scales: *const u8,
    /// [pairs], below the number of experts
    pub ids: *const u32,
    /// [slots · n, k] quants: copies of the rows of experts with a slot
    pub cached: *const u8,
    /// Of these.
    pub cached_scales: *const u8,
    /// [experts]: the slot of each or [`NO_SLOT`](crate::experts::NO_SLOT); null if none has one
    pub slots: *const u32,
    pub n: u32,
    pub k: u32,
    /// At most k; a multiple of 4 unless there is one row of x.
    pub cols: u32,
    /// Neighbouring pairs that have one row of x.
    pub sharing: u32,
    /// 1 if y gets zeros of experts without a slot, else 0.
    pub on_device: u32,
}

/// Number of blocks of [`VECTOR1`] that cover all columns of y.
pub fn blocks1(n: u32) -> u32 {
    n.div_ceil(WARPS1 * ROWS1)
}

/// Number of blocks of [`GATED1`] that cover all columns of y.
pub fn gated_blocks1(n: u32) -> u32 {
    n.div_ceil(WARPS1)
}

/// The index in [`VECTOR`] of the variant for `m` rows of x (at most [`MAX_M`]), and the columns of y per block.
pub fn variant_for(m: u32) -> (usize, u32) {
    let variant = VARIANTS.iter().position(|(rows, _)| m <= *rows).unwrap_or(VARIANTS.len() - 1);
    (variant, WARPS * VARIANTS[variant].1)
}

/// The offsets of R rows of w in bytes; for formats with [`sections`] in units, because registers do not suffice for both.
#[derive(Clone, Copy)]
struct Rows<const R: usize> {
    quants: [u32; R],
    scales: [u32; R],
}

/// Chunks of a unit.
const fn chunks<W: Weights>() -> u32 {
    W::UNIT / W::CHUNK
}

/// Whether a row's quants are in sections.
const fn sections<W: Weights>() -> bool {
    W::BITS != 8 && W::BITS != 4
}

#[inlined]
impl<const R: usize> Rows<R> {
    /// The rows `row`(0), `row`(1), … from unit `unit` on.
    fn new<W: Weights>(w: Matrix, row: impl Fn(u32) -> u32, unit: u32) -> Self {
        let units = w.k / W::UNIT;
        let mut rows = Self { quants: [0; R], scales: [0; R] };
        unroll!(J < 4 => if J < R {
            let unit = row(J as u32) * units + unit;
            if sections::<W>() {
                rows.quants[J] = unit;
            } else {
                rows.quants[J] = W::chunk_at(unit * chunks::<W>());
                rows.scales[J] = W::scales_at(unit);
            }
        });
        rows
    }

    /// The offsets in bytes of unit `unit` of row `j`: its chunks, their upper bits and its scales.
    fn at<W: Weights>(&self, j: usize, unit: u32) -> [u32; 3] {
        if sections::<W>() {
            let unit = self.quants[j] + unit;
            let chunk = unit * chunks::<W>();
            return [W::chunk_at(chunk), W::upper_at(chunk), W::scales_at(unit)];
        }
        [self.quants[j] + W::chunk_at(unit * chunks::<W>()), 0, self.scales[j] + W::scales_at(unit)]
    }
}

/// Units of R rows as loaded: U of each, 32 apart.
#[derive(Clone, Copy)]
struct Stage<W: Weights, const R: usize, const U: usize> {
    quants: [[[[u32; 4]; 2]; U]; R],
    upper: [[[W::Upper; 2]; U]; R],
    raw: [[W::Raw; U]; R],
}

#[inlined]
impl<W: Weights, const R: usize, const U: usize> Stage<W, R, U> {
    /// Loads units `unit`, `unit` + 32, … of each row. Units past the row's `units` are the last one, for which the
    /// activations are zeros.
    ///
    /// # Safety
    /// From where `rows` point, the rows of `w` have `units` > 0 units.
    unsafe fn load(w: Matrix, rows: &Rows<R>, unit: u32, units: u32) -> Self {
        let mut stage = Self {
            quants: [[[[0; 4]; 2]; U]; R],
            upper: [[[W::Upper::default(); 2]; U]; R],
            raw: [[W::Raw::default(); U]; R],
        };
        unroll!(V < 2 => if V < U {
            let unit = (unit + 32 * V as u32).min(units - 1);
            unroll!(J < 4 => if J < R {
                let [quants, upper, scales] = rows.at::<W>(J, unit);
                let (quants, upper) = (w.quants.wrapping_add(quants as usize), w.quants.wrapping_add(upper as usize));
                let scales = w.scales.wrapping_add(scales as usize);
                // SAFETY: the unit exists; rows are whole units.
                unsafe {
                    stage.quants[J][V] = W::chunks(quants);
                    stage.upper[J][V] = W::uppers(upper);
                    stage.raw[J][V] = W::raw(scales, unit);
                }
            });
        });
        keep_order(); // the compiler would move each load to its first use
        stage
    }

    /// acc += w · x for unit `V` of the stage, which is unit `unit` + 32 · `V` of `x`; `lane` is that modulo 32.
    ///
    /// # Safety
    /// `x` has the unit.
    unsafe fn multiply<const V: usize, A: Activations>(
        &self,
        acc: &mut [f32; R],
        x: A,
        unit: u32,
        lane: u32,
    ) {
        // SAFETY: `x` has the unit: this function's contract.
        let inputs = unsafe { Inputs::load::<W>(x, unit + 32 * V as u32) };
        unroll!(J < 4 => if J < R {
            let scale = W::scale(self.raw[J][V], lane);
            acc[J] = W::dot(self.quants[J][V], self.upper[J][V], scale, &inputs, acc[J]);
        });
    }
}

/// The tile of x that begins at value `from`, and its quantisation into shared memory.
#[derive(Clone, Copy)]
struct Tile {
    x: *const f32,
    cols: u32,
    from: u32,
    /// The thread's number.
    tid: u32,
}

#[inlined]
impl Tile {
    /// Four values from column `column` on; `PARTS`: of the row that begins `first` values after `x`.
    ///
    /// # Safety
    /// x has the row, aligned to 16 bytes.
    unsafe fn four<const PARTS: bool>(self, first: u32, column: u32) -> [f32; 4] {
        // SAFETY: this function's contract.
        unsafe {
            match PARTS {
                true => four_of(self.x, first, column, self.cols),
                false => four(self.x, column, self.cols),
            }
        }
    }

    /// This thread's first X times four values; zeros past the row's end.
    ///
    /// # Safety
    /// x has `cols` values, aligned to 16 bytes.
    unsafe fn early<const X: usize, const PARTS: bool>(self, first: u32) -> [[f32; 4]; X] {
        let mut values = [[0.0; 4]; X];
        unroll!(I < 2 => if I < X {
            let word = self.tid + I as u32 * THREADS1;
            // SAFETY: `x` has `cols` values and is 16-byte aligned: this function's contract.
            values[I] = unsafe { self.four::<PARTS>(first, self.from + word * 4) };
        });
        keep_order();
        values
    }

    /// Calls `each` for this thread's words below `count` values, with the number and the four values; the result of
    /// [`early`](Self::early) is passed in.
    ///
    /// # Safety
    /// As there; all threads of the block call it together. Whole warps are in a call of `each`.
    unsafe fn each<const X: usize, const PARTS: bool>(
        self,
        first: u32,
        count: u32,
        early: [[f32; 4]; X],
        mut each: impl FnMut(u32, [f32; 4]),
    ) {
        let mut word = self.tid;
        unroll!(I < 2 => if I < X {
            if word / 32 * 128 < count {
                each(word, early[I]);
            }
            word += THREADS1;
        });
        while word / 32 * 128 < count {
            // SAFETY: `x` is valid: this function's contract.
            each(word, unsafe { self.four::<PARTS>(first, self.from + word * 4) });
            word += THREADS1;
        }
    }

    /// Quantises `count` values; the result of [`early`](Self::early) is passed in.
    ///
    /// # Safety
    /// As [`each`](Self::each); nobody reads `into`, which has room for `count` values in whole warps of four. A norm is as
    /// [`Vector1`] says, and its factor is x's.
    unsafe fn quantize<W: Weights, const X: usize, const PARTS: bool>(
        self,
        first: u32,
        into: SharedRow<TILE>,
        count: u32,
        early: [[f32; 4]; X],
        Norm { weight, factor }: Norm,
    ) {
        // SAFETY: whole warps enter, so all lanes are at the shuffles, and the words of a warp are inside the tile. All
        // threads are here, `x` and the weight are valid, and nobody reads `into`: this function's contract.
        unsafe {
            self.each::<X, PARTS>(first, count, early, |word, mut values| {
                if !weight.is_null() {
                    let weights = four(weight, word * 4, self.cols);
                    unroll!(J < 4 => values[J] = values[J] * factor * weights[J]);
                }
                let (packed, scale) = activations(values);
                into.set(word, packed);
                if word.is_multiple_of(LANES) {
                    into.set_block(word / LANES, scale.scale, W::of_sum(scale));
                }
            });
        }
    }

    /// The factor of an RMS norm of the row, which is not longer than the tile; the result of [`early`](Self::early) is passed in.
    ///
    /// # Safety
    /// As [`each`](Self::each); nobody else accesses `sums`.
    unsafe fn norm_factor<const X: usize>(
        self,
        count: u32,
        early: [[f32; 4]; X],
        sums: Shared<f32>,
        eps: f32,
    ) -> f32 {
        // SAFETY: whole warps are at the shuffles, and the first lane of each writes a run's sum; all threads are at the barrier:
        // this function's contract.
        unsafe {
            self.each::<X, false>(0, count, early, |word, values| {
                let squares = run_squares(values);
                if word.is_multiple_of(32) {
                    sums.set(word / 32, squares);
                }
            });
            sync_threads();
            row_factor(sums, count.div_ceil(RUN), self.cols, eps)
        }
    }

    /// Prefetches this thread's words of the norm's weight.
    fn prefetch(self, weight: *const f32) {
        let mut word = self.tid;
        while word * 4 < self.cols {
            prefetch(weight.wrapping_add(4 * word as usize));
            word += THREADS1;
        }
    }
}

/// Shuffle steps of [`vector1`] without `ONCE` and without a norm: 3 and 3 where x is quantised, 5 for each row of w.
pub(super) const fn shuffles1(early: usize) -> u32 {
    6 * (early as u32 + 1) + 5 * ROWS1
}

/// What x is multiplied by.
#[derive(Clone, Copy)]
struct Norm {
    /// [cols], or null for none
    weight: *const f32,
    factor: f32,
}

/// The block's memory for a tile of x.
pub(super) trait Memory {
    fn row(self) -> SharedRow<TILE>;
}

/// Declares it where it is used.
pub(super) struct Declared;

impl Memory for Declared {
    #[inline(always)]
    fn row(self) -> SharedRow<TILE> {
        SharedRow {
            quants: shared::declare::<u32, { quant_words(TILE) as usize }>(),
            blocks: shared::declare::<u32, { block_words(TILE) as usize }>(),
        }
    }
}

impl Memory for SharedRow<TILE> {
    #[inline(always)]
    fn row(self) -> SharedRow<TILE> {
        self
    }
}

/// What is added to the product with one row of x before the epilogue.
pub(super) trait Beside: Copy {
    /// Whether there is anything.
    const ANY: bool;

    /// The first blocks of the grid, which compute no product.
    fn helpers(self) -> u32;

    /// Prefetches what [`sums`](Self::sums) reads.
    fn prefetch(self, rows: [u32; ROWS1 as usize]);

    /// What is added to the products with these rows of w.
    ///
    /// # Safety
    /// All lanes of the warp call it together; w has the rows.
    unsafe fn sums(self, rows: [u32; ROWS1 as usize]) -> [f32; ROWS1 as usize];
}

/// Nothing is added.
#[derive(Clone, Copy)]
struct Nothing;

impl Beside for Nothing {
    const ANY: bool = false;

    #[inline(always)]
    fn helpers(self) -> u32 {
        0
    }

    #[inline(always)]
    fn prefetch(self, _: [u32; ROWS1 as usize]) {}

    #[inline(always)]
    unsafe fn sums(self, _: [u32; ROWS1 as usize]) -> [f32; ROWS1 as usize] {
        [0.0; ROWS1 as usize]
    }
}

/// The row of x: `cols` values from value `first` on.
#[derive(Clone, Copy)]
pub(super) struct Row1 {
    pub x: *const f32,
    /// 0 without `ONCE` of [`vector1`].
    pub first: u32,
    pub cols: u32,
    /// As [`Vector1`] has it; null with `ONCE`.
    norm: *const f32,
    eps: f32,
}

impl Row1 {
    /// Without a norm.
    pub const fn new(x: *const f32, first: u32, cols: u32) -> Self {
        Self { x, first, cols, norm: null(), eps: 0.0 }
    }
}

/// The product with the n rows of w from row `from_row` on, to row blockIdx.y of y with `ONCE`, else to the first. With `ONCE`, blocks
/// cover them all at once. With `NORM`, there may be a norm. With `GATED`, an element of y is silu of the product with one of n rows times that with the row n further on.
///
/// # Safety
/// As the kernels below. Helpers do not call it.
#[inline(always)]
pub(super) unsafe fn vector1<
    W: Weights,
    B: Beside,
    const U: usize,
    const X: usize,
    const ONCE: bool,
    const NORM: bool,
    const GATED: bool,
>(
    epilogue: Epilogue,
    Row1 { x, first: first_of_x, cols, norm, eps }: Row1,
    w: Matrix,
    from_row: u32,
    beside: B,
    memory: impl Memory,
) {
    const R: usize = ROWS1 as usize;
    let row = memory.row();
    let n = epilogue.n;
    let step = 32 * U as u32;
    let helpers = beside.helpers();
    // columns of y for each warp
    let columns = if GATED { 1 } else { ROWS1 };
    let mut base = (thread::block_idx_x() - helpers) * WARPS1 * columns;
    let mut quantized = false;
    while base < n {
        // place: this warp's rows of w; those past the end are the last one, read again and not written
        // registers do not suffice to keep `base`, and what follows from the thread's number is computed when it is needed
        let (tid, lane) = (read_thread_idx_x(), opaque(warp::lane_id()));
        let first = base + tid / 32 * columns;
        let bases = (!ONCE).then(shared::declare::<u32, { THREADS1 as usize }>);
        if let Some(bases) = bases {
            // SAFETY: the word is this thread's.
            unsafe { bases.set(tid, base) };
        }
        // past the last, its own again, and not written
        let of_w = |first: u32, j: u32| match GATED {
            true => first.min(n - 1) + j * n,
            false => (first + j).min(n - 1),
        };
        beside.prefetch([of_w(first, 0), of_w(first, 1)]);
        let mut acc = [0.0f32; R];
        let mut from = 0;
        // SAFETY: the loops' bounds are the block's, so all threads are at every barrier and shuffle. Rows of w are
        // clamped to the last one and units to the tile's end. The tile of x is read after a barrier, and holds zeros up
        // to whole steps.
        unsafe {
            while from < w.k {
                let units = (w.k - from).min(TILE) / W::UNIT;
                let tile = Tile { x, cols, from, tid };
                // load
                let early = if quantized { [[0.0; 4]; X] } else { tile.early::<X, ONCE>(first_of_x) };
                if NORM && !norm.is_null() && !quantized {
                    tile.prefetch(norm);
                }
                let rows = Rows::<R>::new::<W>(w, |j| from_row + of_w(first, j), from / W::UNIT);
                let mut stage = Stage::<W, R, U>::load(w, &rows, lane, units);
                // sync
                if !quantized {
                    let count = units.next_multiple_of(step) * W::UNIT;
                    let mut normed = Norm { weight: null(), factor: 1.0 };
                    if NORM && !norm.is_null() {
                        let sums = shared::declare::<f32, { RUNS as usize }>();
                        normed = Norm { weight: norm, factor: tile.norm_factor::<X>(cols, early, sums, eps) };
                    }
                    tile.quantize::<W, X, ONCE>(first_of_x, row, count, early, normed);
                    sync_threads();
                }
                // compute
                let mut at = 0;
                loop {
                    unroll!(V < 2 => if V < U {
                        stage.multiply::<V, _>(&mut acc, row, at + lane, lane);
                    });
                    at += step;
                    if at >= units {
                        break;
                    }
                    stage = Stage::load(w, &rows, at + lane, units);
                }
                from += TILE;
                quantized = w.k <= TILE;
                if !quantized {
                    sync_threads();
                }
            }
            // write
            let mut sums = [0.0; R];
            unroll!(J < 2 => sums[J] = Sum.over::<32>(acc[J]));
            let tid = read_thread_idx_x();
            if let Some(bases) = bases {
                base = bases.get(tid);
            }
            let first = base + tid / 32 * columns;
            let mut added = [0.0; R];
            if B::ANY {
                added = beside.sums([of_w(first, 0), of_w(first, 1)]);
            }
            let product = |j: usize, row: u32| {
                let product = sums[j] * W::row_scale(w, from_row + row);
                if B::ANY { product + added[j] } else { product }
            };
            if GATED {
                if lane == 0 && first < n {
                    epilogue.write(0, first, silu(product(0, first)) * product(1, n + first));
                }
            } else {
                let column = first + lane;
                if lane < ROWS1 && column < n {
                    let own = if lane == 0 { product(0, column) } else { product(1, column) };
                    let row_of_y = if ONCE { thread::block_idx_y() } else { 0 };
                    epilogue.write(row_of_y, column, own);
                }
            }
        }
        if ONCE {
            return;
        }
        base += (thread::grid_dim_x() - helpers) * WARPS1 * columns;
    }
}

impl Vector1 {
    /// The row of x.
    #[inline(always)]
    const fn row(&self) -> Row1 {
        Row1 { x: self.x, first: 0, cols: self.cols, norm: self.norm, eps: self.eps }
    }
}

/// Writes zeros in the block's columns of a row of `n`.
///
/// # Safety
/// y has them, and they are this block's.
#[inline(always)]
unsafe fn zeros(y: *mut f32, n: u32) {
    let (own, column) = (WARPS1 * ROWS1, thread::thread_idx_x());
    let at = thread::block_idx_x() * own + column;
    if column < own && at < n {
        // SAFETY: the column is below n, and this block's: this function's contract.
        unsafe { *y.add(at as usize) = 0.0 };
    }
}

/// The sums over all lanes of K values each, spread over the lanes.
struct Spread<const K: usize>;

#[inlined]
impl<const K: usize> Spread<K> {
    /// Number of shuffles.
    const SHUFFLES: u32 = K as u32 - 1 + 5 - K.ilog2();

    /// The sum of the values with this lane's [`number`](Self::number). The order of additions is [`Sum`]'s: lanes 16 apart
    /// first, neighbours last.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    unsafe fn sum(mut values: [f32; 32]) -> f32 {
        let lane = warp::lane_id();
        unroll!(STEP < 8 => if STEP < 5 {
            const DISTANCE: u32 = [16, 8, 4, 2, 1][STEP % 5];
            let half = K >> (STEP + 1);
            // SAFETY: all 32 lanes are here: this function's contract.
            let from = |value| unsafe { warp_shuffle_xor(FULL_MASK, value, DISTANCE, 32).0 };
            if half == 0 {
                values[0] += from(values[0]);
            }
            let second = lane & DISTANCE != 0;
            unroll!(I < 16 => if I < half {
                let other = values[(I + half) % 32];
                let (own, others) = if second { (other, values[I]) } else { (values[I], other) };
                values[I] = own + from(others);
            });
        });
        values[0]
    }

    /// The index of the value whose sum this lane has; `None` if a lower lane has the same one.
    fn number() -> Option<u32> {
        let (lane, sharers) = (warp::lane_id(), 32 / K as u32);
        lane.is_multiple_of(sharers).then(|| lane / sharers)
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn vector<W: Weights, const M: usize, const R: usize, const MR: usize>(
    epilogue: Epilogue,
    x: *const u8,
    x_scales: *const u8,
    w: Matrix,
    m: u32,
    x_k: u32,
) {
    // place: this warp's rows of w; those past the end are the last one, read again and not written
    let n = epilogue.n;
    let first = (thread::block_idx_x() * WARPS + thread::thread_idx_x() / 32) * R as u32;
    if first >= n {
        return; // whole warps only, so the shuffles below have all lanes
    }
    let lane = warp::lane_id();
    let units = w.k / W::UNIT;
    let rows = Rows::<R>::new::<W>(w, |j| (first + j).min(n - 1), 0);
    let mut acc = [[0.0f32; R]; M];
    // SAFETY: rows of x and w are cut off at the last, units at the row's end; rows of x are no shorter than those
    // of w. All lanes of the warp reach the shuffles.
    unsafe {
        let mut at = lane;
        while at < units {
            // load
            let stage = Stage::<W, R, 1>::load(w, &rows, at, units);
            // compute: at most 8 rows of x at a time, because registers do not suffice for more in flight
            let mut base = 0;
            loop {
                unroll!(I < 8 => if I < M {
                    let row = (base + I as u32).min(m - 1) as usize * x_k as usize;
                    let x = GlobalRow { quants: x.add(row), scales: x_scales.add(row / 4) };
                    stage.multiply::<0, _>(&mut acc[I], x, at, lane);
                });
                if M <= 8 {
                    break;
                }
                // swap the first eight rows' sums with the others', twice
                unroll!(I < 8 => acc.swap(I % M, (I + 8) % M));
                base += 8;
                if base >= m {
                    break;
                }
            }
            at += 32;
        }
        // write
        let mut sums = [0.0; 32];
        unroll!(I < 16 => if I < M {
            unroll!(J < 4 => if J < R {
                sums[(I * R + J) % 32] = acc[I][J];
            });
        });
        let sum = Spread::<MR>::sum(sums);
        let Some(number) = Spread::<MR>::number() else { return };
        let (row, column) = (number / R as u32, first + number % R as u32);
        if row < m && column < n {
            epilogue.write(row, column, sum * W::row_scale(w, column));
        }
    }
}

/// Rows of x and rows of w per warp of the variants, in the order of [`VECTOR`].
const VARIANTS: [(u32, u32); 4] = [(2, 4), (4, 2), (8, 2), (16, 2)];

/// Blocks of a multiprocessor for which ptxas keeps registers free, in a kernel for so many rows of x. For two and four rows they are those
/// that it finds by itself; for eight it would choose too few registers, and spill.
const fn min_blocks<W: Weights>(rows: u32) -> u32 {
    match (rows, W::WHOLE) {
        (2, false) => 6,
        (4, false) => 8,
        (2 | 8, _) => 3,
        (4, true) => 4,
        _ => 2,
    }
}

macro_rules! vectors {
    ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
        /// By format.
        mod kernels {
            $(pub mod $file {
                use super::super::*;
                use crate::quant::formats::$file::$format;

                const EARLY: usize = $format::EARLY;
                const SHUFFLES1: u32 = shuffles1(EARLY);
                const SHUFFLES1_NORM: u32 = SHUFFLES1 + 5 * (EARLY as u32 + 1) + 5; // of runs of squares, and of their sum
                /// Registers do not suffice for more.
                const EARLY_EXPERTS: usize = if EARLY > 0 { EARLY - 1 } else { 0 };

                vectors! { @1 vector1 $format $name "quant_vector1_" SHARED1 SHUFFLES1 false }
                vectors! { @1 normed1 $format $name "quant_normed1_" SHARED1_NORM SHUFFLES1_NORM true }

                /// As [`vector1`], of gates and ups. grid = any number of blocks, see [`gated_blocks1`].
                ///
                /// # Safety
                /// [`Vector1`] constrains the pointers, which are valid on the launching stream; n, k > 0.
                #[kernel(
                    name = concat!("quant_gated1_", $name),
                    block = THREADS1, min_blocks = 2, shared_bytes = SHARED1_NORM, shuffles = SHUFFLES1_NORM
                )]
                pub unsafe fn gated1(p: Vector1) {
                    let Vector1 { y, residual, n, k, .. } = p;
                    let epilogue = Epilogue { y, bias: null(), residual, n, activation: IDENTITY };
                    // SAFETY: this kernel's contract is the body's.
                    unsafe {
                        let (x, w) = (p.row(), Matrix { quants: p.w, scales: p.w_scales, k });
                        super::super::vector1::<$format, _, { $format::LANE_UNITS }, EARLY, false, true, true>(epilogue, x, w, 0, Nothing, Declared)
                    }
                }

                /// As [`vector1`], for pair blockIdx.y.
                ///
                /// # Safety
                /// [`Experts1`] constrains the pointers, which are valid on the launching stream; n, k > 0.
                #[kernel(
                    name = concat!("quant_experts1_", $name),
                    block = THREADS1, min_blocks = 2, shared_bytes = TILE_BYTES,
                    shuffles = 2 * (6 * (EARLY_EXPERTS as u32 + 1) + 5 * ROWS1)
                )]
                pub unsafe fn experts1(p: Experts1) {
                    let pair = thread::block_idx_y();
                    // SAFETY: the pair exists, and its expert has a place; else, this kernel's contract is the body's.
                    unsafe {
                        let x = Row1::new(p.x, pair / p.sharing.max(1) * p.cols, p.cols);
                        let epilogue = Epilogue { y: p.y, bias: null(), residual: null(), n: p.n, activation: IDENTITY };
                        let row = Declared.row();
                        let expert = *p.ids.add(pair as usize);
                        // the body twice: with one, the addresses of w would take four registers, which some formats do not have
                        match place(p.slots, p.on_device, expert, p.n) {
                            Place::All(first) => {
                                let w = Matrix { quants: p.w, scales: p.w_scales, k: p.k };
                                super::super::vector1::<$format, _, { $format::LANE_UNITS }, EARLY_EXPERTS, true, false, false>(epilogue, x, w, first, Nothing, row)
                            }
                            Place::Slot(first) => {
                                let w = Matrix { quants: p.cached, scales: p.cached_scales, k: p.k };
                                super::super::vector1::<$format, _, { $format::LANE_UNITS }, EARLY_EXPERTS, true, false, false>(epilogue, x, w, first, Nothing, row)
                            }
                            Place::Away => zeros(p.y.add((pair * p.n) as usize), p.n),
                        }
                    }
                }

                vectors! { @ vector2 $format $name "quant_vector2_" 0 }
                vectors! { @ vector4 $format $name "quant_vector4_" 1 }
                vectors! { @ vector8 $format $name "quant_vector8_" 2 }
                vectors! { @ vector16 $format $name "quant_vector16_" 3 }
            })*
        }

        /// For one row of x, by format.
        pub const VECTOR1: [KernelSpec<Vector1>; FORMATS] = [$(kernels::$file::vector1),*];
        /// For one row of x with a norm, by format.
        pub const NORMED1: [KernelSpec<Vector1>; FORMATS] = [$(kernels::$file::normed1),*];
        /// For one row of x and y = silu(gate)·up, with a norm or without, by format.
        pub const GATED1: [KernelSpec<Vector1>; FORMATS] = [$(kernels::$file::gated1),*];
        /// For one row of x for each pair of a token and an expert, by format. grid = [[`blocks1`], pairs]
        pub const EXPERTS1: [KernelSpec<Experts1>; FORMATS] = [$(kernels::$file::experts1),*];
        /// By variant (2, 4, 8, 16 rows of x) and format. grid = [ceil(n / columns per block)], see [`variant_for`].
        pub const VECTOR: [[KernelSpec<Product>; FORMATS]; 4] = [
            [$(kernels::$file::vector2),*],
            [$(kernels::$file::vector4),*],
            [$(kernels::$file::vector8),*],
            [$(kernels::$file::vector16),*],
        ];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$(
            kernels::$file::vector1.info(),
            kernels::$file::normed1.info(),
            kernels::$file::gated1.info(),
            kernels::$file::experts1.info(),
            kernels::$file::vector2.info(),
            kernels::$file::vector4.info(),
            kernels::$file::vector8.info(),
            kernels::$file::vector16.info(),
        )*];
    };
    (@1 $kernel:ident $format:ident $name:literal $begin:literal $shared:ident $shuffles:ident $norm:literal) => {
        /// One row of x, in f32. grid = any number of blocks, see [`blocks1`].
        ///
        /// # Safety
        /// [`Vector1`] constrains the pointers, which are valid on the launching stream; n, k > 0.
        #[kernel(
            name = concat!($begin, $name), block = THREADS1, min_blocks = 2, shared_bytes = $shared, shuffles = $shuffles
        )]
        pub unsafe fn $kernel(p: Vector1) {
            let Vector1 { y, bias, residual, n, k, activation, .. } = p;
            let epilogue = Epilogue { y, bias, residual, n, activation };
            // SAFETY: this kernel's contract is the body's.
            unsafe {
                let (x, w) = (p.row(), Matrix { quants: p.w, scales: p.w_scales, k });
                super::super::vector1::<$format, _, { $format::LANE_UNITS }, EARLY, false, $norm, false>(epilogue, x, w, 0, Nothing, Declared)
            }
        }
    };
    (@ $kernel:ident $format:ident $name:literal $begin:literal $variant:literal) => {
        /// # Safety
        /// [`Product`] constrains the pointers, which are valid on the launching stream; 1 ≤ m ≤ the variant's rows,
        /// and 9 ≤ m for that of 16.
        #[kernel(
            name = concat!($begin, $name), block = THREADS, min_blocks = min_blocks::<$format>(VARIANTS[$variant].0),
            shuffles = Spread::<{ (VARIANTS[$variant].0 * VARIANTS[$variant].1) as usize }>::SHUFFLES,
            module = concat!("quant_vector_", $name)
        )]
        pub unsafe fn $kernel(p: Product) {
            const M: usize = VARIANTS[$variant].0 as usize;
            const R: usize = VARIANTS[$variant].1 as usize;
            let Product { y, bias, residual, m, n, k, x_k, activation, .. } = p;
            let epilogue = Epilogue { y, bias, residual, n, activation };
            let w = Matrix { quants: p.w, scales: p.w_scales, k };
            // SAFETY: this kernel's contract is the body's.
            unsafe { vector::<$format, M, R, { M * R }>(epilogue, p.x, p.x_scales, w, m, x_k) }
        }
    };
}

crate::for_each_format!(vectors);
