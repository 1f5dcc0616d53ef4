//! Scaled dot-product attention.

use super::check::{Argument, Check};
use crate::kv::{KvFormat, KvTensor, KvView};
use crate::problem::attention::{Attention, HeadStrides, Problem};
use crate::{DType, Device, Error, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("attention");

/// Addresses and strides are multiples of this many elements: 16 bytes of f16.
const ALIGNMENT: usize = 8;
/// The supported head_dim; multiples of [`ALIGNMENT`].
const HEAD_DIMS: std::ops::RangeInclusive<usize> = 16..=128;

/// The most queries of [`attention_cached_into`].
pub const MAX_CACHED_QUERIES: usize = gpu::attention::MAX_DECODE_QUERIES;

/// out = softmax(scale · q kᵀ) v for each head, without the score matrix in memory.
///
/// `q`: [b, num_q_heads, q_len, head_dim]; `k`, `v`: [b, num_kv_heads, kv_len, head_dim]; the result is as `q`; or
/// all without b. f32, f16, or `q` f32 with `k` and `v` f16; arithmetic is f32. Query head h reads kv head
/// h / (num_q_heads / num_kv_heads). head_dim is a multiple of 8 from 16 to 128.
///
/// The last dimension has stride 1. The other strides are arbitrary, as in a view of a cache or with swapped dimensions, but
/// offsets and strides are multiples of 8 elements. A query that attends to no key gives 0.
///
/// ```
/// use pascaline::ops::{self, Attention};
/// use pascaline::{DType, Device, Tensor};
/// let cpu = Device::Cpu;
/// // one head of 16, two queries; equal keys, so that each query gives the mean of the values that it attends to
/// let (q, k) = (Tensor::ones([1, 2, 16], DType::F32, &cpu)?, Tensor::ones([1, 2, 16], DType::F32, &cpu)?);
/// let values = [Tensor::full(1.0f32, [1, 1, 16], &cpu)?, Tensor::full(3.0f32, [1, 1, 16], &cpu)?];
/// let v = ops::cat(&values, 1)?;
/// let out = ops::attention(&q, &k, &v, &Attention { causal: true, ..Attention::default() })?;
/// assert_eq!(ops::max(&out)?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`] for any other head_dim.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &Attention) -> Result<Tensor> {
    let mut out = Tensor::uninitialized(q.shape(), q.dtype(), &q.device())?;
    attention_into(out.view_mut()?, q, k, v, options)?;
    Ok(out)
}

/// [`attention`] into `out`, of `q`'s shape and type, with strides under the same conditions.
pub fn attention_into(out: TensorMut, q: &Tensor, k: &Tensor, v: &Tensor, options: &Attention) -> Result<()> {
    let problem = check(CHECK, &out, q, k, v, options)?;
    let [k, v] = [KvView::plain(k), KvView::plain(v)];
    run(out, q, [k, v], None, &problem)
}

/// [`attention_into`] over the first `len` tokens of a cache, in its format.
///
/// `q`, `out`: [num_q_heads, q_len, head_dim]; `k`, `v`: [capacity, num_kv_heads, head_dim], both in the same format: any
/// for f32 queries, f16 for f16 queries.
///
/// ```
/// use pascaline::kv::{KvFormat, KvTensor};
/// use pascaline::ops::{self, Attention};
/// use pascaline::{DType, Device, Tensor};
/// let cpu = Device::Cpu;
/// // q, k and v of one token, from a fused projection; an angle of 0 rotates nothing
/// let qkv = Tensor::arange(0.0f32, 48.0, &cpu)?.reshape([1, 3, 16])?;
/// let (cos, sin) = (Tensor::ones([1, 8], DType::F32, &cpu)?, Tensor::zeros([1, 8], DType::F32, &cpu)?);
/// let mut q = Tensor::uninitialized([1, 1, 16], DType::F32, &cpu)?;
/// let mut k = KvTensor::uninitialized([4, 1, 16], KvFormat::F16, &cpu)?;
/// let mut v = KvTensor::uninitialized([4, 1, 16], KvFormat::F16, &cpu)?;
/// let at = Tensor::zeros([2], DType::U32, &cpu)?;
/// ops::rope_append_into(q.view_mut()?, [k.view_mut()?, v.view_mut()?], &qkv, [&cos, &sin], None, &at)?;
/// let mut out = Tensor::uninitialized([1, 1, 16], DType::F32, &cpu)?;
/// ops::attention_over_into(out.view_mut()?, &q, &k, &v, 1, &Attention::default())?;
/// assert_eq!(out.to_vec::<f32>()?[..2], [32.0, 33.0]); // of one key the result is its value
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`attention`], and [`Error::Unsupported`] for other formats or a `len` above the capacity.
pub fn attention_over_into(
    out: TensorMut,
    q: &Tensor,
    k: &KvTensor,
    v: &KvTensor,
    len: usize,
    options: &Attention,
) -> Result<()> {
    if len > k.dims()[0] {
        return Err(CHECK.unsupported("len", len, format!("there is room for {} tokens", k.dims()[0])));
    }
    let problem = check_cache(&out, q, k, v, len, options)?;
    run(out, q, [k.view(), v.view()], None, &problem)
}

