//! GGUF's blocks, which interleave quants and scales. Source: ggml's published block layouts; [`kernels_gpu::quant::blocks`]
//! has them with their sizes.

use super::gguf_blocks::FileBlocks;
use super::{Format, QuantTensor, block_len, layout, name};
use crate::parallel::InTasks;
use crate::{DType, Device, Error, Result, Shape, Tensor, TensorMut};
use half::f16;
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
    /// (32 values; 256 of `Q4K`, `Q5K`, `Q6K` and `Iq4Xs`), and if the number of bytes is not the shape's; [`Error::OutOfMemory`].
    pub fn from_gguf_bytes(
        format: Format,
        shape: impl Into<Shape>,
        bytes: &[u8],
        device: &Device,
    ) -> Result<Self> {
        let shape = shape.into();
        let (blocks, file) = file_blocks("from_gguf_bytes", format, &shape)?;
        if bytes.len() != blocks * file.bytes {
            let reason = format!("{shape} takes {} bytes", blocks * file.bytes);
            return Err(unsupported("from_gguf_bytes", "bytes", bytes.len().to_string(), &reason));
        }
        let mut tensor = Self::uninitialized(format, shape, &Device::Cpu)?;
        let (mut quants, mut scales) = (tensor.quants.view_mut()?, tensor.scales.view_mut()?);
        let (quants, scales) = (bytes_mut(&mut quants), bytes_mut(&mut scales));
        let [of_quants, of_scales, of_file] = of_tasks(blocks, [quants.len(), scales.len(), bytes.len()]);
        let targets = quants.par_chunks_mut(of_quants).zip(scales.par_chunks_mut(of_scales));
        targets.zip(bytes.par_chunks(of_file)).in_tasks(|((quants, scales), bytes)| {
            (file.read)(bytes, quants, scales);
        });
        tensor.to_device(device)
    }

    /// The blocks of a GGUF file.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for `I8` and for rows that are not whole blocks.
    pub fn to_gguf_bytes(&self) -> Result<Vec<u8>> {
        let (blocks, of_format) = file_blocks("to_gguf_bytes", self.format(), self.shape())?;
        let host = self.to_device(&Device::Cpu)?;
        let (quants, scales) = (bytes(&host.quants), bytes(&host.scales));
        let mut file = vec![0; blocks * of_format.bytes];
        let [of_quants, of_scales, of_file] = of_tasks(blocks, [quants.len(), scales.len(), file.len()]);
        let sources = quants.par_chunks(of_quants).zip(scales.par_chunks(of_scales));
        file.par_chunks_mut(of_file).zip(sources).in_tasks(|(file, (quants, scales))| {
            (of_format.write)(file, quants, scales);
        });
        Ok(file)
    }
}

/// The number of blocks of a tensor of this shape in a GGUF file, and their layout.
fn file_blocks(op: &'static str, format: Format, shape: &Shape) -> Result<(usize, &'static FileBlocks)> {
    let Some(file) = &layout(format).file else {
        return Err(unsupported(op, "format", name(format).into(), "a GGUF file has no such blocks"));
    };
    let (n, k) = QuantTensor::padded(format, shape)?;
    let cols = shape.dims()[1];
    if k != cols {
        let reason = format!("rows must be whole blocks of {} values", block_len(format));
        return Err(unsupported(op, "k", cols.to_string(), &reason));
    }
    Ok((n * (k / block_len(format)), file))
}

/// The bytes of a task's blocks, for arrays with these bytes per block; never 0.
fn of_tasks(blocks: usize, bytes: [usize; 3]) -> [usize; 3] {
    bytes.map(|bytes| (bytes / blocks.max(1) * BLOCKS_PER_TASK).max(1))
}

/// The bytes of a contiguous CPU tensor of u32 or f16.
fn bytes(part: &Tensor) -> &[u8] {
    let from_first = match part.dtype() {
        DType::F16 => part.cpu::<f16>().map(bytemuck::cast_slice),
        _ => part.cpu::<u32>().map(bytemuck::cast_slice),
    };
    &from_first.unwrap_or_default()[..part.shape().elements() * part.dtype().size()]
}

/// As [`bytes`], for writing.
fn bytes_mut<'a>(part: &'a mut TensorMut) -> &'a mut [u8] {
    let size = part.shape().elements() * part.dtype().size();
    let from_first = match part.dtype() {
        DType::F16 => part.cpu::<f16>().map(bytemuck::cast_slice_mut),
        _ => part.cpu::<u32>().map(bytemuck::cast_slice_mut),
    };
    &mut from_first.unwrap_or_default()[..size]
}
