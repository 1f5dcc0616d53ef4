//! From counts to time on a Pascal card. `COSTS.md` describes the model and its error. For a card of a newer architecture the model
//! stays Pascal's, with that card's clock, multiprocessors and bandwidth.

use crate::card::Card;
use crate::counters::{Class, Counters};
use crate::exec::LaunchReport;
use crate::hot_loops::{HotLoop, hot_loop};

/// Seconds from one kernel's end to the next one's start: launched one by one, and inside a graph.
pub const LAUNCH_SECONDS: f64 = 5e-6;
pub const GRAPH_LAUNCH_SECONDS: f64 = 1.5e-6;

/// Share of the published DRAM bandwidth that streaming kernels reach.
const DRAM_EFFICIENCY: f64 = 0.80;
/// Bytes per clock that the L2 gives each SM.
const L2_BYTES_PER_CLOCK: f64 = 32.0;
/// Clocks for which an instruction occupies its scheduler's share of an SM: one of four.
const SLOT: f64 = 0.25;
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
    /// Resident warps of an SM over the most that it has.
    pub occupancy: f64,
}

/// Clocks for which one warp instruction occupies an SM's units of its kind.
fn clocks(class: Class) -> (f64, Unit) {
    use Unit::*;
    match class {
        Class::Ffma | Class::Fp32 | Class::Dp4a | Class::Int => (0.25, Main),
        // estimates: half the rate, and eight instructions of two inputs
        Class::Video => (0.5, Main),
        Class::VideoSimd => (2.0, Main),
        Class::IntMul => (0.75, Main),
        // 1,024 multiply-adds, of which Volta and Turing do 512 in a clock
        Class::Tensor => (2.0, Main),
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

/// How often warps ran a kernel's hot loop, by its multiply-adds. The loop's other instructions follow by ptxas's ratios,
/// and the PTX's instructions beyond those were outside.
fn passes(hot: &HotLoop, c: &Counters) -> f64 {
    c.warps(hot.class) as f64 / hot.multiply_adds
}

/// Estimates a launch on a card. `registers` per thread, from ptxas where there is one.
///
/// Compute and latency of the project's own kernels come from the machine code of their hot loops (`hot_loops.csv`); of all
/// others, from the PTX's instructions.
pub fn estimate(report: &LaunchReport, card: &Card, registers: u32) -> Estimate {
    let c: &Counters = &report.counters;
    let threads: u32 = report.block.iter().product();
    let blocks: f64 = report.grid.iter().map(|&n| n as f64).product();
    let warps_per_block = threads.div_ceil(32) as f64;
    let multiprocessor = card.arch.multiprocessor();
    let resident = multiprocessor.resident_blocks(threads, registers, report.shared_bytes).max(1) as f64;
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
    let hot = hot_loop(&report.kernel);
    if let Some(hot) = &hot {
        let outside = (units[Unit::Main as usize] - passes(hot, c) * hot.main * SLOT).max(0.0);
        units[Unit::Main as usize] = passes(hot, c) * hot.slots * SLOT + outside;
    }
    let compute = units[..3].iter().fold(0.0f64, |a, &b| a.max(b)) * share / hz;
    let shared = memory * share / hz;
    let l2 = c.global_bytes() as f64 * share / L2_BYTES_PER_CLOCK / hz;
    let dram =
        (c.distinct_sectors * 32 + c.local.units * 32 / 8) as f64 / (card.bandwidth * 1e9 * DRAM_EFFICIENCY);

    // The critical path of one warp, times the waves of resident blocks.
    let warps = blocks * warps_per_block;
    let requests = (c.global_loads.requests + c.atomics.requests) as f64 / warps;
    let looped = hot.map_or((0.0, 0.0), |hot| (passes(&hot, c) * hot.issued, passes(&hot, c) * hot.stalls));
    let arithmetic =
        looped.1 + (c.warp_total() as f64 - looped.0).max(0.0) * ARITHMETIC_LATENCY / INSTRUCTIONS_IN_FLIGHT;
    let path = requests * GLOBAL_LATENCY / REQUESTS_IN_FLIGHT
        + c.shared_loads.requests as f64 / warps * SHARED_LATENCY / REQUESTS_IN_FLIGHT
        + c.barriers as f64 / warps * BARRIER_CLOCKS
        + arithmetic / warps
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
    let occupancy = (resident * warps_per_block / f64::from(multiprocessor.warps)).min(1.0);
    Estimate { time: work + overhead, bound, compute, shared, l2, dram, latency, occupancy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::GTX1080;

    /// The share of the peak at which a kernel would multiply that has nothing but its hot loop.
    fn share(kernel: &str) -> f64 {
        let mut counters = Counters::default();
        counters.warp_instructions[Class::Ffma as usize] = 1 << 30;
        let (grid, block) = ([8000, 1, 1], [256, 1, 1]);
        let report = LaunchReport {
            kernel: kernel.to_owned(),
            grid,
            block,
            shared_bytes: 0,
            in_graph: false,
            lines: Vec::new(),
            counters,
        };
        let ideal = (1u64 << 30) as f64 / 4.0 / (GTX1080.sms as f64 * GTX1080.boost_mhz as f64 * 1e6);
        ideal / estimate(&report, &GTX1080, 32).compute
    }

    /// A simulation of their machine code, cycle by cycle, gives 85, 84, 66 and 53 % of the peak.
    #[test]
    fn tiles_rank_as_their_machine_code_does() {
        let shares =
            ["tile128", "wide128", "tile32", "tile64"].map(|tile| share(&format!("matmul_{tile}_nn_f32")));
        assert!(shares.is_sorted_by(|a, b| a > b), "{shares:?}");
        for (share, simulated) in shares.into_iter().zip([0.85, 0.84, 0.66, 0.53]) {
            assert!((share - simulated).abs() < 0.11, "{shares:?}");
        }
    }

    #[test]
    fn kernels_without_a_known_loop_are_estimated_from_their_ptx() {
        assert!((share("matmul_of_somebody_else") - 1.0).abs() < 1e-9);
    }
}
