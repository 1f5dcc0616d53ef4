//! Attention: kernels, grids and the scratch memory for partial results.

use super::DeviceElement;
use super::rope_append::{addresses, norms};
use crate::cuda::{COUNTERS, CudaDevice};
use crate::kv::{KvMut, KvView};
use crate::memory::DeviceBuffer;
use crate::problem::attention::{HeadStrides, Problem};
use crate::problem::rope_append::Projection;
use crate::{DType, Result, Tensor, TensorMut};
use cuda_std::{KernelParams, KernelSpec};
use kernels_gpu::attention::decode::{Decode, Instance, Instances};
use kernels_gpu::attention::merge::partial_elements;
use kernels_gpu::attention::prefill::{KEYS_PER_TILE, Prefill, PrefillMerge, QUERIES_PER_BLOCK, rows_merged};
use kernels_gpu::attention::{self, Kernels, Width};
use kernels_gpu::device::F16;
use std::ptr;

/// The most queries for the decode kernels. With more, the prefill kernels waste less on unused rows of their 64-row tiles
/// than reading K and V again for every four rows costs.
pub(crate) const MAX_DECODE_QUERIES: usize = 8;
/// Decode blocks that are resident on a multiprocessor of sm_61: with fewer it idles, more only add partial results.
const DECODE_BLOCKS_PER_SM: usize = 4;
/// The fewest keys of a split: with fewer, merging costs as much as the split saves. A multiple of the keys that a block has
/// in flight.
const MIN_SPLIT_KEYS: usize = 64;

/// The addresses of keys or values and of their scales. A `KvTensor` has them as its format says.
pub(super) fn pointers(x: KvView) -> (*const u8, *const F16) {
    (x.values.address() as *const u8, x.scales.map_or(ptr::null(), Tensor::ptr))
}

/// The narrowest of these kernels for this head_dim.
pub(super) fn for_columns<P>(kernels: &[Width<P>], head_dim: usize) -> &Width<P> {
    let fits = |kernel: &&Width<P>| head_dim <= kernel.columns as usize;
    kernels.iter().find(fits).unwrap_or(&kernels[kernels.len() - 1])
}

/// The index of the kernels for this head_dim.
pub(super) fn by_width(head_dim: usize) -> usize {
    usize::from(head_dim > 64)
}

/// The index of the instance for this many rows of a kv head, among those for 1, 2 and 4.
fn by_rows(rows: usize) -> usize {
    match rows {
        ..=1 => 0,
        2 => 1,
        _ => 2,
    }
}

/// The instance for this many rows of a kv head.
pub(super) fn instance<P>(instances: &Instances<P>, head_dim: usize, rows: usize) -> &Instance<P> {
    &instances[by_width(head_dim)][by_rows(rows)]
}

/// The number of splits and their length in keys, for a grid of `blocks` blocks per split. With several splits each of these
/// blocks has a counter.
pub(super) fn split(blocks: usize, kv_len: usize, multiprocessors: u32) -> (usize, usize) {
    let room = if blocks > COUNTERS { 1 } else { DECODE_BLOCKS_PER_SM * multiprocessors as usize };
    let wanted = room.div_ceil(blocks.max(1));
    let keys = kv_len.div_ceil(wanted.max(1)).next_multiple_of(MIN_SPLIT_KEYS).max(MIN_SPLIT_KEYS);
    (kv_len.div_ceil(keys).max(1), keys)
}

/// The most parts that the keys of 64 queries are in, as a power of two.
const MAX_PARTS_LOG2: u32 = 3;

/// The parts that the keys are in, as a power of two, for a prefill grid of `blocks` blocks for each part: as many as it takes
/// to occupy seven in eight of the device's places for blocks, and for the longest block to take no more than 4/3 of a place's share of all
/// work, of two tiles of keys at least. `seen`: the most keys that a query sees, and how many the queries see on average.
pub(super) fn parts_log2(blocks: u32, kv_len: u32, seen: [u32; 2], places: u32) -> u32 {
    let tiles = kv_len.div_ceil(KEYS_PER_TILE);
    let [longest, average] = seen.map(u64::from);
    (0..MAX_PARTS_LOG2)
        .find(|log| {
            let fills = 8 * u64::from(blocks << log) >= 7 * u64::from(places);
            let is_even = 4 * u64::from(blocks) * average >= 3 * (longest >> log) * u64::from(places);
            fills && is_even || tiles >> log < 4
        })
        .unwrap_or(MAX_PARTS_LOG2)
}

