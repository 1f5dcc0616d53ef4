//! How products with a vector read quantised activations: one unit of weights at a time, from shared memory.

use super::blocks::RowScale;
pub(crate) use super::inputs::{BlockInput, Inputs};
use super::weights::{BLOCK_VALUES, Weights};
use crate::device::Shared;
use crate::device::int8::load_pair;
use crate::device::unroll::unroll;
use cuda_std::inlined;

impl Inputs {
    /// The activations for unit `unit`, from `x`.
    ///
    /// # Safety
    /// The row has the unit.
    #[inline(always)]
    pub(super) unsafe fn load<W: Weights, const VALUES: u32>(x: SharedRow<VALUES>, unit: u32) -> Self {
        let blocks = W::UNIT / BLOCK_VALUES;
        let mut inputs = Self { runs: [[0; 4]; 4], blocks: [BlockInput::default(); 2] };
        // SAFETY: the row has the unit: this function's contract. So it has the unit's runs and blocks.
        unsafe {
            unroll!(I < 4 => if (I as u32) < 2 * blocks {
                inputs.runs[I] = x.run::<W>(unit, I as u32);
            });
            unroll!(I < 2 => if (I as u32) < blocks {
                inputs.blocks[I] = x.block(unit * blocks + I as u32);
            });
        }
        inputs
    }
}

/// A row, or a part of one, in shared memory. The runs of 16 values are in four planes, run r in plane r % 4, so that the
/// 16-byte reads of neighbouring lanes have no bank conflicts, whether a unit has two runs or four.
#[derive(Clone, Copy)]
pub(super) struct SharedRow<const VALUES: u32> {
    /// Four quants a word.
    pub quants: Shared<u32>,
    /// A scale's bits and [`Weights::of_sum`] per block.
    pub blocks: Shared<u32>,
}

/// Words of a plane of a shared row of `values` values. 8 more than needed, so that planes begin in different banks.
const fn plane(values: u32) -> u32 {
    values / 16 + 8
}

/// Words of the quants of a shared row.
pub(super) const fn quant_words(values: u32) -> u32 {
    4 * plane(values)
}

/// Words of the scales and sums of a shared row's blocks.
pub(super) const fn block_words(values: u32) -> u32 {
    values / BLOCK_VALUES * 2
}

#[inlined]
impl<const VALUES: u32> SharedRow<VALUES> {
    /// Stores four quants at word `word` of the row.
    ///
    /// # Safety
    /// As [`Shared::set`].
    pub unsafe fn set(self, word: u32, quants: u32) {
        let run = word / 4;
        // SAFETY: word `word` is inside the row, and nobody else accesses it: this function's contract.
        unsafe { self.quants.set(run % 4 * plane(VALUES) + run / 4 * 4 + word % 4, quants) }
    }

    /// Stores run `run`, 16 quants.
    ///
    /// # Safety
    /// As [`Shared::set`].
    pub unsafe fn set_run(self, run: u32, quants: [u32; 4]) {
        // SAFETY: the run is inside the row, and nobody else accesses it: this function's contract.
        unsafe { self.quants.set4(run % 4 * plane(VALUES) + run / 4 * 4, quants) }
    }

    /// Stores the scale and the sum of block `block`.
    ///
    /// # Safety
    /// As [`Shared::set`].
    pub unsafe fn set_block(self, block: u32, scale: f32, sum: u32) {
        // SAFETY: the block is inside the row, and nobody else accesses its words: this function's contract.
        unsafe {
            self.blocks.set(block * 2, scale.to_bits());
            self.blocks.set(block * 2 + 1, sum);
        }
    }

    /// Run `run` of unit `unit`: 16 values.
    ///
    /// # Safety
    /// The row has the unit, written before a barrier.
    unsafe fn run<W: Weights>(self, unit: u32, run: u32) -> [u32; 4] {
        let first = unit * (W::UNIT / 16); // a unit's runs are in consecutive planes
        // SAFETY: the row has the unit: this function's contract. The plane exists: `first` % 4 + `run` < 4.
        unsafe { self.quants.get4((first % 4 + run) * plane(VALUES) + first / 4 * 4) }
    }

    /// The scale and the sum of block `block`.
    ///
    /// # Safety
    /// The row has this block, written before a barrier.
    unsafe fn block(self, block: u32) -> BlockInput {
        // SAFETY: the row has the block: this function's contract.
        let [scale, sum] = unsafe { self.blocks.get2(block * 2) };
        BlockInput { scale: f32::from_bits(scale), sum }
    }
}

/// # Safety
/// The row has that block.
#[inline(always)]
pub(super) unsafe fn row_scale(scales: *const u8, block: u32) -> RowScale {
    // SAFETY: the row has the block: this function's contract.
    let [scale, sum] = unsafe { load_pair(scales.add(block as usize * size_of::<RowScale>())) };
    RowScale { scale: f32::from_bits(scale), sum: sum as i32 }
}
