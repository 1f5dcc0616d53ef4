//! Attention: blocks of queries in parallel, each over tiles of keys with a running maximum and sum, as the GPU does
//! it (Dao 2023, FlashAttention-2, algorithm 1).

use super::{slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::ops::attention::{Problem, Strides};
use crate::{Result, Tensor, TensorMut};
use rayon::prelude::*;

/// Queries of a task, which read each tile of keys once.
const QUERIES: usize = 16;
/// Keys of a tile: with 128 columns of f32, K and V of a tile fit a core's first cache together.
const KEYS: usize = 32;

pub(crate) fn attention(
    mut out: TensorMut,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    problem: &Problem,
) -> Result<()> {
    if problem.batch * problem.num_q_heads * problem.q_len == 0 {
        return Ok(());
    }
    with_float!(q.dtype(), TQ => with_float!(k.dtype(), Kv => {
        let (out, q) = (slice_mut::<TQ>(&mut out)?, slice::<TQ>(q)?);
        let (k, v) = (slice::<Kv>(k)?, slice::<Kv>(v)?);
        let heads = problem.batch * problem.num_q_heads;
        let blocks = problem.q_len.div_ceil(QUERIES);
        let rows: Vec<Vec<f32>> = (0..heads * blocks)
            .into_par_iter()
            .map(|task| block(q, k, v, problem, task / blocks, task % blocks * QUERIES))
            .collect();
        for (task, rows) in rows.iter().enumerate() {
            let start = start(problem.out, problem, task / blocks, 1);
            for (i, row) in rows.chunks_exact(problem.head_dim).enumerate() {
                let at = start + (task % blocks * QUERIES + i) * problem.out.row;
                for (y, x) in out[at..at + problem.head_dim].iter_mut().zip(row) {
                    *y = TQ::from_f32(*x);
                }
            }
        }
    }));
    Ok(())
}

/// The first element of query head `head` (counted over all batches), or of the kv head that `group` of them share.
fn start(strides: Strides, problem: &Problem, head: usize, group: usize) -> usize {
    head / problem.num_q_heads * strides.batch + head % problem.num_q_heads / group * strides.head
}

/// The results [rows, head_dim] of up to [`QUERIES`] queries of one head.
fn block<TQ: Float, TKV: Float>(
    q: &[TQ],
    k: &[TKV],
    v: &[TKV],
    problem: &Problem,
    head: usize,
    first: usize,
) -> Vec<f32> {
    let d = problem.head_dim;
    let queries = QUERIES.min(problem.q_len - first);
    let mut q_rows = vec![0.0; queries * d];
    convert(&mut q_rows, q, start(problem.q, problem, head, 1) + first * problem.q.row, problem.q.row, d);
    q_rows.iter_mut().for_each(|x| *x *= problem.scale);

    let group = problem.group();
    let (k_start, v_start) = (start(problem.k, problem, head, group), start(problem.v, problem, head, group));
    let mut acc = vec![0.0; queries * d];
    let mut max = [f32::NEG_INFINITY; QUERIES];
    let mut sum = [0.0; QUERIES];
    let (mut k_tile, mut v_tile) = (vec![0.0; KEYS * d], vec![0.0; KEYS * d]);
    let mut tile = 0;
    while tile < problem.visible(first + queries - 1) {
        let keys = KEYS.min(problem.kv_len - tile);
        convert(&mut k_tile[..keys * d], k, k_start + tile * problem.k.row, problem.k.row, d);
        convert(&mut v_tile[..keys * d], v, v_start + tile * problem.v.row, problem.v.row, d);
        for i in 0..queries {
            let seen = problem.visible(first + i).saturating_sub(tile).min(keys);
            if seen == 0 {
                continue;
            }
            let query = &q_rows[i * d..(i + 1) * d];
            let mut scores = [0.0; KEYS];
            for (score, key) in scores[..seen].iter_mut().zip(k_tile.chunks_exact(d)) {
                *score = dot(query, key);
            }
            let new_max = scores[..seen].iter().copied().fold(max[i], f32::max);
            // nothing but −∞ so far: weights of 0, not NaN
            let base = if new_max == f32::NEG_INFINITY { 0.0 } else { new_max };
            let rescale = (max[i] - base).exp();
            max[i] = new_max;
            sum[i] *= rescale;
            let acc = &mut acc[i * d..(i + 1) * d];
            acc.iter_mut().for_each(|x| *x *= rescale);
            for (score, value) in scores[..seen].iter().zip(v_tile.chunks_exact(d)) {
                let weight = (score - base).exp();
                sum[i] += weight;
                acc.iter_mut().zip(value).for_each(|(acc, value)| *acc += weight * value);
            }
        }
        tile += KEYS;
    }
    for (row, sum) in acc.chunks_exact_mut(d).zip(sum) {
        let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
        row.iter_mut().for_each(|x| *x *= factor);
    }
    acc
}

/// Rows of `d` elements, `stride` apart, to f32 without gaps.
fn convert<T: Float>(to: &mut [f32], from: &[T], start: usize, stride: usize, d: usize) {
    for (i, row) in to.chunks_exact_mut(d).enumerate() {
        let at = start + i * stride;
        for (to, from) in row.iter_mut().zip(&from[at..at + d]) {
            *to = from.to_f32();
        }
    }
}

/// Eight partial sums, so that it is vector code; both lengths are multiples of eight.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum()
}
