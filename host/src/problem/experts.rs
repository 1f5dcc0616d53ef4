//! Which experts each token has.

use crate::memory::DeviceBuffer;
use crate::{Result, Tensor};

/// The experts of tokens and their weights, from [`ops::route`](crate::ops::route). A pair is a token and one of its experts. The
/// products of [`ops::experts_linear`](crate::ops::experts_linear) have a row for each pair, in an order that this knows.
#[derive(Clone, Debug)]
pub struct Routes {
    /// u32 [tokens, top_k], below `experts`
    pub(crate) ids: Tensor,
    /// f32 [tokens, top_k]
    pub(crate) weights: Tensor,
    pub(crate) experts: usize,
    /// `None` where rows are in the order of the pairs.
    pub(crate) sorted: Option<Sorted>,
}

/// The order of rows by expert; those of one expert are in the order of the pairs.
#[derive(Clone, Debug)]
pub(crate) struct Sorted {
    /// u32 [pairs]: the token of each row
    pub tokens: Tensor,
    /// u32 [pairs]: the row of each pair
    pub places: Tensor,
    /// u32 [experts + 1]: each expert's first row, and the number of rows
    pub starts: Tensor,
}

impl Routes {
    /// The number of experts.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        self.ids.dims()[0]
    }

    /// Experts of each token.
    pub fn top_k(&self) -> usize {
        self.ids.dims()[1]
    }

    /// Whether rows are in the order of the experts, as those of many tokens are.
    pub(crate) fn are_sorted(&self) -> bool {
        self.sorted.is_some()
    }

    /// Each token's experts and their weights, the largest weight first: [tokens, top_k]. Waits for the device.
    ///
    /// # Errors
    /// A device error.
    pub fn to_vecs(&self) -> Result<(Vec<u32>, Vec<f32>)> {
        Ok((self.ids.to_vec()?, self.weights.to_vec()?))
    }
}

/// The rows that a product with experts' matrices takes.
#[derive(Clone, Copy, Debug)]
pub enum ExpertRows<'a> {
    /// [tokens, k]: a token's row goes to each of its experts.
    Tokens(&'a Tensor),
    /// [pairs, k]: the rows of another product, in its order.
    Pairs(&'a Tensor),
}

/// Where the matrices of experts with a slot are, for a product of few rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    /// u32 [experts]: the slot of each, or [`NO_SLOT`](kernels_gpu::experts::NO_SLOT).
    pub slots: &'a DeviceBuffer,
    /// The addresses of all slots' quants (or values) and scales.
    pub cached: [u64; 2],
    /// Whether the rows of experts without a slot become zeros: another computes them.
    pub on_device: bool,
}
