//! A compiler barrier for loads.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::gpu_only;

/// Loads before this call stay before it in the PTX. Otherwise LLVM moves each load to its first use, and the warp waits for
/// one load before it issues the next.
#[gpu_only]
#[inline(always)]
pub fn keep_order() {
    // SAFETY: no instruction. The compiler assumes that it may write memory, so it moves no load across it.
    unsafe { asm!("", options(nostack, preserves_flags)) }
}
