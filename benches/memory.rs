//! The cost of the memory pool alone, without a device: `cargo bench --bench memory`. `pascaline bench --memory` measures
//! it on a device, with copies, graphs and prefetching.

use pascaline::Result;
use pascaline::memory::MemoryPool;
use pascaline::memory::adaptor::{parse, replay};
use pascaline::memory::simulated::Simulated;
use std::time::Instant;

fn main() -> Result<()> {
    let trace =
        parse(include_str!("../tests/data/qwen3_vl_2b.trace")).expect("the recorded trace is readable");
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
    Ok(())
}
