//! The textbook kernels, which benches compare the others with. `None` if there is none: on the CPU, and for all types but
//! f32.

use super::check::Check;
use crate::cuda::CudaDevice;
use crate::{DType, Device, Result, Tensor, TensorMut, gpu};

pub use super::attention::textbook_into as attention_into;

/// An input: its name, the tensor, and its required shape.
type Input<'a> = (&'static str, &'a Tensor, &'a [usize]);

/// Checks that the output and the inputs are contiguous f32 of these shapes; returns the GPU of all.
fn device(check: Check, y: &TensorMut, shape: &[usize], inputs: &[Input]) -> Option<Result<CudaDevice>> {
    let Device::Cuda(device) = y.device() else { return None };
    if y.dtype() != DType::F32 || inputs.iter().any(|(_, x, _)| x.dtype() != DType::F32) {
        return None;
    }
    let checked = || {
        check.shape("y", y, shape, "the op's")?;
        check.contiguous("y", y)?;
        for &(argument, x, shape) in inputs {
            check.shape(argument, x, shape, "the op's")?;
            check.contiguous(argument, x)?;
            check.device(y, &[(argument, x)])?;
        }
        Ok(device)
    };
    Some(checked())
}

/// [`ops::layer_norm_into`](crate::ops::layer_norm_into).
pub fn layer_norm_into(
    y: TensorMut,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f32,
) -> Option<Result<()>> {
    let cols = [x.shape().rows_cols().1];
    let inputs = [("x", x, x.dims()), ("weight", weight, &cols), ("bias", bias, &cols)];
    let device = device(Check("layer_norm"), &y, x.dims(), &inputs)?;
    Some(device.and_then(|device| gpu::layer_norm::textbook(&device, y, x, weight, bias, eps)))
}

/// [`ops::rms_norm_into`](crate::ops::rms_norm_into).
pub fn rms_norm_into(y: TensorMut, x: &Tensor, weight: &Tensor, eps: f32) -> Option<Result<()>> {
    let inputs = [("x", x, x.dims()), ("weight", weight, &[x.shape().rows_cols().1])];
    let device = device(Check("rms_norm"), &y, x.dims(), &inputs)?;
    Some(device.and_then(|device| gpu::rms_norm::textbook(&device, y, x, weight, eps)))
}

/// [`ops::softmax_into`](crate::ops::softmax_into).
pub fn softmax_into(y: TensorMut, x: &Tensor) -> Option<Result<()>> {
    let device = device(Check("softmax"), &y, x.dims(), &[("x", x, x.dims())])?;
    Some(device.and_then(|device| gpu::softmax::textbook(&device, y, x)))
}

/// [`ops::transpose_into`](crate::ops::transpose_into).
pub fn transpose_into(y: TensorMut, x: &Tensor) -> Option<Result<()>> {
    let shape = match super::transpose::transposed(x) {
        Ok(shape) => shape,
        Err(error) => return Some(Err(error)),
    };
    let device = device(Check("transpose"), &y, shape.dims(), &[("x", x, x.dims())])?;
    Some(device.and_then(|device| gpu::transpose::textbook(&device, y, x)))
}
