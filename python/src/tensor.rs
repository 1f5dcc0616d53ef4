//! Tensors: from and to numpy without a copy where the memory is the host's.

use crate::address::address;
use crate::device::{self, PyDevice, detached};
use crate::dlpack;
use crate::error::{Result, unsupported};
use half::f16;
use pascaline::internals::address as device_address;
use pascaline::{DType, Device, Tensor, ops};
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// An array on a device, of float32, float16 or uint32 elements.
///
/// ``Tensor(array, device=None, dtype=None, copy=None)`` takes numpy arrays, numbers and sequences of them, other tensors, and
/// objects that support DLPack, such as torch's tensors.
///
/// Memory is shared where it can be: an array in host memory is not copied, unless its elements have to be converted or
/// ``copy=True``. Do not change it while an op reads it. ``copy=False`` raises where a copy is needed. ``device`` is a name
/// or a Device; if not given, the CPU, or the device that a DLPack object is on. ``dtype`` converts; without it only arrays of
/// the three types are taken, and plain Python numbers become float32 or uint32.
///
/// Raises DTypeError, UnknownDeviceError, NoDeviceError, OutOfMemoryError.
#[pyclass(frozen, name = "Tensor", module = "pascaline", weakref)]
pub struct PyTensor {
    pub inner: Tensor,
}

impl From<Tensor> for PyTensor {
    fn from(inner: Tensor) -> Self {
        Self { inner }
    }
}

/// A type given as a name, a numpy or torch type.
pub fn dtype(given: &Bound<'_, PyAny>) -> Result<DType> {
    let name = match given.extract::<String>() {
        Ok(name) => name,
        Err(_) => match given.py().import("numpy")?.call_method1("dtype", (given,)) {
            Ok(dtype) => dtype.getattr("name")?.extract()?,
            Err(_) => given.str()?.to_string(), // such as torch.float32
        },
    };
    match name.strip_prefix("torch.").unwrap_or(&name) {
        "f32" | "float32" | "float" => Ok(DType::F32),
        "f16" | "float16" | "half" => Ok(DType::F16),
        "u32" | "uint32" => Ok(DType::U32),
        _ => Err(unsupported("dtype", "dtype", name, "use float32, float16 or uint32")),
    }
}

/// The name of a type in numpy.
pub fn numpy_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::U32 => "uint32",
    }
}

/// A tensor over the memory of an array, which lives as long as the tensor; copied first if it must be.
fn of_array(array: &Bound<'_, PyAny>, dtype: Option<DType>, copy: Option<bool>) -> Result<Tensor> {
    let py = array.py();
    let prepared =
        py.import("pascaline._arrays")?.call_method1("prepared", (array, dtype.map(numpy_name), copy))?;
    let (array, address, shape, strides, name): (Bound<PyAny>, u64, Vec<usize>, Vec<usize>, String) =
        prepared.extract()?;
    let dtype = match name.as_str() {
        "float32" => DType::F32,
        "float16" => DType::F16,
        _ => DType::U32,
    };
    let owner = Box::new(array.unbind());
    // SAFETY: `prepared` returns an array of this type whose elements numpy guarantees; the array lives as long as the owner.
    // The documentation asks the user not to write it meanwhile.
    Ok(unsafe { Tensor::from_foreign(address, shape, &strides, dtype, &Device::Cpu, owner) }?)
}

/// An argument that may be a tensor or an array; an array goes to the device.
pub fn argument(given: &Bound<'_, PyAny>, device: &Device) -> Result<Tensor> {
    if let Ok(tensor) = given.cast::<PyTensor>() {
        return Ok(tensor.get().inner.clone());
    }
    let tensor = of_array(given, None, None)?;
    detached(given.py(), move || tensor.to_device(device))
}

/// As [`argument`], with the CPU for arrays.
pub fn tensor(given: &Bound<'_, PyAny>) -> Result<Tensor> {
    argument(given, &Device::Cpu)
}

/// As [`argument`], if it is given.
pub fn optional(given: Option<&Bound<'_, PyAny>>, device: &Device) -> Result<Option<Tensor>> {
    given.filter(|given| !given.is_none()).map(|given| argument(given, device)).transpose()
}

/// The tensor on a device, in a type.
fn converted(x: Tensor, device: &Device, dtype: Option<DType>) -> pascaline::Result<Tensor> {
    let x = match dtype {
        Some(dtype) if dtype != x.dtype() => ops::cast(&x.contiguous()?, dtype)?,
        _ => x,
    };
    if x.device().same(device) { Ok(x) } else { x.to_device(device) }
}

