//! Conversion between f32 and f16.

use super::elementwise::in_tasks;
use super::{ELEMENTS_PER_TASK, pieces, slice, slice_mut};
use crate::dtype::Float;
use crate::{DType, Result, Tensor, TensorMut};
use half::f16;

pub(crate) fn cast(y: TensorMut, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F16 => cast_elements::<f32, f16>(y, x),
        _ => cast_elements::<f16, f32>(y, x),
    }
}

fn cast_elements<Y: Float, X: Float>(mut y: TensorMut, x: &Tensor) -> Result<()> {
    let n = x.shape().elements();
    let (y, x) = (&mut slice_mut::<Y>(&mut y)?[..n], &slice::<X>(x)?[..n]);
    in_tasks(y, x, ELEMENTS_PER_TASK, |_, y, x| pieces::map(y, [x], |[x]| x));
    Ok(())
}
