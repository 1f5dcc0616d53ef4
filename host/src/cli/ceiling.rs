//! What a device can do at most: the names and numbers that rates are a share of.

use super::environment::is_virtual;
use super::measure::{Clock, Way};
use crate::cuda::{CudaDevice, Properties, args};
use crate::memory::DeviceBuffer;
use crate::{Device, Result};
use gemm::Parallelism;
use kernels_gpu::empty::EMPTY;
use rayon::prelude::*;
use serde::Serialize;
use std::hint::black_box;

/// Bytes that a copy reads, and as many that it writes: far beyond any cache.
const COPY_BYTES: usize = 256 << 20;
/// m, n and k of the product that stands for a CPU's arithmetic.
const GEMM_N: usize = 1024;

/// A rate that can't be beaten, or not by much.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Ceiling {
    /// For a column of a table.
    pub name: &'static str,
    /// What it is and how it was found.
    pub what: String,
    /// Bytes or floating-point operations per second.
    pub per_second: f64,
}

/// Work that touches no more bytes than this is held to the time of an empty launch.
const SMALL_BYTES: f64 = 65536.0;

/// The ceilings for memory-bound work, for what is too small to be that, and for compute-bound work; each where it is
/// needed and known.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Ceilings {
    pub memory: Option<Ceiling>,
    /// In launches per second.
    pub launch: Option<Ceiling>,
    pub compute: Option<Ceiling>,
}

impl Ceilings {
    /// Measures what is needed. The virtual GPU has none: its times are estimates.
    pub fn of(device: &Device, memory: bool, compute: bool, clock: &mut Clock) -> Result<Self> {
        if device.is_cuda() && is_virtual() {
            return Ok(Self::default());
        }
        Ok(match device {
            Device::Cpu => Self {
                memory: memory.then(|| cpu_copy(clock)).transpose()?,
                launch: None,
                compute: compute.then(|| cpu_gemm(clock)).transpose()?,
            },
            Device::Cuda(device) => Self {
                memory: memory.then(|| cuda_copy(device, clock)).transpose()?,
                launch: memory.then(|| empty_launch(device, clock)).transpose()?,
                compute: if compute { fp32_peak(device.properties()) } else { None },
            },
        })
    }
}

impl Ceilings {
    /// The ceiling of work that does `flops` and touches `bytes`, and how much of its unit the work does.
    pub fn for_work(&self, compute_bound: bool, flops: f64, bytes: f64) -> Option<(&Ceiling, f64)> {
        match (compute_bound, &self.launch) {
            (true, _) => self.compute.as_ref().map(|ceiling| (ceiling, flops)),
            (false, Some(launch)) if bytes <= SMALL_BYTES => Some((launch, 1.0)),
            (false, _) => self.memory.as_ref().map(|ceiling| (ceiling, bytes)),
        }
    }
}

fn best(clock: &mut Clock, way: Way) -> Result<f64> {
    let times = clock.time(&mut [way])?;
    Ok(times.first().map_or(f64::NAN, |times| times.min.as_secs_f64()))
}

fn cpu_copy(clock: &mut Clock) -> Result<Ceiling> {
    let elements = COPY_BYTES / 2 / size_of::<u64>();
    let (from, mut to) = (vec![1u64; elements], vec![0u64; elements]);
    let way: Way = Box::new(|| {
        let chunks = to.par_chunks_mut(1 << 16).zip(from.par_chunks(1 << 16));
        chunks.for_each(|(to, from)| black_box(to).copy_from_slice(from));
        Ok(())
    });
    let per_second = COPY_BYTES as f64 / best(clock, way)?;
    Ok(Ceiling { name: "copy", what: "memcpy on all threads, 128 MiB, read + written".into(), per_second })
}

