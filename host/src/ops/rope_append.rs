//! Splits a fused projection into rotated queries and a cache's keys and values.

use super::check::Check;
use crate::kv::{KvFormat, KvMut};
use crate::problem::rope_append::{HeadNorms, Outputs, Projection};
use crate::{DType, Device, Error, Result, Tensor, TensorMut, cpu, gpu};
use kernels_gpu::rope_append::MAX_DIM;

const CHECK: Check = Check("rope_append");

/// Splits a fused projection. Each head of q and k is normalised (if `norms` is given) and rotated as by
/// [`rope`](super::rope()). q is written to `q`, keys and values to rows past, past + 1, … of the caches `k` and `v`.
///
/// `qkv`: [rows, heads + 2·kv_heads, dim] f32 or f16; `q`: [rows, heads, dim] of the same type; `k`, `v`: [capacity,
/// kv_heads, dim], both in one format, which is f16 for an f16 `qkv`; `cos`, `sin`: [angles, dim/2] f32, with angles > 0;
/// `at`: \[2\] u32, (past, the first row's angle). For rows of several sequences, `at`: [2, rows] u32 has each row's index
/// in the caches, all different, and its angle. All are contiguous, but for the two rows of such an `at`; dim is even and at most 256.
///
/// `at` is read on the device, so that a captured launch serves every token. So it can't be checked: rows beyond the
/// capacity are not written, and rows beyond the angles use the last angle.
///
/// ```
/// use pascaline::kv::{KvFormat, KvTensor};
/// use pascaline::{DType, Device, Tensor, ops};
/// // one row with a head each of q, k and v, of two elements; its angle is a quarter turn
/// let qkv = Tensor::from_slice(&[1.0f32, 0.0, 2.0, 0.0, 3.0, 4.0], [1, 3, 2], &Device::Cpu)?;
/// let cos = Tensor::zeros([1, 1], DType::F32, &Device::Cpu)?;
/// let sin = Tensor::ones([1, 1], DType::F32, &Device::Cpu)?;
/// let at = Tensor::from_slice(&[5u32, 0], [2], &Device::Cpu)?; // five tokens are in the cache
/// let mut q = Tensor::uninitialized([1, 1, 2], DType::F32, &Device::Cpu)?;
/// let mut k = KvTensor::uninitialized([8, 1, 2], KvFormat::F32, &Device::Cpu)?;
/// let mut v = KvTensor::uninitialized([8, 1, 2], KvFormat::F32, &Device::Cpu)?;
/// ops::rope_append_into(q.view_mut()?, [k.view_mut()?, v.view_mut()?], &qkv, [&cos, &sin], None, &at)?;
/// assert_eq!(q.to_vec::<f32>()?, [0.0, 1.0]); // row 5 of k is (0, 2), that of v (3, 4)
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for another dim or eps.
pub fn rope_append_into(
    q: TensorMut,
    [k, v]: [KvMut; 2],
    qkv: &Tensor,
    [cos, sin]: [&Tensor; 2],
    norms: Option<HeadNorms>,
    at: &Tensor,
) -> Result<()> {
    let from = Projection { qkv, cos, sin, norms, at };
    let device = check(CHECK, ("q", &q), [&k, &v], &from)?;
    let outputs = Outputs { q, k, v };
    match device {
        Device::Cpu => cpu::rope_append::rope_append(outputs, &from),
        Device::Cuda(device) => gpu::rope_append::rope_append(&device, outputs, &from),
    }
}

/// The checks of an op on a projection, which writes `q` [rows, heads, dim] and caches. Errors name `op`.
pub(super) fn check(
    op: Check,
    (argument_q, q): (&'static str, &TensorMut),
    [k, v]: [&KvMut; 2],
    from: &Projection,
) -> Result<Device> {
    let &Projection { qkv, cos, sin, norms, at } = from;
    let dtype = op.float("qkv", qkv)?;
    let &[rows, all_heads, dim] = qkv.dims() else {
        return Err(op.bad_shape("qkv", qkv, "[rows, heads + 2·kv_heads, dim]"));
    };
    if !dim.is_multiple_of(2) || dim > MAX_DIM as usize {
        return Err(op.unsupported("dim", dim, format!("it must be even and at most {MAX_DIM}")));
    }
    let [capacity, kv_heads, _] = k.dims;
    let Some(heads) = all_heads.checked_sub(2 * kv_heads) else {
        return Err(op.bad_shape("qkv", qkv, format!("[rows, heads + 2·{kv_heads}, dim]")));
    };
    op.dtype(argument_q, q, dtype)?;
    op.shape(argument_q, q, &[rows, heads, dim], "[rows, heads, dim]")?;
    if dtype == DType::F16 && k.format != KvFormat::F16 {
        return Err(op.unsupported("k", k.format, "f16 keys and values need a cache in f16"));
    }
    if v.format != k.format {
        return Err(op.unsupported("v", v.format, format!("k is in {}", k.format)));
    }
    for (argument, cache) in [("k", k), ("v", v)] {
        if cache.dims != [capacity, kv_heads, dim] {
            let expected = format!("[capacity, kv_heads, {dim}], the same for k and v");
            return Err(Error::Shape { op: op.0, argument, expected, found: cache.dims.into() });
        }
    }
    op.contiguous(argument_q, q)?;
    op.contiguous("qkv", qkv)?;
    let angles = cos.dims().first().copied().unwrap_or(0);
    for (argument, table) in [("cos", cos), ("sin", sin)] {
        op.dtype(argument, table, DType::F32)?;
        op.shape(argument, table, &[angles.max(1), dim / 2], "[angles, dim/2] with angles > 0")?;
        op.contiguous(argument, table)?;
    }
    op.dtype("at", at, DType::U32)?;
    match at.dims() {
        &[2, found] if found == rows => {
            op.size("at", at)?;
            if rows > 1 && at.layout().strides[1] != 1 {
                return Err(Error::Layout {
                    op: op.0,
                    argument: "at",
                    needed: "contiguous in its last dimension",
                });
            }
        }
        _ => {
            op.shape("at", at, &[2], "[2], or [2, rows]")?;
            op.contiguous("at", at)?;
        }
    }
    let mut inputs = vec![("qkv", qkv), ("cos", cos), ("sin", sin), ("at", at)];
    if let Some(HeadNorms { q, k, eps }) = norms {
        for (argument, weight) in [("norms.q", q), ("norms.k", k)] {
            op.dtype(argument, weight, dtype)?;
            op.shape(argument, weight, &[dim], "[dim]")?;
            op.contiguous(argument, weight)?;
            inputs.push((argument, weight));
        }
        if !(eps.is_finite() && eps >= 0.0) {
            return Err(op.unsupported("eps", eps, "it must be finite and not negative"));
        }
    }
    let device = op.device(q, &inputs)?;
    for (argument, cache) in [("k", k), ("v", v)] {
        let found = cache.values.device();
        if !found.same(&device) {
            return Err(op.elsewhere(argument, &found, &device));
        }
    }
    Ok(device)
}
