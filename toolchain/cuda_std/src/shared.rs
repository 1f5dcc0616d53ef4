//! Shared memory of a block.

use crate::gpu_only;

pub use crate::shared_pointer::{Shared, Word, declare};

/// Declares an array in static shared memory and returns a generic `*mut T` to its first element:
/// `shared_array![f32; 256]`.
///
/// The contents are undefined at first. Each place in the source (and each instance of a generic function) is an
/// array of its own, so call it once per array and outside of loops. The pointer is generic; kernels that are
/// bound by shared memory want 32-bit shared addresses instead.
///
/// # Safety (of use)
/// No access out of bounds, and a barrier between one thread's write and another's read.
#[macro_export]
macro_rules! shared_array {
    ($ty:ty; $len:expr) => {{
        const BYTES: usize = ::core::mem::size_of::<$ty>() * ($len);
        $crate::shared::__static_shared::<BYTES>() as *mut $ty
    }};
}

/// Implementation of [`shared_array!`]: `BYTES` of static shared memory, 16-byte aligned.
#[doc(hidden)]
#[gpu_only]
#[inline(always)]
pub fn __static_shared<const BYTES: usize>() -> *mut u8 {
    let pointer: u64;
    // SAFETY: declares a block-scoped array and takes its generic address. The asm! is not `pure`, so that two
    // calls are never merged into one array.
    unsafe {
        core::arch::asm!(
            "{{",
            ".shared .align 16 .b8 shared_array[{bytes}];",
            "cvta.shared.u64 {pointer}, shared_array;",
            "}}",
            bytes = const BYTES,
            pointer = out(reg64) pointer,
            options(nomem, nostack, preserves_flags)
        );
    }
    pointer as *mut u8
}

#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".extern .shared .align 16 .b8 cuda_std_dynamic_shared[];");

/// The dynamic shared memory that the launch asked for, as a generic pointer, 16-byte aligned. Every call returns the
/// same pointer.
#[gpu_only]
#[inline(always)]
pub fn dynamic_shared_mem<T>() -> *mut T {
    let pointer: u64;
    // SAFETY: takes the generic address of a symbol that is declared above.
    unsafe {
        core::arch::asm!(
            "cvta.shared.u64 {}, cuda_std_dynamic_shared;",
            out(reg64) pointer,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    pointer as *mut T
}