fn cpu_gemm(clock: &mut Clock) -> Result<Ceiling> {
    let n = GEMM_N;
    let (a, b, mut c) = (vec![0.5f32; n * n], vec![0.25f32; n * n], vec![0.0f32; n * n]);
    let way: Way = Box::new(|| {
        let (rows, columns) = (n as isize, 1);
        // SAFETY: each matrix is a row-major n × n vector of its own, so every address of the strides is inside it,
        // and `c` overlaps neither input.
        unsafe {
            gemm::gemm(
                n,
                n,
                n,
                c.as_mut_ptr(),
                columns,
                rows,
                false,
                a.as_ptr(),
                columns,
                rows,
                b.as_ptr(),
                columns,
                rows,
                0.0,
                1.0,
                false,
                false,
                false,
                Parallelism::Rayon(0),
            );
        }
        Ok(())
    });
    let per_second = 2.0 * (n * n * n) as f64 / best(clock, way)?;
    Ok(Ceiling { name: "gemm", what: "the gemm crate, f32, 1024 × 1024 × 1024".into(), per_second })
}

fn cuda_copy(device: &CudaDevice, clock: &mut Clock) -> Result<Ceiling> {
    let (free, _) = device.memory_info()?;
    let bytes = COPY_BYTES.min(free / 4);
    let from = DeviceBuffer::uninitialized(device, bytes)?;
    let mut to = DeviceBuffer::uninitialized(device, bytes)?;
    let seconds = best(clock, Box::new(|| to.copy_from(0, &from, 0, bytes)))?;
    let what = format!("device copy of {}, read + written", crate::error::bytes(bytes));
    Ok(Ceiling { name: "copy", what, per_second: 2.0 * bytes as f64 / seconds })
}

fn empty_launch(device: &CudaDevice, clock: &mut Clock) -> Result<Ceiling> {
    // SAFETY: the kernel takes nothing and does nothing.
    let way: Way = Box::new(|| unsafe { device.launch(&EMPTY, [1, 1, 1], args![]) });
    let times = clock.time(&mut [way])?;
    let seconds = times.first().map_or(f64::NAN, |times| times.median.as_secs_f64());
    let what = format!("launches of an empty kernel, {:.2} µs each", seconds * 1e6);
    Ok(Ceiling { name: "launch", what, per_second: 1.0 / seconds })
}

/// Multiply-adds per clock of all SMs, counted as two. `None` if the driver does not tell the clock.
fn fp32_peak(properties: &Properties) -> Option<Ceiling> {
    let lanes = fp32_lanes(properties.capability);
    let clock = 1e3 * f64::from(properties.clock_khz);
    let per_second = f64::from(properties.multiprocessors * lanes) * 2.0 * clock;
    let what = format!(
        "nominal FP32 peak, {} SMs × {lanes} lanes × 2 × {} MHz",
        properties.multiprocessors,
        properties.clock_khz / 1000
    );
    (per_second > 0.0).then_some(Ceiling { name: "FP32", what, per_second })
}

/// FP32 lanes of an SM (CUDA C Programming Guide, table of arithmetic throughputs).
fn fp32_lanes(capability: (i32, i32)) -> u32 {
    match capability {
        (6, 0) | (7, _) | (8, 0) => 64,
        _ => 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_work_is_held_to_a_launch() {
        let ceiling = |name| Some(Ceiling { name, what: String::new(), per_second: 1.0 });
        let all = Ceilings { memory: ceiling("copy"), launch: ceiling("launch"), compute: ceiling("FP32") };
        let name = |ceilings: &Ceilings, compute_bound, bytes| {
            ceilings.for_work(compute_bound, 7.0, bytes).map(|(ceiling, work)| (ceiling.name, work))
        };
        assert_eq!(name(&all, true, 1.0), Some(("FP32", 7.0)));
        assert_eq!(name(&all, false, 65536.0), Some(("launch", 1.0)));
        assert_eq!(name(&all, false, 65537.0), Some(("copy", 65537.0)));
        let cpu = Ceilings { launch: None, ..all };
        assert_eq!(name(&cpu, false, 1.0), Some(("copy", 1.0)));
        assert_eq!(name(&Ceilings::default(), false, 1.0), None);
    }

    #[test]
    fn lanes_follow_the_architecture() {
        assert_eq!([(6, 1), (7, 5), (8, 0), (8, 6), (9, 0)].map(fp32_lanes), [128, 64, 64, 128, 128]);
    }
}
