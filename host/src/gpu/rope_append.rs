//! Splitting a fused projection, rotation and append: kernel and grid.

use super::DeviceElement;
use crate::cuda::CudaDevice;
use crate::kv::KvFormat;
use crate::problem::rope_append::{HeadNorms, Outputs};
use crate::{DType, Result, Tensor, TensorMut};
use cuda_std::KernelSpec;
use kernels_gpu::rope_append::{
    Append, HEADS_PER_BLOCK, rope_append_each_f16, rope_append_each_f32, rope_append_each_f32_coded,
    rope_append_each_f32_f16, rope_append_each_f32_q8_0, rope_append_f16, rope_append_f32,
    rope_append_f32_coded, rope_append_f32_f16, rope_append_f32_q8_0,
};
use std::ptr;

pub(crate) fn rope_append(
    device: &CudaDevice,
    outputs: Outputs,
    qkv: &Tensor,
    angles: [&Tensor; 2],
    norms: Option<HeadNorms>,
    at: &Tensor,
) -> Result<()> {
    let k = &outputs.k;
    // the kernel for rows of one sequence, or for rows with a cache position each
    macro_rules! run {
        ($one:expr, $each:expr, $exponent_bits:expr) => {{
            let spec = if at.dims().len() == 1 { &$one } else { &$each };
            launch_append(device, (spec, $exponent_bits), outputs, qkv, angles, norms, at)
        }};
    }
    match (qkv.dtype(), k.format) {
        (DType::F16, _) => run!(rope_append_f16, rope_append_each_f16, 0),
        (_, KvFormat::F32) => run!(rope_append_f32, rope_append_each_f32, 0),
        (_, KvFormat::F16) => run!(rope_append_f32_f16, rope_append_each_f32_f16, 0),
        (_, KvFormat::Float16(bits)) => run!(rope_append_f32_coded, rope_append_each_f32_coded, bits),
        (_, KvFormat::Q8_0) => run!(rope_append_f32_q8_0, rope_append_each_f32_q8_0, 0),
    }
}

fn launch_append<T: DeviceElement, KV: Copy, S: Copy>(
    device: &CudaDevice,
    (spec, exponent_bits): (&KernelSpec<Append<T, KV, S>>, u32),
    Outputs { q, k, v }: Outputs,
    qkv: &Tensor,
    [cos, sin]: [&Tensor; 2],
    norms: Option<HeadNorms>,
    at: &Tensor,
) -> Result<()> {
    let [rows, all_heads, dim] = [0, 1, 2].map(|d| qkv.dims()[d] as u32);
    if qkv.shape().elements() == 0 {
        return Ok(());
    }
    let scales = |scales: &Option<TensorMut>| scales.as_ref().map_or(0, TensorMut::address) as *mut S;
    let (capacity, kv_heads, angles) = (k.dims[0] as u32, k.dims[1] as u32, cos.dims()[0] as u32);
    let parameters = Append {
        q: q.ptr(),
        k: k.values.address() as *mut KV,
        v: v.values.address() as *mut KV,
        k_scales: scales(&k.scales),
        v_scales: scales(&v.scales),
        qkv: qkv.ptr(),
        cos: cos.ptr(),
        sin: sin.ptr(),
        q_weight: norms.as_ref().map_or(ptr::null(), |norms| norms.q.ptr()),
        k_weight: norms.as_ref().map_or(ptr::null(), |norms| norms.k.ptr()),
        at: at.ptr(),
        heads: all_heads - 2 * kv_heads,
        kv_heads,
        half: dim / 2,
        capacity,
        angles,
        eps: norms.as_ref().map_or(0.0, |norms| norms.eps),
        exponent_bits,
    };
    // SAFETY: `ops::rope_append_into` has checked that all are contiguous, of these shapes and the kernel's types, on this
    // stream and of less than 2³¹ elements, that dim is even and within the kernel's, and that there is an angle; a
    // `KvTensor` has the values and scales of its format; a TensorMut overlaps nothing.
    unsafe { device.launch(spec, [rows, all_heads.div_ceil(HEADS_PER_BLOCK), 1], &parameters) }
}
