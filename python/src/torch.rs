//! The ops on torch's memory: arguments are torch's tensors, results are written into one. `pascaline/torch.py` checks types and
//! devices first.

use crate::device::{self, detached};
use crate::error::Result;
use crate::mask::PyBlockMask;
use crate::quant::{PyQuantTensor, format};
use pascaline::ops::{self, Attention, Epilogue};
use pascaline::{DType, Device, Tensor};
use pyo3::intern;
use pyo3::prelude::*;

type Any<'a, 'py> = &'a Bound<'py, PyAny>;

/// A device of torch with its current stream; the CPU has the index −1.
#[derive(Clone, Copy)]
struct Place(i32, u64);

impl Place {
    fn device(self) -> pascaline::Result<Device> {
        let Self(index, stream) = self;
        let Ok(ordinal) = u32::try_from(index) else { return Ok(Device::Cpu) };
        match device::ordinal(ordinal)? {
            // SAFETY: torch's streams belong to the device's primary context, and torch never destroys them.
            Device::Cuda(device) => unsafe { device::with_stream(&device, stream) }.map(Device::Cuda),
            Device::Cpu => Ok(Device::Cpu),
        }
    }
}

/// The memory of a torch tensor.
struct Memory {
    address: u64,
    shape: Vec<usize>,
    strides: Vec<usize>,
    dtype: DType,
}

/// Reads a float32 or float16 tensor's description.
fn memory(x: Any) -> PyResult<Memory> {
    let py = x.py();
    let size: usize = x.call_method0(intern!(py, "element_size"))?.extract()?;
    Ok(Memory {
        address: x.call_method0(intern!(py, "data_ptr"))?.extract()?,
        shape: x.getattr(intern!(py, "shape"))?.extract()?,
        strides: x.call_method0(intern!(py, "stride"))?.extract()?,
        dtype: if size == 2 { DType::F16 } else { DType::F32 },
    })
}

impl Memory {
    /// The tensor over it, for the length of a call.
    ///
    /// # Safety
    /// `device` is that of torch's tensor, with the stream that torch works on, and the tensor is float32 or float16. It lives
    /// until the call's work is queued; torch's allocator reuses its memory in the order of that stream.
    unsafe fn on(&self, device: &Device) -> pascaline::Result<Tensor> {
        let Self { address, shape, strides, dtype } = self;
        // SAFETY: torch guarantees the elements; device, stream and lifetime are this function's contract.
        unsafe { Tensor::from_foreign(*address, &shape[..], strides, *dtype, device, Box::new(())) }
    }
}

/// Runs an op over torch's tensors.
macro_rules! on_torch {
    ($py:expr, $place:expr, [$($name:ident),*], |$device:ident| $body:expr) => {{
        let (py, place) = ($py, $place);
        $(let $name = memory($name)?;)*
        detached(py, move || {
            let $device = place.device()?;
            // SAFETY: torch.py passes tensors of these types on the place's device, whose current stream the place has. The
            // caller's references keep them alive, and `out` is new: nobody else uses it.
            $(let mut $name = unsafe { $name.on(&$device) }?;)*
            $(let _ = &mut $name;)*
            $body
        })
    }};
}

#[pyfunction]
fn torch_softmax(out: Any, x: Any, index: i32, stream: u64) -> Result<()> {
    on_torch!(out.py(), Place(index, stream), [out, x], |device| ops::softmax_into(out.view_mut()?, &x))
}

#[pyfunction]
fn torch_rms_norm(out: Any, x: Any, weight: Any, eps: f32, index: i32, stream: u64) -> Result<()> {
    on_torch!(out.py(), Place(index, stream), [out, x, weight], |device| {
        ops::rms_norm_into(out.view_mut()?, &x, &weight, eps)
    })
}

