//! Ceilings: the measured rates that results are compared with.

use super::environment::is_virtual;
use super::measure::{COPY_BYTES, Clock, Way, copy_rate, copy_times};
use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;
use pascaline::cuda::{CudaDevice, Properties};
use pascaline::internals::peak::{Instruction, Peak, launch_nothing};
use pascaline::{Device, Error, Result};
use pascaline_testing::Case;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

/// Iterations of the kernels that measure FFMA and `dp4a`: 2 ms on a Pascal card of any size.
const PEAK_ROUNDS: u32 = 400;
/// m, n and k of the matrix product that measures a CPU's arithmetic.
const GEMM_N: usize = 1024;

/// A rate that can't be exceeded, or not by much.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Ceiling {
    /// Its name in a column of a table.
    pub name: &'static str,
    /// Its meaning, and how it was measured.
    pub what: String,
    /// Bytes or floating-point operations per second.
    pub per_second: f64,
}

/// Work on no more bytes than this is compared with an empty launch.
const SMALL_BYTES: f64 = 65536.0;

/// The ceilings of memory-bound, launch-bound, compute-bound and `dp4a`-bound work; each if it is needed and known.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Ceilings {
    pub memory: Option<Ceiling>,
    /// In launches per second.
    pub launch: Option<Ceiling>,
    pub compute: Option<Ceiling>,
    pub dp4a: Option<Ceiling>,
}

/// Which ceilings are needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    pub memory: bool,
    pub compute: bool,
    pub dp4a: bool,
}

impl Ceilings {
    /// Measures what is needed. The virtual GPU has none: its times are estimates.
    pub fn measure(device: &Device, needs: Needs, clock: &mut Clock) -> Result<Self> {
        let Needs { memory, compute, dp4a } = needs;
        if device.is_cuda() && is_virtual() {
            return Ok(Self::default());
        }
        Ok(match device {
            Device::Cpu => Self {
                memory: memory.then(|| cpu_copy(clock)).transpose()?,
                launch: None,
                compute: (compute || dp4a).then(|| cpu_gemm(clock)).transpose()?,
                dp4a: None,
            },
            Device::Cuda(device) => Self {
                memory: memory.then(|| cuda_copy(device, clock)).transpose()?,
                launch: memory.then(|| empty_launch(device, clock)).transpose()?,
                compute: compute.then(|| cuda_peak(device, Instruction::Fma, clock)).transpose()?,
                dp4a: dp4a.then(|| cuda_peak(device, Instruction::Dp4a, clock)).transpose()?,
            },
        })
    }

    /// The ceiling of work that does `flops` and touches `bytes`, and how much of its unit the work does.
    pub fn for_work(&self, bound: Bound, flops: f64, bytes: f64) -> Option<(&Ceiling, f64)> {
        let (ceiling, work) = match (bound, &self.launch) {
            (Bound::Dp4a, _) if self.dp4a.is_some() => (&self.dp4a, flops),
            (Bound::Dp4a | Bound::Compute, _) => (&self.compute, flops),
            (Bound::Memory, launch @ Some(_)) if bytes <= SMALL_BYTES => (launch, 1.0),
            (Bound::Memory, _) => (&self.memory, bytes),
        };
        Some((ceiling.as_ref()?, work))
    }
}

/// The resource that bounds a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    Memory,
    Compute,
    Dp4a,
}

impl Bound {
    pub fn new(case: &dyn Case) -> Self {
        match (case.compute_bound(), case.dp4a()) {
            (false, _) => Self::Memory,
            (true, false) => Self::Compute,
            (true, true) => Self::Dp4a,
        }
    }
}

