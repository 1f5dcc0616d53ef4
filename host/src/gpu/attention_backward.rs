//! The gradients of attention: their kernels, one after the other.

use super::DeviceElement;
use super::attention::{by_width, scale_log2, strides};
use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use crate::problem::attention_backward::Problem;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::attention::backward::{self, Backward, Kernels, MERGED, Merge, ROWS, SUMMED, Sums, record};
use kernels_gpu::attention::sparse::backward as sparse;
use std::ptr;

/// Blocks wanted per multiprocessor: two are resident, and with a causal mask their work differs.
const BLOCKS_PER_SM: usize = 4;
/// The fewest tiles in a part: with fewer, adding the parts costs more than it saves.
const MIN_PART_TILES: usize = 4;

/// The tiles of a block-sparse mask, in device memory.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "sparse"), allow(dead_code))] // only masks have them
pub(crate) struct Listed {
    pub mask_heads: usize,
    /// Where the tiles of each block of queries begin, and the tiles.
    pub queries: [Tensor; 2],
    /// As those of queries.
    pub keys: [Tensor; 2],
    pub patterns: Tensor,
}

/// `listed`: the tiles that are visited, and not all or those up to the diagonal.
pub(crate) fn attention_backward(
    device: &CudaDevice,
    outputs: [TensorMut; 3],
    inputs: [&Tensor; 5],
    problem: &Problem,
    listed: Option<&Listed>,
) -> Result<()> {
    match inputs[0].dtype() {
        DType::F16 => {
            launch_gradients(device, &backward::OF_F16, &sparse::OF_F16, outputs, inputs, problem, listed)
        }
        _ => launch_gradients(device, &backward::OF_F32, &sparse::OF_F32, outputs, inputs, problem, listed),
    }
}

