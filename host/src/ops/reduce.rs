//! Sums, maxima and their indices over the last dimension.

use super::check::Check;
use crate::problem::reduce::Reduction;
use crate::{DType, Device, Result, Shape, Tensor, TensorMut, cpu, gpu};

/// y[..] = Σ x[.., ·].
///
/// `x`: [.., cols] f32 or f16, contiguous; the result is [..] of `x`'s type, summed in f32. 0 for rows without columns.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::Cpu)?;
/// let y = ops::sum(&x)?;
/// assert_eq!((y.dims(), y.to_vec::<f32>()?), (&[2][..], vec![3.0, 7.0]));
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) for rank 0.
pub fn sum(x: &Tensor) -> Result<Tensor> {
    new(x, x.dtype(), Reduction::Sum)
}

/// [`sum`] into `y`: [..] of `x`'s type.
pub fn sum_into(y: TensorMut, x: &Tensor) -> Result<()> {
    let dtype = x.dtype();
    reduce(y, x, dtype, Reduction::Sum)
}

/// y[..] = max x[.., ·]; NaN if the row contains a NaN.
///
/// `x`: [.., cols] f32 or f16, contiguous, cols > 0; the result is [..] of `x`'s type.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, -2.0, -3.0, -4.0], [2, 2], &Device::Cpu)?;
/// assert_eq!(ops::max(&x)?.to_vec::<f32>()?, [1.0, -3.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`sum`], and [`Error::Shape`](crate::Error::Shape) without columns.
pub fn max(x: &Tensor) -> Result<Tensor> {
    new(x, x.dtype(), Reduction::Max)
}

/// [`max`] into `y`: [..] of `x`'s type.
pub fn max_into(y: TensorMut, x: &Tensor) -> Result<()> {
    let dtype = x.dtype();
    reduce(y, x, dtype, Reduction::Max)
}

/// y[..] = the index of the first largest value of x[.., ·], or of the first NaN if the row contains a NaN.
///
/// `x`: [.., cols] f32 or f16, contiguous, cols > 0; the result is [..] u32.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let logits = Tensor::from_slice(&[0.1f32, 0.7, 0.2, 0.3, 0.3, 0.1], [2, 3], &Device::Cpu)?;
/// assert_eq!(ops::argmax(&logits)?.to_vec::<u32>()?, [1, 0]); // of equals the first
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`max`].
pub fn argmax(x: &Tensor) -> Result<Tensor> {
    new(x, DType::U32, Reduction::Argmax)
}

/// [`argmax`] into `y`: [..] u32.
pub fn argmax_into(y: TensorMut, x: &Tensor) -> Result<()> {
    reduce(y, x, DType::U32, Reduction::Argmax)
}

fn check(op: Reduction) -> Check {
    Check(match op {
        Reduction::Sum => "sum",
        Reduction::Max => "max",
        Reduction::Argmax => "argmax",
    })
}

/// All dimensions of `x` but the last.
fn outer(x: &Tensor, op: Reduction) -> Result<Shape> {
    match x.dims() {
        [outer @ .., cols] if *cols > 0 || op == Reduction::Sum => Ok(outer.into()),
        _ if op == Reduction::Sum => Err(check(op).bad_shape("x", x, "[.., cols]")),
        _ => Err(check(op).bad_shape("x", x, "[.., cols] with cols > 0")),
    }
}

fn new(x: &Tensor, dtype: DType, op: Reduction) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(outer(x, op)?, dtype, &x.device())?;
    reduce(y.view_mut()?, x, dtype, op)?;
    Ok(y)
}

fn reduce(y: TensorMut, x: &Tensor, dtype: DType, op: Reduction) -> Result<()> {
    let check = check(op);
    check.float("x", x)?;
    check.contiguous("x", x)?;
    check.contiguous("y", &y)?;
    check.dtype("y", &y, dtype)?;
    check.shape("y", &y, outer(x, op)?.dims(), "x's shape without its last dimension")?;
    match check.device(&y, &[("x", x)])? {
        Device::Cpu => cpu::reduce::reduce(op, y, x),
        Device::Cuda(device) => gpu::reduce::reduce(&device, op, y, x),
    }
}
