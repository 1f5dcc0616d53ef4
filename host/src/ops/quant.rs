//! Quantised matrices: quantise, dequantise, multiply.

use super::activate::{activate, finish_into};
use super::check::Check;
use super::copy::{aligned, copy_into};
use super::rms_norm::{self, rms_norm};
use crate::problem::activate::{Activation, Epilogue};
use crate::problem::pieces::QUANTIZE_PIECE;
use crate::quant::{Format, QuantRows, QuantTensor};
use crate::{DType, Device, Error, Result, Shape, Tensor, TensorMut, cpu, gpu};

/// Quantises `x` [n, k] f32. Scales are by the largest magnitude of each row or block (`I8`, `Q8_0`, `Q4_0`) or by the least
/// weighted error (the others). The bits are the same on every device. Rows are padded with zeros to whole blocks.
///
/// ```
/// use pascaline::quant::{ErrorReport, Format};
/// use pascaline::{DType, Device, Tensor, ops};
/// let x = Tensor::randn([4, 64], DType::F32, 1, &Device::Cpu)?;
/// let w = ops::quantize(&x, Format::Q8_0)?;
/// assert_eq!(w.bytes(), 4 * (64 + 2 * 2)); // 8 bits a value, and an f16 scale for each block of 32
/// let y = ops::dequantize(&w, DType::F32)?;
/// let error = ErrorReport::new(&x.to_vec::<f32>()?, &y.to_vec::<f32>()?);
/// assert!(error.relative_rms < 0.01);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] if `x` is not [n, k] with k > 0.
pub fn quantize(x: &Tensor, format: Format) -> Result<QuantTensor> {
    const CHECK: Check = Check("quantize");
    CHECK.dtype("x", x, DType::F32)?;
    CHECK.contiguous("x", x)?;
    let mut w = QuantTensor::uninitialized(format, x.shape().clone(), &x.device())?;
    match x.device() {
        Device::Cpu => cpu::quant::quantize(&mut w, x)?,
        Device::Cuda(device) => gpu::quant::quantize(&device, &mut w, &aligned(x)?)?,
    }
    Ok(w)
}

impl QuantTensor {
    /// Quantises `x` [n, k], row-major, on `device`, some rows at a time, so that the f32 values of a large matrix need not
    /// fit in its memory.
    ///
    /// # Errors
    /// As [`quantize`]; [`Error::Shape`] if `shape` is not [n, k] with as many values.
    pub fn from_f32(x: &[f32], shape: impl Into<Shape>, format: Format, device: &Device) -> Result<Self> {
        let shape = shape.into();
        let mut whole = Self::uninitialized(format, shape.clone(), device)?;
        let (n, cols) = (whole.rows(), whole.cols());
        if x.len() != n * cols {
            let expected = format!("{} values", x.len());
            return Err(Error::Shape { op: "quantize", argument: "shape", expected, found: shape });
        }
        whole.write_rows(0, x)?;
        Ok(whole)
    }

    /// Replaces rows from `start` on by `x`, whole rows, quantised on the tensor's device, some rows at a time.
    ///
    /// ```
    /// use pascaline::quant::{Format, QuantTensor};
    /// use pascaline::{DType, Device, ops};
    /// let mut w = QuantTensor::from_f32(&[0.0; 96], [3, 32], Format::Q8_0, &Device::Cpu)?;
    /// w.write_rows(1, &[127.0; 32])?;
    /// assert_eq!(ops::dequantize(&w, DType::F32)?.to_vec::<f32>()?[31..34], [0.0, 127.0, 127.0]);
    /// # Ok::<(), pascaline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if these are not whole rows of the tensor, [`Error::SharedOutput`] if a clone shares its memory.
    pub fn write_rows(&mut self, start: usize, x: &[f32]) -> Result<()> {
        let (n, cols, format, device) = (self.rows(), self.cols(), self.format(), self.device());
        let rows = x.len() / cols;
        if rows * cols != x.len() || start.checked_add(rows).is_none_or(|end| end > n) {
            let expected = format!("whole rows of {cols} values, {n} at most from row {start} on");
            return Err(Error::Shape { op: "quantize", argument: "x", expected, found: [x.len()].into() });
        }
        let most = (QUANTIZE_PIECE / cols).max(1);
        for from in (0..rows).step_by(most) {
            let len = most.min(rows - from);
            let piece = &x[from * cols..(from + len) * cols];
            let piece = quantize(&Tensor::from_slice(piece, [len, cols], &device)?, format)?;
            for (to, from_piece) in [(&mut self.quants, &piece.quants), (&mut self.scales, &piece.scales)] {
                copy_into(to.view_mut()?.narrow(0, start + from, len)?, from_piece)?;
            }
        }
        Ok(())
    }
}