/// Bytes of the partial results of `blocks` blocks for each part, of a kernel for `columns`; a single part has none.
pub(super) fn partial_bytes(blocks: u32, parts_log2: u32, columns: u32) -> usize {
    let row = partial_elements(columns) as usize * size_of::<f32>();
    let records = if parts_log2 == 0 { 0 } else { (blocks << parts_log2) as usize };
    records * QUERIES_PER_BLOCK as usize * row
}

/// How many rows of a prefill grid [heads, rows] are launched longest first. Usually all, so that short blocks fill the gaps
/// at the end. If all blocks are resident at once, there are no gaps: then each multiprocessor's first blocks are launched
/// longest first and its second blocks shortest first, so that all pairs take equally long.
pub(super) fn longest_first(heads: u32, rows: u32, per_multiprocessor: u32, multiprocessors: u32) -> u32 {
    let held = u64::from(per_multiprocessor) * u64::from(multiprocessors);
    if u64::from(heads) * u64::from(rows) <= held { rows.min(multiprocessors / heads) } else { rows }
}

/// The scale of scores for exponents to base 2.
pub(super) fn scale_log2(problem: &Problem) -> f32 {
    problem.scale * std::f32::consts::LOG2_E
}

/// Strides in the kernels' type; `ops` has checked that they are below 2³¹.
pub(super) fn strides(HeadStrides { batch, head, row }: HeadStrides) -> attention::Strides {
    attention::Strides { batch: batch as u32, head: head as u32, row: row as u32 }
}

/// The parts of the keys of a prefill launch.
pub(super) struct Parts {
    pub log2: u32,
    /// Rows of the grid that are launched longest first.
    pub longest_first: u32,
    /// A record for each block, if there are several parts.
    pub partial: *mut f32,
}

/// Launches a kernel for many queries with the parameters for its parts of the keys, and `merge` for several parts.
///
/// # Safety
/// With a valid `partial`, the parameters fulfil the kernel's contract for this problem and its grid [heads, rows of blocks,
/// parts]. `out` is their output.
pub(super) unsafe fn prefill<P: KernelParams, Q: DeviceElement>(
    device: &CudaDevice,
    &Width { columns, ref spec }: &Width<P>,
    merge: &KernelSpec<PrefillMerge<Q>>,
    out: *mut Q,
    problem: &Problem,
    parameters: impl FnOnce(Parts) -> P,
) -> Result<()> {
    let (heads, q_len) = ((problem.batch * problem.num_q_heads) as u32, problem.q_len as u32);
    let rows = q_len.div_ceil(QUERIES_PER_BLOCK);
    let multiprocessors = device.properties().multiprocessors;
    let (kv_len, places) = (problem.kv_len as u32, spec.min_blocks * multiprocessors);
    let average = if problem.causal { kv_len.saturating_sub(q_len / 2) } else { kv_len };
    let log2 = parts_log2(heads * rows, kv_len, [kv_len, average], places);
    let longest_first = match log2 {
        0 => longest_first(heads, rows, spec.min_blocks, multiprocessors),
        _ if (heads * rows) << log2 <= places => rows,
        _ => rows + 1,
    };
    let buffer = DeviceBuffer::uninitialized(device, partial_bytes(heads * rows, log2, columns))?;
    let partial = buffer.ptr();
    let parameters = parameters(Parts { log2, longest_first, partial });
    // SAFETY: this function's contract. The buffer has a record, as wide as this kernel's, for each block of more than one part.
    unsafe { device.launch(spec, [heads, rows, 1 << log2], &parameters)? };
    if log2 == 0 {
        return Ok(());
    }
    let merged = PrefillMerge {
        out,
        partial,
        out_strides: strides(problem.out),
        num_q_heads: problem.num_q_heads as u32,
        q_len,
        tiles: rows,
        parts_log2: log2,
        head_dim: problem.head_dim as u32,
        d: columns,
    };
    // SAFETY: the launch before has written the records; they are freed after this one. Its output is this one's.
    unsafe { device.launch(merge, [heads, q_len.div_ceil(rows_merged(columns)), 1], &merged) }
}

