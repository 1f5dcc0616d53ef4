//! What the memory pool, pinned copies and graphs gain on a device, each against the plain way.

use crate::cuda::{CudaDevice, Graph};
use crate::memory::adaptor::{Entry, replay};
use crate::memory::{
    CudaTimeline, DeviceBuffer, DriverPool, MemoryPool, PinnedBuffer, PlainMemory, StreamHandle, Upstream,
};
use crate::{DType, Device, Result, Tensor, ops};
use std::time::{Duration, Instant};

/// Each time is the median of so many runs after one to warm up.
const RUNS: usize = 9;
/// Bytes of a copy: large enough that its calls don't count.
const COPY: usize = 64 << 20;
/// Kernels in the chain that a graph replays, as a decoded token takes.
const CHAIN: usize = 200;

/// One number.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What was measured.
    pub what: &'static str,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
}

/// Measures everything. On the virtual GPU the times say nothing about a card.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory), or a driver error.
pub fn run(device: &CudaDevice) -> Result<Vec<Measured>> {
    let mut all = allocation(device)?;
    all.extend(copies(device)?);
    all.extend(graph(device)?);
    Ok(all)
}

/// The allocations of one forward pass by the shapes of a 28-layer text model (hidden 2048, intermediate 6144, 16 query
/// and 8 key-value heads of 128) for this many tokens, in f32. Written from the shapes, not recorded.
pub fn forward_trace(tokens: usize) -> Vec<Entry> {
    const LAYERS: usize = 28;
    const HIDDEN: usize = 2048;
    const INTERMEDIATE: usize = 6144;
    const KEY_VALUE: usize = 1024;
    let mut entries = Vec::new();
    let mut blocks = 0;
    let mut allocate = |entries: &mut Vec<Entry>, columns: usize| {
        blocks += 1;
        let bytes = (tokens * columns * size_of::<f32>()).max(1);
        entries.push(Entry::Allocate { block: blocks, bytes, stream: 0 });
        blocks
    };
    let free = |entries: &mut Vec<Entry>, block: u32| entries.push(Entry::Free { block, stream: 0 });
    let mut x = allocate(&mut entries, HIDDEN);
    for _ in 0..LAYERS {
        let normed = allocate(&mut entries, HIDDEN);
        let [q, k, v] = [HIDDEN, KEY_VALUE, KEY_VALUE].map(|columns| allocate(&mut entries, columns));
        free(&mut entries, normed);
        let rotated = allocate(&mut entries, 1); // positions
        let attended = allocate(&mut entries, HIDDEN);
        for block in [q, k, v, rotated] {
            free(&mut entries, block);
        }
        let projected = allocate(&mut entries, HIDDEN);
        free(&mut entries, attended);
        let summed = allocate(&mut entries, HIDDEN);
        for block in [x, projected] {
            free(&mut entries, block);
        }
        let normed = allocate(&mut entries, HIDDEN);
        let [gate, up] = [INTERMEDIATE, INTERMEDIATE].map(|columns| allocate(&mut entries, columns));
        free(&mut entries, normed);
        let product = allocate(&mut entries, INTERMEDIATE);
        for block in [gate, up] {
            free(&mut entries, block);
        }
        let down = allocate(&mut entries, HIDDEN);
        free(&mut entries, product);
        x = allocate(&mut entries, HIDDEN);
        for block in [summed, down] {
            free(&mut entries, block);
        }
    }
    free(&mut entries, x);
    entries
}

/// Nanoseconds for an allocation with its free, over a forward's trace.
fn allocation(device: &CudaDevice) -> Result<Vec<Measured>> {
    let trace = forward_trace(128);
    let streams = [StreamHandle::of(device)];
    let per_pair = |upstream: &dyn Upstream<StreamHandle>| -> Result<f64> {
        let time = median(|| replay(&trace, upstream, &streams))?;
        device.synchronize()?;
        Ok(time.as_secs_f64() * 1e9 / (trace.len() / 2) as f64)
    };
    let service = StreamHandle::of(&device.with_new_stream()?);
    let pool = MemoryPool::new(CudaTimeline::new(device), PlainMemory::new(device), service);
    let mut all = vec![Measured { what: "alloc + free, pool", value: per_pair(&pool)?, unit: "ns" }];
    let books = pool.statistics();
    let each: usize =
        trace.iter().map(|entry| if let Entry::Allocate { bytes, .. } = entry { *bytes } else { 0 }).sum();
    let ratio = |a: usize, b: usize| a as f64 / b.max(1) as f64;
    all.push(Measured {
        what: "peak reserved / peak live",
        value: ratio(books.peak_reserved, books.peak_live),
        unit: "",
    });
    all.push(Measured {
        what: "peak reserved / one block per tensor",
        value: ratio(books.peak_reserved, each),
        unit: "",
    });
    let plain = per_pair(&PlainMemory::new(device))?;
    all.push(Measured { what: "alloc + free, cuMemAlloc", value: plain, unit: "ns" });
    if let Ok(driver) = DriverPool::new(device) {
        all.push(Measured {
            what: "alloc + free, cuMemAllocFromPoolAsync",
            value: per_pair(&driver)?,
            unit: "ns",
        });
    }
    Ok(all)
}

