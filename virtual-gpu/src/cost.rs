//! From counts to time on a Pascal card. `COSTS.md` describes the model and its error. For a card of a newer architecture the model
//! stays Pascal's, with that card's clock, multiprocessors and bandwidth.

use crate::card::Card;
use crate::counters::{Class, Counters};
use crate::exec::LaunchReport;
use crate::hot_loops::hot_loop;
use crate::kernel_clocks::Runs;

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
/// Main instructions of the PTX for one of ptxas's machine code, at most, in the loops of the project's tiles.
const REMOVED: f64 = 1.05;

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
    /// Seconds that each resource alone would take. Latency is the critical path of the warps that are resident together, set after set;
    /// of the project's own kernels it is the simulated time, which has their issue slots too.
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

/// Clocks of one warp's critical path, by the PTX.
fn critical_path(c: &Counters, warps: f64) -> f64 {
    let requests = (c.global_loads.requests + c.atomics.requests) as f64 / warps;
    requests * GLOBAL_LATENCY / REQUESTS_IN_FLIGHT
        + c.shared_loads.requests as f64 / warps * SHARED_LATENCY / REQUESTS_IN_FLIGHT
        + c.barriers as f64 / warps * BARRIER_CLOCKS
        + c.warp_total() as f64 / warps * ARITHMETIC_LATENCY / INSTRUCTIONS_IN_FLIGHT
        + if requests > 0.0 { GLOBAL_LATENCY } else { 0.0 }
}