pub(crate) fn attention(
    device: &CudaDevice,
    out: TensorMut,
    q: &Tensor,
    kv: [KvView; 2],
    past: Option<&Tensor>,
    problem: &Problem,
) -> Result<()> {
    match q.dtype() {
        DType::F16 => launch_attention(device, &attention::OF_F16, out, q, kv, past, problem),
        _ => launch_attention(device, &Kernels::of(kv[0].format.storage()), out, q, kv, past, problem),
    }
}

fn launch_attention<Q: DeviceElement>(
    device: &CudaDevice,
    kernels: &Kernels<Q>,
    out: TensorMut,
    q: &Tensor,
    kv: [KvView; 2],
    past: Option<&Tensor>,
    problem: &Problem,
) -> Result<()> {
    let heads = problem.batch * problem.num_q_heads;
    if heads * problem.q_len == 0 {
        return Ok(());
    }
    let (out, q, [(k, k_scales), (v, v_scales)]) = (out.ptr::<Q>(), q.ptr::<Q>(), kv.map(pointers));
    let exponent_bits = kv[0].format.exponent_bits();
    let (out_strides, q_strides) = (strides(problem.out), strides(problem.q));
    let (k_strides, v_strides) = (strides(problem.k), strides(problem.v));
    let num_q_heads = problem.num_q_heads as u32;
    let (q_len, kv_len, head_dim) = (problem.q_len as u32, problem.kv_len as u32, problem.head_dim as u32);
    let (group, causal) = (problem.group() as u32, u32::from(problem.causal));

    if problem.q_len > MAX_DECODE_QUERIES {
        let kernel = for_columns(kernels.prefill, problem.head_dim);
        // SAFETY: `ops::attention_into` has checked types, shapes, the alignment of first elements and strides, spans below
        // 2³¹ and that all tensors are on this stream; a TensorMut overlaps nothing. Keys and values are as their format says.
        return unsafe {
            prefill(device, kernel, &kernels.merge, out, problem, |parts| Prefill {
                out,
                q,
                k,
                v,
                out_strides,
                q_strides,
                k_strides,
                v_strides,
                num_q_heads,
                group,
                q_len,
                kv_len,
                head_dim,
                scale_log2: scale_log2(problem),
                causal,
                longest_first: parts.longest_first,
                parts_log2: parts.log2,
                partial: parts.partial,
                exponent_bits,
                k_scales,
                v_scales,
            })
        };
    }

    let parameters = Decode {
        out,
        q,
        k,
        v,
        past: past.map_or(ptr::null(), Tensor::ptr),
        exponent_bits,
        k_scales,
        v_scales,
        ..decode(problem)
    };
    // SAFETY: the caller has checked types, shapes, the alignment of first elements and strides, spans below 2³¹ and that all
    // tensors are on this stream; a TensorMut overlaps nothing, and keys and values are as their format says. `past` is one
    // number.
    unsafe { launch_decode(device, &kernels.decode, problem, parameters) }
}

/// The parameters that follow from the problem; the others are null and 0.
fn decode<Q>(problem: &Problem) -> Decode<Q> {
    Decode {
        out: ptr::null_mut(),
        partial: ptr::null_mut(),
        counters: ptr::null_mut(),
        q: ptr::null(),
        k: ptr::null(),
        v: ptr::null(),
        out_strides: strides(problem.out),
        q_strides: strides(problem.q),
        k_strides: strides(problem.k),
        v_strides: strides(problem.v),
        num_kv_heads: problem.num_kv_heads as u32,
        group: problem.group() as u32,
        q_len: problem.q_len as u32,
        kv_len: problem.kv_len as u32,
        head_dim: problem.head_dim as u32,
        keys_per_split: 0,
        scale_log2: scale_log2(problem),
        causal: u32::from(problem.causal),
        past: ptr::null(),
        exponent_bits: 0,
        k_scales: ptr::null(),
        v_scales: ptr::null(),
        cos: ptr::null(),
        sin: ptr::null(),
        q_weight: ptr::null(),
        k_weight: ptr::null(),
        angles: 0,
        eps: 0.0,
    }
}

