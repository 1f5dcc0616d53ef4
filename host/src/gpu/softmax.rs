//! Which softmax kernel, and its grid.

use super::vectors;
use crate::cuda::{CudaDevice, args};
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::softmax::*;

/// The kernel for rows of this length.
fn select(cols: u32, dtype: DType) -> KernelSpec {
    let [f32, f16] = if cols <= MAX_WARP_COLS {
        [WARP_F32, WARP_F16]
    } else if cols <= MAX_BLOCK_COLS {
        [BLOCK_F32, BLOCK_F16]
    } else {
        [STREAM_F32, STREAM_F16]
    };
    if dtype == DType::F16 { f16 } else { f32 }
}

pub(crate) fn softmax(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let (rows, cols) = (rows as u32, cols as u32);
    if cols == 0 {
        return Ok(());
    }
    let (spec, size) = (select(cols, x.dtype()), x.dtype().size());
    let (y, x) = (y.address(), x.address());
    let vectors = u32::from(vectors::rows_aligned(cols, size, &[y, x]));
    // SAFETY: `ops::softmax_into` has checked that both are contiguous [rows, cols] of the kernel's type on this
    // stream, of less than 2³¹ elements, and a TensorMut overlaps nothing; `select` has compared cols with the
    // kernel's limit.
    unsafe {
        if cols <= MAX_WARP_COLS {
            let spec = device.rows_spec(&spec, rows)?;
            let grid = [rows.div_ceil(spec.threads() / 32), 1, 1];
            device.launch(&spec, grid, args![y, x, rows, cols, vectors])
        } else {
            device.launch(&spec, [rows, 1, 1], args![y, x, cols, vectors])
        }
    }
}

/// The textbook kernel, for benches.
pub(crate) fn textbook(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    // SAFETY: the case that calls this has passed `ops::softmax_into`, which checks all that the kernel asks for.
    unsafe { device.launch(&TEXTBOOK_F32, [rows as u32, 1, 1], args![y.address(), x.address(), cols as u32]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_follows_the_length_of_rows() {
        assert_eq!(select(1, DType::F32), WARP_F32);
        assert_eq!(select(MAX_WARP_COLS, DType::F16), WARP_F16);
        assert_eq!(select(MAX_WARP_COLS + 1, DType::F32), BLOCK_F32);
        assert_eq!(select(MAX_BLOCK_COLS + 1, DType::F32), STREAM_F32);
    }
}
