//! Watches a device on a background thread, to pace the threads that submit work and to record the clocks.
//!
//! NVML takes milliseconds for a sample, so no token and no timing waits for one. There is one thread per device; it ends
//! with the last [`Pacer`].

use super::nvml::Monitor;
use super::pacing::{Event, Governor, Sample, pause_after};
use crate::Device;
use crate::cuda::CudaDevice;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two samples.
const EVERY: Duration = Duration::from_millis(200);
/// Number of samples that are kept: one hour.
const KEPT: usize = 18_000;
/// A device is steady when this long...
const STEADY: Duration = Duration::from_secs(5);
/// ...its temperature has stayed within this many °C.
const STEADY_DEGREES: f32 = 1.5;

/// Paces work by the temperature of its device. Without a GPU or without NVML nothing is paced; `doctor` says which.
#[derive(Debug)]
pub struct Pacer {
    watch: Option<Arc<Watch>>,
    /// When the last pause ended.
    resumed: Instant,
    paused: Duration,
    /// Number of the watch's events that were returned already.
    seen: usize,
}

#[derive(Debug)]
struct Watch {
    /// The device watched; `None` in tests without one.
    device: Option<CudaDevice>,
    /// The bits of an f32.
    duty: AtomicU32,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    samples: VecDeque<(Instant, Sample)>,
    /// The last time that kernels with less energy were preferred.
    low_power: Option<Instant>,
    events: Vec<Event>,
}

/// The state that a device sustained over a period.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Sustained {
    /// The multiprocessors' clock in MHz: mean, minimum and maximum.
    pub clock_mhz: [u32; 3],
    /// The highest temperature in °C.
    pub temperature: f32,
    /// The mean power in W.
    pub power: f32,
    /// Whether the device slowed itself down, for heat or for power.
    pub slowed_down: [bool; 2],
    /// Whether kernels with less energy were preferred.
    pub low_power: bool,
    /// Number of samples in the period.
    pub samples: usize,
}

impl Pacer {
    /// Starts watching a device.
    pub fn new(device: &Device) -> Self {
        let real = pascaline_driver::backend() == Some(pascaline_driver::Backend::Real);
        let watch = match device {
            Device::Cuda(device) if real && !device.is_planned() => Some(watch(device)),
            _ => None,
        };
        Self::watching(watch)
    }

    fn watching(watch: Option<Arc<Watch>>) -> Self {
        Self { watch, resumed: Instant::now(), paused: Duration::ZERO, seen: 0 }
    }

    /// Call this between pieces of work: waits as long as the governor requires after the work since the last call.
    pub fn pace(&mut self) {
        let Some(watch) = &self.watch else { return };
        let pause = pause_after(watch.duty(), self.resumed.elapsed());
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        self.paused += pause;
        self.resumed = Instant::now();
    }

    /// Total time that it has waited.
    pub fn paused(&self) -> Duration {
        self.paused
    }

    /// The changes since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        let Some(watch) = &self.watch else { return Vec::new() };
        let events = watch.log().events.get(self.seen..).map_or_else(Vec::new, <[_]>::to_vec);
        self.seen += events.len();
        events
    }

    /// The state that the device sustained since `begin`; `None` if there is no sample.
    pub fn since(&self, begin: Instant) -> Option<Sustained> {
        let log = self.watch.as_ref()?.log();
        let samples = log.samples.iter().filter(|(at, _)| *at >= begin).map(|(_, sample)| sample);
        sustained(samples, log.low_power.is_some_and(|at| at >= begin))
    }

    /// Whether the temperature is steady.
    pub fn is_steady(&self) -> bool {
        let Some(watch) = &self.watch else { return true };
        let log = watch.log();
        let Some(&(last, _)) = log.samples.back() else { return false };
        let recent = log.samples.iter().filter(|(at, _)| last - *at <= STEADY).map(|(_, s)| s.temperature);
        let (low, high) = recent.fold((f32::MAX, f32::MIN), |(low, high), t| (low.min(t), high.max(t)));
        let long = log.samples.front().is_some_and(|(first, _)| last - *first >= STEADY);
        long && high - low <= STEADY_DEGREES
    }
}

