//! Conversion between f32 and f16.

use super::{ELEMENTS_PER_TASK, slice, slice_mut};
use crate::dtype::Float;
use crate::{DType, Result, Tensor, TensorMut};
use half::f16;
use rayon::prelude::*;

pub(crate) fn cast(y: TensorMut, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F16 => cast_elements::<f32, f16>(y, x),
        _ => cast_elements::<f16, f32>(y, x),
    }
}

fn cast_elements<Y: Float, X: Float>(mut y: TensorMut, x: &Tensor) -> Result<()> {
    let n = x.shape().elements();
    let (y, x) = (&mut slice_mut::<Y>(&mut y)?[..n], &slice::<X>(x)?[..n]);
    let chunks = y.par_chunks_mut(ELEMENTS_PER_TASK).zip(x.par_chunks(ELEMENTS_PER_TASK));
    chunks.for_each(|(y, x)| y.iter_mut().zip(x).for_each(|(y, x)| *y = Y::from_f32(x.to_f32())));
    Ok(())
}
