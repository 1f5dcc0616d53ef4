//! Rows of a table by number.

use super::{ELEMENTS_PER_TASK, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::parallel::InTasks;
use crate::{Result, Tensor, TensorMut};
use rayon::prelude::*;

pub(crate) fn embedding(mut y: TensorMut, table: &Tensor, ids: &Tensor) -> Result<()> {
    let (rows, cols) = table.shape().rows_cols();
    let n = ids.shape().elements();
    if n == 0 || cols == 0 {
        return Ok(());
    }
    let ids = &slice::<u32>(ids)?[..n];
    let y = &mut slice_mut::<f32>(&mut y)?[..n * cols];
    with_float!(table.dtype(), T => {
        let table = &slice::<T>(table)?[..rows * cols];
        let min_rows = ELEMENTS_PER_TASK.div_ceil(cols);
        y.par_chunks_exact_mut(cols).zip(ids).with_min_len(min_rows).in_tasks(|(y, &id)| {
            match table.chunks_exact(cols).nth(id as usize) {
                Some(row) => T::read(row, y),
                None => y.fill(f32::NAN),
            }
        });
    });
    Ok(())
}
