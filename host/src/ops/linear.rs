//! A linear map with a norm before it and an epilogue after it.

use super::activate::activate_into;
use super::check::Check;
use super::elementwise::add_into;
use super::matmul::fused_into;
use super::rms_norm;
use crate::problem::activate::{Activation, Epilogue};
use crate::problem::matmul::{Fusion, Matmul};
use crate::tensor::MAX_ELEMENTS;
use crate::{DType, Device, Error, Result, Shape, Tensor, TensorMut, gpu};

const CHECK: Check = Check("linear");

/// y = act(norm(x)·wᵀ + bias) + residual.
///
/// `x`: [.., k], `w`: [n, k] as in checkpoints, both contiguous; f32 · f32 → f32, f16 · f16 → f16, f32 · f16 → f32, with
/// sums in f32. `norm`: the weight \[k\] (of x's type) and eps of an [`rms_norm`] of x's rows, or `None`. `y`: [.., n], or
/// [.., n/2] for [`Activation::SwiGlu`].
///
/// On a GPU it is one launch for up to 8 rows. For more rows, norm and activation are separate passes; bias and residual are
/// in the product's epilogue.
///
/// ```
/// use pascaline::ops::{self, Activation, Epilogue};
/// use pascaline::{DType, Device, Tensor};
/// let x = Tensor::from_slice(&[3.0f32, 3.0], [1, 2], &Device::Cpu)?;
/// let w = Tensor::from_slice(&[1.0f32, 1.0, 1.0, -1.0, 2.0, 0.0], [3, 2], &Device::Cpu)?;
/// let norm = Tensor::ones([2], DType::F32, &Device::Cpu)?; // the norm makes x's row (1, 1)
/// let epilogue = Epilogue { activation: Activation::Silu, ..Epilogue::default() };
/// let y = ops::linear(&x, &w, Some((&norm, 0.0)), &epilogue)?;
/// let silu = |x: f32| x / (1.0 + (-x).exp());
/// for (found, expected) in y.to_vec::<f32>()?.into_iter().zip([silu(2.0), silu(0.0), silu(2.0)]) {
///     assert!((found - expected).abs() < 1e-6);
/// }
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for a negative or infinite eps.
pub fn linear(x: &Tensor, w: &Tensor, norm: Option<(&Tensor, f32)>, epilogue: &Epilogue) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(output_shape(x, w, epilogue.activation)?, x.dtype(), &x.device())?;
    linear_into(y.view_mut()?, x, w, norm, epilogue)?;
    Ok(y)
}

/// [`linear`] into `y`, contiguous.
pub fn linear_into(
    y: TensorMut,
    x: &Tensor,
    w: &Tensor,
    norm: Option<(&Tensor, f32)>,
    epilogue: &Epilogue,
) -> Result<()> {
    let shape = output_shape(x, w, epilogue.activation)?;
    CHECK.shape("y", &y, shape.dims(), shape.to_string())?;
    CHECK.dtype("y", &y, CHECK.float("x", x)?)?;
    CHECK.float("w", w)?;
    if x.dtype() == DType::F16 {
        CHECK.dtype("w", w, DType::F16)?;
    }
    CHECK.contiguous("y", &y)?;
    CHECK.contiguous("x", x)?;
    CHECK.contiguous("w", w)?;
    let ((rows, k), n) = (x.shape().rows_cols(), w.dims()[0]);
    let mut inputs = vec![("x", x), ("w", w)];
    inputs.extend(epilogue.check(CHECK, &y, n)?);
    if let Some((weight, eps)) = norm {
        CHECK.dtype("norm", weight, x.dtype())?;
        CHECK.shape("norm", weight, &[k], "[k]")?;
        CHECK.contiguous("norm", weight)?;
        if !(eps.is_finite() && eps >= 0.0) {
            return Err(CHECK.unsupported("eps", eps, "it must be finite and not negative"));
        }
        inputs.push(("norm", weight));
    }
    let device = CHECK.device(&y, &inputs)?;
    let (x, columns) = (x.reshape([rows, k])?, shape.rows_cols().1);
    let y = y.reshape([rows, columns])?;
    let residual = epilogue.residual.map(|residual| residual.reshape([rows, columns])).transpose()?;
    let epilogue = Epilogue { residual: residual.as_ref(), ..*epilogue };
    match device {
        Device::Cuda(device) if rows <= gpu::matmul::MAX_VECTOR_ROWS && k > 0 => {
            gpu::matmul::linear(&device, y, &x, w, &Fusion { norm, epilogue })
        }
        _ => in_passes(y, &x, w, norm, &epilogue),
    }
}

fn in_passes(
    y: TensorMut,
    x: &Tensor,
    w: &Tensor,
    norm: Option<(&Tensor, f32)>,
    epilogue: &Epilogue,
) -> Result<()> {
    let normed = norm.map(|(weight, eps)| rms_norm(x, weight, eps)).transpose()?;
    let (x, w) = (normed.as_ref().unwrap_or(x), w.swap_dims(0, 1)?);
    let Epilogue { bias, activation, residual } = *epilogue;
    if activation == Activation::Identity {
        return fused_into(y, x, &w, &Matmul::default(), &Fusion { norm: None, epilogue: *epilogue });
    }
    let product = super::matmul(x, &w)?;
    let Some(residual) = residual else { return activate_into(y, &product, bias, activation) };
    let activated = super::activate(&product, bias, activation)?;
    add_into(y, &activated, residual)
}

/// [.., n], or [.., n/2] for a gate.
fn output_shape(x: &Tensor, w: &Tensor, activation: Activation) -> Result<Shape> {
    let Some((k, outer)) = x.dims().split_last() else {
        return Err(CHECK.bad_shape("x", x, "[.., k]"));
    };
    let n = match w.dims() {
        &[n, columns] if columns == *k => activation
            .columns(n)
            .ok_or_else(|| CHECK.bad_shape("w", w, "an even number of rows, the two halves of a gate"))?,
        _ => return Err(CHECK.bad_shape("w", w, format!("[n, {k}] for x of shape {}", x.shape()))),
    };
    let elements = outer.iter().fold(n as u128, |product, &size| product.saturating_mul(size as u128));
    match elements <= MAX_ELEMENTS as u128 {
        true => Ok([outer, &[n]].concat().into()),
        // checked before the output is allocated
        false => Err(Error::TooLarge { op: "linear", argument: "y", elements, limit: MAX_ELEMENTS as u128 }),
    }
}
