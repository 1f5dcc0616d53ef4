//! Gradient of an embedding: the grid.

use super::vectors;
use crate::cuda::CudaDevice;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::embedding_backward::{ROWS, Scatter, embedding_backward_f32};

/// Writes the gradient to `dtable`, or accumulates.
pub(crate) fn embedding_backward(
    device: &CudaDevice,
    dtable: TensorMut,
    dy: &Tensor,
    ids: &Tensor,
    add: bool,
) -> Result<()> {
    let (rows, cols) = dtable.shape().rows_cols();
    let (rows, cols, n) = (rows as u32, cols as u32, ids.shape().elements() as u32);
    if cols == 0 || add && n == 0 {
        return Ok(());
    }
    let (dtable, dy) = (dtable.ptr::<f32>(), dy.ptr::<f32>());
    let aligned = vectors::rows_aligned(cols, size_of::<f32>(), &[dtable as u64, dy as u64]);
    let (add, vectors) = (u32::from(add), u32::from(aligned));
    let parameters = Scatter { dtable, dy, ids: ids.ptr(), n, rows, cols, add, vectors };
    // SAFETY: `ops` has checked that dtable [rows, cols], dy [n, cols] and the ids [n] are contiguous, of the kernel's types, on this
    // stream and of less than 2³¹ elements, and a TensorMut overlaps nothing.
    unsafe { device.launch(&embedding_backward_f32, [rows.div_ceil(ROWS), 1, 1], &parameters) }
}
