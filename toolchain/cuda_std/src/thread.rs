//! The thread's indices in its block and grid, barriers and fences.

use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::{asm, nvptx};

macro_rules! index {
    ($($(#[$doc:meta])* $name:ident = $intrinsic:ident;)*) => {$(
        $(#[$doc])*
        #[gpu_only]
        #[inline(always)]
        pub fn $name() -> u32 {
            // SAFETY: reads a special register that every thread has.
            unsafe { nvptx::$intrinsic() as u32 }
        }
    )*};
}

index! {
    /// `threadIdx.x`
    thread_idx_x = _thread_idx_x;
    /// `threadIdx.y`
    thread_idx_y = _thread_idx_y;
    /// `threadIdx.z`
    thread_idx_z = _thread_idx_z;
    /// `blockIdx.x`
    block_idx_x = _block_idx_x;
    /// `blockIdx.y`
    block_idx_y = _block_idx_y;
    /// `blockIdx.z`
    block_idx_z = _block_idx_z;
    /// `blockDim.x`
    block_dim_x = _block_dim_x;
    /// `blockDim.y`
    block_dim_y = _block_dim_y;
    /// `blockDim.z`
    block_dim_z = _block_dim_z;
    /// `gridDim.x`
    grid_dim_x = _grid_dim_x;
    /// `gridDim.y`
    grid_dim_y = _grid_dim_y;
    /// `gridDim.z`
    grid_dim_z = _grid_dim_z;
}

/// This thread's index along x over the whole grid.
#[gpu_only]
#[inline(always)]
pub fn index_1d() -> u32 {
    block_idx_x() * block_dim_x() + thread_idx_x()
}

#[cfg(feature = "glam")]
mod vectors {
    use super::*;
    use glam::{UVec2, UVec3};

    macro_rules! vector {
        ($($(#[$doc:meta])* $name:ident = $x:ident, $y:ident, $z:ident;)*) => {$(
            $(#[$doc])*
            #[inline(always)]
            pub fn $name() -> UVec3 {
                UVec3::new($x(), $y(), $z())
            }
        )*};
    }

    vector! {
        /// `threadIdx`
        thread_idx = thread_idx_x, thread_idx_y, thread_idx_z;
        /// `blockIdx`
        block_idx = block_idx_x, block_idx_y, block_idx_z;
        /// `blockDim`
        block_dim = block_dim_x, block_dim_y, block_dim_z;
        /// `gridDim`
        grid_dim = grid_dim_x, grid_dim_y, grid_dim_z;
    }

    /// This thread's indices along x and y over the whole grid.
    #[inline(always)]
    pub fn index_2d() -> UVec2 {
        index_3d().truncate()
    }

    /// This thread's indices over the whole grid.
    #[inline(always)]
    pub fn index_3d() -> UVec3 {
        block_idx() * block_dim() + thread_idx()
    }
}

#[cfg(feature = "glam")]
pub use vectors::*;

/// Threads in a warp: 32 on every NVIDIA GPU so far.
#[inline(always)]
pub fn warp_size() -> u32 {
    32
}

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier0.popc"]
    safe fn barrier_popc(predicate: u32) -> u32;
    #[link_name = "llvm.nvvm.barrier0.and"]
    safe fn barrier_and(predicate: u32) -> u32;
    #[link_name = "llvm.nvvm.barrier0.or"]
    safe fn barrier_or(predicate: u32) -> u32;
}

/// Waits until all threads of the block are here; their earlier writes to shared and global memory are then
/// visible to the block. Every thread of the block that has not exited must reach the same call.
#[gpu_only]
#[inline(always)]
pub fn sync_threads() {
    // SAFETY: a barrier touches no memory; that all threads reach it is the kernel's contract.
    unsafe { nvptx::_syncthreads() }
}

/// As [`sync_threads`]. Returns the number of threads whose `predicate` is not zero.
#[gpu_only]
#[inline(always)]
pub fn sync_threads_count(predicate: u32) -> u32 {
    barrier_popc(predicate)
}

/// As [`sync_threads`]. Returns non-zero if `predicate` is non-zero in all threads.
#[gpu_only]
#[inline(always)]
pub fn sync_threads_and(predicate: u32) -> u32 {
    barrier_and(predicate)
}

/// As [`sync_threads`]. Returns non-zero if `predicate` is non-zero in any thread.
#[gpu_only]
#[inline(always)]
pub fn sync_threads_or(predicate: u32) -> u32 {
    barrier_or(predicate)
}

macro_rules! fence {
    ($($(#[$doc:meta])* $name:ident = $instruction:literal;)*) => {$(
        $(#[$doc])*
        #[gpu_only]
        #[inline(always)]
        pub fn $name() {
            // SAFETY: orders this thread's memory accesses and does nothing else.
            unsafe { asm!($instruction, options(nostack, preserves_flags)) }
        }
    )*};
}

fence! {
    /// Orders this thread's memory accesses as its block sees them (`__threadfence_block`).
    block_fence = "membar.cta;";
    /// Orders this thread's memory accesses as the GPU sees them (`__threadfence`).
    device_fence = "membar.gl;";
    /// Orders this thread's memory accesses as the GPU and the host see them (`__threadfence_system`).
    system_fence = "membar.sys;";
}
