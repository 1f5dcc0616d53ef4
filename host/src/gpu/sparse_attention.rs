//! Block-sparse attention: kernels, lists, grids and the scratch memory for partial results.

use super::DeviceElement;
use super::attention::{MAX_DECODE_QUERIES, by_width, instance, scale_log2, split, strides};
use super::attention_backward::Listed;
use crate::block_mask::{BackwardLists, BlockMask, DecodeLists, PrefillLists, TileList};
use crate::cuda::{CudaDevice, MAX_GRID};
use crate::memory::DeviceBuffer;
use crate::problem::attention::{HeadStrides, Problem};
use crate::{DType, Device, Result, Tensor, TensorMut};
use cuda_std::KernelSpec;
use kernels_gpu::attention::merge::partial_elements;
use kernels_gpu::attention::sparse::block_mean::{
    BlockMean, attention_block_mean_f16, attention_block_mean_f32,
};
use kernels_gpu::attention::sparse::decode::SparseDecode;
use kernels_gpu::attention::sparse::prefill::{Combine, SparsePrefill};
use kernels_gpu::attention::sparse::{self, GROUP, Kernels, SPLIT_WORDS, WARPS};

/// The most operations of a launch, per multiprocessor. At 256 per clock, 1.5 GHz and half of the peak that is about 60 ms,
/// so that a card that also drives a display stays responsive.
const MAX_LAUNCH_FLOPS: f64 = 12e9;
/// The most blocks of a grid along y and along z.
const MAX_BLOCKS: usize = MAX_GRID[1] as usize;

/// A mask's lists in device memory.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    heads: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Prefill {
        warps: usize,
        items: Tensor,
        tiles: Tensor,
        patterns: Tensor,
        splits: Tensor,
        slots: u32,
        work: Vec<u32>,
    },
    Decode {
        starts: Tensor,
        keys: Tensor,
        seen: Tensor,
        longest: usize,
    },
}

