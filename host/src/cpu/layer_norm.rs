//! Layer norm over rows.

use super::{ELEMENTS_PER_TASK, pieces, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::parallel::InTasks;
use crate::simd::vectorized;
use crate::{Result, Tensor, TensorMut};
use rayon::prelude::*;

pub(crate) fn layer_norm(
    mut y: TensorMut,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f32,
) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    with_float!(x.dtype(), T => {
        let y = &mut slice_mut::<T>(&mut y)?[..rows * cols];
        let (x, weight, bias) = (slice::<T>(x)?, &slice::<T>(weight)?[..cols], &slice::<T>(bias)?[..cols]);
        let rows = y.par_chunks_exact_mut(cols).zip(x.par_chunks_exact(cols));
        let min_rows = ELEMENTS_PER_TASK.div_ceil(cols);
        rows.with_min_len(min_rows).in_tasks(|(y, x)| vectorized!(row(y, x, weight, bias, eps)));
    });
    Ok(())
}

#[inline(always)]
fn row<T: Float>(y: &mut [T], x: &[T], weight: &[T], bias: &[T], eps: f32) {
    let mean = pieces::sum(x, f64::from) / x.len() as f64;
    let variance = pieces::sum(x, |x| (f64::from(x) - mean) * (f64::from(x) - mean)) / x.len() as f64;
    let scale = (variance + f64::from(eps)).sqrt().recip();
    pieces::map(y, [x, weight, bias], |[x, weight, bias]| {
        ((f64::from(x) - mean) * scale) as f32 * weight + bias
    });
}
