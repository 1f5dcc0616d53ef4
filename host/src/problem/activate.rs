//! The epilogue of a linear map: bias, activation, residual.

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
    /// silu(g)·u, with g from the first half of the columns and u from the second: the result has half as many (Shazeer
    /// 2020, "GLU variants improve transformer").
    SwiGlu,
}

impl Activation {
    /// The columns of the result for `cols` columns; `None` if two halves are needed and `cols` is odd.
    pub(crate) fn columns(self, cols: usize) -> Option<usize> {
        match self {
            Self::SwiGlu => cols.is_multiple_of(2).then_some(cols / 2),
            _ => Some(cols),
        }
    }
}

/// The operations on a product's sums before they are stored: act(product + bias) + residual. The default does nothing.
///
/// ```
/// use pascaline::ops::{self, Epilogue};
/// use pascaline::{Device, Tensor};
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2], &Device::Cpu)?;
/// let w = Tensor::from_slice(&[1.0f32, 1.0, 1.0, -1.0], [2, 2], &Device::Cpu)?; // [out, in]
/// let bias = Tensor::from_slice(&[10.0f32, 20.0], [2], &Device::Cpu)?;
/// let epilogue = Epilogue { bias: Some(&bias), residual: Some(&x), ..Epilogue::default() };
/// assert_eq!(ops::linear(&x, &w, None, &epilogue)?.to_vec::<f32>()?, [3.0 + 10.0 + 1.0, -1.0 + 20.0 + 2.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// \[n\], of the output's type.
    pub bias: Option<&'a Tensor>,
    /// Applied after the bias.
    pub activation: Activation,
    /// The output's shape and type; added last.
    pub residual: Option<&'a Tensor>,
}