/// The values of `w` [n, k], in f32 or f16.
///
/// ```
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor, ops};
/// let x = Tensor::from_slice(&[127.0f32, -64.0, 1.0], [1, 3], &Device::Cpu)?;
/// let w = ops::quantize(&x, Format::I8)?; // the largest magnitude is 127 quants: these are whole numbers of them
/// assert_eq!(ops::dequantize(&w, DType::F32)?.to_vec::<f32>()?, [127.0, -64.0, 1.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn dequantize(w: &QuantTensor, dtype: DType) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(w.shape(), dtype, &w.device())?;
    dequantize_into(y.view_mut()?, w)?;
    Ok(y)
}

/// [`dequantize`] into `y` [n, k], f32 or f16.
///
/// # Errors
/// As [`dequantize`], and [`Error::Shape`], [`Error::DeviceMismatch`], and [`Error::Layout`] if `y` is not contiguous, or if k is a
/// multiple of 4 and the view does not begin at a multiple of 4 elements.
pub fn dequantize_into(y: TensorMut, w: &QuantTensor) -> Result<()> {
    const CHECK: Check = Check("dequantize");
    CHECK.shape("y", &y, w.shape().dims(), "w's shape")?;
    rows_into(CHECK, y, w, None)
}

/// y[.., :] = table[ids[..], :], in f32 or f16: embeddings from a quantised table [n, k].
///
/// `ids`: u32, contiguous. An index beyond the table gives a row of NaN.
///
/// ```
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor, ops};
/// let table = Tensor::from_slice(&[127.0f32, 1.0, 254.0, 2.0], [2, 2], &Device::Cpu)?;
/// let table = ops::quantize(&table, Format::I8)?; // a scale for each row
/// let ids = Tensor::from_slice(&[1u32], [1], &Device::Cpu)?;
/// assert_eq!(ops::quant_embedding(&table, &ids, DType::F32)?.to_vec::<f32>()?, [254.0, 2.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn quant_embedding(table: &QuantTensor, ids: &Tensor, dtype: DType) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(with_last(ids.shape(), table.cols()), dtype, &table.device())?;
    quant_embedding_into(y.view_mut()?, table, ids)?;
    Ok(y)
}

/// [`quant_embedding`] into `y` [.., k].
///
/// # Errors
/// As [`quant_embedding`], and [`Error::Shape`]; [`Error::Layout`] also as [`dequantize_into`].
pub fn quant_embedding_into(y: TensorMut, table: &QuantTensor, ids: &Tensor) -> Result<()> {
    const CHECK: Check = Check("quant_embedding");
    CHECK.dtype("ids", ids, DType::U32)?;
    CHECK.contiguous("ids", ids)?;
    CHECK.shape("y", &y, with_last(ids.shape(), table.cols()).dims(), "[ids.., k]")?;
    CHECK.device(&y, &[("ids", ids)])?;
    rows_into(CHECK, y, table, Some(ids))
}

fn rows_into(check: Check, y: TensorMut, w: &QuantTensor, ids: Option<&Tensor>) -> Result<()> {
    let dtype = check.float("y", &y)?;
    check.contiguous("y", &y)?;
    if w.cols().is_multiple_of(4) {
        check.aligned("y", &y, 4 * dtype.size())?; // four values are stored at once
    }
    match check.device(&y, &[("w", &w.quants)])? {
        Device::Cpu => cpu::quant::dequantize(y, w, ids),
        Device::Cuda(device) => gpu::quant::dequantize(&device, y, w, ids),
    }
}

