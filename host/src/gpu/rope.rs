//! Which rotary kernel, and its grid.

use crate::cuda::{CudaDevice, args};
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::rope::{BLOCK, PAIRS, ROPE_F16, ROPE_F32};

pub(crate) fn rope(device: &CudaDevice, y: TensorMut, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<()> {
    let [seq, heads, dim] = [0, 1, 2].map(|d| x.dims()[d] as u32);
    let half = dim / 2;
    let [y_seq, y_head] = [0, 1].map(|d| y.strides()[d] as u32);
    let [x_seq, x_head] = [0, 1].map(|d| x.strides()[d] as u32);
    if x.shape().elements() == 0 {
        return Ok(());
    }
    let spec = if x.dtype() == DType::F16 { ROPE_F16 } else { ROPE_F32 };
    let (size, table) = (x.dtype().size() as u64, size_of::<f32>() as u64);
    let (y, x, cos, sin) = (y.address(), x.address(), cos.address(), sin.address());
    let starts = [y / size, x / size, cos / table, sin / table];
    let extents = [half, y_seq, y_head, x_seq, x_head].map(u64::from);
    let vectors = starts.iter().chain(&extents).all(|n| n.is_multiple_of(u64::from(PAIRS)));
    let pairs = if vectors { PAIRS } else { 1 };
    let grid = [seq, (heads * half / pairs).div_ceil(BLOCK), 1];
    let arguments = args![y, x, cos, sin, heads, half, y_seq, y_head, x_seq, x_head, u32::from(vectors)];
    // SAFETY: `ops::rope_into` has checked shapes, types, device and dense last extents; the strides are the
    // tensors' own, whose spans are below 2³¹ elements, and a TensorMut overlaps nothing.
    unsafe { device.launch_args(&spec, grid, arguments) }
}
