//! Timing: several implementations in turn, so that a drifting clock affects all alike.
//!
//! Before every sample the caches are evicted. A GPU's L2 is evicted by reading, which leaves no dirty lines: after
//! writing, a kernel that only reads would pay for writing back up to an L2's worth of bytes. On a GPU, samples are
//! device-event timings of single runs, queued without waiting between them. The eviction before each keeps the queue
//! filled, so the host's launch time is not measured.

use super::environment::is_virtual;
use pascaline::cuda::{CudaDevice, Event};
use pascaline::memory::DeviceBuffer;
use pascaline::{DType, Device, Result, Tensor, ops};
use rayon::prelude::*;
use std::time::{Duration, Instant};

/// The least time to sample each implementation.
const ENOUGH: Duration = Duration::from_millis(100);
/// The fewest samples of each, however long they take.
const MIN_SAMPLES: f64 = 5.0;
/// The most samples of each, however short they are.
const MAX_SAMPLES: f64 = 100.0;
/// Bytes that are written to evict a CPU's caches.
const CPU_EVICTION_BYTES: usize = 64 << 20;
/// The fewest bytes that are read to evict a GPU's L2: at 300 GB/s that takes 0.1 ms, longer than a launch.
const GPU_EVICTION_BYTES: usize = 32 << 20;
/// Row length of the tensor that is read and summed for that.
const EVICTION_COLUMNS: usize = 4096;

/// Bytes that a copy reads, and also writes: far more than any cache holds.
pub(super) const COPY_BYTES: usize = 256 << 20;

/// Runs the work once.
pub(super) type Way<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// The times of one implementation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub median: Duration,
    pub min: Duration,
    pub samples: usize,
}

impl Times {
    fn new(mut samples: Vec<Duration>) -> Self {
        samples.sort();
        let middle = samples.len() / 2;
        let median = match samples.len() {
            0 => Duration::ZERO,
            count if count % 2 == 1 => samples[middle],
            _ => (samples[middle - 1] + samples[middle]) / 2,
        };
        Self { median, min: samples.first().copied().unwrap_or_default(), samples: samples.len() }
    }
}

/// Measures times on a device.
pub(super) enum Clock {
    Cpu { evict: Vec<u64> },
    Cuda { device: CudaDevice, evict: Tensor, sums: Tensor },
}

impl Clock {
    pub fn new(device: &Device) -> Result<Self> {
        Ok(match device {
            Device::Cpu => Self::Cpu { evict: vec![0; CPU_EVICTION_BYTES / size_of::<u64>()] },
            Device::Cuda(cuda) => {
                let bytes = match is_virtual() {
                    true => 0, // simulated time does not depend on earlier runs
                    false => (2 * cuda.properties().l2_bytes).max(GPU_EVICTION_BYTES),
                };
                let rows = bytes.div_ceil(EVICTION_COLUMNS * size_of::<f32>());
                let evict = Tensor::zeros([rows, EVICTION_COLUMNS], DType::F32, device)?;
                let sums = Tensor::zeros([rows], DType::F32, device)?;
                Self::Cuda { device: cuda.clone(), evict, sums }
            }
        })
    }

    /// Warms up every implementation, then samples them in turn.
    pub fn time(&mut self, ways: &mut [Way]) -> Result<Vec<Times>> {
        self.time_for(ways, ENOUGH)
    }

    /// [`time`](Self::time) of a single implementation.
    pub fn time_one(&mut self, way: Way) -> Result<Times> {
        Ok(self.time(&mut [way])?.pop().unwrap_or_else(|| Times::new(Vec::new())))
    }

    /// [`time`](Self::time), with at least `enough` time for each implementation.
    pub fn time_for(&mut self, ways: &mut [Way], enough: Duration) -> Result<Vec<Times>> {
        if is_virtual() {
            // simulated time does not vary
            return Ok(self.rounds(1, ways)?.into_iter().map(Times::new).collect());
        }
        self.rounds(1, ways)?;
        let begun = Instant::now();
        self.rounds(1, ways)?;
        let round = begun.elapsed().as_secs_f64().max(1e-9);
        let rounds = enough.as_secs_f64() * ways.len() as f64 / round;
        let samples = self.rounds(rounds.clamp(MIN_SAMPLES, MAX_SAMPLES) as usize, ways)?;
        Ok(samples.into_iter().map(Times::new).collect())
    }

    /// The samples of each implementation.
    fn rounds(&mut self, rounds: usize, ways: &mut [Way]) -> Result<Vec<Vec<Duration>>> {
        let mut samples = vec![Vec::with_capacity(rounds); ways.len()];
        match self {
            Self::Cpu { evict } => {
                for round in 0..rounds {
                    for (way, samples) in ways.iter_mut().zip(&mut samples) {
                        evict.par_chunks_mut(1 << 16).for_each(|chunk| chunk.fill(round as u64));
                        let begun = Instant::now();
                        way()?;
                        samples.push(begun.elapsed());
                    }
                }
            }
            Self::Cuda { device, evict, sums } => {
                let mut events: Vec<Vec<(Event, Event)>> = Vec::new();
                for _ in 0..rounds {
                    let mut pairs = Vec::with_capacity(ways.len());
                    for way in ways.iter_mut() {
                        let (begin, end) = (device.event()?, device.event()?);
                        ops::sum_into(sums.view_mut()?, evict)?;
                        begin.record(device.stream())?;
                        way()?;
                        end.record(device.stream())?;
                        pairs.push((begin, end));
                    }
                    events.push(pairs);
                }
                device.synchronize()?;
                for pairs in &events {
                    for ((begin, end), samples) in pairs.iter().zip(&mut samples) {
                        samples.push(end.since(begin)?);
                    }
                }
            }
        }
        Ok(samples)
    }
}

/// Bytes of a device copy, and how many are read and written per second: the peak rate of a GPU's memory.
pub(super) fn copy_rate(device: &CudaDevice, clock: &mut Clock) -> Result<(usize, f64)> {
    let (free, _) = device.memory_info()?;
    let bytes = COPY_BYTES.min(free / 4);
    let seconds = copy_times(device, bytes, clock)?.min.as_secs_f64();
    Ok((bytes, 2.0 * bytes as f64 / seconds))
}

pub(super) fn copy_times(device: &CudaDevice, bytes: usize, clock: &mut Clock) -> Result<Times> {
    let from = DeviceBuffer::uninitialized(device, bytes)?;
    let mut to = DeviceBuffer::uninitialized(device, bytes)?;
    clock.time_one(Box::new(|| to.copy_from(0, &from, 0, bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_minimum() {
        let times = |ms: &[u64]| Times::new(ms.iter().map(|&ms| Duration::from_millis(ms)).collect());
        let odd = times(&[5, 1, 3]);
        assert_eq!(
            (odd.median, odd.min, odd.samples),
            (Duration::from_millis(3), Duration::from_millis(1), 3)
        );
        assert_eq!(times(&[4, 1, 2, 100]).median, Duration::from_millis(3));
    }

    #[test]
    fn every_way_gets_the_same_samples() -> Result<()> {
        let (mut a, mut b) = (0usize, 0usize);
        let times = {
            let mut ways: Vec<Way> = vec![
                Box::new(|| {
                    a += 1;
                    Ok(())
                }),
                Box::new(|| {
                    b += 1;
                    Ok(())
                }),
            ];
            Clock::new(&Device::Cpu)?.time(&mut ways)?
        };
        assert_eq!(a, b);
        assert_eq!(times[0].samples + 2, a);
        assert!(times.iter().all(|times| times.min <= times.median));
        Ok(())
    }
}
