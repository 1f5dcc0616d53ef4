//! Layer norm: kernel and grid.

use super::rows::Kernels;
use super::{DeviceElement, vectors};
use crate::cuda::CudaDevice;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::layer_norm::{self, Rows, Textbook, layer_norm_textbook_f32};

pub(crate) fn layer_norm(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f32,
) -> Result<()> {
    match x.dtype() {
        DType::F16 => of(device, &layer_norm::OF_F16, y, x, weight, bias, eps),
        _ => of(device, &layer_norm::OF_F32, y, x, weight, bias, eps),
    }
}

fn of<T: DeviceElement>(
    device: &CudaDevice,
    kernels: &layer_norm::Kernels<T>,
    y: TensorMut,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f32,
) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let (rows, cols) = (rows as u32, cols as u32);
    if cols == 0 {
        return Ok(());
    }
    let (y, x, weight, bias) = (y.ptr::<T>(), x.ptr::<T>(), weight.ptr::<T>(), bias.ptr::<T>());
    let vectors =
        vectors::rows_aligned(cols, size_of::<T>(), &[y as u64, x as u64, weight as u64, bias as u64]);
    let vectors = u32::from(vectors);
    let &layer_norm::Kernels { warp, block, few, stream } = kernels;
    // SAFETY: `ops::layer_norm_into` has checked that x and y are contiguous [rows, cols] and weight and bias [cols] of
    // the kernel's type on this stream, of less than 2³¹ elements, and a TensorMut overlaps nothing; cols > 0.
    unsafe {
        Kernels { warp, block, few, stream }.launch(device, (rows, cols), |lanes| Rows {
            y,
            x,
            weight,
            bias,
            rows,
            cols,
            eps,
            vectors,
            lanes,
        })
    }
}

/// The textbook kernel, for benches.
pub(crate) fn textbook(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f32,
) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let cols = cols as u32;
    let parameters = Textbook { y: y.ptr(), x: x.ptr(), weight: weight.ptr(), bias: bias.ptr(), cols, eps };
    // SAFETY: `ops::textbook::layer_norm_into` has checked that all tensors are contiguous f32 of the shapes the kernel asks for,
    // on one stream.
    unsafe { device.launch(&layer_norm_textbook_f32, [rows as u32, 1, 1], &parameters) }
}
