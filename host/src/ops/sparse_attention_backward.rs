//! The gradients of block-sparse attention.

use super::attention_backward;
use super::check::Check;
use super::sparse_attention::PreparedMask;
use crate::{Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("sparse_attention_backward");

/// The gradients of [`sparse_attention`](super::sparse_attention()) with respect to q, k and v, over the blocks that `mask` lists only.
///
/// Arguments are those of [`attention_backward`](super::attention_backward()), with the mask and the scale that `sparse_attention` was given;
/// so is what is said there of types and of the order of sums. Keys that no query attends to have gradients of 0, and so have queries that
/// attend to no key. The mask's lists for the gradients are made at the first call.
///
/// ```
/// use pascaline::block_mask::{BlockGrid, BlockMask};
/// use pascaline::ops::{self, Path, PreparedMask};
/// use pascaline::{DType, Device, Tensor};
/// let cpu = Device::Cpu;
/// let diagonal = BlockMask::from_rule(BlockGrid::new(16, 32, 32)?, 1, |_, row| vec![row])?;
/// let mask = PreparedMask::new(diagonal, Path::Sparse, &cpu)?;
/// let ones = || Tensor::ones([1, 32, 16], DType::F32, &cpu);
/// let (q, k, v, dout) = (ones()?, ones()?, ones()?, ones()?);
/// let out = ops::sparse_attention(&q, &k, &v, &mask, None)?;
/// let [dq, _, dv] = ops::sparse_attention_backward(&dout, &q, &k, &v, &out, &mask, None)?;
/// assert!(dv.to_vec::<f32>()?.iter().all(|x| (x - 1.0).abs() < 1e-6)); // 16 queries give each key a sixteenth of their attention
/// assert!(dq.to_vec::<f32>()?.iter().all(|x| x.abs() < 1e-6)); // all values are equal
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`attention_backward`](super::attention_backward()) and [`sparse_attention`](super::sparse_attention()).
pub fn sparse_attention_backward(
    dout: &Tensor,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    out: &Tensor,
    mask: &PreparedMask,
    scale: Option<f32>,
) -> Result<[Tensor; 3]> {
    let new = |x: &Tensor| Tensor::uninitialized(x.shape(), q.dtype(), &q.device());
    let [mut dq, mut dk, mut dv] = [new(q)?, new(k)?, new(v)?];
    let outputs = [dq.view_mut()?, dk.view_mut()?, dv.view_mut()?];
    sparse_attention_backward_into(outputs, [dout, q, k, v, out], mask, scale)?;
    Ok([dq, dk, dv])
}

/// [`sparse_attention_backward`] into dq, dk and dv, of the shapes and the type of q, k and v; their strides are as free as the inputs'.
/// `inputs`: dout, q, k, v and out.
pub fn sparse_attention_backward_into(
    outputs: [TensorMut; 3],
    inputs: [&Tensor; 5],
    mask: &PreparedMask,
    scale: Option<f32>,
) -> Result<()> {
    let [dout, q, k, v, out] = inputs;
    let options = mask.options(scale);
    let (problem, device) = attention_backward::check(CHECK, &outputs, dout, [q, k, v], out, &options)?;
    mask.check(CHECK, q, k, &problem.forward, &device)?;
    match device {
        Device::Cpu => cpu::sparse_attention::attention_backward(outputs, inputs, &problem, &mask.mask),
        Device::Cuda(cuda) => {
            let listed = match (mask.is_dense(), mask.backward.get()) {
                (true, _) => None,
                (false, Some(listed)) => Some(listed),
                (false, None) => {
                    // another thread may have made the same ones meanwhile
                    let made = gpu::sparse_attention::listed(&mask.mask, &Device::Cuda(cuda.clone()))?;
                    Some(mask.backward.get_or_init(|| made))
                }
            };
            gpu::attention_backward::attention_backward(&cuda, outputs, inputs, &problem, listed)
        }
    }
}
