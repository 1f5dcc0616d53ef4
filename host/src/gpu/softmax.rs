//! Which softmax kernel, and its grid.

use crate::cuda::{CudaDevice, args};
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::softmax::{BLOCK_F16, BLOCK_F32, MAX_WARP_COLS, ROWS_PER_BLOCK, WARP_F16, WARP_F32};

/// The kernel for rows of this length.
fn select(cols: u32, dtype: DType) -> KernelSpec {
    match (cols <= MAX_WARP_COLS, dtype) {
        (true, DType::F16) => WARP_F16,
        (true, _) => WARP_F32,
        (false, DType::F16) => BLOCK_F16,
        (false, _) => BLOCK_F32,
    }
}

pub(crate) fn softmax(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let (rows, cols) = (rows as u32, cols as u32);
    if cols == 0 {
        return Ok(());
    }
    let spec = select(cols, x.dtype());
    let (y, x) = (y.address(), x.address());
    // SAFETY: `ops::softmax_into` has checked that both are contiguous [rows, cols] of the kernel's type on this
    // stream, of less than 2³¹ elements, and a TensorMut overlaps nothing.
    unsafe {
        if spec == WARP_F32 || spec == WARP_F16 {
            device.launch(&spec, [rows.div_ceil(ROWS_PER_BLOCK), 1, 1], args![y, x, rows, cols])
        } else {
            device.launch(&spec, [rows, 1, 1], args![y, x, cols])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_rows_take_a_block() {
        assert_eq!(select(1, DType::F32), WARP_F32);
        assert_eq!(select(MAX_WARP_COLS, DType::F16), WARP_F16);
        assert_eq!(select(MAX_WARP_COLS + 1, DType::F32), BLOCK_F32);
    }
}
