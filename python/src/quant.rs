//! Quantised matrices and 16-bit floats with any number of exponent bits.

use crate::device::{self, PyDevice, detached};
use crate::error::{Result, unsupported};
use crate::ops::{activation, float_type};
use crate::tensor::{PyTensor, argument, optional, tensor};
use pascaline::float16::{Float16Tensor, Overflow};
use pascaline::ops::{self, Epilogue};
use pascaline::quant::{self, FORMATS, Format, QuantRows, QuantTensor, ScaleChoice};
use pascaline::{DType, Device, Tensor};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::{Mutex, PoisonError};

type Any<'a, 'py> = &'a Bound<'py, PyAny>;

/// The quantised format of this name.
pub fn format(name: &str) -> Result<Format> {
    let found = FORMATS.into_iter().find(|format| quant::name(*format).eq_ignore_ascii_case(name));
    found.ok_or_else(|| {
        let names = FORMATS.map(quant::name).join(", ");
        unsupported("quantize", "format", name, format!("the formats are {names}"))
    })
}

/// A matrix of weights [n, k] in a quantised format, from ``quantize``.
#[pyclass(frozen, name = "QuantTensor", module = "pascaline")]
pub struct PyQuantTensor {
    pub inner: QuantTensor,
    /// Copies for other streams of its device.
    copies: Mutex<Vec<QuantTensor>>,
}

impl From<QuantTensor> for PyQuantTensor {
    fn from(inner: QuantTensor) -> Self {
        Self { inner, copies: Mutex::new(Vec::new()) }
    }
}

impl PyQuantTensor {
    /// The matrix on this device and stream; copied there once.
    pub fn on(&self, device: &Device) -> pascaline::Result<QuantTensor> {
        if self.inner.device().same(device) {
            return Ok(self.inner.clone());
        }
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = copies.iter().find(|copy| copy.device().same(device)) {
            return Ok(copy.clone());
        }
        let copy = self.inner.to_device(device)?;
        copies.push(copy.clone());
        Ok(copy)
    }
}

#[pymethods]
impl PyQuantTensor {
    /// (n, k), padding not counted.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.shape().dims())
    }

    /// The format's name, as for ``quantize``.
    #[getter]
    fn format(&self) -> &'static str {
        quant::name(self.inner.format())
    }

    /// Bytes of quants and scales.
    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.bytes()
    }

    /// The device that it is on.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice { inner: self.inner.device() }
    }

    /// The matrix on another device.
    fn to(&self, py: Python, device: Any) -> Result<Self> {
        let device = device::given(Some(device), "cpu")?;
        Ok(detached(py, || self.inner.to_device(&device))?.into())
    }

    fn __repr__(&self) -> String {
        let device = device::name(&self.inner.device());
        let (n, k) = (self.inner.rows(), self.inner.cols());
        format!("QuantTensor(shape=({n}, {k}), format='{}', device='{device}')", self.format())
    }
}

/// Activations [.., k] quantised to 8 bits by ``quantize_rows``, for several products.
#[pyclass(frozen, name = "QuantRows", module = "pascaline")]
pub struct PyQuantRows {
    inner: QuantRows,
    device: Device,
}

#[pymethods]
impl PyQuantRows {
    /// The shape of the tensor that was quantised.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.shape().dims())
    }
}

/// A tensor of 16-bit codes, from ``float16_encode``.
#[pyclass(frozen, name = "Float16Tensor", module = "pascaline")]
pub struct PyFloat16Tensor {
    inner: Float16Tensor,
}

#[pymethods]
impl PyFloat16Tensor {
    /// The sizes of the dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.shape().dims())
    }

    /// The exponent bits of its format; the mantissa has the other 15.
    #[getter]
    fn exponent_bits(&self) -> u32 {
        self.inner.exponent_bits()
    }

    /// The device that it is on.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice { inner: self.inner.device() }
    }
}

