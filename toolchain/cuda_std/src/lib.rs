//! The device side of GPU kernels: threads, shared memory, warps. The interface is that of [Rust-CUDA]'s `cuda_std`, as far
//! as Pascaline's kernels need it, implemented over rustc's own NVPTX back end.
//!
//! Names and signatures are those of `cuda_std` 0.2.2 (threads, barriers, fences, shared memory, clock, atomics)
//! and of its successor in the Rust-CUDA repository (warp shuffles and votes), so that kernels move there by a
//! changed dependency line. On any target but `nvptx64` everything compiles and panics when called, so that
//! kernels can be type-checked and linted by the host's build.
//!
//! # Convergence
//!
//! On sm_61 all lanes that a shuffle, vote or barrier names must execute the *same* instruction together. A compiler that
//! copies one into both arms of a divergent branch breaks that. LLVM keeps such instructions where they are if they are
//! marked `convergent`, and rustc marks neither functions nor `asm!` so. Three things replace the mark:
//!
//! * A single exchange between lanes is a direct call of an LLVM intrinsic, which carries the mark by definition, in a
//!   function that is always inlined.
//! * Inline PTX that exchanges data between lanes comes right after such a call: see [`butterfly`].
//! * `cuda_builder` switches off rustc's jump threading, which knows no convergent calls, and LLVM's in the first pass, which
//!   does not see those in functions that are yet to be inlined.
//!
//! A test counts the shuffles in the finished PTX.
//!
//! # Launches
//!
//! [`kernel`] with a `block` makes a [`KernelSpec`], the contract that the host launches a kernel by. Its parameters are a struct that
//! derives [`KernelParams`], in which [`DevicePtr`] and [`DevicePtrMut`] borrow the memory.
//!
//! [Rust-CUDA]: https://github.com/Rust-GPU/Rust-CUDA

#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(asm_experimental_arch, core_float_math, stdarch_nvptx, link_llvm_intrinsics)
)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]

extern crate self as cuda_std; // for the macros' paths

pub mod atomic;
pub mod butterfly;
pub mod constant;
pub mod float;
pub mod intrinsics;
pub mod io;
pub mod launch;
mod line;
mod lowered;
pub mod mem;
pub mod misc;
mod pointer;
pub mod shared;
mod shared_pointer;
pub mod thread;
pub mod warp;

pub use cuda_std_macros::{KernelParams, address_space, gpu_only, inlined, kernel};
pub use float::GpuFloat;
#[cfg(feature = "glam")]
pub use glam;
pub use launch::{KernelInfo, KernelParams, KernelSpec};
pub use pointer::{DevicePtr, DevicePtrMut};

/// The names that most kernel files need.
pub mod prelude {
    pub use crate::butterfly::{Butterfly, Max, MaxOrNan, Min, Or, Sum};
    pub use crate::constant::Constant;
    pub use crate::{DevicePtr, DevicePtrMut, KernelParams, address_space, inlined, kernel, thread, warp};
}

/// A panic ends the grid: with an illegal-instruction error at the next synchronisation and no message, or with the features
/// `panic-place` and `panic-text` with a failed assertion whose place, or text and place, the driver prints.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    #[cfg(any(feature = "panic-place", feature = "panic-text"))]
    io::panicked(_info);
    // SAFETY: `trap` ends the grid; nothing runs after it.
    unsafe { core::arch::nvptx::trap() }
}
