//! From counts to time on a Pascal card. `COSTS.md` describes the model and its error.

use crate::card::Card;
use crate::counters::{Class, Counters};
use crate::exec::LaunchReport;
use pascaline_occupancy::Multiprocessor;

/// Seconds from one kernel's end to the next one's start: launched one by one, and inside a graph.
pub const LAUNCH_SECONDS: f64 = 5e-6;
pub const GRAPH_LAUNCH_SECONDS: f64 = 1.5e-6;

/// Share of the published DRAM bandwidth that streaming kernels reach.
const DRAM_EFFICIENCY: f64 = 0.80;
/// Bytes per clock that the L2 gives each SM.
const L2_BYTES_PER_CLOCK: f64 = 32.0;
/// Clocks, and requests of one warp that overlap.
const GLOBAL_LATENCY: f64 = 450.0;
const SHARED_LATENCY: f64 = 24.0;
const ARITHMETIC_LATENCY: f64 = 6.0;
const REQUESTS_IN_FLIGHT: f64 = 4.0;
const INSTRUCTIONS_IN_FLIGHT: f64 = 4.0;
const BARRIER_CLOCKS: f64 = 30.0;

/// The resource that limits a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Compute,
    Shared,
    L2,
    Dram,
    Latency,
    Launch,
}

impl Bound {
    pub fn name(self) -> &'static str {
        match self {
            Bound::Compute => "compute",
            Bound::Shared => "shared memory",
            Bound::L2 => "L2",
            Bound::Dram => "DRAM",
            Bound::Latency => "latency",
            Bound::Launch => "launch",
        }
    }
}

/// Estimated time of one launch.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// Seconds, the launch's overhead included.
    pub time: f64,
    pub bound: Bound,
    /// Seconds that each resource alone would take.
    pub compute: f64,
    pub shared: f64,
    pub l2: f64,
    pub dram: f64,
    pub latency: f64,
    /// Resident warps of an SM over 64.
    pub occupancy: f64,
}

/// Clocks for which one warp instruction occupies an SM's units of its kind.
fn clocks(class: Class) -> (f64, Unit) {
    use Unit::*;
    match class {
        Class::Ffma | Class::Fp32 | Class::Dp4a | Class::Int => (0.25, Main),
        Class::IntMul => (0.75, Main),
        Class::IntDiv => (5.0, Main),
        Class::Fp32Div => (2.5, Main),
        Class::Control | Class::Barrier | Class::Vote | Class::Constant => (0.25, Main),
        Class::Fp64 => (8.0, Double),
        Class::Fp16 => (16.0, Double),
        Class::Special | Class::Convert => (1.0, Special),
        Class::Shuffle => (1.0, Memory),
        // Moves vanish in ptxas; memory is counted by its traffic.
        _ => (0.0, Main),
    }
}

#[derive(Clone, Copy)]
enum Unit {
    Main,
    Special,
    Double,
    Memory,
}

/// Seconds from the end of the kernel before to the start of this one.
fn overhead(report: &LaunchReport) -> f64 {
    if report.in_graph { GRAPH_LAUNCH_SECONDS } else { LAUNCH_SECONDS }
}

/// Estimates a launch on a card. `registers` per thread, from ptxas where there is one.
pub fn estimate(report: &LaunchReport, card: &Card, registers: u32) -> Estimate {
    let c: &Counters = &report.counters;
    let threads: u32 = report.block.iter().product();
    let blocks: f64 = report.grid.iter().map(|&n| n as f64).product();
    let warps_per_block = threads.div_ceil(32) as f64;
    let resident =
        Multiprocessor::SM_61.resident_blocks(threads, registers, report.shared_bytes).max(1) as f64;
    let sms = card.sms as f64;
    let hz = card.boost_mhz as f64 * 1e6;
    // The busiest SM decides: its share of the blocks.
    let share = (blocks / sms).ceil() / blocks;

    let mut units = [0.0f64; 4];
    for class in Class::ALL {
        let (each, unit) = clocks(class);
        units[unit as usize] += each * c.warps(class) as f64;
    }
    let memory = c.shared_loads.units + c.shared_stores.units + c.warps(Class::AtomicShared);
    let issue =
        [Class::LoadGlobal, Class::StoreGlobal, Class::Local, Class::AtomicGlobal].map(|k| c.warps(k) as f64);
    let memory = units[Unit::Memory as usize] + memory as f64 + issue.iter().sum::<f64>();
    let compute = units[..3].iter().fold(0.0f64, |a, &b| a.max(b)) * share / hz;
    let shared = memory * share / hz;
    let l2 = c.global_bytes() as f64 * share / L2_BYTES_PER_CLOCK / hz;
    let dram =
        (c.distinct_sectors * 32 + c.local.units * 32 / 8) as f64 / (card.bandwidth * 1e9 * DRAM_EFFICIENCY);

    // The critical path of one warp, times the waves of resident blocks.
    let warps = blocks * warps_per_block;
    let requests = (c.global_loads.requests + c.atomics.requests) as f64 / warps;
    let path = requests * GLOBAL_LATENCY / REQUESTS_IN_FLIGHT
        + c.shared_loads.requests as f64 / warps * SHARED_LATENCY / REQUESTS_IN_FLIGHT
        + c.barriers as f64 / warps * BARRIER_CLOCKS
        + c.warp_total() as f64 / warps * ARITHMETIC_LATENCY / INSTRUCTIONS_IN_FLIGHT
        + if requests > 0.0 { GLOBAL_LATENCY } else { 0.0 };
    let rounds = (blocks / (resident * sms)).ceil();
    let latency = path * rounds / hz;

    let parts = [
        (Bound::Compute, compute),
        (Bound::Shared, shared),
        (Bound::L2, l2),
        (Bound::Dram, dram),
        (Bound::Latency, latency),
    ];
    let (bound, work) = parts.into_iter().fold((Bound::Launch, 0.0), |a, b| if b.1 > a.1 { b } else { a });
    let overhead = overhead(report);
    let bound = if work < overhead { Bound::Launch } else { bound };
    let occupancy = (resident * warps_per_block / 64.0).min(1.0);
    Estimate { time: work + overhead, bound, compute, shared, l2, dram, latency, occupancy }
}
