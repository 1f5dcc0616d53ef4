//! Element by element.

use super::{ELEMENTS_PER_TASK, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::problem::elementwise::{Binary, Unary};
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

/// y repeats along x.
fn zip<T: Float>(z: &mut [T], x: &[T], y: &[T], f: impl Fn(f32, f32) -> f32 + Sync) {
    if y.is_empty() {
        return;
    }
    let f = |((z, x), y): ((&mut T, &T), &T)| *z = T::from_f32(f(x.to_f32(), y.to_f32()));
    if x.len() == y.len() {
        let chunks = z.par_chunks_mut(ELEMENTS_PER_TASK).zip(x.par_chunks(ELEMENTS_PER_TASK));
        let chunks = chunks.zip(y.par_chunks(ELEMENTS_PER_TASK));
        chunks.for_each(|((z, x), y)| z.iter_mut().zip(x).zip(y).for_each(f));
    } else {
        let rows = z.par_chunks_mut(y.len()).zip(x.par_chunks(y.len()));
        let min_rows = ELEMENTS_PER_TASK.div_ceil(y.len());
        rows.with_min_len(min_rows).for_each(|(z, x)| z.iter_mut().zip(x).zip(y).for_each(f));
    }
}

fn map<T: Float>(y: &mut [T], x: &[T], f: impl Fn(f32) -> f32 + Sync) {
    let chunks = y.par_chunks_mut(ELEMENTS_PER_TASK).zip(x.par_chunks(ELEMENTS_PER_TASK));
    chunks.for_each(|(y, x)| y.iter_mut().zip(x).for_each(|(y, x)| *y = T::from_f32(f(x.to_f32()))));
}

pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// 0.5x(1 + tanh u), written so that nothing cancels for negative x.
pub(super) fn gelu_tanh(x: f32) -> f32 {
    let u = GELU_TANH_SCALE * (GELU_TANH_CUBIC * x * x * x + x);
    x / (1.0 + (-2.0 * u).exp())
}

/// x·Φ(x), with Φ(−a) = erfc(a/√2)/2 from the kernels' polynomial.
pub(super) fn gelu_erf(x: f32) -> f32 {
    let (tail, _) = gelu_erf_parts(x);
    if x < 0.0 { x * tail } else { x * (1.0 - tail) }
}

/// Φ(−|x|), and e^(−x²/2).
pub(super) fn gelu_erf_parts(x: f32) -> (f32, f32) {
    let a = x.abs().min(GELU_ERF_LIMIT);
    let t = 1.0 / (1.0 + 0.5 * FRAC_1_SQRT_2 * a);
    let q = ERFC.iter().rev().fold(0.0, |q, coefficient| q * t + coefficient);
    // the exponent in f64, since what rounding takes from it grows with a²
    let exp = (-0.5 * f64::from(a) * f64::from(a)).exp() as f32;
    (0.5 * t * q * exp, exp)
}
