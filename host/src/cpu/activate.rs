//! Bias and activation, row by row.

use super::elementwise::{gelu_erf, gelu_tanh, silu};
use super::{ELEMENTS_PER_TASK, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::problem::activate::Activation;
use crate::{Result, Tensor, TensorMut};
use rayon::prelude::*;

/// The function of one value; for SwiGLU, that of its first half.
pub(super) fn value(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Identity => x,
        Activation::Silu | Activation::SwiGlu => silu(x),
        Activation::GeluTanh => gelu_tanh(x),
        Activation::GeluErf => gelu_erf(x),
    }
}

pub(crate) fn activate(
    mut y: TensorMut,
    x: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<()> {
    let (rows, cols) = y.shape().rows_cols();
    let (_, width) = x.shape().rows_cols();
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    with_float!(x.dtype(), T => {
        let y = &mut slice_mut::<T>(&mut y)?[..rows * cols];
        let x = slice::<T>(x)?;
        let bias = bias.map(slice::<T>).transpose()?;
        let min_rows = ELEMENTS_PER_TASK.div_ceil(cols);
        y.par_chunks_exact_mut(cols).zip(x.par_chunks_exact(width)).with_min_len(min_rows).for_each(|(y, x)| {
            let biased = |c: usize| x[c].to_f32() + bias.map_or(0.0, |bias| bias[c].to_f32());
            for (c, y) in y.iter_mut().enumerate() {
                let gate = value(biased(c), activation);
                *y = T::from_f32(if width == cols { gate } else { gate * biased(cols + c) });
            }
        });
    });
    Ok(())
}
