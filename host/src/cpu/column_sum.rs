//! Sums over all rows, in f64.

use super::{slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::{Result, Tensor, TensorMut};

pub(crate) fn column_sum(mut y: TensorMut, x: &Tensor) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let sums = with_float!(x.dtype(), T => sums(&slice::<T>(x)?[..rows * cols], cols));
    let y = &mut slice_mut::<f32>(&mut y)?[..cols];
    y.iter_mut().zip(sums).for_each(|(y, sum)| *y = sum as f32);
    Ok(())
}

fn sums<T: Float>(x: &[T], cols: usize) -> Vec<f64> {
    let mut sums = vec![0.0; cols];
    for row in x.chunks_exact(cols.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(x.to_f32()));
    }
    sums
}
