//! Attention over pages: kernels, grids and the scratch memory for partial results.

use super::attention::{by_width, instance, longest_first, pointers, scale_log2, strides};
use crate::cuda::{COUNTERS, CudaDevice};
use crate::kv::KvView;
use crate::memory::DeviceBuffer;
use crate::problem::attention::Problem;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::attention::merge::partial_elements;
use kernels_gpu::attention::paged::{Kernels, MIN_SPLIT_KEYS, PAGE, PagedDecode, PagedPrefill};
use kernels_gpu::attention::prefill::QUERIES_PER_BLOCK;

/// Decode blocks that are resident on a multiprocessor of sm_61.
const BLOCKS_PER_SM: u32 = 4;
/// The most splits of a sequence: with more, merging takes longer than reading keys and values.
const MAX_SPLITS: u32 = 64;
/// The largest grid along y.
const MAX_GRID_Y: usize = 65535;

/// The most splits of a sequence on this device: as many as fill it with one sequence. It does not depend on the number of
/// sequences of a launch, so that a sequence gives the same bits in every launch.
fn most_splits(blocks_of_a_split: u32, multiprocessors: u32) -> u32 {
    (BLOCKS_PER_SM * multiprocessors).div_ceil(blocks_of_a_split.max(1)).clamp(1, MAX_SPLITS)
}

/// One query for each of problem.batch sequences.
pub(crate) fn each(
    device: &CudaDevice,
    mut out: TensorMut,
    q: &Tensor,
    kv: [KvView; 2],
    [tables, lens]: [&Tensor; 2],
    last_row: u32,
    problem: &Problem,
) -> Result<()> {
    let kernels = &Kernels::of(kv[0].format.storage());
    let group = problem.group();
    let groups = group.div_ceil(instance(&kernels.decode, problem.head_dim, group).rows as usize);
    // the stream has a counter for each block of a split
    let most = (COUNTERS / (problem.num_kv_heads * groups)).min(MAX_GRID_Y / problem.num_kv_heads).max(1);
    for start in (0..problem.batch).step_by(most) {
        let batch = most.min(problem.batch - start);
        let (q, tables, lens) =
            (q.narrow(0, start, batch)?, tables.narrow(0, start, batch)?, lens.narrow(0, start, batch)?);
        let out = out.reborrow().narrow(0, start, batch)?;
        launch_each(
            device,
            kernels,
            out,
            (&q, kv),
            [&tables, &lens],
            last_row,
            &Problem { batch, ..*problem },
        )?;
    }
    Ok(())
}

fn launch_each(
    device: &CudaDevice,
    kernels: &Kernels,
    out: TensorMut,
    (q, kv): (&Tensor, [KvView; 2]),
    [tables, lens]: [&Tensor; 2],
    last_row: u32,
    problem: &Problem,
) -> Result<()> {
    let rows = problem.batch * problem.num_q_heads;
    let (kernel, width) =
        (instance(&kernels.decode, problem.head_dim, problem.group()), tables.dims()[1] as u32);
    let groups = (problem.group() as u32).div_ceil(kernel.rows);
    let num_kv_heads = problem.num_kv_heads as u32;
    let splits = most_splits(num_kv_heads * groups, device.properties().multiprocessors);
    let capacity = width * PAGE;
    let in_grid = splits.min(capacity.div_ceil(MIN_SPLIT_KEYS)).max(1);
    let records = if in_grid > 1 { rows * in_grid as usize } else { 0 };
    let record_bytes = partial_elements(kernel.head_dim) as usize * size_of::<f32>();
    let partial = DeviceBuffer::uninitialized(device, records * record_bytes)?;
    let [(k, k_scales), (v, v_scales)] = kv.map(pointers);
    let parameters = PagedDecode {
        out: out.ptr(),
        partial: partial.ptr(),
        counters: device.stream().counters() as *mut u32,
        tables: tables.ptr(),
        lens: lens.ptr(),
        q: q.ptr(),
        k,
        v,
        out_strides: strides(problem.out),
        q_strides: strides(problem.q),
        k_strides: strides(problem.k),
        v_strides: strides(problem.v),
        num_kv_heads,
        group: problem.group() as u32,
        head_dim: problem.head_dim as u32,
        width,
        capacity,
        last_row,
        splits,
        scale_log2: scale_log2(problem),
        exponent_bits: kv[0].format.exponent_bits(),
        k_scales,
        v_scales,
    };
    let grid = [in_grid, problem.batch as u32 * num_kv_heads, groups];
    // SAFETY: `ops::paged_attention_each_into` has checked types, shapes, the alignment of first elements and strides, spans
    // below 2³¹, that the pool has a row and that all tensors are on this stream; a TensorMut overlaps nothing. Keys and
    // values are as their format says. `partial` has a record for each row and split of the grid and is freed after the
    // launch. A sequence has no more splits than the grid: at most `splits`, and each but the last has MIN_SPLIT_KEYS keys or
    // more. `each` launches no more groups of blocks than the stream has counters.
    unsafe { device.launch(&kernel.spec, grid, &parameters) }
}

/// Several queries of one sequence of problem.kv_len keys.
pub(crate) fn one(
    device: &CudaDevice,
    out: TensorMut,
    q: &Tensor,
    kv: [KvView; 2],
    table: &Tensor,
    last_row: u32,
    problem: &Problem,
) -> Result<()> {
    let kernels = Kernels::of(kv[0].format.storage());
    let spec = &kernels.prefill[by_width(problem.head_dim)];
    let q_len = problem.q_len as u32;
    let (heads, rows) = (problem.num_q_heads as u32, q_len.div_ceil(QUERIES_PER_BLOCK));
    let [(k, k_scales), (v, v_scales)] = kv.map(pointers);
    let parameters = PagedPrefill {
        out: out.ptr(),
        table: table.ptr(),
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
        kv_len: problem.kv_len as u32,
        head_dim: problem.head_dim as u32,
        last_row,
        scale_log2: scale_log2(problem),
        longest_first: longest_first(heads, rows, spec.min_blocks, device.properties().multiprocessors),
        exponent_bits: kv[0].format.exponent_bits(),
        k_scales,
        v_scales,
    };
    // SAFETY: `ops::paged_attention_into` has checked types, shapes, the alignment of first elements and strides, spans
    // below 2³¹, that the table has a page for each key, that the pool has a row and that all tensors are on this stream; a
    // TensorMut overlaps nothing. Keys and values are as their format says.
    unsafe { device.launch(spec, [heads, rows, 1], &parameters) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::attention::paged::keys_per_split;

    /// The grid has a block for each split of the longest sequence, and no sequence is truncated by the number of splits.
    #[test]
    fn splits_cover_the_keys_and_fit_the_grid() {
        for multiprocessors in [3, 20, 132] {
            let splits = most_splits(8, multiprocessors);
            for width in [1u32, 4, 5, 100, 2048] {
                let in_grid = splits.min((width * PAGE).div_ceil(MIN_SPLIT_KEYS)).max(1);
                for len in [0, 1, 63, 64, 65, width * PAGE / 2, width * PAGE] {
                    let len = len.min(width * PAGE); // as the kernel clips it
                    let keys = keys_per_split(len, splits);
                    assert!(len.div_ceil(keys) <= in_grid, "{multiprocessors} {width} {len}");
                    assert!(keys >= MIN_SPLIT_KEYS);
                }
            }
        }
    }
}