/// Sizes given as numbers or as one sequence of them.
fn sizes(given: &Bound<'_, PyTuple>) -> PyResult<Vec<usize>> {
    match given.len() {
        1 => given.get_item(0)?.extract::<Vec<usize>>().or_else(|_| given.extract_sizes()),
        _ => given.extract_sizes(),
    }
}

trait ExtractSizes {
    fn extract_sizes(&self) -> PyResult<Vec<usize>>;
}

impl ExtractSizes for Bound<'_, PyTuple> {
    fn extract_sizes(&self) -> PyResult<Vec<usize>> {
        self.iter().map(|size| size.extract()).collect()
    }
}

/// The index of a dimension that may be counted from the end.
pub fn dimension(dim: isize, rank: usize) -> Result<usize> {
    let index = if dim < 0 { dim + rank as isize } else { dim };
    match usize::try_from(index) {
        Ok(index) if index < rank => Ok(index),
        _ => Err(unsupported("dim", "dim", dim, format!("the tensor has {rank} dimensions"))),
    }
}

#[pymethods]
impl PyTensor {
    #[new]
    #[pyo3(signature = (array, device = None, dtype = None, copy = None))]
    fn new(
        array: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        copy: Option<bool>,
    ) -> Result<Self> {
        let py = array.py();
        let dtype = dtype.filter(|dtype| !dtype.is_none()).map(self::dtype).transpose()?;
        let foreign = array.cast::<Self>().is_err() && dlpack::is_on_a_device(array)?;
        let source = match array.cast::<Self>() {
            Ok(tensor) => tensor.get().inner.clone(),
            Err(_) if foreign => dlpack::import(array)?,
            // If another device needs a copy anyway, none is made here.
            Err(_) => {
                let stays = device.is_none_or(|device| device.is_none())
                    || device::given(device, "cpu")? == Device::Cpu;
                of_array(array, dtype, if stays { copy } else { copy.filter(|copy| !copy) })?
            }
        };
        let device = match device.filter(|device| !device.is_none()) {
            Some(device) => device::given(Some(device), "cpu")?,
            None => source.device(),
        };
        let before = source.clone();
        let moved = detached(py, move || converted(source, &device, dtype))?;
        let was_copied = device_address(&moved) != device_address(&before) || moved.dtype() != before.dtype();
        let copied = moved.device() != before.device() || was_copied;
        match copy {
            Some(false) if copied => {
                Err(unsupported("Tensor", "copy", "False", "another device or type needs a copy"))
            }
            Some(true) if !copied && (foreign || array.cast::<Self>().is_ok()) => {
                Ok(detached(py, || ops::copy(&moved))?.into())
            }
            _ => Ok(moved.into()),
        }
    }