#[pyfunction]
fn torch_layer_norm(
    out: Any,
    x: Any,
    weight: Any,
    bias: Any,
    eps: f32,
    index: i32,
    stream: u64,
) -> Result<()> {
    on_torch!(out.py(), Place(index, stream), [out, x, weight, bias], |device| {
        ops::layer_norm_into(out.view_mut()?, &x, &weight, &bias, eps)
    })
}

#[pyfunction]
fn torch_softmax_backward(dx: Any, dy: Any, y: Any, index: i32, stream: u64) -> Result<()> {
    on_torch!(dx.py(), Place(index, stream), [dx, dy, y], |device| {
        ops::softmax_backward_into(dx.view_mut()?, &dy, &y)
    })
}

/// `dweight` is None if it is not wanted.
#[pyfunction]
#[pyo3(signature = (dx, dweight, dy, x, weight, eps, index, stream))]
#[expect(clippy::too_many_arguments, reason = "those of the op, and where it runs")]
fn torch_rms_norm_backward(
    dx: Any,
    dweight: Option<Any>,
    dy: Any,
    x: Any,
    weight: Any,
    eps: f32,
    index: i32,
    stream: u64,
) -> Result<()> {
    let (py, place) = (dx.py(), Place(index, stream));
    match dweight {
        None => on_torch!(py, place, [dx, dy, x, weight], |device| {
            ops::rms_norm_backward_into(dx.view_mut()?, None, &dy, &x, &weight, eps)
        }),
        Some(dweight) => on_torch!(py, place, [dx, dweight, dy, x, weight], |device| {
            ops::rms_norm_backward_into(dx.view_mut()?, Some(dweight.view_mut()?), &dy, &x, &weight, eps)
        }),
    }
}

/// `sums`, the gradients of weight and bias, are None if they are not wanted.
#[pyfunction]
#[pyo3(signature = (dx, sums, dy, x, weight, eps, index, stream))]
#[expect(clippy::too_many_arguments, reason = "those of the op, and where it runs")]
fn torch_layer_norm_backward(
    dx: Any,
    sums: Option<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
    dy: Any,
    x: Any,
    weight: Any,
    eps: f32,
    index: i32,
    stream: u64,
) -> Result<()> {
    let (py, place) = (dx.py(), Place(index, stream));
    match &sums {
        None => on_torch!(py, place, [dx, dy, x, weight], |device| {
            ops::layer_norm_backward_into(dx.view_mut()?, None, &dy, &x, &weight, eps)
        }),
        Some((dweight, dbias)) => on_torch!(py, place, [dx, dweight, dbias, dy, x, weight], |device| {
            let sums = Some([dweight.view_mut()?, dbias.view_mut()?]);
            ops::layer_norm_backward_into(dx.view_mut()?, sums, &dy, &x, &weight, eps)
        }),
    }
}

#[pyfunction]
fn torch_silu_mul(out: Any, gate: Any, up: Any, index: i32, stream: u64) -> Result<()> {
    on_torch!(out.py(), Place(index, stream), [out, gate, up], |device| {
        ops::silu_mul_into(out.view_mut()?, &gate, &up)
    })
}

#[pyfunction]
fn torch_rope(out: Any, x: Any, cos: Any, sin: Any, index: i32, stream: u64) -> Result<()> {
    on_torch!(out.py(), Place(index, stream), [out, x, cos, sin], |device| {
        ops::rope_into(out.view_mut()?, &x, &cos, &sin)
    })
}

#[pyfunction]
fn torch_linear(out: Any, x: Any, weight: Any, bias: Option<Any>, index: i32, stream: u64) -> Result<()> {
    let (py, place) = (out.py(), Place(index, stream));
    match bias {
        None => on_torch!(py, place, [out, x, weight], |device| {
            ops::linear_into(out.view_mut()?, &x, &weight, None, &Epilogue::default())
        }),
        Some(bias) => on_torch!(py, place, [out, x, weight, bias], |device| {
            let epilogue = Epilogue { bias: Some(&bias), ..Epilogue::default() };
            ops::linear_into(out.view_mut()?, &x, &weight, None, &epilogue)
        }),
    }
}

