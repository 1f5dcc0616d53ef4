//! What keeps the compiler from moving code.

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

/// The same value, unknown to the optimiser. In a loop it cannot compute addresses from it before the loop and keep them in registers.
#[gpu_only]
#[inline(always)]
pub fn opaque(value: u32) -> u32 {
    let same;
    // SAFETY: the assembly is only a comment.
    unsafe { asm!("// {}", inout(reg32) value => same, options(nomem, nostack, preserves_flags)) };
    same
}

/// threadIdx.x, read anew at each call: between them no register holds it, nor what follows from it.
#[gpu_only]
#[inline(always)]
pub fn read_thread_idx_x() -> u32 {
    let number;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u32 {}, %tid.x;", out(reg32) number, options(nomem, nostack, preserves_flags)) };
    number
}
