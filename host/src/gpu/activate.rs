//! Which activation kernel, and its grid.

use super::vectors;
use crate::cuda::{CudaDevice, args};
use crate::ops::Activation;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::activate::*;

/// The kernels' number for a function.
pub(super) fn number(activation: Activation) -> u32 {
    match activation {
        Activation::Identity => IDENTITY,
        Activation::Silu => SILU,
        Activation::GeluTanh => GELU_TANH,
        Activation::GeluErf => GELU_ERF,
        Activation::SwiGlu => SWIGLU,
    }
}

pub(crate) fn activate(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<()> {
    let (rows, cols) = y.shape().rows_cols();
    let (rows, cols, size) = (rows as u32, cols as u32, x.dtype().size());
    let spec = if x.dtype() == DType::F16 { ACTIVATE_F16 } else { ACTIVATE_F32 };
    let (y, x, bias) = (y.address(), x.address(), bias.map_or(0, Tensor::address));
    let vectors = u32::from(vectors::rows_aligned(cols, size, &[y, x, bias]));
    let pieces = (cols as usize * size).div_ceil(BLOCK_BYTES as usize) as u32;
    // SAFETY: `ops` has checked that y [rows, cols], x and the bias are contiguous, of the kernel's type, on this stream and
    // of less than 2³¹ elements, and a TensorMut overlaps nothing.
    unsafe {
        device.launch_args(&spec, [rows, pieces, 1], args![y, x, bias, cols, number(activation), vectors])
    }
}
