//! Layer norm over the last dimension.

use super::check::Check;
use crate::{Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("layer_norm");

/// y[.., c] = (x[.., c] − mean) / √(var + eps) · weight\[c\] + bias\[c\], with the mean and the variance (over cols, not
/// cols − 1) of x[.., ·] (Ba et al. 2016).
///
/// `x`: [.., cols] f32 or f16, `weight`, `bias`: \[cols\] of the same type, all contiguous; `eps` ≥ 0. Computed in f32; rows far from
/// zero and rows with outliers keep their accuracy.
///
/// ```
/// use pascaline::{DType, Device, Tensor, ops};
/// let x = Tensor::from_slice(&[11.0f32, 13.0], [1, 2], &Device::Cpu)?; // mean 12, variance 1
/// let weight = Tensor::ones([2], DType::F32, &Device::Cpu)?;
/// let bias = Tensor::zeros([2], DType::F32, &Device::Cpu)?;
/// assert_eq!(ops::layer_norm(&x, &weight, &bias, 0.0)?.to_vec::<f32>()?, [-1.0, 1.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for a negative or infinite `eps`.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(x.shape(), x.dtype(), &x.device())?;
    layer_norm_into(y.view_mut()?, x, weight, bias, eps)?;
    Ok(y)
}

/// [`layer_norm`] into `y`, of `x`'s shape and type.
pub fn layer_norm_into(y: TensorMut, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<()> {
    let dtype = CHECK.float("x", x)?;
    CHECK.dtype("weight", weight, dtype)?;
    CHECK.dtype("bias", bias, dtype)?;
    CHECK.dtype("y", &y, dtype)?;
    CHECK.contiguous("x", x)?;
    CHECK.contiguous("weight", weight)?;
    CHECK.contiguous("bias", bias)?;
    CHECK.contiguous("y", &y)?;
    CHECK.shape("y", &y, x.dims(), "x's shape")?;
    let (_, cols) = x.shape().rows_cols();
    CHECK.shape("weight", weight, &[cols], "[cols], the last dimension of x")?;
    CHECK.shape("bias", bias, &[cols], "[cols], the last dimension of x")?;
    if !(eps.is_finite() && eps >= 0.0) {
        return Err(CHECK.unsupported("eps", eps, "it must be finite and not negative"));
    }
    match CHECK.device(&y, &[("x", x), ("weight", weight), ("bias", bias)])? {
        Device::Cpu => cpu::layer_norm::layer_norm(y, x, weight, bias, eps),
        Device::Cuda(device) => gpu::layer_norm::layer_norm(&device, y, x, weight, bias, eps),
    }
}
