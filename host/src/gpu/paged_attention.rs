//! Attention over pages: kernels, grids and the scratch memory for partial results.

use super::attention::{by_width, instance, longest_first, pointers, scale_log2, strides};
use super::rope_append::{addresses, norms};
use crate::cuda::{COUNTERS, CudaDevice, MAX_GRID};
use crate::kv::{KvMut, KvView};
use crate::memory::DeviceBuffer;
use crate::problem::attention::Problem;
use crate::problem::rope_append::Projection;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::attention::decode::Instances;
use kernels_gpu::attention::merge::partial_elements;
use kernels_gpu::attention::paged::{Kernels, MIN_SPLIT_KEYS, PAGE, PagedDecode, PagedPrefill};
use kernels_gpu::attention::prefill::QUERIES_PER_BLOCK;
use std::ptr;

/// Decode blocks that are resident on a multiprocessor of sm_61.
const BLOCKS_PER_SM: u32 = 4;
/// The most splits of a sequence: with more, merging takes longer than reading keys and values.
const MAX_SPLITS: u32 = 64;

/// The most splits of a sequence on this device: as many as fill it with one sequence. It does not depend on the number of
/// sequences of a launch, so that a sequence gives the same bits in every launch.
fn most_splits(blocks_of_a_split: u32, multiprocessors: u32) -> u32 {
    (BLOCKS_PER_SM * multiprocessors).div_ceil(blocks_of_a_split.max(1)).clamp(1, MAX_SPLITS)
}

/// One query for each of problem.batch sequences.
pub(crate) fn each(
    device: &CudaDevice,
    out: TensorMut,
    q: &Tensor,
    kv: [KvView; 2],
    [tables, lens]: [&Tensor; 2],
    last_row: u32,
    problem: &Problem,
) -> Result<()> {
    let [(k, k_scales), (v, v_scales)] = kv.map(pointers);
    let parameters = PagedDecode {
        out: out.ptr(),
        tables: tables.ptr(),
        lens: lens.ptr(),
        q: q.ptr(),
        k,
        v,
        width: tables.dims()[1] as u32,
        last_row,
        exponent_bits: kv[0].format.exponent_bits(),
        k_scales,
        v_scales,
        ..decode(problem)
    };
    // SAFETY: `ops::paged_attention_each_into` has checked types, shapes, the alignment of first elements and strides, spans
    // below 2³¹, that the pool has a row and that all tensors are on this stream; a TensorMut overlaps nothing. Keys and
    // values are as their format says.
    unsafe { launch_decode(device, &Kernels::of(kv[0].format.storage()).decode, problem, parameters) }
}

/// As [`each`], of a projection whose keys and values are appended; the problem's q is in the projection.
pub(crate) fn append(
    device: &CudaDevice,
    out: TensorMut,
    kv: [KvMut; 2],
    from: &Projection,
    [tables, lens]: [&Tensor; 2],
    last_row: u32,
    problem: &Problem,
) -> Result<()> {
    let [(k, k_scales), (v, v_scales)] = [&kv[0], &kv[1]].map(addresses);
    let ([q_weight, k_weight], eps) = norms(from);
    let parameters = PagedDecode {
        out: out.ptr(),
        tables: tables.ptr(),
        lens: lens.ptr(),
        q: from.qkv.ptr(),
        k,
        v,
        width: tables.dims()[1] as u32,
        last_row,
        exponent_bits: kv[0].format.exponent_bits(),
        k_scales,
        v_scales,
        cos: from.cos.ptr(),
        sin: from.sin.ptr(),
        q_weight,
        k_weight,
        at: from.at.ptr(),
        at_stride: from.each().unwrap_or(0) as u32,
        angles: from.cos.dims()[0] as u32,
        eps,
        ..decode(problem)
    };
    // SAFETY: `ops::paged_append_attention_into` has checked types, shapes, that all are contiguous but for the rows of `at`, whose
    // distance the kernel is told, of less than 2³¹ elements and on this stream, and that there are a row of the pool and an angle; the
    // pool is borrowed exclusively, as is `out`, and is as its format says.
    unsafe { launch_decode(device, &Kernels::of(kv[0].format.storage()).decode, problem, parameters) }
}

/// The parameters that follow from the problem; the others are null and 0.
fn decode(problem: &Problem) -> PagedDecode {
    PagedDecode {
        out: ptr::null_mut(),
        partial: ptr::null_mut(),
        counters: ptr::null_mut(),
        tables: ptr::null(),
        lens: ptr::null(),
        q: ptr::null(),
        k: ptr::null(),
        v: ptr::null(),
        out_strides: strides(problem.out),
        q_strides: strides(problem.q),
        k_strides: strides(problem.k),
        v_strides: strides(problem.v),
        num_kv_heads: problem.num_kv_heads as u32,
        group: problem.group() as u32,
        head_dim: problem.head_dim as u32,
        width: 0,
        last_row: 0,
        splits: 0,
        scale_log2: scale_log2(problem),
        exponent_bits: 0,
        k_scales: ptr::null(),
        v_scales: ptr::null(),
        cos: ptr::null(),
        sin: ptr::null(),
        q_weight: ptr::null(),
        k_weight: ptr::null(),
        at: ptr::null(),
        at_stride: 0,
        angles: 0,
        eps: 0.0,
    }
}

/// Launches the kernel for one query of each sequence, with the splits of their keys: for as many sequences at once as the stream has a
/// counter for each block of a split.
///
/// # Safety
/// The parameters fulfil the kernel's contract for this problem, but for the splits and their memory.
unsafe fn launch_decode(
    device: &CudaDevice,
    kernels: &Instances<PagedDecode>,
    problem: &Problem,
    all: PagedDecode,
) -> Result<()> {
    let kernel = instance(kernels, problem.head_dim, problem.group());
    let groups = problem.group().div_ceil(kernel.rows as usize);
    let most =
        (COUNTERS / (problem.num_kv_heads * groups)).min(MAX_GRID[1] as usize / problem.num_kv_heads).max(1);
    let (num_kv_heads, groups) = (problem.num_kv_heads as u32, groups as u32);
    let splits = most_splits(num_kv_heads * groups, device.properties().multiprocessors);
    let in_grid = splits.min((all.width * PAGE).div_ceil(MIN_SPLIT_KEYS)).max(1);
    let record_bytes = partial_elements(kernel.head_dim) as usize * size_of::<f32>();
    let counters = device.stream().counters() as *mut u32;
    for start in (0..problem.batch).step_by(most) {
        let batch = most.min(problem.batch - start);
        let records = if in_grid > 1 { batch * problem.num_q_heads * in_grid as usize } else { 0 };
        let partial = DeviceBuffer::uninitialized(device, records * record_bytes)?;
        let parameters = PagedDecode {
            out: all.out.wrapping_add(start * problem.out.batch),
            partial: partial.ptr(),
            counters,
            tables: all.tables.wrapping_add(start * all.width as usize),
            lens: all.lens.wrapping_add(start),
            q: all.q.wrapping_add(start * problem.q.batch),
            at: all.at.wrapping_add(start),
            splits,
            ..all
        };
        let grid = [in_grid, batch as u32 * num_kv_heads, groups];
        // SAFETY: this function's contract, of the sequences from `start` on. `partial` has a record for each row and split of the grid and
        // is freed after the launch. A sequence has no more splits than the grid: at most `splits`, and each but the last has
        // MIN_SPLIT_KEYS keys or more. There are no more groups of blocks than counters.
        unsafe { device.launch(&kernel.spec, grid, &parameters)? };
    }
    Ok(())
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
