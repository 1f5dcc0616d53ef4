//! How many blocks of a kernel fit on a multiprocessor at a time: the driver's calculation as a pure function, for
//! compute capability 6.1.
//!
//! The limits and units are those of the CUDA C Programming Guide's table of compute capabilities. Registers are given
//! to a warp, in units of 256, from the file of the quarter of the multiprocessor that runs it. `scripts/ptxas-report`
//! calculates the same.

use super::{CudaDevice, check};
use crate::{Error, Result};
use cust::sys;
use std::ffi::c_int;

const WARP: u32 = 32;
const MAX_WARPS: u32 = 64;
const MAX_BLOCKS: u32 = 32;
const MAX_THREADS_PER_BLOCK: u32 = 1024;
const MAX_REGISTERS_PER_THREAD: u32 = 255;
/// A multiprocessor has four quarters, each with a scheduler and a register file of its own.
const QUARTERS: u32 = 4;
const REGISTERS_PER_QUARTER: u32 = 16384;
const REGISTER_UNIT: u32 = 256;
const SHARED_BYTES: u32 = 96 << 10;
const SHARED_BYTES_PER_BLOCK: u32 = 48 << 10;
const SHARED_UNIT: u32 = 256;

/// Blocks that run on one sm_61 multiprocessor at a time; 0 if the kernel can't be launched so.
pub const fn blocks_per_multiprocessor(threads: u32, registers: u32, shared_bytes: u32) -> u32 {
    if threads == 0 || threads > MAX_THREADS_PER_BLOCK || registers > MAX_REGISTERS_PER_THREAD {
        return 0;
    }
    if shared_bytes > SHARED_BYTES_PER_BLOCK {
        return 0;
    }
    let warps = threads.div_ceil(WARP);
    let mut blocks = least(MAX_BLOCKS, MAX_WARPS / warps);
    if registers > 0 {
        let per_warp = (registers * WARP).next_multiple_of(REGISTER_UNIT);
        blocks = least(blocks, REGISTERS_PER_QUARTER / per_warp * QUARTERS / warps);
    }
    if shared_bytes > 0 {
        blocks = least(blocks, SHARED_BYTES / shared_bytes.next_multiple_of(SHARED_UNIT));
    }
    blocks
}

/// The part of the multiprocessor's warps that so many blocks fill.
pub fn occupancy(threads: u32, registers: u32, shared_bytes: u32) -> f64 {
    let warps = blocks_per_multiprocessor(threads, registers, shared_bytes) * threads.div_ceil(WARP);
    f64::from(warps) / f64::from(MAX_WARPS)
}

/// The block size with the most warps on a multiprocessor; of equals the first. `None` if none fits.
pub fn best_block(sizes: &[u32], registers: u32, shared_bytes: impl Fn(u32) -> u32) -> Option<u32> {
    let warps = |threads: u32| {
        blocks_per_multiprocessor(threads, registers, shared_bytes(threads)) * threads.div_ceil(WARP)
    };
    sizes.iter().copied().rev().max_by_key(|&threads| warps(threads)).filter(|&threads| warps(threads) > 0)
}

const fn least(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

impl CudaDevice {
    /// The driver's own answer for one of our kernels, with `threads` per block.
    ///
    /// # Errors
    /// A driver error; [`Error::Unsupported`] if there is no such kernel.
    pub fn blocks_per_multiprocessor(&self, kernel: &str, threads: u32) -> Result<u32> {
        let function = self.kernel_handle(kernel)?;
        let mut blocks: c_int = 0;
        // SAFETY: the function belongs to the bound context; `blocks` is written before it is used.
        let result = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads as c_int, 0)
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", result)?;
        Ok(blocks as u32)
    }

    /// Registers per thread and bytes of static shared memory of one of our kernels, as the driver compiled it.
    ///
    /// # Errors
    /// As [`blocks_per_multiprocessor`](Self::blocks_per_multiprocessor).
    pub fn kernel_resources(&self, kernel: &str) -> Result<(u32, u32)> {
        let function = self.kernel_handle(kernel)?;
        let attribute = |attribute| {
            let mut value: c_int = 0;
            // SAFETY: as above.
            let result = unsafe { sys::cuFuncGetAttribute(&mut value, attribute, function) };
            check("cuFuncGetAttribute", result).map(|()| value as u32)
        };
        use sys::CUfunction_attribute::{CU_FUNC_ATTRIBUTE_NUM_REGS, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES};
        Ok((attribute(CU_FUNC_ATTRIBUTE_NUM_REGS)?, attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?))
    }

    fn kernel_handle(&self, kernel: &str) -> Result<sys::CUfunction> {
        self.bind()?;
        let found = self.module().kernel(kernel).map(|kernel| kernel.function);
        found.ok_or_else(|| Error::Unsupported {
            op: "occupancy",
            argument: "kernel",
            value: kernel.to_owned(),
            reason: "it is not in the PTX".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // threads, registers, shared bytes → blocks, worked by hand from the guide's limits
        for (threads, registers, shared, blocks) in [
            (32, 16, 0, 32),     // blocks
            (1024, 32, 0, 2),    // warps and registers
            (1024, 33, 0, 1),    // 33 · 32 rounds up to 1280: 12 warps a quarter, 48 in all
            (256, 128, 0, 2),    // 4096 a warp: 4 a quarter
            (256, 255, 0, 1),    // 8192 a warp: 2 a quarter
            (512, 255, 0, 0),    // 16 warps don't fit
            (64, 88, 0, 10),     // 2816 a warp: 5 a quarter, 20 in all, and not 65536 / 2816 = 23
            (256, 32, 16384, 6), // shared
            (256, 32, 49152, 2), // shared, the most a block may have
            (256, 32, 49153, 0),
            (128, 32, 1, 16), // one byte takes 256: the warps decide
            (33, 0, 0, 32),   // two warps
            (0, 16, 0, 0),
            (1025, 16, 0, 0),
        ] {
            let found = blocks_per_multiprocessor(threads, registers, shared);
            assert_eq!(found, blocks, "{threads} threads, {registers} registers, {shared} bytes");
        }
        assert_eq!(occupancy(256, 128, 0), 0.25);
    }

    #[test]
    fn the_block_with_most_warps_is_chosen() {
        assert_eq!(best_block(&[128, 256, 512, 1024], 33, |_| 0), Some(128), "1024 leaves a third idle");
        assert_eq!(best_block(&[64, 1024], 32, |threads| threads * 24), Some(64));
        assert_eq!(best_block(&[512], 255, |_| 0), None);
    }
}