impl Lists {
    /// The prefill kernels' are for blocks of `warps` warps, one of [`WARPS`], or of as many as suit the mask.
    pub fn new(mask: &BlockMask, warps: Option<usize>, device: &Device) -> Result<Self> {
        let upload = |words: &[u32]| Tensor::from_slice(words, [words.len()], device);
        let kind = if mask.grid().q_len() > MAX_DECODE_QUERIES {
            let lists = PrefillLists::new(mask, warps);
            let items: Vec<u32> = lists.items.iter().flat_map(|item| item.words()).collect();
            let splits: Vec<u32> = lists.splits.iter().flat_map(|split| split.words()).collect();
            Kind::Prefill {
                warps: lists.warps,
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

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        let bytes =
            |lists: &[&Tensor]| lists.iter().map(|list| list.shape().elements() * size_of::<u32>()).sum();
        match &self.kind {
            Kind::Prefill { items, tiles, patterns, splits, .. } => bytes(&[items, tiles, patterns, splits]),
            Kind::Decode { starts, keys, seen, .. } => bytes(&[starts, keys, seen]),
        }
    }
}

/// The lists of the gradients' kernels.
pub(crate) fn listed(mask: &BlockMask, device: &Device) -> Result<Listed> {
    let BackwardLists { queries, keys, patterns } = BackwardLists::new(mask);
    let upload = |words: &[u32]| Tensor::from_slice(words, [words.len()], device);
    let list = |list: &TileList| Ok([upload(&list.starts)?, upload(&list.tiles)?]);
    let (queries, keys) = (list(&queries)?, list(&keys)?);
    Ok(Listed { mask_heads: mask.heads(), queries, keys, patterns: upload(&patterns)? })
}

/// Their device memory.
pub(crate) fn listed_bytes(Listed { queries, keys, patterns, .. }: &Listed) -> usize {
    let all = queries.iter().chain(keys).chain([patterns]);
    all.map(|list| list.shape().elements() * size_of::<u32>()).sum()
}

/// The greatest number that divides both.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The ends of the launches for items of these numbers of tiles, with `flops` per tile. A launch has at most `most`
/// operations, or one item.
fn launches(work: &[u32], flops: f64, most: f64) -> Vec<usize> {
    let (mut ends, mut begun, mut sum) = (Vec::new(), 0, 0.0);
    for (i, &tiles) in work.iter().enumerate() {
        let own = f64::from(tiles) * flops;
        if i > begun && (sum + own > most || i - begun == MAX_BLOCKS) {
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
    match (q.dtype(), k.dtype()) {
        (DType::F16, _) => launch_sparse(device, &sparse::OF_F16, out, q, [k, v], problem, lists),
        (_, DType::F16) => launch_sparse(device, &sparse::OF_F32_F16, out, q, [k, v], problem, lists),
        _ => launch_sparse(device, &sparse::OF_F32, out, q, [k, v], problem, lists),
    }
}

fn launch_sparse<Q: DeviceElement, Kv: DeviceElement>(
    device: &CudaDevice,
    kernels: &Kernels<Q, Kv>,
    out: TensorMut,
    q: &Tensor,
    [k, v]: [&Tensor; 2],
    problem: &Problem,
    lists: &Lists,
) -> Result<()> {
    let tensors = Pointers { out: out.ptr(), q: q.ptr(), k: k.ptr(), v: v.ptr() };
    match &lists.kind {
        Kind::Prefill { .. } => prefill(device, kernels, tensors, problem, lists),
        Kind::Decode { .. } => decode(device, kernels, tensors, problem, lists),
    }
}

/// The tensors' device addresses.
#[derive(Clone, Copy)]
struct Pointers<Q, Kv> {
    out: *mut Q,
    q: *const Q,
    k: *const Kv,
    v: *const Kv,
}

fn prefill<Q: Copy, Kv: Copy>(
    device: &CudaDevice,
    kernels: &Kernels<Q, Kv>,
    Pointers { out, q, k, v }: Pointers<Q, Kv>,
    problem: &Problem,
    lists: &Lists,
) -> Result<()> {
    let Kind::Prefill { warps, items, tiles, patterns, splits, slots, work } = &lists.kind else {
        return Ok(());
    };
    let Some(of_warps) = WARPS.iter().position(|known| known == warps) else { return Ok(()) };
    let width = by_width(problem.head_dim);
    let (spec, d) = (&kernels.prefill[of_warps][width], [64, 128][width]);
    let sharing = problem.num_q_heads / lists.heads;
    let columns = problem.batch * sharing; // blocks per item
    // The heads that read the same keys are neighbours in the grid. Of the others only a few run at a time, so that their keys
    // stay in the L2.
    let together = match gcd(sharing, problem.group()) {
        together if columns / together <= MAX_BLOCKS => together,
        _ => sharing,
    };
    let queries = warps * GROUP;
    let record = queries * partial_elements(d) as usize;
    let partial = DeviceBuffer::uninitialized(device, columns * *slots as usize * record * size_of::<f32>())?;
    let parameters = SparsePrefill {
        out,
        partial: partial.ptr(),
        items: items.ptr(),
        tiles: tiles.ptr(),
        patterns: patterns.ptr(),
        q,
        k,
        v,
        out_strides: strides(problem.out),
        q_strides: strides(problem.q),
        k_strides: strides(problem.k),
        v_strides: strides(problem.v),
        first_item: 0,
        parts: (sharing / together) as u32,
        slots: *slots,
        sharing: sharing as u32,
        group: problem.group() as u32,
        q_len: problem.q_len as u32,
        last_key: problem.kv_len.saturating_sub(1) as u32,
        head_dim: problem.head_dim as u32,
        scale_log2: scale_log2(problem),
    };

    let flops = (4 * queries * 4 * GROUP * problem.head_dim * columns) as f64;
    let most = MAX_LAUNCH_FLOPS * f64::from(device.properties().multiprocessors);
    let mut first = 0;
    for end in launches(work, flops, most) {
        let parameters = SparsePrefill { first_item: first as u32, ..parameters };
        let grid = [together as u32, (end - first) as u32, (columns / together) as u32];
        // SAFETY: `ops::sparse_attention_into` has checked types, shapes, the alignment of first elements and strides, spans
        // below 2³¹, that lengths and heads are the mask's and that all tensors are on this stream; a TensorMut overlaps
        // nothing. `PrefillLists` made the lists for these lengths. `partial` has a record for each slot and column, and is
        // freed after the launches.
        unsafe { device.launch(spec, grid, &parameters)? };
        first = end;
    }
    let num_splits = splits.shape().elements() as u32 / SPLIT_WORDS;
    if num_splits == 0 {
        return Ok(());
    }
    let SparsePrefill { out_strides, slots, sharing, q_len, head_dim, .. } = parameters;
    let (partial, splits) = (partial.ptr(), splits.ptr());
    let parameters = Combine { out, partial, splits, out_strides, slots, sharing, q_len, head_dim, d };
    let grid = [num_splits, columns as u32, queries as u32];
    // SAFETY: `ops::sparse_attention_into` has checked the output's shape, strides, alignment and stream; a TensorMut overlaps
    // nothing. `PrefillLists` made the splits for these lengths, and `partial` lives until after the launch. The previous launches on this stream have written all records.
    unsafe { device.launch(&kernels.combine, grid, &parameters) }
}

fn decode<Q: Copy, Kv: Copy>(
    device: &CudaDevice,
    kernels: &Kernels<Q, Kv>,
    Pointers { out, q, k, v }: Pointers<Q, Kv>,
    problem: &Problem,
    lists: &Lists,
) -> Result<()> {
    let Kind::Decode { starts, keys, seen, longest } = &lists.kind else { return Ok(()) };
    let units = lists.heads.max(problem.num_kv_heads);
    let group = problem.num_q_heads / units;
    let kernel = instance(&kernels.decode, problem.head_dim, group * problem.q_len);
    let groups = (group * problem.q_len).div_ceil(kernel.rows as usize);
    let blocks = problem.batch * units * groups;
    let (splits, keys_per_split) = split(blocks, longest * GROUP, device.properties().multiprocessors);
    let rows = problem.batch * problem.num_q_heads * problem.q_len;
    let record = partial_elements(kernel.head_dim) as usize * size_of::<f32>();
    let partial = DeviceBuffer::uninitialized(device, if splits > 1 { rows * splits * record } else { 0 })?;
    let parameters = SparseDecode {
        out,
        partial: partial.ptr(),
        counters: device.stream().counters() as *mut u32,
        starts: starts.ptr(),
        keys: keys.ptr(),
        seen: seen.ptr(),
        q,
        k,
        v,
        out_strides: strides(problem.out),
        q_strides: strides(problem.q),
        k_strides: strides(problem.k),
        v_strides: strides(problem.v),
        units: units as u32,
        units_per_kv_head: (units / problem.num_kv_heads) as u32,
        units_per_mask: (units / lists.heads) as u32,
        group: group as u32,
        q_len: problem.q_len as u32,
        kv_len: problem.kv_len as u32,
        head_dim: problem.head_dim as u32,
        keys_per_split: keys_per_split as u32,
        scale_log2: scale_log2(problem),
    };
    let grid = [splits as u32, (problem.batch * units) as u32, groups as u32];
    // SAFETY: `ops::sparse_attention_into` has checked types, shapes, alignment, spans below 2³¹, that lengths and heads are the
    // mask's and that all tensors are on this stream; a TensorMut overlaps nothing. `DecodeLists` made the lists. The units are a multiple of both kinds of heads, which was checked.
    // `split` gives no more groups of blocks than the stream has counters.
    unsafe { device.launch(&kernel.spec, grid, &parameters) }
}

pub(crate) fn block_mean(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    x_strides: HeadStrides,
    dims: [usize; 4],
    block: usize,
) -> Result<()> {
    match x.dtype() {
        DType::F16 => block_mean_of(device, &attention_block_mean_f16, y, x, x_strides, dims, block),
        _ => block_mean_of(device, &attention_block_mean_f32, y, x, x_strides, dims, block),
    }
}

fn block_mean_of<T: DeviceElement>(
    device: &CudaDevice,
    spec: &KernelSpec<BlockMean<T>>,
    y: TensorMut,
    x: &Tensor,
    x_strides: HeadStrides,
    [batch, heads, rows, head_dim]: [usize; 4],
    block: usize,
) -> Result<()> {
    let parameters = BlockMean {
        y: y.ptr(),
        x: x.ptr(),
        x_strides: strides(x_strides),
        heads: heads as u32,
        rows: rows as u32,
        head_dim: head_dim as u32,
        block: block.min(rows) as u32,
    };
    let grid = [rows.div_ceil(block) as u32, (batch * heads) as u32, 1];
    // SAFETY: `ops::block_mean_into` has checked types, shapes, strides, sizes and the device; neither tensor is empty.
    unsafe { device.launch(spec, grid, &parameters) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_cut_by_work_and_by_number() {
        assert_eq!(launches(&[4, 3, 2, 1], 1.0, 100.0), [4]);
        assert_eq!(launches(&[4, 3, 2, 1], 1.0, 5.0), [1, 3, 4]);
        assert_eq!(launches(&[9, 9], 1.0, 5.0), [1, 2]); // a launch has at least one item
        assert_eq!(launches(&[], 1.0, 5.0), [0]);
        let many = vec![0; MAX_BLOCKS + 1];
        assert_eq!(launches(&many, 1.0, 5.0), [MAX_BLOCKS, MAX_BLOCKS + 1]);
    }
}
