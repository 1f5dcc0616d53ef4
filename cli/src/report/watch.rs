//! Records temperature, clock and power of a GPU during a report.

use crate::environment::is_virtual;
use pascaline::cuda::CudaDevice;
use pascaline::governor::nvml::Monitor;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two samples: 300 samples in ten minutes.
const EVERY: Duration = Duration::from_secs(2);

/// The samples, and limits of the device.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Temperatures {
    /// Why there are no samples.
    pub message: Option<String>,
    /// The device's power limit in W.
    pub power_limit: Option<f32>,
    /// The temperature in °C at which it throttles itself.
    pub slowdown: Option<f32>,
    pub samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Sample {
    /// Seconds since the start.
    pub seconds: f64,
    pub celsius: f32,
    pub watts: f32,
    pub clock_mhz: u32,
    /// Whether the device throttled itself because of heat, or because of power.
    pub slowed_by_heat: bool,
    pub slowed_by_power: bool,
}

/// Samples a device until it is dropped.
pub(super) struct Thermometer {
    seen: Arc<Mutex<Temperatures>>,
    ended: Arc<AtomicBool>,
}

impl Thermometer {
    pub fn watch(device: &CudaDevice) -> Self {
        let (seen, ended) = (Arc::new(Mutex::new(Temperatures::default())), Arc::new(AtomicBool::new(false)));
        let this = Self { seen: Arc::clone(&seen), ended: Arc::clone(&ended) };
        if is_virtual() {
            this.say("the virtual GPU has no temperature".to_owned());
            return this;
        }
        let monitor = match Monitor::new(device) {
            Ok(monitor) => monitor,
            Err(message) => {
                this.say(message);
                return this;
            }
        };
        this.update(|seen| seen.power_limit = monitor.power_limit());
        let begun = Instant::now();
        let watch = move || {
            while !ended.load(Ordering::Relaxed) {
                if let Some(sample) = monitor.sample() {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.slowdown = Some(sample.slowdown);
                    seen.samples.push(Sample {
                        seconds: begun.elapsed().as_secs_f64(),
                        celsius: sample.temperature,
                        watts: sample.power,
                        clock_mhz: sample.clock,
                        slowed_by_heat: sample.thermal,
                        slowed_by_power: sample.power_capped,
                    });
                }
                thread::sleep(EVERY);
            }
        };
        if let Err(error) = thread::Builder::new().name("thermometer".into()).spawn(watch) {
            this.say(format!("there is no thread for it: {error}"));
        }
        this
    }

    pub fn so_far(&self) -> Temperatures {
        self.update(|seen| seen.clone())
    }

    fn say(&self, message: String) {
        self.update(|seen| seen.message = Some(message));
    }

    fn update<R>(&self, f: impl FnOnce(&mut Temperatures) -> R) -> R {
        f(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Thermometer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
