//! Optimiser steps: the kernels' table of chunks.

use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use crate::problem::optimizer::{AdamW, AdamWTensor, Sgd, SgdTensor};
use crate::{Device, Result, Tensor};
use kernels_gpu::optimizer::{CHUNK, Chunk, Norm, Step, adamw_f32, sgd_f32, squared_norm_f32};

/// Words of a line of the table.
const LINE: usize = size_of::<Chunk>() / size_of::<u32>();

/// The lines of a table, as the words of [`Chunk`].
#[derive(Default)]
struct Table(Vec<u32>);

impl Table {
    /// Divides tensors of `n` elements at these addresses into chunks; an address is 0 if there is no such tensor.
    fn add(&mut self, addresses: [u64; 4], n: usize, decay: f32) {
        for first in (0..n).step_by(CHUNK) {
            let shift = (first * size_of::<f32>()) as u64;
            for address in addresses {
                let address = if address == 0 { 0 } else { address + shift };
                self.0.extend([address as u32, (address >> 32) as u32]);
            }
            self.0.extend([CHUNK.min(n - first) as u32, decay.to_bits()]);
        }
    }

    /// The table on the device, and the number of chunks.
    fn upload(&self, device: &CudaDevice) -> Result<(Tensor, u32)> {
        let table = Tensor::from_slice(&self.0, [self.0.len()], &Device::Cuda(device.clone()))?;
        Ok((table, (self.0.len() / LINE) as u32))
    }
}

pub(crate) fn adamw(device: &CudaDevice, tensors: &mut [AdamWTensor], options: &AdamW) -> Result<()> {
    let mut table = Table::default();
    for AdamWTensor { parameter, gradient, first, second, weight_decay } in tensors {
        let keep = 1.0 - options.lr * *weight_decay;
        let addresses = [parameter.address(), gradient.address(), first.address(), second.address()];
        table.add(addresses, gradient.shape().elements(), keep);
    }
    let (table, chunks) = table.upload(device)?;
    let [correction, root] = options.corrections();
    let [beta1, beta2] = options.betas;
    let step = Step {
        chunks: table.ptr::<u32>().cast(),
        gradient_scale: options.gradient_scale,
        beta1,
        beta2,
        rate: options.lr * correction,
        root,
        eps: options.eps,
    };
    // SAFETY: `ops::adamw_step` has checked that the tensors of each line are f32, contiguous, of one size and on this stream, and that
    // nothing else refers to those that are written. The table has a line for each chunk and is freed after the launch.
    unsafe { device.launch(&adamw_f32, [chunks, 1, 1], &step) }
}

pub(crate) fn sgd(device: &CudaDevice, tensors: &mut [SgdTensor], options: &Sgd) -> Result<()> {
    let mut table = Table::default();
    for SgdTensor { parameter, gradient, momentum, weight_decay } in tensors {
        let addresses = [parameter.address(), gradient.address(), momentum.address(), 0];
        table.add(addresses, gradient.shape().elements(), *weight_decay);
    }
    let (table, chunks) = table.upload(device)?;
    let step = Step {
        chunks: table.ptr::<u32>().cast(),
        gradient_scale: options.gradient_scale,
        beta1: options.momentum,
        beta2: 0.0,
        rate: options.lr,
        root: 0.0,
        eps: 0.0,
    };
    // SAFETY: `ops::sgd_step` has checked that the tensors of each line are f32, contiguous, of one size and on this stream, and
    // that nothing else refers to those that are written. The table has a line for each chunk and is freed after the launch.
    unsafe { device.launch(&sgd_f32, [chunks, 1, 1], &step) }
}

/// The sum of squares; the chunks' sums are added on the host, in f64.
pub(crate) fn squared_norm(device: &CudaDevice, tensors: &[&Tensor]) -> Result<f64> {
    let mut table = Table::default();
    for tensor in tensors {
        table.add([0, tensor.address(), 0, 0], tensor.shape().elements(), 0.0);
    }
    let (table, chunks) = table.upload(device)?;
    let sums = Tensor::of_buffer(DeviceBuffer::uninitialized(device, chunks as usize * size_of::<f32>())?)?;
    let sums_at = sums.ptr::<u32>().cast_mut().cast();
    // SAFETY: `ops::squared_norm` has checked that the tensors are f32, contiguous and on this stream. The table has a line for
    // each chunk; `sums` has an element for each chunk, and nothing else refers to it.
    unsafe {
        let norm = Norm { sums: sums_at, chunks: table.ptr::<u32>().cast() };
        device.launch(&squared_norm_f32, [chunks, 1, 1], &norm)?;
    }
    Ok(sums.to_vec::<u32>()?.into_iter().map(|bits| f64::from(f32::from_bits(bits))).sum())
}
