//! Devices: one handle, and so one stream, for each in a process.

use crate::error::{Failure, Result, unsupported};
use pascaline::cuda::{self, CudaDevice};
use pascaline::{Choice, Device, Error, memory};
use pascaline_driver as driver;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The handles of CUDA devices, by number.
static OPENED: Mutex<Vec<Option<CudaDevice>>> = Mutex::new(Vec::new());
/// Handles on streams of other libraries, by device and stream. Never dropped.
static FOREIGN: Mutex<Option<HashMap<(u32, u64), CudaDevice>>> = Mutex::new(None);

/// Runs work on a device with the GIL released. Another library may have made another device current before.
pub fn detached<T: Send>(py: Python, work: impl FnOnce() -> pascaline::Result<T> + Send) -> Result<T> {
    py.detach(|| {
        cuda::forget_current();
        work()
    })
    .map_err(Failure::from)
}

/// Why the installed driver has no device, if it has none. `None` also once a backend is in use: until then the virtual GPU may
/// still be chosen.
pub fn no_real_device() -> Option<String> {
    if driver::backend().is_some()
        || std::env::var_os("PASCALINE_DEVICE").is_some_and(|name| name == "virtual")
    {
        return None;
    }
    match driver::real_devices() {
        Ok(1..) => None,
        Ok(0) => Some("the driver sees no device".into()),
        Err(_) if driver::library().loaded().is_none() => {
            let tried: Vec<_> = driver::library().attempts.iter().map(|attempt| attempt.path).collect();
            Some(format!("no NVIDIA driver is installed (looked for {})", tried.join(", ")))
        }
        Err(code) => Some(format!("the driver does not start: {} ({code})", driver::code_text(code))),
    }
}

/// The device of this name: `auto`, `cpu`, `cuda`, `cuda:N` or `virtual`. The same name returns the same stream each time.
pub fn open(name: &str) -> pascaline::Result<Device> {
    let unknown = || Error::UnknownDevice { name: name.to_owned() };
    match name {
        "cpu" => Ok(Device::Cpu),
        "auto" => match choose().device {
            Device::Cpu => Ok(Device::Cpu),
            Device::Cuda(device) => Ok(Device::Cuda(keep(device))),
        },
        "virtual" => match opened(0) {
            Some(device) if device.is_virtual() => Ok(Device::Cuda(device)),
            _ => match Device::virtual_gpu()? {
                Device::Cuda(device) => Ok(Device::Cuda(keep(device))),
                Device::Cpu => Err(unknown()),
            },
        },
        "cuda" => ordinal(0),
        _ => {
            let number = name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
            ordinal(number.ok_or_else(unknown)?)
        }
    }
}

/// The device that `auto` takes, and why.
pub fn choose() -> Choice {
    match no_real_device() {
        Some(reason) => Choice { device: Device::Cpu, reason: format!("no usable GPU: {reason}") },
        None => Device::choose(),
    }
}

/// CUDA device number `ordinal`.
pub fn ordinal(ordinal: u32) -> pascaline::Result<Device> {
    match opened(ordinal) {
        Some(device) => Ok(Device::Cuda(device)),
        None => match no_real_device() {
            Some(reason) => Err(Error::NoDevice { reason }),
            None => CudaDevice::new(ordinal).map(|device| Device::Cuda(keep(device))),
        },
    }
}

fn opened(ordinal: u32) -> Option<CudaDevice> {
    let opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    opened.get(ordinal as usize).cloned().flatten()
}

/// The handle that the process uses for this device: this one, if it is the first.
fn keep(device: CudaDevice) -> CudaDevice {
    let index = device.properties().ordinal as usize;
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if opened.len() <= index {
        opened.resize(index + 1, None);
    }
    opened[index].get_or_insert(device).clone()
}

/// The device with a stream of another library: 0 is the default stream, 1 and 2 are DLPack's and the driver's names for the
/// legacy and the per-thread default stream.
///
/// # Safety
/// `stream` is one of these, or a stream of the device's primary context that lives until the process ends.
pub unsafe fn with_stream(device: &CudaDevice, stream: u64) -> pascaline::Result<CudaDevice> {
    let mut foreign = FOREIGN.lock().unwrap_or_else(PoisonError::into_inner);
    let foreign = foreign.get_or_insert_default();
    let key = (device.properties().ordinal, stream);
    if let Some(device) = foreign.get(&key) {
        return Ok(device.clone());
    }
    // SAFETY: `stream` is a default stream, or lives until the process ends: this function's contract.
    let handle = unsafe { device.with_foreign_stream(stream) }?;
    foreign.insert(key, handle.clone());
    Ok(handle)
}

/// A device given as a name, a `Device` or `None`.
pub fn given(device: Option<&Bound<'_, PyAny>>, default: &str) -> Result<Device> {
    let Some(device) = device.filter(|device| !device.is_none()) else {
        return Ok(open(default)?);
    };
    if let Ok(device) = device.cast::<PyDevice>() {
        return Ok(device.get().inner.clone());
    }
    let name = match device.extract::<String>() {
        Ok(name) => name,
        Err(_) => device.str()?.to_string(), // such as torch.device
    };
    Ok(device.py().detach(|| open(&name))?)
}

