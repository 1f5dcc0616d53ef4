//! Estimates of cases' times on a report's card.
//!
//! The virtual GPU simulates that card and counts what the cases' kernels do, as `profile` does; the cost model turns the
//! counts into times. A process has one driver, so this runs in a process of its own: this program with `report
//! --estimate`. Cases run in the order of their work until the time is up. The others are estimated from sizes: the time of
//! their operations at the card's peak, or of their bytes at the share of its bandwidth that COSTS.md names, and 5 µs per
//! kernel.

use crate::costs::Costs;
use crate::failure::Failure;
use crate::profile;
use crate::ptxas::Registers;
use crate::screen::Screen;
use pascaline::Device;
use pascaline::cuda::{self, Properties, is_lost};
use pascaline_testing::{self as testing, Case};
use pascaline_virtual_gpu::{
    self as virtual_gpu, Checks, Config, LAUNCH_SECONDS, Module, configure, keep_reports,
};
use serde::{Deserialize, Serialize};
use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Share of the published bandwidth, as in COSTS.md.
const DRAM_EFFICIENCY: f64 = 0.8;
/// How often the time is checked while waiting for an estimate.
const LOOK: Duration = Duration::from_millis(100);

/// The properties of a card that estimates depend on, as its driver reports them.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Card {
    pub name: String,
    pub multiprocessors: u32,
    pub clock_mhz: u32,
    pub memory_clock_mhz: u32,
    pub memory_bus_bits: u32,
    /// In GB/s.
    pub bandwidth: f64,
    pub memory_bytes: u64,
    pub l2_bytes: u32,
}

/// The estimate of a case.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Estimate {
    pub id: String,
    pub seconds: f64,
    pub by: By,
    /// The resource that bounds most of that time.
    pub bound: String,
    /// The counted kernels, as in a case's `variant`.
    pub kernels: Option<String>,
}

/// The way of an estimate.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum By {
    /// From counts on the virtual GPU.
    Counts,
    /// From operations and bytes alone.
    Sizes,
}

impl By {
    pub fn name(self) -> &'static str {
        match self {
            Self::Counts => "counts",
            Self::Sizes => "sizes",
        }
    }
}

impl Card {
    pub fn from_properties(properties: &Properties) -> Self {
        let memory_clock_mhz = properties.memory_clock_khz / 1000;
        // two transfers a clock
        let bits = 2.0 * f64::from(properties.memory_clock_khz) * 1e3 * f64::from(properties.memory_bus_bits);
        Self {
            name: properties.name.clone(),
            multiprocessors: properties.multiprocessors,
            clock_mhz: properties.clock_khz / 1000,
            memory_clock_mhz,
            memory_bus_bits: properties.memory_bus_bits,
            bandwidth: bits / 8.0 / 1e9,
            memory_bytes: properties.memory_bytes as u64,
            l2_bytes: properties.l2_bytes as u32,
        }
    }

    /// The card as the virtual GPU's. It is leaked: a process simulates only one card.
    fn play(&self) -> &'static virtual_gpu::Card {
        let figures = virtual_gpu::Card {
            name: self.name.clone().leak(),
            id: "report",
            arch: virtual_gpu::Arch::Sm61,
            sms: self.multiprocessors.max(1),
            boost_mhz: self.clock_mhz.max(1),
            bandwidth: self.bandwidth.max(1.0),
            memory: self.memory_bytes,
            l2_bytes: self.l2_bytes,
            bus_bits: self.memory_bus_bits,
            memory_mhz: self.memory_clock_mhz,
        };
        Box::leak(Box::new(figures))
    }
}

impl Estimate {
    /// From a case's operations and bytes. The bytes are known after its inputs were generated. `variant` names its
    /// kernels.
    pub fn from_sizes(case: &dyn Case, bytes: f64, card: &Card, variant: Option<&str>) -> Self {
        let rate =
            f64::from(card.multiprocessors.max(1)) * 2.0 * 128.0 * f64::from(card.clock_mhz.max(1)) * 1e6;
        let rate = if case.dp4a() { 4.0 * rate } else { rate };
        let compute = if case.compute_bound() { case.flops() / rate } else { 0.0 };
        let dram = bytes / (card.bandwidth.max(1.0) * 1e9 * DRAM_EFFICIENCY);
        let launches = variant.map_or(1, |variant| variant.split(" + ").count());
        let bound = match compute.max(dram) {
            most if most < LAUNCH_SECONDS => "launch",
            most if most == dram => "DRAM",
            _ => "compute",
        };
        let seconds = compute.max(dram) + LAUNCH_SECONDS * launches as f64;
        Self { id: case.id(), seconds, by: By::Sizes, bound: bound.to_owned(), kernels: None }
    }

    /// From the counts of a case's launches.
    fn from_counts(id: String, costs: &[Costs]) -> Option<Self> {
        let times = costs.iter().filter_map(|costs| {
            let on_card = costs.estimates.first()?;
            Some((on_card.bound, costs.launches as f64 * on_card.seconds))
        });
        let times: Vec<_> = times.collect();
        let (bound, _) = times.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let names: Vec<_> = costs.iter().map(|costs| costs.kernel.as_str()).collect();
        Some(Self {
            id,
            seconds: times.iter().map(|(_, seconds)| seconds).sum(),
            by: By::Counts,
            bound: (*bound).to_owned(),
            kernels: Some(crate::bench_row::variant(&names)),
        })
    }
}

