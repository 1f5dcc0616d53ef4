//! Attention of a long prompt's queries over the tiles of keys that weigh most.

use super::attention::{check_head_dim, strides, uneven};
use super::check::Check;
use super::paged_attention::PAGE;
use crate::problem::attention::{Attention, HeadStrides, Problem};
use crate::problem::chosen_attention::{KEYS_PER_CHOICE, QUERIES_PER_CHOICE, SequenceKv, tiles_seen};
use crate::{DType, Device, Error, Result, Tensor, TensorMut, cpu, gpu};
use kernels_gpu::attention::chosen::LIST_EXTRA;

/// The tiles of [`KEYS_PER_CHOICE`] keys that each block of [`QUERIES_PER_CHOICE`] queries of each head reads, made by [`choose_tiles`].
#[derive(Clone, Debug)]
pub struct KeyTiles {
    /// For each head and block the number of its tiles, these in ascending order, and the last one again: [num_q_heads, blocks, tiles +
    /// [`LIST_EXTRA`]] u32
    pub(crate) lists: Tensor,
    q_len: usize,
    kv_len: usize,
}

impl KeyTiles {
    /// The tiles of a block of a head, in ascending order. Waits for the device.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is no such head or block.
    pub fn of_block(&self, head: usize, block: usize) -> Result<Vec<u32>> {
        let list = self.lists.narrow(0, head, 1)?.narrow(1, block, 1)?.to_vec::<u32>()?;
        Ok(list[1..][..list[0] as usize].to_vec())
    }

    /// The number of tiles that are read, of those that a query of their block may attend to. Waits for the device.
    ///
    /// # Errors
    /// A device error.
    pub fn count(&self) -> Result<[usize; 2]> {
        let &[heads, blocks, _] = self.lists.dims() else { return Ok([0; 2]) };
        let numbers = self.lists.narrow(2, 0, 1)?.to_vec::<u32>()?;
        let seen = |block: usize| tiles_seen(block, self.q_len, self.kv_len);
        Ok([numbers.iter().map(|&n| n as usize).sum(), heads * (0..blocks).map(seen).sum::<usize>()])
    }
}

/// Chooses the tiles of keys that a sequence's last queries read: for each head and block of [`QUERIES_PER_CHOICE`] queries the fewest that have
/// `share` of the softmax of its sampled queries, one in 16, whose scores are exact.
///
/// `q`: [num_q_heads, q_len, head_dim] f32, the queries of the last q_len of `kv.len` tokens. `local`: [ceil(q_len /
/// [`QUERIES_PER_CHOICE`])] u32, for each block the first of the keys before its own that it reads in any case; it also reads the first tile
/// in any case. From a share of 1 on all tiles are taken. Waits for no device.
///
/// Sources: Zhu et al. 2024, "SampleAttention" (sampled queries stand for their neighbours); Lai et al. 2025, "FlexPrefill", section 3.2 (a
/// share of the softmax decides); Xiao et al. 2023, "Efficient streaming language models with attention sinks" (the first keys).
///
/// ```
/// use pascaline::kv::{KvFormat, KvTensor};
/// use pascaline::ops::{self, SequenceKv};
/// use pascaline::{DType, Device, Tensor};
/// let cpu = Device::Cpu;
/// // 512 keys, of which those from number 128 on are like the queries
/// let ramp: Vec<f32> = (0..512).flat_map(|key| [if key / 128 == 1 { 4.0 } else { 0.0 }; 16]).collect();
/// # let [k, v] = filled(&ramp, &cpu)?;
/// # fn filled(values: &[f32], device: &Device) -> pascaline::Result<[KvTensor; 2]> {
/// #     let room = || KvTensor::uninitialized([512, 1, 16], KvFormat::F32, device);
/// #     let (mut k, mut v) = (room()?, room()?);
/// #     let rows = Tensor::from_slice(values, [512, 1, 16], device)?;
/// #     let qkv = ops::cat(&[rows.clone(), rows.clone(), rows], 1)?;
/// #     let (cos, sin) = (Tensor::ones([1, 8], DType::F32, device)?, Tensor::zeros([1, 8], DType::F32, device)?);
/// #     let (mut q, at) = (Tensor::uninitialized([512, 1, 16], DType::F32, device)?, Tensor::zeros([2, 512], DType::U32, device)?);
/// #     let mut places: Vec<u32> = (0..512).collect(); places.extend([0; 512]);
/// #     let at = { let _ = at; Tensor::from_slice(&places, [2, 512], device)? };
/// #     ops::rope_append_into(q.view_mut()?, [k.view_mut()?, v.view_mut()?], &qkv, [&cos, &sin], None, &at)?;
/// #     Ok([k, v])
/// # }
/// let q = Tensor::ones([1, 64, 16], DType::F32, &cpu)?;
/// let local = Tensor::from_slice(&[448u32], [1], &cpu)?;
/// let kv = SequenceKv { k: &k, v: &v, table: None, len: 512 };
/// let tiles = ops::choose_tiles(&q, kv, &local, 0.9, None)?;
/// assert_eq!(tiles.of_block(0, 0)?, [0, 1, 3]); // the first, those keys, its own
/// assert_eq!(tiles.count()?, [3, 4]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`] for any other head_dim, if v's format is not k's, for more keys than there are rows or pages for, for fewer keys
/// than queries, for a share that is not from 0 to 1, and on the CPU for a page that k does not have.
pub fn choose_tiles(
    q: &Tensor,
    kv: SequenceKv,
    local: &Tensor,
    share: f32,
    scale: Option<f32>,
) -> Result<KeyTiles> {
    const CHECK: Check = Check("choose_tiles");
    let (problem, last_row) = check(CHECK, q, None, kv, scale)?;
    let blocks = problem.q_len.div_ceil(QUERIES_PER_CHOICE);
    CHECK.dtype("local", local, DType::U32)?;
    CHECK.shape("local", local, &[blocks], format!("[{blocks}], a key for each block of queries"))?;
    CHECK.contiguous("local", local)?;
    if !(0.0..=1.0).contains(&share) {
        return Err(CHECK.unsupported("share", share, "it must be from 0 to 1"));
    }
    let tiles = kv.len.div_ceil(KEYS_PER_CHOICE);
    let shape = [problem.num_q_heads, blocks, tiles + LIST_EXTRA as usize];
    let mut lists = Tensor::uninitialized(shape, DType::U32, &q.device())?;
    CHECK.size("lists", &lists)?;
    let to = lists.view_mut()?;
    let device = device(CHECK, &to, q, kv, &[("local", local)])?;
    if q.shape().elements() > 0 {
        match device {
            Device::Cpu => cpu::chosen_attention::choose(to, q, kv, local, share, &problem, last_row)?,
            Device::Cuda(device) => {
                gpu::chosen_attention::choose(&device, to, q, kv, local, share, &problem, last_row)?;
            }
        }
    }
    Ok(KeyTiles { lists, q_len: problem.q_len, kv_len: kv.len })
}

