//! Gradient of softmax: kernel and grid.

use super::rows::launch;
use super::{by_dtype, matrix, vectors};
use crate::cuda::CudaDevice;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::softmax_backward::{self, SoftmaxBackward};

pub(crate) fn softmax_backward(device: &CudaDevice, dx: TensorMut, dy: &Tensor, y: &Tensor) -> Result<()> {
    by_dtype!(y.dtype(), T, kernels = [softmax_backward::OF_F32, softmax_backward::OF_F16] => {
        let [rows, cols] = matrix(y.shape());
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let (dx, dy, y) = (dx.ptr::<T>(), dy.ptr::<T>(), y.ptr::<T>());
        let vectors = vectors::rows_aligned(cols, size_of::<T>(), &[dx as u64, dy as u64, y as u64]);
        let vectors = u32::from(vectors);
        let parameters = |lanes| SoftmaxBackward { dx, dy, y, rows, cols, vectors, lanes };
        // SAFETY: `ops::softmax_backward_into` has checked that all three are contiguous [rows, cols] of the kernel's type on this
        // stream, of less than 2³¹ elements, and a TensorMut overlaps nothing; there is a row.
        unsafe {
            launch(device, kernels, [rows, cols], parameters)
        }
    })
}
