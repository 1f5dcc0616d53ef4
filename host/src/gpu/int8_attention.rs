//! Attention with queries and keys in 8-bit integers: they are rounded by two launches, then multiplied.

use super::attention::{for_columns, prefill, scale_log2, strides};
use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use crate::problem::attention::{HeadStrides, Problem};
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::attention::int8::prefill::{Int8Prefill, SPECS};
use kernels_gpu::attention::int8::round::{Round, attention_int8_round};
use kernels_gpu::attention::int8::{ROWS, words};
use kernels_gpu::attention::prefill::attention_prefill_merge_f32;

/// Rows in 8-bit integers with their scales.
struct Rounded {
    quants: DeviceBuffer,
    scales: DeviceBuffer,
    /// Rows of a head, padded.
    rows: u32,
}

impl Rounded {
    /// Of x [planes / heads, heads, rows, head_dim]; scales are multiplied by `factor`.
    fn new(
        device: &CudaDevice,
        x: &Tensor,
        (x_strides, planes, heads, rows): (HeadStrides, usize, usize, usize),
        head_dim: usize,
        (is_centred, factor): (bool, f32),
    ) -> Result<Self> {
        let padded = rows.next_multiple_of(ROWS as usize);
        let row_bytes = words(head_dim as u32) as usize * size_of::<u32>();
        let quants = DeviceBuffer::uninitialized(device, planes * padded * row_bytes)?;
        let scales = DeviceBuffer::uninitialized(device, planes * padded * size_of::<f32>())?;
        let parameters = Round {
            quants: quants.ptr(),
            scales: scales.ptr(),
            x: x.ptr(),
            strides: strides(x_strides),
            heads: heads as u32,
            rows: rows as u32,
            head_dim: head_dim as u32,
            centred: is_centred.into(),
            factor,
        };
        if planes * rows > 0 {
            let grid = [planes as u32, padded as u32 / ROWS, 1];
            // SAFETY: `ops` has checked type, shape, the alignment of the first element and strides, and the span of x, which is on
            // this stream. Quants and scales are allocated for the padded rows, of fewer than 2³¹ words.
            unsafe { device.launch(&attention_int8_round, grid, &parameters)? };
        }
        Ok(Self { quants, scales, rows: padded as u32 })
    }
}

pub(crate) fn int8_attention(
    device: &CudaDevice,
    out: TensorMut,
    [q, k, v]: [&Tensor; 3],
    problem: &Problem,
) -> Result<()> {
    let Problem { batch, num_q_heads, num_kv_heads, q_len, kv_len, head_dim, .. } = *problem;
    let heads = batch * num_q_heads;
    if heads * q_len == 0 {
        return Ok(());
    }
    let of_q = (problem.q, heads, num_q_heads, q_len);
    let of_k = (problem.k, batch * num_kv_heads, num_kv_heads, kv_len);
    let q = Rounded::new(device, q, of_q, head_dim, (false, scale_log2(problem)))?;
    let k = Rounded::new(device, k, of_k, head_dim, (true, 1.0))?;

    let (v, out) = (v.ptr(), out.ptr::<f32>());
    let kernel = for_columns(SPECS, head_dim);
    // SAFETY: `ops` has checked types, shapes, the alignment of first elements and strides, spans below 2³¹ and that all tensors are on
    // this stream; a TensorMut overlaps nothing. The launches before write the rounded rows and scales, which are freed after these.
    unsafe {
        prefill(device, kernel, &attention_prefill_merge_f32, out, problem, |parts| Int8Prefill {
            out,
            q: q.quants.ptr(),
            k: k.quants.ptr(),
            v,
            q_scales: q.scales.ptr(),
            k_scales: k.scales.ptr(),
            out_strides: strides(problem.out),
            v_strides: strides(problem.v),
            num_q_heads: num_q_heads as u32,
            group: problem.group() as u32,
            q_len: q_len as u32,
            kv_len: kv_len as u32,
            q_rows: q.rows,
            k_rows: k.rows,
            head_dim: head_dim as u32,
            causal: problem.causal.into(),
            longest_first: parts.longest_first,
            parts_log2: parts.log2,
            partial: parts.partial,
        })
    }
}
