//! Products whose kernels dequantise weights into their tiles: kernels and grids.

use crate::cuda::CudaDevice;
use crate::quant::{Format, QuantTensor};
use crate::{Result, Tensor, TensorMut};
use cuda_std::KernelSpec;
use kernels_gpu::matmul::dequant_linear::{BM, BN, DequantLinear, FORWARD, GRADIENT};
use std::ptr;

/// y = x·wᵀ + bias. Returns `false` and launches nothing if no kernel supports the format or the dimensions.
pub(crate) fn forward(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    w: &QuantTensor,
    bias: Option<&Tensor>,
) -> Result<bool> {
    launch(device, &FORWARD, y, x, w, [w.rows(), w.cols()], bias)
}

/// dx = dy·w. Returns `false` and launches nothing, as above.
pub(crate) fn gradient(device: &CudaDevice, dx: TensorMut, dy: &Tensor, w: &QuantTensor) -> Result<bool> {
    launch(device, &GRADIENT, dx, dy, w, [w.cols(), w.rows()], None)
}

fn launch(
    device: &CudaDevice,
    kernels: &[KernelSpec<DequantLinear>; 3],
    c: TensorMut,
    a: &Tensor,
    w: &QuantTensor,
    [n, k]: [usize; 2],
    bias: Option<&Tensor>,
) -> Result<bool> {
    let spec = match w.format() {
        Format::Q8_0 => &kernels[0],
        Format::Q4_0 => &kernels[1],
        Format::Q4K => &kernels[2],
        _ => return Ok(false),
    };
    let (m, n, k) = (a.dims()[0] as u32, n as u32, k as u32);
    if m == 0 || n == 0 || k == 0 || !n.is_multiple_of(4) || !k.is_multiple_of(4) {
        return Ok(false);
    }
    let bias = bias.map_or(ptr::null(), Tensor::ptr);
    let (quants, scales) = (w.quants.address() as *const u8, w.scales.address() as *const u8);
    let parameters = DequantLinear {
        c: c.ptr(),
        a: a.ptr(),
        w: quants,
        w_scales: scales,
        bias,
        m,
        n,
        k,
        w_cols: w.k as u32,
    };
    let grid = [m.div_ceil(BM) * n.div_ceil(BN), 1, 1];
    // SAFETY: `ops::dequant_linear` has checked that a is contiguous f32 [m, k] and aligned, and the bias [n]. c is [m, n],
    // newly allocated, so it is aligned and unshared. All are on this stream and of less than 2³¹ elements. w is [n, k] or
    // [k, n] as the kernel reads it.
    unsafe { device.launch(spec, grid, &parameters)? };
    Ok(true)
}