/// Quantises activations [.., k], f32 or f16, contiguous, to 8 bits with a scale per 32 values, for use in several products.
///
/// ```
/// use pascaline::{DType, Device, Tensor, ops};
/// let x = Tensor::full(2.0f32, [1, 32], &Device::Cpu)?;
/// let (quants, scales) = ops::quantize_rows(&x)?.to_vecs()?;
/// assert_eq!(quants[..32], [127; 32]);
/// let (scale, sum) = scales[0];
/// assert_eq!((scale, sum), (2.0 / 127.0, 32 * 127));
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn quantize_rows(x: &Tensor) -> Result<QuantRows> {
    const CHECK: Check = Check("quantize_rows");
    CHECK.float("x", x)?;
    CHECK.contiguous("x", x)?;
    let mut rows = QuantRows::uninitialized(x.shape().clone(), &x.device())?;
    CHECK.size("x", &rows.quants)?;
    match x.device() {
        Device::Cpu => cpu::quant::quantize_rows(&mut rows, x)?,
        Device::Cuda(device) => gpu::quant::quantize_rows(&device, &mut rows, &aligned(x)?)?,
    }
    Ok(rows)
}

/// [`quantize_rows`] of [`rms_norm`](super::rms_norm())(x, weight, eps), on GPUs in one pass.
///
/// `x`: [.., k] f32, `weight`: \[k\] f32, both contiguous.
///
/// ```
/// use pascaline::{DType, Device, Tensor, ops};
/// let x = Tensor::full(5.0f32, [1, 32], &Device::Cpu)?;
/// let weight = Tensor::full(2.0f32, [32], &Device::Cpu)?;
/// let (quants, scales) = ops::rms_norm_rows(&x, &weight, 0.0)?.to_vecs()?;
/// assert_eq!((quants[0], scales[0].0), (127, 2.0 / 127.0)); // 5 / √25 · 2
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`rms_norm`](super::rms_norm()) and [`quantize_rows`].
pub fn rms_norm_rows(x: &Tensor, weight: &Tensor, eps: f32) -> Result<QuantRows> {
    const CHECK: Check = Check("rms_norm_rows");
    let (_, cols) = x.shape().rows_cols();
    rms_norm::check_inputs(CHECK, x, weight, eps)?;
    if !weight.device().same(&x.device()) {
        return Err(CHECK.elsewhere("weight", &weight.device(), &x.device()));
    }
    let device = match x.device() {
        Device::Cuda(device) if x.dtype() == DType::F32 && gpu::quant::norm_is_fused(cols) => device,
        _ => return quantize_rows(&rms_norm(x, weight, eps)?),
    };
    let mut rows = QuantRows::uninitialized(x.shape().clone(), &x.device())?;
    CHECK.size("x", &rows.quants)?;
    gpu::quant::rms_norm_rows(&device, &mut rows, &aligned(x)?, &aligned(weight)?, eps)?;
    Ok(rows)
}

/// [`quantize_rows`] of silu(gate)·up, where a row of x·wᵀ is gate, then up ([`Activation::SwiGlu`]): [.., n/2]. On GPUs large
/// products do it in one pass, and the product itself is never stored.
///
/// `x`: [.., k], `w`: [n, k] with n even.
///
/// ```
/// use pascaline::quant::Format;
/// use pascaline::{Device, Tensor, ops};
/// let x = ops::quantize_rows(&Tensor::from_slice(&[1.0f32, 0.0], [1, 2], &Device::Cpu)?)?;
/// let w = Tensor::from_slice(&[100.0f32, 0.0, 3.0, 0.0], [2, 2], &Device::Cpu)?; // gate and up, a row each
/// let y = ops::quant_gated_rows(&x, &ops::quantize(&w, Format::I8)?)?;
/// assert_eq!(y.shape().dims(), [1, 1]);
/// let (quants, scales) = y.to_vecs()?;
/// assert!((f32::from(quants[0]) * scales[0].0 - 300.0).abs() < 0.01);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`quant_matmul_rows_into`]; [`Error::Unsupported`] if `w` has an odd number of rows.
pub fn quant_gated_rows(x: &QuantRows, w: &QuantTensor) -> Result<QuantRows> {
    const CHECK: Check = Check("quant_gated_rows");
    let Some(columns) = Activation::SwiGlu.columns(w.rows()) else {
        return Err(CHECK.unsupported("w", w.shape(), "gate and up need an even number of rows"));
    };
    check_columns(CHECK, &x.shape, w)?;
    let device = x.quants.device();
    if !w.device().same(&device) {
        return Err(CHECK.elsewhere("w", &w.device(), &device));
    }
    let m = x.shape.rows_cols().0;
    let fused = match &device {
        Device::Cuda(device) if gpu::quant::gate_is_fused(device, m, w.rows()) => device,
        _ => {
            let shape = with_last_replaced(&x.shape, w.rows());
            let mut product = Tensor::uninitialized(shape, DType::F32, &device)?;
            quant_matmul_rows_into(product.view_mut()?, x, w, &Epilogue::default())?;
            return quantize_rows(&activate(&product, None, Activation::SwiGlu)?);
        }
    };
    let mut rows = QuantRows::uninitialized(with_last_replaced(&x.shape, columns), &device)?;
    CHECK.size("y", &rows.quants)?;
    let rest = gpu::quant::gated_rows(fused, &mut rows, x, w)?;
    if rest > 0 {
        let mut product = Tensor::uninitialized([rest, w.rows()], DType::F32, &device)?;
        gpu::quant::matmul_last(fused, product.view_mut()?, x, w)?;
        gpu::quant::quantize_rows(fused, &mut rows, &activate(&product, None, Activation::SwiGlu)?)?;
    }
    Ok(rows)
}

