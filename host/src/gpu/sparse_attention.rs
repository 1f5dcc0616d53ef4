//! Which kernels of block-sparse attention, their lists and grids, and the scratch memory of partial results.

use super::attention::{MAX_DECODE_QUERIES, split, strides, types, words};
use crate::block_mask::{BlockMask, DecodeLists, PrefillLists};
use crate::cuda::{CudaDevice, args};
use crate::memory::DeviceBuffer;
use crate::ops::attention::{Problem, Strides};
use crate::{DType, Device, Result, Tensor, TensorMut};
use kernels_gpu::attention::merge::partial_elements;
use kernels_gpu::attention::sparse::block_mean::BLOCK_MEAN;
use kernels_gpu::attention::sparse::decode::SPARSE_DECODE;
use kernels_gpu::attention::sparse::prefill::{COMBINE_F16, COMBINE_F32, SPARSE_D64, SPARSE_D128};
use kernels_gpu::attention::sparse::{GROUP, QUERIES};

/// Operations that one launch may take for each multiprocessor: at 256 a cycle, 1.5 GHz and half of the peak that is
/// about 60 ms, so that a card that also drives a display is never held up for long.
const MAX_LAUNCH_FLOPS: f64 = 12e9;
/// Blocks of a grid along y, at most.
const MAX_ITEMS: usize = 65535;

/// A mask's lists in device memory.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    heads: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Prefill { items: Tensor, tiles: Tensor, patterns: Tensor, splits: Tensor, slots: u32, work: Vec<u32> },
    Decode { starts: Tensor, keys: Tensor, seen: Tensor, longest: usize },
}

impl Lists {
    pub fn new(mask: &BlockMask, device: &Device) -> Result<Self> {
        let upload = |words: &[u32]| Tensor::from_slice(words, [words.len()], device);
        let kind = if mask.grid().q_len() > MAX_DECODE_QUERIES {
            let lists = PrefillLists::new(mask);
            let items: Vec<u32> = lists.items.iter().flat_map(|item| item.words()).collect();
            let splits: Vec<u32> = lists.splits.iter().flat_map(|split| split.words()).collect();
            Kind::Prefill {
                items: upload(&items)?,
                tiles: upload(&lists.tiles)?,
                patterns: upload(&lists.patterns)?,
                splits: upload(&splits)?,
                slots: lists.slots,
                work: lists.items.iter().map(|item| item.tiles).collect(),
            }
        } else {
            let lists = DecodeLists::new(mask);
            Kind::Decode {
                starts: upload(&lists.starts)?,
                keys: upload(&lists.keys)?,
                seen: upload(&lists.seen)?,
                longest: lists.longest,
            }
        };
        Ok(Self { heads: mask.heads(), kind })
    }

    /// Device memory.
    pub fn bytes(&self) -> usize {
        let bytes =
            |lists: &[&Tensor]| lists.iter().map(|list| list.shape().elements() * size_of::<u32>()).sum();
        match &self.kind {
            Kind::Prefill { items, tiles, patterns, splits, .. } => bytes(&[items, tiles, patterns, splits]),
            Kind::Decode { starts, keys, seen, .. } => bytes(&[starts, keys, seen]),
        }
    }
}

/// The ends of the launches that items of so many tiles go into, each tile `flops`: none above the most, or of one item.
fn launches(work: &[u32], flops: f64, most: f64) -> Vec<usize> {
    let (mut ends, mut begun, mut sum) = (Vec::new(), 0, 0.0);
    for (i, &tiles) in work.iter().enumerate() {
        let own = f64::from(tiles) * flops;
        if i > begun && (sum + own > most || i - begun == MAX_ITEMS) {
            ends.push(i);
            (begun, sum) = (i, 0.0);
        }
        sum += own;
    }
    ends.push(work.len());
    ends
}

pub(crate) fn attention(
    device: &CudaDevice,
    out: TensorMut,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    problem: &Problem,
    lists: &Lists,
) -> Result<()> {
    if problem.batch * problem.num_q_heads * problem.q_len == 0 {
        return Ok(());
    }
    match &lists.kind {
        Kind::Prefill { .. } => prefill(device, out, q, k, v, problem, lists),
        Kind::Decode { .. } => decode(device, out, q, k, v, problem, lists),
    }
}

