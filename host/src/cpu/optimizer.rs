//! Steps of optimisers.

use super::{ELEMENTS_PER_TASK, internal};
use crate::parallel::InTasks;
use crate::problem::optimizer::{AdamW, AdamWTensor, Sgd, SgdTensor};
use crate::{DType, Result, Tensor};
use rayon::prelude::*;

pub(crate) fn adamw(tensors: &mut [AdamWTensor], options: &AdamW) -> Result<()> {
    let &AdamW { lr, betas: [beta1, beta2], eps, gradient_scale, .. } = options;
    let [correction1, correction2] = options.corrections();
    for AdamWTensor { parameter, gradient, first, second, weight_decay } in tensors {
        let n = gradient.shape().elements();
        let keep = 1.0 - lr * *weight_decay;
        let gradient = read(gradient)?;
        with_mut(parameter, n, |parameter| {
            with_mut(first, n, |first| {
                with_mut(second, n, |second| {
                    let chunks = parameter
                        .par_chunks_mut(ELEMENTS_PER_TASK)
                        .zip(gradient.par_chunks(ELEMENTS_PER_TASK));
                    let moments =
                        first.par_chunks_mut(ELEMENTS_PER_TASK).zip(second.par_chunks_mut(ELEMENTS_PER_TASK));
                    chunks.zip(moments).in_tasks(|((parameter, gradient), (first, second))| {
                        for (((p, g), m), v) in parameter.iter_mut().zip(gradient).zip(first).zip(second) {
                            let g = g * gradient_scale;
                            *m += (1.0 - beta1) * (g - *m);
                            *v = beta2 * *v + (1.0 - beta2) * g * g;
                            *p = *p * keep - lr * correction1 * *m / (v.sqrt() * correction2 + eps);
                        }
                    });
                })
            })
        })???;
    }
    Ok(())
}

pub(crate) fn sgd(tensors: &mut [SgdTensor], options: &Sgd) -> Result<()> {
    let &Sgd { lr, momentum: kept, gradient_scale } = options;
    for SgdTensor { parameter, gradient, momentum, weight_decay } in tensors {
        let n = gradient.shape().elements();
        let gradient = read(gradient)?;
        with_mut(parameter, n, |parameter| {
            with_mut(momentum, n, |momentum| {
                for ((p, g), b) in parameter.iter_mut().zip(gradient).zip(momentum) {
                    *b = kept * *b + g * gradient_scale + *weight_decay * *p;
                    *p -= lr * *b;
                }
            })
        })??;
    }
    Ok(())
}

pub(crate) fn squared_norm(tensors: &[&Tensor]) -> Result<f64> {
    let mut sum = 0.0;
    for tensor in tensors {
        sum += read(tensor)?.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
    }
    Ok(sum)
}

pub(super) fn read(x: &Tensor) -> Result<&[f32]> {
    let n = x.shape().elements();
    Ok(&x.cpu::<f32>().ok_or_else(|| internal::<f32>(DType::F32))?[..n])
}

/// Calls `work` with the elements of a tensor whose storage is not shared.
pub(super) fn with_mut<R>(x: &mut Tensor, n: usize, work: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
    let mut x = x.view_mut()?;
    let elements = x.cpu::<f32>().ok_or_else(|| internal::<f32>(DType::F32))?;
    Ok(work(&mut elements[..n]))
}
