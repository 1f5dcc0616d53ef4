//! Products with quantised matrices by their dequantised values, in f32, for training: their gradients are exact.

use super::check::Check;
use super::copy::aligned;
use super::quant::dequantize;
use super::{linear, matmul};
use crate::problem::activate::Epilogue;
use crate::quant::QuantTensor;
use crate::{DType, Device, Result, Tensor, gpu};

/// y = x·wᵀ + bias with the values of `w` in f32. Unlike [`quant_matmul`](super::quant_matmul), which is for inference, it does not
/// quantise `x`.
///
/// `x`: [rows, k], `w`: [n, k], `bias`: \[n\], all f32 and contiguous. On a GPU there are kernels for `Q8_0`, `Q4_0` and `Q4K` and for n
/// and k that are multiples of 4, which dequantise in their tiles; otherwise all of `w` is dequantised first.
///
/// ```
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor, ops};
/// let w = ops::quantize(&Tensor::full(127.0f32, [2, 32], &Device::Cpu)?, Format::Q8_0)?;
/// let y = ops::dequant_linear(&Tensor::ones([1, 32], DType::F32, &Device::Cpu)?, &w, None)?;
/// assert_eq!(y.to_vec::<f32>()?, [32.0 * 127.0; 2]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn dequant_linear(x: &Tensor, w: &QuantTensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let check = Check("dequant_linear");
    let rows = rows(check, "x", x, w.cols(), "[rows, k], w's columns")?;
    if let Some(bias) = bias {
        check.dtype("bias", bias, DType::F32)?;
        check.contiguous("bias", bias)?;
        check.shape("bias", bias, &[w.rows()], "[n], w's rows")?;
    }
    let mut y = Tensor::uninitialized([rows, w.rows()], DType::F32, &x.device())?;
    let inputs = [("x", x), ("w", &w.quants)].into_iter().chain(bias.map(|bias| ("bias", bias)));
    let device = check.device(&y.view_mut()?, &inputs.collect::<Vec<_>>())?;
    check.size("y", &y)?;
    if let Device::Cuda(device) = device
        && gpu::dequant_linear::forward(&device, y.view_mut()?, &aligned(x)?, w, bias)?
    {
        return Ok(y);
    }
    linear(x, &dequantize(w, DType::F32)?, None, &Epilogue { bias, ..Epilogue::default() })
}

/// The gradient of [`dequant_linear`] with respect to x: dx = dy·w.
///
/// `dy`: [rows, n] f32, contiguous.
///
/// ```
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor, ops};
/// let w = ops::quantize(&Tensor::full(127.0f32, [2, 32], &Device::Cpu)?, Format::Q8_0)?;
/// let dx = ops::dequant_linear_backward(&Tensor::ones([1, 2], DType::F32, &Device::Cpu)?, &w)?;
/// assert_eq!(dx.to_vec::<f32>()?, [2.0 * 127.0; 32]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn dequant_linear_backward(dy: &Tensor, w: &QuantTensor) -> Result<Tensor> {
    let check = Check("dequant_linear_backward");
    let rows = rows(check, "dy", dy, w.rows(), "[rows, n], w's rows")?;
    let mut dx = Tensor::uninitialized([rows, w.cols()], DType::F32, &dy.device())?;
    let device = check.device(&dx.view_mut()?, &[("dy", dy), ("w", &w.quants)])?;
    check.size("dx", &dx)?;
    if let Device::Cuda(device) = device
        && gpu::dequant_linear::gradient(&device, dx.view_mut()?, &aligned(dy)?, w)?
    {
        return Ok(dx);
    }
    matmul(dy, &dequantize(w, DType::F32)?)
}

/// Checks an f32 matrix with this number of columns; returns its rows.
fn rows(
    check: Check,
    argument: &'static str,
    x: &Tensor,
    columns: usize,
    expected: &'static str,
) -> Result<usize> {
    check.dtype(argument, x, DType::F32)?;
    check.contiguous(argument, x)?;
    match x.dims() {
        &[rows, found] if found == columns => Ok(rows),
        _ => Err(check.bad_shape(argument, x, expected)),
    }
}