/// Causal attention of a sequence's last queries over its keys, as far as they are in the tiles that [`choose_tiles`] has chosen for `q` and
/// `kv`. With all tiles it gives the bits of [`paged_attention_into`](super::paged_attention_into).
///
/// `q`, `out`: [num_q_heads, q_len, head_dim] f32. `scale` is as in [`Attention`].
///
/// ```
/// # use pascaline::kv::{KvFormat, KvTensor};
/// use pascaline::ops::{self, SequenceKv};
/// use pascaline::{DType, Device, Tensor};
/// # let cpu = Device::Cpu;
/// # let room = || KvTensor::uninitialized([64, 1, 16], KvFormat::F32, &cpu);
/// # let (mut k, mut v) = (room()?, room()?);
/// # let qkv = Tensor::ones([64, 3, 16], DType::F32, &cpu)?;
/// # let (cos, sin) = (Tensor::ones([1, 8], DType::F32, &cpu)?, Tensor::zeros([1, 8], DType::F32, &cpu)?);
/// # let mut q = Tensor::uninitialized([64, 1, 16], DType::F32, &cpu)?;
/// # let at = Tensor::from_slice(&[(0..64).collect::<Vec<u32>>(), vec![0; 64]].concat(), [2, 64], &cpu)?;
/// # ops::rope_append_into(q.view_mut()?, [k.view_mut()?, v.view_mut()?], &qkv, [&cos, &sin], None, &at)?;
/// # let q = q.swap_dims(0, 1)?;
/// let kv = SequenceKv { k: &k, v: &v, table: None, len: 64 };
/// let local = Tensor::from_slice(&[0u32], [1], &cpu)?;
/// let tiles = ops::choose_tiles(&q, kv, &local, 0.95, None)?;
/// let mut out = Tensor::uninitialized([1, 64, 16], DType::F32, &cpu)?;
/// ops::attention_over_tiles_into(out.view_mut()?, &q, kv, &tiles, None)?;
/// assert!(out.to_vec::<f32>()?.iter().all(|x| (x - 1.0).abs() < 1e-6)); // all values are 1
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`choose_tiles`], and [`Error::Shape`] for tiles that were chosen for other sizes.
pub fn attention_over_tiles_into(
    out: TensorMut,
    q: &Tensor,
    kv: SequenceKv,
    tiles: &KeyTiles,
    scale: Option<f32>,
) -> Result<()> {
    const CHECK: Check = Check("attention_over_tiles");
    let (problem, last_row) = check(CHECK, q, Some(&out), kv, scale)?;
    let blocks = problem.q_len.div_ceil(QUERIES_PER_CHOICE);
    let of = [problem.num_q_heads, blocks, kv.len.div_ceil(KEYS_PER_CHOICE) + LIST_EXTRA as usize];
    if tiles.lists.dims() != of || [tiles.q_len, tiles.kv_len] != [problem.q_len, kv.len] {
        let expected = format!("those of {} queries and {} keys", problem.q_len, kv.len);
        let found = tiles.lists.shape().clone();
        return Err(Error::Shape { op: CHECK.0, argument: "tiles", expected, found });
    }
    let inputs = [("tiles", &tiles.lists)];
    let device = device(CHECK, &out, q, kv, &inputs)?;
    if q.shape().elements() == 0 {
        return Ok(());
    }
    match device {
        Device::Cpu => cpu::chosen_attention::attention(out, q, kv, &tiles.lists, &problem, last_row),
        Device::Cuda(device) => {
            gpu::chosen_attention::attention(&device, out, q, kv, &tiles.lists, &problem, last_row)
        }
    }
}

