//! Block-sparse attention: the dense fallback's blocks of queries, over the listed blocks of keys only. Also the means of
//! blocks of rows.

use super::attention::{KEYS, Keys, Seen, attention_over};
use super::attention_backward::attention_backward_over;
use super::{slice, slice_mut, with_float};
use crate::block_mask::BlockMask;
use crate::dtype::Float;
use crate::kv::KvView;
use crate::parallel::InTasks;
use crate::problem::attention::{HeadStrides, Problem};
use crate::problem::attention_backward;
use crate::{Result, Tensor, TensorMut};
use rayon::prelude::*;

/// A mask, and the number of query heads that share each of its heads.
struct Listed<'a> {
    mask: &'a BlockMask,
    num_q_heads: usize,
}

impl Listed<'_> {
    fn mask_head(&self, head: usize) -> usize {
        head % self.num_q_heads / (self.num_q_heads / self.mask.heads())
    }
}

impl Keys for Listed<'_> {
    fn tiles(&self, head: usize, first: usize) -> Vec<(usize, usize)> {
        let grid = self.mask.grid();
        let (block, kv_len) = (grid.block(), grid.kv_len());
        let tiles = |(column, _)| {
            let end = kv_len.min((column + 1) * block);
            (column * block..end).step_by(KEYS).map(move |key| (key, KEYS.min(end - key)))
        };
        self.mask.seen_by(self.mask_head(head), first).flat_map(tiles).collect()
    }

    fn seen(&self, head: usize, i: usize, tile: usize) -> Seen {
        let block = self.mask.grid().block();
        (self.mask.row_bits(self.mask_head(head), i, tile / block) >> (tile % block)) as Seen
    }
}

pub(crate) fn attention(
    out: TensorMut,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    problem: &Problem,
    mask: &BlockMask,
) -> Result<()> {
    let kv = [KvView::plain(k), KvView::plain(v)];
    attention_over(out, q, kv, problem, &Listed { mask, num_q_heads: problem.num_q_heads })
}

pub(crate) fn attention_backward(
    outputs: [TensorMut; 3],
    inputs: [&Tensor; 5],
    problem: &attention_backward::Problem,
    mask: &BlockMask,
) -> Result<()> {
    let listed = Listed { mask, num_q_heads: problem.forward.num_q_heads };
    let (block, kv_len) = (mask.grid().block(), mask.grid().kv_len());
    let seen = |head: usize, i: usize, keys: &mut Vec<usize>| {
        for (column, bits) in mask.seen_by(listed.mask_head(head), i) {
            let len = block.min(kv_len - column * block);
            keys.extend((0..len).filter(|j| bits >> j & 1 == 1).map(|j| column * block + j));
        }
    };
    attention_backward_over(outputs, inputs, problem, &seen)
}

/// Means of every `block` rows of x [heads, rows, head_dim]; heads counts all batches. The strides are of heads and rows.
pub(crate) fn block_mean(
    mut y: TensorMut,
    x: &Tensor,
    strides: HeadStrides,
    [heads, rows, head_dim]: [usize; 3],
    block: usize,
) -> Result<()> {
    let elements = y.shape().elements();
    let y = &mut slice_mut::<f32>(&mut y)?[..elements]; // the storage may be longer
    let per_batch = heads;
    with_float!(x.dtype(), T => {
        let x = slice::<T>(x)?;
        let blocks = rows.div_ceil(block);
        y.par_chunks_mut(head_dim).enumerate().in_tasks(|(at, y)| {
            let (head, first) = (at / blocks, at % blocks * block);
            let start = head / per_batch * strides.batch + head % per_batch * strides.head;
            let end = rows.min(first + block);
            y.fill(0.0);
            for row in first..end {
                let at = start + row * strides.row;
                y.iter_mut().zip(&x[at..at + head_dim]).for_each(|(y, x)| *y += x.to_f32());
            }
            y.iter_mut().for_each(|y| *y /= (end - first) as f32);
        });
    });
    Ok(())
}
