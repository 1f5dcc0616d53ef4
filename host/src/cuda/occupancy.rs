//! The number of blocks of a kernel that are resident on a multiprocessor, and the block size that follows from it.
//!
//! The virtual GPU uses the same calculation ([`Multiprocessor`]), here with the limits of the actual device. A test on a
//! real device compares it with the driver's answer for every kernel.

use super::device::CudaDevice;
use super::fault::check;
use super::module::Kernel;
pub use super::module::Resources;
use super::properties::Properties;
use crate::Result;
use cuda_std::KernelInfo;
use cust::sys;
pub use pascaline_occupancy::Multiprocessor;
use std::ffi::c_int;

const WARP: u32 = 32;

/// The block size for a kernel of `warps` independent warps, which may form blocks of any size. Of the sizes with the most
/// resident warps, it is the one that spreads the warps over the multiprocessors most evenly. Of equal ones it is the
/// largest, because starting a block costs time.
pub fn warps_block(
    device: Multiprocessor,
    multiprocessors: u32,
    most: u32,
    kernel: Resources,
    warps: u32,
) -> u32 {
    let sizes = || (0..).map(|halvings| most >> halvings).take_while(|&threads| threads >= WARP);
    let resident = |threads: u32| {
        device.resident_blocks(threads, kernel.registers, kernel.shared_bytes) * (threads / WARP)
    };
    // Warps of the busiest multiprocessor, if all blocks take equally long.
    let busiest = |threads: u32| {
        let per_block = threads / WARP;
        warps.div_ceil(per_block).div_ceil(multiprocessors.max(1)) * per_block
    };
    let full = sizes().map(resident).max().unwrap_or(0);
    if full == 0 {
        return most;
    }
    // Less work than this does not fill the multiprocessors.
    let enough = || sizes().filter(|&threads| resident(threads) >= full.min(busiest(threads)));
    let least = enough().map(busiest).min().unwrap_or(0);
    // An imbalance below a sixteenth does not justify smaller blocks.
    enough().find(|&threads| busiest(threads) <= least + least / 16).unwrap_or(most)
}

impl CudaDevice {
    /// The threads per block for a kernel of `warps` independent warps.
    pub(crate) fn warps_block(&self, kernel: &KernelInfo, warps: u32) -> Result<u32> {
        let &Properties { multiprocessor, multiprocessors, .. } = self.properties();
        let resources = self.kernel_resources(kernel.name)?;
        Ok(warps_block(multiprocessor, multiprocessors, kernel.threads(), resources, warps))
    }

    /// The driver's answer for one of our kernels, with `threads` per block.
    ///
    /// # Errors
    /// A driver error; [`Error::Unsupported`](crate::Error::Unsupported) if there is no such kernel.
    pub fn blocks_per_multiprocessor(&self, kernel: &str, threads: u32) -> Result<u32> {
        let function = self.kernel_handle(kernel)?.function;
        let mut blocks: c_int = 0;
        // SAFETY: the function belongs to the bound context; `blocks` is written before it is used.
        let result = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads as c_int, 0)
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", result)?;
        Ok(blocks as u32)
    }

    /// The resources that a kernel takes of a multiprocessor. The driver is queried once.
    ///
    /// # Errors
    /// As [`blocks_per_multiprocessor`](Self::blocks_per_multiprocessor).
    pub fn kernel_resources(&self, kernel: &str) -> Result<Resources> {
        let kernel = self.kernel_handle(kernel)?;
        if let Some(&known) = kernel.resources.get() {
            return Ok(known);
        }
        let attribute = |attribute| {
            let mut value: c_int = 0;
            // SAFETY: the handle is that of a loaded kernel, whose context is bound; `value` is written before it is used.
            let result = unsafe { sys::cuFuncGetAttribute(&mut value, attribute, kernel.function) };
            check("cuFuncGetAttribute", result).map(|()| value as u32)
        };
        use sys::CUfunction_attribute::{CU_FUNC_ATTRIBUTE_NUM_REGS, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES};
        let registers = attribute(CU_FUNC_ATTRIBUTE_NUM_REGS)?;
        let shared_bytes = attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        Ok(*kernel.resources.get_or_init(|| Resources { registers, shared_bytes }))
    }

    fn kernel_handle(&self, kernel: &str) -> Result<&Kernel> {
        self.bind()?;
        self.modules().kernel(kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a GTX 1080, which has 20 multiprocessors.
    fn block(registers: u32, warps: u32) -> u32 {
        warps_block(Multiprocessor::SM_61, 20, 256, Resources { registers, shared_bytes: 0 }, warps)
    }

    #[test]
    fn few_warps_are_spread_and_many_fill_the_multiprocessors() {
        assert_eq!(block(32, 1 << 20), 256, "all sizes from 64 on fill it; large blocks are fewer");
        assert_eq!(block(32, 8), 32, "a multiprocessor for each");
        assert_eq!(block(32, 20), 32);
        assert_eq!(block(32, 40), 64, "two each, in one block");
        assert_eq!(block(32, 160), 256, "eight each");
        assert_eq!(block(32, 0), 256);
        // 41 registers leave 40 warps: 5 blocks of 8; 88 leave 20: 2 blocks of 8 or 5 of 4
        assert_eq!(block(41, 1 << 20), 256);
        assert_eq!(block(88, 1 << 20), 128);
    }

    #[test]
    fn a_kernel_that_fits_no_multiprocessor_keeps_its_block() {
        assert_eq!(
            warps_block(Multiprocessor::SM_61, 20, 256, Resources { registers: 256, shared_bytes: 0 }, 99),
            256
        );
    }
}
