//! The ops: each takes tensors, or arrays that go to the first argument's device, and returns a new tensor.

use crate::device::detached;
use crate::error::{Result, unsupported};
use crate::kv::PyKvTensor;
use crate::tensor::{PyTensor, argument, dimension, dtype, optional, tensor};
use pascaline::ops::{self, Activation, Attention, Epilogue, HeadNorms, Matmul};
use pascaline::{DType, Tensor};
use pyo3::prelude::*;

type Any<'a, 'py> = &'a Bound<'py, PyAny>;

/// The activation of this name.
pub fn activation(name: Option<&str>) -> Result<Activation> {
    Ok(match name {
        None | Some("identity") => Activation::Identity,
        Some("silu") => Activation::Silu,
        Some("gelu_tanh") => Activation::GeluTanh,
        Some("gelu_erf" | "gelu") => Activation::GeluErf,
        Some("swiglu") => Activation::SwiGlu,
        Some(other) => {
            let reason = "use identity, silu, gelu_tanh, gelu_erf or swiglu";
            return Err(unsupported("activate", "activation", other, reason));
        }
    })
}

/// A function of one tensor.
fn unary(x: Any, op: impl FnOnce(&Tensor) -> pascaline::Result<Tensor> + Send) -> Result<PyTensor> {
    let tensor = tensor(x)?;
    Ok(detached(x.py(), move || op(&tensor))?.into())
}

/// A function of two tensors.
fn binary(
    x: Any,
    y: Any,
    op: impl FnOnce(&Tensor, &Tensor) -> pascaline::Result<Tensor> + Send,
) -> Result<PyTensor> {
    let a = tensor(x)?;
    let b = argument(y, &a.device())?;
    Ok(detached(x.py(), move || op(&a, &b))?.into())
}

/// Softmax over the last dimension: y[.., c] = exp(x[.., c] − max) / Σ.
///
/// x: [.., n] float32 or float16, contiguous. Raises DTypeError, LayoutError.
#[pyfunction]
fn softmax(x: Any) -> Result<PyTensor> {
    unary(x, ops::softmax)
}

/// x + y, element by element; equal shapes and types, contiguous. Raises ShapeError, DTypeError, LayoutError.
#[pyfunction]
fn add(x: Any, y: Any) -> Result<PyTensor> {
    binary(x, y, ops::add)
}

/// x · y, element by element; equal shapes and types, contiguous. Raises ShapeError, DTypeError, LayoutError.
#[pyfunction]
fn mul(x: Any, y: Any) -> Result<PyTensor> {
    binary(x, y, ops::mul)
}

/// silu(gate) · up, element by element; equal shapes and types, contiguous. Raises ShapeError, DTypeError, LayoutError.
#[pyfunction]
fn silu_mul(gate: Any, up: Any) -> Result<PyTensor> {
    binary(gate, up, ops::silu_mul)
}

/// factor · x. x: float32 or float16, contiguous. Raises DTypeError, LayoutError.
#[pyfunction]
fn scale(x: Any, factor: f32) -> Result<PyTensor> {
    unary(x, move |x| ops::scale(x, factor))
}

/// x·Φ(x), Φ approximated by tanh. x: float32 or float16, contiguous. Raises DTypeError, LayoutError.
#[pyfunction]
fn gelu_tanh(x: Any) -> Result<PyTensor> {
    unary(x, ops::gelu_tanh)
}

/// x·Φ(x), Φ the normal distribution. x: float32 or float16, contiguous. Raises DTypeError, LayoutError.
#[pyfunction]
fn gelu_erf(x: Any) -> Result<PyTensor> {
    unary(x, ops::gelu_erf)
}

