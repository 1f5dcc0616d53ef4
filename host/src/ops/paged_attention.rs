//! Scaled dot-product attention over keys and values in pages.

use super::attention::{check_head_dim, strides, uneven};
use super::check::Check;
use crate::kv::{KvTensor, KvView};
use crate::problem::attention::{Attention, HeadStrides, Problem};
use crate::{DType, Device, Error, Result, Tensor, TensorMut, cpu, gpu};
use kernels_gpu::attention::paged;

const CHECK: Check = Check("paged_attention");

/// Tokens of a page of keys and values.
pub const PAGE: usize = paged::PAGE as usize;

/// Causal attention of a sequence's last queries over its `len` keys, which are in pages of a pool.
///
/// `q`, `out`: [num_q_heads, q_len, head_dim] f32; `k`, `v`: the pool [pages · [`PAGE`], num_kv_heads, head_dim] in one format;
/// `table`: \[≥ len / PAGE\] u32, the sequence's pages in order. Key n is row table\[n / PAGE\] · PAGE + n mod PAGE of the pool. Query i
/// attends to keys up to number i + len − q_len. `scale` is as in [`Attention`].
///
/// `table` is read on the device. The CPU rejects a page that is not in the pool. On a GPU this can't be checked: such a
/// page gives some row of the pool.
///
/// ```
/// use pascaline::kv::{KvFormat, KvTensor};
/// use pascaline::{DType, Device, Tensor, ops};
/// let cpu = Device::Cpu;
/// // a pool of three pages; the sequence's first page is number 2, the second number 0
/// let room = || KvTensor::uninitialized([3 * ops::PAGE, 1, 16], KvFormat::F32, &cpu);
/// let (mut k, mut v) = (room()?, room()?);
/// let table = Tensor::from_slice(&[2u32, 0], [2], &cpu)?;
/// // 17 tokens: q and k are 0, v is the token's number; an angle of 0 rotates nothing
/// let values: Vec<f32> = (0..17).flat_map(|token| [[0.0; 16], [0.0; 16], [token as f32; 16]].concat()).collect();
/// let places: Vec<u32> = (0..17).map(|token| [2, 0][token / ops::PAGE] * 16 + (token % ops::PAGE) as u32).collect();
/// let at = Tensor::from_slice(&[places, vec![0; 17]].concat(), [2, 17], &cpu)?; // each row's place and angle
/// let (cos, sin) = (Tensor::ones([1, 8], DType::F32, &cpu)?, Tensor::zeros([1, 8], DType::F32, &cpu)?);
/// let qkv = Tensor::from_slice(&values, [17, 3, 16], &cpu)?;
/// let mut q = Tensor::uninitialized([17, 1, 16], DType::F32, &cpu)?;
/// ops::rope_append_into(q.view_mut()?, [k.view_mut()?, v.view_mut()?], &qkv, [&cos, &sin], None, &at)?;
/// let mut out = Tensor::uninitialized([1, 17, 16], DType::F32, &cpu)?;
/// ops::paged_attention_into(out.view_mut()?, &q.swap_dims(0, 1)?, &k, &v, &table, 17, None)?;
/// assert_eq!(out.narrow(1, 16, 1)?.to_vec::<f32>()?, [8.0; 16]); // equal scores: the mean of 0 to 16
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`] for any other head_dim, if v's format is not k's, for more keys than the
/// table has pages for, and on the CPU for a page that is not in the pool.
pub fn paged_attention_into(
    out: TensorMut,
    q: &Tensor,
    k: &KvTensor,
    v: &KvTensor,
    table: &Tensor,
    len: usize,
    scale: Option<f32>,
) -> Result<()> {
    let &[num_q_heads, q_len, head_dim] = q.dims() else {
        return Err(CHECK.bad_shape("q", q, "[num_q_heads, q_len, head_dim]"));
    };
    let [q_strides, out_strides] = [strides(CHECK, "q", q)?, strides(CHECK, "out", &out)?];
    let dims = [1, num_q_heads, q_len, head_dim];
    let problem = check(&out, q, [k, v], dims, [q_strides, out_strides], len, scale)?;
    CHECK.dtype("table", table, DType::U32)?;
    let &[width] = table.dims() else { return Err(CHECK.bad_shape("table", table, "[pages]")) };
    CHECK.contiguous("table", table)?;
    if len > width.saturating_mul(PAGE) {
        return Err(CHECK.unsupported("len", len, format!("the table has {width} pages of {PAGE} tokens")));
    }
    let Some(last_row) = run(&problem, k) else { return Ok(()) };
    let kv = [k.view(), v.view()];
    match device(&out, q, kv, &[("table", table)])? {
        Device::Cpu => cpu::paged_attention::paged_attention(
            out,
            q,
            kv,
            ("table", table),
            &[len as u32],
            last_row,
            &problem,
        ),
        Device::Cuda(device) => {
            gpu::paged_attention::one(&device, out, q, kv, table, last_row as u32, &problem)
        }
    }
}

/// Attention of one query for each of several sequences over all keys of that sequence, which are in pages of a pool.
///
/// `q`, `out`: [sequences, num_q_heads, head_dim] f32; `k`, `v`: as in [`paged_attention_into`]; `tables`: [sequences,
/// width] u32, each sequence's pages in order; `lens`: \[sequences\] u32, the number of keys of each, of which at most width
/// · [`PAGE`] are used. A sequence without keys gives 0. Sequences may share pages.
///
/// `tables` and `lens` are read on the device, so that a captured launch serves other sequences. The CPU rejects a page that
/// is not in the pool. On a GPU this can't be checked: such a page gives some row of the pool. On one device a sequence
/// gives the same bits whichever other sequences there are, whichever pages its keys are in, and for every `width`.
///
/// ```
/// use pascaline::kv::{KvFormat, KvTensor};
/// use pascaline::{DType, Device, Tensor, ops};
/// let cpu = Device::Cpu;
/// let room = || KvTensor::uninitialized([3 * ops::PAGE, 1, 16], KvFormat::F32, &cpu);
/// let (mut k, mut v) = (room()?, room()?);
/// // a token for each of two sequences, whose first pages are numbers 2 and 0
/// let qkv = Tensor::from_slice(&[[1.0f32; 48], [2.0; 48]].concat(), [2, 3, 16], &cpu)?;
/// let at = Tensor::from_slice(&[2 * 16, 0, 0, 0u32], [2, 2], &cpu)?; // rows of the pool, and angles
/// let (cos, sin) = (Tensor::ones([1, 8], DType::F32, &cpu)?, Tensor::zeros([1, 8], DType::F32, &cpu)?);
/// let mut q = Tensor::uninitialized([2, 1, 16], DType::F32, &cpu)?;
/// ops::rope_append_into(q.view_mut()?, [k.view_mut()?, v.view_mut()?], &qkv, [&cos, &sin], None, &at)?;
/// let tables = Tensor::from_slice(&[2u32, 0], [2, 1], &cpu)?;
/// let lens = Tensor::from_slice(&[1u32, 1], [2], &cpu)?;
/// let mut out = Tensor::uninitialized([2, 1, 16], DType::F32, &cpu)?;
/// ops::paged_attention_each_into(out.view_mut()?, &q, &k, &v, &tables, &lens, None)?;
/// assert_eq!(out.to_vec::<f32>()?, [[1.0; 16], [2.0; 16]].concat()); // of one key the result is its value
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`paged_attention_into`].
pub fn paged_attention_each_into(
    out: TensorMut,
    q: &Tensor,
    k: &KvTensor,
    v: &KvTensor,
    tables: &Tensor,
    lens: &Tensor,
    scale: Option<f32>,
) -> Result<()> {
    let &[sequences, num_q_heads, head_dim] = q.dims() else {
        return Err(CHECK.bad_shape("q", q, "[sequences, num_q_heads, head_dim]"));
    };
    // one query per head: the stride of heads in [heads, rows, dim] is that of sequences here, and the stride of rows that
    // of heads
    let alone = |x: HeadStrides| HeadStrides { batch: x.head, head: x.row, row: 0 };
    let all = [alone(strides(CHECK, "q", q)?), alone(strides(CHECK, "out", &out)?)];
    let capacity = check_tables(CHECK, [tables, lens], sequences)?;
    let problem = check(&out, q, [k, v], [sequences, num_q_heads, 1, head_dim], all, capacity, scale)?;
    let Some(last_row) = run(&problem, k) else { return Ok(()) };
    let kv = [k.view(), v.view()];
    match device(&out, q, kv, &[("tables", tables), ("lens", lens)])? {
        Device::Cpu => {
            let lens = cpu::slice::<u32>(lens)?;
            cpu::paged_attention::paged_attention(out, q, kv, ("tables", tables), lens, last_row, &problem)
        }
        Device::Cuda(device) => {
            gpu::paged_attention::each(&device, out, q, kv, [tables, lens], last_row as u32, &problem)
        }
    }
}

