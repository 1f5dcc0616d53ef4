//! `pascaline bench --memory`: measures the memory pool, pinned copies, graphs and prefetching on a device, each against
//! the plain way and against its target.

use super::bench::Args;
use super::environment::{Environment, is_virtual};
use super::failure::Failure;
use super::files::read_input_text;
use super::screen::Style;
use super::table::{Column, digits};
use pascaline::cuda::{CudaDevice, Graph};
use pascaline::format_bytes as bytes;
use pascaline::memory::adaptor::{Entry, TraceError, parse, replay};
use pascaline::memory::{
    self, CudaTimeline, DeviceBuffer, DriverPool, LayerStream, MemoryPool, PinnedBuffer, PlainMemory,
    Statistics, StreamHandle, Upstream,
};
use pascaline::{DType, Device, Result, Tensor, ops};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// The sizes of all measurements.
struct Sizes {
    /// Each time is the median of this many runs after one warm-up.
    runs: usize,
    /// Bytes of a copy: large enough that the cost of its calls is negligible, and no more than the pinned pool keeps.
    copy: usize,
    /// Bytes of each streamed layer.
    layer: usize,
    /// Rows and columns of the matrix in a unit of computation.
    work: [usize; 2],
    /// Columns of the small kernels.
    row: usize,
}

const CARD: Sizes = Sizes { runs: 9, copy: 32 << 20, layer: 16 << 20, work: [1024, 1024], row: 2048 };
/// For the virtual GPU: only checks that everything runs.
const VIRTUAL: Sizes = Sizes { runs: 1, copy: 4 << 20, layer: 64 << 10, work: [4, 64], row: 64 };

/// Small kernels in the chain that a graph replays, about as many as a decoded token takes.
/// The most bytes of a trace.
const MAX_TRACE: u64 = 1 << 30;
const CHAIN: usize = 200;
const LAYERS: usize = 8;

fn sizes() -> &'static Sizes {
    if is_virtual() { &VIRTUAL } else { &CARD }
}

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Measured {
    /// The measured quantity.
    pub what: &'static str,
    /// The value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The target: the least or the most that it should be.
    pub goal: Option<Goal>,
}

/// The target of a result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Goal {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Measured {
    fn new(what: &'static str, value: f64, unit: &'static str) -> Self {
        Self { what, value, unit, goal: None }
    }

    fn goal(self, goal: Goal) -> Self {
        Self { goal: Some(goal), ..self }
    }

    /// Whether the target is met; `None` without one.
    fn met(&self) -> Option<bool> {
        self.goal.map(|goal| match goal {
            Goal::AtLeast(bound) => self.value >= bound,
            Goal::AtMost(bound) => self.value <= bound,
        })
    }
}

