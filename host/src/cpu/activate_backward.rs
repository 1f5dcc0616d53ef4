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

/// The gradients with respect to a gate and what it gates.
fn through_gate(dy: f32, gate: f32, up: f32) -> [f32; 2] {
    [dy * slope(gate, Activation::Silu) * up, dy * silu(gate)]
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
                let (dy, x_c) = (dy.to_f32(), x[c].to_f32());
                if width == cols {
                    dx[c] = T::from_f32(dy * slope(x_c, activation));
                } else {
                    let [gate, up] = through_gate(dy, x_c, x[cols + c].to_f32());
                    (dx[c], dx[cols + c]) = (T::from_f32(gate), T::from_f32(up));
                }
            }
        });
    });
    Ok(())
}

pub(crate) fn silu_mul_backward(
    [mut dgate, mut dup]: [TensorMut; 2],
    dy: &Tensor,
    [gate, up]: [&Tensor; 2],
) -> Result<()> {
    with_float!(dy.dtype(), T => {
        let n = dy.shape().elements();
        let (dgate, dup) = (&mut slice_mut::<T>(&mut dgate)?[..n], &mut slice_mut::<T>(&mut dup)?[..n]);
        let (dy, gate, up) = (&slice::<T>(dy)?[..n], &slice::<T>(gate)?[..n], &slice::<T>(up)?[..n]);
        let outputs = dgate.par_iter_mut().zip(dup.par_iter_mut());
        let inputs = dy.par_iter().zip(gate.par_iter()).zip(up.par_iter());
        outputs.zip(inputs).with_min_len(ELEMENTS_PER_TASK).in_tasks(|((dgate, dup), ((dy, gate), up))| {
            let found = through_gate(dy.to_f32(), gate.to_f32(), up.to_f32());
            [*dgate, *dup] = found.map(T::from_f32);
        });
    });
    Ok(())
}
