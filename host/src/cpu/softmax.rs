//! Softmax over rows.

use super::{ELEMENTS_PER_TASK, pieces, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::parallel::InTasks;
use crate::simd::vectorized;
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
        y.par_chunks_exact_mut(cols).zip(x.par_chunks_exact(cols)).with_min_len(min_rows).in_tasks(|(y, x)| vectorized!(row(y, x)));
    });
    Ok(())
}

#[inline(always)]
fn row<T: Float>(y: &mut [T], x: &[T]) {
    let mut max = f32::NEG_INFINITY;
    pieces::each(x, |x| max = x.iter().fold(max, |max, &x| max.max(x)));
    let sum = pieces::sum(x, |x| f64::from((x - max).exp())) as f32;
    pieces::map(y, [x], |[x]| (x - max).exp() / sum);
}
