//! DLPack: tensors over other libraries' memory, and theirs over ours.
//!
//! The structures and the protocol are those of DLPack 1.0 and of the Python specification
//! (<https://dmlc.github.io/dlpack/latest/>); both versioned and older unversioned capsules are supported.

use crate::address::address;
use crate::device::{self, detached};
use crate::error::{Failure, Result, no_such_type, unsupported};
use pascaline::cuda::CudaDevice;
use pascaline::{DType, Device, Tensor, ops};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_void};
use std::ptr;

const CPU: i32 = 1;
const CUDA: i32 = 2;
/// Pinned host memory.
const CUDA_HOST: i32 = 3;
/// DLPack's type for devices that producer and consumer know: here the virtual GPU, whose memory no other library can access.
const EXTENSION: i32 = 12;
const CUDA_MANAGED: i32 = 13;

const UINT: u8 = 1;
const FLOAT: u8 = 2;

const PLAIN: &CStr = c"dltensor";
const PLAIN_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDevice {
    device_type: i32,
    device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// The unversioned form.
#[repr(C)]
struct Plain {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Plain)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// The bit of [`Versioned::flags`] for memory that was copied for the consumer.
const IS_COPIED: u64 = 2;

/// The tensor that a consumer keeps alive, and its description.
struct Export {
    tensor: Tensor,
    /// The stream that the consumer works on, if that is another than the tensor's.
    consumer: Option<CudaDevice>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some(consumer) = &self.consumer {
            pascaline::cuda::forget_current();
            // An error can't be reported from a drop. A lost device reuses no memory.
            let _ = self.tensor.used_on(consumer);
        }
    }
}

/// The DLPack description of an export, into which its pointers point.
fn described(export: &mut Export) -> DlTensor {
    let (device_type, device_id) = device_of(&export.tensor);
    let (code, bits) = match export.tensor.dtype() {
        DType::F32 => (FLOAT, 32),
        DType::F16 => (FLOAT, 16),
        DType::U32 => (UINT, 32),
    };
    DlTensor {
        data: address(&export.tensor) as *mut c_void,
        device: DlDevice { device_type, device_id },
        ndim: export.shape.len() as i32,
        dtype: DlDataType { code, bits, lanes: 1 },
        shape: export.shape.as_mut_ptr(),
        strides: export.strides.as_mut_ptr(),
        byte_offset: 0,
    }
}

unsafe extern "C" fn delete_plain(managed: *mut Plain) {
    if !managed.is_null() {
        // SAFETY: `export` made both boxes, and a deleter is called once.
        unsafe {
            let managed = Box::from_raw(managed);
            drop(Box::from_raw(managed.context.cast::<Export>()));
        }
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    if !managed.is_null() {
        // SAFETY: `export` made both boxes, and a deleter is called once.
        unsafe {
            let managed = Box::from_raw(managed);
            drop(Box::from_raw(managed.context.cast::<Export>()));
        }
    }
}

/// Frees the contents of a capsule that no consumer has taken.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with the capsule that is being freed. The name tells whether its pointer was taken.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            delete_plain(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// DLPack's (device type, number) of a tensor.
pub fn device_of(x: &Tensor) -> (i32, i32) {
    match x.device() {
        Device::Cpu => (CPU, 0),
        Device::Cuda(device) => {
            let kind = if device.is_virtual() { EXTENSION } else { CUDA };
            (kind, device.properties().ordinal as i32)
        }
    }
}

/// Whether an object supports DLPack and its memory is not the host's.
pub fn is_on_a_device(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if !object.hasattr("__dlpack_device__")? {
        return Ok(false);
    }
    let (kind, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    Ok(kind != CPU && kind != CUDA_HOST)
}

/// A capsule of the tensor for a consumer on `stream`, as the protocol numbers streams.
pub fn export<'py>(
    py: Python<'py>,
    x: &Tensor,
    stream: Option<i64>,
    max_version: Option<(u32, u32)>,
    wanted: Option<(i32, i32)>,
    copy: Option<bool>,
) -> Result<Bound<'py, PyAny>> {
    let mut tensor = x.clone();
    let mut copied = false;
    if let Some(wanted) = wanted.filter(|wanted| *wanted != device_of(x)) {
        if wanted.0 != CPU || copy == Some(false) {
            let message = format!("the tensor is on DLPack's device {:?}, not {wanted:?}", device_of(x));
            return Err(PyBufferError::new_err(message).into());
        }
        tensor = detached(py, || x.to_device(&Device::Cpu))?;
        copied = true;
    } else if copy == Some(true) {
        tensor = detached(py, || ops::copy(x))?;
        copied = true;
    }
    let consumer = match tensor.device() {
        Device::Cpu if stream.is_some() && !x.device().is_cuda() => {
            return Err(PyBufferError::new_err("a tensor in host memory has no stream").into());
        }
        Device::Cpu => None,
        Device::Cuda(device) => ordered(py, &device, stream)?,
    };
    let sizes = |sizes: &[usize]| sizes.iter().map(|&size| size as i64).collect::<Vec<_>>();
    let (shape, strides) = (sizes(tensor.dims()), sizes(tensor.strides()));
    let mut export = Box::new(Export { tensor, consumer, shape, strides });
    let tensor = described(&mut export);
    let context = Box::into_raw(export).cast::<c_void>();
    let (pointer, name) = match max_version {
        Some((1.., _)) => {
            let flags = if copied { IS_COPIED } else { 0 };
            let managed =
                Versioned { major: 1, minor: 0, context, deleter: Some(delete_versioned), flags, tensor };
            (Box::into_raw(Box::new(managed)).cast::<c_void>(), VERSIONED)
        }
        _ => {
            let managed = Plain { tensor, context, deleter: Some(delete_plain) };
            (Box::into_raw(Box::new(managed)).cast::<c_void>(), PLAIN)
        }
    };
    // SAFETY: the pointer is to the structure that the name announces, and the destructor frees it if nobody has taken it.
    unsafe {
        let capsule = ffi::PyCapsule_New(pointer, name.as_ptr(), Some(drop_capsule));
        Ok(Bound::from_owned_ptr_or_err(py, capsule)?)
    }
}

