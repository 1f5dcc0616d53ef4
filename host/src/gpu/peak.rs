//! Kernels that measure what arithmetic alone can do.

use crate::Result;
use crate::cuda::{CudaDevice, args};
use crate::memory::DeviceBuffer;
use kernels_gpu::peak::{DP4A, MULTIPLY_ADDS};

/// Blocks for each multiprocessor: all that it holds of 256 threads, twice.
const BLOCKS_PER_SM: u32 = 16;

/// What is multiplied: 4·1 + 3·3 + 2·(−128) + 1·127 = −116.
const OPERANDS: [u32; 2] = [0x0102_0304, 0x7f80_0301];

/// The measuring of `dp4a`.
pub(crate) struct Dp4a {
    blocks: u32,
    sums: DeviceBuffer,
}

impl Dp4a {
    pub fn new(device: &CudaDevice) -> Result<Self> {
        let blocks = BLOCKS_PER_SM * device.properties().multiprocessors;
        let bytes = (blocks * DP4A.threads()) as usize * size_of::<i32>();
        Ok(Self { blocks, sums: DeviceBuffer::uninitialized(device, bytes)? })
    }

    /// Multiply-adds of a run.
    pub fn multiply_adds(&self, rounds: u32) -> f64 {
        f64::from(self.blocks * DP4A.threads()) * MULTIPLY_ADDS as f64 * f64::from(rounds)
    }

    /// Queues a run.
    pub fn run(&self, device: &CudaDevice, rounds: u32) -> Result<()> {
        // SAFETY: `new` has made a word for each thread of the grid, on this device's stream.
        unsafe {
            let arguments = args![self.sums.address(), OPERANDS[0], OPERANDS[1], rounds];
            device.launch(&DP4A, [self.blocks, 1, 1], arguments)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use kernels_gpu::peak::CHAINS;

    #[test]
    fn every_chain_runs_to_its_end() -> Result<()> {
        let Device::Cuda(device) = Device::virtual_gpu()? else { panic!("the virtual GPU is a CUDA device") };
        let dp4a = Dp4a::new(&device)?;
        let rounds = 2;
        dp4a.run(&device, rounds)?;
        let mut words = [0i32; 3];
        dp4a.sums.download(0, bytemuck::cast_slice_mut(&mut words))?;
        let steps = MULTIPLY_ADDS as i32 / 4 * rounds as i32;
        for (thread, word) in words.into_iter().enumerate() {
            let starts: i32 = (0..CHAINS).map(|chain| (thread + chain) as i32).sum();
            assert_eq!(word, starts - 116 * steps);
        }
        Ok(())
    }
}