/// Quantises a matrix. x: [n, k] float32, contiguous, k > 0.
///
/// format: "i8", or a type of GGUF files in lower case, such as "q4_k"; the error for another name lists all. scales: "absmax"; or, for
/// "i8", "q8_0" and "q4_0", "least_error", or a share above 0 and at most 1 of the magnitudes that are within the quants' range (the
/// others are clipped).
/// Raises ShapeError, DTypeError, LayoutError, UnsupportedError.
#[pyfunction]
#[pyo3(signature = (x, format, scales = None))]
fn quantize(x: Any, format: &str, scales: Option<Any>) -> Result<PyQuantTensor> {
    let (format, py, x) = (self::format(format)?, x.py(), tensor(x)?);
    let choice = match scales.filter(|scales| !scales.is_none()) {
        None => ScaleChoice::AbsMax,
        Some(scales) => match scales.extract::<f32>() {
            Ok(share) => ScaleChoice::Percentile(share),
            Err(_) => match scales.extract::<String>()?.as_str() {
                "absmax" => ScaleChoice::AbsMax,
                "least_error" => ScaleChoice::LeastError,
                other => {
                    let reason = "use absmax, least_error, or a share of the magnitudes";
                    return Err(unsupported("quantize", "scales", other, reason));
                }
            },
        },
    };
    let made = detached(py, move || match choice {
        ScaleChoice::AbsMax => ops::quantize(&x, format),
        _ => ops::quantize_with(&x.to_vec::<f32>()?, x.shape(), format, choice, &x.device()),
    })?;
    Ok(made.into())
}

/// The values of a quantised matrix, in float32 or float16.
#[pyfunction]
#[pyo3(signature = (w, dtype = None))]
fn dequantize(py: Python, w: &Bound<'_, PyQuantTensor>, dtype: Option<Any>) -> Result<PyTensor> {
    let (w, dtype) = (w.get(), float_type(dtype)?);
    Ok(detached(py, || ops::dequantize(&w.inner, dtype))?.into())
}

/// table[ids[..], :] of a quantised table. ids: uint32. An index out of range gives a row of NaN.
#[pyfunction]
#[pyo3(signature = (table, ids, dtype = None))]
fn quant_embedding(table: &Bound<'_, PyQuantTensor>, ids: Any, dtype: Option<Any>) -> Result<PyTensor> {
    let (py, table, dtype) = (ids.py(), table.get(), float_type(dtype)?);
    let ids = argument(ids, &table.inner.device())?;
    Ok(detached(py, || ops::quant_embedding(&table.inner, &ids, dtype))?.into())
}

/// Quantises activations [.., k], float32 or float16, contiguous, to 8 bits with a scale per 32 values.
#[pyfunction]
fn quantize_rows(x: Any) -> Result<PyQuantRows> {
    let (py, x) = (x.py(), tensor(x)?);
    let device = x.device();
    Ok(PyQuantRows { inner: detached(py, move || ops::quantize_rows(&x))?, device })
}

/// activation(norm(x)·wᵀ + bias) + residual with a quantised matrix; arguments as for ``linear``. x: [.., k] float32; w: [n, k].
///
/// x is quantised to 8 bits; products of 32 values are summed in integers, these sums in float32. Raises ShapeError, DTypeError,
/// LayoutError, UnsupportedError.
#[pyfunction]
#[pyo3(signature = (x, w, bias = None, *, activation = "identity", residual = None, norm = None, norm_eps = 1e-6))]
fn quant_linear(
    x: Any,
    w: &Bound<'_, PyQuantTensor>,
    bias: Option<Any>,
    activation: &str,
    residual: Option<Any>,
    norm: Option<Any>,
    norm_eps: f32,
) -> Result<PyTensor> {
    let activation = self::activation(Some(activation))?;
    let (py, x, w) = (x.py(), tensor(x)?, w.get());
    let device = x.device();
    let [bias, residual, norm] = [bias, residual, norm].map(|given| optional(given, &device));
    let (bias, residual, norm) = (bias?, residual?, norm?);
    let made = detached(py, move || {
        let epilogue = Epilogue { bias: bias.as_ref(), activation, residual: residual.as_ref() };
        ops::quant_linear(&x, &w.inner, norm.as_ref().map(|norm| (norm, norm_eps)), &epilogue)
    })?;
    Ok(made.into())
}

