//! Strided copy.

use super::check::Check;
use crate::tensor::Layout;
use crate::{Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("copy");

/// The most dimensions that may be left after [`merge`].
pub(crate) const MAX_DIMS: usize = 6;

/// A dimension that can't be merged with its neighbours, and the strides along it, in elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dim {
    pub extent: usize,
    pub y: usize,
    pub x: usize,
}

/// Leaves out dimensions of size 1 and merges neighbours without a gap between them in both tensors; outermost first.
pub(crate) fn merge(extents: &[usize], y_strides: &[usize], x_strides: &[usize]) -> Vec<Dim> {
    let mut dims: Vec<Dim> = Vec::with_capacity(extents.len());
    for ((&extent, &y), &x) in extents.iter().zip(y_strides).zip(x_strides) {
        match dims.last_mut() {
            _ if extent == 1 => {}
            Some(outer) if outer.y == y * extent && outer.x == x * extent => {
                *outer = Dim { extent: outer.extent * extent, y, x };
            }
            _ => dims.push(Dim { extent, y, x }),
        }
    }
    dims
}

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
/// [`Error::TooLarge`](crate::Error::TooLarge), [`Error::Unsupported`](crate::Error::Unsupported) if more than six
/// dimensions are left after neighbours without a gap between them are merged, or a device error.
pub fn copy(x: &Tensor) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(x.shape(), x.dtype(), &x.device())?;
    copy_into(y.view_mut()?, x)?;
    Ok(y)
}

/// Copies `x` into `y`, of the same shape and type; each may have any strides.
///
/// # Errors
/// As [`copy`], and [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType),
/// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch).
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

/// That the kernels have enough dimensions to copy `x` to where `y` says, which has the same shape.
pub(super) fn check_dims(check: Check, argument: &'static str, y: &Layout, x: &Tensor) -> Result<()> {
    if x.shape().elements() > 0 && merge(x.dims(), &y.strides, x.strides()).len() > MAX_DIMS {
        let reason = format!("at most {MAX_DIMS} dimensions with gaps between their entries can be copied");
        return Err(check.unsupported(argument, x.shape(), reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_without_a_gap_are_merged() {
        let dim = |extent, y, x| Dim { extent, y, x };
        assert_eq!(merge(&[2, 3, 4], &[12, 4, 1], &[12, 4, 1]), [dim(24, 1, 1)]);
        assert_eq!(merge(&[2, 3, 4], &[12, 4, 1], &[24, 8, 1]), [dim(6, 4, 8), dim(4, 1, 1)]);
        assert_eq!(merge(&[2, 1, 4], &[4, 99, 1], &[4, 7, 1]), [dim(8, 1, 1)]);
        assert_eq!(merge(&[3, 2], &[2, 1], &[1, 3]), [dim(3, 2, 1), dim(2, 1, 3)]);
        assert_eq!(merge(&[1, 1], &[1, 1], &[5, 1]), []);
    }
}
