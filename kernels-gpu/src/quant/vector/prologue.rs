//! What a block does before it multiplies rows of x that are not quantised: it normalises them, if that is asked for, and quantises
//! them into its shared memory.

use crate::device::unroll::unroll;
use crate::device::{Shared, keep_order, prefetch, shared};
use crate::quant::activations::{SharedRow, block_words, quant_words};
use crate::quant::encode::{LANES, activations, four, four_of};
use crate::quant::norm::{RUN, row_factor, run_squares};
use crate::quant::weights::Weights;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

/// Warps of a block that quantises x. With more warps fewer blocks quantise it, but each barrier waits for more warps.
pub(in crate::quant) const WARPS1: u32 = 16;
pub(in crate::quant) const THREADS1: u32 = WARPS1 * 32;
/// Quantised values of a row of x that a block holds at a time.
pub(super) const TILE: u32 = 8192;
/// Bytes of a row's quantised values in shared memory.
pub(super) const TILE_BYTES: u32 = 4 * (quant_words(TILE) + block_words(TILE));

/// The tile of x that begins at value `from`, and its quantisation into shared memory by a block.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub x: *const f32,
    pub cols: u32,
    pub from: u32,
    /// The thread's number.
    pub tid: u32,
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
    pub unsafe fn early<const X: usize, const PARTS: bool>(self, first: u32) -> [[f32; 4]; X] {
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
    /// [`Vector`](super::one::Vector) says, and its factor is x's.
    pub unsafe fn quantize<W: Weights, const X: usize, const PARTS: bool>(
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
    pub unsafe fn norm_factor<const X: usize>(
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
    pub fn prefetch(self, weight: *const f32) {
        let mut word = self.tid;
        while word * 4 < self.cols {
            prefetch(weight.wrapping_add(4 * word as usize));
            word += THREADS1;
        }
    }
}

/// What x is multiplied by.
#[derive(Clone, Copy)]
pub(super) struct Norm {
    /// [cols], or null for none
    pub weight: *const f32,
    pub factor: f32,
}

/// The block's memory for a tile of x.
pub(in crate::quant) trait Memory {
    fn row(self) -> SharedRow<TILE>;
}

/// Declares it where it is used.
pub(in crate::quant) struct Declared;

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