/// x·wᵀ + bias with a quantised matrix. x: [.., k] float32 or float16; w: [n, k]; the result is float32.
#[pyfunction]
#[pyo3(signature = (x, w, bias = None))]
fn quant_matmul(x: Any, w: &Bound<'_, PyQuantTensor>, bias: Option<Any>) -> Result<PyTensor> {
    let (py, x, w) = (x.py(), tensor(x)?, w.get());
    let bias = optional(bias, &x.device())?;
    let made = detached(py, move || {
        ops::quant_matmul(&x, &w.inner, &Epilogue { bias: bias.as_ref(), ..Epilogue::default() })
    })?;
    Ok(made.into())
}

/// As ``quant_matmul``, with activations that are already quantised, for several products with the same ones.
#[pyfunction]
#[pyo3(signature = (x, w, bias = None))]
fn quant_matmul_rows(
    py: Python,
    x: &Bound<'_, PyQuantRows>,
    w: &Bound<'_, PyQuantTensor>,
    bias: Option<Any>,
) -> Result<PyTensor> {
    let (x, w) = (x.get(), w.get());
    let bias = optional(bias, &x.device)?;
    let made = detached(py, move || {
        let outer = x.inner.shape().dims().split_last().map_or(&[][..], |(_, outer)| outer);
        let shape = [outer, &[w.inner.rows()]].concat();
        let mut y = Tensor::uninitialized(shape, DType::F32, &x.device)?;
        let epilogue = Epilogue { bias: bias.as_ref(), ..Epilogue::default() };
        ops::quant_matmul_rows_into(y.view_mut()?, &x.inner, &w.inner, &epilogue)?;
        Ok(y)
    })?;
    Ok(made.into())
}

/// x quantised and dequantised: the forward pass of quantisation-aware training. x: [n, k] float32, contiguous.
#[pyfunction]
fn fake_quantize(x: Any, format: &str) -> Result<PyTensor> {
    let (format, py, x) = (self::format(format)?, x.py(), tensor(x)?);
    Ok(detached(py, move || ops::fake_quantize(&x, format))?.into())
}

/// x in the 16-bit format with `exponent_bits` (2 to 8) exponent bits. saturate: too large values become the largest number.
#[pyfunction]
#[pyo3(signature = (x, exponent_bits, saturate = false))]
fn float16_encode(x: Any, exponent_bits: u32, saturate: bool) -> Result<PyFloat16Tensor> {
    let (py, x) = (x.py(), tensor(x)?);
    let overflow = if saturate { Overflow::Saturate } else { Overflow::Infinity };
    let inner = detached(py, move || ops::float16_encode(&x, exponent_bits, overflow))?;
    Ok(PyFloat16Tensor { inner })
}

/// The values of 16-bit codes, in float32.
#[pyfunction]
fn float16_decode(py: Python, x: &Bound<'_, PyFloat16Tensor>) -> Result<PyTensor> {
    let x = x.get();
    Ok(detached(py, || ops::float16_decode(&x.inner))?.into())
}

/// x·wᵀ with w [n, k] in a 16-bit format, arithmetic in float32. x: [.., k] float32, contiguous.
#[pyfunction]
fn float16_matmul(x: Any, w: &Bound<'_, PyFloat16Tensor>) -> Result<PyTensor> {
    let (py, x, w) = (x.py(), tensor(x)?, w.get());
    Ok(detached(py, move || ops::float16_matmul(&x, &w.inner))?.into())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyQuantTensor>()?;
    module.add_class::<PyQuantRows>()?;
    module.add_class::<PyFloat16Tensor>()?;
    macro_rules! functions {
        ($($name:ident)*) => { $(module.add_function(wrap_pyfunction!($name, module)?)?;)* };
    }
    functions!(quantize dequantize quant_embedding quantize_rows quant_linear quant_matmul quant_matmul_rows fake_quantize
        float16_encode float16_decode float16_matmul);
    Ok(())
}
