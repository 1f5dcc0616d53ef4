//! Splitting a fused projection, rotation and append: kernel and grid.

use super::DeviceElement;
use crate::cuda::CudaDevice;
use crate::kv::KvMut;
use crate::problem::rope_append::{Outputs, Projection};
use crate::{DType, Result, TensorMut};
use cuda_std::KernelSpec;
use kernels_gpu::device::F16;
use kernels_gpu::rope_append::{Append, HEADS_PER_BLOCK, OF_F16, of_storage};
use std::ptr;

pub(crate) fn rope_append(device: &CudaDevice, outputs: Outputs, from: &Projection) -> Result<()> {
    match from.qkv.dtype() {
        DType::F16 => launch_append(device, OF_F16, outputs, from),
        _ => launch_append(device, of_storage(outputs.k.format.storage()), outputs, from),
    }
}

/// The addresses of keys or values and of their scales, for writing.
pub(super) fn addresses(x: &KvMut) -> (*mut u8, *mut F16) {
    let scales = x.scales.as_ref().map_or(0, TensorMut::address);
    (x.values.address() as *mut u8, scales as *mut F16)
}

/// The addresses of the norms' weights, and eps.
pub(super) fn norms<T: DeviceElement>(from: &Projection) -> ([*const T; 2], f32) {
    from.norms.map_or(([ptr::null(); 2], 0.0), |norms| ([norms.q.ptr(), norms.k.ptr()], norms.eps))
}

fn launch_append<T: DeviceElement>(
    device: &CudaDevice,
    [one, each]: [KernelSpec<Append<T>>; 2],
    Outputs { q, k, v }: Outputs,
    from: &Projection,
) -> Result<()> {
    let &Projection { qkv, cos, sin, at, .. } = from;
    let [rows, all_heads, dim] = [0, 1, 2].map(|d| qkv.dims()[d] as u32);
    if qkv.shape().elements() == 0 {
        return Ok(());
    }
    let (capacity, kv_heads, angles) = (k.dims[0] as u32, k.dims[1] as u32, cos.dims()[0] as u32);
    let ([q_weight, k_weight], eps) = norms(from);
    let (exponent_bits, [(k, k_scales), (v, v_scales)]) = (k.format.exponent_bits(), [&k, &v].map(addresses));
    let parameters = Append {
        q: q.ptr(),
        k,
        v,
        k_scales,
        v_scales,
        qkv: qkv.ptr(),
        cos: cos.ptr(),
        sin: sin.ptr(),
        q_weight,
        k_weight,
        at: at.ptr(),
        at_stride: from.each().unwrap_or(0) as u32,
        heads: all_heads - 2 * kv_heads,
        kv_heads,
        half: dim / 2,
        capacity,
        angles,
        eps,
        exponent_bits,
    };
    let spec = if from.each().is_none() { &one } else { &each };
    // SAFETY: `ops::rope_append_into` has checked that all are of these shapes and the kernel's types, on this stream and of less than
    // 2³¹ elements, and contiguous but for the rows of `at`, whose distance the kernel is told, that dim is even and within the kernel's, and
    // that there is an angle; a `KvTensor` has the values and scales of its format; a TensorMut overlaps nothing.
    unsafe { device.launch(spec, [rows, all_heads.div_ceil(HEADS_PER_BLOCK), 1], &parameters) }
}
