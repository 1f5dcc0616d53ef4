//! The driver's version, and the properties of the devices that it sees.

use super::fault::{check, failure};
use crate::{Error, Result};
use cust::device::DeviceAttribute;
use cust::sys;
use pascaline_driver as driver;
use pascaline_occupancy::Multiprocessor;
use std::sync::OnceLock;

/// The oldest driver that loads the kernels' PTX 6.4: CUDA 10.1's.
const MIN_DRIVER: i32 = 10010;
/// Attributes that are newer than cust's enum, by their number in `CUdevice_attribute`.
const MAX_BLOCKS_PER_MULTIPROCESSOR: u32 = 106;
const RESERVED_SHARED_MEMORY_PER_BLOCK: u32 = 111;
const MEMORY_POOLS_SUPPORTED: u32 = 115;

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

/// How many devices the driver sees.
///
/// # Errors
/// [`Error::NoDevice`] without a usable driver.
pub(super) fn count() -> Result<u32> {
    driver_version()?;
    cust::device::Device::num_devices()
        .map_err(|_| Error::NoDevice { reason: "the driver does not list its devices".into() })
}

/// The driver's handle of a device, and its properties.
///
/// # Errors
/// [`Error::NoDevice`].
pub(super) fn read_properties(ordinal: u32) -> Result<(cust::device::Device, Properties)> {
    let count = count()?;
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
