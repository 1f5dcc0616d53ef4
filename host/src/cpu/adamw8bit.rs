//! A step of AdamW with moments in 8 bits.

use super::optimizer::{read, with_mut};
use super::{internal, slice};
use crate::parallel::InTasks;
use crate::problem::adamw8bit::{AdamW8bitTensor, Moment, decode, encode};
use crate::problem::optimizer::AdamW;
use crate::{DType, Result, Tensor};
use kernels_gpu::adamw8bit::BLOCK;
use rayon::prelude::*;

pub(crate) fn step(tensors: &mut [AdamW8bitTensor], options: &AdamW) -> Result<()> {
    let &AdamW { lr, betas: [beta1, beta2], eps, gradient_scale, .. } = options;
    let [correction1, correction2] = options.corrections();
    for AdamW8bitTensor { parameter, gradient, moments, weight_decay } in tensors {
        let n = gradient.shape().elements();
        let keep = 1.0 - lr * *weight_decay;
        let blocks = n.div_ceil(BLOCK);
        let gradient = read(gradient)?;
        let mut codes = slice::<u32>(&moments.codes)?[..2 * blocks * (BLOCK / 4)].to_vec();
        let mut scales = slice::<f32>(&moments.scales)?[..2 * blocks].to_vec();
        let (m_codes, v_codes) = codes.split_at_mut(blocks * (BLOCK / 4));
        let (m_scales, v_scales) = scales.split_at_mut(blocks);
        with_mut(parameter, n, |parameter| {
            let values = parameter.par_chunks_mut(BLOCK).zip(gradient.par_chunks(BLOCK));
            let of_m = m_codes.par_chunks_mut(BLOCK / 4).zip(m_scales);
            let of_v = v_codes.par_chunks_mut(BLOCK / 4).zip(v_scales);
            values.zip(of_m).zip(of_v).in_tasks(
                |(((parameter, gradient), (m_codes, m_scale)), (v_codes, v_scale))| {
                    let (mut first, mut second) = ([0.0; BLOCK], [0.0; BLOCK]);
                    for (i, (p, g)) in parameter.iter_mut().zip(gradient).enumerate() {
                        let code = |words: &[u32]| words[i / 4].to_le_bytes()[i % 4];
                        let g = g * gradient_scale;
                        let m = decode(code(m_codes), *m_scale, Moment::First);
                        let v = decode(code(v_codes), *v_scale, Moment::Second);
                        let m = m + (1.0 - beta1) * (g - m);
                        let v = beta2 * v + (1.0 - beta2) * g * g;
                        *p = *p * keep - lr * correction1 * m / (v.sqrt() * correction2 + eps);
                        (first[i], second[i]) = (m, v);
                    }
                    *m_scale = encode(&first, Moment::First, m_codes);
                    *v_scale = encode(&second, Moment::Second, v_codes);
                },
            );
        })?;
        write(&mut moments.codes, &codes)?;
        write(&mut moments.scales, &scales)?;
    }
    Ok(())
}

/// Copies elements into a tensor whose storage is not shared.
fn write<T: crate::Element>(to: &mut Tensor, from: &[T]) -> Result<()> {
    let mut to = to.view_mut()?;
    let elements = to.cpu::<T>().ok_or_else(|| internal::<T>(DType::F32))?;
    elements[..from.len()].copy_from_slice(from);
    Ok(())
}
