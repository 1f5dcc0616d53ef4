//! The epilogue of a linear map: bias, activation, residual.

use super::check::Check;
use super::elementwise::add_into;
use crate::problem::activate::{Activation, Epilogue};
use crate::{Device, Result, Shape, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("activate");

impl<'a> Epilogue<'a> {
    /// Checks bias and residual for an output `y` of products with `n` columns; returns the tensors that are given.
    pub(crate) fn check(
        &self,
        check: Check,
        y: &TensorMut,
        n: usize,
    ) -> Result<impl Iterator<Item = (&'static str, &'a Tensor)> + use<'a>> {
        if let Some(bias) = self.bias {
            check.shape("bias", bias, &[n], "[n]")?;
        }
        if let Some(residual) = self.residual {
            check.shape("residual", residual, y.dims(), "y's shape")?;
        }
        let bias = self.bias.map(|bias| ("bias", bias));
        let tensors = bias.into_iter().chain(self.residual.map(|residual| ("residual", residual)));
        for (argument, tensor) in tensors.clone() {
            check.dtype(argument, tensor, y.dtype())?;
            check.contiguous(argument, tensor)?;
        }
        Ok(tensors)
    }
}

/// y[.., c] = act(x[.., c] + bias\[c\]), in one pass.
///
/// `x`: [.., n] f32 or f16, contiguous; `bias`: \[n\] of the same type; `y`: [.., n], or [.., n/2] for
/// [`Activation::SwiGlu`].
///
/// ```
/// use pascaline::ops::{self, Activation};
/// use pascaline::{Device, Tensor};
/// let x = Tensor::from_slice(&[0.0f32, 100.0, 3.0, 4.0], [1, 4], &Device::Cpu)?;
/// let y = ops::activate(&x, None, Activation::SwiGlu)?; // silu of the first half, times the second
/// assert_eq!((y.dims(), y.to_vec::<f32>()?), (&[1, 2][..], vec![0.0, 400.0]));
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn activate(x: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(output_shape(x, activation)?, x.dtype(), &x.device())?;
    activate_into(y.view_mut()?, x, bias, activation)?;
    Ok(y)
}

/// [`activate`] into `y`, contiguous.
pub fn activate_into(y: TensorMut, x: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<()> {
    let dtype = CHECK.float("x", x)?;
    CHECK.dtype("y", &y, dtype)?;
    CHECK.contiguous("x", x)?;
    CHECK.contiguous("y", &y)?;
    CHECK.shape("y", &y, output_shape(x, activation)?.dims(), "x's shape, or half of its last dimension")?;
    let epilogue = Epilogue { bias, ..Epilogue::default() };
    let mut inputs = vec![("x", x)];
    inputs.extend(epilogue.check(CHECK, &y, x.shape().rows_cols().1)?);
    match CHECK.device(&y, &inputs)? {
        Device::Cpu => cpu::activate::activate(y, x, bias, activation),
        Device::Cuda(device) => gpu::activate::activate(&device, y, x, bias, activation),
    }
}

/// y = act(sums + bias) + residual, where the product could not do that itself.
pub(crate) fn finish_into(y: TensorMut, sums: &Tensor, epilogue: &Epilogue) -> Result<()> {
    let Epilogue { bias, activation, residual } = *epilogue;
    let Some(residual) = residual else { return activate_into(y, sums, bias, activation) };
    add_into(y, &activate(sums, bias, activation)?, residual)
}

fn output_shape(x: &Tensor, activation: Activation) -> Result<Shape> {
    let Some((cols, outer)) = x.dims().split_last() else {
        return Err(CHECK.bad_shape("x", x, "[.., n]"));
    };
    match activation.columns(*cols) {
        Some(cols) => Ok([outer, &[cols]].concat().into()),
        None => Err(CHECK.bad_shape("x", x, "an even number of columns")),
    }
}
