//! GGUF's blocks, which interleave quants and scales. [The formats](kernels_gpu::quant::formats) say how.

use super::format::{Format, block_len, name};
use super::tensor::QuantTensor;
use crate::parallel::InTasks;
use crate::{DType, Device, Error, Result, Shape, Tensor, TensorMut};
use half::f16;
use kernels_gpu::quant::formats::GgmlType;
use rayon::prelude::*;

/// Blocks that a thread converts at a time: about 100 KB.
const BLOCKS_PER_TASK: usize = 1024;

fn unsupported(op: &'static str, argument: &'static str, value: String, reason: &str) -> Error {
    Error::Unsupported { op, argument, value, reason: reason.into() }
}

impl QuantTensor {
    /// A tensor [n, k] from the blocks of a GGUF file, outermost first (GGUF itself lists dimensions innermost first).
    ///
    /// # Errors
    /// [`Error::Shape`] if `shape` is not [n, k], [`Error::Unsupported`] for `I8`, for rows that are not whole blocks
    /// ([`block_len`] values), and if the number of bytes is not the shape's; [`Error::OutOfMemory`].
    pub fn from_gguf_bytes(
        format: Format,
        shape: impl Into<Shape>,
        bytes: &[u8],
        device: &Device,
    ) -> Result<Self> {
        let shape = shape.into();
        let (blocks, of_block) = file_blocks("from_gguf_bytes", format, &shape)?;
        if bytes.len() != blocks * of_block {
            let reason = format!("{shape} takes {} bytes", blocks * of_block);
            return Err(unsupported("from_gguf_bytes", "bytes", bytes.len().to_string(), &reason));
        }
        let mut tensor = Self::uninitialized(format, shape, &Device::Cpu)?;
        let (mut quants, mut scales) = (tensor.quants.view_mut()?, tensor.scales.view_mut()?);
        let (quants, scales) = (bytes_mut(&mut quants), bytes_mut(&mut scales));
        let [of_quants, of_scales, of_file] = of_tasks(blocks, [quants.len(), scales.len(), bytes.len()]);
        let targets = quants.par_chunks_mut(of_quants).zip(scales.par_chunks_mut(of_scales));
        targets.zip(bytes.par_chunks(of_file)).in_tasks(|((quants, scales), bytes)| {
            (format.descriptor().from_file)(bytes, quants, scales);
        });
        tensor.to_device(device)
    }

    /// The blocks of a GGUF file.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for `I8` and for rows that are not whole blocks.
    pub fn to_gguf_bytes(&self) -> Result<Vec<u8>> {
        let (blocks, of_block) = file_blocks("to_gguf_bytes", self.format(), self.shape())?;
        let host = self.to_device(&Device::Cpu)?;
        let (quants, scales) = (bytes(&host.quants), bytes(&host.scales));
        let mut file = vec![0; blocks * of_block];
        let [of_quants, of_scales, of_file] = of_tasks(blocks, [quants.len(), scales.len(), file.len()]);
        let sources = quants.par_chunks(of_quants).zip(scales.par_chunks(of_scales));
        file.par_chunks_mut(of_file).zip(sources).in_tasks(|(file, (quants, scales))| {
            (self.format().descriptor().to_file)(file, quants, scales);
        });
        Ok(file)
    }
}

/// The number of blocks of a tensor of this shape in a GGUF file, and the bytes of each.
fn file_blocks(op: &'static str, format: Format, shape: &Shape) -> Result<(usize, usize)> {
    let Some(file) = &format.descriptor().file else {
        return Err(unsupported(op, "format", name(format).into(), "a GGUF file has no such blocks"));
    };
    let (n, k) = QuantTensor::padded(format, shape)?;
    let cols = shape.dims()[1];
    if k != cols {
        let reason = format!("rows must be whole blocks of {} values", block_len(format));
        return Err(unsupported(op, "k", cols.to_string(), &reason));
    }
    Ok((n * (k / block_len(format)), file.bytes))
}

/// The bytes of a task's blocks, for arrays with these bytes per block; never 0.
fn of_tasks(blocks: usize, bytes: [usize; 3]) -> [usize; 3] {
    bytes.map(|bytes| (bytes / blocks.max(1) * BLOCKS_PER_TASK).max(1))
}

/// The bytes of a contiguous CPU tensor.
pub(crate) fn bytes(part: &Tensor) -> &[u8] {
    let from_first = match part.dtype() {
        DType::F32 => part.cpu::<f32>().map(bytemuck::cast_slice),
        DType::F16 => part.cpu::<f16>().map(bytemuck::cast_slice),
        _ => part.cpu::<u32>().map(bytemuck::cast_slice),
    };
    &from_first.unwrap_or_default()[..part.shape().elements() * part.dtype().size()]
}

/// As [`bytes`], for writing.
pub(crate) fn bytes_mut<'a>(part: &'a mut TensorMut) -> &'a mut [u8] {
    let size = part.shape().elements() * part.dtype().size();
    let from_first = match part.dtype() {
        DType::F32 => part.cpu::<f32>().map(bytemuck::cast_slice_mut),
        DType::F16 => part.cpu::<f16>().map(bytemuck::cast_slice_mut),
        _ => part.cpu::<u32>().map(bytemuck::cast_slice_mut),
    };
    &mut from_first.unwrap_or_default()[..size]
}

/// The values of whole blocks of a file; `bytes` must have as many blocks as `values` needs. They are exact but for one rounding, as
/// are those of ggml's reference code, so the bits are the same.
pub fn dequantize_blocks(ty: GgmlType, bytes: &[u8], values: &mut [f32]) {
    let about = ty.descriptor();
    let mut exact = vec![0.0; about.block];
    for (block, values) in bytes.chunks_exact(about.bytes).zip(values.chunks_exact_mut(about.block)) {
        (about.decode)(block, &mut exact);
        for (value, exact) in values.iter_mut().zip(&exact) {
            *value = *exact as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FORMATS;

    /// One bit at a time: each moves to exactly one position, those of an exponent to any, and back.
    #[test]
    fn every_bit_comes_back() {
        for format in FORMATS {
            let about = format.descriptor();
            let Some(file) = &about.file else { continue };
            let (quants, scales) = (about.block / 8 * about.bits, about.scales.row_bytes(about.block));
            let of = |file: &[u8]| {
                let (mut q, mut s) = (vec![0xff; quants], vec![0xff; scales]);
                (about.from_file)(file, &mut q, &mut s);
                [q, s].concat()
            };
            let none = of(&vec![0; file.bytes]);
            for bit in 0..file.bytes * 8 {
                let mut bytes = vec![0; file.bytes];
                bytes[bit / 8] = 1 << (bit % 8);
                let memory = of(&bytes);
                let changed: u32 = memory.iter().zip(&none).map(|(a, b)| (a ^ b).count_ones()).sum();
                assert!(changed == 1 || file.exponent == Some(bit / 8), "{}, bit {bit}", about.name);
                let mut back = vec![0xff; file.bytes];
                (about.to_file)(&mut back, &memory[..quants], &memory[quants..]);
                assert_eq!(back, bytes, "{}, bit {bit}", about.name);
            }
        }
    }
}
