//! Quantised tensors: weights in 8 to 4 bits, and activations in 8 bits.
//!
//! | [`Format`] | bits per value | scales                                   | for                                        |
//! |------------|----------------|------------------------------------------|--------------------------------------------|
//! | `I8`       | 8              | one f32 per row                          | rows without outliers; scales may be chosen |
//! | `Q8_0`     | 8.5            | one f16 per 32 values                    | nearly lossless                            |
//! | `Q4_0`     | 4.5            | one f16 per 32 values                    | speed: the cheapest 4 bits to multiply     |
//! | `Q4K`      | 4.5            | 6 bits per 32 values under f16 per 256, with minima | quality: at the same size as Q4_0 0.88 of its error on ggml's test data |
//! | `Q5K`      | 5.5            | as Q4_K                                  | between Q4_K and Q6_K                      |
//! | `Q6K`      | 6.6            | 8 bits per 16 values under one f16 per 256 | the embedding and output matrices of 4-bit models |
//! | `Iq4Nl`    | 4.5            | one f16 per 32 values; 16 unevenly spaced levels | less error than Q4_0 at its size, rows of any multiple of 32 |
//! | `Iq4Xs`    | 4.25           | 6 bits per 32 values under one f16 per 256; levels as Iq4Nl | small, with less error than Q4_0 |
//! | `Mxfp4`    | 4.5 (4.25 in files) | a power of two per 32 values; 4-bit floats | checkpoints that were made in it; a larger error than Q4_0's |
//!
//! All but `I8` are GGUF's formats; [`QuantTensor::from_gguf_bytes`] reads a file's bytes. In
//! memory quants and scales are separate arrays, so that kernels can load 16 bytes at a time.

mod choice;
mod gguf;
mod report;
mod sizes;

pub use choice::ScaleChoice;
pub use gguf::dequantize_blocks;
pub(crate) use gguf::{bytes, bytes_mut};
pub use kernels_gpu::quant::Format;
pub use kernels_gpu::quant::formats::{DeviceStorage, GgmlType};
pub use report::ErrorReport;

use crate::{DType, Device, Error, Result, Shape, Tensor};
use kernels_gpu::quant::blocks::{BLOCK, SUPER_BLOCK};
use kernels_gpu::quant::formats::Scales;

/// Every format.
pub const FORMATS: [Format; kernels_gpu::quant::FORMATS] = Format::ALL;

/// The name in case ids, kernels and messages.
pub const fn name(format: Format) -> &'static str {
    format.descriptor().name
}

/// Bits of a quant, not counting scales.
pub const fn bits(format: Format) -> usize {
    format.descriptor().bits
}

/// Values of a block; a row may be divided only between blocks.
pub const fn block_len(format: Format) -> usize {
    format.descriptor().block
}

/// The relative error on normal values (root mean square), at most.
pub const fn error(format: Format) -> f64 {
    format.descriptor().error
}

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

/// Activations [m, k] in 8 bits, with a scale and a sum per 32 values, from
/// [`ops::quantize_rows`](crate::ops::quantize_rows), for one or more products.
#[derive(Clone, Debug)]
pub struct QuantRows {
    /// The shape of the tensor that was quantised.
    pub(crate) shape: Shape,
    /// Values of a row with padding, a multiple of 256.
    pub(crate) k: usize,
    /// u32 [m, k/4]
    pub(crate) quants: Tensor,
    /// u32 [m, k/32, 2]: `RowScale`
    pub(crate) scales: Tensor,
}

impl QuantRows {
    /// With undefined contents, for an op to write.
    pub(crate) fn uninitialized(shape: Shape, device: &Device) -> Result<Self> {
        let (m, cols) = shape.rows_cols();
        let k = cols.next_multiple_of(SUPER_BLOCK);
        let quants = Tensor::uninitialized([m, k / 4], DType::U32, device)?;
        let scales = Tensor::uninitialized([m, k / BLOCK, 2], DType::U32, device)?;
        Ok(Self { shape, k, quants, scales })
    }

    /// A range of its rows, which shares its memory.
    pub(crate) fn narrow(&self, start: usize, rows: usize) -> Result<Self> {
        let shape = [rows, self.shape.rows_cols().1].into();
        let [quants, scales] = [&self.quants, &self.scales].map(|part| part.narrow(0, start, rows));
        Ok(Self { shape, k: self.k, quants: quants?, scales: scales? })
    }

    /// The shape of the tensor that was quantised.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The integer sums Σ q of every block of 32, and the quants, for checks: ([m, k] i8, [m, k/32] scale and sum).
    #[allow(clippy::type_complexity)] // two parallel arrays, as documented
    pub fn to_vecs(&self) -> Result<(Vec<i8>, Vec<(f32, i32)>)> {
        let quants = bytemuck::cast_slice(&self.quants.to_vec::<u32>()?).to_vec();
        let scales = self.scales.to_vec::<u32>()?;
        let scales = scales.chunks_exact(2).map(|pair| (f32::from_bits(pair[0]), pair[1] as i32)).collect();
        Ok((quants, scales))
    }
}