/// Checks page tables and lengths of sequences; how many keys a table has pages for. Errors name `op`.
pub(super) fn check_tables(op: Check, [tables, lens]: [&Tensor; 2], sequences: usize) -> Result<usize> {
    op.dtype("tables", tables, DType::U32)?;
    let &[_, width] = tables.dims() else {
        return Err(op.bad_shape("tables", tables, "[sequences, width]"));
    };
    op.shape("tables", tables, &[sequences, width], "[sequences, width]")?;
    op.dtype("lens", lens, DType::U32)?;
    op.shape("lens", lens, &[sequences], "[sequences]")?;
    op.contiguous("tables", tables)?;
    op.contiguous("lens", lens)?;
    Ok(width.saturating_mul(PAGE))
}

/// The checks that both ops share.
fn check(
    out: &TensorMut,
    q: &Tensor,
    [k, v]: [&KvTensor; 2],
    [batch, num_q_heads, q_len, head_dim]: [usize; 4],
    [q_strides, out_strides]: [HeadStrides; 2],
    kv_len: usize,
    scale: Option<f32>,
) -> Result<Problem> {
    CHECK.dtype("q", q, DType::F32)?;
    CHECK.dtype("out", out, DType::F32)?;
    CHECK.shape("out", out, q.dims(), "q's shape")?;
    if v.format() != k.format() {
        return Err(CHECK.unsupported("v", v.format(), format!("k is in {}", k.format())));
    }
    let [rows, num_kv_heads, _] = k.dims();
    for (argument, kv) in [("k", k), ("v", v)] {
        let expected = match kv.dims() == [rows, num_kv_heads, head_dim]
            && rows.is_multiple_of(PAGE)
            && rows > 0
        {
            true => uneven(num_q_heads, num_kv_heads),
            false => Some(format!(
                "[pages · {PAGE}, num_kv_heads, {head_dim}] with a page or more, as q has it, the same for k and v"
            )),
        };
        if let Some(expected) = expected {
            return Err(Error::Shape { op: CHECK.0, argument, expected, found: kv.dims().into() });
        }
    }
    check_head_dim(CHECK, head_dim)?;
    let limit = u32::MAX as usize;
    if kv_len > limit {
        let (elements, limit) = (kv_len as u128, limit as u128);
        return Err(Error::TooLarge { op: CHECK.0, argument: "len", elements, limit });
    }
    let stored = HeadStrides { batch: 0, head: k.width(), row: num_kv_heads * k.width() };
    Ok(Problem {
        batch,
        num_q_heads,
        num_kv_heads,
        q_len,
        kv_len,
        head_dim,
        scale: Attention { scale, causal: true }.scale_for(head_dim),
        causal: true,
        out: out_strides,
        q: q_strides,
        k: stored,
        v: stored,
    })
}

/// The pool's last row; `None` if there is nothing to compute.
fn run(problem: &Problem, k: &KvTensor) -> Option<usize> {
    let rows = problem.batch * problem.num_q_heads * problem.q_len;
    k.dims()[0].checked_sub(1).filter(|_| rows > 0)
}

/// The device of all tensors.
fn device(
    out: &TensorMut,
    q: &Tensor,
    [k, v]: [KvView; 2],
    more: &[(&'static str, &Tensor)],
) -> Result<Device> {
    let mut inputs = vec![("q", q), ("k", k.values), ("v", v.values)];
    inputs.extend(more);
    CHECK.device(out, &inputs)
}
