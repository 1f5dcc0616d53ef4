//! A CUDA device: its primary context, the loaded kernels and a stream.

use super::context::Opened;
use super::current::forget_current;
use super::event::Event;
use super::fault::{alive_on, check};
use super::module::Modules;
use super::planned::{self, PlannedGpu};
use super::properties::{self, Properties, read_properties};
use super::stream::Stream;
use crate::Result;
use cust::context::Context;
use cust::sys;
use pascaline_driver as driver;
use pascaline_occupancy::Multiprocessor;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A device, and the stream that its work is queued on. A value of this type proves that the driver is new enough and the
/// context is alive. A kernel's module is loaded at its first use. Cheap to clone.
#[derive(Clone)]
pub struct CudaDevice {
    inner: Arc<Opened>,
    stream: Arc<Stream>,
}

impl CudaDevice {
    /// How many devices the driver sees.
    ///
    /// # Errors
    /// [`Error::NoDevice`](crate::Error::NoDevice) without a usable driver.
    pub fn count() -> Result<u32> {
        properties::count()
    }

    /// The properties of a device, without making a context on it.
    ///
    /// # Errors
    /// [`Error::NoDevice`](crate::Error::NoDevice).
    pub fn properties_of(ordinal: u32) -> Result<Properties> {
        read_properties(ordinal).map(|(_, properties)| properties)
    }

    /// Opens a device with a stream of its own. The context and the modules loaded into it are shared by all handles of one
    /// device.
    ///
    /// # Errors
    /// [`Error::NoDevice`](crate::Error::NoDevice) if there is no such device or it is older than compute capability 6.1.
    pub fn new(ordinal: u32) -> Result<Self> {
        if planned::is_planned(ordinal) && !planned::is_any() {
            read_properties(ordinal)?; // the driver has none of these numbers
        }
        alive_on(Some(ordinal), "opening the device")?;
        let inner = Opened::device(ordinal)?;
        Ok(Self { stream: Arc::new(Stream::new()?), inner })
    }

    /// A device of the plan that this thread makes, which has this number there.
    pub(crate) fn planned(gpu: &PlannedGpu, ordinal: u32) -> Result<Self> {
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
        let inner = Opened::planned(properties)?;
        Ok(Self { stream: Arc::new(Stream::new()?), inner })
    }

    /// Whether it only keeps the books of a [plan](crate::plan): its memory has no contents, and its kernels do not run.
    pub fn is_planned(&self) -> bool {
        self.inner.context().is_none()
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

    /// A new event that can't be asked for times. It costs the device less.
    ///
    /// # Errors
    /// A driver error.
    pub fn untimed_event(&self) -> Result<Event> {
        self.bind()?;
        Event::untimed()
    }

    /// Waits for all work queued on this handle's stream and reports its errors. If another thread is capturing the stream,
    /// waits for the end of the capture first.
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost) if a kernel faulted; a driver error during a capture on this thread.
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
        self.inner.context().map_or(std::ptr::null_mut(), Context::as_raw)
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
    /// [`Error::DeviceLost`](crate::Error::DeviceLost) if the GPU has faulted in this process.
    pub fn bind(&self) -> Result<()> {
        self.inner.bind()
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} ({})", self.inner.properties.ordinal, self.inner.properties.name)
    }
}