fn sustained<'a>(samples: impl Iterator<Item = &'a Sample>, low_power: bool) -> Option<Sustained> {
    let samples: Vec<_> = samples.collect();
    let count = samples.len();
    let clocks = || samples.iter().map(|sample| sample.clock);
    let mean = clocks().map(u64::from).sum::<u64>() / (count as u64).max(1);
    Some(Sustained {
        clock_mhz: [mean as u32, clocks().min()?, clocks().max()?],
        temperature: samples.iter().map(|sample| sample.temperature).fold(f32::MIN, f32::max),
        power: samples.iter().map(|sample| sample.power).sum::<f32>() / count as f32,
        slowed_down: [samples.iter().any(|s| s.thermal), samples.iter().any(|s| s.power_capped)],
        low_power,
        samples: count,
    })
}

impl std::fmt::Display for Sustained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [mean, least, most] = self.clock_mhz;
        let why = match self.slowed_down {
            [true, _] => "slowed down by heat",
            [_, true] => "slowed down by its power limit",
            _ => "not slowed down",
        };
        let Self { temperature, power, .. } = self;
        write!(f, "{mean} MHz ({least} to {most}), {temperature:.0} °C at most, {power:.0} W, {why}")?;
        if self.low_power { f.write_str(", kernels that need less energy asked for") } else { Ok(()) }
    }
}

impl Watch {
    fn new(device: Option<CudaDevice>) -> Self {
        Self { device, duty: AtomicU32::new(1f32.to_bits()), log: Mutex::default() }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn duty(&self) -> f32 {
        f32::from_bits(self.duty.load(Ordering::Relaxed))
    }

    fn take_in(&self, governor: &mut Governor, sample: Sample, now: Instant) {
        let event = governor.observe(sample);
        self.duty.store(governor.duty().to_bits(), Ordering::Relaxed);
        let low_power = governor.prefers_low_power();
        if let Some(device) = &self.device {
            device.prefer_low_power(low_power);
        }
        let mut log = self.log();
        log.events.extend(event);
        log.samples.push_back((now, sample));
        log.low_power = low_power.then_some(now).or(log.low_power);
        if log.samples.len() > KEPT {
            log.samples.pop_front();
        }
    }
}

impl Drop for Watch {
    /// No watch is left. A later one sets the preference again with its first sample.
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            device.prefer_low_power(false);
        }
    }
}

/// The device's watch; starts its thread if there is none.
fn watch(device: &CudaDevice) -> Arc<Watch> {
    static WATCHES: Mutex<Vec<(u32, Weak<Watch>)>> = Mutex::new(Vec::new());
    let ordinal = device.properties().ordinal;
    let mut watches = WATCHES.lock().unwrap_or_else(PoisonError::into_inner);
    let alive = watches.iter().filter(|(of, _)| *of == ordinal).find_map(|(_, watch)| watch.upgrade());
    alive.unwrap_or_else(|| {
        let watch = Arc::new(Watch::new(Some(device.clone())));
        watches.retain(|(of, _)| *of != ordinal);
        watches.push((ordinal, Arc::downgrade(&watch)));
        let (device, watch_of_thread) = (device.clone(), Arc::downgrade(&watch));
        let thread = thread::Builder::new().name("heat".into());
        // Without the thread nothing is paced, as without NVML.
        let _ = thread.spawn(move || observe(&device, &watch_of_thread));
        watch
    })
}

