//! The gradients of attention: one task per kv head, its queries one after the other.

use super::attention::start;
use super::{slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::problem::attention::HeadStrides;
use crate::problem::attention_backward::Problem;
use crate::simd::dot;
use crate::{Result, Tensor, TensorMut};
use rayon::prelude::*;

/// The gradients of one kv head and its query heads, as contiguous rows of head_dim.
struct Gradients {
    /// One entry per query head of the group.
    dq: Vec<Vec<f32>>,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

/// Plain attention, causal or not.
pub(crate) fn attention_backward(
    outputs: [TensorMut; 3],
    inputs: [&Tensor; 5],
    problem: &Problem,
) -> Result<()> {
    let forward = &problem.forward;
    let seen =
        |_: usize, i: usize, keys: &mut Vec<usize>| keys.extend(0..forward.visible(i).min(forward.kv_len));
    attention_backward_over(outputs, inputs, problem, &seen)
}

/// The keys that a query of a head, counted over all batches, sees are those that `seen` adds to a list.
pub(crate) fn attention_backward_over(
    [mut dq, mut dk, mut dv]: [TensorMut; 3],
    inputs: [&Tensor; 5],
    problem: &Problem,
    seen: &(impl Fn(usize, usize, &mut Vec<usize>) + Sync),
) -> Result<()> {
    let forward = &problem.forward;
    let kv_heads = forward.batch * forward.num_kv_heads;
    with_float!(inputs[0].dtype(), T => {
        let [dout, q, k, v, out] = inputs.map(slice::<T>);
        let inputs = [dout?, q?, k?, v?, out?];
        let heads: Vec<Gradients> =
            (0..kv_heads).into_par_iter().map(|head| gradients(inputs, problem, head, seen)).collect();
        for (kv_head, gradients) in heads.iter().enumerate() {
            let first = kv_head * forward.group();
            for (i, rows) in gradients.dq.iter().enumerate() {
                write_as::<T>(&mut dq, rows, start(problem.dq, forward, first + i, 1), problem.dq, forward.head_dim)?;
            }
            for (output, rows, strides) in
                [(&mut dk, &gradients.dk, problem.dk), (&mut dv, &gradients.dv, problem.dv)]
            {
                let at = start(strides, forward, first, forward.group());
                write_as::<T>(output, rows, at, strides, forward.head_dim)?;
            }
        }
    });
    Ok(())
}

/// Writes contiguous rows to the rows of a tensor.
fn write_as<T: Float>(
    to: &mut TensorMut,
    rows: &[f32],
    at: usize,
    strides: HeadStrides,
    d: usize,
) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let to = slice_mut::<T>(to)?;
    for (i, row) in rows.chunks_exact(d).enumerate() {
        let to = &mut to[at + i * strides.row..][..d];
        to.iter_mut().zip(row).for_each(|(y, &x)| *y = T::from_f32(x));
    }
    Ok(())
}

/// The gradients of kv head `kv_head`, counted over all batches.
fn gradients<T: Float>(
    [dout, q, k, v, out]: [&[T]; 5],
    problem: &Problem,
    kv_head: usize,
    seen: &impl Fn(usize, usize, &mut Vec<usize>),
) -> Gradients {
    let forward = &problem.forward;
    let (d, group) = (forward.head_dim, forward.group());
    let first = kv_head * group;
    let rows = |x: &[T], strides: HeadStrides, at: usize, len: usize| -> Vec<f32> {
        (0..len).flat_map(|i| x[at + i * strides.row..][..d].iter().map(|x| x.to_f32())).collect()
    };
    let k = rows(k, forward.k, start(forward.k, forward, first, group), forward.kv_len);
    let v = rows(v, forward.v, start(forward.v, forward, first, group), forward.kv_len);
    let (mut dk, mut dv) = (vec![0.0f32; k.len()], vec![0.0f32; v.len()]);
    let mut all_dq = Vec::with_capacity(group);
    for head in first..first + group {
        let of_queries =
            |x: &[T], strides: HeadStrides| rows(x, strides, start(strides, forward, head, 1), forward.q_len);
        let (q, dout) = (of_queries(q, forward.q), of_queries(dout, problem.dout));
        let out = of_queries(out, forward.out);
        let mut dq = vec![0.0f32; q.len()];
        let (mut keys, mut weights) = (Vec::new(), Vec::new());
        for i in 0..forward.q_len {
            let row = i * d..(i + 1) * d;
            let (q, dout, out, dq) = (&q[row.clone()], &dout[row.clone()], &out[row.clone()], &mut dq[row]);
            keys.clear();
            seen(head, i, &mut keys);
            weights.clear();
            weights.extend(keys.iter().map(|&j| forward.scale * dot(q, &k[j * d..(j + 1) * d])));
            let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            // only −∞: weights of 0, not NaN
            let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
            weights.iter_mut().for_each(|weight| *weight = (*weight - base).exp());
            let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
            let factor = if sum == 0.0 { 0.0 } else { (1.0 / sum) as f32 };
            let delta = dot(dout, out);
            for (&j, weight) in keys.iter().zip(&weights) {
                let row = j * d..(j + 1) * d;
                let weight = weight * factor;
                let ds = forward.scale * weight * (dot(dout, &v[row.clone()]) - delta);
                let (k, dk, dv) = (&k[row.clone()], &mut dk[row.clone()], &mut dv[row]);
                for c in 0..d {
                    dq[c] += ds * k[c];
                    dk[c] += ds * q[c];
                    dv[c] += weight * dout[c];
                }
            }
        }
        all_dq.push(dq);
    }
    Gradients { dq: all_dq, dk, dv }
}