/// The other process's input.
#[derive(Deserialize, Serialize)]
struct Question {
    card: Card,
    ids: Vec<String>,
}

/// Kills the other process when dropped.
struct Counting(Child);

impl Drop for Counting {
    fn drop(&mut self) {
        // it may have ended already
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Estimates the cases with these ids in the other process, as many as fit in the time. Asks often whether the time is up
/// after so many estimates.
pub(super) fn simulated(
    card: &Card,
    ids: &[String],
    is_up: impl Fn(usize) -> bool,
    screen: &Screen,
) -> Result<Vec<Estimate>, Failure> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::Failed(format!("the virtual GPU, in a process of its own, {what}: {error}"))
    };
    let program = env::current_exe().map_err(|error| failed("can't be found", &error))?;
    let question = serde_json::to_vec(&Question { card: card.clone(), ids: ids.to_vec() })
        .map_err(|error| failed("can't be asked", &error))?;
    let mut command = Command::new(program);
    command.args(["report", "--estimate"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut counting = Counting(command.spawn().map_err(|error| failed("can't be started", &error))?);
    let (input, output) = (counting.0.stdin.take(), counting.0.stdout.take());
    let (Some(mut input), Some(output)) = (input, output) else {
        return Err(failed("can't be asked", &"it has no pipes"));
    };
    input.write_all(&question).map_err(|error| failed("can't be asked", &error))?;
    drop(input);
    let (sender, lines) = channel();
    thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let mut found = Vec::new();
    while !is_up(found.len()) {
        match lines.recv_timeout(LOOK) {
            Ok(line) => {
                let estimate: Estimate =
                    serde_json::from_str(&line).map_err(|error| failed("answers strangely", &error))?;
                screen.doing(&format!("estimated {}", estimate.id));
                screen.done();
                found.push(estimate);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(found)
}

/// The other process: reads a question from stdin and prints one estimate per line.
pub(super) fn serve() -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(format!("the question on stdin: {error}"));
    let mut text = Vec::new();
    io::stdin().lock().read_to_end(&mut text).map_err(|error| failed(&error))?;
    let Question { card, ids } = serde_json::from_slice(&text).map_err(|error| failed(&error))?;
    let card = card.play();
    configure(Config { card, checks: Checks::NONE, traffic: true, ..Config::default() })
        .map_err(|error| Failure::Failed(error.to_string()))?;
    let device = Device::virtual_gpu()?;
    let ptx = cuda::ptx()?;
    let module =
        Module::parse(&ptx).map_err(|error| Failure::Failed(format!("the kernels' PTX: {error}")))?;
    keep_reports();
    let mut cases = testing::cases();
    cases.retain(|case| ids.contains(&case.id()));
    cases.sort_by_cached_key(|case| work(case.as_ref()) as u64);
    for case in &cases {
        let Ok(reports) = profile::one(case.as_ref(), &device, true, false) else {
            match is_lost() {
                true => break,
                false => continue, // one that this card refuses, for instance out of memory, is estimated from sizes
            }
        };
        let kernels: Vec<_> = reports.iter().map(|report| report.kernel.as_str()).collect();
        let registers = Registers::estimated(&module, &kernels);
        let Some(estimate) = Estimate::from_counts(case.id(), &Costs::all(&reports, &registers, &[card]))
        else {
            continue;
        };
        let line = serde_json::to_string(&estimate).map_err(|error| failed(&error))?;
        let mut out = io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush())?;
    }
    Ok(())
}

/// The relative time of simulating a case: operations and outputs. An embedding has few of either, but its table must be
/// generated.
fn work(case: &dyn Case) -> f64 {
    let table = if case.op() == "embedding" { 1e12 } else { 0.0 };
    case.flops() + case.output().0.elements() as f64 + table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_give_a_time_by_the_slower_resource() {
        let card = Card {
            name: "Tesla P40".into(),
            multiprocessors: 30,
            clock_mhz: 1531,
            memory_clock_mhz: 3615,
            memory_bus_bits: 384,
            bandwidth: 347.0,
            memory_bytes: 24 << 30,
            l2_bytes: 3 << 20,
        };
        let fast = Card { clock_mhz: 1 << 30, ..card.clone() };
        let mut computes = 0;
        let mut seen = std::collections::HashSet::new();
        for case in testing::cases() {
            // inputs are made for some cases' bytes, so one of each op, and of the large ones only products
            let is_product = case.op() == "matmul";
            let is_large = case.purpose() == testing::Purpose::Bench;
            let must_compute = is_product && case.compute_bound() && case.flops() > 1e9;
            if is_large && !is_product || !seen.insert((case.op(), is_large, must_compute)) {
                continue;
            }
            let estimate =
                |bytes, card: &Card, variant| Estimate::from_sizes(case.as_ref(), bytes, card, Some(variant));
            let (one, two) = (estimate(1e3, &card, "a"), estimate(1e3, &card, "a + b"));
            assert!(one.seconds >= LAUNCH_SECONDS && one.seconds.is_finite(), "{one:?}");
            assert!((two.seconds - one.seconds - LAUNCH_SECONDS).abs() < 1e-9, "{two:?}");
            assert_eq!(estimate(1e7, &fast, "a").bound, "DRAM");
            if must_compute {
                assert_eq!(estimate(1e3, &card, "a").bound, "compute");
                computes += 1;
            }
        }
        assert!(seen.len() > 20 && computes > 0, "{} kinds of cases, {computes} that compute", seen.len());
    }
}