fn prefill(
    device: &CudaDevice,
    out: TensorMut,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    problem: &Problem,
    lists: &Lists,
) -> Result<()> {
    let Kind::Prefill { items, tiles, patterns, splits, slots, work } = &lists.kind else { return Ok(()) };
    let wide = problem.head_dim > 64;
    let d = if wide { 128 } else { 64 };
    let spec = if wide { SPARSE_D128 } else { SPARSE_D64 }[types(q.dtype(), k.dtype()) as usize];
    let (q_len, head_dim) = (problem.q_len as u32, problem.head_dim as u32);
    let last_key = problem.kv_len.saturating_sub(1) as u32;
    let sharing = problem.num_q_heads / lists.heads;
    let columns = problem.batch * sharing; // blocks of one item
    let record = QUERIES * partial_elements(d) as usize;
    let partial = DeviceBuffer::uninitialized(device, columns * *slots as usize * record * size_of::<f32>())?;
    let strides = strides(problem);
    let o = out.address();

    let flops = (4 * QUERIES * QUERIES * problem.head_dim * columns) as f64;
    let most = MAX_LAUNCH_FLOPS * f64::from(device.properties().multiprocessors);
    let mut first = 0;
    for end in launches(work, flops, most) {
        let arguments = [
            args![
                o,
                partial.address(),
                items.address(),
                tiles.address(),
                patterns.address(),
                q.address(),
                k.address(),
                v.address(),
            ],
            &strides[..],
            args![
                first as u32,
                *slots,
                sharing as u32,
                problem.group() as u32,
                q_len,
                last_key,
                head_dim,
                problem.scale * std::f32::consts::LOG2_E,
            ],
        ]
        .concat();
        let grid = [sharing as u32, (end - first) as u32, problem.batch as u32];
        // SAFETY: `ops::sparse_attention_into` has checked types, shapes, the alignment of first elements and strides,
        // spans below 2³¹, that lengths and heads are the mask's and that all lie on this stream; a TensorMut overlaps
        // nothing. `PrefillLists` made the lists for these lengths; `partial` has a record for each slot and column, and
        // is freed behind the launches.
        unsafe { device.launch_args(&spec, grid, &arguments)? };
        first = end;
    }
    let num_splits = splits.shape().elements() as u32 / kernels_gpu::attention::sparse::SPLIT_WORDS;
    if num_splits == 0 {
        return Ok(());
    }
    let spec = if out.dtype() == DType::F16 { COMBINE_F16 } else { COMBINE_F32 };
    let arguments = [
        args![o, partial.address(), splits.address()],
        &strides[..3],
        args![*slots, sharing as u32, q_len, head_dim, d],
    ]
    .concat();
    let grid = [QUERIES as u32 * num_splits, columns as u32, 1];
    // SAFETY: as above; the launches before have written all records.
    unsafe { device.launch_args(&spec, grid, &arguments) }
}

fn decode(
    device: &CudaDevice,
    out: TensorMut,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    problem: &Problem,
    lists: &Lists,
) -> Result<()> {
    let Kind::Decode { starts, keys, seen, longest } = &lists.kind else { return Ok(()) };
    let units = lists.heads.max(problem.num_kv_heads);
    let group = problem.num_q_heads / units;
    let types = types(q.dtype(), k.dtype());
    let kernel = super::attention::decode_kernel(
        &SPARSE_DECODE[types as usize],
        problem.head_dim,
        group * problem.q_len,
    );
    let blocks = problem.batch * units * (group * problem.q_len).div_ceil(kernel.rows as usize);
    let (splits, keys_per_split) = split(blocks, longest * GROUP, device.properties().multiprocessors);
    let rows = problem.batch * problem.num_q_heads * problem.q_len;
    let record = partial_elements(kernel.head_dim) as usize * size_of::<f32>();
    let partial = DeviceBuffer::uninitialized(device, if splits > 1 { rows * splits * record } else { 0 })?;
    let (q_len, kv_len, head_dim) = (problem.q_len as u32, problem.kv_len as u32, problem.head_dim as u32);
    let strides = strides(problem);
    let arguments = [
        args![
            out.address(),
            partial.address(),
            device.stream().counters(),
            starts.address(),
            keys.address(),
            seen.address(),
            q.address(),
            k.address(),
            v.address(),
        ],
        &strides[..],
        args![
            units as u32,
            (units / problem.num_kv_heads) as u32,
            (units / lists.heads) as u32,
            group as u32,
            q_len,
            kv_len,
            head_dim,
            keys_per_split as u32,
            problem.scale * std::f32::consts::LOG2_E,
        ],
    ]
    .concat();
    let grid = [splits as u32, (problem.batch * units) as u32, (group as u32 * q_len).div_ceil(kernel.rows)];
    // SAFETY: as in `prefill`, with `DecodeLists`; the units are a multiple of both kinds of heads, as has been checked.
    unsafe { device.launch_args(&kernel.spec, grid, &arguments) }
}

pub(crate) fn block_mean(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    strides: Strides,
    [batch, heads, rows, head_dim]: [usize; 4],
    block: usize,
) -> Result<()> {
    let spec = BLOCK_MEAN[usize::from(x.dtype() == DType::F16)];
    let [xb, xh, xr] = words(strides);
    let (heads, all) = (heads as u32, (batch * heads) as u32);
    let arguments = args![
        y.address(),
        x.address(),
        xb,
        xh,
        xr,
        heads,
        rows as u32,
        head_dim as u32,
        block.min(rows) as u32,
    ];
    // SAFETY: `ops::block_mean_into` has checked types, shapes, strides, sizes and the device; neither tensor is empty.
    unsafe { device.launch_args(&spec, [rows.div_ceil(block) as u32, all, 1], arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_cut_by_work_and_by_number() {
        assert_eq!(launches(&[4, 3, 2, 1], 1.0, 100.0), [4]);
        assert_eq!(launches(&[4, 3, 2, 1], 1.0, 5.0), [1, 3, 4]);
        assert_eq!(launches(&[9, 9], 1.0, 5.0), [1, 2]); // an item is the least
        assert_eq!(launches(&[], 1.0, 5.0), [0]);
        let many = vec![0; MAX_ITEMS + 1];
        assert_eq!(launches(&many, 1.0, 5.0), [MAX_ITEMS, MAX_ITEMS + 1]);
    }
}
