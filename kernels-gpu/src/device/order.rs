//! What keeps the compiler from moving loads.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::gpu_only;

/// Loads in front of this stay in front of it in the PTX. LLVM moves a load to where its result is used, and then it
/// waits for each before it issues the next.
#[gpu_only]
#[inline(always)]
pub fn keep_order() {
    // SAFETY: no instruction; to the compiler it may write memory, which loads must not pass.
    unsafe { asm!("", options(nostack, preserves_flags)) }
}
