//! Attention over chosen tiles of keys, and the choice: as on the GPU, with the tiles sorted by weight in place of a bisection.

use super::attention::{KEYS, Keys, QUERIES, Seen, attention_over, start, stored};
use super::paged_attention::check_pages;
use super::{slice, slice_mut};
use crate::problem::attention::Problem;
use crate::problem::chosen_attention::{
    KEYS_PER_CHOICE, QUERIES_PER_CHOICE, SequenceKv, samples, tiles_seen,
};
use crate::simd::dot;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::attention::chosen::{LIST_EXTRA, SAMPLED, SAMPLES_PER_BLOCK};
use kernels_gpu::attention::paged::PAGE;
use rayon::prelude::*;

/// Where a sequence's keys are.
#[derive(Clone, Copy)]
struct Rows<'a> {
    table: Option<&'a [u32]>,
}

impl<'a> Rows<'a> {
    /// # Errors
    /// As [`check_pages`].
    fn new(op: &'static str, kv: &SequenceKv<'a>, last_row: usize) -> Result<Self> {
        let table = kv.table.map(slice::<u32>).transpose()?;
        if let Some(table) = table {
            check_pages([op, "table"], table, kv.len, last_row)?;
        }
        Ok(Self { table })
    }

    fn row(self, key: usize) -> usize {
        let page = PAGE as usize;
        self.table.map_or(key, |table| table[key / page] as usize * page + key % page)
    }
}

/// As [`gpu::chosen_attention::choose`](crate::gpu::chosen_attention::choose).
pub(crate) fn choose(
    mut to: TensorMut,
    q: &Tensor,
    kv: SequenceKv,
    local: &Tensor,
    share: f32,
    problem: &Problem,
    last_row: usize,
) -> Result<()> {
    let (rows, k) = (Rows::new("choose_tiles", &kv, last_row)?, stored(kv.k.view())?);
    let (q, local, to) = (slice::<f32>(q)?, slice::<u32>(local)?, slice_mut::<u32>(&mut to)?);
    let blocks = problem.q_len.div_ceil(QUERIES_PER_CHOICE);
    let (d, words) = (problem.head_dim, kv.len.div_ceil(KEYS_PER_CHOICE) + LIST_EXTRA as usize);
    let lists = to.par_chunks_mut(words).take(problem.num_q_heads * blocks).enumerate();
    lists.for_each(|(task, list)| {
        let (head, block) = (task / blocks, task % blocks);
        let tiles = tiles_seen(block, problem.q_len, problem.kv_len);
        let first = block * SAMPLES_PER_BLOCK as usize;
        let count = (SAMPLES_PER_BLOCK as usize).min(samples(problem.q_len) - first);
        let query = |sample: usize| ((first + sample + 1) * SAMPLED as usize).min(problem.q_len) - 1;
        let k_start = start(problem.k, problem, head, problem.group());
        let mut key = vec![0.0; d];
        // the largest score of each sample in each tile, and the sum of exp(score − that)
        let mut sums = vec![[(f32::NEG_INFINITY, 0.0f32); SAMPLES_PER_BLOCK as usize]; tiles];
        let mut scores = vec![[0.0; SAMPLES_PER_BLOCK as usize]; KEYS_PER_CHOICE];
        for (tile, sums) in sums.iter_mut().enumerate() {
            let keys = KEYS_PER_CHOICE.min(problem.kv_len - tile * KEYS_PER_CHOICE);
            for (j, scores) in scores[..keys].iter_mut().enumerate() {
                let n = tile * KEYS_PER_CHOICE + j;
                k.read(&mut key, k_start + rows.row(n) * problem.k.row);
                for (sample, score) in scores[..count].iter_mut().enumerate() {
                    let at = start(problem.q, problem, head, 1) + query(sample) * problem.q.row;
                    let seen = n < problem.visible(query(sample));
                    *score = if seen { dot(&q[at..at + d], &key) * problem.scale } else { f32::NEG_INFINITY };
                }
            }
            for (sample, (max, sum)) in sums[..count].iter_mut().enumerate() {
                let of_sample = || scores[..keys].iter().map(|scores| scores[sample]);
                *max = of_sample().fold(f32::NEG_INFINITY, f32::max);
                if *max > f32::NEG_INFINITY {
                    *sum = of_sample().map(|score| (score - *max).exp()).sum();
                }
            }
        }
        let mut weights = vec![0.0; tiles];
        for sample in 0..count {
            let max = sums.iter().map(|sums| sums[sample].0).fold(f32::NEG_INFINITY, f32::max);
            let part =
                |&(of_tile, sum): &(f32, f32)| if sum > 0.0 { sum * (of_tile - max).exp() } else { 0.0 };
            let total: f32 = sums.iter().map(|sums| part(&sums[sample])).sum();
            weights.iter_mut().zip(&sums).for_each(|(weight, sums)| *weight += part(&sums[sample]) / total);
        }
        let own = problem.kv_len - problem.q_len + block * QUERIES_PER_CHOICE;
        let local = (local[block] as usize).min(own) / KEYS_PER_CHOICE;
        let is_taken = |tile: usize| tile == 0 || tile >= local;
        let threshold = if share < 1.0 { threshold(&weights, is_taken, share) } else { 0.0 };
        let mut number = 0;
        for tile in (0..tiles).filter(|&tile| weights[tile] >= threshold || is_taken(tile)) {
            number += 1;
            list[number] = tile as u32;
        }
        list[0] = number as u32;
        list[number + 1] = tiles as u32 - 1; // the block's last tile is its own keys'
    });
    Ok(())
}