/// activation(x + bias) in one pass.
///
/// x: [.., n] float32 or float16, contiguous; bias: [n]; activation: "identity", "silu", "gelu_tanh", "gelu_erf" or "swiglu",
/// which gives [.., n/2]. Raises ShapeError, DTypeError, LayoutError, UnsupportedError.
#[pyfunction]
#[pyo3(signature = (x, bias = None, activation = "identity"))]
fn activate(x: Any, bias: Option<Any>, activation: &str) -> Result<PyTensor> {
    let activation = self::activation(Some(activation))?;
    let tensor = tensor(x)?;
    let bias = optional(bias, &tensor.device())?;
    Ok(detached(x.py(), move || ops::activate(&tensor, bias.as_ref(), activation))?.into())
}

/// The elements in another type: float32 or float16, contiguous. Raises DTypeError, LayoutError.
#[pyfunction]
#[pyo3(signature = (x, dtype))]
fn cast(x: Any, dtype: Any) -> Result<PyTensor> {
    let dtype = self::dtype(dtype)?;
    unary(x, move |x| ops::cast(x, dtype))
}

/// Tensors one after another along a dimension that they have. Raises ShapeError, DTypeError, DeviceMismatchError.
#[pyfunction]
#[pyo3(signature = (tensors, dim = 0))]
fn cat(py: Python, tensors: Vec<Bound<'_, PyAny>>, dim: isize) -> Result<PyTensor> {
    let tensors = tensors.iter().map(tensor).collect::<Result<Vec<_>>>()?;
    let rank = tensors.first().map_or(0, |first| first.shape().rank());
    let dim = dimension(dim, rank)?;
    Ok(detached(py, move || ops::cat(&tensors, dim))?.into())
}

/// Tensors one after another along a new dimension. Raises ShapeError, DTypeError, DeviceMismatchError.
#[pyfunction]
#[pyo3(signature = (tensors, dim = 0))]
fn stack(py: Python, tensors: Vec<Bound<'_, PyAny>>, dim: isize) -> Result<PyTensor> {
    let tensors = tensors.iter().map(tensor).collect::<Result<Vec<_>>>()?;
    let rank = tensors.first().map_or(0, |first| first.shape().rank());
    let dim = dimension(dim, rank + 1)?;
    Ok(detached(py, move || ops::stack(&tensors, dim))?.into())
}

/// A copy in row-major order of a tensor with any strides.
#[pyfunction]
fn copy(x: Any) -> Result<PyTensor> {
    unary(x, ops::copy)
}

/// The last two dimensions exchanged, as a copy. x: [.., m, n], contiguous. Raises ShapeError, LayoutError.
#[pyfunction]
fn transpose(x: Any) -> Result<PyTensor> {
    unary(x, ops::transpose)
}

/// table[ids, :]. table: [n, k] float32 or float16; ids: [m] uint32. An index out of range gives a row of NaN.
///
/// Raises ShapeError, DTypeError, LayoutError.
#[pyfunction]
fn embedding(table: Any, ids: Any) -> Result<PyTensor> {
    binary(table, ids, ops::embedding)
}

/// Layer norm over the last dimension. x: [.., n]; weight, bias: [n], of x's type; contiguous.
///
/// Raises ShapeError, DTypeError, LayoutError, UnsupportedError for a negative eps.
#[pyfunction]
#[pyo3(signature = (x, weight, bias, eps = 1e-5))]
fn layer_norm(x: Any, weight: Any, bias: Any, eps: f32) -> Result<PyTensor> {
    let tensor = tensor(x)?;
    let device = tensor.device();
    let (weight, bias) = (argument(weight, &device)?, argument(bias, &device)?);
    Ok(detached(x.py(), move || ops::layer_norm(&tensor, &weight, &bias, eps))?.into())
}

/// RMS norm over the last dimension: x / sqrt(mean(x²) + eps) · weight. x: [.., n]; weight: [n], of x's type; contiguous.
///
/// Raises ShapeError, DTypeError, LayoutError, UnsupportedError for a negative eps.
#[pyfunction]
#[pyo3(signature = (x, weight, eps = 1e-6))]
fn rms_norm(x: Any, weight: Any, eps: f32) -> Result<PyTensor> {
    binary(x, weight, move |x, weight| ops::rms_norm(x, weight, eps))
}

