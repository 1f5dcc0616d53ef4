//! Gradient of activations: kernel and grid.

use super::activate::number;
use super::{by_dtype, matrix, vectors};
use crate::cuda::CudaDevice;
use crate::problem::activate::Activation;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::activate_backward::{BLOCK_BYTES, Backward, activate_backward_f16, activate_backward_f32};

pub(crate) fn activate_backward(
    device: &CudaDevice,
    dx: TensorMut,
    dy: &Tensor,
    x: &Tensor,
    activation: Activation,
) -> Result<()> {
    by_dtype!(x.dtype(), T, spec = [activate_backward_f32, activate_backward_f16] => {
        let [rows, cols] = matrix(dy.shape());
        let (dx, dy, x) = (dx.ptr::<T>(), dy.ptr::<T>(), x.ptr::<T>());
        let vectors = vectors::rows_aligned(cols, size_of::<T>(), &[dx as u64, dy as u64, x as u64]);
        let pieces = (cols as usize * size_of::<T>()).div_ceil(BLOCK_BYTES as usize) as u32;
        let (activation, vectors) = (number(activation), u32::from(vectors));
        // SAFETY: `ops` has checked that dy [rows, cols], x and dx are contiguous, of the kernel's type, on this stream and of less
        // than 2³¹ elements, and a TensorMut overlaps nothing.
        unsafe { device.launch(spec, [rows, pieces, 1], &Backward { dx, dy, x, cols, activation, vectors }) }
    })
}
