//! A CUDA device: its primary context, the loaded kernels and a stream.

use super::module::Modules;
use super::occupancy::Multiprocessor;
use super::planned::{self, PlannedGpu};
use super::{Event, Stream, alive_on, check, failure};
use crate::{Error, Result};
use cust::context::{Context, CurrentContext};
use cust::device::DeviceAttribute;
use cust::sys;
use pascaline_driver as driver;
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The oldest driver that loads the kernels' PTX 6.4: CUDA 10.1's.
const MIN_DRIVER: i32 = 10010;
/// Attributes that are newer than cust's enum, by their number in `CUdevice_attribute`.
const MAX_BLOCKS_PER_MULTIPROCESSOR: u32 = 106;
const RESERVED_SHARED_MEMORY_PER_BLOCK: u32 = 111;
const MEMORY_POOLS_SUPPORTED: u32 = 115;

/// A device, and the stream that its work is queued on. A value of this type proves that the driver is new enough and the
/// context is alive. A kernel's module is loaded at its first use. Cheap to clone.
#[derive(Clone)]
pub struct CudaDevice {
    inner: Arc<Inner>,
    stream: Arc<Stream>,
}

struct Inner {
    /// None of a planned device.
    context: Option<Context>,
    modules: Modules,
    properties: Properties,
    /// See [`CudaDevice::prefer_low_power`].
    low_power: AtomicBool,
}

/// The properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// The driver's number of the device.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Registers, shared memory and resident threads of each.
    pub multiprocessor: Multiprocessor,
    /// Boost clock in kHz.
    pub clock_khz: u32,
    /// Memory clock in kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus in bits.
    pub memory_bus_bits: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: usize,
    /// Bytes of device memory.
    pub memory_bytes: usize,
    /// Whether the driver has stream-ordered memory pools for it.
    pub memory_pools: bool,
    /// Whether the system stops kernels that run for seconds, as it does on a GPU that drives a display.
    pub watchdog: bool,
}

thread_local! {
    /// The ordinal of the device whose context is current on this thread.
    static CURRENT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// One context and its modules per device for the life of the process.
static OPENED: Mutex<Vec<Option<Arc<Inner>>>> = Mutex::new(Vec::new());

/// Initialises the driver once and returns its version (12040 for 12.4).
///
/// # Errors
/// [`Error::NoDevice`] with the reason, if there is no driver that starts and is new enough.
pub fn driver_version() -> Result<i32> {
    static VERSION: OnceLock<Result<i32>> = OnceLock::new();
    VERSION.get_or_init(init_driver).clone()
}

fn init_driver() -> Result<i32> {
    // SAFETY: cuInit may be called at any time; without a driver the seam answers with an error code.
    let result = unsafe { sys::cuInit(0) };
    if result != sys::CUresult::CUDA_SUCCESS {
        return Err(Error::NoDevice { reason: why_not_initialised() });
    }
    let mut version = 0;
    // SAFETY: `version` is written before it is used.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    if version < MIN_DRIVER {
        let reason = format!(
            "the driver supports CUDA {}.{}, the kernels need 10.1 or newer; update the NVIDIA driver",
            version / 1000,
            version % 1000 / 10
        );
        return Err(Error::NoDevice { reason });
    }
    Ok(version)
}

/// Why this program has no virtual GPU.
pub(crate) const WITHOUT_VIRTUAL_GPU: &str = "this program was built without the feature `virtual-gpu`";

fn why_not_initialised() -> String {
    if driver::backend() == Some(driver::Backend::Virtual) && !driver::HAS_VIRTUAL_GPU {
        return WITHOUT_VIRTUAL_GPU.into();
    }
    let code = driver::last_raw_code();
    let library = driver::library();
    if driver::backend() == Some(driver::Backend::Real) && library.loaded().is_none() {
        let tried: Vec<_> = library.attempts.iter().map(|attempt| attempt.path).collect();
        return format!("no NVIDIA driver is installed (looked for {})", tried.join(", "));
    }
    format!("the driver does not start: {} ({code})", driver::code_text(code))
}

