//! What GPU kernels are written with: the interface of [Rust-CUDA]'s `cuda_std`, as far as Pascaline's kernels need
//! it, implemented over rustc's own NVPTX back end.
//!
//! Names and signatures are those of `cuda_std` 0.2.2 (threads, barriers, fences, shared memory, clock, atomics)
//! and of its successor in the Rust-CUDA repository (warp shuffles and votes), so that kernels move there by a
//! changed dependency line. On any target but `nvptx64` everything compiles and panics when called, so that
//! kernels can be type-checked and linted by the host's build.
//!
//! # Convergence
//!
//! On sm_61 all lanes that a shuffle, vote or barrier names must execute the *same* instruction together. LLVM may
//! only be trusted to keep such instructions where they are when they are marked `convergent`, and rustc marks
//! neither functions nor `asm!` so. Everything here that exchanges data between lanes is therefore a direct call of
//! an LLVM intrinsic, which carries the mark by definition, in a function that is always inlined. Inline PTX must
//! not be used for it: LLVM copies it into both arms of a divergent branch. A test counts these instructions in
//! the finished PTX.
//!
//! [Rust-CUDA]: https://github.com/Rust-GPU/Rust-CUDA

#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(asm_experimental_arch, stdarch_nvptx, link_llvm_intrinsics))]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]

extern crate self as cuda_std; // for the macros' paths

pub mod atomic;
pub mod launch;
pub mod mem;
pub mod misc;
pub mod shared;
mod shared_pointer;
pub mod thread;
pub mod warp;

pub use cuda_std_macros::{KernelParams, gpu_only, kernel};
pub use launch::{KernelInfo, KernelParams, KernelSpec};

/// What a kernel file usually needs.
pub mod prelude {
    pub use crate::{KernelParams, kernel, thread, warp};
}

/// A panic ends the grid with an illegal-instruction error at the next synchronisation; there is no message.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // SAFETY: `trap` ends the grid; nothing runs after it.
    unsafe { core::arch::nvptx::trap() }
}