/// a·b. a: [.., m, k], b: [.., k, n], of any strides; leading dimensions are equal, or missing or 1 in one of the two.
///
/// float32 · float32, float16 · float16, or float32 · float16, which gives float32; sums are float32. Raises ShapeError, DTypeError.
#[pyfunction]
fn matmul(a: Any, b: Any) -> Result<PyTensor> {
    binary(a, b, ops::matmul)
}

/// alpha·a·b + beta·c, with a and b as for matmul and c of the result's shape and type.
///
/// Raises ShapeError, DTypeError.
#[pyfunction]
#[pyo3(signature = (c, a, b, alpha = 1.0, beta = 1.0))]
fn addmm(c: Any, a: Any, b: Any, alpha: f32, beta: f32) -> Result<PyTensor> {
    let (py, c) = (c.py(), tensor(c)?);
    let device = c.device();
    let (a, b) = (argument(a, &device)?, argument(b, &device)?);
    let options = Matmul { alpha, beta, ..Matmul::default() };
    let made = detached(py, move || {
        let mut out = ops::copy(&c)?;
        ops::matmul_into(out.view_mut()?, &a, &b, &options)?;
        Ok(out)
    })?;
    Ok(made.into())
}

/// activation(norm(x)·weightᵀ + bias) + residual.
///
/// x: [.., k], weight: [n, k], contiguous; float32, float16, or x float32 with weight float16. bias: [n]. norm: the weight [k] of
/// an RMS norm of x's rows, with norm_eps. residual: of the result's shape. The result is [.., n], or [.., n/2] for "swiglu".
///
/// Raises ShapeError, DTypeError, LayoutError, UnsupportedError.
#[pyfunction]
#[pyo3(signature = (x, weight, bias = None, *, activation = "identity", residual = None, norm = None, norm_eps = 1e-6))]
fn linear(
    x: Any,
    weight: Any,
    bias: Option<Any>,
    activation: &str,
    residual: Option<Any>,
    norm: Option<Any>,
    norm_eps: f32,
) -> Result<PyTensor> {
    let activation = self::activation(Some(activation))?;
    let (py, x) = (x.py(), tensor(x)?);
    let device = x.device();
    let weight = argument(weight, &device)?;
    let [bias, residual, norm] = [bias, residual, norm].map(|given| optional(given, &device));
    let (bias, residual, norm) = (bias?, residual?, norm?);
    let made = detached(py, move || {
        let epilogue = Epilogue { bias: bias.as_ref(), activation, residual: residual.as_ref() };
        ops::linear(&x, &weight, norm.as_ref().map(|norm| (norm, norm_eps)), &epilogue)
    })?;
    Ok(made.into())
}

/// The sum over the last dimension. Raises DTypeError, LayoutError.
#[pyfunction]
fn sum(x: Any) -> Result<PyTensor> {
    unary(x, ops::sum)
}

/// The largest element along the last dimension. Raises DTypeError, LayoutError.
#[pyfunction]
fn max(x: Any) -> Result<PyTensor> {
    unary(x, ops::max)
}

/// The index of the largest element along the last dimension, as uint32; the first of equal ones. Raises DTypeError, LayoutError.
#[pyfunction]
fn argmax(x: Any) -> Result<PyTensor> {
    unary(x, ops::argmax)
}

/// Rotates pairs of columns, half a head apart, by angles. x: [tokens, heads, dim] float32 or float16; cos, sin:
/// [tokens, dim/2] float32.
///
/// Raises ShapeError, DTypeError, LayoutError.
#[pyfunction]
fn rope(x: Any, cos: Any, sin: Any) -> Result<PyTensor> {
    let (py, x) = (x.py(), tensor(x)?);
    let device = x.device();
    let (cos, sin) = (argument(cos, &device)?, argument(sin, &device)?);
    Ok(detached(py, move || ops::rope(&x, &cos, &sin))?.into())
}