/// [`linear`](super::linear()) with a quantised matrix: y = act(norm(x)·wᵀ + bias) + residual.
///
/// `x`: [.., k] f32, `w`: [n, k], `y`: [.., n] f32, or [.., n/2] for [`Activation::SwiGlu`]. `norm`: the weight \[k\] and
/// eps of an RMS norm of x's rows. On GPUs one row takes one launch: with a norm if k is a multiple of 4 of at most 8,192, and not with
/// [`Activation::GeluErf`] or a bias before [`Activation::SwiGlu`]. Otherwise the norm is a separate pass, and so are these activations.
///
/// ```
/// use pascaline::ops::{self, Activation, Epilogue};
/// use pascaline::quant::Format;
/// use pascaline::{Device, Tensor};
/// let x = Tensor::from_slice(&[1.0f32, 0.0], [1, 2], &Device::Cpu)?;
/// let w = Tensor::from_slice(&[100.0f32, 0.0, 3.0, 0.0], [2, 2], &Device::Cpu)?; // gate and up, a row each
/// let w = ops::quantize(&w, Format::I8)?;
/// let epilogue = Epilogue { activation: Activation::SwiGlu, ..Epilogue::default() };
/// let y = ops::quant_linear(&x, &w, None, &epilogue)?;
/// assert!((y.to_vec::<f32>()?[0] - 300.0).abs() < 0.01);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`quant_matmul`], [`rms_norm`](super::rms_norm()) and [`activate`](super::activate()).
pub fn quant_linear(
    x: &Tensor,
    w: &QuantTensor,
    norm: Option<(&Tensor, f32)>,
    epilogue: &Epilogue,
) -> Result<Tensor> {
    let shape = with_last_replaced(x.shape(), columns_of(MATMUL, w, epilogue)?);
    let mut y = Tensor::uninitialized(shape, DType::F32, &x.device())?;
    quant_linear_into(y.view_mut()?, x, w, norm, epilogue)?;
    Ok(y)
}

/// [`quant_linear`] into `y`, contiguous.
pub fn quant_linear_into(
    y: TensorMut,
    x: &Tensor,
    w: &QuantTensor,
    norm: Option<(&Tensor, f32)>,
    epilogue: &Epilogue,
) -> Result<()> {
    let columns = columns_of(MATMUL, w, epilogue)?;
    if let Some((weight, eps)) = norm {
        rms_norm::check_inputs(MATMUL, x, weight, eps)?;
        if !weight.device().same(&x.device()) {
            return Err(MATMUL.elsewhere("weight", &weight.device(), &x.device()));
        }
    }
    if let Device::Cuda(device) = x.device()
        && is_vector(x)
        && norm.is_none_or(|_| gpu::quant::norm_is_fused(w.cols()))
        && (epilogue.activation != Activation::SwiGlu || epilogue.bias.is_none())
        && epilogue.activation != Activation::GeluErf
    {
        MATMUL.contiguous("x", x)?;
        check_operands(&y, x.shape(), x, w, columns, epilogue)?;
        let weight = norm.map(|(weight, eps)| Ok((aligned(weight)?, eps))).transpose()?;
        let norm = weight.as_ref().map(|(weight, eps)| (weight, *eps));
        return gpu::quant::vector(&device, y, &aligned(x)?, w, norm, epilogue);
    }
    let product = |y: TensorMut, epilogue: &Epilogue| match norm {
        Some((weight, eps)) if !has_one_row(x) => {
            quant_matmul_rows_into(y, &rms_norm_rows(x, weight, eps)?, w, epilogue)
        }
        Some((weight, eps)) => quant_matmul_into(y, &rms_norm(x, weight, eps)?, w, epilogue),
        None => quant_matmul_into(y, x, w, epilogue),
    };
    if !matches!(epilogue.activation, Activation::GeluErf | Activation::SwiGlu) {
        return product(y, epilogue);
    }
    MATMUL.contiguous("x", x)?;
    check_operands(&y, x.shape(), x, w, columns, epilogue)?; // of the second pass too, before the first
    let mut sums = Tensor::uninitialized(with_last_replaced(x.shape(), w.rows()), DType::F32, &x.device())?;
    product(sums.view_mut()?, &Epilogue::default())?;
    finish_into(y, &sums, epilogue)
}

