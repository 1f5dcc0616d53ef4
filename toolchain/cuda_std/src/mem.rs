//! Sizes of shared memory.

use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Bytes of dynamic shared memory that the launch asked for.
#[gpu_only]
#[inline(always)]
pub fn dynamic_smem_size() -> u32 {
    let bytes;
    // SAFETY: reads a special register that every thread has.
    unsafe {
        asm!("mov.u32 {}, %dynamic_smem_size;", out(reg32) bytes, options(nomem, nostack, preserves_flags))
    };
    bytes
}

/// Bytes of static and dynamic shared memory together.
#[gpu_only]
#[inline(always)]
pub fn total_smem_size() -> u32 {
    let bytes;
    // SAFETY: reads a special register that every thread has.
    unsafe {
        asm!("mov.u32 {}, %total_smem_size;", out(reg32) bytes, options(nomem, nostack, preserves_flags))
    };
    bytes
}
