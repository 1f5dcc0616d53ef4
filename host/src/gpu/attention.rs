//! Which attention kernels, their grids, and the scratch memory of partial results.

use crate::cuda::{Arg, COUNTERS, CudaDevice, args};
use crate::kv::{KvFormat, KvView};
use crate::memory::DeviceBuffer;
use crate::ops::attention::{Problem, Strides};
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::attention::Types;
use kernels_gpu::attention::decode::{DECODE, DECODE_CODED, DECODE_Q8_0, Decode};
use kernels_gpu::attention::merge::partial_elements;
use kernels_gpu::attention::prefill::{
    PREFILL_CODED, PREFILL_D64, PREFILL_D128, PREFILL_Q8_0, QUERIES_PER_BLOCK,
};
use kernels_gpu::attention::textbook::{SCORES, SOFTMAX, TEXTBOOK_TILE, VALUES};

/// The most queries that the decode kernels take: from here on the prefill kernels' 64 rows a tile waste less than
/// reading K and V once for every four rows costs.
pub(crate) const MAX_DECODE_QUERIES: usize = 8;
/// Decode blocks that one multiprocessor of sm_61 holds: fewer leave it idle, more only add partial results.
const DECODE_BLOCKS_PER_SM: usize = 4;
/// The fewest keys of a split: below it merging costs as much as it saves. A multiple of the keys that a block has
/// in flight.
const MIN_SPLIT_KEYS: usize = 64;

/// The kernels for a problem.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plan {
    Prefill(KernelSpec),
    Decode { kernel: Decode, splits: usize, keys_per_split: usize },
}

pub(super) fn types(q: DType, kv: DType) -> Types {
    match (q, kv) {
        (DType::F16, _) => Types::F16,
        (_, DType::F16) => Types::F32WithF16,
        _ => Types::F32,
    }
}

fn plan(problem: &Problem, q: DType, kv: KvFormat, multiprocessors: u32) -> Plan {
    let wide = problem.head_dim > 64;
    let types = match kv {
        KvFormat::F16 => types(q, DType::F16),
        _ => types(q, DType::F32),
    };
    if problem.q_len > MAX_DECODE_QUERIES {
        let plain = if wide { PREFILL_D128 } else { PREFILL_D64 };
        return Plan::Prefill(match kv {
            KvFormat::F32 | KvFormat::F16 => plain[types as usize],
            KvFormat::Float16(_) => PREFILL_CODED,
            KvFormat::Q8_0 => PREFILL_Q8_0,
        });
    }
    let rows = problem.group() * problem.q_len;
    let kernel = match kv {
        KvFormat::F32 | KvFormat::F16 => decode_kernel(&DECODE[types as usize], problem.head_dim, rows),
        KvFormat::Float16(_) => DECODE_CODED[by_rows(rows)],
        KvFormat::Q8_0 => DECODE_Q8_0[by_rows(rows)],
    };
    let blocks = problem.batch * problem.num_kv_heads * rows.div_ceil(kernel.rows as usize);
    let (splits, keys_per_split) = split(blocks, problem.kv_len, multiprocessors);
    Plan::Decode { kernel, splits, keys_per_split }
}

/// Of a type's instances the one for so many rows of a kv head.
pub(super) fn decode_kernel(instances: &[Decode; 6], head_dim: usize, rows: usize) -> Decode {
    instances[3 * usize::from(head_dim > 64) + by_rows(rows)]
}

/// Which of the instances for 1, 2 and 4 rows.
fn by_rows(rows: usize) -> usize {
    match rows {
        ..=1 => 0,
        2 => 1,
        _ => 2,
    }
}

/// Into how many splits the keys go, and how long they are, where one split makes `blocks` blocks; each of those has a
/// counter if there are more splits.
pub(super) fn split(blocks: usize, kv_len: usize, multiprocessors: u32) -> (usize, usize) {
    let room = if blocks > COUNTERS { 1 } else { DECODE_BLOCKS_PER_SM * multiprocessors as usize };
    let wanted = room.div_ceil(blocks.max(1));
    let keys = kv_len.div_ceil(wanted.max(1)).next_multiple_of(MIN_SPLIT_KEYS).max(MIN_SPLIT_KEYS);
    (kv_len.div_ceil(keys).max(1), keys)
}