/// softmax(scale · q kᵀ) v for each head, without the score matrix in memory.
///
/// q: [b, num_q_heads, q_len, head_dim]; k, v: [b, num_kv_heads, kv_len, head_dim], or all without b; the result is as q.
/// float32, float16, or q float32 with k and v float16. head_dim is a multiple of 8 from 16 to 128. causal: query i attends to keys
/// up to i + kv_len − q_len. scale: None for 1/√head_dim.
///
/// Raises ShapeError, DTypeError, LayoutError, UnsupportedError.
#[pyfunction]
#[pyo3(signature = (q, k, v, *, causal = false, scale = None))]
fn attention(q: Any, k: Any, v: Any, causal: bool, scale: Option<f32>) -> Result<PyTensor> {
    let (py, q) = (q.py(), tensor(q)?);
    let device = q.device();
    let (k, v) = (argument(k, &device)?, argument(v, &device)?);
    let options = Attention { scale, causal };
    Ok(detached(py, move || ops::attention(&q, &k, &v, &options))?.into())
}

/// From a fused projection to rotated queries and a cache: returns q, and writes keys and values into the caches.
///
/// qkv: [rows, q_heads + 2·kv_heads, dim] float32; cos, sin: [angles, dim/2]; k, v: KvTensors [capacity, kv_heads, dim]; at: the
/// tokens already in the cache. q_norm, k_norm: weights [dim] of an RMS norm of each head before it is rotated.
///
/// Raises ShapeError, DTypeError, LayoutError, UnsupportedError.
#[pyfunction]
#[pyo3(signature = (qkv, cos, sin, k, v, at, *, q_norm = None, k_norm = None, eps = 1e-6))]
fn rope_append(
    qkv: Any,
    cos: Any,
    sin: Any,
    k: &Bound<'_, PyKvTensor>,
    v: &Bound<'_, PyKvTensor>,
    at: u32,
    q_norm: Option<Any>,
    k_norm: Option<Any>,
    eps: f32,
) -> Result<PyTensor> {
    let (py, qkv) = (qkv.py(), tensor(qkv)?);
    let device = qkv.device();
    let (cos, sin) = (argument(cos, &device)?, argument(sin, &device)?);
    let (q_norm, k_norm) = (optional(q_norm, &device)?, optional(k_norm, &device)?);
    let norms = match (q_norm, k_norm) {
        (Some(q), Some(k)) => Some((q, k)),
        (None, None) => None,
        _ => return Err(unsupported("rope_append", "q_norm", "one of two", "give both norms or none")),
    };
    if k.is(v) {
        return Err(unsupported("rope_append", "v", "k", "keys and values need caches of their own"));
    }
    let (k, v) = (k.get(), v.get());
    let made = detached(py, move || {
        let (mut k, mut v) = (k.locked(), v.locked());
        let [_, kv_heads, dim] = k.dims();
        let &[rows, heads, _] = qkv.dims() else {
            let expected = "[rows, q_heads + 2·kv_heads, dim]".into();
            let (op, argument) = ("rope_append", "qkv");
            return Err(pascaline::Error::Shape { op, argument, expected, found: qkv.shape().clone() });
        };
        let q_heads = heads.saturating_sub(2 * kv_heads);
        let mut q = Tensor::uninitialized([rows, q_heads, dim], qkv.dtype(), &device)?;
        let at = Tensor::from_slice(&[at, 0], [2], &device)?;
        let norms = norms.as_ref().map(|(q, k)| HeadNorms { q, k, eps });
        let kv = [k.view_mut()?, v.view_mut()?];
        ops::rope_append_into(q.view_mut()?, kv, &qkv, [&cos, &sin], norms, &at)?;
        Ok(q)
    })?;
    Ok(made.into())
}

