//! RMS norm: kernel and grid.

use super::rows::launch;
use super::{by_dtype, matrix, vectors};
use crate::cuda::CudaDevice;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::rms_norm::{self, RmsNorm};

pub(crate) fn rms_norm(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    weight: &Tensor,
    eps: f32,
) -> Result<()> {
    by_dtype!(x.dtype(), T, kernels = [rms_norm::OF_F32, rms_norm::OF_F16] => {
        let [rows, cols] = matrix(x.shape());
        if cols == 0 {
            return Ok(());
        }
        let (y, x, weight) = (y.ptr::<T>(), x.ptr::<T>(), weight.ptr::<T>());
        let vectors = vectors::rows_aligned(cols, size_of::<T>(), &[y as u64, x as u64, weight as u64]);
        let vectors = u32::from(vectors);
        let parameters = |lanes| RmsNorm { y, x, weight, rows, cols, eps, vectors, lanes };
        // SAFETY: `ops::rms_norm_into` has checked that x and y are contiguous [rows, cols] and the weight [cols] of
        // the kernel's type on this stream, of less than 2³¹ elements, and a TensorMut overlaps nothing; cols > 0.
        unsafe {
            launch(device, kernels, [rows, cols], parameters)
        }
    })
}