/// How many of the rows of a prefill grid [heads, rows] come longest first: all, so that short blocks fill the gaps at
/// the end. Where a device holds all blocks at once there are no gaps to fill: then only the first block of each
/// multiprocessor, and its second, shortest first, is as much shorter.
fn longest_first(heads: u32, rows: u32, per_multiprocessor: u32, multiprocessors: u32) -> u32 {
    let held = u64::from(per_multiprocessor) * u64::from(multiprocessors);
    if u64::from(heads) * u64::from(rows) <= held { rows.min(multiprocessors / heads) } else { rows }
}

pub(super) fn words(strides: Strides) -> [u32; 3] {
    [strides.batch, strides.head, strides.row].map(|stride| stride as u32)
}

/// The strides of out, q, k and v, as all attention kernels take them.
pub(super) fn strides(problem: &Problem) -> Vec<Arg> {
    let all = [problem.out, problem.q, problem.k, problem.v].map(words);
    all.as_flattened().iter().map(|&stride| Arg::from(stride)).collect()
}

pub(crate) fn attention(
    device: &CudaDevice,
    out: TensorMut,
    q: &Tensor,
    [k, v]: [KvView; 2],
    past: Option<&Tensor>,
    problem: &Problem,
) -> Result<()> {
    let heads = problem.batch * problem.num_q_heads;
    if heads * problem.q_len == 0 {
        return Ok(());
    }
    let (q_len, kv_len, head_dim) = (problem.q_len as u32, problem.kv_len as u32, problem.head_dim as u32);
    let (group, causal) = (problem.group() as u32, u32::from(problem.causal));
    let scale_log2 = problem.scale * std::f32::consts::LOG2_E;
    let strides = strides(problem);
    let plan = plan(problem, q.dtype(), k.format, device.properties().multiprocessors);
    let more = match k.format {
        KvFormat::F32 | KvFormat::F16 => vec![],
        KvFormat::Float16(exponent_bits) => vec![Arg::from(exponent_bits)],
        KvFormat::Q8_0 => [k, v].map(|x| Arg::from(x.scales.map_or(0, Tensor::address))).to_vec(),
    };
    let (o, q, k, v) = (out.address(), q.address(), k.values.address(), v.values.address());
    match plan {
        Plan::Prefill(spec) => {
            let (heads, rows) = (heads as u32, q_len.div_ceil(QUERIES_PER_BLOCK));
            let num_q_heads = problem.num_q_heads as u32;
            let multiprocessors = device.properties().multiprocessors;
            let longest_first = longest_first(heads, rows, spec.min_blocks, multiprocessors);
            let arguments = [
                args![o, q, k, v],
                &strides[..],
                args![num_q_heads, group, q_len, kv_len, head_dim, scale_log2, causal, longest_first],
                &more[..],
            ]
            .concat();
            // SAFETY: `ops::attention_into` has checked types, shapes, the alignment of first elements and strides,
            // spans below 2³¹ and that all lie on this stream; a TensorMut overlaps nothing.
            unsafe { device.launch_args(&spec, [heads, rows, 1], &arguments) }
        }
        Plan::Decode { kernel, splits, keys_per_split } => {
            let rows = heads * problem.q_len;
            let partial_bytes = rows * splits * partial_elements(kernel.head_dim) as usize * size_of::<f32>();
            let partial = DeviceBuffer::uninitialized(device, if splits > 1 { partial_bytes } else { 0 })?;
            let num_kv_heads = problem.num_kv_heads as u32;
            let kv_heads = (problem.batch * problem.num_kv_heads) as u32;
            let grid = [splits as u32, kv_heads, (group * q_len).div_ceil(kernel.rows)];
            let arguments = [
                args![o, partial.address(), device.stream().counters(), q, k, v],
                &strides[..],
                args![
                    num_kv_heads,
                    group,
                    q_len,
                    kv_len,
                    head_dim,
                    keys_per_split as u32,
                    scale_log2,
                    causal,
                    past.map_or(0, Tensor::address),
                ],
                &more[..],
            ]
            .concat();
            // SAFETY: as above; `past` is one number; `partial` has a record for each row and split and is freed behind the
            // launch; `split` makes no more groups of blocks than the stream has counters.
            unsafe { device.launch_args(&kernel.spec, grid, &arguments) }
        }
    }
}

