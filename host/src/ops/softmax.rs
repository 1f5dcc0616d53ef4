//! Softmax over the last dimension.

use super::check::Check;
use crate::{Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("softmax");

/// y[.., c] = exp(x[.., c] − max) / Σ exp(x[.., ·] − max), over the last dimension.
///
/// `x`: [.., cols] f32 or f16, contiguous. A row of only −∞, or with a NaN, gives NaN.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[0.0f32, 0.0, f32::NEG_INFINITY, 1000.0, 0.0, 0.0], [2, 3], &Device::Cpu)?;
/// assert_eq!(ops::softmax(&x)?.to_vec::<f32>()?, [0.5, 0.5, 0.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(x.shape(), x.dtype(), &x.device())?;
    softmax_into(y.view_mut()?, x)?;
    Ok(y)
}

/// [`softmax`] into `y`, of `x`'s shape and type.
pub fn softmax_into(y: TensorMut, x: &Tensor) -> Result<()> {
    let dtype = CHECK.float("x", x)?;
    CHECK.contiguous("x", x)?;
    CHECK.contiguous("y", &y)?;
    CHECK.dtype("y", &y, dtype)?;
    CHECK.shape("y", &y, x.dims(), "x's shape")?;
    match CHECK.device(&y, &[("x", x)])? {
        Device::Cpu => cpu::softmax::softmax(y, x),
        Device::Cuda(device) => gpu::softmax::softmax(&device, y, x),
    }
}
