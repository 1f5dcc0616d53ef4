//! What stands behind a linear map.

use crate::Tensor;

/// A function of one value, or of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// x
    #[default]
    Identity,
    /// x·σ(x)
    Silu,
    /// x·Φ(x), with Φ approximated by tanh.
    GeluTanh,
    /// x·Φ(x), Φ the normal distribution.
    GeluErf,
    /// silu(g)·u, with g from the first half of the columns and u from the second: half as many columns remain (Shazeer
    /// 2020, "GLU variants improve transformer").
    SwiGlu,
}

impl Activation {
    /// The columns that remain of `cols`; `None` where they have no halves.
    pub(crate) fn columns(self, cols: usize) -> Option<usize> {
        match self {
            Self::SwiGlu => cols.is_multiple_of(2).then_some(cols / 2),
            _ => Some(cols),
        }
    }
}

/// What happens to a product before it is written: act(product + bias) + residual.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// \[n\], of the output's type.
    pub bias: Option<&'a Tensor>,
    /// Applied after the bias.
    pub activation: Activation,
    /// The output's shape and type; added last.
    pub residual: Option<&'a Tensor>,
}
