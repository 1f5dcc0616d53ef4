//! Strided copy.

use super::{ELEMENTS_PER_TASK, slice, slice_mut};
use crate::parallel::InTasks;
use crate::problem::copy::{Dim, merge};
use crate::{DType, Element, Result, Tensor, TensorMut};
use rayon::prelude::*;

pub(crate) fn copy(y: TensorMut, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F32 => copy_elements::<f32>(y, x),
        DType::F16 => copy_elements::<half::f16>(y, x),
        DType::U32 => copy_elements::<u32>(y, x),
    }
}

fn copy_elements<T: Element>(mut y: TensorMut, x: &Tensor) -> Result<()> {
    let n = x.shape().elements();
    if n == 0 {
        return Ok(());
    }
    let y_contiguous = y.is_contiguous();
    let dims = merge(x.dims(), y.strides(), x.strides());
    let (y, x) = (slice_mut::<T>(&mut y)?, slice::<T>(x)?);
    let Some((inner, outer)) = dims.split_last() else {
        y[0] = x[0];
        return Ok(());
    };
    if y_contiguous {
        // the rows of y are contiguous, so tasks can divide them
        let min_rows = ELEMENTS_PER_TASK.div_ceil(inner.extent);
        let rows = y[..n].par_chunks_exact_mut(inner.extent).enumerate();
        rows.with_min_len(min_rows).in_tasks(|(row, y)| copy_row(y, &x[offsets(outer, row).1..], inner));
    } else {
        for row in 0..n / inner.extent {
            let (y_offset, x_offset) = offsets(outer, row);
            copy_row(&mut y[y_offset..], &x[x_offset..], inner);
        }
    }
    Ok(())
}

/// Where row number `row` starts in y and x.
fn offsets(outer: &[Dim], mut row: usize) -> (usize, usize) {
    let (mut y, mut x) = (0, 0);
    for dim in outer.iter().rev() {
        let index = row % dim.extent;
        row /= dim.extent;
        y += index * dim.y;
        x += index * dim.x;
    }
    (y, x)
}

fn copy_row<T: Copy>(y: &mut [T], x: &[T], &Dim { extent, y: y_stride, x: x_stride }: &Dim) {
    if (y_stride, x_stride) == (1, 1) {
        y[..extent].copy_from_slice(&x[..extent]);
    } else {
        for i in 0..extent {
            y[i * y_stride] = x[i * x_stride];
        }
    }
}
