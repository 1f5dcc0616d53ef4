//! Mixture of experts: the choice of experts, the order of rows, and the weighted sum.

use super::{ELEMENTS_PER_TASK, slice, slice_mut};
use crate::parallel::InTasks;
use crate::problem::experts::{Routes, Sorted};
use crate::simd::vectorized;
use crate::{Result, Tensor, TensorMut};
use rayon::prelude::*;

pub(crate) fn choose(
    mut ids: TensorMut,
    mut weights: TensorMut,
    logits: &Tensor,
    normalized: bool,
) -> Result<()> {
    let (tokens, experts) = logits.shape().rows_cols();
    let top_k = ids.dims()[1];
    let ids = &mut slice_mut::<u32>(&mut ids)?[..tokens * top_k];
    let weights = &mut slice_mut::<f32>(&mut weights)?[..tokens * top_k];
    let logits = &slice::<f32>(logits)?[..tokens * experts];
    let rows = ids.par_chunks_exact_mut(top_k).zip(weights.par_chunks_exact_mut(top_k));
    let rows = rows.zip(logits.par_chunks_exact(experts)).with_min_len(ELEMENTS_PER_TASK.div_ceil(experts));
    rows.in_tasks(|((ids, weights), logits)| {
        let max = logits.iter().fold(f32::NEG_INFINITY, |max, &logit| max.max(logit));
        let mut all: Vec<(f32, u32)> =
            logits.iter().zip(0..).map(|(&logit, expert)| ((logit - max).exp(), expert)).collect();
        let sum: f64 = all.iter().map(|&(e, _)| f64::from(e)).sum();
        for (e, _) in &mut all {
            *e = (f64::from(*e) / sum) as f32;
        }
        // a stable sort: of equal ones the lower first
        all.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let total: f32 = all[..top_k].iter().map(|&(p, _)| p).sum();
        for ((id, weight), (p, expert)) in ids.iter_mut().zip(weights).zip(all) {
            (*id, *weight) = (expert, if normalized { p / total } else { p });
        }
    });
    Ok(())
}

pub(crate) fn sort(order: &mut Sorted, ids: &Tensor) -> Result<()> {
    let (tokens, top_k) = ids.shape().rows_cols();
    let pairs = tokens * top_k;
    let ids = &slice::<u32>(ids)?[..pairs];
    let (mut starts, mut places, mut rows) =
        (order.starts.view_mut()?, order.places.view_mut()?, order.tokens.view_mut()?);
    let experts = starts.dims()[0] - 1;
    let starts = &mut slice_mut::<u32>(&mut starts)?[..=experts];
    starts.fill(0);
    for &id in ids {
        starts[id as usize + 1] += 1;
    }
    for expert in 0..experts {
        starts[expert + 1] += starts[expert];
    }
    let mut next = starts.to_vec();
    let (places, rows) = (slice_mut::<u32>(&mut places)?, slice_mut::<u32>(&mut rows)?);
    for (pair, (&id, place)) in ids.iter().zip(places).enumerate() {
        *place = next[id as usize];
        rows[*place as usize] = (pair / top_k) as u32;
        next[id as usize] += 1;
    }
    Ok(())
}

pub(crate) fn sum(mut y: TensorMut, x: &Tensor, routes: &Routes, residual: Option<&Tensor>) -> Result<()> {
    let (tokens, n) = y.shape().rows_cols();
    let top_k = routes.top_k();
    if tokens == 0 || n == 0 {
        return Ok(());
    }
    let weights = &slice::<f32>(&routes.weights)?[..tokens * top_k];
    let places = routes.sorted.as_ref().map(|sorted| slice::<u32>(&sorted.places)).transpose()?;
    let residual = residual.map(slice::<f32>).transpose()?;
    let (y, x) = (&mut slice_mut::<f32>(&mut y)?[..tokens * n], slice::<f32>(x)?);
    let rows = y.par_chunks_exact_mut(n).enumerate().with_min_len(ELEMENTS_PER_TASK.div_ceil(n * top_k));
    rows.in_tasks(|(token, y)| {
        let pairs = token * top_k..(token + 1) * top_k;
        let rows = pairs.map(|pair| {
            let row = places.map_or(pair, |places| places[pair] as usize);
            (weights[pair], &x[row * n..][..n])
        });
        let residual = residual.map(|residual| &residual[token * n..][..n]);
        vectorized!(weighted(y, rows, residual));
    });
    Ok(())
}

/// y = Σ weight · row + residual.
#[inline(always)]
fn weighted<'a>(y: &mut [f32], rows: impl Iterator<Item = (f32, &'a [f32])>, residual: Option<&[f32]>) {
    y.fill(0.0);
    for (weight, row) in rows {
        for (y, x) in y.iter_mut().zip(row) {
            *y = weight.mul_add(*x, *y);
        }
    }
    if let Some(residual) = residual {
        y.iter_mut().zip(residual).for_each(|(y, residual)| *y += residual);
    }
}
