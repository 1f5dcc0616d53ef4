//! Root mean square norm over the last dimension.

use super::check::Check;
use crate::{DType, Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("rms_norm");

/// y[.., c] = x[.., c] / √(mean(x[.., ·]²) + eps) · weight\[c\] (Zhang & Sennrich 2019).
///
/// `x`: [.., cols] f32 or f16, `weight`: \[cols\] of the same type, both contiguous; `eps` ≥ 0. Computed in f32.
///
/// ```
/// use pascaline::{DType, Device, Tensor, ops};
/// let x = Tensor::from_slice(&[3.0f32, 4.0, -3.0, -4.0], [1, 4], &Device::Cpu)?;
/// let weight = Tensor::ones([4], DType::F32, &Device::Cpu)?;
/// let y = ops::rms_norm(&x, &weight, 0.0)?.to_vec::<f32>()?;
/// assert!((y[0] - 3.0 / 12.5f32.sqrt()).abs() < 1e-6); // the mean of the squares is 12.5
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for a negative or infinite `eps`.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(x.shape(), x.dtype(), &x.device())?;
    rms_norm_into(y.view_mut()?, x, weight, eps)?;
    Ok(y)
}

/// [`rms_norm`] into `y`, of `x`'s shape and type.
pub fn rms_norm_into(y: TensorMut, x: &Tensor, weight: &Tensor, eps: f32) -> Result<()> {
    let dtype = check_inputs(CHECK, x, weight, eps)?;
    CHECK.dtype("y", &y, dtype)?;
    CHECK.contiguous("y", &y)?;
    CHECK.shape("y", &y, x.dims(), "x's shape")?;
    match CHECK.device(&y, &[("x", x), ("weight", weight)])? {
        Device::Cpu => cpu::rms_norm::rms_norm(y, x, weight, eps),
        Device::Cuda(device) => gpu::rms_norm::rms_norm(&device, y, x, weight, eps),
    }
}

/// Checks all but the devices of a norm's inputs; returns their type.
pub(super) fn check_inputs(check: Check, x: &Tensor, weight: &Tensor, eps: f32) -> Result<DType> {
    let dtype = check.float("x", x)?;
    check.dtype("weight", weight, dtype)?;
    check.contiguous("x", x)?;
    check.contiguous("weight", weight)?;
    let (_, cols) = x.shape().rows_cols();
    check.shape("weight", weight, &[cols], "[cols], the last dimension of x")?;
    match eps.is_finite() && eps >= 0.0 {
        true => Ok(dtype),
        false => Err(check.unsupported("eps", eps, "it must be finite and not negative")),
    }
}
