//! A matrix of weights, in floating point or quantised.

use super::{Adapted, Map, RmsNorm, Stacked};
use crate::ops::{self, Epilogue};
use crate::quant::{Format, QuantTensor};
use crate::{DType, Error, Result, Tensor, TensorMut};

/// Weights [n, k]: a [`Tensor`] or a [`QuantTensor`]; `into()` converts either.
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
    /// In 8 bits or less. Products with it quantise the activations to 8 bits.
    Quantized(QuantTensor),
    /// Of several parts with different types; see [`Matrix::stacked`].
    Stacked(Stacked),
    /// With a low-rank change beside it: [`Matrix::adapted`].
    Adapted(Adapted),
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
    /// Matrices of equal width as one, each below the previous one.
    ///
    /// # Errors
    /// [`Error::Shape`] if their widths differ or the list is empty.
    pub fn stacked(mut parts: Vec<Self>) -> Result<Self> {
        match parts.len() {
            1 => Ok(parts.remove(0)),
            _ => Ok(Self::Stacked(Stacked::new(parts)?)),
        }
    }

    /// `base` + b·a, whose product is base·x + b·(a·x).   base: [n, k], a: [rank, k], b: [n, rank]
    ///
    /// # Errors
    /// [`Error::Shape`] if the dimensions do not fit each other.
    pub fn adapted(base: Self, a: Tensor, b: Tensor) -> Result<Self> {
        Ok(Self::Adapted(Adapted::new(base, a, b)?))
    }

    /// The dimensions: two, unless a plain tensor is not a matrix.
    pub fn dims(&self) -> &[usize] {
        match self {
            Self::Plain(weight) => weight.dims(),
            Self::Quantized(weight) => weight.shape().dims(),
            Self::Stacked(stacked) => stacked.dims(),
            Self::Adapted(adapted) => adapted.dims(),
        }
    }

    /// A range of its rows, which shares its memory.
    ///
    /// # Errors
    /// [`Error::Shape`] if the range exceeds the rows, [`Error::Unsupported`] for a matrix of several types.
    pub fn narrow(&self, start: usize, rows: usize) -> Result<Self> {
        match self {
            Self::Plain(weight) => Ok(Self::Plain(weight.narrow(0, start, rows)?)),
            Self::Quantized(weight) => Ok(Self::Quantized(weight.narrow(start, rows)?)),
            Self::Adapted(adapted) => Ok(Self::Adapted(adapted.narrow(start, rows)?)),
            Self::Stacked(_) => {
                let (argument, value) = ("matrix", "a stacked matrix".to_owned());
                let reason = "rows are taken of a matrix of one type".into();
                Err(Error::Unsupported { op: "narrow", argument, value, reason })
            }
        }
    }

    /// Bytes of the stored matrix; a product with few rows reads them once.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Plain(weight) => weight.shape().elements() * weight.dtype().size(),
            Self::Quantized(weight) => weight.bytes(),
            Self::Stacked(stacked) => stacked.parts().iter().map(Self::bytes).sum(),
            Self::Adapted(adapted) => adapted.bytes(),
        }
    }

    /// The formats of its parts, from the top; `None` for parts in floating point.
    pub fn formats(&self) -> Vec<Option<Format>> {
        match self {
            Self::Plain(_) => vec![None],
            Self::Quantized(weight) => vec![Some(weight.format())],
            Self::Stacked(stacked) => stacked.parts().iter().flat_map(Self::formats).collect(),
            Self::Adapted(adapted) => adapted.base().formats(),
        }
    }

    /// The same matrix in pinned host memory, as [`Tensor::in_host_memory`] has it.
    pub fn in_host_memory(&self) -> Result<Self> {
        self.map(&mut |tensor| tensor.in_host_memory())
    }

    /// As [`Linear::map`](super::Linear::map).
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        Ok(match self {
            Self::Plain(weight) => Self::Plain(f(weight)?),
            Self::Quantized(weight) => Self::Quantized(weight.map(f)?),
            Self::Stacked(stacked) => Self::Stacked(stacked.map(f)?),
            Self::Adapted(adapted) => Self::Adapted(adapted.map(f)?),
        })
    }

    /// y = act(norm(x)·Wᵀ + bias) + residual, as [`ops::linear_into`].
    pub(super) fn linear_into(
        &self,
        y: TensorMut,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        epilogue: &Epilogue,
    ) -> Result<()> {
        let parts = norm.map(RmsNorm::parts);
        match self {
            Self::Plain(weight) => ops::linear_into(y, x, weight, parts, epilogue),
            Self::Quantized(weight) => ops::quant_linear_into(y, x, weight, parts, epilogue),
            Self::Stacked(stacked) => stacked.linear_into(y, x, norm, epilogue),
            Self::Adapted(adapted) => adapted.linear_into(y, x, norm, epilogue),
        }
    }

    /// y = act(product + bias) + residual, where the product could not do that itself.
    pub(super) fn finish_into(y: TensorMut, product: &Tensor, epilogue: &Epilogue) -> Result<()> {
        let Epilogue { bias, activation, residual } = *epilogue;
        let Some(residual) = residual else { return ops::activate_into(y, product, bias, activation) };
        ops::add_into(y, &ops::activate(product, bias, activation)?, residual)
    }

    /// The rows with the numbers `ids`, in f32.
    pub(super) fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain(table) => ops::embedding(table, ids),
            Self::Quantized(table) => ops::quant_embedding(table, ids, DType::F32),
            Self::Adapted(adapted) => adapted.rows(ids),
            Self::Stacked(_) => {
                let (argument, value) = ("table", "a stacked matrix".to_owned());
                let reason = "rows are looked up in a matrix of one type".into();
                Err(Error::Unsupported { op: "Embedding", argument, value, reason })
            }
        }
    }
}
