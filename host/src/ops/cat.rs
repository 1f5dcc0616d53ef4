//! Concatenation along a dimension: one strided copy per tensor into a part of the output.

use super::check::Check;
use super::copy::{check_dims, copy_into};
use crate::tensor::MAX_ELEMENTS;
use crate::{Error, Result, Shape, Tensor, TensorMut};
use std::borrow::Borrow;

const CAT: Check = Check("cat");
const STACK: Check = Check("stack");

/// The tensors one after the other along dimension `dim`. Their sizes may differ in that dimension only (0 is allowed).
///
/// `tensors`: at least one; all of the same type, on the same device, with any strides. The result is contiguous.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::Cpu)?;
/// let b = Tensor::from_slice(&[5.0f32, 6.0], [2, 1], &Device::Cpu)?;
/// let y = ops::cat(&[&a, &b], 1)?;
/// assert_eq!(y.dims(), [2, 3]);
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0, 5.0, 3.0, 4.0, 6.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`] without tensors, for a `dim` that they do not have, and for strides that
/// [`copy`](super::copy()) does not support.
pub fn cat<T: Borrow<Tensor>>(tensors: &[T], dim: usize) -> Result<Tensor> {
    allocate_and_join(CAT, &borrowed(tensors), dim)
}

/// [`cat`] into `y`, which may have any strides.
pub fn cat_into<T: Borrow<Tensor>>(y: TensorMut, tensors: &[T], dim: usize) -> Result<()> {
    join(CAT, y, &borrowed(tensors), dim)
}

/// The tensors as the entries of a new dimension, number `dim` of the result: y[.., i, ..] = tensors\[i\][.., ..].
///
/// `tensors`: at least one; all of the same shape and type, on the same device, with any strides; `dim` is at most their rank.
/// The result is contiguous.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &Device::Cpu)?;
/// let b = Tensor::from_slice(&[4.0f32, 5.0, 6.0], [3], &Device::Cpu)?;
/// let rows = ops::stack(&[&a, &b], 0)?;
/// assert_eq!((rows.dims(), rows.to_vec::<f32>()?), (&[2, 3][..], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
/// let columns = ops::stack(&[&a, &b], 1)?;
/// assert_eq!((columns.dims(), columns.to_vec::<f32>()?), (&[3, 2][..], vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`cat`].
pub fn stack<T: Borrow<Tensor>>(tensors: &[T], dim: usize) -> Result<Tensor> {
    allocate_and_join(STACK, &entries(&borrowed(tensors), dim)?, dim)
}

/// [`stack`] into `y`, which may have any strides.
pub fn stack_into<T: Borrow<Tensor>>(y: TensorMut, tensors: &[T], dim: usize) -> Result<()> {
    join(STACK, y, &entries(&borrowed(tensors), dim)?, dim)
}

/// Views of all tensors, so that `cat` has one form.
fn borrowed<T: Borrow<Tensor>>(tensors: &[T]) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.borrow().clone()).collect()
}

/// The tensors with a new dimension of size 1, for concatenation.
fn entries(tensors: &[Tensor], dim: usize) -> Result<Vec<Tensor>> {
    let Some(first) = tensors.first() else { return Err(none(STACK)) };
    if dim > first.shape().rank() {
        let reason =
            format!("tensors of shape {} are stacked along 0 to {}", first.shape(), first.shape().rank());
        return Err(STACK.unsupported("dim", dim, reason));
    }
    for (index, tensor) in tensors.iter().enumerate() {
        STACK.shape(
            "tensors",
            tensor,
            first.dims(),
            format!("{} at index {index}, as at 0", first.shape()),
        )?;
    }
    Ok(tensors.iter().map(|tensor| tensor.unsqueeze(dim)).collect())
}

fn none(check: Check) -> Error {
    check.unsupported("tensors", "[]", "there must be at least one")
}

fn allocate_and_join(check: Check, tensors: &[Tensor], dim: usize) -> Result<Tensor> {
    let shape = output_shape(check, tensors, dim)?;
    let mut y = Tensor::uninitialized(shape, tensors[0].dtype(), &tensors[0].device())?;
    join(check, y.view_mut()?, tensors, dim)?;
    Ok(y)
}

fn join(check: Check, mut y: TensorMut, tensors: &[Tensor], dim: usize) -> Result<()> {
    let shape = output_shape(check, tensors, dim)?;
    check.shape("y", &y, shape.dims(), shape.to_string())?;
    check.dtype("y", &y, tensors[0].dtype())?;
    check.size("y", &y)?;
    for x in tensors {
        check.size("tensors", x)?;
        check.device(&y, &[("tensors", x)])?;
    }
    let mut end = 0;
    let parts: Vec<(usize, &Tensor)> = tensors
        .iter()
        .map(|x| {
            end += x.dims()[dim];
            (end - x.dims()[dim], x)
        })
        .collect();
    // all are checked before the first is copied: an error leaves y as it was
    for &(start, x) in &parts {
        check_dims(check, "tensors", &y.layout().narrow(dim, start, x.dims()[dim])?, x)?;
    }
    parts.iter().try_for_each(|&(start, x)| copy_into(y.reborrow().narrow(dim, start, x.dims()[dim])?, x))
}

/// The shape of the result, with the sizes along `dim` summed. There is at least one tensor, and all have the same type.
fn output_shape(check: Check, tensors: &[Tensor], dim: usize) -> Result<Shape> {
    let Some(first) = tensors.first() else { return Err(none(check)) };
    if dim >= first.shape().rank() {
        let reason = format!("tensors of shape {} have {} dimensions", first.shape(), first.shape().rank());
        return Err(check.unsupported("dim", dim, reason));
    }
    let mut dims = first.dims().to_vec();
    dims[dim] = 0;
    for (index, x) in tensors.iter().enumerate() {
        let others = |x: &Tensor| [&x.dims()[..dim], &x.dims()[dim + 1..]].concat();
        if x.shape().rank() != dims.len() || others(x) != others(first) {
            let dims: Vec<_> = first.dims().iter().map(usize::to_string).collect();
            let (before, after) = (&dims[..dim], &dims[dim + 1..]);
            let expected = [before, &["_".into()], after].concat().join(", ");
            return Err(check.bad_shape("tensors", x, format!("[{expected}] at index {index}, as at 0")));
        }
        if x.dtype() != first.dtype() {
            let (expected, found) = (format!("{} at index {index}, as at 0", first.dtype()), x.dtype());
            return Err(Error::DType { op: check.0, argument: "tensors", expected, found });
        }
        dims[dim] = dims[dim].saturating_add(x.dims()[dim]);
    }
    let elements = dims.iter().fold(1u128, |product, &size| product.saturating_mul(size as u128));
    match elements <= MAX_ELEMENTS as u128 {
        true => Ok(dims.into()),
        // checked before the output is allocated
        false => Err(Error::TooLarge { op: check.0, argument: "y", elements, limit: MAX_ELEMENTS as u128 }),
    }
}