/// Attention over the first `length` tokens of a cache, as they are stored.
///
/// q: [num_q_heads, q_len, head_dim]; k, v: KvTensors [capacity, num_kv_heads, head_dim] in one format: any for float32 queries,
/// "f16" for float16 ones. Raises ShapeError, DTypeError, UnsupportedError.
#[pyfunction]
#[pyo3(signature = (q, k, v, length, *, causal = false, scale = None))]
fn attention_over(
    q: Any,
    k: &Bound<'_, PyKvTensor>,
    v: &Bound<'_, PyKvTensor>,
    length: usize,
    causal: bool,
    scale: Option<f32>,
) -> Result<PyTensor> {
    let (py, q) = (q.py(), tensor(q)?);
    if k.is(v) {
        return Err(unsupported("attention_over", "v", "k", "keys and values need caches of their own"));
    }
    let (k, v) = (k.get(), v.get());
    let options = Attention { scale, causal };
    let made = detached(py, move || {
        let mut out = Tensor::uninitialized(q.shape(), q.dtype(), &q.device())?;
        let (k, v) = (k.locked(), v.locked());
        ops::attention_over_into(out.view_mut()?, &q, &k, &v, length, &options)?;
        Ok(out)
    })?;
    Ok(made.into())
}

/// As ``attention_over``, over the first `past` tokens and as many more as there are queries, of which there are few. `past` is
/// read on the device.
#[pyfunction]
#[pyo3(signature = (q, k, v, past, *, causal = false, scale = None))]
fn attention_cached(
    q: Any,
    k: &Bound<'_, PyKvTensor>,
    v: &Bound<'_, PyKvTensor>,
    past: u32,
    causal: bool,
    scale: Option<f32>,
) -> Result<PyTensor> {
    let (py, q) = (q.py(), tensor(q)?);
    if k.is(v) {
        return Err(unsupported("attention_cached", "v", "k", "keys and values need caches of their own"));
    }
    let (k, v) = (k.get(), v.get());
    let options = Attention { scale, causal };
    let made = detached(py, move || {
        let mut out = Tensor::uninitialized(q.shape(), q.dtype(), &q.device())?;
        let past = Tensor::from_slice(&[past], [1], &q.device())?;
        let (k, v) = (k.locked(), v.locked());
        ops::attention_cached_into(out.view_mut()?, &q, &k, &v, &past, &options)?;
        Ok(out)
    })?;
    Ok(made.into())
}

/// The mean of each block of rows. x: [.., n, dim] float32; the result is [.., ⌈n/block⌉, dim]. Raises ShapeError, DTypeError.
#[pyfunction]
fn block_mean(x: Any, block: usize) -> Result<PyTensor> {
    unary(x, move |x| ops::block_mean(x, block))
}

/// The straight-through estimate of the gradient of a quantisation that clips at ±limit: dy where |x| ≤ limit, else 0.
///
/// dy, x: float32 of one shape, contiguous. Raises ShapeError, DTypeError, LayoutError.
#[pyfunction]
#[pyo3(signature = (dy, x, limit = f32::INFINITY))]
fn fake_quantize_gradient(dy: Any, x: Any, limit: f32) -> Result<PyTensor> {
    binary(dy, x, move |dy, x| ops::fake_quantize_gradient(dy, x, limit))
}

/// float32 or float16, for results that may be either.
pub fn float_type(given: Option<Any>) -> Result<DType> {
    given.filter(|given| !given.is_none()).map_or(Ok(DType::F32), dtype)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! functions {
        ($($name:ident)*) => { $(module.add_function(wrap_pyfunction!($name, module)?)?;)* };
    }
    functions!(softmax add mul silu_mul scale gelu_tanh gelu_erf activate cast cat stack copy transpose embedding layer_norm
        rms_norm matmul addmm linear sum max argmax rope attention rope_append attention_over attention_cached block_mean
        fake_quantize_gradient);
    Ok(())
}
