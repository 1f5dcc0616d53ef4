//! Attention in all its forms.

use super::Op;
use super::call::{Call, into};
use super::plain::near;
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::ops::{self, Attention, HeadNorms, PAGE, Projection, QUERIES_PER_CHOICE, SequenceKv};
use pascaline::{DType, Result, Tensor};

pub(super) const OPS: &[Op] = &[
    ("attention", attention),
    ("attention_backward", attention_backward),
    ("attention_over", |call| cached(call, false)),
    ("attention_cached", |call| cached(call, true)),
    ("paged_attention", |call| paged(call, false)),
    ("paged_attention_each", |call| paged(call, true)),
    ("attention_over_tiles", over_tiles),
    ("int8_attention", int8_attention),
    ("rope_append", rope_append),
    ("append_attention", append_attention),
    ("paged_append_attention", paged_append_attention),
    ("block_mean", block_mean),
];

fn head_dim(call: &mut Call) -> usize {
    call.pick(&[16, 24, 32, 64, 16, 128, 40, 12])
}

fn options(call: &mut Call) -> Attention {
    Attention { scale: call.pick(&[None, Some(0.25), Some(0.0)]), causal: call.below(2) == 1 }
}

/// Dimensions of queries, and of keys and values.
fn dims(call: &mut Call) -> [Vec<usize>; 2] {
    let (dim, kv_heads, group) = (head_dim(call), 1 + call.below(3), 1 + call.below(3));
    let (q_len, kv_len) = (call.size().min(17), call.size());
    let batch = [&[][..], &[1], &[2]][call.below(3)];
    let q = [batch, &[kv_heads * group, q_len, dim]].concat();
    [q, [batch, &[kv_heads, kv_len, dim]].concat()]
}

fn attention(call: &mut Call) -> Result<()> {
    let ([of_q, of_kv], options) = (dims(call), options(call));
    let (dtype, kv) =
        call.pick(&[(DType::F32, DType::F32), (DType::F16, DType::F16), (DType::F32, DType::F16)]);
    let (q, k, v) = (call.input(&of_q, dtype)?, call.input(&of_kv, kv)?, call.input(&of_kv, kv)?);
    let mut out = call.output(&of_q, dtype, near(dtype, 2e-5, 1e-6))?;
    into!(call, out => ops::attention_into(out.view()?, &q, &k, &v, &options))
}

fn int8_attention(call: &mut Call) -> Result<()> {
    let ([of_q, of_kv], options) = (dims(call), options(call));
    let (q, k, v) =
        (call.input(&of_q, DType::F32)?, call.input(&of_kv, DType::F32)?, call.input(&of_kv, DType::F32)?);
    let mut out = call.output(&of_q, DType::F32, near(DType::F32, 2e-5, 1e-6))?;
    into!(call, out => ops::int8_attention_into(out.view()?, &q, &k, &v, &options))
}

fn attention_backward(call: &mut Call) -> Result<()> {
    let ([of_q, of_kv], options, dtype) = (dims(call), options(call), call.float());
    let [dout, q, out] = [call.input(&of_q, dtype)?, call.input(&of_q, dtype)?, call.input(&of_q, dtype)?];
    let [k, v] = [call.input(&of_kv, dtype)?, call.input(&of_kv, dtype)?];
    // `out` is not the result here, so the gradients are larger than in training
    let tolerance = if dtype == DType::F16 { [0.25, 2e-2] } else { [2e-3, 1e-4] };
    let mut dq = call.output(&of_q, dtype, tolerance)?;
    let mut dk = call.output(&of_kv, dtype, tolerance)?;
    let mut dv = call.output(&of_kv, dtype, tolerance)?;
    into!(call, dq, dk, dv => {
        ops::attention_backward_into([dq.view()?, dk.view()?, dv.view()?], &dout, &q, &k, &v, &out, &options)
    })
}

/// Keys and values for `rows` tokens in a format, written by the op that does so.
fn stored(call: &mut Call, rows: usize, heads: usize, dim: usize, format: KvFormat) -> Result<[KvTensor; 2]> {
    let mut kv = [
        KvTensor::uninitialized([rows, heads, dim], format, call.device)?,
        KvTensor::uninitialized([rows, heads, dim], format, call.device)?,
    ];
    let qkv = pascaline::Tensor::randn([rows, 3 * heads, dim], DType::F32, 3, call.device)?;
    let angle = |value| pascaline::Tensor::full(value, [1, dim / 2], call.device);
    let at = pascaline::Tensor::from_slice(&[0u32, 0], [2], call.device)?;
    let mut q = pascaline::Tensor::zeros([rows, heads, dim], DType::F32, call.device)?;
    let [k, v] = &mut kv;
    ops::rope_append_into(
        q.view_mut()?,
        [k.view_mut()?, v.view_mut()?],
        &qkv,
        [&angle(1.0f32)?, &angle(0.0)?],
        None,
        &at,
    )?;
    Ok(kv)
}