fn observe(device: &CudaDevice, watch: &Weak<Watch>) {
    let Ok(monitor) = Monitor::new(device) else { return };
    let mut governor = Governor::default();
    while let Some(watch) = watch.upgrade() {
        if let Some(sample) = monitor.sample() {
            watch.take_in(&mut governor, sample, Instant::now());
        }
        drop(watch);
        thread::sleep(EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse_trace;
    use super::*;
    use crate::memory::device_tests::{cuda_device, turn};

    fn sample(seconds: u64, temperature: f32, clock: u32) -> Sample {
        let at = Duration::from_secs(seconds);
        Sample { at, temperature, slowdown: 90.0, power: 25.0, clock, thermal: false, power_capped: false }
    }

    #[test]
    fn a_hot_device_paces_and_says_so() {
        let (watch, mut governor) = (Arc::new(Watch::new(None)), Governor::default());
        let mut pacer = Pacer::watching(Some(Arc::clone(&watch)));
        pacer.pace();
        assert_eq!((pacer.paused(), pacer.events()), (Duration::ZERO, Vec::new()));
        watch.take_in(&mut governor, sample(0, 88.0, 1500), Instant::now());
        assert_eq!(watch.duty(), governor.duty());
        assert_eq!(pacer.events(), [Event::PacingBegan { temperature: 88.0 }]);
        assert_eq!(pacer.events(), [], "each event once");
        thread::sleep(Duration::from_millis(2));
        pacer.pace();
        assert!(pacer.paused() > Duration::ZERO);
    }

    #[test]
    fn what_was_held_is_of_the_samples_since() {
        let (watch, mut governor) = (Arc::new(Watch::new(None)), Governor::default());
        let pacer = Pacer::watching(Some(Arc::clone(&watch)));
        let start = Instant::now();
        let mut take_in = |seconds, temperature, clock| {
            let at = start + Duration::from_secs(seconds);
            watch.take_in(&mut governor, sample(seconds, temperature, clock), at);
        };
        take_in(0, 50.0, 300);
        let begin = start + Duration::from_millis(500);
        assert_eq!(pacer.since(begin), None);
        take_in(1, 60.0, 1000);
        take_in(2, 58.0, 1400);
        let held = pacer.since(begin).unwrap();
        assert_eq!((held.clock_mhz, held.temperature, held.samples), ([1200, 1000, 1400], 60.0, 2));
        assert_eq!(held.to_string(), "1200 MHz (1000 to 1400), 60 °C at most, 25 W, not slowed down");
        assert!(!pacer.is_steady(), "seconds have to pass");
        for second in 3..8 {
            take_in(second, 58.5, 1400);
        }
        assert!(pacer.is_steady(), "five seconds within a degree");
    }

    /// From the samples of a thermal run to the choice of kernels: the governor's preference takes effect, and ends with it.
    #[test]
    fn a_hot_run_takes_kernels_that_need_less_energy() {
        let _turn = turn();
        let device = cuda_device();
        let (watch, mut governor) = (Watch::new(Some(device.clone())), Governor::default());
        let trace = parse_trace(include_str!("../../../tests/data/thermal_synthetic.csv")).unwrap();
        let mut chosen: Vec<&str> = Vec::new();
        for sample in trace {
            watch.take_in(&mut governor, sample, Instant::now());
            assert_eq!(device.prefers_low_power(), governor.prefers_low_power());
            let now = crate::gpu::matmul::large_product_with_a_sparing_tile(&device);
            if chosen.last() != Some(&now) {
                chosen.push(now);
            }
        }
        assert_eq!(chosen, ["tile128", "wide128", "tile128"], "cool, hot, cool");
        watch.take_in(
            &mut governor,
            Sample { power_capped: true, ..sample(1000, 50.0, 1500) },
            Instant::now(),
        );
        assert!(device.prefers_low_power());
        drop(watch);
        assert!(!device.prefers_low_power());
    }

    #[test]
    fn without_a_gpu_nothing_is_paced() {
        let mut pacer = Pacer::new(&Device::Cpu);
        pacer.pace();
        assert_eq!(
            (pacer.paused(), pacer.since(Instant::now()), pacer.is_steady()),
            (Duration::ZERO, None, true)
        );
    }
}
