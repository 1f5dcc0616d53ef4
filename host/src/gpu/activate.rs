//! Activation: kernel and grid.

use super::{by_dtype, matrix, vectors};
use crate::cuda::CudaDevice;
use crate::problem::activate::Activation;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::activate::*;

/// The kernels' number of an activation.
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
    by_dtype!(x.dtype(), T, spec = [activate_f32, activate_f16] => {
        let [rows, cols] = matrix(y.shape());
        let (y, x, bias) = (y.ptr::<T>(), x.ptr::<T>(), bias.map_or(std::ptr::null(), Tensor::ptr::<T>));
        let vectors = vectors::rows_aligned(cols, size_of::<T>(), &[y as u64, x as u64, bias as u64]);
        let pieces = (cols as usize * size_of::<T>()).div_ceil(BLOCK_BYTES as usize) as u32;
        let (activation, vectors) = (number(activation), u32::from(vectors));
        // SAFETY: `ops` has checked that y [rows, cols], x and the bias are contiguous, of the kernel's type, on this stream and
        // of less than 2³¹ elements, and a TensorMut overlaps nothing.
        unsafe { device.launch(spec, [rows, pieces, 1], &Activate { y, x, bias, cols, activation, vectors }) }
    })
}