#[derive(Serialize)]
struct Json<'a> {
    environment: &'a Environment,
    /// Allocations in the trace.
    trace_allocations: usize,
    measured: &'a [Measured],
    /// The final statistics of the device's pool.
    pool: Statistics,
    fragmentation: f64,
    /// The buffers that are still allocated.
    leaks: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let trace = match &args.trace {
        None => recorded_trace().map_err(|error| Failure::Failed(error.to_string()))?,
        Some(file) => {
            let unreadable = |error: &dyn Display| Failure::Failed(format!("{}: {error}", file.display()));
            let text = read_input_text(file, MAX_TRACE).map_err(|error| unreadable(&error))?;
            parse(&text).map_err(|error| unreadable(&error))?
        }
    };
    let (device, _) = args.select.device.open()?;
    let Device::Cuda(device) = device else {
        return Err(Failure::Usage(
            "memory is measured on a GPU; add `--device cuda` or `--device virtual`".into(),
        ));
    };
    let report = args.select.output.report()?;
    let mut screen = args.select.output.screen();
    let environment = Environment::new(&Device::Cuda(device.clone()));
    screen.text(&environment.line(), Style::Heading)?;
    if is_virtual() {
        screen.faint("a virtual GPU's times are not judged")?;
    }
    let measured = measure(&device, &trace)?;
    let table = screen.table(vec![
        Column::left("", measured.iter().map(|one| one.what.chars().count()).max().unwrap_or(0)),
        Column::right("", 12),
        Column::left("", 6),
        Column::left("goal", 15).rank(1),
    ]);
    screen.line(&table.header("memory"))?;
    for one in &measured {
        let Measured { what, value, unit, goal } = one;
        let goal = match goal {
            None => String::new(),
            Some(Goal::AtLeast(bound)) => format!("at least {bound}"),
            Some(Goal::AtMost(bound)) => format!("at most {bound}"),
        };
        let sign = if *value < 0.0 { "-" } else { "" };
        let (verdict, style) = match one.met() {
            Some(_) if is_virtual() => ("", Style::Plain),
            Some(true) => ("met", Style::Good),
            Some(false) => ("MISSED", Style::Bad),
            None => ("", Style::Plain),
        };
        screen.line(&table.row(&[
            ((*what).to_owned(), Style::Plain),
            (format!("{sign}{} {unit:<4}", digits(value.abs())), Style::Plain),
            (verdict.to_owned(), style),
            (goal, Style::Faint),
        ]))?;
    }
    screen.say_what_is_left_out()?;
    let pool = memory::pool(&device)?;
    let (books, leaks) = (pool.statistics(), pool.leaks());
    let leaks: Vec<_> = leaks
        .iter()
        .map(|leak| match leak.site {
            Some(site) => format!("{} from {site}", bytes(leak.bytes)),
            None => format!("{} (a debug build says where from)", bytes(leak.bytes)),
        })
        .collect();
    let state = format!(
        "the device's pool: {} live, {} at most; {} reserved, {} at most; {:.0} % of what is free in pieces",
        bytes(books.live),
        bytes(books.peak_live),
        bytes(books.reserved),
        bytes(books.peak_reserved),
        100.0 * books.fragmentation()
    );
    screen.text(&state, Style::Plain)?;
    leaks.iter().try_for_each(|leak| screen.line(&format!("    still allocated: {leak}")))?;
    if let Some(report) = report {
        let (trace_allocations, fragmentation) = (allocations(&trace), books.fragmentation());
        let (environment, measured) = (&environment, &measured[..]);
        report.write(&Json {
            environment,
            trace_allocations,
            measured,
            pool: books,
            fragmentation,
            leaks,
        })?;
    }
    Ok(())
}

/// Measures everything. On the virtual GPU the times say nothing about a card.
fn measure(device: &CudaDevice, trace: &[Entry]) -> Result<Vec<Measured>> {
    let mut all = allocation(device, trace)?;
    all.extend(copies(device)?);
    all.extend(layers(device)?);
    all.extend(graph(device)?);
    Ok(all)
}

/// The allocations of a forward pass, as recorded.
fn recorded_trace() -> Result<Vec<Entry>, TraceError> {
    parse(include_str!("../../tests/data/qwen3_vl_2b.trace"))
}

fn allocations(trace: &[Entry]) -> usize {
    trace.iter().filter(|entry| matches!(entry, Entry::Allocate { .. })).count()
}

/// The sizes that are live at the peak of live bytes.
fn live_at_peak(trace: &[Entry]) -> Vec<usize> {
    let (mut live, mut sum) = (HashMap::new(), 0);
    let (mut peak, mut most) = (Vec::new(), 0);
    for entry in trace {
        match *entry {
            Entry::Allocate { block, bytes, .. } => {
                live.insert(block, bytes);
                sum += bytes;
                if sum > most {
                    (peak, most) = (live.values().copied().collect(), sum);
                }
            }
            Entry::Free { block, .. } => sum -= live.remove(&block).unwrap_or_default(),
        }
    }
    peak
}

/// The device memory that the driver takes for one `cuMemAlloc` per size, with its rounding.
fn held_by_driver(device: &CudaDevice, sizes: &[usize]) -> Result<usize> {
    let (memory, stream) = (PlainMemory::new(device), StreamHandle::new(device));
    let (before, _) = device.memory_info()?;
    let blocks: Vec<_> =
        sizes.iter().map(|&bytes| Ok((memory.allocate(bytes, &stream)?, bytes))).collect::<Result<_>>()?;
    let (after, _) = device.memory_info()?;
    // SAFETY: allocated above, and no work uses them.
    blocks.into_iter().try_for_each(|(address, bytes)| unsafe { memory.free(address, bytes, &stream) })?;
    Ok(before - after)
}

