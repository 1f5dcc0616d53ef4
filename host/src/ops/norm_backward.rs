//! The gradients of RMS norm and layer norm.

use super::check::Check;
use crate::{DType, Device, Result, Tensor, TensorMut, cpu, gpu};

/// The gradients of [`rms_norm`](super::rms_norm()) with respect to its input and its weight: with r = 1/√(mean(x[.., ·]²) + eps) and
/// g = dy · weight, `dx[.., c] = r · (g[.., c] − x[.., c] · r² · mean(g · x))` and `dweight[c] = Σ dy[.., c] · x[.., c] · r`.
///
/// `dy`, `x`: [.., cols] f32 or f16, `weight`: \[cols\] of the same type, all contiguous. `dx` is of `x`'s type, `dweight` f32.
///
/// ```
/// use pascaline::{DType, Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, 1.0], [1, 2], &Device::Cpu)?;
/// let dy = Tensor::from_slice(&[1.0f32, 0.0], [1, 2], &Device::Cpu)?;
/// let weight = Tensor::ones([2], DType::F32, &Device::Cpu)?;
/// let [dx, dweight] = ops::rms_norm_backward(&dy, &x, &weight, 0.0)?;
/// assert_eq!(dx.to_vec::<f32>()?, [0.5, -0.5]);
/// assert_eq!(dweight.to_vec::<f32>()?, [1.0, 0.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`rms_norm`](super::rms_norm()).
pub fn rms_norm_backward(dy: &Tensor, x: &Tensor, weight: &Tensor, eps: f32) -> Result<[Tensor; 2]> {
    let mut dx = Tensor::uninitialized(x.shape(), x.dtype(), &x.device())?;
    let mut dweight = Tensor::uninitialized(weight.shape(), DType::F32, &x.device())?;
    rms_norm_backward_into(dx.view_mut()?, Some(dweight.view_mut()?), dy, x, weight, eps)?;
    Ok([dx, dweight])
}

/// [`rms_norm_backward`] into `dx`, of `x`'s shape and type, and optionally `dweight`, \[cols\] f32.
pub fn rms_norm_backward_into(
    dx: TensorMut,
    dweight: Option<TensorMut>,
    dy: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    eps: f32,
) -> Result<()> {
    let check = Check("rms_norm_backward");
    backward(check, false, dx, [dweight, None], [dy, x, weight], eps)
}

/// The gradients of [`layer_norm`](super::layer_norm()) with respect to its input, its weight and its bias: with
/// n = (x − mean)·r the normalised row, r = 1/√(variance + eps), and g = dy · weight,
/// `dx = r · (g − mean(g) − n · mean(g · n))`, `dweight[c] = Σ dy[.., c] · n[.., c]` and `dbias[c] = Σ dy[.., c]`.
///
/// `dy`, `x`: [.., cols] f32 or f16, `weight`: \[cols\] of the same type, all contiguous. `dx` is of `x`'s type, the others f32.
///
/// ```
/// use pascaline::{DType, Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, -1.0], [1, 2], &Device::Cpu)?; // normalised already
/// let dy = Tensor::from_slice(&[1.0f32, 0.0], [1, 2], &Device::Cpu)?;
/// let weight = Tensor::ones([2], DType::F32, &Device::Cpu)?;
/// let [dx, dweight, dbias] = ops::layer_norm_backward(&dy, &x, &weight, 0.0)?;
/// assert_eq!(dx.to_vec::<f32>()?, [0.0, 0.0]); // two values can only be normalised to ±1
/// assert_eq!((dweight.to_vec::<f32>()?, dbias.to_vec::<f32>()?), (vec![1.0, 0.0], vec![1.0, 0.0]));
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`layer_norm`](super::layer_norm()).
pub fn layer_norm_backward(dy: &Tensor, x: &Tensor, weight: &Tensor, eps: f32) -> Result<[Tensor; 3]> {
    let mut dx = Tensor::uninitialized(x.shape(), x.dtype(), &x.device())?;
    let new = || Tensor::uninitialized(weight.shape(), DType::F32, &x.device());
    let [mut dweight, mut dbias] = [new()?, new()?];
    let sums = Some([dweight.view_mut()?, dbias.view_mut()?]);
    layer_norm_backward_into(dx.view_mut()?, sums, dy, x, weight, eps)?;
    Ok([dx, dweight, dbias])
}

/// [`layer_norm_backward`] into `dx`, of `x`'s shape and type, and optionally `dweight` and `dbias`, \[cols\] f32.
pub fn layer_norm_backward_into(
    dx: TensorMut,
    sums: Option<[TensorMut; 2]>,
    dy: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    eps: f32,
) -> Result<()> {
    let check = Check("layer_norm_backward");
    let [dweight, dbias] = sums.map_or([None, None], |sums| sums.map(Some));
    backward(check, true, dx, [dweight, dbias], [dy, x, weight], eps)
}

/// The gradient of layer norm, or of RMS norm.
fn backward(
    check: Check,
    is_layer_norm: bool,
    dx: TensorMut,
    [dweight, dbias]: [Option<TensorMut>; 2],
    inputs @ [dy, x, weight]: [&Tensor; 3],
    eps: f32,
) -> Result<()> {
    let dtype = check.float("x", x)?;
    check.dtype("dy", dy, dtype)?;
    check.dtype("weight", weight, dtype)?;
    check.dtype("dx", &dx, dtype)?;
    check.contiguous("x", x)?;
    check.contiguous("dy", dy)?;
    check.contiguous("weight", weight)?;
    check.contiguous("dx", &dx)?;
    check.shape("dy", dy, x.dims(), "x's shape")?;
    check.shape("dx", &dx, x.dims(), "x's shape")?;
    let (_, cols) = x.shape().rows_cols();
    check.shape("weight", weight, &[cols], "[cols], the last dimension of x")?;
    let device = check.device(&dx, &[("dy", dy), ("x", x), ("weight", weight)])?;
    for (argument, sum) in [("dweight", &dweight), ("dbias", &dbias)] {
        let Some(sum) = sum else { continue };
        check.dtype(argument, sum, DType::F32)?;
        check.shape(argument, sum, &[cols], "[cols], the last dimension of x")?;
        check.contiguous(argument, sum)?;
        if !sum.device().same(&device) {
            return Err(check.elsewhere(argument, &sum.device(), &device));
        }
    }
    if !(eps.is_finite() && eps >= 0.0) {
        return Err(check.unsupported("eps", eps, "it must be finite and not negative"));
    }
    match device {
        Device::Cpu => cpu::norm_backward::backward(is_layer_norm, dx, [dweight, dbias], dy, x, weight, eps),
        Device::Cuda(device) => {
            gpu::norm_backward::backward(&device, is_layer_norm, dx, [dweight, dbias], inputs, eps)
        }
    }
}