fn launch_gradients<T: DeviceElement>(
    device: &CudaDevice,
    kernels: &Kernels<T>,
    of_listed: &sparse::Kernels<T>,
    outputs: [TensorMut; 3],
    inputs: [&Tensor; 5],
    problem: &Problem,
    listed: Option<&Listed>,
) -> Result<()> {
    let forward = &problem.forward;
    let (heads, kv_heads) = (forward.batch * forward.num_q_heads, forward.batch * forward.num_kv_heads);
    let (q_tiles, kv_tiles) = (forward.q_len.div_ceil(ROWS as usize), forward.kv_len.div_ceil(ROWS as usize));
    let stats = DeviceBuffer::uninitialized(device, 2 * heads * q_tiles * ROWS as usize * size_of::<f32>())?;
    let multiprocessors = device.properties().multiprocessors as usize;
    // listed tiles are not divided into parts
    let divided = if listed.is_some() { 0 } else { q_tiles };
    let [splits, parts, part_tiles] = divide(kv_heads * kv_tiles, forward.group(), divided, multiprocessors);
    let of_kv = match splits * parts {
        1 => 0,
        count => 2 * count * kv_heads * forward.kv_len * forward.head_dim,
    };
    let kv_parts =
        if listed.is_some() { 1 } else { divided_into(heads * q_tiles, kv_tiles, multiprocessors) };
    let columns = if by_width(forward.head_dim) == 0 { 64 } else { 128 };
    let of_q = match kv_parts {
        1 => 0,
        count => count * heads * q_tiles * ROWS as usize * record(columns) as usize,
    };
    // the parts of dq are merged before those of dk and dv are written
    let partial = DeviceBuffer::uninitialized(device, of_kv.max(of_q) * size_of::<f32>())?;
    let [dq, dk, dv] = outputs.map(|x| x.ptr::<T>());
    let [dout, q, k, v, out] = inputs.map(Tensor::ptr::<T>);
    let (q_len, kv_len, head_dim) = (forward.q_len as u32, forward.kv_len as u32, forward.head_dim as u32);
    let (dk_strides, dv_strides) = (strides(problem.dk), strides(problem.dv));
    let of_parts = Backward {
        dq,
        dk,
        dv,
        dout,
        q,
        k,
        v,
        out,
        stats: stats.ptr(),
        partial: partial.ptr(),
        dq_strides: strides(problem.dq),
        dk_strides,
        dv_strides,
        dout_strides: strides(problem.dout),
        q_strides: strides(forward.q),
        k_strides: strides(forward.k),
        v_strides: strides(forward.v),
        out_strides: strides(forward.out),
        num_q_heads: forward.num_q_heads as u32,
        group: forward.group() as u32,
        splits: splits as u32,
        part_len: part_tiles as u32 * ROWS,
        q_len,
        kv_len,
        head_dim,
        scale: forward.scale,
        scale_log2: scale_log2(forward),
        causal: u32::from(forward.causal),
        starts: ptr::null(),
        tiles: ptr::null(),
        patterns: ptr::null(),
        sharing: 1,
    };
    let num_kv_heads = forward.num_kv_heads as u32;
    let sums = Sums {
        dk,
        dv,
        partial: partial.ptr::<f32>().cast_const(),
        dk_strides,
        dv_strides,
        parts: (splits * parts) as u32,
        num_kv_heads,
        kv_len,
        head_dim,
    };
    let merge = Merge {
        dq,
        partial: partial.ptr::<f32>().cast_const(),
        stats: stats.ptr(),
        dq_strides: of_parts.dq_strides,
        parts: kv_parts as u32,
        num_q_heads: of_parts.num_q_heads,
        q_len,
        head_dim,
        columns,
    };
    let width = by_width(forward.head_dim);
    let of_queries = [heads as u32, q_tiles as u32, kv_parts as u32];
    let of_keys = [(kv_heads * splits) as u32, kv_tiles as u32, parts as u32];
    // SAFETY: `ops::attention_backward_into` has checked types, shapes, the alignment of first elements and strides, spans
    // below 2³¹ and that all tensors are on this stream; a TensorMut overlaps nothing. `stats` has two numbers for each
    // query of each head's tiles, `partial` the gradients of each part of dq, and then of dk and dv. Both are freed after the launches.
    unsafe {
        match listed {
            None => {
                device.launch(&kernels.q[width], of_queries, &of_parts)?;
                if kv_parts > 1 {
                    device.launch(
                        &kernels.merge,
                        [heads as u32, (q_tiles as u32 * ROWS).div_ceil(MERGED), 1],
                        &merge,
                    )?;
                }
                device.launch(&kernels.kv[width], of_keys, &of_parts)?;
            }
            // `BackwardLists` made the lists for these lengths, and the mask's heads divide the query heads, as has been checked
            Some(Listed { mask_heads, queries, keys, patterns }) => {
                let sharing = (forward.num_q_heads / mask_heads) as u32;
                let parameters = |[starts, tiles]: &[Tensor; 2]| Backward {
                    starts: starts.ptr(),
                    tiles: tiles.ptr(),
                    patterns: patterns.ptr(),
                    sharing,
                    ..of_parts
                };
                device.launch(&of_listed.q[width], of_queries, &parameters(queries))?;
                device.launch(&of_listed.kv[width], of_keys, &parameters(keys))?;
            }
        }
        if splits * parts > 1 {
            let blocks = (kv_len * head_dim).div_ceil(SUMMED);
            device.launch(&kernels.sum, [kv_heads as u32, blocks, 2], &sums)?;
        }
    }
    Ok(())
}

/// Divides the queries that attend to a tile of keys: the group's query heads into `splits`, and the tiles of queries into
/// `parts` of `part_tiles`. `blocks` is the number of blocks over keys without this division.
fn divide(blocks: usize, group: usize, q_tiles: usize, multiprocessors: usize) -> [usize; 3] {
    if blocks >= BLOCKS_PER_SM * multiprocessors {
        return [1, 1, q_tiles];
    }
    let parts = divided_into(blocks * group, q_tiles, multiprocessors);
    let part_tiles = q_tiles.div_ceil(parts).max(1);
    [group, q_tiles.div_ceil(part_tiles).max(1), part_tiles]
}

/// The parts of `tiles` tiles each that `blocks` blocks visit: as many as it takes to fill the device, as nearly as can be.
fn divided_into(blocks: usize, tiles: usize, multiprocessors: usize) -> usize {
    let blocks = blocks.max(1);
    ((BLOCKS_PER_SM * multiprocessors + blocks / 2) / blocks).min(tiles / MIN_PART_TILES).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_divided_only_to_fill_the_device() {
        assert_eq!(divide(128, 2, 16, 20), [1, 1, 16], "enough blocks");
        assert_eq!(divide(128, 2, 16, 132), [2, 2, 8]);
        assert_eq!(divide(136, 2, 17, 132), [2, 2, 9], "544 blocks for 528");
        assert_eq!(divide(8, 1, 18, 20), [1, 4, 5], "parts of at least four tiles, the last one shorter");
        assert_eq!(divide(1, 2, 0, 20), [2, 1, 1], "no query");
    }
}
