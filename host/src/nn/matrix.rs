//! A matrix of weights: in floating point, quantised, of several parts, or with a low-rank change beside it.

use super::map::Map;
use crate::quant::{Format, QuantTensor};
use crate::{Error, Result, Tensor};

/// A low-rank change: A [rank, k] and B [n, rank] of [`Matrix::adapted`]; `None` where there is none.
pub type Change = Option<[Tensor; 2]>;

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

    /// With a change beside it, whose memory both share.
    ///
    /// # Errors
    /// As [`adapted`](Self::adapted).
    pub fn with(&self, change: &Change) -> Result<Self> {
        match change {
            Some([a, b]) => Self::adapted(self.clone(), a.clone(), b.clone()),
            None => Ok(self.clone()),
        }
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
}

/// Matrices of equal width that are stored in different types. For example, files of mixed precision keep the projection of
/// values in more bits than those of queries and keys. Each part is a separate product; activations are normalised and
/// quantised once.
///
/// ```
/// use pascaline::nn::{Linear, Matrix};
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor, ops};
/// let part = |seed| Tensor::randn([2, 64], DType::F32, seed, &Device::Cpu);
/// let quantized = ops::quantize(&part(2)?, Format::Q8_0)?;
/// let stacked = Matrix::stacked(vec![part(1)?.into(), quantized.into()])?;
/// assert_eq!(stacked.formats(), [None, Some(Format::Q8_0)]);
/// assert_eq!(Linear::new(stacked, None)?.out_features(), 4);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stacked {
    pub(super) parts: Vec<Matrix>,
    pub(super) dims: [usize; 2],
}

impl Stacked {
    /// # Errors
    /// [`Error::Shape`] if a part is not a matrix of the first one's width, or there is none.
    pub(super) fn new(parts: Vec<Matrix>) -> Result<Self> {
        let width = parts.first().and_then(|first| first.dims().get(1)).copied().unwrap_or(0);
        let wrong = |part: &&Matrix| part.dims().len() != 2 || part.dims()[1] != width;
        if let Some(part) = parts.iter().find(wrong) {
            let (expected, found) = (format!("[_, {width}]"), part.dims().into());
            return Err(Error::Shape { op: "Matrix", argument: "part", expected, found });
        }
        let rows = parts.iter().map(|part| part.dims()[0]).sum();
        Ok(Self { parts, dims: [rows, width] })
    }

    /// The parts, from the top.
    pub fn parts(&self) -> &[Matrix] {
        &self.parts
    }

    pub(super) fn dims(&self) -> &[usize] {
        &self.dims
    }

    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        let parts = self.parts.iter().map(|part| part.map(f)).collect::<Result<_>>()?;
        Ok(Self { parts, dims: self.dims })
    }
}

/// W + B·A, whose product is W·x + B·(A·x): a quantised W stays as it is stored (Hu et al. 2021, "LoRA").
///
/// ```
/// use pascaline::nn::{Linear, Matrix};
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor, ops};
/// let base = ops::quantize(&Tensor::ones([4, 32], DType::F32, &Device::Cpu)?, Format::Q8_0)?;
/// let a = Tensor::ones([2, 32], DType::F32, &Device::Cpu)?;
/// let b = Tensor::full(0.5f32, [4, 2], &Device::Cpu)?;
/// let matrix = Matrix::adapted(base.into(), a, b)?;
/// assert_eq!(matrix.formats(), [Some(Format::Q8_0)]);
/// let y = Linear::new(matrix, None)?.forward(&Tensor::ones([1, 32], DType::F32, &Device::Cpu)?)?;
/// assert!(y.to_vec::<f32>()?.iter().all(|y| (y - 64.0).abs() < 0.1)); // 32 + 2 · 0.5 · 32
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adapted {
    pub(super) base: Box<Matrix>,
    /// A: [rank, in]
    pub(super) a: Tensor,
    /// B: [out, rank]
    pub(super) b: Tensor,
}

impl Adapted {
    /// # Errors
    /// [`Error::Shape`] if the dimensions do not fit each other.
    pub(super) fn new(base: Matrix, a: Tensor, b: Tensor) -> Result<Self> {
        let wrong = |argument, expected: String, found: &Tensor| {
            Err(Error::Shape { op: "Matrix", argument, expected, found: found.shape().clone() })
        };
        let &[n, k] = base.dims() else { return wrong("base", "a matrix beside its change".into(), &a) };
        match (a.dims(), b.dims()) {
            (&[rank, width], _) if width != k => wrong("a", format!("[{rank}, {k}]"), &a),
            (&[rank, _], found) if *found != [n, rank] => wrong("b", format!("[{n}, {rank}]"), &b),
            (&[_, _], _) => Ok(Self { base: Box::new(base), a, b }),
            _ => wrong("a", format!("[rank, {k}]"), &a),
        }
    }

    /// The matrix without the change.
    pub fn base(&self) -> &Matrix {
        &self.base
    }

    pub(super) fn dims(&self) -> &[usize] {
        self.base.dims()
    }

    pub(super) fn bytes(&self) -> usize {
        let of = |part: &Tensor| part.shape().elements() * part.dtype().size();
        self.base.bytes() + of(&self.a) + of(&self.b)
    }

    pub(super) fn narrow(&self, start: usize, rows: usize) -> Result<Self> {
        let base = Box::new(self.base.narrow(start, rows)?);
        Ok(Self { base, a: self.a.clone(), b: self.b.narrow(0, start, rows)? })
    }

    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        Ok(Self { base: Box::new(self.base.map(f)?), a: f(&self.a)?, b: f(&self.b)? })
    }
}
