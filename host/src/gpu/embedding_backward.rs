//! The grid of an embedding's gradient.

use crate::cuda::CudaDevice;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::embedding_backward::{Scatter, embedding_backward_f32};

pub(crate) fn embedding_backward(
    device: &CudaDevice,
    dtable: TensorMut,
    dy: &Tensor,
    ids: &Tensor,
) -> Result<()> {
    let (rows, cols) = dtable.shape().rows_cols();
    let (rows, cols, n) = (rows as u32, cols as u32, ids.shape().elements() as u32);
    if cols == 0 {
        return Ok(());
    }
    let parameters = Scatter { dtable: dtable.ptr(), dy: dy.ptr(), ids: ids.ptr(), rows, cols };
    // SAFETY: `ops` has checked that dtable [rows, cols], dy [n, cols] and the ids [n] are contiguous, of the kernel's types, on this
    // stream and of less than 2³¹ elements, and a TensorMut overlaps nothing.
    unsafe { device.launch(&embedding_backward_f32, [n, 1, 1], &parameters) }
}
