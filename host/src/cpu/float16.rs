//! Conversion between f32 and the 16-bit formats: the kernels' own code.

use super::{ELEMENTS_PER_TASK, slice, slice_mut};
use crate::float16::{Float16, Float16Tensor, Overflow, with_exponent_bits};
use crate::parallel::InTasks;
use crate::{Result, Tensor, TensorMut};
use half::f16;
use rayon::prelude::*;

pub(crate) fn encode(y: &mut Float16Tensor, x: &Tensor, overflow: Overflow) -> Result<()> {
    let bits = y.exponent_bits;
    let mut codes = y.codes.view_mut()?;
    let (codes, x) = (slice_mut::<f16>(&mut codes)?, slice::<f32>(x)?);
    let pairs = codes.par_iter_mut().zip(x).with_min_len(ELEMENTS_PER_TASK);
    with_exponent_bits!(bits, E => pairs.in_tasks(|(code, &x)| {
        *code = f16::from_bits(match overflow {
            Overflow::Infinity => Float16::<E>::from_f32(x).0,
            Overflow::Saturate => Float16::<E>::from_f32_saturating(x).0,
        });
    }));
    Ok(())
}

pub(crate) fn decode(mut y: TensorMut, x: &Float16Tensor) -> Result<()> {
    let (y, codes) = (slice_mut::<f32>(&mut y)?, slice::<f16>(&x.codes)?);
    let pairs = y.par_iter_mut().zip(codes).with_min_len(ELEMENTS_PER_TASK);
    with_exponent_bits!(x.exponent_bits, E => pairs.in_tasks(|(y, code)| *y = Float16::<E>(code.to_bits()).to_f32()));
    Ok(())
}