impl CudaDevice {
    /// How many devices the driver sees.
    ///
    /// # Errors
    /// [`Error::NoDevice`] without a usable driver.
    pub fn count() -> Result<u32> {
        driver_version()?;
        cust::device::Device::num_devices()
            .map_err(|_| Error::NoDevice { reason: "the driver does not list its devices".into() })
    }

    /// The properties of a device, without making a context on it.
    ///
    /// # Errors
    /// [`Error::NoDevice`].
    pub fn properties_of(ordinal: u32) -> Result<Properties> {
        read_properties(ordinal).map(|(_, properties)| properties)
    }

    /// Opens a device with a stream of its own. The context and the modules loaded into it are shared by all handles of one
    /// device.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is no such device or it is older than compute capability 6.1.
    pub fn new(ordinal: u32) -> Result<Self> {
        if planned::is_planned(ordinal) && !planned::is_any() {
            read_properties(ordinal)?; // the driver has none of these numbers
        }
        alive_on(Some(ordinal), "opening the device")?;
        let index = ordinal as usize;
        let mut opened = OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let inner = match opened.get(index).cloned().flatten() {
            Some(inner) => inner,
            None => {
                let inner = Arc::new(open(ordinal)?); // which refuses numbers that the list must not grow to
                if opened.len() <= index {
                    opened.resize(index + 1, None);
                }
                opened[index] = Some(Arc::clone(&inner));
                inner
            }
        };
        drop(opened);
        bind(&inner)?;
        Ok(Self { stream: Arc::new(Stream::new()?), inner })
    }

    /// A device of the plan that this thread makes, which has this number there.
    pub(super) fn planned(gpu: &PlannedGpu, ordinal: u32) -> Result<Self> {
        let properties = Properties {
            ordinal,
            name: "a planned GPU".into(),
            capability: gpu.capability,
            multiprocessors: gpu.multiprocessors,
            multiprocessor: Multiprocessor::SM_61,
            clock_khz: 0,
            memory_clock_khz: 0,
            memory_bus_bits: 0,
            l2_bytes: 0,
            memory_bytes: gpu.memory,
            memory_pools: true,
            watchdog: false,
        };
        let (context, modules, low_power) = (None, Modules::planned(), AtomicBool::new(false));
        let inner = Arc::new(Inner { context, modules, properties, low_power });
        bind(&inner)?;
        Ok(Self { stream: Arc::new(Stream::new()?), inner })
    }

    /// Whether it only keeps the books of a [plan](crate::plan): its memory has no contents, and its kernels do not run.
    pub fn is_planned(&self) -> bool {
        self.inner.context.is_none()
    }

    /// The same device with a new stream: work on it runs concurrently with work on this one.
    ///
    /// # Errors
    /// A driver error.
    pub fn with_new_stream(&self) -> Result<Self> {
        self.bind()?;
        Ok(Self { inner: Arc::clone(&self.inner), stream: Arc::new(Stream::new()?) })
    }

    /// The same device with a stream of another library: work of this handle is queued on it. 0 is the device's default
    /// stream.
    ///
    /// # Errors
    /// A driver error.
    ///
    /// # Safety
    /// `stream` is 0, or a stream of the device's primary context that lives as long as this handle and all tensors on it.
    pub unsafe fn with_foreign_stream(&self, stream: u64) -> Result<Self> {
        forget_current();
        self.bind()?;
        // SAFETY: `stream` fulfils this function's contract, and the primary context is bound.
        let stream = unsafe { Stream::foreign(stream as sys::CUstream) }?;
        Ok(Self { inner: Arc::clone(&self.inner), stream: Arc::new(stream) })
    }

    /// The properties of the device.
    pub fn properties(&self) -> &Properties {
        &self.inner.properties
    }

