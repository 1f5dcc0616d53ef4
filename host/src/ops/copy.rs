//! Strided copy.

use super::check::Check;
use crate::kv::{KvMut, KvTensor};
use crate::problem::copy::{MAX_DIMS, merge};
use crate::tensor::Layout;
use crate::{Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("copy");

/// A contiguous copy of `x`, of any shape, type and strides.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::arange(0u32, 6, &Device::Cpu)?.reshape([2, 3])?;
/// let column = x.narrow(1, 1, 1)?; // a view with gaps
/// let y = ops::copy(&column)?;
/// assert!(y.is_contiguous() && y.to_vec::<u32>()? == [1, 4]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) if more than six dimensions remain after merging neighbours
/// without gaps.
pub fn copy(x: &Tensor) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(x.shape(), x.dtype(), &x.device())?;
    copy_into(y.view_mut()?, x)?;
    Ok(y)
}

/// Copies `x` into `y`, of the same shape and type; each may have any strides.
pub fn copy_into(y: TensorMut, x: &Tensor) -> Result<()> {
    CHECK.size("x", x)?;
    CHECK.size("y", &y)?;
    CHECK.dtype("y", &y, x.dtype())?;
    CHECK.shape("y", &y, x.dims(), "x's shape")?;
    let device = CHECK.device(&y, &[("x", x)])?;
    check_dims(CHECK, "x", y.layout(), x)?;
    match device {
        Device::Cpu => cpu::copy::copy(y, x),
        Device::Cuda(device) => gpu::copy::copy(&device, y, x),
    }
}

/// `x`, or a copy of it if it is a view that does not begin at a 16-byte boundary.
pub(crate) fn aligned(x: &Tensor) -> Result<Tensor> {
    if x.address().is_multiple_of(16) { Ok(x.clone()) } else { copy(x) }
}

impl Tensor {
    /// This tensor if it is contiguous, else a contiguous copy.
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_contiguous() { Ok(self.clone()) } else { copy(self) }
    }
}

impl KvMut<'_> {
    /// Overwrites it with the first tokens of `from`, of the same format and dimensions.
    pub(crate) fn copy_from(self, from: &KvTensor) -> Result<()> {
        let len = self.dims[0];
        copy_into(self.values, &from.values.narrow(0, 0, len)?)?;
        match (self.scales, &from.scales) {
            (Some(to), Some(scales)) => copy_into(to, &scales.narrow(0, 0, len)?),
            _ => Ok(()),
        }
    }
}

/// Checks that `x` has few enough dimensions for the kernels, after merging those that are contiguous in `x` and `y`.
pub(super) fn check_dims(check: Check, argument: &'static str, y: &Layout, x: &Tensor) -> Result<()> {
    if x.shape().elements() > 0 && merge(x.dims(), &y.strides, x.strides()).len() > MAX_DIMS {
        let reason = format!("at most {MAX_DIMS} dimensions with gaps between their entries can be copied");
        return Err(check.unsupported(argument, x.shape(), reason));
    }
    Ok(())
}