/// The columns of the result of a product with w and this epilogue.
pub(super) fn columns_of(check: Check, w: &QuantTensor, epilogue: &Epilogue) -> Result<usize> {
    let columns = epilogue.activation.columns(w.rows());
    columns.ok_or_else(|| check.unsupported("activation", "SwiGlu", "w's number of rows must be even"))
}

/// y = act(x·wᵀ + bias) + residual, with `x` quantised to 8 bits first.
///
/// `x`: [.., k] f32 or f16, `w`: [n, k], `y`: [.., n] f32. The products of 32 values are summed exactly, in integers; these
/// sums are added in f32.
///
/// ```
/// use pascaline::ops::{self, Epilogue};
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor};
/// let (x, w) = (Tensor::randn([2, 64], DType::F32, 1, &Device::Cpu)?, Tensor::randn([3, 64], DType::F32, 2, &Device::Cpu)?);
/// let y = ops::quant_matmul(&x, &ops::quantize(&w, Format::Q8_0)?, &Epilogue::default())?.to_vec::<f32>()?;
/// let exact = ops::matmul(&x, &w.swap_dims(0, 1)?)?.to_vec::<f32>()?;
/// assert!(y.iter().zip(&exact).all(|(y, exact)| (y - exact).abs() < 0.3)); // sums of 64 products, of about ±8
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn quant_matmul(x: &Tensor, w: &QuantTensor, epilogue: &Epilogue) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(with_last_replaced(x.shape(), w.rows()), DType::F32, &x.device())?;
    quant_matmul_into(y.view_mut()?, x, w, epilogue)?;
    Ok(y)
}

/// [`quant_matmul`] into `y` [.., n] f32.
pub fn quant_matmul_into(y: TensorMut, x: &Tensor, w: &QuantTensor, epilogue: &Epilogue) -> Result<()> {
    MATMUL.contiguous("x", x)?;
    if !is_vector(x) {
        return quant_matmul_rows_into(y, &quantize_rows(x)?, w, epilogue);
    }
    match check_product(&y, x.shape(), x, w, epilogue)? {
        Device::Cuda(device) => gpu::quant::vector(&device, y, &aligned(x)?, w, None, epilogue),
        Device::Cpu => cpu::quant::matmul(y, &quantize_rows(x)?, w, epilogue),
    }
}

/// Whether x is one row.
pub(super) fn has_one_row(x: &Tensor) -> bool {
    x.shape().rank() > 0 && x.shape().rows_cols().0 == 1
}

/// Whether a product with `x` is by a kernel that quantises it itself.
pub(crate) fn is_vector(x: &Tensor) -> bool {
    has_one_row(x) && x.dtype() == DType::F32 && x.device().is_cuda()
}

/// [`quant_matmul_into`] of quantised activations, which several products can share.
///
/// ```
/// use pascaline::ops::{self, Epilogue};
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor};
/// let rows = ops::quantize_rows(&Tensor::full(127.0f32, [1, 32], &Device::Cpu)?)?;
/// for value in [1.0f32, 2.0] {
///     let w = ops::quantize(&Tensor::full(value, [1, 32], &Device::Cpu)?, Format::Q4_0)?;
///     let mut y = Tensor::uninitialized([1, 1], DType::F32, &Device::Cpu)?;
///     ops::quant_matmul_rows_into(y.view_mut()?, &rows, &w, &Epilogue::default())?;
///     assert_eq!(y.to_vec::<f32>()?, [32.0 * 127.0 * value]);
/// }
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn quant_matmul_rows_into(
    y: TensorMut,
    x: &QuantRows,
    w: &QuantTensor,
    epilogue: &Epilogue,
) -> Result<()> {
    match check_product(&y, &x.shape, &x.quants, w, epilogue)? {
        Device::Cpu => cpu::quant::matmul(y, x, w, epilogue),
        Device::Cuda(device) => gpu::quant::matmul(&device, y, x, w, epilogue),
    }
}