    /// The stream that work on this handle goes to.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Its address on the PCI bus, such as `0000:01:00.0`; NVML uses the same name.
    ///
    /// # Errors
    /// A driver error.
    pub fn pci_bus_id(&self) -> Result<String> {
        alive_on(Some(self.inner.properties.ordinal), "cuDeviceGetPCIBusId")?;
        let mut text = [0u8; 32];
        let ordinal = self.inner.properties.ordinal as i32;
        // SAFETY: the buffer is as long as the call says; ordinals and device handles are the same numbers.
        let result =
            unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, ordinal) };
        check("cuDeviceGetPCIBusId", result)?;
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    /// Whether to prefer kernels that need less energy, even if they are a little slower. It matters only for kernels whose
    /// power has been measured. It applies to all handles of the device; captured graphs do not change. The thermal governor
    /// sets it while a [`Pacer`](crate::governor::Pacer) watches the device.
    pub fn prefer_low_power(&self, low: bool) {
        self.inner.low_power.store(low, Ordering::Relaxed);
    }

    /// The current setting of [`prefer_low_power`](Self::prefer_low_power).
    pub fn prefers_low_power(&self) -> bool {
        self.inner.low_power.load(Ordering::Relaxed)
    }

    /// Its stream, shared.
    pub(crate) fn stream_handle(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// A new event.
    ///
    /// # Errors
    /// A driver error.
    pub fn event(&self) -> Result<Event> {
        self.bind()?;
        Event::new()
    }

    /// Waits for all work queued on this handle's stream and reports its errors. If another thread is capturing the stream,
    /// waits for the end of the capture first.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if a kernel faulted; a driver error during a capture on this thread.
    pub fn synchronize(&self) -> Result<()> {
        let _lock = self.stream.lock_to_enqueue();
        self.bind()?;
        self.stream.synchronize()
    }

    /// Whether this is a virtual GPU.
    pub fn is_virtual(&self) -> bool {
        !self.is_planned() && driver::backend() == Some(driver::Backend::Virtual)
    }

    /// Free and total bytes of device memory at this moment.
    ///
    /// # Errors
    /// A driver error.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; both are written before they are used.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// Whether the device has faulted in this process.
    pub fn is_lost(&self) -> bool {
        alive_on(Some(self.inner.properties.ordinal), "is_lost").is_err()
    }

    /// Its primary context, for calls that take two contexts.
    pub(crate) fn context(&self) -> sys::CUcontext {
        self.inner.context.as_ref().map_or(std::ptr::null_mut(), Context::as_raw)
    }

    /// Whether two handles are of the same device and the same stream.
    pub fn same_stream(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.stream, &other.stream)
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.inner.modules
    }

    /// Makes this device's context current on the calling thread, for libraries that use the current context.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if the GPU has faulted in this process.
    pub fn bind(&self) -> Result<()> {
        bind(&self.inner)
    }
}

/// Call this after another library may have made another device current on this thread: the next use of a device then binds
/// its context again.
pub fn forget_current() {
    CURRENT.set(None);
}

/// The ordinal of the device whose context was last made current on this thread.
pub(super) fn current() -> Option<u32> {
    CURRENT.get()
}

/// Makes the context of an opened device current; for destructors, which run on any thread.
pub(super) fn bind_ordinal(ordinal: Option<u32>) -> Result<()> {
    let Some(index) = ordinal else { return Ok(()) };
    if planned::is_planned(index) {
        return planned::make_current(index);
    }
    let opened = OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let inner = opened.get(index as usize).cloned().flatten();
    drop(opened);
    inner.map_or(Ok(()), |inner| bind(&inner))
}

fn bind(inner: &Inner) -> Result<()> {
    let ordinal = inner.properties.ordinal;
    alive_on(Some(ordinal), "cuCtxSetCurrent")?;
    if CURRENT.get() != Some(ordinal) {
        match &inner.context {
            Some(context) => CurrentContext::set_current(context)
                .map_err(|_| super::failure_on(Some(ordinal), "cuCtxSetCurrent", driver::last_raw_code()))?,
            None => planned::make_current(ordinal)?,
        }
        CURRENT.set(Some(ordinal));
    }
    Ok(())
}

