//! Strided copy.

use super::check::Check;
use crate::{Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("copy");

/// A contiguous copy of `x`.
///
/// # Errors
/// [`Error::TooLarge`](crate::Error::TooLarge), or a device error.
pub fn copy(x: &Tensor) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(x.shape(), x.dtype(), &x.device())?;
    copy_into(y.view_mut()?, x)?;
    Ok(y)
}

/// Copies `x` into `y`, of the same shape and type; each may have any strides.
///
/// # Errors
/// As [`copy`], and [`Error::Shape`](crate::Error::Shape), [`Error::DeviceMismatch`](crate::Error::DeviceMismatch).
pub fn copy_into(y: TensorMut, x: &Tensor) -> Result<()> {
    CHECK.size("x", x)?;
    CHECK.size("y", &y)?;
    CHECK.dtype("y", &y, x.dtype())?;
    CHECK.shape("y", &y, x.dims(), "x's shape")?;
    match CHECK.device(&y, &[("x", x)])? {
        Device::Cpu => cpu::copy::copy(y, x),
        Device::Cuda(device) => gpu::copy::copy(&device, y, x),
    }
}
