//! Gradients of the norms: kernels and grids.

use super::rows::launch;
use super::{DeviceElement, column_sum, vectors};
use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::device::rows::RowKernels;
use kernels_gpu::norm_backward::{self as kernels, NormBackward};

/// The gradient of layer norm, or of RMS norm.
pub(crate) fn backward(
    device: &CudaDevice,
    is_layer_norm: bool,
    dx: TensorMut,
    [dweight, dbias]: [Option<TensorMut>; 2],
    inputs: [&Tensor; 3],
    eps: f32,
) -> Result<()> {
    let [dy, x, _] = inputs;
    match (x.dtype(), is_layer_norm) {
        (DType::F16, false) => launch_norm(device, &kernels::RMS_F16, dx, dweight, inputs, eps),
        (_, false) => launch_norm(device, &kernels::RMS_F32, dx, dweight, inputs, eps),
        (DType::F16, true) => launch_norm(device, &kernels::LAYER_F16, dx, dweight, inputs, eps),
        _ => launch_norm(device, &kernels::LAYER_F32, dx, dweight, inputs, eps),
    }?;
    dbias.map_or(Ok(()), |dbias| column_sum::column_sum(device, dbias, dy))
}

fn launch_norm<T: DeviceElement>(
    device: &CudaDevice,
    kernels: &RowKernels<NormBackward<T>>,
    dx: TensorMut,
    dweight: Option<TensorMut>,
    [dy, x, weight]: [&Tensor; 3],
    eps: f32,
) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let stats = DeviceBuffer::uninitialized(device, 2 * rows * size_of::<f32>())?;
    if rows > 0 && cols > 0 {
        let (rows, cols) = (rows as u32, cols as u32);
        let (dx, dy, x, weight) = (dx.ptr::<T>(), dy.ptr::<T>(), x.ptr::<T>(), weight.ptr::<T>());
        let addresses = [dx as u64, dy as u64, x as u64, weight as u64];
        let vectors = u32::from(vectors::rows_aligned(cols, size_of::<T>(), &addresses));
        let stats = stats.ptr();
        let parameters = |lanes| NormBackward { dx, stats, dy, x, weight, rows, cols, eps, vectors, lanes };
        // SAFETY: `ops` has checked that dx, dy and x are contiguous [rows, cols] and the weight [cols] of the kernel's type on this
        // stream, of less than 2³¹ elements, and a TensorMut overlaps nothing; `stats` has two numbers for each row.
        unsafe { launch(device, kernels, [rows, cols], parameters)? };
    }
    dweight.map_or(Ok(()), |dweight| column_sum::normed(device, dweight, dy, x, &stats))
}
