//! The gradient of an embedding: each row of dy is added to the table row that it was read from.

use super::{slice, slice_mut};
use crate::{Result, Tensor, TensorMut};

/// Writes the gradient to `dtable`, or accumulates.
pub(crate) fn embedding_backward(mut dtable: TensorMut, dy: &Tensor, ids: &Tensor, add: bool) -> Result<()> {
    let (rows, cols) = dtable.shape().rows_cols();
    let n = ids.shape().elements();
    if cols == 0 {
        return Ok(());
    }
    let (dtable, dy) = (slice_mut::<f32>(&mut dtable)?, slice::<f32>(dy)?);
    if !add {
        dtable[..rows * cols].fill(0.0);
    }
    for (&id, dy) in slice::<u32>(ids)?[..n].iter().zip(dy.chunks_exact(cols)) {
        if (id as usize) < rows {
            let row = &mut dtable[id as usize * cols..][..cols];
            row.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
        }
    }
    Ok(())
}
