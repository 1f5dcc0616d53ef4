//! A matrix of weights, in floating point or quantised.

use super::{Map, RmsNorm};
use crate::ops::{self, Epilogue};
use crate::quant::QuantTensor;
use crate::{DType, Result, Tensor, TensorMut};

/// Weights [n, k]: a [`Tensor`] or a [`QuantTensor`], either of which turns into one by `into()`.
///
/// ```
/// use pascaline::nn::{Linear, Matrix};
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor, ops};
/// let weight = Tensor::randn([4, 64], DType::F32, 1, &Device::Cpu)?;
/// let quantized = Matrix::from(ops::quantize(&weight, Format::Q4_0)?);
/// assert_eq!((quantized.dims(), quantized.bytes()), (&[4, 64][..], 4 * 2 * 18)); // two blocks of 18 bytes in a row
/// assert_eq!(Matrix::from(weight).bytes(), 4 * 64 * 4);
/// let linear = Linear::new(quantized, None)?; // modules take either
/// assert_eq!(linear.out_features(), 4);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum Matrix {
    /// In f32 or f16.
    Plain(Tensor),
    /// In 8 or 4 bits; in products with it activations are quantised to 8 bits.
    Quantized(QuantTensor),
}

impl From<Tensor> for Matrix {
    fn from(weight: Tensor) -> Self {
        Self::Plain(weight)
    }
}

impl From<QuantTensor> for Matrix {
    fn from(weight: QuantTensor) -> Self {
        Self::Quantized(weight)
    }
}

impl Matrix {
    /// The dimensions: two, unless a plain tensor is no matrix.
    pub fn dims(&self) -> &[usize] {
        match self {
            Self::Plain(weight) => weight.dims(),
            Self::Quantized(weight) => weight.shape().dims(),
        }
    }

    /// Bytes as it is stored; a product with few rows reads them once.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Plain(weight) => weight.shape().elements() * weight.dtype().size(),
            Self::Quantized(weight) => weight.bytes(),
        }
    }

    /// As [`Linear::map`](super::Linear::map).
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        Ok(match self {
            Self::Plain(weight) => Self::Plain(f(weight)?),
            Self::Quantized(weight) => Self::Quantized(weight.map(f)?),
        })
    }

    /// y = act(norm(x)·Wᵀ + bias) + residual, as [`ops::linear_into`] has it.
    pub(super) fn linear_into(
        &self,
        y: TensorMut,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        epilogue: &Epilogue,
    ) -> Result<()> {
        let norm = norm.map(RmsNorm::parts);
        match self {
            Self::Plain(weight) => ops::linear_into(y, x, weight, norm, epilogue),
            Self::Quantized(weight) => ops::quant_linear_into(y, x, weight, norm, epilogue),
        }
    }

    /// The rows that `ids` name, in f32.
    pub(super) fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain(table) => ops::embedding(table, ids),
            Self::Quantized(table) => ops::quant_embedding(table, ids, DType::F32),
        }
    }
}