const MATMUL: Check = Check("quant_matmul");

/// Requires as many columns of activations of shape `x` as w has.
pub(super) fn check_columns(check: Check, x: &Shape, w: &QuantTensor) -> Result<()> {
    if x.rows_cols().1 == w.cols() {
        return Ok(());
    }
    let expected = format!("[.., {}], w's columns", w.cols());
    Err(Error::Shape { op: check.0, argument: "x", expected, found: x.clone() })
}

/// Checks a product with activations of shape `x`, stored in `held`; returns the device of all tensors.
pub(super) fn check_product(
    y: &TensorMut,
    x: &Shape,
    held: &Tensor,
    w: &QuantTensor,
    epilogue: &Epilogue,
) -> Result<Device> {
    if let other @ (Activation::GeluErf | Activation::SwiGlu) = epilogue.activation {
        let reason = "not in the epilogue of quantised products; use ops::quant_linear";
        return Err(MATMUL.unsupported("activation", format!("{other:?}"), reason));
    }
    check_operands(y, x, held, w, w.rows(), epilogue)
}

/// Checks a product's operands, of which y has `columns` columns.
fn check_operands(
    y: &TensorMut,
    x: &Shape,
    held: &Tensor,
    w: &QuantTensor,
    columns: usize,
    epilogue: &Epilogue,
) -> Result<Device> {
    check_columns(MATMUL, x, w)?;
    MATMUL.dtype("y", y, DType::F32)?;
    MATMUL.contiguous("y", y)?;
    MATMUL.shape("y", y, with_last_replaced(x, columns).dims(), "[x.., n]")?;
    let mut inputs = vec![("x", held), ("w", &w.quants)];
    inputs.extend(epilogue.check(MATMUL, y, w.rows())?);
    MATMUL.device(y, &inputs)
}

/// `x` [n, k] f32 quantised to `format` and dequantised: the forward pass of quantisation-aware training.
///
/// ```
/// use pascaline::quant::Format;
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[127.0f32, 1.4, -0.6], [1, 3], &Device::Cpu)?;
/// assert_eq!(ops::fake_quantize(&x, Format::I8)?.to_vec::<f32>()?, [127.0, 1.0, -1.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`quantize`].
pub fn fake_quantize(x: &Tensor, format: Format) -> Result<Tensor> {
    dequantize(&quantize(x, format)?, DType::F32)
}

/// The straight-through estimate of the gradient of [`fake_quantize`], or of any quantisation that clips at ±`limit`: `dy`
/// where |x| ≤ limit, and 0 where `x` was clipped (or is NaN). The formats' own scales do not clip, so their limit is
/// infinity.
///
/// `dy`, `x`: f32 of the same shape, contiguous.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[0.5f32, -3.0, 2.0], [3], &Device::Cpu)?;
/// let dy = Tensor::from_slice(&[10.0f32, 20.0, 30.0], [3], &Device::Cpu)?;
/// assert_eq!(ops::fake_quantize_gradient(&dy, &x, 2.0)?.to_vec::<f32>()?, [10.0, 0.0, 30.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn fake_quantize_gradient(dy: &Tensor, x: &Tensor, limit: f32) -> Result<Tensor> {
    const CHECK: Check = Check("fake_quantize_gradient");
    for (argument, tensor) in [("dy", dy), ("x", x)] {
        CHECK.dtype(argument, tensor, DType::F32)?;
        CHECK.contiguous(argument, tensor)?;
    }
    CHECK.shape("dy", dy, x.dims(), "x's shape")?;
    let mut dx = Tensor::uninitialized(x.shape(), DType::F32, &x.device())?;
    let target = dx.view_mut()?;
    match CHECK.device(&target, &[("dy", dy), ("x", x)])? {
        Device::Cpu => cpu::quant::straight_through(target, dy, x, limit)?,
        Device::Cuda(device) => gpu::quant::straight_through(&device, target, dy, x, limit)?,
    }
    Ok(dx)
}

fn with_last(shape: &Shape, last: usize) -> Shape {
    let mut dims = shape.dims().to_vec();
    dims.push(last);
    dims.into()
}

pub(super) fn with_last_replaced(shape: &Shape, last: usize) -> Shape {
    let mut dims = shape.dims().to_vec();
    dims.pop();
    dims.push(last);
    dims.into()
}