fn cached(call: &mut Call, on_the_device: bool) -> Result<()> {
    let (dim, kv_heads, group, format) =
        (head_dim(call), 1 + call.below(2), 1 + call.below(3), call.pick(&KvFormat::ALL));
    let (capacity, q_len, options) = (1 + call.below(40), call.below(9), options(call));
    let [k, v] = stored(call, capacity, kv_heads, dim, format)?;
    let of_q = [kv_heads * group, q_len, dim];
    let q = call.input(&of_q, DType::F32)?;
    let len = call.below(capacity + 2);
    let mut out = call.output(&of_q, DType::F32, near(DType::F32, 2e-5, 1e-6))?;
    if on_the_device {
        let past = call.indices(&[1], capacity + 2)?;
        return into!(call, out => ops::attention_cached_into(out.view()?, &q, &k, &v, &past, &options));
    }
    call.note(&len);
    into!(call, out => ops::attention_over_into(out.view()?, &q, &k, &v, len, &options))
}

fn paged(call: &mut Call, each: bool) -> Result<()> {
    let (dim, kv_heads, group, format) =
        (head_dim(call), 1 + call.below(2), 1 + call.below(3), call.pick(&KvFormat::ALL));
    let (pages, width, scale) = (1 + call.below(4), call.below(4), call.pick(&[None, Some(0.25)]));
    let [k, v] = stored(call, pages * PAGE, kv_heads, dim, format)?;
    let (count, heads) = (call.below(6), kv_heads * group);
    let of_q = if each { [count, heads, dim] } else { [heads, count, dim] };
    let q = call.input(&of_q, DType::F32)?;
    let mut out = call.output(&of_q, DType::F32, near(DType::F32, 2e-5, 1e-6))?;
    // the devices differ in what they say of a page that is not there
    let table = |call: &mut Call, dims: &[usize]| {
        let place = call.input(dims, DType::U32)?;
        let seed = call.below(7);
        let numbers: Vec<u32> = (0..place.shape().elements()).map(|i| ((i + seed) % pages) as u32).collect();
        pascaline::Tensor::from_slice(&numbers, place.dims(), call.device)
    };
    if each {
        let (tables, lens) = (table(call, &[count, width])?, call.indices(&[count], width * PAGE + 9)?);
        return into!(call, out => ops::paged_attention_each_into(out.view()?, &q, &k, &v, &tables, &lens, scale));
    }
    let (table, len) = (table(call, &[width])?, call.below(width * PAGE + 2));
    call.note(&len);
    into!(call, out => ops::paged_attention_into(out.view()?, &q, &k, &v, &table, len, scale))
}

fn over_tiles(call: &mut Call) -> Result<()> {
    let (dim, kv_heads, group, format) =
        (head_dim(call), 1 + call.below(2), 1 + call.below(3), call.pick(&KvFormat::ALL));
    let (pages, width, scale) = (1 + call.below(4), call.below(4), call.pick(&[None, Some(0.25)]));
    let [k, v] = stored(call, pages * PAGE, kv_heads, dim, format)?;
    let (count, share) = (call.below(6), call.pick(&[0.5, 1.0, 0.0, 1.5]));
    let q = call.input(&[kv_heads * group, count, dim], DType::F32)?;
    let numbers: Vec<u32> = (0..width).map(|i| (i % pages) as u32).collect();
    let table = pascaline::Tensor::from_slice(&numbers, [width], call.device)?;
    let table = (call.below(2) == 1).then_some(&table);
    let len = call.below(table.map_or(pages, |_| width) * PAGE + 2);
    call.note(&len);
    let local = call.indices(&[count.div_ceil(QUERIES_PER_CHOICE)], 4 * PAGE)?;
    let kv = SequenceKv { k: &k, v: &v, table, len };
    let mut out = call.output(q.dims(), DType::F32, near(DType::F32, 2e-5, 1e-6))?;
    // so few keys are one tile, which is read in any case
    into!(call, out => {
        let tiles = ops::choose_tiles(&q, kv, &local, share, scale)?;
        ops::attention_over_tiles_into(out.view()?, &q, kv, &tiles, scale)
    })
}

/// A projection with its tables and norms.
struct Projected {
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    weights: Option<[Tensor; 2]>,
}

impl Projected {
    fn new(call: &mut Call, qkv: &[usize], dtype: DType, angles: usize) -> Result<Self> {
        let dim = qkv[2];
        Ok(Self {
            qkv: call.input(qkv, dtype)?,
            cos: call.input(&[angles, dim / 2], DType::F32)?,
            sin: call.input(&[angles, dim / 2], DType::F32)?,
            weights: match call.below(2) {
                0 => None,
                _ => Some([call.input(&[dim], dtype)?, call.input(&[dim], dtype)?]),
            },
        })
    }