/// The largest number at which the weights that are at least as large, with those that are taken in any case, have the share.
fn threshold(weights: &[f32], is_taken: impl Fn(usize) -> bool, share: f32) -> f32 {
    let wanted = share * weights.iter().sum::<f32>();
    let mut others: Vec<f32> =
        (0..weights.len()).filter(|&tile| !is_taken(tile)).map(|tile| weights[tile]).collect();
    others.sort_by(|a, b| b.total_cmp(a));
    let mut sum: f32 = (0..weights.len()).filter(|&tile| is_taken(tile)).map(|tile| weights[tile]).sum();
    let mut least = f32::INFINITY;
    for weight in others {
        if sum >= wanted {
            break;
        }
        sum += weight;
        least = weight;
    }
    least
}

/// The tiles of the lists, by this fallback's smaller tiles.
struct Listed<'a> {
    problem: &'a Problem,
    rows: Rows<'a>,
    lists: &'a [u32],
    words: usize,
}

impl Keys for Listed<'_> {
    fn tiles(&self, head: usize, first: usize) -> Vec<(usize, usize)> {
        let blocks = self.problem.q_len.div_ceil(QUERIES_PER_CHOICE);
        let list = &self.lists[(head * blocks + first / QUERIES_PER_CHOICE) * self.words..];
        let seen = self.problem.visible((first + QUERIES).min(self.problem.q_len) - 1);
        let parts = |&tile: &u32| {
            let first = tile as usize * KEYS_PER_CHOICE;
            (first..(first + KEYS_PER_CHOICE).min(seen)).step_by(KEYS)
        };
        let kv_len = self.problem.kv_len;
        let keys = list[1..][..list[0] as usize].iter().flat_map(parts);
        keys.map(|key| (key, KEYS.min(kv_len - key))).collect()
    }

    fn rows(&self, _: usize, tile: usize, rows: &mut [usize]) {
        (tile..).zip(rows).for_each(|(key, row)| *row = self.rows.row(key));
    }

    fn seen(&self, head: usize, i: usize, tile: usize) -> Seen {
        self.problem.seen(head, i, tile)
    }
}

pub(crate) fn attention(
    out: TensorMut,
    q: &Tensor,
    kv: SequenceKv,
    lists: &Tensor,
    problem: &Problem,
    last_row: usize,
) -> Result<()> {
    let rows = Rows::new("attention_over_tiles", &kv, last_row)?;
    let words = lists.dims().last().copied().unwrap_or(0);
    let keys = Listed { problem, rows, lists: slice::<u32>(lists)?, words };
    attention_over(out, q, [kv.k.view(), kv.v.view()], problem, &keys)
}
