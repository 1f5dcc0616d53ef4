//! Which reduction kernel, and its grid.

use super::vectors;
use crate::cuda::{CudaDevice, args};
use crate::ops::reduce::Reduction;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::reduce::*;

/// The kernels for rows of up to `MAX_WARP_COLS` columns, and for longer ones.
fn kernels(op: Reduction, dtype: DType) -> (KernelSpec, KernelSpec) {
    match (op, dtype) {
        (Reduction::Sum, DType::F16) => (SUM_WARP_F16, SUM_BLOCK_F16),
        (Reduction::Sum, _) => (SUM_WARP_F32, SUM_BLOCK_F32),
        (Reduction::Max, DType::F16) => (MAX_WARP_F16, MAX_BLOCK_F16),
        (Reduction::Max, _) => (MAX_WARP_F32, MAX_BLOCK_F32),
        (Reduction::Argmax, DType::F16) => (ARGMAX_WARP_F16, ARGMAX_BLOCK_F16),
        (Reduction::Argmax, _) => (ARGMAX_WARP_F32, ARGMAX_BLOCK_F32),
    }
}

pub(crate) fn reduce(device: &CudaDevice, op: Reduction, y: TensorMut, x: &Tensor) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let (rows, cols) = (rows as u32, cols as u32);
    let (warp, block) = kernels(op, x.dtype());
    let (y, x, size) = (y.address(), x.address(), x.dtype().size());
    let vectors = u32::from(vectors::rows_aligned(cols, size, &[x]));
    // SAFETY: `ops` has checked that x is contiguous [rows, cols] and y [rows] of the kernel's types on this stream, of
    // less than 2³¹ elements, cols > 0 unless it is a sum, and a TensorMut overlaps nothing.
    unsafe {
        if cols <= MAX_WARP_COLS {
            device.launch(&warp, [rows.div_ceil(ROWS_PER_BLOCK), 1, 1], args![y, x, rows, cols, vectors])
        } else {
            device.launch(&block, [rows, 1, 1], args![y, x, cols, vectors])
        }
    }
}
