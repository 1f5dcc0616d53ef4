//! Element by element.

use super::{ELEMENTS_PER_TASK, pieces, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::parallel::InTasks;
use crate::problem::elementwise::{Binary, Unary};
use crate::simd::vectorized;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::elementwise::{ERFC, GELU_ERF_LIMIT, GELU_TANH_CUBIC, GELU_TANH_SCALE};
use rayon::prelude::*;
use std::f32::consts::FRAC_1_SQRT_2;

pub(crate) fn binary(op: Binary, mut z: TensorMut, x: &Tensor, y: &Tensor) -> Result<()> {
    with_float!(x.dtype(), T => {
        let (n, period) = (x.shape().elements(), y.shape().elements());
        let z = &mut slice_mut::<T>(&mut z)?[..n];
        let (x, y) = (&slice::<T>(x)?[..n], &slice::<T>(y)?[..period]);
        match op {
            Binary::Add => zip(z, x, y, |x, y| x + y),
            Binary::Mul => zip(z, x, y, |x, y| x * y),
            Binary::SiluMul => zip(z, x, y, |gate, up| silu(gate) * up),
        }
    });
    Ok(())
}

pub(crate) fn unary(op: Unary, mut y: TensorMut, x: &Tensor) -> Result<()> {
    with_float!(x.dtype(), T => {
        let n = x.shape().elements();
        let (y, x) = (&mut slice_mut::<T>(&mut y)?[..n], &slice::<T>(x)?[..n]);
        match op {
            Unary::Scale(factor) => map(y, x, |x| x * factor),
            Unary::GeluTanh => map(y, x, gelu_tanh),
            Unary::GeluErf => map(y, x, gelu_erf),
        }
    });
    Ok(())
}

/// z = f(x, y), with y repeated along x.
fn zip<T: Float>(z: &mut [T], x: &[T], y: &[T], f: impl Fn(f32, f32) -> f32 + Sync) {
    if x.is_empty() || y.is_empty() {
        return;
    }
    // a task begins at the first element of y, or gets the part of y that belongs to it
    let repeats = y.len() < x.len();
    let len = if repeats { y.len() * ELEMENTS_PER_TASK.div_ceil(y.len()) } else { ELEMENTS_PER_TASK };
    in_tasks(z, x, len, |start, z, x| {
        let y = if repeats { y } else { &y[start..][..z.len()] };
        vectorized!({
            for (z, x) in z.chunks_mut(y.len()).zip(x.chunks(y.len())) {
                pieces::map(z, [x, y], |[x, y]| f(x, y));
            }
        });
    });
}

fn map<T: Float>(y: &mut [T], x: &[T], f: impl Fn(f32) -> f32 + Sync) {
    in_tasks(y, x, ELEMENTS_PER_TASK, |_, y, x| vectorized!(pieces::map(y, [x], |[x]| f(x))));
}

/// Calls `f` with pieces of `len` elements and the number of the first; in parallel, if there are several.
pub(super) fn in_tasks<Y: Float, X: Float>(
    y: &mut [Y],
    x: &[X],
    len: usize,
    f: impl Fn(usize, &mut [Y], &[X]) + Sync,
) {
    if y.len() <= len {
        return f(0, y, x);
    }
    let tasks = y.par_chunks_mut(len).zip(x.par_chunks(len)).enumerate();
    tasks.in_tasks(|(task, (y, x))| f(task * len, y, x));
}

#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// 0.5x(1 + tanh u), without cancellation for negative x.
#[inline(always)]
pub(super) fn gelu_tanh(x: f32) -> f32 {
    let u = GELU_TANH_SCALE * (GELU_TANH_CUBIC * x * x * x + x);
    x / (1.0 + (-2.0 * u).exp())
}

/// x·Φ(x), with Φ(−a) = erfc(a/√2)/2 from the kernels' polynomial.
#[inline(always)]
pub(super) fn gelu_erf(x: f32) -> f32 {
    let (tail, _) = gelu_erf_parts(x);
    if x < 0.0 { x * tail } else { x * (1.0 - tail) }
}

/// Φ(−|x|), and e^(−x²/2).
pub(super) fn gelu_erf_parts(x: f32) -> (f32, f32) {
    let a = x.abs().min(GELU_ERF_LIMIT);
    let t = 1.0 / (1.0 + 0.5 * FRAC_1_SQRT_2 * a);
    let q = ERFC.iter().rev().fold(0.0, |q, coefficient| q * t + coefficient);
    // the exponent in f64: its rounding error grows with a²
    let exp = (-0.5 * f64::from(a) * f64::from(a)).exp() as f32;
    (0.5 * t * q * exp, exp)
}
