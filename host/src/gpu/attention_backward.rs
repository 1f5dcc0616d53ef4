//! The kernels of attention's gradients, one after the other.

use super::DeviceElement;
use super::attention::{by_width, scale_log2, strides};
use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use crate::problem::attention_backward::Problem;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::attention::backward::{self, Backward, Kernels, ROWS, Stats};

pub(crate) fn attention_backward(
    device: &CudaDevice,
    outputs: [TensorMut; 3],
    inputs: [&Tensor; 5],
    problem: &Problem,
) -> Result<()> {
    match inputs[0].dtype() {
        DType::F16 => of(device, &backward::OF_F16, outputs, inputs, problem),
        _ => of(device, &backward::OF_F32, outputs, inputs, problem),
    }
}

fn of<T: DeviceElement>(
    device: &CudaDevice,
    kernels: &Kernels<T>,
    outputs: [TensorMut; 3],
    inputs: [&Tensor; 5],
    problem: &Problem,
) -> Result<()> {
    let forward = &problem.forward;
    let heads = forward.batch * forward.num_q_heads;
    let stats = DeviceBuffer::uninitialized(device, 2 * heads * forward.q_len * size_of::<f32>())?;
    let [dq, dk, dv] = outputs.map(|x| x.ptr::<T>());
    let [dout, q, k, v, out] = inputs.map(Tensor::ptr::<T>);
    let (q_strides, k_strides) = (strides(forward.q), strides(forward.k));
    let dout_strides = strides(problem.dout);
    let (num_q_heads, group) = (forward.num_q_heads as u32, forward.group() as u32);
    let (q_len, kv_len, head_dim) = (forward.q_len as u32, forward.kv_len as u32, forward.head_dim as u32);
    let (scale_log2, causal) = (scale_log2(forward), u32::from(forward.causal));
    let first = Stats {
        stats: stats.ptr(),
        q,
        k,
        out,
        dout,
        q_strides,
        k_strides,
        out_strides: strides(forward.out),
        dout_strides,
        num_q_heads,
        group,
        q_len,
        kv_len,
        head_dim,
        scale_log2,
        causal,
    };
    let then = Backward {
        dq,
        dk,
        dv,
        dout,
        q,
        k,
        v,
        stats: stats.ptr(),
        dq_strides: strides(problem.dq),
        dk_strides: strides(problem.dk),
        dv_strides: strides(problem.dv),
        dout_strides,
        q_strides,
        k_strides,
        v_strides: strides(forward.v),
        num_q_heads,
        group,
        q_len,
        kv_len,
        head_dim,
        scale: forward.scale,
        scale_log2,
        causal,
    };
    let width = by_width(forward.head_dim);
    let of_queries = [heads as u32, q_len.div_ceil(ROWS), 1];
    let of_keys = [(forward.batch * forward.num_kv_heads) as u32, kv_len.div_ceil(ROWS), 1];
    // SAFETY: `ops::attention_backward_into` has checked types, shapes, the alignment of first elements and strides, spans below 2³¹ and
    // that all lie on this stream; a TensorMut overlaps nothing. `stats` has two numbers for each query of each head and is freed after
    // the launches.
    unsafe {
        device.launch(&kernels.stats, of_queries, &first)?;
        device.launch(&kernels.q[width], of_queries, &then)?;
        device.launch(&kernels.kv[width], of_keys, &then)
    }
}
