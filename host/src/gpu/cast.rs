//! Cast: the kernel by types, the grid by size and alignment.

use super::vectors;
use crate::cuda::{CudaDevice, args};
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::cast::{F16_F32, F32_F16, LEN};
use kernels_gpu::device::flat;

pub(crate) fn cast(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    let n = x.shape().elements() as u32;
    if n == 0 {
        return Ok(());
    }
    let spec = if x.dtype() == DType::F16 { F32_F16 } else { F16_F32 };
    let head = vectors::head(n, LEN, &[(y.address(), y.dtype().size()), (x.address(), x.dtype().size())]);
    let grid = [flat::blocks(n, head, LEN), 1, 1];
    // SAFETY: `ops::cast_into` has checked that both are contiguous [n] of the kernel's types on this stream, of less
    // than 2³¹ elements, and a TensorMut overlaps nothing; `head` is where both are aligned.
    unsafe { device.launch_args(&spec, grid, args![y.address(), x.address(), n, head]) }
}
