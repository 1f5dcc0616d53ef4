//! Conversion between f32 and f16.

use super::check::Check;
use crate::{DType, Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("cast");

/// `x` in element type `dtype`, rounded to nearest, ties to even; magnitudes beyond f16's largest become ±∞.
///
/// `x`: f32 or f16, contiguous. A cast to the same type is a copy.
///
/// ```
/// use pascaline::{DType, Device, Tensor, f16, ops};
/// let x = Tensor::from_slice(&[1.0f32, 1.0 / 3.0, 1e6], [3], &Device::Cpu)?;
/// let y = ops::cast(&x, DType::F16)?;
/// assert_eq!(y.to_vec::<f16>()?, [f16::ONE, f16::from_f32(1.0 / 3.0), f16::INFINITY]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(x.shape(), dtype, &x.device())?;
    cast_into(y.view_mut()?, x)?;
    Ok(y)
}

/// [`cast`] into `y`, of `x`'s shape and the type to cast to.
pub fn cast_into(y: TensorMut, x: &Tensor) -> Result<()> {
    CHECK.float("x", x)?;
    CHECK.float("y", &y)?;
    CHECK.contiguous("x", x)?;
    CHECK.contiguous("y", &y)?;
    CHECK.shape("y", &y, x.dims(), "x's shape")?;
    let device = CHECK.device(&y, &[("x", x)])?;
    if x.dtype() == y.dtype() {
        return super::copy::copy_into(y, x);
    }
    match device {
        Device::Cpu => cpu::cast::cast(y, x),
        Device::Cuda(device) => gpu::cast::cast(&device, y, x),
    }
}