/// Estimates a launch on a card. `registers` per thread, from ptxas where there is one.
///
/// Compute and latency of the project's own kernels come from a simulation of their machine code (`hot_loops.csv`); of all others, from the
/// PTX's instructions.
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
    let busiest = (blocks / sms).ceil();
    let share = busiest / blocks;
    let warps = blocks * warps_per_block;

    let mut units = [0.0f64; 4];
    for class in Class::ALL {
        let (each, unit) = clocks(class);
        units[unit as usize] += each * c.warps(class) as f64;
    }
    let memory = c.shared_loads.units + c.shared_stores.units + c.warps(Class::AtomicShared);
    let issue =
        [Class::LoadGlobal, Class::StoreGlobal, Class::Local, Class::AtomicGlobal].map(|k| c.warps(k) as f64);
    let memory = units[Unit::Memory as usize] + memory as f64 + issue.iter().sum::<f64>();
    let known = hot_loop(&report.kernel).map(|hot| (hot, Runs::of(&hot, c, warps)));
    // what the PTX has beyond the simulated path
    let mut outside = 0.0;
    if let Some((hot, runs)) = &known {
        let main = &mut units[Unit::Main as usize];
        outside = (*main - REMOVED * runs.main(hot) * warps * SLOT).max(0.0);
        let rest = (*main - runs.pass * hot.pass.main * warps * SLOT).max(0.0);
        *main = runs.pass * hot.slots * warps * SLOT + rest;
    }
    let compute = units[..3].iter().fold(0.0f64, |a, &b| a.max(b)) * share / hz;
    let shared = memory * share / hz;
    let l2 = c.global_bytes() as f64 * share / L2_BYTES_PER_CLOCK / hz;
    let dram =
        (c.distinct_sectors * 32 + c.local.units * 32 / 8) as f64 / (card.bandwidth * 1e9 * DRAM_EFFICIENCY);

    let latency = match &known {
        Some((hot, runs)) => runs.clocks(hot, busiest, resident) + outside * share,
        None => critical_path(c, warps) * (blocks / (resident * sms)).ceil(),
    } / hz;

    let parts = [
        (Bound::Compute, compute),
        (Bound::Shared, shared),
        (Bound::L2, l2),
        (Bound::Dram, dram),
        (Bound::Latency, latency),
    ];
    let (bound, work) = parts.into_iter().fold((Bound::Launch, 0.0), |a, b| if b.1 > a.1 { b } else { a });
    // the simulation has both: stalls that other warps do not hide are latency only where they are most of it
    let busy = known.is_some() && compute > latency / 2.0;
    let bound = if bound == Bound::Latency && busy { Bound::Compute } else { bound };
    let overhead = overhead(report);
    let bound = if work < overhead { Bound::Launch } else { bound };
    let occupancy = (resident * warps_per_block / f64::from(multiprocessor.warps)).min(1.0);
    Estimate { time: work + overhead, bound, compute, shared, l2, dram, latency, occupancy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::GTX1080;

    /// A launch of a kernel on a GTX 1080: so many blocks of so many threads on each multiprocessor, whose warps run the hot loop
    /// so often.
    fn launch(kernel: &str, blocks: u32, threads: u32, passes: f64) -> LaunchReport {
        let warps = f64::from(GTX1080.sms * blocks * threads / 32);
        let each =
            hot_loop(kernel).map_or(512.0, |hot| hot.start.multiply_adds + passes * hot.pass.multiply_adds);
        let mut counters = Counters::default();
        counters.warp_instructions[Class::Ffma as usize] = (warps * each) as u64;
        LaunchReport {
            kernel: kernel.to_owned(),
            grid: [GTX1080.sms * blocks, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
            in_graph: false,
            lines: Vec::new(),
            counters,
        }
    }

    fn seconds(kernel: &str, blocks: u32, threads: u32, passes: f64) -> f64 {
        let e = estimate(&launch(kernel, blocks, threads, passes), &GTX1080, 128);
        e.time - LAUNCH_SECONDS
    }

    /// The share of the peak at which a tile multiplies, the multiprocessors full and its loop long.
    fn share(kernel: &str, blocks: u32, threads: u32) -> f64 {
        let multiply_adds = launch(kernel, blocks, threads, 1000.0).counters.warps(Class::Ffma) as f64;
        let ideal = multiply_adds / 4.0 / (f64::from(GTX1080.sms) * f64::from(GTX1080.boost_mhz) * 1e6);
        ideal / seconds(kernel, blocks, threads, 1000.0)
    }

    /// Multiply-adds' share of the issue slots of their loops, counted by the control codes (`scripts/sass-report`), bounds a tile. What warps
    /// wait for takes up to a fifth of that.
    #[test]
    fn tiles_rank_as_their_machine_code_does() {
        let tiles = [
            ("wide128", 2, 128, 0.894),
            ("tile128", 2, 256, 0.878),
            ("tile64x128", 4, 128, 0.868),
            ("tile64", 3, 128, 0.866),
            ("tile32", 2, 256, 0.808),
        ];
        let shares =
            tiles.map(|(tile, blocks, threads, _)| share(&format!("matmul_{tile}_nn_f32"), blocks, threads));
        assert!(shares.is_sorted_by(|a, b| a > b), "{shares:?}");
        for (share, (tile, _, _, slots)) in shares.into_iter().zip(tiles) {
            assert!(share < slots && share > 0.8 * slots, "{tile}: {share} of {slots}");
        }
    }

    #[test]
    fn more_blocks_take_longer_and_a_new_set_of_them_most() {
        let times: Vec<_> = (1..9).map(|n| seconds("matmul_tile128_nn_f32", n, 256, 60.0)).collect();
        assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
        // two blocks are resident: the third and the fifth begin a set
        let steps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps[1] > 1.03 * steps[0] && steps[3] > 1.03 * steps[2], "{steps:?}");
    }

    #[test]
    fn a_few_warps_wait_and_many_compute() {
        let bound = |kernel: &str, blocks, passes| {
            estimate(&launch(kernel, blocks, 128, passes), &GTX1080, 128).bound
        };
        assert_eq!(bound("attention_decode_d128_r4_f16", 1, 500.0), Bound::Latency);
        assert_eq!(bound("attention_decode_d128_r4_f16", 4, 500.0), Bound::Compute);
    }

    #[test]
    fn kernels_without_a_known_loop_are_estimated_from_their_ptx() {
        let e = estimate(&launch("matmul_of_somebody_else", 2, 256, 1.0), &GTX1080, 128);
        let clocks = 512.0 * 2.0 * 8.0 * SLOT;
        assert!((e.compute * f64::from(GTX1080.boost_mhz) * 1e6 - clocks).abs() < 1e-3);
        assert_eq!(
            e.latency * f64::from(GTX1080.boost_mhz) * 1e6,
            512.0 * ARITHMETIC_LATENCY / INSTRUCTIONS_IN_FLIGHT
        );
    }
}
