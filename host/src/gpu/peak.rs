//! Kernels that measure the peak rate of arithmetic.

use crate::Result;
use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use kernels_gpu::empty::empty;
use kernels_gpu::peak::{self, CHAINS, STEPS, THREADS, peak_dp4a, peak_fma};

/// Blocks per multiprocessor: twice as many as are resident with 256 threads.
const BLOCKS_PER_SM: u32 = 16;

/// The instruction that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// a·x + b on f32, one multiply-add.
    Fma,
    /// Four multiply-adds on i8.
    Dp4a,
}

impl Instruction {
    fn multiply_adds(self) -> f64 {
        match self {
            Self::Fma => 1.0,
            Self::Dp4a => 4.0,
        }
    }
}

/// A measurement of an instruction's rate.
pub struct Peak {
    instruction: Instruction,
    blocks: u32,
    sums: DeviceBuffer,
}

impl Peak {
    /// Prepares the measurement of an instruction on a device.
    pub fn new(device: &CudaDevice, instruction: Instruction) -> Result<Self> {
        let blocks = BLOCKS_PER_SM * device.properties().multiprocessors;
        let bytes = (blocks * THREADS) as usize * size_of::<i32>();
        Ok(Self { instruction, blocks, sums: DeviceBuffer::uninitialized(device, bytes)? })
    }

    /// Number of multiply-adds of a run.
    pub fn multiply_adds(&self, rounds: u32) -> f64 {
        let threads = f64::from(self.blocks * THREADS);
        threads * (CHAINS * STEPS) as f64 * f64::from(rounds) * self.instruction.multiply_adds()
    }

    /// Queues a run.
    pub fn run(&self, device: &CudaDevice, rounds: u32) -> Result<()> {
        let (grid, sums) = ([self.blocks, 1, 1], &self.sums);
        // SAFETY: `new` has allocated a word for each thread of the grid, on this device's stream.
        unsafe {
            match self.instruction {
                // converges to 1, so the chains neither overflow nor vanish
                Instruction::Fma => {
                    device.launch(&peak_fma, grid, &peak::Peak { sums: sums.ptr(), a: 0.5, b: 0.5, rounds })
                }
                // 4·1 + 3·3 + 2·(−128) + 1·127 = −116
                Instruction::Dp4a => {
                    let (a, b) = (0x0102_0304, 0x7f80_0301);
                    device.launch(&peak_dp4a, grid, &peak::Peak { sums: sums.ptr(), a, b, rounds })
                }
            }
        }
    }
}

/// Queues a kernel that does nothing: what every launch costs.
///
/// # Errors
/// A driver error.
pub fn launch_nothing(device: &CudaDevice) -> Result<()> {
    // SAFETY: the kernel has no parameters and touches no memory.
    unsafe { device.launch(&empty, [1; 3], &()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::device_tests::{cuda_device, turn};

    /// The words of the first threads after two rounds.
    fn words<T: bytemuck::Pod>(instruction: Instruction) -> Result<[T; 3]> {
        let _turn = turn();
        let device = cuda_device();
        let peak = Peak::new(&device, instruction)?;
        peak.run(&device, 2)?;
        let mut words = [T::zeroed(); 3];
        peak.sums.download(0, bytemuck::cast_slice_mut(&mut words))?;
        Ok(words)
    }

    #[test]
    fn every_chain_of_dp4a_runs_to_its_end() -> Result<()> {
        for (thread, word) in words::<i32>(Instruction::Dp4a)?.into_iter().enumerate() {
            let starts: i32 = (0..CHAINS).map(|chain| (thread + chain) as i32).sum();
            assert_eq!(word, starts - 116 * 2 * (CHAINS * STEPS) as i32);
        }
        Ok(())
    }

    #[test]
    fn every_chain_of_fma_runs_to_its_end() -> Result<()> {
        for (thread, word) in words::<f32>(Instruction::Fma)?.into_iter().enumerate() {
            let chain = |chain| (0..2 * STEPS).fold((thread + chain) as f32, |x, _| x.mul_add(0.5, 0.5));
            assert_eq!(word, (0..CHAINS).map(chain).sum::<f32>());
        }
        Ok(())
    }
}
