//! y = act(x·wᵀ + bias) + residual for up to 16 rows of x.   y: [m, n] f32, w: [n, k].
//!
//! Idea: it is bound by reading w. A warp reads R rows of w at a time, and each lane U units of each row. A unit is a block
//! of 32 values; in formats with super-blocks it is two blocks, which mostly share bytes. All loads are in flight before the
//! first unit is multiplied with all rows of x. The lanes' sums are added at the end.
//!
//! For each unit and row, an integer sum is multiplied by one scale. The sum starts from the bits of a float, so that it
//! ends as a float (see [`tile`]). A lane past the last unit of a row reads the last unit again, and multiplies it by zeros
//! of x or not at all.
//!
//! [`tile`]: super::tile
//!
//! | file      | kernel              | rows of x        | rows of w per warp and units of each per lane |
//! |-----------|---------------------|------------------|-----------------------------------------------|
//! | one       | quant_vector1_‹f›   | 1, f32           | 2 · [`LANE_UNITS`](super::weights::Weights::LANE_UNITS) |
//! |           | quant_normed1_‹f›   | 1, f32, with a norm | as quant_vector1                        |
//! |           | quant_gated1_‹f›    | 1, f32, with a norm or without; y = silu(gate)·up, of a row of w each | as quant_vector1 |
//! | experts   | quant_experts1_‹f›  | 1, f32, and an expert's rows of w, for each pair | as quant_vector1 |
//! | quantized | quant_vector2_‹f›   | 1, 2, quantised  | 2 · 1                                         |
//! |           | quant_vector4_‹f›   | 3, 4, quantised  | 2 · 1                                         |
//! |           | quant_vector8_‹f›   | 5 to 8, quantised | 2 · 1                                        |
//! |           | quant_vector16_‹f›  | 9 to 16, quantised | 2 · 1                                       |
//!
//! `stage` loads w, `prologue` quantises rows of x in f32, and `spread` adds the lanes' sums. All of them have x in shared memory.
//!
//! All of them add the sum of an element in the same order. So a row of y has the same bits whatever the other rows of x are
//! and however many, up to 16.

pub mod experts;
pub mod one;
pub(super) mod prologue;
pub mod quantized;
mod spread;
mod stage;
