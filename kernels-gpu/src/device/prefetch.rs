//! Loads into the L2 cache that no register waits for.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::gpu_only;

/// Prefetches the sector at `pointer` into the L2 cache.
#[gpu_only]
#[inline(always)]
pub fn prefetch<T>(pointer: *const T) {
    // SAFETY: a hint, which reads no memory.
    unsafe {
        asm!("prefetch.global.L2 [{}];", in(reg64) pointer, options(nostack, preserves_flags, readonly));
    }
}
