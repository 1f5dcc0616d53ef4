//! A matrix of weights, as numbers or quantised.

use super::{Map, RmsNorm};
use crate::ops::{self, Epilogue};
use crate::quant::QuantTensor;
use crate::{DType, Result, Tensor, TensorMut};

/// Weights [n, k].
#[derive(Clone, Debug)]
pub enum Matrix {
    /// In f32 or f16.
    Plain(Tensor),
    /// In 8 or 4 bits; activations are quantised to 8 bits where they meet it.
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
    /// The extents: two of them, unless a plain tensor is no matrix.
    pub fn dims(&self) -> &[usize] {
        match self {
            Self::Plain(weight) => weight.dims(),
            Self::Quantized(weight) => weight.shape().dims(),
        }
    }

    /// Bytes that a product with few rows reads.
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

    /// Rows `ids` in f32.
    pub(super) fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain(table) => ops::embedding(table, ids),
            Self::Quantized(table) => ops::quant_embedding(table, ids, DType::F32),
        }
    }
}