#[pyfunction]
fn torch_quant_linear(
    out: Any,
    x: Any,
    weight: &Bound<'_, PyQuantTensor>,
    bias: Option<Any>,
    index: i32,
    stream: u64,
) -> Result<()> {
    let (py, place, weight) = (out.py(), Place(index, stream), weight.get());
    match bias {
        None => on_torch!(py, place, [out, x], |device| {
            ops::quant_matmul_into(out.view_mut()?, &x, &weight.on(&device)?, &Epilogue::default())
        }),
        Some(bias) => on_torch!(py, place, [out, x, bias], |device| {
            let epilogue = Epilogue { bias: Some(&bias), ..Epilogue::default() };
            ops::quant_matmul_into(out.view_mut()?, &x, &weight.on(&device)?, &epilogue)
        }),
    }
}

#[pyfunction]
fn torch_quantize(weight: Any, format: &str, index: i32, stream: u64) -> Result<PyQuantTensor> {
    let format = self::format(format)?;
    let made =
        on_torch!(weight.py(), Place(index, stream), [weight], |device| ops::quantize(&weight, format))?;
    Ok(made.into())
}

#[pyfunction]
#[pyo3(signature = (out, q, k, v, causal, scale, index, stream))]
fn torch_attention(
    out: Any,
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    scale: Option<f32>,
    index: i32,
    stream: u64,
) -> Result<()> {
    on_torch!(out.py(), Place(index, stream), [out, q, k, v], |device| {
        ops::attention_into(out.view_mut()?, &q, &k, &v, &Attention { scale, causal })
    })
}

#[pyfunction]
#[pyo3(signature = (gradients, dout, q, k, v, out, causal, scale, index, stream))]
#[expect(clippy::too_many_arguments, reason = "those of the op, and where it runs")]
fn torch_attention_backward(
    gradients: (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>),
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    causal: bool,
    scale: Option<f32>,
    index: i32,
    stream: u64,
) -> Result<()> {
    let (dq, dk, dv) = &gradients;
    on_torch!(q.py(), Place(index, stream), [dq, dk, dv, dout, q, k, v, out], |device| {
        let gradients = [dq.view_mut()?, dk.view_mut()?, dv.view_mut()?];
        ops::attention_backward_into(gradients, &dout, &q, &k, &v, &out, &Attention { scale, causal })
    })
}

#[pyfunction]
#[pyo3(signature = (out, q, k, v, mask, scale, index, stream))]
fn torch_sparse_attention(
    out: Any,
    q: Any,
    k: Any,
    v: Any,
    mask: &Bound<'_, PyBlockMask>,
    scale: Option<f32>,
    index: i32,
    stream: u64,
) -> Result<()> {
    let mask = mask.get();
    on_torch!(out.py(), Place(index, stream), [out, q, k, v], |device| {
        ops::sparse_attention_into(out.view_mut()?, &q, &k, &v, &mask.on(&device)?, scale)
    })
}

/// Why a device of torch can't be used here, or None if it can.
#[pyfunction]
fn torch_device_problem(py: Python, index: i32) -> Option<String> {
    py.detach(|| match u32::try_from(index) {
        Err(_) => None,
        Ok(ordinal) => match device::ordinal(ordinal) {
            Ok(Device::Cuda(device)) if device.is_virtual() => {
                Some("this process uses the virtual GPU".into())
            }
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        },
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! functions {
        ($($name:ident)*) => { $(module.add_function(wrap_pyfunction!($name, module)?)?;)* };
    }
    functions!(torch_softmax torch_softmax_backward torch_rms_norm_backward torch_layer_norm_backward
        torch_attention_backward torch_rms_norm torch_layer_norm torch_silu_mul torch_rope torch_linear torch_quant_linear
        torch_quantize torch_attention torch_sparse_attention torch_device_problem);
    Ok(())
}