/// [`attention_over_into`] over the first `past[0]` + q_len tokens. The length is read on the device, so that a captured
/// launch serves every length. A length beyond the capacity counts as the capacity.
///
/// `past`: \[1\] u32; q_len is at most [`MAX_CACHED_QUERIES`].
///
/// ```
/// # use pascaline::kv::{KvFormat, KvTensor};
/// # use pascaline::ops::{self, Attention};
/// # use pascaline::{DType, Device, Tensor};
/// # let cpu = Device::Cpu;
/// # let (cos, sin) = (Tensor::ones([1, 8], DType::F32, &cpu)?, Tensor::zeros([1, 8], DType::F32, &cpu)?);
/// # let mut k = KvTensor::uninitialized([4, 1, 16], KvFormat::F32, &cpu)?;
/// # let mut v = KvTensor::uninitialized([4, 1, 16], KvFormat::F32, &cpu)?;
/// let mut at = Tensor::zeros([2], DType::U32, &cpu)?; // (tokens in the cache, the row's angle)
/// let mut out = Tensor::uninitialized([1, 1, 16], DType::F32, &cpu)?;
/// for token in 0..3u32 {
///     at.view_mut()?.write(&[token, 0])?;
///     // … a projection gives q, k and v of the token; here its values are its number
///     let (q, kv) = (Tensor::zeros([1, 2, 16], DType::F32, &cpu)?, Tensor::full(token as f32, [1, 1, 16], &cpu)?);
///     let qkv = ops::cat(&[&q, &kv], 1)?;
///     let mut q = Tensor::uninitialized([1, 1, 16], DType::F32, &cpu)?;
///     ops::rope_append_into(q.view_mut()?, [k.view_mut()?, v.view_mut()?], &qkv, [&cos, &sin], None, &at)?;
///     let past = at.narrow(0, 0, 1)?;
///     ops::attention_cached_into(out.view_mut()?, &q, &k, &v, &past, &Attention::default())?;
/// }
/// assert_eq!(out.to_vec::<f32>()?, [1.0; 16]); // equal keys: the mean of 0, 1 and 2
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`attention_over_into`], and [`Error::Unsupported`] for more queries.
pub fn attention_cached_into(
    out: TensorMut,
    q: &Tensor,
    k: &KvTensor,
    v: &KvTensor,
    past: &Tensor,
    options: &Attention,
) -> Result<()> {
    let problem = check_cache(&out, q, k, v, k.dims()[0], options)?;
    CHECK.dtype("past", past, DType::U32)?;
    CHECK.shape("past", past, &[1], "[1]")?;
    if problem.q_len > MAX_CACHED_QUERIES {
        let reason = format!("at most {MAX_CACHED_QUERIES} where the length is on the device");
        return Err(CHECK.unsupported("q_len", problem.q_len, reason));
    }
    run(out, q, [k.view(), v.view()], Some(past), &problem)
}

/// Runs an op whose arguments have been checked.
fn run(
    out: TensorMut,
    q: &Tensor,
    [k, v]: [KvView; 2],
    past: Option<&Tensor>,
    problem: &Problem,
) -> Result<()> {
    let mut inputs = vec![("q", q), ("k", k.values), ("v", v.values)];
    inputs.extend(past.map(|past| ("past", past)));
    match CHECK.device(&out, &inputs)? {
        Device::Cpu => {
            let past = past.map(|past| Ok(cpu::slice::<u32>(past)?[0] as usize)).transpose()?;
            let len = past.map_or(problem.kv_len, |past| past.saturating_add(problem.q_len));
            let problem = Problem { kv_len: problem.kv_len.min(len), ..*problem };
            cpu::attention::attention(out, q, [k, v], &problem)
        }
        Device::Cuda(device) => gpu::attention::attention(&device, out, q, [k, v], past, problem),
    }
}

/// The checks of an op on these tensors; errors name `op`.
pub(super) fn check(
    op: Check,
    out: &impl Argument,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: &Attention,
) -> Result<Problem> {
    let dtype = op.float("q", q)?;
    op.dtype("out", out, dtype)?;
    let kv_dtype = op.float("k", k)?;
    if dtype == DType::F16 {
        op.dtype("k", k, DType::F16)?;
    }
    op.dtype("v", v, kv_dtype)?;

    let batched = q.shape().rank() == 4;
    let letters = "[b, num_q_heads, q_len, head_dim], or without b";
    let [batch, num_q_heads, q_len, head_dim] = extents(q).ok_or_else(|| op.bad_shape("q", q, letters))?;
    let [_, num_kv_heads, kv_len, _] =
        extents(k).ok_or_else(|| op.bad_shape("k", k, "as many dimensions as q"))?;
    let expected = format!("[{batch}, num_kv_heads, kv_len, {head_dim}], as q has it");
    let whole = [batch, num_kv_heads, kv_len, head_dim];
    let kv_shape = if batched { &whole[..] } else { &whole[1..] };
    op.shape("k", k, kv_shape, expected)?;
    op.shape("v", v, kv_shape, "k's shape")?;
    op.shape("out", out, q.dims(), "q's shape")?;
    if let Some(expected) = uneven(num_q_heads, num_kv_heads) {
        return Err(op.bad_shape("k", k, expected));
    }
    check_head_dim(op, head_dim)?;
    Ok(Problem {
        batch,
        num_q_heads,
        num_kv_heads,
        q_len,
        kv_len,
        head_dim,
        scale: options.scale_for(head_dim),
        causal: options.causal,
        out: strides(op, "out", out)?,
        q: strides(op, "q", q)?,
        k: strides(op, "k", k)?,
        v: strides(op, "v", v)?,
    })
}

