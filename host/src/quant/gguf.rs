//! GGUF's blocks: quants and scales interleaved, as files hold them. Source: ggml's published block layouts, which
//! [`kernels_gpu::quant::blocks`] restates with their sizes.

use super::{Format, QuantTensor, block, name};
use crate::{Device, Error, Result, Shape, Tensor};
use half::f16;
use kernels_gpu::quant::blocks::{BlockQ4_0, BlockQ4K, BlockQ8_0, ScalesQ4K};

/// Bytes of a block's scales and of its quants; `None` if the format is none of GGUF's.
const fn parts(format: Format) -> Option<(usize, usize)> {
    match format {
        Format::I8 => None,
        Format::Q8_0 => Some((2, size_of::<BlockQ8_0>() - 2)),
        Format::Q4_0 => Some((2, size_of::<BlockQ4_0>() - 2)),
        Format::Q4K => Some((size_of::<ScalesQ4K>(), size_of::<BlockQ4K>() - size_of::<ScalesQ4K>())),
    }
}

fn unsupported(op: &'static str, argument: &'static str, value: String, reason: &str) -> Error {
    Error::Unsupported { op, argument, value, reason: reason.into() }
}

impl QuantTensor {
    /// A tensor [n, k] from the blocks of a GGUF file, outermost first (GGUF itself lists dimensions innermost first).
    ///
    /// # Errors
    /// [`Error::Shape`] if `shape` is not [n, k], [`Error::Unsupported`] for `I8`, for rows that are not whole blocks
    /// (32 values; `Q4K`: 256), and if the number of bytes is not the shape's; [`Error::OutOfMemory`].
    pub fn from_gguf_bytes(
        format: Format,
        shape: impl Into<Shape>,
        bytes: &[u8],
        device: &Device,
    ) -> Result<Self> {
        const OP: &str = "from_gguf_bytes";
        let no_format =
            || unsupported(OP, "format", name(format).into(), "GGUF has Q8_0, Q4_0 and Q4_K of these");
        let (scale_bytes, quant_bytes) = parts(format).ok_or_else(no_format)?;
        let mut tensor = Self::uninitialized(format, shape.into(), &Device::Cpu)?;
        if tensor.k != tensor.cols() {
            let reason = format!("rows must be whole blocks of {} values", block(format));
            return Err(unsupported(OP, "k", tensor.cols().to_string(), &reason));
        }
        let blocks = tensor.rows() * (tensor.k / block(format));
        if bytes.len() != blocks * (scale_bytes + quant_bytes) {
            let reason = format!("{} takes {} bytes", tensor.shape(), blocks * (scale_bytes + quant_bytes));
            return Err(unsupported(OP, "bytes", bytes.len().to_string(), &reason));
        }
        let mut quants = vec![0u8; blocks * quant_bytes];
        let mut scales = vec![0u8; blocks * scale_bytes];
        let targets = quants.chunks_exact_mut(quant_bytes).zip(scales.chunks_exact_mut(scale_bytes));
        for (from, (quants, scales)) in bytes.chunks_exact(scale_bytes + quant_bytes).zip(targets) {
            let (from_scales, from_quants) = from.split_at(scale_bytes);
            scales.copy_from_slice(from_scales);
            quants.copy_from_slice(from_quants);
        }
        tensor.quants = Tensor::from_slice(&words(&quants), tensor.quants.shape(), device)?;
        tensor.scales = match format {
            Format::Q4K => Tensor::from_slice(&words(&scales), tensor.scales.shape(), device)?,
            _ => {
                let halves: Vec<_> =
                    scales.chunks_exact(2).map(|pair| f16::from_le_bytes([pair[0], pair[1]])).collect();
                Tensor::from_slice(&halves, tensor.scales.shape(), device)?
            }
        };
        Ok(tensor)
    }

    /// The blocks as a GGUF file holds them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for `I8` and for rows that are not whole blocks, or a device error.
    pub fn to_gguf_bytes(&self) -> Result<Vec<u8>> {
        const OP: &str = "to_gguf_bytes";
        let format = self.format();
        let no_format =
            || unsupported(OP, "format", name(format).into(), "GGUF has Q8_0, Q4_0 and Q4_K of these");
        let (scale_bytes, quant_bytes) = parts(format).ok_or_else(no_format)?;
        if self.k != self.cols() {
            let reason = format!("rows must be whole blocks of {} values", block(format));
            return Err(unsupported(OP, "k", self.cols().to_string(), &reason));
        }
        let quants: Vec<u8> =
            self.quants.to_vec::<u32>()?.iter().flat_map(|word| word.to_le_bytes()).collect();
        let scales: Vec<u8> = match format {
            Format::Q4K => self.scales.to_vec::<u32>()?.iter().flat_map(|word| word.to_le_bytes()).collect(),
            _ => self.scales.to_vec::<f16>()?.iter().flat_map(|half| half.to_le_bytes()).collect(),
        };
        let blocks = scales.chunks_exact(scale_bytes).zip(quants.chunks_exact(quant_bytes));
        Ok(blocks.flat_map(|(scales, quants)| scales.iter().chain(quants)).copied().collect())
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}
