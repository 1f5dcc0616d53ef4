//! Sums, maxima and their indices over the last dimension.

use super::{ELEMENTS_PER_TASK, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::problem::reduce::Reduction;
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
    rows.for_each(|(r, y)| *y = f(&x[r * cols..(r + 1) * cols]));
}

fn sum<T: Float>(x: &[T]) -> T {
    T::from_f32(x.iter().map(|x| f64::from(x.to_f32())).sum::<f64>() as f32)
}

/// The first NaN, else the first of the largest. The row is not empty.
fn argmax<T: Float>(x: &[T]) -> u32 {
    let (mut best, mut index) = (f32::NEG_INFINITY, 0);
    for (c, x) in x.iter().enumerate() {
        let x = x.to_f32();
        if x.is_nan() {
            return c as u32;
        }
        if x > best {
            (best, index) = (x, c);
        }
    }
    index as u32
}