/// Rates of copies, and how much of a copy disappears behind computation on another stream.
fn copies(device: &CudaDevice) -> Result<Vec<Measured>> {
    let mut target = DeviceBuffer::uninitialized(device, COPY)?;
    let source = vec![1u8; COPY];
    let rate = |time: Duration| COPY as f64 / time.as_secs_f64() / 1e9;
    let pageable = median(|| {
        target.upload_pageable(0, &source)?;
        device.synchronize()
    })?;
    let staged = median(|| {
        target.upload(0, &source)?;
        device.synchronize()
    })?;
    let mut pinned = Vec::new();
    for _ in 0..=RUNS {
        let source = PinnedBuffer::new(device, COPY)?;
        let start = Instant::now();
        target.upload_async(0, source)?;
        device.synchronize()?;
        pinned.push(start.elapsed());
    }
    let pinned = middle(pinned);
    let mut all = vec![
        Measured { what: "upload, pageable", value: rate(pageable), unit: "GB/s" },
        Measured { what: "upload, staged through pinned chunks", value: rate(staged), unit: "GB/s" },
        Measured { what: "upload, pinned", value: rate(pinned), unit: "GB/s" },
    ];

    // As much computation as the copy takes, on another stream.
    let compute = device.with_new_stream()?;
    let on = Device::Cuda(compute.clone());
    let x = Tensor::zeros([1024, 1024], DType::F32, &on)?;
    let mut y = Tensor::uninitialized([1024, 1024], DType::F32, &on)?;
    let mut work = |count: usize| (0..count).try_for_each(|_| ops::softmax_into(y.view_mut()?, &x));
    let one = median(|| work(8).and_then(|()| compute.synchronize()))? / 8;
    let count = (pinned.as_secs_f64() / one.as_secs_f64().max(1e-9)).ceil().clamp(1.0, 1e4) as usize;
    let computing = median(|| work(count).and_then(|()| compute.synchronize()))?;
    let mut both = Vec::new();
    for _ in 0..=RUNS {
        let source = PinnedBuffer::new(device, COPY)?;
        let start = Instant::now();
        target.upload_async(0, source)?;
        work(count)?;
        device.synchronize()?;
        compute.synchronize()?;
        both.push(start.elapsed());
    }
    let hidden = (pinned + computing).saturating_sub(middle(both)).as_secs_f64();
    let ideal = pinned.min(computing).as_secs_f64();
    all.push(Measured {
        what: "copy hidden behind computation, of ideal",
        value: 100.0 * hidden / ideal,
        unit: "%",
    });
    Ok(all)
}

/// A chain of small kernels, launched and replayed: until the GPU is done, and the host's part of it.
fn graph(device: &CudaDevice) -> Result<Vec<Measured>> {
    let on = Device::Cuda(device.clone());
    let x = Tensor::zeros([1, 2048], DType::F32, &on)?;
    let mut y = Tensor::uninitialized([1, 2048], DType::F32, &on)?;
    let mut chain = || (0..CHAIN).try_for_each(|_| ops::softmax_into(y.view_mut()?, &x));
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let (launched, launched_host) = timed(device, &mut chain)?;
    let (graph, ()) = Graph::capture(device, &mut chain)?;
    let (replayed, replayed_host) = timed(device, || graph.launch())?;
    Ok(vec![
        Measured { what: "200 small kernels, launched", value: micros(launched), unit: "µs" },
        Measured { what: "200 small kernels, replayed", value: micros(replayed), unit: "µs" },
        Measured { what: "host's part, launched", value: micros(launched_host), unit: "µs" },
        Measured { what: "host's part, replayed", value: micros(replayed_host), unit: "µs" },
    ])
}

/// Until the device is done, and until the calls have returned.
fn timed(device: &CudaDevice, mut work: impl FnMut() -> Result<()>) -> Result<(Duration, Duration)> {
    let (mut done, mut returned) = (Vec::new(), Vec::new());
    for _ in 0..=RUNS {
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
    for _ in 0..=RUNS {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed());
    }
    Ok(middle(times))
}

/// The median without the first, which warms up.
fn middle(mut times: Vec<Duration>) -> Duration {
    let times = &mut times[1..];
    times.sort_unstable();
    times[times.len() / 2]
}