/// Makes the consumer's stream wait for the tensor's. Returns the consumer's if it is another.
fn ordered(py: Python, device: &CudaDevice, stream: Option<i64>) -> Result<Option<CudaDevice>> {
    /// The consumer asks for no synchronisation.
    const NOTHING: i64 = -1;
    let raw = match stream {
        Some(NOTHING) => return Ok(None),
        None if device.is_virtual() => return Ok(None), // only this package consumes it, and on the same stream
        None => 1,                                      // the legacy default stream
        Some(raw @ 1..) => raw as u64,
        Some(other) => {
            return Err(unsupported(
                "__dlpack__",
                "stream",
                other,
                "DLPack has no CUDA stream of this number",
            ));
        }
    };
    if raw == device.stream().raw() as u64 {
        return Ok(None);
    }
    let ordered = detached(py, || {
        // SAFETY: by the protocol the consumer passes a stream of the tensor's device. The documentation asks that it outlives
        // the tensor.
        let consumer = unsafe { device::with_stream(device, raw) }?;
        let written = device.event()?;
        written.record(device.stream())?;
        consumer.stream().wait(&written)?;
        Ok(consumer)
    })?;
    Ok(Some(ordered))
}

/// Memory of another library, which is returned to it when this is dropped.
struct Import {
    managed: Managed,
    /// The device whose stream uses it.
    device: Device,
}

enum Managed {
    Plain(*mut Plain),
    Versioned(*mut Versioned),
}

// SAFETY: by the protocol a deleter may be called on any thread.
unsafe impl Send for Import {}
// SAFETY: nothing is reached through a shared reference.
unsafe impl Sync for Import {}

impl Drop for Import {
    fn drop(&mut self) {
        // The other library does not know our stream, so our work must have ended. A lost device runs nothing any more.
        pascaline::cuda::forget_current();
        let _ = self.device.synchronize();
        // SAFETY: the capsule handed the structure over, and its deleter is called once.
        unsafe {
            match self.managed {
                Managed::Plain(managed) => {
                    if let Some(deleter) = (*managed).deleter {
                        deleter(managed);
                    }
                }
                Managed::Versioned(managed) => {
                    if let Some(deleter) = (*managed).deleter {
                        deleter(managed);
                    }
                }
            }
        }
    }
}

/// A tensor over the memory of an object that supports DLPack.
pub fn import(object: &Bound<'_, PyAny>) -> Result<Tensor> {
    let py = object.py();
    if !object.hasattr("__dlpack__")? || !object.hasattr("__dlpack_device__")? {
        let message = format!("{} has no __dlpack__", object.get_type().name()?);
        return Err(PyTypeError::new_err(message).into());
    }
    let (kind, number): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    let device = match kind {
        CPU | CUDA_HOST => Device::Cpu,
        CUDA | CUDA_MANAGED | EXTENSION => {
            let ordinal = u32::try_from(number)
                .map_err(|_| unsupported("from_dlpack", "device", number, "there is no such device"))?;
            let device = detached(py, || device::ordinal(ordinal))?;
            let is_virtual = matches!(&device, Device::Cuda(device) if device.is_virtual());
            if is_virtual != (kind == EXTENSION) {
                let reason = "this process uses the virtual GPU, or the object is on a device of its own";
                return Err(unsupported("from_dlpack", "device", format!("{:?}", (kind, number)), reason));
            }
            device
        }
        _ => {
            let reason = "tensors are on the CPU or on CUDA devices";
            return Err(unsupported("from_dlpack", "device", format!("{:?}", (kind, number)), reason));
        }
    };
    let arguments = PyDict::new(py);
    if let Device::Cuda(device) = &device {
        arguments.set_item("stream", device.stream().raw() as u64)?;
    }
    arguments.set_item("max_version", (1, 0))?;
    let capsule = match object.call_method("__dlpack__", (), Some(&arguments)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            arguments.del_item("max_version")?; // older than DLPack 1.0
            object.call_method("__dlpack__", (), Some(&arguments))?
        }
        answer => answer?,
    };
    of_capsule(&capsule, device)
}

