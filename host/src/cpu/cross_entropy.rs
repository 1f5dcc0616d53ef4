//! Cross-entropy and its gradient, row by row.

use super::{slice, slice_mut};
use crate::parallel::InTasks;
use crate::{Result, Tensor, TensorMut};
use rayon::prelude::*;

pub(crate) fn cross_entropy(
    mut loss: TensorMut,
    mut x: TensorMut,
    labels: &Tensor,
    scale: f32,
) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let loss = &mut slice_mut::<f32>(&mut loss)?[..rows];
    if cols == 0 {
        loss.fill(0.0);
        return Ok(());
    }
    let x = &mut slice_mut::<f32>(&mut x)?[..rows * cols];
    let labels = &slice::<u32>(labels)?[..rows];
    loss.par_iter_mut().zip(x.par_chunks_exact_mut(cols)).zip(labels).in_tasks(|((loss, x), &label)| {
        if label as usize >= cols {
            *loss = 0.0;
            x.fill(0.0);
            return;
        }
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = x.iter().map(|x| f64::from((x - max).exp())).sum();
        *loss = (sum.ln() - f64::from(x[label as usize] - max)) as f32;
        let factor = (1.0 / sum) as f32;
        for (c, x) in x.iter_mut().enumerate() {
            let target = if c == label as usize { 1.0 } else { 0.0 };
            *x = scale * ((*x - max).exp() * factor - target);
        }
    });
    Ok(())
}
