//! Block-sparse attention: masks of every builder, and the op with its gradients.

use super::Op;
use super::call::{Call, into};
use super::plain::near;
use pascaline::block_mask::{BlockGrid, BlockMask, Choose};
use pascaline::ops::{self, Attention, Path, PreparedMask};
use pascaline::{DType, Result};

pub(super) const OPS: &[Op] = &[
    ("sparse_attention", sparse_attention),
    ("sparse_attention_backward", sparse_attention_backward),
    ("choose_blocks", choose_blocks),
];

/// Dimensions of queries, and of keys and values.
fn dims(call: &mut Call) -> [Vec<usize>; 2] {
    let (dim, kv_heads, group) = (call.pick(&[16, 32, 64, 24, 128]), 1 + call.below(3), 1 + call.below(3));
    let batch = [&[][..], &[1], &[2]][call.below(3)];
    let q = [batch, &[kv_heads * group, call.size(), dim]].concat();
    [q, [batch, &[kv_heads, call.size(), dim]].concat()]
}

/// A mask for these queries and keys; rarely of another length, or of heads that do not divide theirs.
fn mask(call: &mut Call, q: &[usize], kv: &[usize]) -> Result<PreparedMask> {
    let [of_q, of_kv] = [q, kv].map(|dims| &dims[dims.len() - 3..]);
    let (block, wrong) = (call.pick(&[16, 16, 16, 32, 64]), usize::from(call.one_in(40)));
    let grid = BlockGrid::new(block, of_q[1] + wrong, of_kv[1])?;
    let (kind, a, b) = (call.below(8), call.below(40), call.below(40));
    let heads = [1, of_kv[0], of_q[0], 2][call.below(4)];
    call.note(&[kind, a, b, heads, wrong]);
    let is_in = |head: usize, row: usize, column: usize| (5 * head + 3 * row + 7 * column + a) % 4 > b % 3;
    let mask = match kind {
        0 => BlockMask::dense(grid)?,
        1 => BlockMask::causal(grid)?,
        2 => BlockMask::sliding_window(grid, a, b)?,
        3 => BlockMask::global_window(grid, b % 9, a, b)?,
        4 => BlockMask::strided(grid, 1 + a % 3)?,
        5 => BlockMask::ranges(grid, |i| (i + a).saturating_sub(9)..i + b)?,
        6 => BlockMask::from_rule(grid, heads, |head, row| {
            (0..grid.columns()).filter(|&column| is_in(head, row, column)).collect()
        })?,
        _ => {
            let pairs = (0..heads * grid.q_len() * grid.kv_len()).map(|i| is_in(0, i / 7, i % 13));
            BlockMask::from_matrix(grid, heads, &pairs.collect::<Vec<_>>())?
        }
    };
    let mask = if call.below(3) == 0 { mask.and_causal()? } else { mask };
    PreparedMask::new(mask, call.pick(&[Path::Sparse, Path::Sparse, Path::Auto]), call.device)
}

fn sparse_attention(call: &mut Call) -> Result<()> {
    let [of_q, of_kv] = dims(call);
    let mask = mask(call, &of_q, &of_kv)?;
    let (dtype, scale) = (call.float(), call.pick(&[None, Some(0.25), Some(0.0)]));
    let [q, k, v] = [call.input(&of_q, dtype)?, call.input(&of_kv, dtype)?, call.input(&of_kv, dtype)?];
    let mut out = call.output(&of_q, dtype, near(dtype, 2e-5, 1e-6))?;
    into!(call, out => ops::sparse_attention_into(out.view()?, &q, &k, &v, &mask, scale))
}

fn sparse_attention_backward(call: &mut Call) -> Result<()> {
    let [of_q, of_kv] = dims(call);
    let mask = mask(call, &of_q, &of_kv)?;
    let (dtype, scale) = (call.float(), call.pick(&[None, Some(0.25)]));
    let [dout, q, out] = [call.input(&of_q, dtype)?, call.input(&of_q, dtype)?, call.input(&of_q, dtype)?];
    let [k, v] = [call.input(&of_kv, dtype)?, call.input(&of_kv, dtype)?];
    // `out` is not the result here, so the gradients are larger than in training
    let tolerance = if dtype == DType::F16 { [0.25, 2e-2] } else { [2e-3, 1e-4] };
    let mut dq = call.output(&of_q, dtype, tolerance)?;
    let mut dk = call.output(&of_kv, dtype, tolerance)?;
    let mut dv = call.output(&of_kv, dtype, tolerance)?;
    into!(call, dq, dk, dv => {
        let outputs = [dq.view()?, dk.view()?, dv.view()?];
        ops::sparse_attention_backward_into(outputs, [&dout, &q, &k, &v, &out], &mask, scale)
    })
}

/// Only the verdict: scores that differ by a rounding may choose other blocks.
fn choose_blocks(call: &mut Call) -> Result<()> {
    let ([of_q, of_kv], dtype) = (dims(call), call.float());
    let (block, causal) = (call.pick(&[16, 32, 64, 8]), call.below(2) == 1);
    let choose = call.pick(&[Choose::TopK(1), Choose::TopK(2), Choose::TopK(0)]);
    let (q, k) = (call.input(&of_q, dtype)?, call.input(&of_kv, dtype)?);
    ops::choose_blocks(&q, &k, block, choose, &Attention { scale: None, causal }).map(drop)
}
