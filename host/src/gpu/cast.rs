//! Cast: the kernel by types, the grid by size and alignment.

use super::{DeviceElement, vectors};
use crate::cuda::CudaDevice;
use crate::{DType, Result, Tensor, TensorMut};
use cuda_std::KernelSpec;
use kernels_gpu::cast::{Cast, LEN, cast_f16_f32, cast_f32_f16};
use kernels_gpu::device::flat;

pub(crate) fn cast(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F16 => launch_cast(device, &cast_f32_f16, y, x),
        _ => launch_cast(device, &cast_f16_f32, y, x),
    }
}

fn launch_cast<Y: DeviceElement, X: DeviceElement>(
    device: &CudaDevice,
    spec: &KernelSpec<Cast<Y, X>>,
    y: TensorMut,
    x: &Tensor,
) -> Result<()> {
    let n = x.shape().elements() as u32;
    if n == 0 {
        return Ok(());
    }
    let (y, x) = (y.ptr::<Y>(), x.ptr::<X>());
    let head = vectors::head(n, LEN, &[(y as u64, size_of::<Y>()), (x as u64, size_of::<X>())]);
    // SAFETY: `ops::cast_into` has checked that both are contiguous [n] of the kernel's types on this stream, of less than
    // 2³¹ elements, and a TensorMut overlaps nothing; from `head` on both are aligned.
    unsafe { device.launch(spec, [flat::blocks(n, head, LEN), 1, 1], &Cast { y, x, n, head }) }
}
