//! Which reduction kernel, and its grid.

use super::rows::{launch_warps, parts};
use super::vectors;
use crate::cuda::{COUNTERS, CudaDevice, args};
use crate::memory::DeviceBuffer;
use crate::problem::reduce::Reduction;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::device::rows::{MAX_WARP_COLS, row_threads};
use kernels_gpu::reduce::*;

/// The kernels for rows of up to `MAX_WARP_COLS` columns and for longer ones, and how many bytes the second keeps of each
/// part of rows that are cut up.
fn kernels(op: Reduction, dtype: DType) -> (KernelSpec, KernelSpec, usize) {
    let f16 = dtype == DType::F16;
    match op {
        Reduction::Sum if f16 => (SUM_WARP_F16, SUM_BLOCK_F16, 4),
        Reduction::Sum => (SUM_WARP_F32, SUM_BLOCK_F32, 4),
        Reduction::Max if f16 => (MAX_WARP_F16, MAX_BLOCK_F16, 4),
        Reduction::Max => (MAX_WARP_F32, MAX_BLOCK_F32, 4),
        Reduction::Argmax if f16 => (ARGMAX_WARP_F16, ARGMAX_BLOCK_F16, 8),
        Reduction::Argmax => (ARGMAX_WARP_F32, ARGMAX_BLOCK_F32, 8),
    }
}

pub(crate) fn reduce(device: &CudaDevice, op: Reduction, y: TensorMut, x: &Tensor) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let (rows, cols) = (rows as u32, cols as u32);
    let (warp, block, part_bytes) = kernels(op, x.dtype());
    let (y, x, size) = (y.address(), x.address(), x.dtype().size());
    let vectors = u32::from(vectors::rows_aligned(cols, size, &[x]));
    if cols <= MAX_WARP_COLS {
        // SAFETY: `ops` has checked that x is contiguous [rows, cols] and y [rows] of the kernel's types on this stream, of
        // less than 2³¹ elements, cols > 0 unless it is a sum, and a TensorMut overlaps nothing.
        return unsafe { launch_warps(device, &warp, (rows, cols), args![y, x, rows, cols, vectors]) };
    }
    let (parts, part_cols) = match rows as usize {
        ..=COUNTERS => parts(rows, cols, device.properties().multiprocessors),
        _ => (1, cols),
    };
    let found = if parts > 1 { (rows * parts) as usize * part_bytes } else { 0 };
    let found = DeviceBuffer::uninitialized(device, found)?;
    let arguments = args![y, found.address(), device.stream().counters(), x, cols, part_cols, parts, vectors];
    let block = block.of_threads(row_threads(part_cols));
    // SAFETY: as above; `found` has room for each part and is freed behind the launch, the stream a counter for each row that
    // is cut up, and parts begin at whole vectors.
    unsafe { device.launch(&block, [rows * parts, 1, 1], arguments) }
}