/// Replays a trace with a `cuMemAlloc` and a `cuMemFree` for each tensor; returns the device's peak of bytes in use.
fn peak_of_plain(device: &CudaDevice, trace: &[Entry]) -> Result<usize> {
    let (memory, stream) = (PlainMemory::new(device), StreamHandle::new(device));
    let (before, _) = device.memory_info()?;
    let (mut least, mut live) = (before, HashMap::new());
    for entry in trace {
        match *entry {
            Entry::Allocate { block, bytes, .. } => {
                live.insert(block, (memory.allocate(bytes, &stream)?, bytes));
                least = least.min(device.memory_info()?.0);
            }
            Entry::Free { block, .. } => {
                let (address, bytes) = live.remove(&block).unwrap_or_default();
                // SAFETY: allocated by an earlier entry, and no work uses it.
                unsafe { memory.free(address, bytes, &stream) }?;
            }
        }
    }
    // SAFETY: allocated above, and no work uses them.
    live.into_values().try_for_each(|(address, bytes)| unsafe { memory.free(address, bytes, &stream) })?;
    Ok(before - least)
}

/// Nanoseconds per allocation and free over a forward pass's trace, and the memory that is reserved for it.
fn allocation(device: &CudaDevice, trace: &[Entry]) -> Result<Vec<Measured>> {
    let streams = [StreamHandle::new(device)];
    let per_pair = |upstream: &dyn Upstream<StreamHandle>| -> Result<f64> {
        let time = median(|| replay(trace, upstream, &streams))?;
        device.synchronize()?;
        Ok(time.as_secs_f64() * 1e9 / allocations(trace).max(1) as f64)
    };
    let service = StreamHandle::new(&device.with_new_stream()?);
    let pool = MemoryPool::new(CudaTimeline::new(device), PlainMemory::new(device), service);
    let ours = per_pair(&pool)?;
    let books = pool.statistics();
    drop(pool);
    let each = |entry: &Entry| if let Entry::Allocate { bytes, .. } = entry { *bytes } else { 0 };
    let without_reuse: usize = trace.iter().map(each).sum();
    let ratio = |a: usize, b: usize| a as f64 / b.max(1) as f64;
    let plain = per_pair(&PlainMemory::new(device))?;
    let peak_of_plain = peak_of_plain(device, trace)?;
    let at_peak = live_at_peak(trace);
    let (asked_at_peak, held_at_peak) = (at_peak.iter().sum::<usize>(), held_by_driver(device, &at_peak)?);
    let mebibytes = |bytes: usize| bytes as f64 / (1 << 20) as f64;
    let mut all = vec![
        Measured::new("alloc + free, the pool", ours, "ns"),
        Measured::new("alloc + free, cuMemAlloc and cuMemFree", plain, "ns"),
        Measured::new("cuMemAlloc and cuMemFree / the pool", plain / ours, "×").goal(Goal::AtLeast(10.0)),
    ];
    if let Ok(driver) = DriverPool::new(device) {
        let driver = per_pair(&driver)?;
        all.extend([
            Measured::new("alloc + free, cuMemAllocFromPoolAsync", driver, "ns"),
            Measured::new("cuMemAllocFromPoolAsync / the pool", driver / ours, "×").goal(Goal::AtLeast(1.0)),
        ]);
    }
    let less = |than: usize| 100.0 * (1.0 - ratio(books.peak_reserved, than));
    all.extend([
        Measured::new("peak: tensors' bytes, as asked for", mebibytes(asked_at_peak), "MiB"),
        Measured::new("peak: live in the pool, rounded", mebibytes(books.peak_live), "MiB"),
        Measured::new("peak: reserved by the pool", mebibytes(books.peak_reserved), "MiB"),
        Measured::new(
            "peak: taken by the driver, one cuMemAlloc a live tensor",
            mebibytes(held_at_peak),
            "MiB",
        ),
        Measured::new(
            "peak: taken by the driver in the pass, each freed at once",
            mebibytes(peak_of_plain),
            "MiB",
        ),
        Measured::new("all tensors' bytes of the pass, none freed", mebibytes(without_reuse), "MiB"),
        Measured::new("peak reserved / peak live", ratio(books.peak_reserved, books.peak_live), "×")
            .goal(Goal::AtMost(1.2)),
        Measured::new("pool below the driver in the pass, each freed at once", less(peak_of_plain), "%")
            .goal(Goal::AtLeast(20.0)),
        Measured::new(
            "most that any allocator could be below that",
            100.0 * (1.0 - ratio(asked_at_peak, peak_of_plain)),
            "%",
        ),
        Measured::new("pool below all tensors' bytes of the pass, none freed", less(without_reuse), "%"),
    ]);
    Ok(all)
}

