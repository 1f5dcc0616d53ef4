//! Which softmax kernel, and its grid.

use super::rows::{Kernels, parts};
use super::vectors;
use crate::cuda::{CudaDevice, args};
use crate::memory::DeviceBuffer;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::device::rows::{MAX_BLOCK_COLS, MAX_WIDE_COLS, wide_threads};
use kernels_gpu::softmax::*;

const KERNELS: Kernels = Kernels {
    warp: [WARP_F32, WARP_F16],
    block: [BLOCK_F32, BLOCK_F16],
    few: [BLOCK_F32, BLOCK_F16],
    stream: [STREAM_F32, STREAM_F16],
};

pub(crate) fn softmax(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let (rows, cols) = (rows as u32, cols as u32);
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    let dtype = x.dtype();
    let (y, x) = (y.address(), x.address());
    let vectors = u32::from(vectors::rows_aligned(cols, dtype.size(), &[y, x]));
    let (parts, part_cols) = match cols {
        ..=MAX_WIDE_COLS => (1, cols),
        _ => parts(rows, cols, device.properties().multiprocessors),
    };
    if parts == 1 {
        let arguments = args![y, x, rows, cols, vectors];
        // SAFETY: `ops::softmax_into` has checked that both are contiguous [rows, cols] of the kernel's type on this
        // stream, of less than 2³¹ elements, and a TensorMut overlaps nothing.
        return unsafe {
            if MAX_BLOCK_COLS < cols && cols <= MAX_WIDE_COLS {
                device.launch(&wide(cols, dtype), [rows, 1, 1], arguments)
            } else {
                KERNELS.launch(device, (rows, cols), dtype, arguments)
            }
        };
    }
    let (part, merge) = if dtype == DType::F16 { (PART_F16, MERGE_F16) } else { (PART_F32, MERGE_F32) };
    let blocks = rows * parts;
    let normalizers = DeviceBuffer::uninitialized(device, blocks as usize * 2 * size_of::<f32>())?;
    let (n, grid) = (normalizers.address(), [blocks, 1, 1]);
    // SAFETY: as above; `normalizers` has a pair for each part and is freed behind both launches.
    unsafe {
        device.launch(&part, grid, args![n, x, cols, part_cols, parts, vectors])?;
        device.launch(&merge, grid, args![y, x, n, cols, part_cols, parts, vectors])
    }
}

/// The kernel for rows that take more registers than the block kernels'.
fn wide(cols: u32, dtype: DType) -> KernelSpec {
    let spec = if dtype == DType::F16 { WIDE_F16 } else { WIDE_F32 };
    spec.of_threads(wide_threads(cols))
}

/// The textbook kernel, for benches.
pub(crate) fn textbook(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    // SAFETY: `ops::textbook::softmax_into` has checked that all tensors are contiguous f32 of the shapes the kernel asks for,
    // on one stream.
    unsafe { device.launch(&TEXTBOOK_F32, [rows as u32, 1, 1], args![y.address(), x.address(), cols as u32]) }
}
