//! The table of chunks of a step of AdamW with moments in 8 bits.

use crate::cuda::CudaDevice;
use crate::problem::adamw8bit::AdamW8bitTensor;
use crate::problem::optimizer::AdamW;
use crate::{Device, Result, Tensor};
use kernels_gpu::adamw8bit::{BLOCK, CHUNK, Chunk, Step, adamw8bit_f32};

pub(crate) fn step(device: &CudaDevice, tensors: &mut [AdamW8bitTensor], options: &AdamW) -> Result<()> {
    // the lines as words of `Chunk`
    let mut table = Vec::<u32>::new();
    for AdamW8bitTensor { parameter, gradient, moments, weight_decay } in tensors {
        let n = gradient.shape().elements();
        let blocks = n.div_ceil(BLOCK) as u64;
        let (codes, scales) = (moments.codes.address(), moments.scales.address());
        for first in (0..n).step_by(CHUNK) {
            let (values, block) = (4 * first as u64, (first / BLOCK) as u64);
            let addresses = [
                parameter.address() + values,
                gradient.address() + values,
                codes + block * BLOCK as u64,
                scales + block * 4,
                codes + (blocks + block) * BLOCK as u64,
                scales + (blocks + block) * 4,
            ];
            table.extend(addresses.iter().flat_map(|&address| [address as u32, (address >> 32) as u32]));
            table.extend([CHUNK.min(n - first) as u32, (1.0 - options.lr * *weight_decay).to_bits()]);
        }
    }
    let chunks = (table.len() / (size_of::<Chunk>() / size_of::<u32>())) as u32;
    let table = Tensor::from_slice(&table, [table.len()], &Device::Cuda(device.clone()))?;
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
    // SAFETY: `ops::adamw8bit_step` has checked that parameter and gradient of each line are f32, contiguous, of one size
    // and on this stream, and that nothing else refers to the written ones. The moments' fields are created together, for
    // that number of elements. Chunks are whole blocks. The table has a line for each chunk and is freed after the launch.
    unsafe { device.launch(&adamw8bit_f32, [chunks, 1, 1], &step) }
}
