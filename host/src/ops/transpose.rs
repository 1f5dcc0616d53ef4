//! Transpose of the last two dimensions.

use super::check::Check;
use crate::{Device, Result, Shape, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("transpose");

/// y[.., c, r] = x[.., r, c], as a copy. ([`Tensor::swap_dims`] gives a view and copies nothing.)
///
/// `x`: [.., rows, cols] of any type, contiguous. The result is [.., cols, rows], contiguous.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::arange(0u32, 6, &Device::Cpu)?.reshape([2, 3])?;
/// let y = ops::transpose(&x)?;
/// assert_eq!(y.dims(), [3, 2]);
/// assert_eq!(y.to_vec::<u32>()?, [0, 3, 1, 4, 2, 5]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if `x` has fewer than two dimensions.
pub fn transpose(x: &Tensor) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(transposed(x)?, x.dtype(), &x.device())?;
    transpose_into(y.view_mut()?, x)?;
    Ok(y)
}

/// [`transpose`] into `y`, [.., cols, rows] of `x`'s type.
pub fn transpose_into(y: TensorMut, x: &Tensor) -> Result<()> {
    let shape = transposed(x)?;
    CHECK.contiguous("x", x)?;
    CHECK.contiguous("y", &y)?;
    CHECK.dtype("y", &y, x.dtype())?;
    CHECK.shape("y", &y, shape.dims(), "x's shape with the last two dimensions exchanged")?;
    let device = CHECK.device(&y, &[("x", x)])?;
    if x.shape().elements() == 0 {
        return Ok(());
    }
    match device {
        Device::Cpu => cpu::transpose::transpose(y, x),
        Device::Cuda(device) => gpu::transpose::transpose(&device, y, x),
    }
}

pub(super) fn transposed(x: &Tensor) -> Result<Shape> {
    let mut dims = x.dims().to_vec();
    match dims[..] {
        [.., _, _] => {
            let last = dims.len() - 1;
            dims.swap(last - 1, last);
            Ok(dims.into())
        }
        _ => Err(CHECK.bad_shape("x", x, "[.., rows, cols]")),
    }
}
