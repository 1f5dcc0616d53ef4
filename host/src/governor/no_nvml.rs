//! Replaces `nvml.rs` where the feature `nvml` is off: no device is watched, so nothing is paced.

use super::pacing::Sample;
use crate::cuda::CudaDevice;

/// Reads samples of a device; cannot exist without NVML.
pub enum Monitor {}

impl Monitor {
    /// Always fails.
    ///
    /// # Errors
    /// The message that the feature is off.
    pub fn new(_: &CudaDevice) -> Result<Self, String> {
        Err("this program was built without the feature `nvml`".into())
    }

    /// Energy in joules since the driver was loaded.
    pub fn joules(&self) -> Option<f64> {
        match *self {}
    }

    /// The device's power limit in W.
    pub fn power_limit(&self) -> Option<f32> {
        match *self {}
    }

    /// The driver's version.
    pub fn driver_version(&self) -> Option<String> {
        match *self {}
    }

    /// Reads a sample.
    pub fn sample(&self) -> Option<Sample> {
        match *self {}
    }
}