    /// The sizes of the dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.dims())
    }

    /// The distance between neighbours along each dimension, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.strides())
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.inner.shape().rank()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.inner.shape().elements()
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.size() * self.inner.dtype().size()
    }

    /// The type of the elements, as a numpy dtype.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("numpy")?.call_method1("dtype", (numpy_name(self.inner.dtype()),))
    }

    /// The device that it is on.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice { inner: self.inner.device() }
    }

    /// Whether the elements are in row-major order without gaps.
    #[getter]
    fn is_contiguous(&self) -> bool {
        self.inner.is_contiguous()
    }

    /// The address of the first element, in host or device memory; 0 if there are no elements.
    fn data_ptr(&self) -> u64 {
        address(&self.inner)
    }

    /// The elements as a numpy array.
    ///
    /// In host memory the array is a view: it shares the tensor's memory and can't be written. From a GPU, or with
    /// ``copy=True``, it is a copy of its own; this waits for the work queued before and raises its errors.
    #[pyo3(signature = (copy = false))]
    fn numpy<'py>(slf: &Bound<'py, Self>, copy: bool) -> Result<Bound<'py, PyAny>> {
        let (py, tensor) = (slf.py(), slf.get());
        let numpy = py.import("numpy")?;
        if let Device::Cpu = tensor.inner.device() {
            let name = if copy { "array" } else { "asarray" };
            return Ok(numpy.call_method1(name, (slf,))?);
        }
        let here = detached(py, || tensor.inner.to_device(&Device::Cpu))?;
        let array = numpy.call_method1("asarray", (Py::new(py, Own(here))?,))?;
        Ok(array)
    }

    /// numpy's array interface; for tensors in host memory.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.inner.device().is_cuda() {
            return Err(PyAttributeError::new_err("the tensor is in device memory; .numpy() copies it"));
        }
        interface(py, &self.inner, true)
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>> {
        let array = Self::numpy(slf, copy == Some(true))?;
        match dtype.filter(|dtype| !dtype.is_none()) {
            Some(dtype) => Ok(array.call_method1("astype", (dtype,))?),
            None => Ok(array),
        }
    }

    /// DLPack's producer: see ``pascaline.from_dlpack`` and the protocol's documentation.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>> {
        dlpack::export(py, &self.inner, stream, max_version, dl_device, copy)
    }

    /// DLPack's (device type, number).
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device_of(&self.inner)
    }

    /// The elements as nested lists.
    fn tolist<'py>(slf: &Bound<'py, Self>) -> Result<Bound<'py, PyAny>> {
        Ok(Self::numpy(slf, false)?.call_method0("tolist")?)
    }

    /// The element of a tensor that has only one.
    fn item<'py>(slf: &Bound<'py, Self>) -> Result<Bound<'py, PyAny>> {
        Ok(Self::numpy(slf, false)?.call_method0("item")?)
    }

    /// The tensor on another device and in another type; itself if nothing changes.
    #[pyo3(signature = (device = None, dtype = None))]
    fn to(
        slf: &Bound<'_, Self>,
        device: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> Result<Self> {
        let source = slf.get().inner.clone();
        let device = match device.filter(|device| !device.is_none()) {
            Some(device) => device::given(Some(device), "cpu")?,
            None => source.device(),
        };
        let dtype = dtype.filter(|dtype| !dtype.is_none()).map(self::dtype).transpose()?;
        Ok(detached(slf.py(), move || converted(source, &device, dtype))?.into())
    }

    /// The same elements in another shape; no copy. Raises LayoutError if the tensor is not contiguous.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, shape: &Bound<'_, PyTuple>) -> Result<Self> {
        Ok(self.inner.reshape(sizes(shape)?)?.into())
    }

    /// A view with two dimensions exchanged.
    #[pyo3(signature = (dim0 = -1, dim1 = -2))]
    fn swap_dims(&self, dim0: isize, dim1: isize) -> Result<Self> {
        let rank = self.ndim();
        Ok(self.inner.swap_dims(dimension(dim0, rank)?, dimension(dim1, rank)?)?.into())
    }

    /// A view of `length` entries of dimension `dim`, from `start` on.
    fn narrow(&self, dim: isize, start: usize, length: usize) -> Result<Self> {
        Ok(self.inner.narrow(dimension(dim, self.ndim())?, start, length)?.into())
    }

    /// The tensor in row-major order without gaps; itself if it is.
    fn contiguous(&self, py: Python) -> Result<Self> {
        Ok(detached(py, || self.inner.contiguous())?.into())
    }

    fn __len__(&self) -> PyResult<usize> {
        self.inner.dims().first().copied().ok_or_else(|| PyTypeError::new_err("len() of a tensor of rank 0"))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let x = &slf.get().inner;
        let shape: Vec<String> = x.dims().iter().map(usize::to_string).collect();
        let device = device::name(&x.device());
        format!("Tensor(shape=({}), dtype={}, device='{device}')", shape.join(", "), numpy_name(x.dtype()))
    }
}

/// numpy's description of a tensor in host memory.
fn interface<'py>(py: Python<'py>, x: &Tensor, read_only: bool) -> PyResult<Bound<'py, PyDict>> {
    let size = x.dtype().size();
    let dict = PyDict::new(py);
    dict.set_item("version", 3)?;
    dict.set_item(
        "typestr",
        match x.dtype() {
            DType::F32 => "<f4",
            DType::F16 => "<f2",
            DType::U32 => "<u4",
        },
    )?;
    dict.set_item("shape", PyTuple::new(py, x.dims())?)?;
    let strides = x.strides().iter().map(|stride| stride.saturating_mul(size));
    dict.set_item("strides", PyTuple::new(py, strides.collect::<Vec<_>>())?)?;
    // older numpy needs an address for an array without elements too
    dict.set_item("data", (address(x).max(size as u64), read_only))?;
    Ok(dict)
}

/// Host memory that only one numpy array uses, which may therefore be written.
#[pyclass(frozen)]
struct Own(Tensor);

