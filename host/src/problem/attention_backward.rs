//! The gradients of scaled dot-product attention.

use super::attention::{self, HeadStrides};

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
