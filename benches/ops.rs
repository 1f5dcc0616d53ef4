//! A few cases of the table under criterion, to compare one build with the next: `cargo bench`. They run on the CPU
//! and, timed by device events, on the first CUDA device if there is one. `pascaline bench` times all cases, against
//! ceilings and other libraries.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pascaline::{Device, Result, Tensor};
use pascaline_testing::{self as testing, Case, Purpose};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// The largest case that a CPU repeats often enough in a few seconds.
const MAX_FLOPS: f64 = 5e7;

fn ops(criterion: &mut Criterion) {
    let mut devices = vec![Device::Cpu];
    match Device::cuda(0) {
        Ok(device) => devices.push(device),
        Err(error) => eprintln!("SKIPPED: the benches on a CUDA device ({error})"),
    }
    let cases = testing::cases();
    for device in &devices {
        let name = if device.is_cuda() { "cuda" } else { "cpu" };
        let mut group = criterion.benchmark_group(name);
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_secs(1));
        // The first bench case of each op and format that is small enough.
        let mut seen = HashSet::new();
        let small = |case: &dyn Case| case.purpose() == Purpose::Bench && case.flops() <= MAX_FLOPS;
        for case in cases.iter().filter(|case| small(case.as_ref())) {
            if !seen.insert(case.id().split('/').next().map(str::to_owned)) {
                continue;
            }
            group.throughput(Throughput::Bytes(case.bytes() as u64));
            let inputs = case.inputs();
            let inputs: Result<Vec<_>> = inputs.iter().map(|input| input.to(device)).collect();
            let inputs = inputs.expect("the inputs fit the device");
            let (shape, dtype) = case.output();
            let mut y = Tensor::uninitialized(shape, dtype, device).expect("the output fits the device");
            group.bench_function(case.id(), |bencher| {
                bencher.iter_custom(|runs| {
                    time(device, runs, || case.run(y.view_mut()?, &inputs)).expect("the op runs")
                });
            });
        }
        group.finish();
    }
}

/// The time of `runs` runs in a row.
fn time(device: &Device, runs: u64, mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    match device {
        Device::Cpu => {
            let begun = Instant::now();
            (0..runs).try_for_each(|_| run())?;
            Ok(begun.elapsed())
        }
        Device::Cuda(device) => {
            let (begin, end) = (device.event()?, device.event()?);
            begin.record(device.stream())?;
            (0..runs).try_for_each(|_| run())?;
            end.record(device.stream())?;
            end.synchronize()?;
            end.since(&begin)
        }
    }
}

criterion_group!(benches, ops);
criterion_main!(benches);
