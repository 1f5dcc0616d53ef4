//! Copy of contiguous elements: kernel and grid.

use super::vectors;
use crate::Result;
use crate::cuda::CudaDevice;
use kernels_gpu::copy::{Flat, copy_flat_b16, copy_flat_b32};
use kernels_gpu::device::flat;

/// Copies `n` > 0 contiguous elements of `size` bytes. The caller has checked that both are on this device's stream,
/// disjoint, and below 2³¹ elements.
pub(super) fn contiguous(device: &CudaDevice, y: u64, x: u64, n: u32, size: usize) -> Result<()> {
    let len = vectors::len(size);
    let head = vectors::head(n, len, &[(y, size), (x, size)]);
    let grid = [flat::blocks(n, head, len), 1, 1];
    // SAFETY: the caller has checked stream, overlap and size (this function's contract). Addresses of elements are
    // multiples of their size, and from `head` on both are aligned.
    unsafe {
        match size {
            2 => device.launch(&copy_flat_b16, grid, &Flat { y: y as *mut u16, x: x as *const u16, n, head }),
            _ => device.launch(&copy_flat_b32, grid, &Flat { y: y as *mut u32, x: x as *const u32, n, head }),
        }
    }
}
