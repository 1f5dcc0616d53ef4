//! Sums over all rows.

use super::check::Check;
use crate::{DType, Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("column_sum");

/// y\[c\] = Σ x[.., c] over all rows, which is the gradient of a bias. Sums are f32, in an order that depends only on the
/// shape and the device.
///
/// `x`: [.., cols] f32 or f16, contiguous; the result is \[cols\] f32.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::Cpu)?;
/// assert_eq!(ops::column_sum(&x)?.to_vec::<f32>()?, [4.0, 6.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn column_sum(x: &Tensor) -> Result<Tensor> {
    let (_, cols) = x.shape().rows_cols();
    let mut y = Tensor::uninitialized([cols], DType::F32, &x.device())?;
    column_sum_into(y.view_mut()?, x)?;
    Ok(y)
}

/// [`column_sum`] into `y`, \[cols\] f32.
pub fn column_sum_into(y: TensorMut, x: &Tensor) -> Result<()> {
    CHECK.float("x", x)?;
    CHECK.dtype("y", &y, DType::F32)?;
    CHECK.contiguous("x", x)?;
    CHECK.contiguous("y", &y)?;
    let (_, cols) = x.shape().rows_cols();
    CHECK.shape("y", &y, &[cols], "[cols], the last dimension of x")?;
    match CHECK.device(&y, &[("x", x)])? {
        Device::Cpu => cpu::column_sum::column_sum(y, x),
        Device::Cuda(device) => gpu::column_sum::column_sum(&device, y, x),
    }
}
