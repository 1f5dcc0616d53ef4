//! Sums, maxima and their indices over the last dimension.

use super::{ELEMENTS_PER_TASK, pieces, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::parallel::InTasks;
use crate::problem::reduce::Reduction;
use crate::simd::vectorized;
use crate::{Element, Result, Tensor, TensorMut};
use rayon::prelude::*;

pub(crate) fn reduce(op: Reduction, mut y: TensorMut, x: &Tensor) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    with_float!(x.dtype(), T => {
        let x = &slice::<T>(x)?[..rows * cols];
        match op {
            Reduction::Sum => each_row(&mut slice_mut::<T>(&mut y)?[..rows], x, cols, sum),
            Reduction::Max => each_row(&mut slice_mut::<T>(&mut y)?[..rows], x, cols, |x| x[argmax(x) as usize]),
            Reduction::Argmax => each_row(&mut slice_mut::<u32>(&mut y)?[..rows], x, cols, argmax),
        }
    });
    Ok(())
}

fn each_row<Y: Element, T: Element>(y: &mut [Y], x: &[T], cols: usize, f: impl Fn(&[T]) -> Y + Sync) {
    let min_rows = ELEMENTS_PER_TASK.div_ceil(cols.max(1));
    let rows = y.par_iter_mut().enumerate().with_min_len(min_rows);
    rows.in_tasks(|(r, y)| *y = vectorized!(f(&x[r * cols..(r + 1) * cols])));
}

#[inline(always)]
fn sum<T: Float>(x: &[T]) -> T {
    T::from_f32(pieces::sum(x, f64::from) as f32)
}

/// The first NaN, else the first of the largest values. The row is not empty.
#[inline(always)]
fn argmax<T: Float>(x: &[T]) -> u32 {
    let (mut best, mut index, mut at) = (f32::NEG_INFINITY, 0, 0);
    pieces::each(x, |x| {
        // most pieces hold no larger value, which a loop without branches finds
        let larger = |x: &f32| x.is_nan() || *x > best;
        if !best.is_nan() && x.iter().fold(false, |any, x| any | larger(x)) {
            for (c, &x) in x.iter().enumerate() {
                if !best.is_nan() && (x.is_nan() || x > best) {
                    (best, index) = (x, at + c);
                }
            }
        }
        at += x.len();
    });
    index as u32
}