/// Units of computation on a stream.
struct Work {
    x: Tensor,
    y: Tensor,
    stream: CudaDevice,
}

impl Work {
    fn new(stream: &CudaDevice) -> Result<Self> {
        let on = Device::Cuda(stream.clone());
        let x = Tensor::zeros(sizes().work, DType::F32, &on)?;
        let y = Tensor::uninitialized(sizes().work, DType::F32, &on)?;
        Ok(Self { x, y, stream: stream.clone() })
    }

    fn queue(&mut self, pieces: usize) -> Result<()> {
        (0..pieces).try_for_each(|_| ops::softmax_into(self.y.view_mut()?, &self.x))
    }

    fn time(&mut self, pieces: usize) -> Result<Duration> {
        median(|| self.queue(pieces).and_then(|()| self.stream.synchronize()))
    }

    /// The number of units that take this long.
    fn pieces_for(&mut self, time: Duration) -> Result<usize> {
        let piece = self.time(32)? / 32;
        Ok((time.as_secs_f64() / piece.as_secs_f64().max(1e-9)).ceil().clamp(1.0, 1e4) as usize)
    }
}

/// The percentage of the shorter of two times that overlaps with the longer.
fn hidden(one: Duration, other: Duration, both: Duration) -> f64 {
    let gained = (one + other).saturating_sub(both);
    100.0 * gained.as_secs_f64() / one.min(other).as_secs_f64().max(1e-9)
}

/// Rates of copies, and how much of a copy overlaps with computation on another stream.
fn copies(device: &CudaDevice) -> Result<Vec<Measured>> {
    let bytes = sizes().copy;
    let mut target = DeviceBuffer::uninitialized(device, bytes)?;
    let source = vec![1u8; bytes];
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    let pageable = median(|| {
        target.upload_pageable(0, &source)?;
        device.synchronize()
    })?;
    let staged = median(|| {
        target.upload(0, &source)?;
        device.synchronize()
    })?;
    let mut upload = |work: &mut dyn FnMut() -> Result<()>| -> Result<Duration> {
        let mut times = Vec::new();
        for _ in 0..=sizes().runs {
            let source = PinnedBuffer::new(device, bytes)?;
            let start = Instant::now();
            target.upload_async(0, source)?;
            work()?;
            device.synchronize()?;
            times.push(start.elapsed());
        }
        Ok(middle(times))
    };
    let pinned = upload(&mut || Ok(()))?;
    let mut work = Work::new(&device.with_new_stream()?)?;
    let pieces = work.pieces_for(pinned)?;
    let computing = work.time(pieces)?;
    let both = upload(&mut || work.queue(pieces).and_then(|()| work.stream.synchronize()))?;
    Ok(vec![
        Measured::new("upload, pageable", rate(pageable), "GB/s"),
        Measured::new("upload, staged through pinned chunks", rate(staged), "GB/s"),
        Measured::new("upload, pinned", rate(pinned), "GB/s"),
        Measured::new("pinned / pageable", rate(pinned) / rate(pageable), "×").goal(Goal::AtLeast(2.0)),
        Measured::new("copy overlapped with computation, of ideal", hidden(pinned, computing, both), "%")
            .goal(Goal::AtLeast(80.0)),
    ])
}

