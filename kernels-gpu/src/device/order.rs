//! A compiler barrier for loads.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::gpu_only;

/// Loads before this call stay before it in the PTX. Otherwise LLVM moves each load to where its result is used, and the
/// warp waits for one load before it issues the next.
#[gpu_only]
#[inline(always)]
pub fn keep_order() {
    // SAFETY: no instruction; to the compiler it may write memory, which loads must not pass.
    unsafe { asm!("", options(nostack, preserves_flags)) }
}