/// The sizes of a call, and k's last row.
fn check(
    check: Check,
    q: &Tensor,
    out: Option<&TensorMut>,
    kv: SequenceKv,
    scale: Option<f32>,
) -> Result<(Problem, usize)> {
    let SequenceKv { k, v, table, len } = kv;
    let &[num_q_heads, q_len, head_dim] = q.dims() else {
        return Err(check.bad_shape("q", q, "[num_q_heads, q_len, head_dim]"));
    };
    check.dtype("q", q, DType::F32)?;
    let mut out_strides = HeadStrides { batch: 0, head: 0, row: 0 };
    if let Some(out) = out {
        check.dtype("out", out, DType::F32)?;
        check.shape("out", out, q.dims(), "q's shape")?;
        out_strides = strides(check, "out", out)?;
    }
    if v.format() != k.format() {
        return Err(check.unsupported("v", v.format(), format!("k is in {}", k.format())));
    }
    let [rows, num_kv_heads, _] = k.dims();
    for (argument, kv) in [("k", k), ("v", v)] {
        let expected = match kv.dims() == [rows, num_kv_heads, head_dim] {
            true => uneven(num_q_heads, num_kv_heads),
            false => Some(format!("[rows, num_kv_heads, {head_dim}], as q has it, the same for k and v")),
        };
        if let Some(expected) = expected {
            return Err(Error::Shape { op: check.0, argument, expected, found: kv.dims().into() });
        }
    }
    check_head_dim(check, head_dim)?;
    let room = match table {
        None => rows,
        Some(table) => {
            check.dtype("table", table, DType::U32)?;
            let &[pages] = table.dims() else { return Err(check.bad_shape("table", table, "[pages]")) };
            check.contiguous("table", table)?;
            if rows < PAGE {
                return Err(check.unsupported("k", rows, format!("a page has {PAGE} rows")));
            }
            pages.saturating_mul(PAGE)
        }
    };
    if len > room.min(u32::MAX as usize) {
        return Err(check.unsupported("len", len, format!("there is room for {room} keys")));
    }
    if len < q_len {
        return Err(check.unsupported("len", len, format!("the keys of the {q_len} queries are among them")));
    }
    let stored = HeadStrides { batch: 0, head: k.width(), row: num_kv_heads * k.width() };
    let problem = Problem {
        batch: 1,
        num_q_heads,
        num_kv_heads,
        q_len,
        kv_len: len,
        head_dim,
        scale: Attention { scale, causal: true }.scale_for(head_dim),
        causal: true,
        out: out_strides,
        q: strides(check, "q", q)?,
        k: stored,
        v: stored,
    };
    Ok((problem, rows.saturating_sub(1)))
}

/// The device of all tensors.
fn device(
    check: Check,
    out: &TensorMut,
    q: &Tensor,
    kv: SequenceKv,
    more: &[(&'static str, &Tensor)],
) -> Result<Device> {
    let mut inputs = vec![("q", q), ("k", kv.k.parts().0), ("v", kv.v.parts().0)];
    inputs.extend(kv.table.map(|table| ("table", table)));
    inputs.extend(more);
    check.device(out, &inputs)
}
