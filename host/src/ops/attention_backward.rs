//! The gradients of scaled dot-product attention.

use super::attention;
use super::check::Check;
use crate::problem::attention::Attention;
pub use crate::problem::attention_backward::ATTENTION_BACKWARD_BYTES;
use crate::problem::attention_backward::Problem;
use crate::{Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("attention_backward");

/// The gradients of [`attention`](super::attention()) with respect to q, k and v. Scores are recomputed from q and k, tile by tile (Dao 2023,
/// FlashAttention-2, algorithm 2); a GPU has those of so many heads and queries at a time that they take [`ATTENTION_BACKWARD_BYTES`].
///
/// `dout`: the gradient with respect to the result, and `out`: the result, both of `q`'s shape. `q`, `k`, `v` and `options`
/// are those of the call of `attention`. All are of one type, f32 or f16, with sums in f32. Query heads that share a kv head
/// are added in order, and no sum depends on the order in which blocks run, so the same call gives the same bits.
///
/// For sequences that are packed one after the other, call it once per sequence, with views of its rows.
///
/// ```
/// use pascaline::ops::{self, Attention};
/// use pascaline::{DType, Device, Tensor};
/// let one = || Tensor::ones([1, 1, 16], DType::F32, &Device::Cpu);
/// let (q, k, v, dout) = (one()?, one()?, one()?, one()?);
/// let options = Attention::default();
/// let out = ops::attention(&q, &k, &v, &options)?;
/// let [dq, _, dv] = ops::attention_backward(&dout, &q, &k, &v, &out, &options)?;
/// assert_eq!(dv.to_vec::<f32>()?, [1.0; 16]); // of one key the result is its value
/// assert_eq!(dq.to_vec::<f32>()?, [0.0; 16]); // whatever the query is
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`attention`](super::attention()).
pub fn attention_backward(
    dout: &Tensor,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    out: &Tensor,
    options: &Attention,
) -> Result<[Tensor; 3]> {
    let new = |x: &Tensor| Tensor::uninitialized(x.shape(), q.dtype(), &q.device());
    let [mut dq, mut dk, mut dv] = [new(q)?, new(k)?, new(v)?];
    let outputs = [dq.view_mut()?, dk.view_mut()?, dv.view_mut()?];
    attention_backward_into(outputs, dout, q, k, v, out, options)?;
    Ok([dq, dk, dv])
}

/// [`attention_backward`] into dq, dk and dv, of the shapes and the type of q, k and v, with strides under the same
/// conditions.
pub fn attention_backward_into(
    outputs: [TensorMut; 3],
    dout: &Tensor,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    out: &Tensor,
    options: &Attention,
) -> Result<()> {
    let (problem, device) = check(CHECK, &outputs, dout, [q, k, v], out, options)?;
    let inputs = [dout, q, k, v, out];
    match device {
        Device::Cpu => cpu::attention_backward::attention_backward(outputs, inputs, &problem),
        Device::Cuda(device) => {
            gpu::attention_backward::attention_backward(&device, outputs, inputs, &problem, None)
        }
    }
}

/// The checked sizes and strides, and the device that all are on.
pub(super) fn check(
    check: Check,
    outputs: &[TensorMut; 3],
    dout: &Tensor,
    [q, k, v]: [&Tensor; 3],
    out: &Tensor,
    options: &Attention,
) -> Result<(Problem, Device)> {
    let forward = attention::check(check, out, q, k, v, options)?;
    check.dtype("k", k, q.dtype())?;
    check.dtype("dout", dout, q.dtype())?;
    check.shape("dout", dout, q.dims(), "q's shape")?;
    let [dq, dk, dv] = outputs;
    for (argument, gradient, of) in [("dq", dq, q), ("dk", dk, k), ("dv", dv, v)] {
        check.dtype(argument, gradient, q.dtype())?;
        check.shape(argument, gradient, of.dims(), "the shape of what it is the gradient of")?;
    }
    let strides = |argument, x: &TensorMut| attention::strides(check, argument, x);
    let problem = Problem {
        dq: strides("dq", dq)?,
        dk: strides("dk", dk)?,
        dv: strides("dv", dv)?,
        dout: attention::strides(check, "dout", dout)?,
        forward,
    };
    let device = check.device(dq, &[("dout", dout), ("q", q), ("k", k), ("v", v), ("out", out)])?;
    for (argument, gradient) in [("dk", dk), ("dv", dv)] {
        if !gradient.device().same(&device) {
            return Err(check.elsewhere(argument, &gradient.device(), &device));
        }
    }
    Ok((problem, device))
}
