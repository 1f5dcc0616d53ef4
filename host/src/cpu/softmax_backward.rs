//! The gradient of softmax, row by row.

use super::{ELEMENTS_PER_TASK, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::parallel::InTasks;
use crate::{Result, Tensor, TensorMut};
use rayon::prelude::*;

pub(crate) fn softmax_backward(mut dx: TensorMut, dy: &Tensor, y: &Tensor) -> Result<()> {
    let (rows, cols) = y.shape().rows_cols();
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    with_float!(y.dtype(), T => {
        let dx = &mut slice_mut::<T>(&mut dx)?[..rows * cols];
        let (dy, y) = (slice::<T>(dy)?, slice::<T>(y)?);
        let rows = dx.par_chunks_exact_mut(cols).zip(dy.par_chunks_exact(cols)).zip(y.par_chunks_exact(cols));
        rows.with_min_len(ELEMENTS_PER_TASK.div_ceil(cols)).in_tasks(|((dx, dy), y)| {
            let products = dy.iter().zip(y).map(|(dy, y)| f64::from(dy.to_f32()) * f64::from(y.to_f32()));
            let sum = products.sum::<f64>() as f32;
            for ((dx, dy), y) in dx.iter_mut().zip(dy).zip(y) {
                *dx = T::from_f32(y.to_f32() * (dy.to_f32() - sum));
            }
        });
    });
    Ok(())
}
