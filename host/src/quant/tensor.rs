//! Weights in a quantised format.

use super::format::{Format, bits, block_len};
use crate::{DType, Device, Error, Result, Shape, Tensor};
use kernels_gpu::quant::blocks::{BLOCK, SUPER_BLOCK};
use kernels_gpu::quant::formats::Scales;

/// A matrix of weights [n, k] in a [`Format`], from [`ops::quantize`](crate::ops::quantize) or a GGUF file. Clones share storage.
#[derive(Clone, Debug)]
pub struct QuantTensor {
    format: Format,
    shape: Shape,
    /// Values of a row in memory, with padding.
    pub(crate) k: usize,
    /// u32 words: the quants, row-major.
    pub(crate) quants: Tensor,
    /// f32 [n], f16 (of MXFP4 the bits of bf16) [n, k/32], or u32 [n, k/256, words], as the format's [`Scales`] say.
    pub(crate) scales: Tensor,
}

impl QuantTensor {
    /// With undefined contents.
    ///
    /// # Errors
    /// [`Error::Shape`] if `shape` is not [n, k], [`Error::TooLarge`], [`Error::OutOfMemory`].
    pub fn uninitialized(format: Format, shape: Shape, device: &Device) -> Result<Self> {
        let (n, k) = Self::padded(format, &shape)?;
        let quants = Tensor::uninitialized([n, k / 32 * bits(format)], DType::U32, device)?;
        let (dtype, of_row) = match format.descriptor().scales {
            Scales::Row => (DType::F32, vec![]),
            Scales::Halves => (DType::F16, vec![k / BLOCK]),
            Scales::Words(words) => (DType::U32, vec![k / SUPER_BLOCK, words]),
        };
        let scales = Tensor::uninitialized([&[n], &of_row[..]].concat(), dtype, device)?;
        Ok(Self { format, shape, k, quants, scales })
    }

    /// Number of rows, and of values of a row with padding.
    pub(crate) fn padded(format: Format, shape: &Shape) -> Result<(usize, usize)> {
        let bad = |expected: &str| Error::Shape {
            op: "quantize",
            argument: "shape",
            expected: expected.into(),
            found: shape.clone(),
        };
        let &[n, cols] = shape.dims() else { return Err(bad("[n, k]")) };
        if cols == 0 {
            return Err(bad("[n, k] with k > 0"));
        }
        let limit = crate::MAX_ELEMENTS;
        let k = cols.checked_next_multiple_of(block_len(format)).filter(|k| *k <= limit).unwrap_or(limit + 1);
        match k.checked_mul(n.max(1)) {
            Some(values) if values <= limit => Ok((n, k)),
            _ => Err(Error::TooLarge {
                op: "quantize",
                argument: "shape",
                elements: n as u128 * cols as u128,
                limit: limit as u128,
            }),
        }
    }

    /// A range of its rows, which shares its memory.
    ///
    /// # Errors
    /// [`Error::Shape`] if the range exceeds the rows.
    pub fn narrow(&self, start: usize, rows: usize) -> Result<Self> {
        let shape = [rows, self.cols()].into();
        let [quants, scales] = [&self.quants, &self.scales].map(|part| part.narrow(0, start, rows));
        Ok(Self { shape, quants: quants?, scales: scales?, ..*self })
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// [n, k], without padding.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.shape.dims()[0]
    }

    /// Number of columns, without padding.
    pub fn cols(&self) -> usize {
        self.shape.dims()[1]
    }

    /// The device that it is on, with the stream.
    pub fn device(&self) -> Device {
        self.quants.device()
    }

    /// Bytes of quants and scales.
    pub fn bytes(&self) -> usize {
        [&self.quants, &self.scales].map(|part| part.shape().elements() * part.dtype().size()).iter().sum()
    }

    /// This tensor on another device or stream.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        self.map(&mut |part| part.to_device(device))
    }

    /// A copy with `f` applied to quants and scales; `f` keeps their shapes.
    pub(crate) fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { quants: f(&self.quants)?, scales: f(&self.scales)?, ..self.clone() })
    }
}
