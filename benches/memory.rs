//! The memory pool, copies, graphs and prefetching: `cargo bench --bench memory`. The pool's own cost is measured on
//! machines without a device too; the other measurements are those of `pascaline bench --memory`.

use pascaline::cli::bench_memory::{measure, recorded_trace};
use pascaline::memory::MemoryPool;
use pascaline::memory::adaptor::replay;
use pascaline::memory::simulated::Simulated;
use pascaline::{Device, Result};
use std::time::Instant;

fn main() -> Result<()> {
    let trace = recorded_trace().expect("the recorded trace is readable");
    let device = Simulated::new(8 << 30, 1);
    let pool = MemoryPool::new(device.clone(), device.clone(), device.stream());
    let stream = [device.stream()];
    const RUNS: usize = 20;
    let start = Instant::now();
    for _ in 0..RUNS {
        replay(&trace, &pool, &stream)?;
    }
    let nanos = start.elapsed().as_nanos() as f64 / (RUNS * trace.len() / 2) as f64;
    let books = pool.statistics();
    let ratio = books.peak_reserved as f64 / books.peak_live as f64;
    println!("pool alone: {nanos:.0} ns an alloc + free, peak reserved / live {ratio:.2}");
    match Device::choose().device {
        Device::Cuda(device) => {
            let all = measure(&device, &trace)?;
            all.iter().for_each(|m| println!("{device:?}: {} {:.2} {}", m.what, m.value, m.unit));
        }
        Device::Cpu => println!("SKIPPED: no CUDA device"),
    }
    Ok(())
}
