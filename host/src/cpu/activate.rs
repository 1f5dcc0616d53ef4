//! Bias and activation, row by row.

use super::elementwise::{gelu_erf, gelu_tanh, silu};
use super::{ELEMENTS_PER_TASK, pieces, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::parallel::InTasks;
use crate::problem::activate::Activation;
use crate::simd::vectorized;
use crate::{Result, Tensor, TensorMut};
use rayon::prelude::*;

/// The activation of one value; for SwiGLU, of a value of the first half.
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
        let x = &slice::<T>(x)?[..rows * width];
        let bias = bias.map(slice::<T>).transpose()?;
        match activation {
            Activation::Identity => each_row(y, x, bias, [cols, width], |x| x),
            Activation::Silu | Activation::SwiGlu => each_row(y, x, bias, [cols, width], silu),
            Activation::GeluTanh => each_row(y, x, bias, [cols, width], gelu_tanh),
            Activation::GeluErf => each_row(y, x, bias, [cols, width], gelu_erf),
        }
    });
    Ok(())
}

/// y = f(x + bias). Where x is twice as wide as y, f of the first half times the second half.
fn each_row<T: Float>(
    y: &mut [T],
    x: &[T],
    bias: Option<&[T]>,
    [cols, width]: [usize; 2],
    f: impl Fn(f32) -> f32 + Sync,
) {
    let row = |y: &mut [T], x: &[T]| {
        let (gate, up) = x.split_at(cols);
        let biases = bias.map(|bias| bias[..width].split_at(cols));
        match (biases, width == cols) {
            (None, true) => pieces::map(y, [gate], |[x]| f(x)),
            (None, false) => pieces::map(y, [gate, up], |[gate, up]| f(gate) * up),
            (Some((bias, _)), true) => pieces::map(y, [gate, bias], |[x, bias]| f(x + bias)),
            (Some((b, c)), false) => {
                pieces::map(y, [gate, b, up, c], |[gate, b, up, c]| f(gate + b) * (up + c));
            }
        }
    };
    let rows = y.par_chunks_exact_mut(cols).zip(x.par_chunks_exact(width));
    rows.with_min_len(ELEMENTS_PER_TASK.div_ceil(cols)).in_tasks(|(y, x)| vectorized!(row(y, x)));
}
