//! The gradients of scaled dot-product attention.

use super::attention::{self, HeadStrides};

/// The most bytes of scores that [`attention_backward`](crate::ops::attention_backward) has in memory at a time on a GPU, unless 64 queries of a
/// kv head's query heads have more.
pub const ATTENTION_BACKWARD_BYTES: usize = 96 << 20;

/// The sizes and strides of a checked call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// The call whose gradients are computed.
    pub forward: attention::Problem,
    pub dout: HeadStrides,
    pub dq: HeadStrides,
    pub dk: HeadStrides,
    pub dv: HeadStrides,
}
