//! Which RMS norm kernel, and its grid.

use super::rows::Kernels;
use super::vectors;
use crate::cuda::{CudaDevice, args};
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::rms_norm::*;

const KERNELS: Kernels = Kernels {
    warp: [WARP_F32, WARP_F16],
    block: [BLOCK_F32, BLOCK_F16],
    few: [FEW_F32, BLOCK_F16], // of f16 the instructions weigh more than the wait
    stream: [STREAM_F32, STREAM_F16],
};

pub(crate) fn rms_norm(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    weight: &Tensor,
    eps: f32,
) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let (rows, cols) = (rows as u32, cols as u32);
    if cols == 0 {
        return Ok(());
    }
    let dtype = x.dtype();
    let (y, x, weight) = (y.address(), x.address(), weight.address());
    let vectors = u32::from(vectors::rows_aligned(cols, dtype.size(), &[y, x, weight]));
    // SAFETY: `ops::rms_norm_into` has checked that x and y are contiguous [rows, cols] and the weight [cols] of the
    // kernel's type on this stream, of less than 2³¹ elements, and a TensorMut overlaps nothing; cols > 0.
    unsafe { KERNELS.launch(device, (rows, cols), dtype, args![y, x, weight, rows, cols, eps, vectors]) }
}

/// The textbook kernel, for benches.
pub(crate) fn textbook(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    weight: &Tensor,
    eps: f32,
) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let arguments = args![y.address(), x.address(), weight.address(), cols as u32, eps];
    // SAFETY: `ops::textbook::rms_norm_into` has checked that all tensors are contiguous f32 of the shapes the kernel asks for,
    // on one stream.
    unsafe { device.launch(&TEXTBOOK_F32, [rows as u32, 1, 1], arguments) }
}
