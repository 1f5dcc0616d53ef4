//! Which attention kernel, and its grid.

use crate::cuda::{CudaDevice, args};
use crate::ops::attention::Problem;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::attention::Types;
use kernels_gpu::attention::prefill::{PREFILL_D64, PREFILL_D128, QUERIES_PER_BLOCK};

fn types(q: DType, kv: DType) -> Types {
    match (q, kv) {
        (DType::F16, _) => Types::F16,
        (_, DType::F16) => Types::F32WithF16,
        _ => Types::F32,
    }
}

fn prefill_kernel(head_dim: usize, types: Types) -> KernelSpec {
    if head_dim <= 64 { PREFILL_D64[types as usize] } else { PREFILL_D128[types as usize] }
}

pub(crate) fn attention(
    device: &CudaDevice,
    out: TensorMut,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    problem: &Problem,
) -> Result<()> {
    let &Problem { batch, num_q_heads, q_len, kv_len, head_dim, scale, .. } = problem;
    let heads = batch * num_q_heads;
    if heads * q_len == 0 {
        return Ok(());
    }
    let types = types(q.dtype(), k.dtype());
    let [o, q_strides, k_strides, v_strides] = [problem.out, problem.q, problem.k, problem.v]
        .map(|strides| [strides.batch, strides.head, strides.row].map(|stride| stride as u32));
    let scale_log2 = scale * std::f32::consts::LOG2_E;
    let spec = prefill_kernel(head_dim, types);
    let grid = [heads as u32, (q_len as u32).div_ceil(QUERIES_PER_BLOCK), 1];
    let arguments = args![
        out.address(),
        q.address(),
        k.address(),
        v.address(),
        o[0],
        o[1],
        o[2],
        q_strides[0],
        q_strides[1],
        q_strides[2],
        k_strides[0],
        k_strides[1],
        k_strides[2],
        v_strides[0],
        v_strides[1],
        v_strides[2],
        num_q_heads as u32,
        problem.group() as u32,
        q_len as u32,
        kv_len as u32,
        head_dim as u32,
        scale_log2,
        u32::from(problem.causal),
    ];
    // SAFETY: `ops::attention_into` has checked types, shapes, the alignment of first elements and strides, spans
    // below 2³¹ and that all lie on this stream; a TensorMut overlaps nothing.
    unsafe { device.launch(&spec, grid, arguments) }
}
