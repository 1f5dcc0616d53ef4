//! Gradient of softmax: kernel and grid.

use super::rows::Kernels;
use super::{DeviceElement, vectors};
use crate::cuda::CudaDevice;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::softmax_backward::{self, Rows};

pub(crate) fn softmax_backward(device: &CudaDevice, dx: TensorMut, dy: &Tensor, y: &Tensor) -> Result<()> {
    match y.dtype() {
        DType::F16 => of(device, &softmax_backward::OF_F16, dx, dy, y),
        _ => of(device, &softmax_backward::OF_F32, dx, dy, y),
    }
}

fn of<T: DeviceElement>(
    device: &CudaDevice,
    &softmax_backward::Kernels { warp, block }: &softmax_backward::Kernels<T>,
    dx: TensorMut,
    dy: &Tensor,
    y: &Tensor,
) -> Result<()> {
    let (rows, cols) = y.shape().rows_cols();
    let (rows, cols) = (rows as u32, cols as u32);
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    let (dx, dy, y) = (dx.ptr::<T>(), dy.ptr::<T>(), y.ptr::<T>());
    let vectors = vectors::rows_aligned(cols, size_of::<T>(), &[dx as u64, dy as u64, y as u64]);
    let vectors = u32::from(vectors);
    // SAFETY: `ops::softmax_backward_into` has checked that all three are contiguous [rows, cols] of the kernel's type on this
    // stream, of less than 2³¹ elements, and a TensorMut overlaps nothing; there is a row.
    unsafe {
        Kernels { warp, block, few: block, stream: block }.launch(device, (rows, cols), |lanes| Rows {
            dx,
            dy,
            y,
            rows,
            cols,
            vectors,
            lanes,
        })
    }
}
