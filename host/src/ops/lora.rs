//! A matrix beside a low-rank change.

use super::activate::finish_into;
use super::check::Check;
use super::copy::aligned;
use super::linear::linear;
use super::quant::{check_columns, columns_of, has_one_row, quant_matmul_into, with_last_replaced};
use super::rms_norm::{self, rms_norm};
use crate::problem::activate::{Activation, Epilogue};
use crate::quant::QuantTensor;
use crate::{DType, Device, Result, Tensor, TensorMut, gpu};

const CHECK: Check = Check("quant_lora");

/// y = act(h·wᵀ + (h·aᵀ)·bᵀ + bias) + residual with h = norm(x): a quantised matrix beside a low-rank change, with h quantised to 8 bits for
/// the product with `w` alone (Hu et al. 2021, "LoRA"). On GPUs a single row takes one launch, after the norm if k is no multiple of 4 of at
/// most 8,192; otherwise there are three products.
///
/// `x`: [.., k] f32, `norm`: the weight \[k\] f32 and the eps of an [RMS norm](super::rms_norm()), `w`: [n, k], `a`: [rank, k] f32,
/// `b`: [n, rank] f32, all contiguous; the result is [.., n] f32, or [.., n/2] for
/// [`Activation::SwiGlu`].
///
/// ```
/// use pascaline::ops::{self, Epilogue};
/// use pascaline::quant::Format;
/// use pascaline::{Device, Tensor};
/// let x = Tensor::from_slice(&[127.0f32, 2.0], [1, 2], &Device::Cpu)?;
/// let w = ops::quantize(&Tensor::from_slice(&[1.0f32, 0.0], [1, 2], &Device::Cpu)?, Format::I8)?;
/// let a = Tensor::from_slice(&[0.0f32, 3.0], [1, 2], &Device::Cpu)?; // rank 1
/// let b = Tensor::from_slice(&[10.0f32], [1, 1], &Device::Cpu)?;
/// let y = ops::quant_lora(&x, &w, None, [&a, &b], &Epilogue::default())?;
/// assert_eq!(y.to_vec::<f32>()?, [127.0 + 10.0 * 6.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the dimensions do not fit each other, and as [`quant_linear`](super::quant_linear).
pub fn quant_lora(
    x: &Tensor,
    w: &QuantTensor,
    norm: Option<(&Tensor, f32)>,
    change: [&Tensor; 2],
    epilogue: &Epilogue,
) -> Result<Tensor> {
    let shape = with_last_replaced(x.shape(), columns_of(CHECK, w, epilogue)?);
    let mut y = Tensor::uninitialized(shape, DType::F32, &x.device())?;
    quant_lora_into(y.view_mut()?, x, w, norm, change, epilogue)?;
    Ok(y)
}

/// [`quant_lora`] into `y`, contiguous.
pub fn quant_lora_into(
    y: TensorMut,
    x: &Tensor,
    w: &QuantTensor,
    norm: Option<(&Tensor, f32)>,
    change: [&Tensor; 2],
    epilogue: &Epilogue,
) -> Result<()> {
    let [a, b] = change;
    for (argument, tensor) in [("x", x), ("a", a), ("b", b)] {
        CHECK.dtype(argument, tensor, DType::F32)?;
        CHECK.contiguous(argument, tensor)?;
    }
    let &[rank, width] = a.dims() else { return Err(CHECK.bad_shape("a", a, "[rank, k]")) };
    if width != w.cols() {
        return Err(CHECK.bad_shape("a", a, format!("[_, {}], w's columns", w.cols())));
    }
    CHECK.shape("b", b, &[w.rows(), rank], "[n, rank]")?;
    check_columns(CHECK, x.shape(), w)?;
    let columns = columns_of(CHECK, w, epilogue)?;
    CHECK.dtype("y", &y, DType::F32)?;
    CHECK.contiguous("y", &y)?;
    CHECK.shape(
        "y",
        &y,
        with_last_replaced(x.shape(), columns).dims(),
        "[x.., n], or half of n for SwiGlu",
    )?;
    let mut inputs = vec![("x", x), ("w", &w.quants), ("a", a), ("b", b)];
    if let Some((weight, eps)) = norm {
        rms_norm::check_inputs(CHECK, x, weight, eps)?;
        inputs.push(("weight", weight));
    }
    inputs.extend(epilogue.check(CHECK, &y, w.rows())?);
    let device = CHECK.device(&y, &inputs)?;
    let in_one = has_one_row(x) && w.rows() > 0 && gpu::lora::is_fused(rank, w.cols());
    let device = match device {
        Device::Cuda(device) if in_one => Some(device),
        _ => None,
    };
    // the norm too, where the launch has room for it
    let (inside, before) = match device.is_some() && gpu::quant::norm_is_fused(w.cols()) {
        true => (norm, None),
        false => (None, norm),
    };
    let normed = before.map(|(weight, eps)| rms_norm(x, weight, eps)).transpose()?;
    let x = normed.as_ref().unwrap_or(x);
    let Some(device) = device else { return three(y, x, w, change, epilogue) };
    let weight = inside.map(|(weight, eps)| Ok((aligned(weight)?, eps))).transpose()?;
    let helpers = gpu::lora::helpers(rank);
    let product = |y: TensorMut, epilogue: &Epilogue| {
        let norm = weight.as_ref().map(|(weight, eps)| (weight, *eps));
        gpu::lora::lora(&device, y, (&aligned(x)?, norm), w, [&aligned(a)?, b], epilogue, helpers)
    };
    match (epilogue.activation, epilogue.bias) {
        (Activation::GeluErf, _) | (Activation::SwiGlu, Some(_)) => {}
        _ => return product(y, epilogue),
    }
    let mut sums = Tensor::uninitialized(with_last_replaced(x.shape(), w.rows()), DType::F32, &x.device())?;
    product(sums.view_mut()?, &Epilogue::default())?;
    finish_into(y, &sums, epilogue)
}

fn three(y: TensorMut, x: &Tensor, w: &QuantTensor, change: [&Tensor; 2], epilogue: &Epilogue) -> Result<()> {
    beside_into(y, x, change, w.rows(), epilogue, |y, epilogue| quant_matmul_into(y, x, w, epilogue))
}

/// y = act(x·wᵀ + (x·aᵀ)·bᵀ + bias) + residual by three products, where `product` is that with the n rows of w, with a bias and a residual.
pub(crate) fn beside_into(
    y: TensorMut,
    x: &Tensor,
    [a, b]: [&Tensor; 2],
    n: usize,
    epilogue: &Epilogue,
    product: impl Fn(TensorMut, &Epilogue) -> Result<()>,
) -> Result<()> {
    let Epilogue { bias, activation, residual } = *epilogue;
    let low = linear(x, a, None, &Epilogue::default())?;
    let change = |residual| linear(&low, b, None, &Epilogue { residual, ..Epilogue::default() });
    if activation == Activation::Identity {
        let change = change(residual)?;
        return product(y, &Epilogue { bias, residual: Some(&change), ..Epilogue::default() });
    }
    let change = change(None)?;
    let mut sums = Tensor::uninitialized(with_last_replaced(x.shape(), n), DType::F32, &x.device())?;
    product(sums.view_mut()?, &Epilogue { residual: Some(&change), ..Epilogue::default() })?;
    finish_into(y, &sums, epilogue)
}
