//! The memory pool, copies and graphs: `cargo bench --bench memory`. The pool's own cost is measured without a device
//! too; the rest needs one (`PASCALINE_DEVICE=virtual` shows that it runs, its times say nothing about a card).

use pascaline::Device;
use pascaline::cli::bench_memory;
use pascaline::memory::MemoryPool;
use pascaline::memory::adaptor::replay;
use pascaline::memory::simulated::Simulated;
use std::time::Instant;

fn main() {
    let device = Simulated::new(8 << 30, 1);
    let pool = MemoryPool::new(device.clone(), device.clone(), device.stream());
    let stream = [device.stream()];
    for tokens in [1, 128, 1024] {
        let trace = bench_memory::forward_trace(tokens);
        let start = Instant::now();
        const RUNS: usize = 200;
        for _ in 0..RUNS {
            replay(&trace, &pool, &stream).expect("a forward fits 8 GiB");
        }
        let nanos = start.elapsed().as_nanos() as f64 / (RUNS * trace.len() / 2) as f64;
        let books = pool.statistics();
        let ratio = books.peak_reserved as f64 / books.peak_live as f64;
        println!(
            "pool alone, {tokens} tokens: {nanos:.0} ns an alloc + free, peak reserved / live {ratio:.2}"
        );
        pool.trim().expect("the simulated device takes its memory back");
    }
    match Device::cuda(0) {
        Ok(Device::Cuda(device)) => match bench_memory::measure(&device, &bench_memory::forward_trace(128)) {
            Ok(all) => all.iter().for_each(|m| println!("{device:?}: {} {:.2} {}", m.what, m.value, m.unit)),
            Err(error) => println!("{device:?}: {error}"),
        },
        other => println!("SKIPPED: no CUDA device ({other:?})"),
    }
}
