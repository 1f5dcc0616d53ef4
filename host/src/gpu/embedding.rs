//! Embedding: kernel and grid.

use super::by_dtype;
use crate::cuda::CudaDevice;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::embedding::{Gather, embedding_f16, embedding_f32};

pub(crate) fn embedding(device: &CudaDevice, y: TensorMut, table: &Tensor, ids: &Tensor) -> Result<()> {
    by_dtype!(table.dtype(), T, spec = [embedding_f32, embedding_f16] => {
        let (rows, cols) = table.shape().rows_cols();
        let (n, rows, cols) = (ids.shape().elements() as u32, rows as u32, cols as u32);
        if cols == 0 {
            return Ok(());
        }
        let (y, table, ids) = (y.ptr::<f32>(), table.ptr::<T>(), ids.ptr::<u32>());
        let quads = |address: u64, size: usize| address.is_multiple_of(4 * size as u64);
        let vectors =
            cols.is_multiple_of(4) && quads(y as u64, size_of::<f32>()) && quads(table as u64, size_of::<T>());
        let vectors = u32::from(vectors);
        // SAFETY: `ops::embedding_into` has checked that table [rows, cols], ids [n] and y [n, cols] are contiguous, of
        // the kernel's types, on this stream and of less than 2³¹ elements; a TensorMut overlaps nothing. An empty table
        // has address 0 and no valid id, so nothing is read from it.
        unsafe { device.launch(spec, [n, 1, 1], &Gather { y, table, ids, rows, cols, vectors }) }
    })
}