/// Consumes a capsule.
fn of_capsule(capsule: &Bound<'_, PyAny>, device: Device) -> Result<Tensor> {
    let pointer = |name: &CStr, used: &CStr| {
        let raw = capsule.as_ptr();
        // SAFETY: the pointer is read only of a capsule with this name, which says what it points to. By the protocol,
        // renaming it takes ownership of the structure.
        unsafe {
            if ffi::PyCapsule_IsValid(raw, name.as_ptr()) == 0 {
                return ptr::null_mut();
            }
            let pointer = ffi::PyCapsule_GetPointer(raw, name.as_ptr());
            match ffi::PyCapsule_SetName(raw, used.as_ptr()) {
                0 => pointer,
                _ => ptr::null_mut(),
            }
        }
    };
    let versioned = pointer(VERSIONED, VERSIONED_USED).cast::<Versioned>();
    let plain = pointer(PLAIN, PLAIN_USED).cast::<Plain>();
    let (managed, tensor) = if !versioned.is_null() {
        // SAFETY: the producer made it for the capsule's name; the version comes before all fields that may differ.
        unsafe {
            let managed = Managed::Versioned(versioned);
            if (*versioned).major != 1 {
                let (major, minor) = ((*versioned).major, (*versioned).minor);
                drop(Import { managed, device });
                let reason = "versions 0 and 1 are supported";
                return Err(unsupported("from_dlpack", "version", format!("{major}.{minor}"), reason));
            }
            (managed, &raw const (*versioned).tensor)
        }
    } else if !plain.is_null() {
        // SAFETY: the producer made it for the capsule's name.
        unsafe { (Managed::Plain(plain), &raw const (*plain).tensor) }
    } else {
        let message = "__dlpack__ returned no capsule that can be consumed";
        return Err(PyTypeError::new_err(message).into());
    };
    let import = Import { managed, device: device.clone() };
    // SAFETY: the structure is valid until `import` is dropped.
    let described = unsafe { read(&*tensor) };
    let (address, shape, strides, dtype) = described?;
    // SAFETY: by the protocol the producer guarantees the elements and the order with our stream; the owner returns the memory
    // after its work. The documentation asks the user not to write it meanwhile.
    let tensor = unsafe { Tensor::from_foreign(address, shape, &strides, dtype, &device, Box::new(import)) };
    tensor.map_err(Failure::from)
}

type Described = (u64, Vec<usize>, Vec<usize>, DType);

/// The address, sizes, strides and type of a structure.
///
/// # Safety
/// A producer has made the structure and has not freed it.
unsafe fn read(tensor: &DlTensor) -> Result<Described> {
    let DlDataType { code, bits, lanes } = tensor.dtype;
    let dtype = match (code, bits, lanes) {
        (FLOAT, 32, 1) => DType::F32,
        (FLOAT, 16, 1) => DType::F16,
        (UINT, 32, 1) => DType::U32,
        _ => return Err(no_such_type("from_dlpack", format!("code {code}, {bits} bits, {lanes} lanes"))),
    };
    let rank = usize::try_from(tensor.ndim).unwrap_or(0);
    let numbers = |pointer: *mut i64, what: &'static str| -> Result<Vec<usize>> {
        if rank == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: by the protocol there are `ndim` numbers.
        let numbers = unsafe { std::slice::from_raw_parts(pointer, rank) };
        let not_negative = |&number: &i64| {
            usize::try_from(number)
                .map_err(|_| unsupported("from_dlpack", what, number, "it must not be negative"))
        };
        numbers.iter().map(not_negative).collect()
    };
    let shape = numbers(tensor.shape, "shape")?;
    let strides = match tensor.strides.is_null() {
        true => pascaline::Shape::from(&shape[..]).contiguous_strides(),
        false => numbers(tensor.strides, "strides")?,
    };
    let address = (tensor.data as u64).wrapping_add(tensor.byte_offset);
    Ok((address, shape, strides, dtype))
}
