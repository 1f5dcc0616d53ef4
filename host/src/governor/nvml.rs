//! Samples of a device by NVML, the driver's management library, which is opened on demand. Without it nothing is paced; the
//! caller reports that once.

use super::pacing::Sample;
use crate::cuda::CudaDevice;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor, TemperatureThreshold};
use std::time::Instant;

/// The slowdown temperature in °C for a device that does not report one.
const USUAL_SLOWDOWN: f32 = 90.0;

/// Reads samples of a device.
pub struct Monitor {
    nvml: Nvml,
    bus_id: String,
    slowdown: f32,
    start: Instant,
}

impl Monitor {
    /// Opens NVML for a device.
    ///
    /// # Errors
    /// The reason as a sentence for users.
    pub fn new(device: &CudaDevice) -> Result<Self, String> {
        let bus_id = device.pci_bus_id().map_err(|error| error.to_string())?;
        let nvml = Nvml::init().map_err(|error| format!("NVML is not available: {error}"))?;
        let slowdown = {
            let found = nvml.device_by_pci_bus_id(bus_id.as_str());
            let found =
                found.map_err(|error| format!("NVML does not know the device at {bus_id}: {error}"))?;
            let threshold = found.temperature_threshold(TemperatureThreshold::Slowdown);
            threshold.map_or(USUAL_SLOWDOWN, |celsius| celsius as f32)
        };
        Ok(Self { nvml, bus_id, slowdown, start: Instant::now() })
    }

    /// Energy in joules since the driver was loaded; `None` before Volta, which does not count it.
    pub fn joules(&self) -> Option<f64> {
        let device = self.nvml.device_by_pci_bus_id(self.bus_id.as_str()).ok()?;
        device.total_energy_consumption().ok().map(|millijoules| millijoules as f64 / 1e3)
    }

    /// The device's power limit in W; `None` if it is not reported.
    pub fn power_limit(&self) -> Option<f32> {
        let device = self.nvml.device_by_pci_bus_id(self.bus_id.as_str()).ok()?;
        device.enforced_power_limit().ok().map(|milliwatts| milliwatts as f32 / 1e3)
    }

    /// The driver's version, such as `582.28`.
    pub fn driver_version(&self) -> Option<String> {
        self.nvml.sys_driver_version().ok()
    }

    /// Reads a sample. Values that the device does not report are 0; `None` if it reports no temperature.
    pub fn sample(&self) -> Option<Sample> {
        let device = self.nvml.device_by_pci_bus_id(self.bus_id.as_str()).ok()?;
        let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::empty());
        let heat = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        let power = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
        Some(Sample {
            at: self.start.elapsed(),
            temperature: device.temperature(TemperatureSensor::Gpu).ok()? as f32,
            slowdown: self.slowdown,
            power: device.power_usage().map_or(0.0, |milliwatts| milliwatts as f32 / 1e3),
            clock: device.clock_info(Clock::SM).unwrap_or(0),
            thermal: reasons.intersects(heat),
            power_capped: reasons.intersects(power),
        })
    }
}
