//! In place of NVML where the feature `nvml` is off: no device is watched, so nothing is paced.

use super::Sample;
use crate::cuda::CudaDevice;

/// Reads samples of a device; there is none without NVML.
pub enum Monitor {}

impl Monitor {
    /// Opens NVML for a device; or says why it can't.
    ///
    /// # Errors
    /// That the feature is off.
    pub fn new(_: &CudaDevice) -> Result<Self, String> {
        Err("this program was built without the feature `nvml`".into())
    }

    /// Joules since the driver was loaded.
    pub fn joules(&self) -> Option<f64> {
        match *self {}
    }

    /// The most W that the device may draw.
    pub fn power_limit(&self) -> Option<f32> {
        match *self {}
    }

    /// The driver's version.
    pub fn driver_version(&self) -> Option<String> {
        match *self {}
    }

    /// Reads a sample now.
    pub fn sample(&self) -> Option<Sample> {
        match *self {}
    }
}
