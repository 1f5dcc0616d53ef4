//! Attention with queries and keys in 8-bit integers: they are rounded as the GPU's kernel does it, and multiplied as f32.

use super::slice;
use crate::kv::KvView;
use crate::problem::attention::{HeadStrides, Problem};
use crate::{Device, Result, Tensor, TensorMut};
use kernels_gpu::attention::int8::round::{IN_ORDER, SAMPLES, sample, scale_of};
use kernels_gpu::quant::blocks::{abs_max, inverse, quant_i8};
use rayon::prelude::*;

pub(crate) fn int8_attention(out: TensorMut, [q, k, v]: [&Tensor; 3], problem: &Problem) -> Result<()> {
    let Problem { batch, num_q_heads, num_kv_heads, q_len, kv_len, head_dim, .. } = *problem;
    let q = rounded(q, problem.q, [batch, num_q_heads, q_len, head_dim], false)?;
    let k = rounded(k, problem.k, [batch, num_kv_heads, kv_len, head_dim], true)?;
    let dense = |heads: usize, rows: usize| HeadStrides {
        batch: heads * rows * head_dim,
        head: rows * head_dim,
        row: head_dim,
    };
    let problem = Problem { q: dense(num_q_heads, q_len), k: dense(num_kv_heads, kv_len), ..*problem };
    super::attention::attention(out, &q, [KvView::plain(&k), KvView::plain(v)], &problem)
}

/// The rows of x, each rounded to its scale times integers; with `is_centred` without the mean of some rows of the head.
fn rounded(
    x: &Tensor,
    strides: HeadStrides,
    shape @ [_, heads, rows, head_dim]: [usize; 4],
    is_centred: bool,
) -> Result<Tensor> {
    let x = slice::<f32>(x)?;
    let mut to = vec![0.0; shape.iter().product()];
    to.par_chunks_exact_mut((rows * head_dim).max(1)).enumerate().for_each(|(plane, to)| {
        let head = plane / heads * strides.batch + plane % heads * strides.head;
        let row = |row: usize| &x[head + row * strides.row..][..head_dim];
        let mut mean = vec![0.0; head_dim];
        if is_centred {
            mean = mean_of(|s| row(sample(s, rows as u32) as usize), head_dim);
        }
        for (i, to) in to.chunks_exact_mut(head_dim).enumerate() {
            to.iter_mut().zip(row(i)).zip(&mean).for_each(|((to, x), mean)| *to = x - mean);
            let scale = scale_of(abs_max(to));
            let inverse = inverse(scale);
            to.iter_mut().for_each(|x| *x = quant_i8(*x, inverse) as f32 * scale);
        }
    });
    Tensor::from_slice(&to, shape, &Device::Cpu)
}

/// The mean of the samples, whose sum is one of partial sums.
fn mean_of<'a>(row: impl Fn(u32) -> &'a [f32], head_dim: usize) -> Vec<f32> {
    let mut sum = vec![0.0; head_dim];
    for first in (0..SAMPLES).step_by(IN_ORDER as usize) {
        let mut partial = vec![0.0; head_dim];
        for s in first..first + IN_ORDER {
            partial.iter_mut().zip(row(s)).for_each(|(sum, x)| *sum += x);
        }
        sum.iter_mut().zip(partial).for_each(|(sum, partial)| *sum += partial);
    }
    sum.iter_mut().for_each(|sum| *sum *= 1.0 / SAMPLES as f32);
    sum
}
