//! Which embedding kernel, and its grid.

use crate::cuda::{CudaDevice, args};
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::embedding::{GATHER_F16, GATHER_F32};

pub(crate) fn embedding(device: &CudaDevice, y: TensorMut, table: &Tensor, ids: &Tensor) -> Result<()> {
    let (rows, cols) = table.shape().rows_cols();
    let (n, rows, cols) = (ids.shape().elements() as u32, rows as u32, cols as u32);
    if cols == 0 {
        return Ok(());
    }
    let spec = if table.dtype() == DType::F16 { GATHER_F16 } else { GATHER_F32 };
    let table_alignment = 4 * table.dtype().size() as u64;
    let (y, table, ids) = (y.address(), table.address(), ids.address());
    let vectors = cols.is_multiple_of(4) && y.is_multiple_of(16) && table.is_multiple_of(table_alignment);
    // SAFETY: `ops::embedding_into` has checked that table [rows, cols], ids [n] and y [n, cols] are contiguous, of
    // the kernel's types, on this stream and of less than 2³¹ elements; a TensorMut overlaps nothing. An empty table
    // has address 0 and no valid id, so nothing is read from it.
    unsafe { device.launch_args(&spec, [n, 1, 1], args![y, table, ids, rows, cols, u32::from(vectors)]) }
}