/// Layers that are prefetched from host memory while the layer before is computed.
fn layers(device: &CudaDevice) -> Result<Vec<Measured>> {
    let (count, bytes) = (LAYERS, sizes().layer);
    let mut layers = LayerStream::new(device, bytes)?;
    (0..count).try_for_each(|_| layers.push(PinnedBuffer::new(device, bytes)?))?;
    let mut work = Work::new(device)?;
    let mut pass = |work: &mut Work, pieces: usize| -> Result<()> {
        for layer in 0..count {
            layers.layer(layer)?;
            work.queue(pieces)?;
        }
        device.synchronize()
    };
    let copying = median(|| pass(&mut work, 0))?;
    let pieces = work.pieces_for(copying / count as u32)?;
    let computing = work.time(count * pieces)?;
    let both = median(|| pass(&mut work, pieces))?;
    Ok(vec![
        Measured::new(
            "weights from host memory",
            (count * bytes) as f64 / copying.as_secs_f64() / 1e9,
            "GB/s",
        ),
        Measured::new(
            "weights overlapped with the layer before, of ideal",
            hidden(copying, computing, both),
            "%",
        )
        .goal(Goal::AtLeast(80.0)),
    ])
}

/// A chain of small kernels, launched and replayed: the time until the GPU has finished, and the host's part of it.
fn graph(device: &CudaDevice) -> Result<Vec<Measured>> {
    let on = Device::Cuda(device.clone());
    let x = Tensor::zeros([1, sizes().row], DType::F32, &on)?;
    let mut y = Tensor::uninitialized([1, sizes().row], DType::F32, &on)?;
    let mut chain = || (0..CHAIN).try_for_each(|_| ops::softmax_into(y.view_mut()?, &x));
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let (launched, launched_host) = timed(device, &mut chain)?;
    let (graph, ()) = Graph::capture(device, &mut chain)?;
    let (replayed, replayed_host) = timed(device, || graph.launch())?;
    let part = |of: Duration, all: Duration| of.as_secs_f64() / all.as_secs_f64().max(1e-9);
    Ok(vec![
        Measured::new("200 small kernels, launched", micros(launched), "µs"),
        Measured::new("200 small kernels, replayed", micros(replayed), "µs"),
        Measured::new("replayed / launched", part(replayed, launched), "×").goal(Goal::AtMost(0.67)),
        Measured::new("host's part, launched", micros(launched_host), "µs"),
        Measured::new("host's part, replayed", micros(replayed_host), "µs"),
        Measured::new("host's part, replayed / launched", part(replayed_host, launched_host), "×")
            .goal(Goal::AtMost(0.1)),
    ])
}

/// The time until the device has finished, and until the calls have returned.
fn timed(device: &CudaDevice, mut work: impl FnMut() -> Result<()>) -> Result<(Duration, Duration)> {
    let (mut done, mut returned) = (Vec::new(), Vec::new());
    for _ in 0..=sizes().runs {
        let start = Instant::now();
        work()?;
        returned.push(start.elapsed());
        device.synchronize()?;
        done.push(start.elapsed());
    }
    Ok((middle(done), middle(returned)))
}

fn median(mut work: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..=sizes().runs {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed());
    }
    Ok(middle(times))
}

/// The median without the first run, which is the warm-up.
fn middle(mut times: Vec<Duration>) -> Duration {
    let times = &mut times[1..];
    times.sort_unstable();
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_a_part_of_the_shorter() {
        let ms = Duration::from_millis;
        assert_eq!(hidden(ms(10), ms(20), ms(20)), 100.0);
        assert_eq!(hidden(ms(10), ms(20), ms(25)), 50.0);
        assert_eq!(hidden(ms(10), ms(20), ms(40)), 0.0);
    }

    #[test]
    fn the_peak_is_where_most_bytes_are_live() {
        let trace = parse("a 0 10 0\na 1 20 0\nf 0 0\na 2 15 0\nf 1 0\na 3 18 0\nf 2 0\nf 3 0").unwrap();
        let mut peak = live_at_peak(&trace);
        peak.sort_unstable();
        assert_eq!(peak, [15, 20]);
        assert_eq!(live_at_peak(&[]), [0; 0]);
    }

    #[test]
    fn a_goal_that_is_not_a_number_is_missed() {
        let measured = Measured::new("x", f64::NAN, "");
        assert_eq!(measured.met(), None);
        assert_eq!(measured.clone().goal(Goal::AtLeast(1.0)).met(), Some(false));
        assert_eq!(measured.goal(Goal::AtMost(1.0)).met(), Some(false));
    }
}
