//! The gradient of softmax.

use super::check::Check;
use crate::{Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("softmax_backward");

/// The gradient with respect to softmax's input: dx[.., c] = y[.., c] · (dy[.., c] − Σ dy[.., ·]·y[.., ·]).
///
/// `dy`: the gradient with respect to the result; `y`: the result of [`softmax`](super::softmax()). Both of one shape, f32 or
/// f16, contiguous.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let y = ops::softmax(&Tensor::from_slice(&[0.0f32, 0.0], [1, 2], &Device::Cpu)?)?;
/// let dy = Tensor::from_slice(&[1.0f32, 0.0], [1, 2], &Device::Cpu)?;
/// assert_eq!(ops::softmax_backward(&dy, &y)?.to_vec::<f32>()?, [0.25, -0.25]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn softmax_backward(dy: &Tensor, y: &Tensor) -> Result<Tensor> {
    let mut dx = Tensor::uninitialized(y.shape(), y.dtype(), &y.device())?;
    softmax_backward_into(dx.view_mut()?, dy, y)?;
    Ok(dx)
}

/// [`softmax_backward`] into `dx`, of `y`'s shape and type.
pub fn softmax_backward_into(dx: TensorMut, dy: &Tensor, y: &Tensor) -> Result<()> {
    let dtype = CHECK.float("y", y)?;
    CHECK.dtype("dy", dy, dtype)?;
    CHECK.dtype("dx", &dx, dtype)?;
    CHECK.contiguous("y", y)?;
    CHECK.contiguous("dy", dy)?;
    CHECK.contiguous("dx", &dx)?;
    CHECK.shape("dy", dy, y.dims(), "y's shape")?;
    CHECK.shape("dx", &dx, y.dims(), "y's shape")?;
    match CHECK.device(&dx, &[("dy", dy), ("y", y)])? {
        Device::Cpu => cpu::softmax_backward::softmax_backward(dx, dy, y),
        Device::Cuda(device) => gpu::softmax_backward::softmax_backward(&device, dx, dy, y),
    }
}
