//! Quantising with given scales, which may be learned.

use super::cast;
use super::check::Check;
use super::copy::aligned;
use super::quant::dequantize;
use crate::quant::{Format, QuantTensor};
use crate::{DType, Device, Result, Shape, Tensor, TensorMut, cpu, gpu};
use kernels_gpu::quant::blocks::BLOCK;

/// Quantises `x` [n, k] f32 with the given scales: the quants of a block are round(x / scale), clipped to the format's range.
///
/// `scales`: [n, ceil(k / 32)] f32, contiguous; they are stored in f16. A scale may be negative, and one of 0 gives zeros. The formats are
/// `Q8_0` and `Q4_0`. The bits are the same on every device.
///
/// ```
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor, ops};
/// let x = Tensor::from_slice(&[0.5f32, -1.0, 300.0], [1, 3], &Device::Cpu)?;
/// let scales = Tensor::from_slice(&[0.5f32], [1, 1], &Device::Cpu)?;
/// let w = ops::quantize_scaled(&x, &scales, Format::Q8_0)?;
/// assert_eq!(ops::dequantize(&w, DType::F32)?.to_vec::<f32>()?, [0.5, -1.0, 63.5]); // 127 steps at most
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for the other formats.
pub fn quantize_scaled(x: &Tensor, scales: &Tensor, format: Format) -> Result<QuantTensor> {
    const CHECK: Check = Check("quantize_scaled");
    let device = check(CHECK, x, scales, format)?;
    let mut w = QuantTensor::uninitialized(format, x.shape().clone(), &device)?;
    match device {
        Device::Cpu => cpu::quantize_scaled::quantize(&mut w, x, scales)?,
        Device::Cuda(device) => gpu::quantize_scaled::quantize(&device, &mut w, &aligned(x)?, scales)?,
    }
    Ok(w)
}

/// `x` quantised with the given scales and dequantised: the forward pass of quantisation-aware training with learned scales.
///
/// ```
/// use pascaline::quant::Format;
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[0.9f32, -1.2], [1, 2], &Device::Cpu)?;
/// let scales = Tensor::from_slice(&[0.5f32], [1, 1], &Device::Cpu)?;
/// assert_eq!(ops::fake_quantize_scaled(&x, &scales, Format::Q4_0)?.to_vec::<f32>()?, [1.0, -1.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`quantize_scaled`].
pub fn fake_quantize_scaled(x: &Tensor, scales: &Tensor, format: Format) -> Result<Tensor> {
    dequantize(&quantize_scaled(x, scales, format)?, DType::F32)
}

/// The gradients of [`fake_quantize_scaled`] with respect to x and the scales, with rounding taken for the identity (Esser et al. 2020,
/// "Learned step size quantization").
///
/// With q the quants and s a block's scale: dx = dy, and ds = Σ dy · (q − x / s). Of values that were clipped dx is 0, and q takes the place
/// of q − x / s. The sums have a fixed order, so the same call gives the same bits.
///
/// ```
/// use pascaline::quant::Format;
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[0.75f32, 300.0], [1, 2], &Device::Cpu)?; // 1.5 steps, and more than 127
/// let scales = Tensor::from_slice(&[0.5f32], [1, 1], &Device::Cpu)?;
/// let dy = Tensor::from_slice(&[10.0f32, 1.0], [1, 2], &Device::Cpu)?;
/// let [dx, dscales] = ops::fake_quantize_scaled_backward(&dy, &x, &scales, Format::Q8_0)?;
/// assert_eq!(dx.to_vec::<f32>()?, [10.0, 0.0]);
/// assert_eq!(dscales.to_vec::<f32>()?, [10.0 * (2.0 - 1.5) + 127.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`quantize_scaled`].
pub fn fake_quantize_scaled_backward(
    dy: &Tensor,
    x: &Tensor,
    scales: &Tensor,
    format: Format,
) -> Result<[Tensor; 2]> {
    let new = |like: &Tensor| Tensor::uninitialized(like.shape(), DType::F32, &like.device());
    let (mut dx, mut dscales) = (new(x)?, new(scales)?);
    fake_quantize_scaled_backward_into([dx.view_mut()?, dscales.view_mut()?], dy, x, scales, format)?;
    Ok([dx, dscales])
}

/// [`fake_quantize_scaled_backward`] into dx and dscales, contiguous.
pub fn fake_quantize_scaled_backward_into(
    [dx, dscales]: [TensorMut; 2],
    dy: &Tensor,
    x: &Tensor,
    scales: &Tensor,
    format: Format,
) -> Result<()> {
    const CHECK: Check = Check("fake_quantize_scaled_backward");
    let device = check(CHECK, x, scales, format)?;
    CHECK.dtype("dy", dy, DType::F32)?;
    CHECK.contiguous("dy", dy)?;
    CHECK.shape("dy", dy, x.dims(), "x's shape")?;
    for (argument, gradient, of) in [("dx", &dx, x), ("dscales", &dscales, scales)] {
        CHECK.dtype(argument, gradient, DType::F32)?;
        CHECK.contiguous(argument, gradient)?;
        CHECK.shape(argument, gradient, of.dims(), "the shape of what it is the gradient of")?;
    }
    if x.shape().rows_cols().1.is_multiple_of(4) {
        CHECK.aligned("dx", &dx, 16)?; // four values are stored at once
    }
    CHECK.device(&dx, &[("dy", dy), ("x", x), ("scales", scales)])?;
    if !dscales.device().same(&device) {
        return Err(CHECK.elsewhere("dscales", &dscales.device(), &device));
    }
    match device {
        Device::Cpu => cpu::quantize_scaled::backward(dx, dscales, dy, x, scales, format),
        Device::Cuda(device) => {
            gpu::quantize_scaled::backward(&device, dx, dscales, &aligned(dy)?, &aligned(x)?, scales, format)
        }
    }
}

impl QuantTensor {
    /// The blocks' scales in f32, [n, ceil(k / 32)], of `Q8_0` and `Q4_0`.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for the other formats.
    pub fn block_scales(&self) -> Result<Tensor> {
        check_format(Check("block_scales"), self.format())?;
        cast(&self.scales, DType::F32)
    }
}

fn check_format(check: Check, format: Format) -> Result<()> {
    match format {
        Format::Q8_0 | Format::Q4_0 => Ok(()),
        _ => {
            let reason = "only Q8_0 and Q4_0 have one scale for each block and nothing else";
            Err(check.unsupported("format", crate::quant::name(format), reason))
        }
    }
}

/// Checks what all of them take; the device.
fn check(check: Check, x: &Tensor, scales: &Tensor, format: Format) -> Result<Device> {
    check_format(check, format)?;
    let (n, k) = QuantTensor::padded(format, x.shape())?;
    for (argument, tensor) in [("x", x), ("scales", scales)] {
        check.dtype(argument, tensor, DType::F32)?;
        check.contiguous(argument, tensor)?;
    }
    let expected = Shape::from([n, k / BLOCK]);
    check.shape("scales", scales, expected.dims(), "[n, ceil(k / 32)]")?;
    if !scales.device().same(&x.device()) {
        return Err(check.elsewhere("scales", &scales.device(), &x.device()));
    }
    Ok(x.device())
}
