//! Splitting a fused projection, rotation and append: kernel and grid.

use super::DeviceElement;
use crate::cuda::CudaDevice;
use crate::problem::rope_append::{HeadNorms, Outputs};
use crate::{DType, Result, Tensor, TensorMut};
use cuda_std::KernelSpec;
use kernels_gpu::device::F16;
use kernels_gpu::rope_append::{Append, HEADS_PER_BLOCK, OF_F16, of_storage};
use std::ptr;

pub(crate) fn rope_append(
    device: &CudaDevice,
    outputs: Outputs,
    qkv: &Tensor,
    angles: [&Tensor; 2],
    norms: Option<HeadNorms>,
    at: &Tensor,
) -> Result<()> {
    match qkv.dtype() {
        DType::F16 => launch_append(device, OF_F16, outputs, qkv, angles, norms, at),
        _ => {
            let kernels = of_storage(outputs.k.format.storage());
            launch_append(device, kernels, outputs, qkv, angles, norms, at)
        }
    }
}

fn launch_append<T: DeviceElement>(
    device: &CudaDevice,
    [one, each]: [KernelSpec<Append<T>>; 2],
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
    let scales = |scales: &Option<TensorMut>| scales.as_ref().map_or(0, TensorMut::address) as *mut F16;
    let (capacity, kv_heads, angles) = (k.dims[0] as u32, k.dims[1] as u32, cos.dims()[0] as u32);
    let parameters = Append {
        q: q.ptr(),
        k: k.values.address() as *mut u8,
        v: v.values.address() as *mut u8,
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
        exponent_bits: k.format.exponent_bits(),
    };
    let spec = if at.dims().len() == 1 { &one } else { &each };
    // SAFETY: `ops::rope_append_into` has checked that all are contiguous, of these shapes and the kernel's types, on this
    // stream and of less than 2³¹ elements, that dim is even and within the kernel's, and that there is an angle; a
    // `KvTensor` has the values and scales of its format; a TensorMut overlaps nothing.
    unsafe { device.launch(spec, [rows, all_heads.div_ceil(HEADS_PER_BLOCK), 1], &parameters) }
}
