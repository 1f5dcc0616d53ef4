//! Rotary position embedding.

use super::{slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::{Result, Tensor, TensorMut};

pub(crate) fn rope(mut y: TensorMut, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<()> {
    let [seq, heads, dim] = [0, 1, 2].map(|d| x.dims()[d]);
    let half = dim / 2;
    let [y_seq, y_head] = [0, 1].map(|d| y.strides()[d]);
    let [x_seq, x_head] = [0, 1].map(|d| x.strides()[d]);
    if x.shape().elements() == 0 {
        return Ok(());
    }
    let (cos, sin) = (slice::<f32>(cos)?, slice::<f32>(sin)?);
    with_float!(x.dtype(), T => {
        let (y, x) = (slice_mut::<T>(&mut y)?, slice::<T>(x)?);
        for s in 0..seq {
            let angles = s * half..(s + 1) * half;
            for h in 0..heads {
                let (y, x) = (&mut y[s * y_seq + h * y_head..][..dim], &x[s * x_seq + h * x_head..][..dim]);
                let ((y_low, y_high), (low, high)) = (y.split_at_mut(half), x.split_at(half));
                for (i, (cos, sin)) in cos[angles.clone()].iter().zip(&sin[angles.clone()]).enumerate() {
                    let (a, b) = (low[i].to_f32(), high[i].to_f32());
                    y_low[i] = T::from_f32(a * cos - b * sin);
                    y_high[i] = T::from_f32(b * cos + a * sin);
                }
            }
        }
    });
    Ok(())
}
