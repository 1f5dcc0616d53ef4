//! Cross-entropy: the grid.

use super::matrix;
use crate::cuda::CudaDevice;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::cross_entropy::{CrossEntropy, cross_entropy_f32};

pub(crate) fn cross_entropy(
    device: &CudaDevice,
    loss: TensorMut,
    x: TensorMut,
    labels: &Tensor,
    scale: f32,
) -> Result<()> {
    let [rows, cols] = matrix(x.shape());
    let parameters = CrossEntropy { loss: loss.ptr(), x: x.ptr(), labels: labels.ptr(), cols, scale };
    // SAFETY: `ops` has checked that x [rows, cols], the loss and the labels [rows] are contiguous, of the kernel's types, on this
    // stream and of less than 2³¹ elements, and a TensorMut overlaps nothing.
    unsafe { device.launch(&cross_entropy_f32, [rows, 1, 1], &parameters) }
}
