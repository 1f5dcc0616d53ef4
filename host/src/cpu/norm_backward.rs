//! The gradients of RMS norm and layer norm, in f64 within a row.

use super::{ELEMENTS_PER_TASK, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::{Result, Tensor, TensorMut};
use rayon::prelude::*;

/// The gradient of layer norm; or of RMS norm, which is the same formula with a mean of 0.
pub(crate) fn backward(
    is_layer_norm: bool,
    mut dx: TensorMut,
    [dweight, dbias]: [Option<TensorMut>; 2],
    dy: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    eps: f32,
) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let wants_sums = dweight.is_some() || dbias.is_some();
    let sums = with_float!(x.dtype(), T => {
        let dx = &mut slice_mut::<T>(&mut dx)?[..rows * cols];
        let (dy, x, weight) = (slice::<T>(dy)?, slice::<T>(x)?, &slice::<T>(weight)?[..cols]);
        if rows == 0 || cols == 0 {
            [vec![0.0; cols], vec![0.0; cols]]
        } else {
            let rows = dx.par_chunks_exact_mut(cols).zip(dy.par_chunks_exact(cols)).zip(x.par_chunks_exact(cols));
            let min_rows = ELEMENTS_PER_TASK.div_ceil(cols);
            let stats: Vec<[f64; 2]> = rows
                .with_min_len(min_rows)
                .map(|((dx, dy), x)| row(dx, dy, x, weight, eps, is_layer_norm))
                .collect();
            let mut sums = [vec![0.0; cols], vec![0.0; cols]];
            let stats = if wants_sums { stats } else { Vec::new() };
            for ((dy, x), [mean, scale]) in dy.chunks_exact(cols).zip(x.chunks_exact(cols)).zip(stats) {
                let [dweight, dbias] = &mut sums;
                for (c, (dweight, dbias)) in dweight.iter_mut().zip(dbias).enumerate() {
                    let dy = f64::from(dy[c].to_f32());
                    *dweight += dy * (f64::from(x[c].to_f32()) - mean) * scale;
                    *dbias += dy;
                }
            }
            sums
        }
    });
    for (output, sums) in [dweight, dbias].into_iter().zip(sums) {
        let Some(mut output) = output else { continue };
        let output = &mut slice_mut::<f32>(&mut output)?[..cols];
        output.iter_mut().zip(sums).for_each(|(y, sum)| *y = sum as f32);
    }
    Ok(())
}

/// Writes a row's gradient; returns the row's mean and its factor.
fn row<T: Float>(dx: &mut [T], dy: &[T], x: &[T], weight: &[T], eps: f32, is_layer_norm: bool) -> [f64; 2] {
    let value = |x: &T| f64::from(x.to_f32());
    let n = x.len() as f64;
    let mean = if is_layer_norm { x.iter().map(value).sum::<f64>() / n } else { 0.0 };
    let variance = x.iter().map(|x| (value(x) - mean).powi(2)).sum::<f64>() / n;
    let scale = (variance + f64::from(eps)).sqrt().recip();
    let gradient = |c: usize| value(&dy[c]) * value(&weight[c]);
    let normed = |c: usize| (value(&x[c]) - mean) * scale;
    let along = (0..x.len()).map(|c| gradient(c) * normed(c)).sum::<f64>() / n;
    let shift = if is_layer_norm { (0..x.len()).map(gradient).sum::<f64>() / n } else { 0.0 };
    for (c, dx) in dx.iter_mut().enumerate() {
        *dx = T::from_f32((scale * (gradient(c) - shift - normed(c) * along)) as f32);
    }
    [mean, scale]
}
