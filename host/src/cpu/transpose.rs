//! Transpose, in blocks that stay in the L1 cache.

use super::{ELEMENTS_PER_TASK, slice, slice_mut};
use crate::parallel::InTasks;
use crate::problem::transpose::matrices;
use crate::{DType, Element, Result, Tensor, TensorMut};
use rayon::prelude::*;

/// Rows and columns of a block: 2 · 32 · 32 elements of 4 bytes are 8 KiB.
const BLOCK: usize = 32;

pub(crate) fn transpose(y: TensorMut, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F32 => transpose_elements::<f32>(y, x),
        DType::F16 => transpose_elements::<half::f16>(y, x),
        DType::U32 => transpose_elements::<u32>(y, x),
    }
}

fn transpose_elements<T: Element>(mut y: TensorMut, x: &Tensor) -> Result<()> {
    let (batch, rows, cols) = matrices(x.shape());
    let (y, x) = (slice_mut::<T>(&mut y)?, slice::<T>(x)?);
    for (y, x) in y[..batch * rows * cols].chunks_exact_mut(rows * cols).zip(x.chunks_exact(rows * cols)) {
        // BLOCK rows of y, which are BLOCK columns of x
        let stripes = y.par_chunks_mut(BLOCK * rows).enumerate();
        stripes.with_min_len(ELEMENTS_PER_TASK.div_ceil(BLOCK * rows)).in_tasks(|(stripe, y)| {
            let col0 = stripe * BLOCK;
            for row0 in (0..rows).step_by(BLOCK) {
                for (c, y) in y.chunks_exact_mut(rows).enumerate() {
                    for r in row0..rows.min(row0 + BLOCK) {
                        y[r] = x[r * cols + col0 + c];
                    }
                }
            }
        });
    }
    Ok(())
}
