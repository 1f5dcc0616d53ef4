//! Which kernel takes a fused projection apart, and its grid.

use crate::cuda::{Arg, CudaDevice, args};
use crate::kv::KvFormat;
use crate::ops::HeadNorms;
use crate::ops::rope_append::Outputs;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::rope_append::{CODED, HEADS_PER_BLOCK, Q8_0, SPECS};

pub(crate) fn rope_append(
    device: &CudaDevice,
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
    let scales = |scales: &Option<TensorMut>| Arg::from(scales.as_ref().map_or(0, TensorMut::address));
    let (spec, more) = match (qkv.dtype(), k.format) {
        (DType::F16, _) => (SPECS[1], vec![]),
        (_, KvFormat::F32) => (SPECS[0], vec![]),
        (_, KvFormat::F16) => (SPECS[2], vec![]),
        (_, KvFormat::Float16(exponent_bits)) => (CODED, vec![Arg::from(exponent_bits)]),
        (_, KvFormat::Q8_0) => (Q8_0, vec![scales(&k.scales), scales(&v.scales)]),
    };
    let (capacity, kv_heads, angles) = (k.dims[0] as u32, k.dims[1] as u32, cos.dims()[0] as u32);
    let heads = all_heads - 2 * kv_heads;
    let [q_weight, k_weight] = norms.map_or([0; 2], |norms| [norms.q.address(), norms.k.address()]);
    let eps = norms.map_or(0.0, |norms| norms.eps);
    let (half, grid) = (dim / 2, [rows, all_heads.div_ceil(HEADS_PER_BLOCK), 1]);
    let (cos, sin, at) = (cos.address(), sin.address(), at.address());
    let (q, k, v, qkv) = (q.address(), k.values.address(), v.values.address(), qkv.address());
    let arguments =
        args![q, k, v, qkv, cos, sin, q_weight, k_weight, at, heads, kv_heads, half, capacity, angles, eps];
    let arguments = [arguments, &more[..]].concat();
    // SAFETY: `ops::rope_append_into` has checked that all are contiguous, of these shapes and the kernel's types, on this
    // stream and of less than 2³¹ elements, that dim is even and within the kernel's, and that there is an angle; a
    // `KvTensor` has the values and scales of its format; a TensorMut overlaps nothing.
    unsafe { device.launch_args(&spec, grid, &arguments) }
}