/// The three-pass attention that benches compare with; f32 and contiguous.
pub(crate) fn textbook(
    device: &CudaDevice,
    out: TensorMut,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    problem: &Problem,
) -> Result<()> {
    let heads = (problem.batch * problem.num_q_heads) as u32;
    let (q_len, kv_len, head_dim) = (problem.q_len as u32, problem.kv_len as u32, problem.head_dim as u32);
    if heads * q_len == 0 {
        return Ok(());
    }
    let elements = heads as usize * problem.q_len * problem.kv_len;
    let scores = DeviceBuffer::uninitialized(device, elements * size_of::<f32>())?;
    let (s, group, tiles) = (scores.address(), problem.group() as u32, q_len.div_ceil(TEXTBOOK_TILE));
    // SAFETY: `ops::attention::textbook_into` has checked that all tensors are contiguous f32 of the problem's shapes
    // on this stream; `scores` has an element for each query and key and is freed behind the launches.
    unsafe {
        let causal = u32::from(problem.causal);
        let arguments =
            args![s, q.address(), k.address(), group, q_len, kv_len, head_dim, problem.scale, causal];
        device.launch_args(&SCORES, [kv_len.div_ceil(TEXTBOOK_TILE), tiles, heads], arguments)?;
        device.launch_args(&SOFTMAX, [heads * q_len, 1, 1], args![s, kv_len])?;
        let arguments = args![out.address(), s, v.address(), group, q_len, kv_len, head_dim];
        device.launch_args(&VALUES, [head_dim.div_ceil(TEXTBOOK_TILE), tiles, heads], arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(heads: (usize, usize), q_len: usize, kv_len: usize, head_dim: usize) -> Problem {
        let strides = Strides { batch: 0, head: 0, row: 0 };
        Problem {
            batch: 1,
            num_q_heads: heads.0,
            num_kv_heads: heads.1,
            q_len,
            kv_len,
            head_dim,
            scale: 1.0,
            causal: true,
            out: strides,
            q: strides,
            k: strides,
            v: strides,
        }
    }

    #[test]
    fn many_queries_take_the_prefill_kernel_of_their_width() {
        assert_eq!(
            plan(&problem((2, 1), 9, 9, 64), DType::F32, KvFormat::F32, 20),
            Plan::Prefill(PREFILL_D64[0])
        );
        for (q, kv, kernel) in [
            (DType::F16, KvFormat::F16, PREFILL_D128[1]),
            (DType::F32, KvFormat::F16, PREFILL_D128[2]),
            (DType::F32, KvFormat::BF16, PREFILL_CODED),
            (DType::F32, KvFormat::Q8_0, PREFILL_Q8_0),
        ] {
            assert_eq!(plan(&problem((2, 1), 9, 9, 72), q, kv, 20), Plan::Prefill(kernel));
        }
    }

    #[test]
    fn blocks_that_are_all_held_at_once_are_paired_long_with_short() {
        assert_eq!(longest_first(16, 16, 2, 132), 8); // the ninth row is the second block of its multiprocessors
        assert_eq!(longest_first(32, 16, 2, 132), 16); // more than are held
        assert_eq!(longest_first(16, 4, 2, 132), 4); // one for each multiprocessor at most
        assert_eq!(longest_first(8, 5, 2, 20), 2);
        assert_eq!(longest_first(30, 1, 2, 20), 0); // one row: the same in either order
    }

    #[test]
    fn few_queries_take_the_decode_kernel_of_their_rows() {
        for (group, q_len, name) in [
            (1, 1, "attention_decode_d128_r1_f32"),
            (2, 1, "attention_decode_d128_r2_f32"),
            (1, 3, "attention_decode_d128_r4_f32"),
            (8, 8, "attention_decode_d128_r4_f32"),
        ] {
            match plan(&problem((group * 2, 2), q_len, 100, 128), DType::F32, KvFormat::F32, 20) {
                Plan::Decode { kernel, .. } => assert_eq!(kernel.spec.name, name),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn splits_fill_the_device_and_cover_the_keys() {
        assert_eq!(split(16, 8192, 20), (5, 1664)); // 80 blocks on 20 multiprocessors
        assert_eq!(split(16, 100, 20), (2, 64)); // never shorter than the least
        assert_eq!(split(1000, 8192, 20), (1, 8192)); // enough blocks without
        assert_eq!(split(1, 0, 20), (1, 64)); // no keys: one block still writes zeros
        for kv_len in [1, 63, 64, 65, 1000, 32768] {
            for blocks in [1, 3, 8, 100] {
                let (splits, keys) = split(blocks, kv_len, 6);
                assert!(splits * keys >= kv_len && (splits - 1) * keys < kv_len, "{blocks} {kv_len}");
            }
        }
    }
}