fn best(clock: &mut Clock, way: Way) -> Result<f64> {
    Ok(clock.time_one(way)?.min.as_secs_f64())
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
        let (rows, columns) = (1, n as isize);
        // SAFETY: each matrix is a column-major n × n vector of its own, so every address of the strides is inside it,
        // and `c` overlaps neither input.
        unsafe {
            get_gemm_fn()(
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
    Ok(Ceiling { name: "gemm", what: "the gemm-f32 crate, 1024 × 1024 × 1024".into(), per_second })
}

/// The peak rate of a GPU's memory, measured by a device copy.
fn cuda_copy(device: &CudaDevice, clock: &mut Clock) -> Result<Ceiling> {
    let (bytes, per_second) = copy_rate(device, clock)?;
    let what = format!("device copy of {}, read + written", pascaline::format_bytes(bytes));
    Ok(Ceiling { name: "copy", what, per_second })
}

/// The times of device copies smaller than the ceiling's, measured once per size. They have the same start and end costs as
/// other work of their size, so a share of their time says how much can still be gained.
#[derive(Default)]
pub(super) struct Copies(BTreeMap<usize, Duration>);

impl Copies {
    /// The median time of a copy that reads and writes `bytes` in all. `None` if a copy does not bound the work (on a CPU
    /// or the virtual GPU, and for sizes with other ceilings), or if there is no room for it.
    pub fn time(&mut self, device: &Device, bytes: f64, clock: &mut Clock) -> Result<Option<Duration>> {
        let Device::Cuda(device) = device else { return Ok(None) };
        let half = (bytes / 2.0) as usize;
        if is_virtual() || bytes <= SMALL_BYTES || half >= COPY_BYTES {
            return Ok(None);
        }
        if let Some(&time) = self.0.get(&half) {
            return Ok(Some(time));
        }
        match copy_times(device, half, clock) {
            Ok(times) => Ok(Some(*self.0.entry(half).or_insert(times.median))),
            Err(Error::OutOfMemory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn empty_launch(device: &CudaDevice, clock: &mut Clock) -> Result<Ceiling> {
    let way: Way = Box::new(|| launch_nothing(device));
    let seconds = clock.time_one(way)?.median.as_secs_f64();
    let what = format!("launches of an empty kernel, {:.2} µs each", seconds * 1e6);
    Ok(Ceiling { name: "launch", what, per_second: 1.0 / seconds })
}

/// Measured, as the clock under load is not specified. A multiply-add counts as two operations.
fn cuda_peak(device: &CudaDevice, instruction: Instruction, clock: &mut Clock) -> Result<Ceiling> {
    let (name, what) = match instruction {
        Instruction::Fma => {
            ("FP32", format!("measured, chains of FFMA in registers{}", nominal(device.properties())))
        }
        Instruction::Dp4a => ("dp4a", "measured, chains of dp4a in registers".to_owned()),
    };
    let peak = Peak::new(device, instruction)?;
    let seconds = best(clock, Box::new(|| peak.run(device, PEAK_ROUNDS)))?;
    Ok(Ceiling { name, what, per_second: 2.0 * peak.multiply_adds(PEAK_ROUNDS) / seconds })
}

/// The data sheet's rate; `None` if the driver does not report the clock.
fn nominal(properties: &Properties) -> String {
    let lanes = fp32_lanes(properties.capability);
    let peak = f64::from(properties.multiprocessors * lanes) * 2.0 * 1e3 * f64::from(properties.clock_khz);
    if peak == 0.0 {
        return String::new();
    }
    format!(
        " (nominal {:.0} GFLOP/s: {} SMs × {lanes} lanes × 2 × {} MHz)",
        peak / 1e9,
        properties.multiprocessors,
        properties.clock_khz / 1000
    )
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
        let all = Ceilings {
            memory: ceiling("copy"),
            launch: ceiling("launch"),
            compute: ceiling("FP32"),
            dp4a: ceiling("dp4a"),
        };
        let name = |ceilings: &Ceilings, bound, bytes| {
            ceilings.for_work(bound, 7.0, bytes).map(|(ceiling, work)| (ceiling.name, work))
        };
        assert_eq!(name(&all, Bound::Compute, 1.0), Some(("FP32", 7.0)));
        assert_eq!(name(&all, Bound::Memory, 65536.0), Some(("launch", 1.0)));
        assert_eq!(name(&all, Bound::Memory, 65537.0), Some(("copy", 65537.0)));
        let cpu = Ceilings { launch: None, ..all };
        assert_eq!(name(&cpu, Bound::Memory, 1.0), Some(("copy", 1.0)));
        assert_eq!(name(&Ceilings::default(), Bound::Memory, 1.0), None);
    }

    #[test]
    fn lanes_follow_the_architecture() {
        assert_eq!([(6, 1), (7, 5), (8, 0), (8, 6), (9, 0)].map(fp32_lanes), [128, 64, 64, 128, 128]);
    }
}