fn open(ordinal: u32) -> Result<Inner> {
    let (device, properties) = read_properties(ordinal)?;
    if properties.capability < (6, 1) {
        let (major, minor) = properties.capability;
        let reason = format!(
            "{} has compute capability {major}.{minor}; the kernels need 6.1 or newer",
            properties.name
        );
        return Err(Error::NoDevice { reason });
    }
    let context = Context::new(device).map_err(|_| Error::NoDevice {
        reason: format!("no context on {}: {}", properties.name, driver::code_text(driver::last_raw_code())),
    })?;
    let inner = Inner {
        context: Some(context),
        modules: Modules::new(),
        properties,
        low_power: AtomicBool::new(false),
    };
    CURRENT.set(None); // the primary context may have been made current by others
    bind(&inner)?;
    Ok(inner)
}

fn read_properties(ordinal: u32) -> Result<(cust::device::Device, Properties)> {
    let count = CudaDevice::count()?;
    if ordinal >= count {
        let reason = match count {
            0 => "the driver sees no device".to_owned(),
            _ => format!("device {ordinal} does not exist; the driver sees {count}, counted from 0"),
        };
        return Err(Error::NoDevice { reason });
    }
    let unreadable = |error: Error| match error {
        lost @ Error::DeviceLost { .. } => lost,
        other => Error::NoDevice { reason: format!("device {ordinal} does not say what it is: {other}") },
    };
    let failed = |call| move |_| unreadable(failure(call, driver::last_raw_code()));
    let device = cust::device::Device::get_device(ordinal).map_err(failed("cuDeviceGet"))?;
    let raw_attribute = |number| raw_attribute(&device, number).map_err(unreadable);
    let attribute = |attribute: DeviceAttribute| raw_attribute(attribute as u32);
    let capability = (
        attribute(DeviceAttribute::ComputeCapabilityMajor)?,
        attribute(DeviceAttribute::ComputeCapabilityMinor)?,
    );
    let multiprocessor = Multiprocessor {
        warps: attribute(DeviceAttribute::MaxThreadsPerMultiprocessor)? as u32 / 32,
        // Drivers before 11.0 do not report it; Pascal has 32.
        blocks: match raw_attribute(MAX_BLOCKS_PER_MULTIPROCESSOR)? {
            0 => Multiprocessor::SM_61.blocks,
            blocks => blocks as u32,
        },
        registers: attribute(DeviceAttribute::MaxRegistersPerMultiprocessor)? as u32,
        shared_bytes: attribute(DeviceAttribute::MaxSharedMemoryPerMultiprocessor)? as u32,
        shared_bytes_per_block: attribute(DeviceAttribute::MaxSharedMemoryPerBlock)? as u32,
        shared_bytes_reserved: raw_attribute(RESERVED_SHARED_MEMORY_PER_BLOCK)? as u32,
        shared_unit: if capability.0 >= 8 { 128 } else { 256 },
        ..Multiprocessor::SM_61
    };
    let properties = Properties {
        ordinal,
        name: device.name().map_err(failed("cuDeviceGetName"))?,
        capability,
        multiprocessor,
        multiprocessors: attribute(DeviceAttribute::MultiprocessorCount)? as u32,
        clock_khz: attribute(DeviceAttribute::ClockRate)? as u32,
        memory_clock_khz: attribute(DeviceAttribute::MemoryClockRate)? as u32,
        memory_bus_bits: attribute(DeviceAttribute::GlobalMemoryBusWidth)? as u32,
        l2_bytes: attribute(DeviceAttribute::L2CacheSize)? as usize,
        memory_bytes: device.total_memory().map_err(failed("cuDeviceTotalMem"))?,
        memory_pools: raw_attribute(MEMORY_POOLS_SUPPORTED)? != 0,
        watchdog: attribute(DeviceAttribute::KernelExecTimeout)? != 0,
    };
    Ok((device, properties))
}

/// An attribute by its number, which cust's enum may lack; zero if the driver does not know it.
fn raw_attribute(device: &cust::device::Device, attribute: u32) -> Result<i32> {
    const NOT_KNOWN: u32 = 1;
    match driver::device_attribute(device.as_raw(), attribute) {
        Err(NOT_KNOWN) => Ok(0),
        value => value.map_err(|code| failure("cuDeviceGetAttribute", code)),
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} ({})", self.inner.properties.ordinal, self.inner.properties.name)
    }
}
