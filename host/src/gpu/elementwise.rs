//! Element-wise ops: the kernel by type, the grid by size and alignment.

use super::{by_dtype, vectors};
use crate::cuda::CudaDevice;
use crate::problem::elementwise::{Binary, Unary};
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::device::flat;
use kernels_gpu::elementwise::{OF_F16, OF_F32, One, Two};

pub(crate) fn binary(device: &CudaDevice, op: Binary, z: TensorMut, x: &Tensor, y: &Tensor) -> Result<()> {
    by_dtype!(x.dtype(), T, kernels = [OF_F32, OF_F16] => {
        let n = x.shape().elements() as u32;
        if n == 0 {
            return Ok(());
        }
        let spec = match op {
            Binary::Add => kernels.add,
            Binary::Mul => kernels.mul,
            Binary::SiluMul => kernels.silu_mul,
        };
        let period = y.shape().elements() as u32;
        let (z, x, y) = (z.ptr::<T>(), x.ptr::<T>(), y.ptr::<T>());
        let addresses = [z as u64, x as u64, y as u64];
        let len = vectors::len(size_of::<T>());
        let head = if period == n {
            vectors::head(n, len, &addresses.map(|address| (address, size_of::<T>())))
        } else if vectors::rows_aligned(period, size_of::<T>(), &addresses) {
            0
        } else {
            n
        };
        // SAFETY: `ops` has checked that z and x are contiguous [n] and y [period] of the kernel's type on this stream, of less
        // than 2³¹ elements, and a TensorMut overlaps nothing; from `head` on all are aligned.
        unsafe { device.launch(&spec, [flat::blocks(n, head, len), 1, 1], &Two { z, x, y, n, head, period }) }
    })
}

pub(crate) fn unary(device: &CudaDevice, op: Unary, y: TensorMut, x: &Tensor) -> Result<()> {
    by_dtype!(x.dtype(), T, kernels = [OF_F32, OF_F16] => {
        let n = x.shape().elements() as u32;
        if n == 0 {
            return Ok(());
        }
        let (spec, factor) = match op {
            Unary::Scale(factor) => (kernels.scale, factor),
            Unary::GeluTanh => (kernels.gelu_tanh, 0.0),
            Unary::GeluErf => (kernels.gelu_erf, 0.0),
        };
        let (y, x) = (y.ptr::<T>(), x.ptr::<T>());
        let len = vectors::len(size_of::<T>());
        let head = vectors::head(n, len, &[(y as u64, size_of::<T>()), (x as u64, size_of::<T>())]);
        // SAFETY: `ops` has checked that both are contiguous [n] of the kernel's type on this stream, of less than 2³¹ elements,
        // and a TensorMut overlaps nothing; from `head` on both are aligned.
        unsafe { device.launch(&spec, [flat::blocks(n, head, len), 1, 1], &One { y, x, n, head, factor }) }
    })
}
