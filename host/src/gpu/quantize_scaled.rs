//! The kernels of quantising with given scales, and of its gradients.

use crate::cuda::CudaDevice;
use crate::quant::{Format, QuantTensor};
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::quant::blocks::BLOCK;
use kernels_gpu::quant::scaled::{
    EncodeScaled, ScaledBackward, THREADS, quant_encode_scaled_q4_0, quant_encode_scaled_q8_0,
    quant_scaled_backward_q4_0, quant_scaled_backward_q8_0,
};

pub(crate) fn quantize(device: &CudaDevice, w: &mut QuantTensor, x: &Tensor, scales: &Tensor) -> Result<()> {
    let spec = match w.format() {
        Format::Q4_0 => quant_encode_scaled_q4_0,
        _ => quant_encode_scaled_q8_0,
    };
    let (rows, cols, k) = (w.rows() as u32, w.cols() as u32, w.k as u32);
    let quants = w.quants.view_mut()?.address() as *mut u8;
    let stored = w.scales.view_mut()?.address() as *mut _;
    let parameters = EncodeScaled { quants, stored, x: x.ptr(), scales: scales.ptr(), rows, cols, k };
    let grid = [(rows * (k / BLOCK as u32)).div_ceil(THREADS), 1, 1];
    // SAFETY: `ops::quantize_scaled` has checked that x is contiguous [rows, cols] f32, aligned, and the scales contiguous [rows, k / 32]
    // f32, and made quants and scales for the format and these dimensions; all are on this stream, of less than 2³¹ values, and nothing else
    // refers to the new ones.
    unsafe { device.launch(&spec, grid, &parameters) }
}

pub(crate) fn backward(
    device: &CudaDevice,
    dx: TensorMut,
    dscales: TensorMut,
    dy: &Tensor,
    x: &Tensor,
    scales: &Tensor,
    format: Format,
) -> Result<()> {
    let spec = match format {
        Format::Q4_0 => quant_scaled_backward_q4_0,
        _ => quant_scaled_backward_q8_0,
    };
    let (rows, cols) = x.shape().rows_cols();
    let (rows, cols, k) = (rows as u32, cols as u32, cols.next_multiple_of(BLOCK) as u32);
    if rows == 0 {
        return Ok(());
    }
    let (dx, dscales) = (dx.ptr(), dscales.ptr());
    let (dy, x, scales) = (dy.ptr(), x.ptr(), scales.ptr());
    let parameters = ScaledBackward { dx, dscales, dy, x, scales, rows, cols, k };
    let grid = [(rows * (k / 4)).div_ceil(THREADS), 1, 1];
    // SAFETY: `ops::fake_quantize_scaled_backward_into` has checked that dy and x are contiguous [rows, cols] f32, aligned, and the scales
    // contiguous [rows, k / 32], with gradients of the same shapes, of less than 2³¹ padded values, all on this stream; a TensorMut overlaps
    // nothing.
    unsafe { device.launch(&spec, grid, &parameters) }
}