/// Launches the kernel for few queries, with the splits of its keys.
///
/// # Safety
/// The parameters fulfil the kernel's contract for this problem, but for the splits and their memory.
unsafe fn launch_decode<Q: DeviceElement>(
    device: &CudaDevice,
    kernels: &Instances<Decode<Q>>,
    problem: &Problem,
    parameters: Decode<Q>,
) -> Result<()> {
    let (rows, heads) = (problem.group() * problem.q_len, problem.batch * problem.num_q_heads);
    let kernel = instance(kernels, problem.head_dim, rows);
    let groups = rows.div_ceil(kernel.rows as usize);
    let kv_heads = problem.batch * problem.num_kv_heads;
    let multiprocessors = device.properties().multiprocessors;
    let (splits, keys_per_split) = split(kv_heads * groups, problem.kv_len, multiprocessors);
    let records = if splits > 1 { heads * problem.q_len * splits } else { 0 };
    let record_bytes = partial_elements(kernel.head_dim) as usize * size_of::<f32>();
    let partial = DeviceBuffer::uninitialized(device, records * record_bytes)?;
    let (counters, keys_per_split) = (device.stream().counters() as *mut u32, keys_per_split as u32);
    let parameters = Decode { partial: partial.ptr(), counters, keys_per_split, ..parameters };
    let grid = [splits as u32, kv_heads as u32, groups as u32];
    // SAFETY: this function's contract. `partial` has a record for each row and split and is freed after the launch. `split` gives no more
    // groups of blocks than the stream has counters.
    unsafe { device.launch(&kernel.spec, grid, &parameters) }
}

/// Appends the rows of a projection to a cache, and lets them attend to it. The problem's q is in the projection.
pub(crate) fn append(
    device: &CudaDevice,
    out: TensorMut,
    kv: [KvMut; 2],
    from: &Projection,
    problem: &Problem,
) -> Result<()> {
    match from.qkv.dtype() {
        DType::F16 => launch_append(device, &attention::OF_F16, out, kv, from, problem),
        _ => launch_append(device, &Kernels::of(kv[0].format.storage()), out, kv, from, problem),
    }
}

