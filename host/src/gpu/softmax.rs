//! Softmax: kernel and grid.

use super::rows::{Kernels, parts};
use super::{DeviceElement, vectors};
use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::device::rows::{MAX_BLOCK_COLS, MAX_WIDE_COLS, wide_threads};
use kernels_gpu::softmax::{self, Merge, Part, Rows, Textbook, softmax_textbook_f32};

pub(crate) fn softmax(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F16 => of(device, &softmax::OF_F16, y, x),
        _ => of(device, &softmax::OF_F32, y, x),
    }
}

fn of<T: DeviceElement>(
    device: &CudaDevice,
    kernels: &softmax::Kernels<T>,
    y: TensorMut,
    x: &Tensor,
) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let (rows, cols) = (rows as u32, cols as u32);
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    let (y, x) = (y.ptr::<T>(), x.ptr::<T>());
    let vectors = u32::from(vectors::rows_aligned(cols, size_of::<T>(), &[y as u64, x as u64]));
    let (parts, part_cols) = match cols {
        ..=MAX_WIDE_COLS => (1, cols),
        _ => parts(rows, cols, device.properties().multiprocessors),
    };
    if parts == 1 {
        let parameters = |lanes| Rows { y, x, rows, cols, vectors, lanes };
        // SAFETY: `ops::softmax_into` has checked that both are contiguous [rows, cols] of the kernel's type on this
        // stream, of less than 2³¹ elements, and a TensorMut overlaps nothing.
        return unsafe {
            if MAX_BLOCK_COLS < cols && cols <= MAX_WIDE_COLS {
                let wide = kernels.wide.of_threads(wide_threads(cols));
                device.launch(&wide, [rows, 1, 1], &parameters(32))
            } else {
                let &softmax::Kernels { warp, block, stream, .. } = kernels;
                Kernels { warp, block, few: block, stream }.launch(device, (rows, cols), parameters)
            }
        };
    }
    let blocks = rows * parts;
    let normalizers = DeviceBuffer::uninitialized(device, blocks as usize * 2 * size_of::<f32>())?;
    let (normalizers, grid) = (normalizers.ptr(), [blocks, 1, 1]);
    // SAFETY: `ops::softmax_into` has checked that both are contiguous [rows, cols] of the kernel's type on this stream, of less
    // than 2³¹ elements, and a TensorMut overlaps nothing; `normalizers` has a pair for each part and is freed after both launches.
    unsafe {
        device.launch(&kernels.part, grid, &Part { normalizers, x, cols, part_cols, parts, vectors })?;
        device.launch(&kernels.merge, grid, &Merge { y, x, normalizers, cols, part_cols, parts, vectors })
    }
}

/// The textbook kernel, for benches.
pub(crate) fn textbook(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let parameters = Textbook { y: y.ptr(), x: x.ptr(), cols: cols as u32 };
    // SAFETY: `ops::textbook::softmax_into` has checked that all tensors are contiguous f32 of the shapes the kernel asks for,
    // on one stream.
    unsafe { device.launch(&softmax_textbook_f32, [rows as u32, 1, 1], &parameters) }
}