    fn with<'a>(&'a self, at: &'a Tensor) -> Projection<'a> {
        let norms = self.weights.as_ref().map(|[q, k]| HeadNorms { q, k, eps: 1e-5 });
        Projection { qkv: &self.qkv, cos: &self.cos, sin: &self.sin, norms, at }
    }
}

fn rope_append(call: &mut Call) -> Result<()> {
    let (rows, heads, kv_heads) = (call.below(9), 1 + call.below(3), 1 + call.below(2));
    let (dim, capacity, angles) = (call.pick(&[16, 32, 2, 6, 64, 128, 7]), 1 + call.below(12), call.below(6));
    let (dtype, format) = (call.float(), call.pick(&KvFormat::ALL));
    let projected = Projected::new(call, &[rows, heads + 2 * kv_heads, dim], dtype, angles)?;
    let at = match call.below(2) {
        0 => call.indices(&[2], capacity + 2)?,
        // rows of several sequences go to different places, as the op demands
        _ => {
            let first = call.below(capacity + 2);
            let places = (0..2 * rows).map(|i| if i < rows { (first + i) as u32 } else { (i % 5) as u32 });
            Tensor::from_slice(&places.collect::<Vec<_>>(), [2, rows], call.device)?
        }
    };
    let mut kv = [(); 2].map(|()| KvTensor::uninitialized([capacity, kv_heads, dim], format, call.device));
    let [Ok(k), Ok(v)] = &mut kv else { return kv.into_iter().try_for_each(|kv| kv.map(drop)) };
    let mut q = call.output(&[rows, heads, dim], dtype, near(dtype, 5e-5, 2e-5))?;
    let Projection { qkv, cos, sin, norms, at } = projected.with(&at);
    into!(call, q => ops::rope_append_into(q.view()?, [k.view_mut()?, v.view_mut()?], qkv, [cos, sin], norms, at))
}

fn append_attention(call: &mut Call) -> Result<()> {
    let (rows, kv_heads, group) = (call.below(10), 1 + call.below(2), 1 + call.below(3));
    let (dim, capacity, angles) = (head_dim(call), 1 + call.below(40), call.below(6));
    // a rounded key may be either of two neighbours
    let (format, scale) = (KvFormat::F32, call.pick(&[None, Some(0.25), Some(0.0)]));
    let [mut k, mut v] = stored(call, capacity, kv_heads, dim, format)?;
    let heads = kv_heads * group;
    let projected = Projected::new(call, &[rows, heads + 2 * kv_heads, dim], DType::F32, angles)?;
    let at = call.indices(&[2], capacity + 2)?;
    let mut out = call.output(&[rows, heads, dim], DType::F32, near(DType::F32, 1e-4, 2e-5))?;
    into!(call, out => ops::append_attention_into(out.view()?, [&mut k, &mut v], &projected.with(&at), scale))
}

fn paged_append_attention(call: &mut Call) -> Result<()> {
    let (rows, kv_heads, group) = (call.below(4), 1 + call.below(2), 1 + call.below(3));
    let (dim, angles, scale) = (head_dim(call), call.below(6), call.pick(&[None, Some(0.25)]));
    let [mut k, mut v] = stored(call, 4 * PAGE, kv_heads, dim, KvFormat::F32)?;
    let heads = kv_heads * group;
    let projected = Projected::new(call, &[rows, heads + 2 * kv_heads, dim], DType::F32, angles)?;
    // a page of its own for each sequence, which its tokens fill in part
    let pages: Vec<u32> = (0..rows as u32).map(|i| 3 - i).collect();
    let before: Vec<u32> = (0..rows).map(|_| call.below(PAGE) as u32).collect();
    let slots: Vec<u32> =
        pages.iter().zip(&before).map(|(page, before)| page * PAGE as u32 + before).collect();
    let at = Tensor::from_slice(&[&slots[..], &before].concat(), [2, rows], call.device)?;
    let tables = Tensor::from_slice(&pages, [rows, 1], call.device)?;
    let lens =
        Tensor::from_slice(&before.iter().map(|len| len + 1).collect::<Vec<_>>(), [rows], call.device)?;
    let mut out = call.output(&[rows, heads, dim], DType::F32, near(DType::F32, 1e-4, 2e-5))?;
    into!(call, out => {
        let from = projected.with(&at);
        ops::paged_append_attention_into(out.view()?, [&mut k, &mut v], &from, [&tables, &lens], scale)
    })
}

fn block_mean(call: &mut Call) -> Result<()> {
    let ([mut dims, _], dtype, block) = (dims(call), call.float(), call.pick(&[1, 2, 3, 8, 16, 64, 0]));
    let x = call.input(&dims, dtype)?;
    let rows = dims.len() - 2;
    dims[rows] = dims[rows].div_ceil(block.max(1));
    let mut y = call.output(&dims, DType::F32, near(DType::F32, 1e-5, 0.0))?;
    into!(call, y => ops::block_mean_into(y.view()?, &x, block))
}