#[pymethods]
impl Own {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        interface(py, &self.0, false)
    }
}

/// A tensor over the memory of an object that supports DLPack; nothing is copied.
///
/// The tensor is on the object's device. The object's work queued so far comes before work on the tensor. Do not write the
/// object while an op reads the tensor. Raises DTypeError for element types other than float32, float16 and uint32.
#[pyfunction]
#[pyo3(signature = (obj, /))]
pub fn from_dlpack(obj: &Bound<'_, PyAny>) -> Result<PyTensor> {
    Ok(dlpack::import(obj)?.into())
}

/// The type and the device of a new tensor.
fn place(dtype: Option<&Bound<'_, PyAny>>, device: Option<&Bound<'_, PyAny>>) -> Result<(DType, Device)> {
    let dtype = dtype.filter(|dtype| !dtype.is_none()).map_or(Ok(DType::F32), self::dtype)?;
    Ok((dtype, device::given(device, "cpu")?))
}

/// A shape given as a number or a sequence of them.
fn shape(given: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    given.extract::<usize>().map(|size| vec![size]).or_else(|_| given.extract())
}

/// A tensor of zeros.
#[pyfunction]
#[pyo3(name = "zeros", signature = (shape, dtype = None, device = None))]
pub fn zeros(
    py: Python,
    shape: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
) -> Result<PyTensor> {
    let (shape, (dtype, device)) = (self::shape(shape)?, place(dtype, device)?);
    Ok(detached(py, || Tensor::zeros(shape, dtype, &device))?.into())
}

/// A tensor of ones.
#[pyfunction]
#[pyo3(signature = (shape, dtype = None, device = None))]
pub fn ones(
    py: Python,
    shape: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
) -> Result<PyTensor> {
    let (shape, (dtype, device)) = (self::shape(shape)?, place(dtype, device)?);
    Ok(detached(py, || Tensor::ones(shape, dtype, &device))?.into())
}

/// A tensor whose elements are all `value`.
#[pyfunction]
#[pyo3(signature = (shape, value, dtype = None, device = None))]
pub fn full(
    py: Python,
    shape: &Bound<'_, PyAny>,
    value: f64,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
) -> Result<PyTensor> {
    use pascaline::Element;
    let (shape, (dtype, device)) = (self::shape(shape)?, place(dtype, device)?);
    let made = detached(py, || match dtype {
        DType::F32 => Tensor::full(f32::from_f64(value), shape, &device),
        DType::F16 => Tensor::full(f16::from_f64(value), shape, &device),
        DType::U32 => Tensor::full(u32::from_f64(value), shape, &device),
    })?;
    Ok(made.into())
}

/// [n]: start, start + 1, … up to but not including `end`.
#[pyfunction]
#[pyo3(signature = (start, end, dtype = None, device = None))]
pub fn arange(
    py: Python,
    start: f64,
    end: f64,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
) -> Result<PyTensor> {
    use pascaline::Element;
    let (dtype, device) = place(dtype, device)?;
    let made = detached(py, || match dtype {
        DType::F32 => Tensor::arange(f32::from_f64(start), f32::from_f64(end), &device),
        DType::F16 => Tensor::arange(f16::from_f64(start), f16::from_f64(end), &device),
        DType::U32 => Tensor::arange(u32::from_f64(start), u32::from_f64(end), &device),
    })?;
    Ok(made.into())
}

/// Random numbers of the standard normal distribution; the same seed gives the same numbers on every device.
#[pyfunction]
#[pyo3(signature = (shape, seed, dtype = None, device = None))]
pub fn randn(
    py: Python,
    shape: &Bound<'_, PyAny>,
    seed: u64,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
) -> Result<PyTensor> {
    let (shape, (dtype, device)) = (self::shape(shape)?, place(dtype, device)?);
    Ok(detached(py, || Tensor::randn(shape, dtype, seed, &device))?.into())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyTensor>()?;
    module.add_class::<PyDevice>()?;
    module.add_function(wrap_pyfunction!(from_dlpack, module)?)?;
    module.add_function(wrap_pyfunction!(zeros, module)?)?;
    module.add_function(wrap_pyfunction!(ones, module)?)?;
    module.add_function(wrap_pyfunction!(full, module)?)?;
    module.add_function(wrap_pyfunction!(arange, module)?)?;
    module.add_function(wrap_pyfunction!(randn, module)?)
}
