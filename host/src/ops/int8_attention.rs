//! Attention whose queries and keys are multiplied in 8-bit integers.

use super::attention::check;
use super::check::Check;
use crate::problem::attention::{Attention, Problem};
use crate::{DType, Device, Error, MAX_ELEMENTS, Result, Tensor, TensorMut, cpu, gpu};
use kernels_gpu::attention::int8::{ROWS, words};

const CHECK: Check = Check("int8_attention");

/// [`attention`](super::attention()) with q kᵀ in 8-bit integers: less time where there are many queries, and results that differ.
///
/// Each query, and each key less the mean of 64 of the head's keys at equal distances, is rounded to integers within ±127 with one
/// scale for its head_dim values (Zhang et al. 2024, "SageAttention"). Their products are exact. Softmax and values are f32. The mean is
/// the same for all keys of a head, so it changes no result but by its rounding.
///
/// `q`: [b, num_q_heads, q_len, head_dim]; `k`, `v`: [b, num_kv_heads, kv_len, head_dim]; or all without b; all f32. Heads, head_dim,
/// strides and the mask are as in [`attention`](super::attention()).
///
/// The error: with normally distributed queries and keys, whose scores have a standard deviation of 1, 2 and 3, the result's error is
/// 0.9, 1.6 and 1.8 % of its root mean square; rounding the values to 8 bits instead would make it 0.6 %.
///
/// ```
/// use pascaline::ops::{self, Attention};
/// use pascaline::{DType, Device, Tensor};
/// let cpu = Device::Cpu;
/// let q = Tensor::from_slice(&[0.5f32; 16], [1, 1, 16], &cpu)?;
/// let k = Tensor::from_slice(&[[-1.0f32; 16], [1.0; 16]].concat(), [1, 2, 16], &cpu)?;
/// let v = Tensor::from_slice(&[[0.0f32; 16], [1.0; 16]].concat(), [1, 2, 16], &cpu)?;
/// let out = ops::int8_attention(&q, &k, &v, &Attention::default())?.to_vec::<f32>()?;
/// assert!((out[0] - 1.0 / (1.0 + (-4.0f32).exp())).abs() < 1e-5); // scores −2 and 2
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`attention`](super::attention()); [`Error::DType`] for other types than f32.
pub fn int8_attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &Attention) -> Result<Tensor> {
    let mut out = Tensor::uninitialized(q.shape(), q.dtype(), &q.device())?;
    int8_attention_into(out.view_mut()?, q, k, v, options)?;
    Ok(out)
}

/// [`int8_attention`] into `out`, of `q`'s shape and type, with strides under the same conditions.
pub fn int8_attention_into(
    out: TensorMut,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: &Attention,
) -> Result<()> {
    CHECK.dtype("q", q, DType::F32)?;
    CHECK.dtype("k", k, DType::F32)?;
    let problem = check(CHECK, &out, q, k, v, options)?;
    let Problem { batch, num_q_heads, num_kv_heads, q_len, kv_len, head_dim, .. } = problem;
    for (argument, heads, rows) in [("q", num_q_heads, q_len), ("k", num_kv_heads, kv_len)] {
        let rows = batch * heads * rows.next_multiple_of(ROWS as usize); // of tensors whose spans are checked
        let elements = rows as u128 * u128::from(words(head_dim as u32));
        if elements > MAX_ELEMENTS as u128 {
            return Err(Error::TooLarge { op: CHECK.0, argument, elements, limit: MAX_ELEMENTS as u128 });
        }
    }
    match CHECK.device(&out, &[("q", q), ("k", k), ("v", v)])? {
        Device::Cpu => cpu::int8_attention::int8_attention(out, [q, k, v], &problem),
        Device::Cuda(device) => gpu::int8_attention::int8_attention(&device, out, [q, k, v], &problem),
    }
}
