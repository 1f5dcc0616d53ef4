//! Softmax over rows.

use super::{ELEMENTS_PER_TASK, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::{Result, Tensor, TensorMut};
use rayon::prelude::*;

pub(crate) fn softmax(mut y: TensorMut, x: &Tensor) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    with_float!(x.dtype(), T => {
        let (y, x) = (slice_mut::<T>(&mut y)?, slice::<T>(x)?);
        let y = &mut y[..rows * cols];
        let min_rows = ELEMENTS_PER_TASK.div_ceil(cols);
        y.par_chunks_exact_mut(cols).zip(x.par_chunks_exact(cols)).with_min_len(min_rows).for_each(|(y, x)| row(y, x));
    });
    Ok(())
}

fn row<T: Float>(y: &mut [T], x: &[T]) {
    let max = x.iter().map(|x| x.to_f32()).fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = x.iter().map(|x| (x.to_f32() - max).exp()).sum();
    for (y, x) in y.iter_mut().zip(x) {
        *y = T::from_f32((x.to_f32() - max).exp() / sum);
    }
}
