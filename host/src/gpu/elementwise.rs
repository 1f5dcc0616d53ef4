//! Element-wise ops: the kernel by type, the grid by size and alignment.

use super::vectors;
use crate::cuda::{Arg, CudaDevice, args};
use crate::ops::elementwise::{Binary, Unary};
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::device::flat;
use kernels_gpu::elementwise::*;

pub(crate) fn binary(device: &CudaDevice, op: Binary, z: TensorMut, x: &Tensor, y: &Tensor) -> Result<()> {
    let n = x.shape().elements() as u32;
    if n == 0 {
        return Ok(());
    }
    let spec = match (op, x.dtype()) {
        (Binary::Add, DType::F16) => ADD_F16,
        (Binary::Add, _) => ADD_F32,
        (Binary::Mul, DType::F16) => MUL_F16,
        (Binary::Mul, _) => MUL_F32,
        (Binary::SiluMul, DType::F16) => SILU_MUL_F16,
        (Binary::SiluMul, _) => SILU_MUL_F32,
    };
    let (size, period) = (x.dtype().size(), y.shape().elements() as u32);
    let addresses = [z.address(), x.address(), y.address()];
    let len = vectors::len(size);
    let head = if period == n {
        vectors::head(n, len, &addresses.map(|address| (address, size)))
    } else if vectors::rows_aligned(period, size, &addresses) {
        0
    } else {
        n
    };
    let [z, x, y] = addresses;
    // SAFETY: `ops` has checked that z and x are contiguous [n] and y [period] of the kernel's type on this stream, of
    // less than 2³¹ elements, and a TensorMut overlaps nothing; `head` is where all are aligned.
    unsafe { device.launch_args(&spec, [flat::blocks(n, head, len), 1, 1], args![z, x, y, n, head, period]) }
}

pub(crate) fn unary(device: &CudaDevice, op: Unary, y: TensorMut, x: &Tensor) -> Result<()> {
    let f16 = x.dtype() == DType::F16;
    match op {
        Unary::Scale(factor) => launch(device, if f16 { SCALE_F16 } else { SCALE_F32 }, y, x, args![factor]),
        Unary::GeluTanh => launch(device, if f16 { GELU_TANH_F16 } else { GELU_TANH_F32 }, y, x, args![]),
        Unary::GeluErf => launch(device, if f16 { GELU_ERF_F16 } else { GELU_ERF_F32 }, y, x, args![]),
    }
}

fn launch(device: &CudaDevice, spec: KernelSpec, y: TensorMut, x: &Tensor, scalars: &[Arg]) -> Result<()> {
    let n = x.shape().elements() as u32;
    if n == 0 {
        return Ok(());
    }
    let (size, y, x) = (x.dtype().size(), y.address(), x.address());
    let len = vectors::len(size);
    let head = vectors::head(n, len, &[(y, size), (x, size)]);
    let arguments = [args![y, x, n, head], scalars].concat();
    // SAFETY: `ops` has checked that both are contiguous [n] of the kernel's type on this stream, of less than 2³¹
    // elements, and a TensorMut overlaps nothing; `head` is where both are aligned.
    unsafe { device.launch_args(&spec, [flat::blocks(n, head, len), 1, 1], &arguments) }
}
