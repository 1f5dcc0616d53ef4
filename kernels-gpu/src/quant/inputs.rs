//! The activations for one unit of weights.

/// The activations for one unit of weights.
#[derive(Clone, Copy)]
pub(crate) struct Inputs {
    /// Runs of 16 values; for units of 32 values only the first two are used.
    pub runs: [[u32; 4]; 4],
    /// The scales and sums of the unit's blocks.
    pub blocks: [BlockInput; 2],
}

/// The scale of 32 activations, and a number that depends on their sum.
#[derive(Clone, Copy, Default)]
pub(crate) struct BlockInput {
    /// Their scale.
    pub scale: f32,
    /// [`Weights::of_sum`](super::weights::Weights::of_sum) of the block: each format needs the sum in a different form.
    pub sum: u32,
}