fn launch_append<Q: DeviceElement>(
    device: &CudaDevice,
    kernels: &Kernels<Q>,
    out: TensorMut,
    kv: [KvMut; 2],
    from: &Projection,
    problem: &Problem,
) -> Result<()> {
    let [(k, k_scales), (v, v_scales)] = [&kv[0], &kv[1]].map(addresses);
    let ([q_weight, k_weight], eps) = norms(from);
    let parameters = Decode {
        out: out.ptr(),
        q: from.qkv.ptr(),
        k,
        v,
        past: from.at.ptr(),
        exponent_bits: kv[0].format.exponent_bits(),
        k_scales,
        v_scales,
        cos: from.cos.ptr(),
        sin: from.sin.ptr(),
        q_weight,
        k_weight,
        angles: from.cos.dims()[0] as u32,
        eps,
        ..decode(problem)
    };
    // SAFETY: `ops::append_attention_into` has checked types, shapes, that all are contiguous, of less than 2³¹ elements and on this stream,
    // that there is an angle and that `at` has two numbers; both caches are borrowed exclusively, as is `out`, and are as their format says.
    unsafe { launch_decode(device, &kernels.decode, problem, parameters) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{KvFormat, KvTensor};
    use crate::memory::device_tests::{cuda_device, turn};
    use crate::{Device, cuda, ops};
    use kernels_gpu::kv::Storage;

    /// The kernel that attention over an empty cache of this format launches.
    fn launched(q: DType, format: KvFormat, head_dim: usize, q_len: usize) -> &'static str {
        let device = Device::Cuda(cuda_device());
        let q = Tensor::zeros([1, q_len, head_dim], q, &device).unwrap();
        let mut out = Tensor::zeros(q.shape(), q.dtype(), &device).unwrap();
        let [k, v] =
            [(); 2].map(|()| KvTensor::uninitialized([q_len, 1, head_dim], format, &device).unwrap());
        let (result, names) = cuda::trace(|| {
            ops::attention_over_into(out.view_mut().unwrap(), &q, &k, &v, 0, &Default::default())
        });
        result.unwrap();
        device.synchronize().unwrap();
        names[0]
    }

    #[test]
    fn few_queries_have_their_keys_in_parts() {
        let of = |blocks: u32, kv_len: u32, sms: u32| 1 << parts_log2(blocks, kv_len, [kv_len; 2], 2 * sms);
        let causal =
            |rows: u32, sms: u32| 1 << parts_log2(16 * rows, 64 * rows, [64 * rows, 32 * rows], 2 * sms);
        // 17 rows of blocks for 16.5 places: the longest block would take 1.8 times a place's share
        assert_eq!([causal(8, 132), causal(17, 132), causal(22, 132), causal(32, 132)], [2, 2, 2, 1]);
        assert_eq!([causal(8, 30), causal(17, 30)], [1, 1]);
        assert_eq!(of(16, 8192, 30), 4); // 64 of 60 places
        assert_eq!(of(64, 8192, 30), 1);
        assert_eq!(of(53, 8192, 30), 1, "seven in eight");
        assert_eq!(of(52, 8192, 30), 2);
        assert_eq!(of(1, 8192, 132), 8, "no more than that");
        assert_eq!([of(1, 384, 132), of(1, 385, 132), of(1, 1023, 132)], [1, 2, 4], "two tiles each");
        assert_eq!([of(1, 0, 132), of(0, 8192, 132)], [1, 8]);
        assert_eq!([partial_bytes(64, 0, 128), partial_bytes(64, 2, 128)], [0, 64 * 4 * 64 * 132 * 4]);
    }

    #[test]
    fn the_kernel_follows_types_formats_widths_and_queries() {
        let _turn = turn();
        for (q, format, types, columns) in [
            (DType::F32, KvFormat::F32, "f32", [64, 80, 128]),
            (DType::F16, KvFormat::F16, "f16", [64, 128, 128]),
            (DType::F32, KvFormat::F16, "f32_f16", [64, 128, 128]),
        ] {
            for (head_dim, few, many) in [(64, 64, columns[0]), (72, 128, columns[1]), (88, 128, columns[2])]
            {
                assert_eq!(launched(q, format, head_dim, 8), format!("attention_decode_d{few}_r4_{types}"));
                assert_eq!(launched(q, format, head_dim, 9), format!("attention_prefill_d{many}_{types}"));
            }
        }
        for (format, types) in [(KvFormat::BF16, "f32_coded"), (KvFormat::Q8_0, "f32_q8_0")] {
            for head_dim in [64, 72] {
                assert_eq!(
                    launched(DType::F32, format, head_dim, 1),
                    format!("attention_decode_d128_r1_{types}")
                );
                assert_eq!(
                    launched(DType::F32, format, head_dim, 9),
                    format!("attention_prefill_d128_{types}")
                );
            }
        }
    }

    #[test]
    fn blocks_that_are_all_held_at_once_are_paired_long_with_short() {
        assert_eq!(longest_first(16, 16, 2, 132), 8); // the ninth row is the second block of its multiprocessors
        assert_eq!(longest_first(32, 16, 2, 132), 16); // more than are resident
        assert_eq!(longest_first(16, 4, 2, 132), 4); // one for each multiprocessor at most
        assert_eq!(longest_first(8, 5, 2, 20), 2);
        assert_eq!(longest_first(30, 1, 2, 20), 0); // one row: the same in either order
    }

    #[test]
    fn few_queries_take_the_instance_of_their_rows() {
        for (rows, name) in [
            (1, "attention_decode_d128_r1_f32"),
            (2, "attention_decode_d128_r2_f32"),
            (3, "attention_decode_d128_r4_f32"),
            (64, "attention_decode_d128_r4_f32"),
        ] {
            assert_eq!(instance(&Kernels::of(Storage::F32).decode, 128, rows).spec.name, name);
        }
    }

    #[test]
    fn splits_fill_the_device_and_cover_the_keys() {
        assert_eq!(split(16, 8192, 20), (5, 1664)); // 80 blocks on 20 multiprocessors
        assert_eq!(split(16, 100, 20), (2, 64)); // never shorter than the least
        assert_eq!(split(1000, 8192, 20), (1, 8192)); // enough blocks without
        assert_eq!(split(1, 0, 20), (1, 64)); // no keys: one block writes zeros
        for kv_len in [1, 63, 64, 65, 1000, 32768] {
            for blocks in [1, 3, 8, 100] {
                let (splits, keys) = split(blocks, kv_len, 6);
                assert!(splits * keys >= kv_len && (splits - 1) * keys < kv_len, "{blocks} {kv_len}");
            }
        }
    }
}