/// The checks of an op on the first `kv_len` tokens of a cache.
fn check_cache(
    out: &TensorMut,
    q: &Tensor,
    k: &KvTensor,
    v: &KvTensor,
    kv_len: usize,
    options: &Attention,
) -> Result<Problem> {
    let dtype = CHECK.float("q", q)?;
    CHECK.dtype("out", out, dtype)?;
    CHECK.shape("out", out, q.dims(), "q's shape")?;
    let &[num_q_heads, q_len, head_dim] = q.dims() else {
        return Err(CHECK.bad_shape("q", q, "[num_q_heads, q_len, head_dim]"));
    };
    if dtype == DType::F16 && k.format() != KvFormat::F16 {
        return Err(CHECK.unsupported("k", k.format(), "queries in f16 read keys and values in f16"));
    }
    if v.format() != k.format() {
        return Err(CHECK.unsupported("v", v.format(), format!("k is in {}", k.format())));
    }
    let [capacity, num_kv_heads, _] = k.dims();
    let expected = format!("[capacity, num_kv_heads, {head_dim}], as q has it, the same for k and v");
    let bad = |argument, kv: &KvTensor, expected| {
        Err(Error::Shape { op: CHECK.0, argument, expected, found: kv.dims().into() })
    };
    for (argument, kv) in [("k", k), ("v", v)] {
        if kv.dims() != [capacity, num_kv_heads, head_dim] {
            return bad(argument, kv, expected);
        }
    }
    if let Some(expected) = uneven(num_q_heads, num_kv_heads) {
        return bad("k", k, expected);
    }
    check_head_dim(CHECK, head_dim)?;
    let stored = HeadStrides { batch: 0, head: k.width(), row: num_kv_heads * k.width() };
    Ok(Problem {
        batch: 1,
        num_q_heads,
        num_kv_heads,
        q_len,
        kv_len,
        head_dim,
        scale: options.scale_for(head_dim),
        causal: options.causal,
        out: strides(CHECK, "out", out)?,
        q: strides(CHECK, "q", q)?,
        k: stored,
        v: stored,
    })
}

/// The error's text for a number of kv heads that does not divide the number of query heads; `None` if it does.
pub(super) fn uneven(num_q_heads: usize, num_kv_heads: usize) -> Option<String> {
    let divides = num_q_heads.checked_rem(num_kv_heads) == Some(0) || num_q_heads == 0;
    (!divides).then(|| format!("a number of heads that divides q's {num_q_heads}"))
}

/// Checks the kernels' limits.
pub(super) fn check_head_dim(op: Check, head_dim: usize) -> Result<()> {
    if !HEAD_DIMS.contains(&head_dim) || !head_dim.is_multiple_of(ALIGNMENT) {
        return Err(op.unsupported("head_dim", head_dim, "it must be a multiple of 8 from 16 to 128"));
    }
    Ok(())
}

/// The four dimensions, with a batch of 1 for a tensor of rank 3.
pub(super) fn extents(x: &Tensor) -> Option<[usize; 4]> {
    match *x.dims() {
        [heads, rows, head_dim] => Some([1, heads, rows, head_dim]),
        [batch, heads, rows, head_dim] => Some([batch, heads, rows, head_dim]),
        _ => None,
    }
}

/// The strides of a tensor of rank 3 or 4, if the kernels support them.
pub(super) fn strides(op: Check, argument: &'static str, x: &impl Argument) -> Result<HeadStrides> {
    op.size(argument, x)?;
    let layout = x.layout();
    if layout.shape.elements() == 0 {
        return Ok(HeadStrides { batch: 0, head: 0, row: 0 });
    }
    if layout.strides.last() != Some(&1) {
        return Err(Error::Layout { op: op.0, argument, needed: "contiguous in its last dimension" });
    }
    let outer = layout.strides.len() - 1;
    let mut strides = [0; 3];
    for (d, stride) in strides[3 - outer..].iter_mut().enumerate() {
        if layout.shape.dims()[d] > 1 {
            *stride = layout.strides[d];
        }
    }
    if !layout.offset.is_multiple_of(ALIGNMENT) || strides.iter().any(|s| !s.is_multiple_of(ALIGNMENT)) {
        return Err(Error::Layout { op: op.0, argument, needed: "aligned to 8 elements in every row" });
    }
    op.aligned(argument, x, 16)?;
    let [batch, head, row] = strides;
    Ok(HeadStrides { batch, head, row })
}
