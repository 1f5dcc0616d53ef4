//! Rotary position embedding: kernel and grid.

use super::by_dtype;
use crate::cuda::CudaDevice;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::rope::{BLOCK, PAIRS, Rope, rope_f16, rope_f32};

pub(crate) fn rope(device: &CudaDevice, y: TensorMut, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<()> {
    by_dtype!(x.dtype(), T, spec = [rope_f32, rope_f16] => {
        let [seq, heads, dim] = [0, 1, 2].map(|d| x.dims()[d] as u32);
        let half = dim / 2;
        let [y_seq, y_head] = [0, 1].map(|d| y.strides()[d] as u32);
        let [x_seq, x_head] = [0, 1].map(|d| x.strides()[d] as u32);
        if x.shape().elements() == 0 {
            return Ok(());
        }
        let (y, x, cos, sin) = (y.ptr::<T>(), x.ptr::<T>(), cos.ptr::<f32>(), sin.ptr::<f32>());
        let first = |address: u64, size: usize| address / size as u64;
        let (size, table) = (size_of::<T>(), size_of::<f32>());
        let starts =
            [first(y as u64, size), first(x as u64, size), first(cos as u64, table), first(sin as u64, table)];
        let lengths = [half, y_seq, y_head, x_seq, x_head].map(u64::from);
        let vectors = starts.iter().chain(&lengths).all(|n| n.is_multiple_of(u64::from(PAIRS)));
        let pairs = if vectors { PAIRS } else { 1 };
        let grid = [seq, (heads * half / pairs).div_ceil(BLOCK), 1];
        let vectors = u32::from(vectors);
        let parameters = Rope { y, x, cos, sin, heads, half, y_seq, y_head, x_seq, x_head, vectors };
        // SAFETY: `ops::rope_into` has checked shapes, types, device and dense last dimensions; the strides are the
        // tensors' own, whose spans are below 2³¹ elements, and a TensorMut overlaps nothing.
        unsafe { device.launch(spec, grid, &parameters) }
    })
}