/// The name by which [`open`] returns the device.
pub fn name(device: &Device) -> String {
    match device {
        Device::Cpu => "cpu".into(),
        Device::Cuda(device) if device.is_virtual() && device.properties().ordinal == 0 => "virtual".into(),
        Device::Cuda(device) => format!("cuda:{}", device.properties().ordinal),
    }
}

/// The CPU, a CUDA device, or the virtual GPU.
///
/// ``Device("cpu")``, ``Device("cuda:0")``, ``Device("virtual")``, or ``Device("auto")``: the first CUDA device of compute
/// capability 6.1 or newer, else the CPU. All handles of a device share one stream.
///
/// Raises UnknownDeviceError for another name, NoDeviceError if the device can't be used.
#[pyclass(frozen, name = "Device", module = "pascaline")]
pub struct PyDevice {
    pub inner: Device,
}

impl PyDevice {
    /// The CUDA device, for methods that the CPU does not have.
    fn cuda(&self, op: &'static str) -> Result<&CudaDevice> {
        match &self.inner {
            Device::Cuda(device) => Ok(device),
            Device::Cpu => Err(unsupported(op, "device", "cpu", "the CPU has no memory pool")),
        }
    }
}

#[pymethods]
impl PyDevice {
    #[new]
    #[pyo3(signature = (name = "auto"))]
    fn new(py: Python, name: &str) -> Result<Self> {
        Ok(Self { inner: detached(py, || open(name))? })
    }

    /// Waits for all work queued on the device and raises its errors.
    fn synchronize(&self, py: Python) -> Result<()> {
        detached(py, || self.inner.synchronize())
    }

    /// The name that ``Device`` takes: "cpu", "cuda:0", "virtual".
    #[getter]
    fn name(&self) -> String {
        name(&self.inner)
    }

    /// "cpu", "cuda" or "virtual".
    #[getter(r#type)]
    fn kind(&self) -> &'static str {
        match &self.inner {
            Device::Cpu => "cpu",
            Device::Cuda(device) if device.is_virtual() => "virtual",
            Device::Cuda(_) => "cuda",
        }
    }

    /// The device's number; None for the CPU.
    #[getter]
    fn index(&self) -> Option<u32> {
        match &self.inner {
            Device::Cpu => None,
            Device::Cuda(device) => Some(device.properties().ordinal),
        }
    }

    /// Whether it is a CUDA device, real or virtual.
    #[getter]
    fn is_cuda(&self) -> bool {
        self.inner.is_cuda()
    }

    /// The device's properties as a dict: name, compute capability, multiprocessors, memory. Empty for the CPU.
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        if let Device::Cuda(device) = &self.inner {
            let properties = device.properties();
            dict.set_item("name", &properties.name)?;
            dict.set_item("compute_capability", properties.capability)?;
            dict.set_item("multiprocessors", properties.multiprocessors)?;
            dict.set_item("clock_khz", properties.clock_khz)?;
            dict.set_item("memory_bytes", properties.memory_bytes)?;
            dict.set_item("l2_bytes", properties.l2_bytes)?;
            dict.set_item("memory_pools", properties.memory_pools)?;
            dict.set_item("watchdog", properties.watchdog)?;
        }
        Ok(dict)
    }

    /// (free, total) bytes of the device's memory now.
    fn memory_info(&self, py: Python) -> Result<(usize, usize)> {
        let device = self.cuda("memory_info")?;
        detached(py, || device.memory_info())
    }

    /// The memory pool's statistics as a dict. All sizes are bytes; live + free + pending = reserved.
    fn memory_statistics<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let device = self.cuda("memory_statistics")?;
        let statistics = detached(py, || Ok(memory::pool(device)?.statistics()))?;
        let dict = PyDict::new(py);
        macro_rules! items {
            ($($field:ident)*) => { $(dict.set_item(stringify!($field), statistics.$field)?;)* };
        }
        items!(live requested free pending reserved peak_live peak_reserved largest_free allocations frees refused
            invalid_frees segments_asked segments_returned);
        dict.set_item("fragmentation", statistics.fragmentation())?;
        Ok(dict)
    }

    /// Lets the memory pool reserve at most this many bytes from now on; None for no limit.
    #[pyo3(signature = (limit))]
    fn set_memory_limit(&self, py: Python, limit: Option<usize>) -> Result<()> {
        let device = self.cuda("set_memory_limit")?;
        detached(py, || memory::set_limit(device, limit.unwrap_or(usize::MAX)))
    }

    /// Returns unused memory of the pool to the driver.
    fn trim_memory(&self, py: Python) -> Result<()> {
        let device = self.cuda("trim_memory")?;
        detached(py, || memory::pool(device)?.trim().map(|_| ()))
    }

    /// The address of the CUDA stream that work on the device goes to; None on the CPU.
    #[getter]
    fn stream(&self) -> Option<usize> {
        match &self.inner {
            Device::Cpu => None,
            Device::Cuda(device) => Some(device.stream().raw() as usize),
        }
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        match other.cast::<Self>() {
            Ok(other) => self.inner == other.get().inner,
            Err(_) => other.extract::<String>().is_ok_and(|other| self.name() == other),
        }
    }

    /// The hash of the name, since a device is equal to its name.
    fn __hash__(&self, py: Python) -> PyResult<isize> {
        PyString::new(py, &self.name()).hash()
    }

    fn __str__(&self) -> String {
        self.name()
    }

    fn __repr__(&self) -> String {
        format!("Device('{}')", self.name())
    }
}
