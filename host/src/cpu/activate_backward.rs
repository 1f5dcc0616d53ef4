//! The gradient of activations.

use super::elementwise::{gelu_erf_parts, silu};
use super::{ELEMENTS_PER_TASK, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::parallel::InTasks;
use crate::problem::activate::Activation;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::elementwise::{GELU_TANH_CUBIC, GELU_TANH_SCALE};
use rayon::prelude::*;

/// 1/√(2π)
const NORMAL_SCALE: f32 = 0.398_942_3;

/// The derivative of the activation of one value; for SwiGLU, of a value of the first half.
fn slope(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Identity => 1.0,
        Activation::Silu | Activation::SwiGlu => {
            let sigmoid = 1.0 / (1.0 + (-x).exp());
            sigmoid * (1.0 + x * (1.0 - sigmoid))
        }
        Activation::GeluTanh => {
            let u = GELU_TANH_SCALE * (GELU_TANH_CUBIC * x * x * x + x);
            let sigmoid = 1.0 / (1.0 + (-2.0 * u).exp());
            let du = GELU_TANH_SCALE * (3.0 * GELU_TANH_CUBIC * x * x + 1.0);
            sigmoid + 2.0 * x * sigmoid * (1.0 - sigmoid) * du
        }
        Activation::GeluErf => {
            let (tail, exp) = gelu_erf_parts(x);
            let below = if x < 0.0 { tail } else { 1.0 - tail };
            below + x * NORMAL_SCALE * exp
        }
    }
}

pub(crate) fn activate_backward(
    mut dx: TensorMut,
    dy: &Tensor,
    x: &Tensor,
    activation: Activation,
) -> Result<()> {
    let (rows, width) = x.shape().rows_cols();
    let (_, cols) = dy.shape().rows_cols();
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    with_float!(x.dtype(), T => {
        let dx = &mut slice_mut::<T>(&mut dx)?[..rows * width];
        let (dy, x) = (slice::<T>(dy)?, slice::<T>(x)?);
        let rows = dx.par_chunks_exact_mut(width).zip(dy.par_chunks_exact(cols)).zip(x.par_chunks_exact(width));
        rows.with_min_len(ELEMENTS_PER_TASK.div_ceil(width)).in_tasks(|((dx, dy), x)| {
            for (c, dy) in dy.iter().enumerate() {
                let (dy, gate) = (dy.to_f32(), x[c].to_f32());
                let through = dy * slope(gate, activation);
                if width == cols {
                    dx[c] = T::from_f32(through);
                } else {
                    dx[c] = T::from_f32(through * x[cols + c].to_f32());
                    dx[cols + c] = T::from_f32(dy * silu(gate));
                }
            }
        });
    });
    Ok(())
}
