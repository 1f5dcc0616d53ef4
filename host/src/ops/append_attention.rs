//! Attention of tokens whose queries, keys and values are still in a fused projection: [`rope_append_into`](super::rope_append_into) and attention
//! over the cache in one launch.

use super::attention::{MAX_CACHED_QUERIES, check_head_dim, uneven};
use super::check::Check;
use super::paged_attention::{PAGE, check_tables};
use super::rope_append;
use crate::kv::KvTensor;
use crate::problem::attention::{Attention, HeadStrides, Problem};
use crate::problem::rope_append::{Outputs, Projection};
use crate::{DType, Device, Error, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("append_attention");

/// Appends the keys and values of `rows` tokens to a cache, as [`rope_append_into`](super::rope_append_into) does, and lets their queries attend
/// to all tokens up to themselves, as [`attention_cached_into`](super::attention_cached_into) does. On a GPU it is one launch.
///
/// `from`: a projection of at most [`MAX_CACHED_QUERIES`] rows, with `at` \[2\]; `out`: [rows, heads, dim] of its type, contiguous; `k`, `v`:
/// [capacity, kv_heads, dim], in one format, which is f16 for an f16 projection. Head h reads kv head h / (heads / kv_heads). dim is a multiple
/// of 8 from 16 to 128. `scale` is as in [`Attention`].
///
/// ```
/// use pascaline::kv::{KvFormat, KvTensor};
/// use pascaline::ops::{self, Projection};
/// use pascaline::{DType, Device, Tensor};
/// let cpu = Device::Cpu;
/// let (cos, sin) = (Tensor::ones([1, 8], DType::F32, &cpu)?, Tensor::zeros([1, 8], DType::F32, &cpu)?);
/// let mut k = KvTensor::uninitialized([4, 1, 16], KvFormat::F32, &cpu)?;
/// let mut v = KvTensor::uninitialized([4, 1, 16], KvFormat::F32, &cpu)?;
/// let mut out = Tensor::uninitialized([1, 1, 16], DType::F32, &cpu)?;
/// let mut at = Tensor::zeros([2], DType::U32, &cpu)?; // (tokens in the cache, the row's angle)
/// for token in 0..3u32 {
///     at.view_mut()?.write(&[token, 0])?;
///     // … a projection gives q, k and v of the token; here its values are its number
///     let (qk, v_of_it) = (Tensor::zeros([1, 2, 16], DType::F32, &cpu)?, Tensor::full(token as f32, [1, 1, 16], &cpu)?);
///     let qkv = ops::cat(&[&qk, &v_of_it], 1)?;
///     let from = Projection { qkv: &qkv, cos: &cos, sin: &sin, norms: None, at: &at };
///     ops::append_attention_into(out.view_mut()?, [&mut k, &mut v], &from, None)?;
/// }
/// assert_eq!(out.to_vec::<f32>()?, [1.0; 16]); // equal keys: the mean of 0, 1 and 2
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`] for another dim or eps, or more rows.
pub fn append_attention_into(
    mut out: TensorMut,
    [k, v]: [&mut KvTensor; 2],
    from: &Projection,
    scale: Option<f32>,
) -> Result<()> {
    let (problem, device) = check(&out, [k, v], from, scale)?;
    if from.each().is_some() {
        return Err(CHECK.bad_shape("at", from.at, "[2]"));
    }
    if problem.q_len > MAX_CACHED_QUERIES {
        let reason = format!("at most {MAX_CACHED_QUERIES} rows are appended and attend in one launch");
        return Err(CHECK.unsupported("qkv", format!("{} rows", problem.q_len), reason));
    }
    if problem.q_len == 0 {
        return Ok(());
    }
    match device {
        Device::Cpu => {
            let q = append(&out, [k, v], from)?;
            let (past, capacity, rows) =
                (cpu::slice::<u32>(from.at)?[0] as usize, problem.kv_len, problem.q_len);
            // rows that there is no room for attend to all that there is
            let room = capacity.saturating_sub(past).min(rows);
            let parts = [(0, room, past.min(capacity) + room, true), (room, rows - room, capacity, false)];
            for (start, q_len, kv_len, causal) in parts {
                let (out, q) = (out.reborrow().narrow(0, start, q_len)?, q.narrow(0, start, q_len)?);
                let problem = Problem { q_len, kv_len, causal, q: problem.out, ..problem };
                cpu::attention::attention(out, &q, [k.view(), v.view()], &problem)?;
            }
            Ok(())
        }
        Device::Cuda(device) => {
            gpu::attention::append(&device, out, [k.view_mut()?, v.view_mut()?], from, &problem)
        }
    }
}

/// The same over pages of a pool, for one token of each of several sequences: [`rope_append_into`](super::rope_append_into) and
/// [`paged_attention_each_into`](super::paged_attention_each_into) in one launch.
///
/// `from`: a projection with a row for each sequence, and `at` [2, sequences], each row's index in the pool and its angle; `out`: [sequences,
/// heads, dim]; `k`, `v`: the pool [pages · [`PAGE`](super::PAGE), kv_heads, dim]; `tables`: [sequences, width] u32, each sequence's pages in
/// order; `lens`: \[sequences\] u32, the number of keys of each with the token's own, which is the last. A sequence of length 0 appends
/// nothing and gives 0. All are f32 and contiguous, but for k, v and the rows of `at`.
///
/// ```
/// use pascaline::kv::{KvFormat, KvTensor};
/// use pascaline::ops::{self, Projection};
/// use pascaline::{DType, Device, Tensor};
/// let cpu = Device::Cpu;
/// let room = || KvTensor::uninitialized([3 * ops::PAGE, 1, 16], KvFormat::F32, &cpu);
/// let (mut k, mut v) = (room()?, room()?);
/// // the first token of two sequences, whose first pages are numbers 2 and 0
/// let qkv = Tensor::from_slice(&[[1.0f32; 48], [2.0; 48]].concat(), [2, 3, 16], &cpu)?;
/// let at = Tensor::from_slice(&[2 * 16, 0, 0, 0u32], [2, 2], &cpu)?; // rows of the pool, and angles
/// let (cos, sin) = (Tensor::ones([1, 8], DType::F32, &cpu)?, Tensor::zeros([1, 8], DType::F32, &cpu)?);
/// let from = Projection { qkv: &qkv, cos: &cos, sin: &sin, norms: None, at: &at };
/// let tables = Tensor::from_slice(&[2u32, 0], [2, 1], &cpu)?;
/// let lens = Tensor::from_slice(&[1u32, 1], [2], &cpu)?;
/// let mut out = Tensor::uninitialized([2, 1, 16], DType::F32, &cpu)?;
/// ops::paged_append_attention_into(out.view_mut()?, [&mut k, &mut v], &from, [&tables, &lens], None)?;
/// assert_eq!(out.to_vec::<f32>()?, [[1.0; 16], [2.0; 16]].concat()); // of one key the result is its value
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`] for another dim or eps, and on the CPU for a page that is not in the pool.
pub fn paged_append_attention_into(
    out: TensorMut,
    [k, v]: [&mut KvTensor; 2],
    from: &Projection,
    [tables, lens]: [&Tensor; 2],
    scale: Option<f32>,
) -> Result<()> {
    CHECK.dtype("qkv", from.qkv, DType::F32)?;
    let (problem, device) = check(&out, [k, v], from, scale)?;
    let sequences = problem.q_len;
    CHECK.shape("at", from.at, &[2, sequences], "[2, sequences]")?;
    let capacity = check_tables(CHECK, [tables, lens], sequences)?;
    CHECK.device(&out, &[("tables", tables), ("lens", lens)])?;
    let [rows, kv_heads, dim] = k.dims();
    if !rows.is_multiple_of(PAGE) || rows == 0 {
        let (expected, found) =
            (format!("[pages · {PAGE}, {kv_heads}, {dim}] with a page or more"), k.dims().into());
        return Err(Error::Shape { op: CHECK.0, argument: "k", expected, found });
    }
    if capacity > u32::MAX as usize {
        let (elements, limit) = (capacity as u128, u32::MAX.into());
        return Err(Error::TooLarge { op: CHECK.0, argument: "tables", elements, limit });
    }
    if sequences == 0 {
        return Ok(());
    }
    let alone = |x: HeadStrides| HeadStrides { batch: x.row, head: x.head, row: 0 };
    let (q, of_out) = (alone(problem.q), alone(problem.out));
    let problem = Problem { batch: sequences, q_len: 1, kv_len: capacity, q, out: of_out, ..problem };
    let last_row = rows - 1;
    match device {
        Device::Cpu => {
            let lens = cpu::slice::<u32>(lens)?;
            cpu::paged_attention::check_tables([CHECK.0, "tables"], tables, lens, last_row)?;
            let q = append(&out, [k, v], from)?;
            let problem = Problem { q: of_out, ..problem };
            let kv = [k.view(), v.view()];
            cpu::paged_attention::paged_attention(out, &q, kv, ("tables", tables), lens, last_row, &problem)
        }
        Device::Cuda(device) => {
            let kv = [k.view_mut()?, v.view_mut()?];
            gpu::paged_attention::append(&device, out, kv, from, [tables, lens], last_row as u32, &problem)
        }
    }
}

/// The checks that both ops share. The problem has one batch of `rows` queries, q is in the
/// projection, and kv_len is the capacity.
fn check(
    out: &TensorMut,
    [k, v]: [&mut KvTensor; 2],
    from: &Projection,
    scale: Option<f32>,
) -> Result<(Problem, Device)> {
    let width = k.width();
    let caches = [k.view_mut()?, v.view_mut()?];
    let device = rope_append::check(CHECK, ("out", out), [&caches[0], &caches[1]], from)?;
    let [capacity, num_kv_heads, head_dim] = caches[0].dims;
    let [rows, all_heads] = [0, 1].map(|d| from.qkv.dims()[d]);
    let num_q_heads = all_heads - 2 * num_kv_heads;
    if num_q_heads == 0 || uneven(num_q_heads, num_kv_heads).is_some() {
        let expected = "[rows, heads + 2·kv_heads, dim] with heads > 0, a multiple of kv_heads";
        return Err(CHECK.bad_shape("qkv", from.qkv, expected));
    }
    check_head_dim(CHECK, head_dim)?;
    let rows_of = |heads: usize| HeadStrides { batch: 0, head: head_dim, row: heads * head_dim };
    let stored = HeadStrides { batch: 0, head: width, row: num_kv_heads * width };
    let problem = Problem {
        batch: 1,
        num_q_heads,
        num_kv_heads,
        q_len: rows,
        kv_len: capacity,
        head_dim,
        scale: Attention { scale, causal: true }.scale_for(head_dim),
        causal: true,
        out: rows_of(num_q_heads),
        q: rows_of(all_heads),
        k: stored,
        v: stored,
    };
    Ok((problem, device))
}

/// Appends, and gives q of out's shape.
fn append(out: &TensorMut, [k, v]: [&mut KvTensor; 2], from: &Projection) -> Result<Tensor> {
    let mut q = Tensor::uninitialized(out.shape(), out.dtype(), &out.device())?;
    let outputs = Outputs { q: q.view_mut()?, k: k.view_mut()?, v: v.view_mut()? };
    cpu::rope_append::rope_append(outputs, from)?;
    Ok(q)
}
