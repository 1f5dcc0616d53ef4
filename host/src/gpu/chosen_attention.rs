//! Attention over chosen tiles of keys: kernels, grids and the scratch memory for sums and weights.

use super::attention::{by_width, longest_first, pointers, scale_log2, strides};
use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use crate::problem::attention::Problem;
use crate::problem::chosen_attention::{SequenceKv, samples};
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::attention::chosen::choose::{HELD, attention_choose_tiles};
use kernels_gpu::attention::chosen::{ChooseTiles, ChosenPrefill, Kernels, TILE, TileSums};
use kernels_gpu::attention::prefill::QUERIES_PER_BLOCK;
use std::ptr;

/// Blocks that sum over parts of the tiles, for each place that a multiprocessor has for one: more would load queries more often.
const ROUNDS: u32 = 2;

/// Writes the lists of `to` [num_q_heads, blocks, tiles + 2].
#[expect(clippy::too_many_arguments, reason = "an op's operands and its checked sizes")]
pub(crate) fn choose(
    device: &CudaDevice,
    to: TensorMut,
    q: &Tensor,
    kv: SequenceKv,
    local: &Tensor,
    share: f32,
    problem: &Problem,
    last_row: usize,
) -> Result<()> {
    let kernels = Kernels::of(kv.k.format().storage());
    let (heads, q_len, kv_len) = (problem.num_q_heads as u32, problem.q_len as u32, problem.kv_len as u32);
    let (samples, tiles) = (samples(problem.q_len) as u32, kv_len.div_ceil(TILE));
    let blocks = q_len.div_ceil(QUERIES_PER_BLOCK);
    let elements = |rows: u32| rows as usize * tiles as usize * size_of::<f32>();
    let sums = DeviceBuffer::uninitialized(device, 2 * elements(heads * samples))?;
    let weights =
        DeviceBuffer::uninitialized(device, if tiles > HELD { elements(heads * blocks) } else { 0 })?;
    let (k, k_scales) = pointers(kv.k.view());
    let parameters = TileSums {
        sums: sums.ptr(),
        table: kv.table.map_or(ptr::null(), Tensor::ptr),
        q: q.ptr(),
        k,
        q_strides: strides(problem.q),
        k_strides: strides(problem.k),
        group: problem.group() as u32,
        q_len,
        kv_len,
        head_dim: problem.head_dim as u32,
        last_row: last_row as u32,
        samples,
        tiles,
        scale_log2: scale_log2(problem),
        exponent_bits: kv.k.format().exponent_bits(),
        k_scales,
    };
    let rows = samples.div_ceil(QUERIES_PER_BLOCK);
    let places = ROUNDS * kernels.sums.min_blocks * device.properties().multiprocessors;
    let parts = places.div_ceil(heads * rows).clamp(1, tiles);
    let choice = ChooseTiles {
        lists: to.ptr(),
        weights: weights.ptr(),
        sums: sums.ptr(),
        local: local.ptr(),
        q_len,
        kv_len,
        samples,
        tiles,
        share,
    };
    // SAFETY: `ops::choose_tiles` has checked types, shapes, the alignment of first elements and strides, spans below 2³¹, that k has rows or
    // the table pages for all keys, that no query is before the first key, and that all tensors are on this stream. Keys are as their format
    // says. The first kernel writes the sums of all samples and of the tiles that they see, which the second one reads; both buffers are
    // freed after the launches.
    unsafe {
        device.launch(&kernels.sums, [heads, rows, parts], &parameters)?;
        device.launch(&attention_choose_tiles, [heads, blocks, 1], &choice)
    }
}

/// Attention over the tiles of `lists`.
pub(crate) fn attention(
    device: &CudaDevice,
    out: TensorMut,
    q: &Tensor,
    kv: SequenceKv,
    lists: &Tensor,
    problem: &Problem,
    last_row: usize,
) -> Result<()> {
    let kernels = Kernels::of(kv.k.format().storage());
    let spec = &kernels.prefill[by_width(problem.head_dim)];
    let (heads, q_len, kv_len) = (problem.num_q_heads as u32, problem.q_len as u32, problem.kv_len as u32);
    let rows = q_len.div_ceil(QUERIES_PER_BLOCK);
    let [(k, k_scales), (v, v_scales)] = [kv.k, kv.v].map(|x| pointers(x.view()));
    let parameters = ChosenPrefill {
        out: out.ptr(),
        lists: lists.ptr(),
        table: kv.table.map_or(ptr::null(), Tensor::ptr),
        q: q.ptr(),
        k,
        v,
        out_strides: strides(problem.out),
        q_strides: strides(problem.q),
        k_strides: strides(problem.k),
        v_strides: strides(problem.v),
        num_q_heads: heads,
        group: problem.group() as u32,
        q_len,
        kv_len,
        tiles: kv_len.div_ceil(TILE),
        head_dim: problem.head_dim as u32,
        last_row: last_row as u32,
        scale_log2: scale_log2(problem),
        longest_first: longest_first(heads, rows, spec.min_blocks, device.properties().multiprocessors),
        exponent_bits: kv.k.format().exponent_bits(),
        k_scales,
        v_scales,
    };
    // SAFETY: `ops::attention_over_tiles_into` has checked types, shapes, the alignment of first elements and strides, spans below 2³¹, that k
    // and v have rows or the table pages for all keys, that the lists are those of `choose_tiles` for these sizes, and that all tensors are on
    // this stream; a TensorMut overlaps nothing. Keys and values are as their format says.
    unsafe { device.launch(spec, [heads, rows, 1], &parameters) }
}
