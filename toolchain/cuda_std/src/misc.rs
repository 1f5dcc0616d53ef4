//! The clock.

use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// This multiprocessor's cycle counter.
#[gpu_only]
#[inline(always)]
pub fn clock() -> u64 {
    let cycles;
    // SAFETY: reads a special register. Not `pure`: two readings differ.
    unsafe { asm!("mov.u64 {}, %clock64;", out(reg64) cycles, options(nomem, nostack, preserves_flags)) };
    cycles
}
