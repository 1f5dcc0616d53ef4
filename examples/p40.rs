//! The quantised products of a 7B Llama on a Tesla P40, estimated by the virtual GPU, beside llama.cpp's published
//! figures for that card.
//!
//! `cargo run --release --example p40`
//!
//! Every kernel runs on a slice of its matrix (all of k, some rows) on the virtual GPU. Its counts are scaled to the
//! whole matrix by the number of blocks, and the cost model (virtual-gpu/COSTS.md) turns them into time on a P40.

use pascaline::cuda;
use pascaline::ops::{self, Epilogue};
use pascaline::quant::Format;
use pascaline::{DType, Device, Tensor};
use pascaline_virtual_gpu::{
    Counters, LAUNCH_SECONDS, LaunchReport, Module, P40, Traffic, estimate, keep_reports, take_reports,
};
use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Layers, and the matrices [n, k] of one; then the output projection.
const LAYERS: usize = 32;
const MATRICES: [(usize, usize, usize); 3] = [(4, 4096, 4096), (2, 11008, 4096), (1, 4096, 11008)];
const OUTPUT: (usize, usize) = (32000, 4096);
/// Launches of a layer besides its products: norms, RoPE, cache, attention, activation, additions.
const SMALL_LAUNCHES: usize = 10;
/// Prompt tokens in one pass.
const PROMPT: usize = 512;

/// Seconds of products of `m` rows with `n` × `k` weights, the quantising of the rows included.
struct Products {
    module: Module,
    device: Device,
}

impl Products {
    fn seconds(&self, format: Format, m: usize, n: usize, k: usize) -> Result<f64> {
        // enough that the whole matrix's kernel is chosen, and whole blocks, so that the counts scale exactly
        let columns = 512;
        let weights = ops::quantize(&Tensor::zeros([columns, k], DType::F32, &self.device)?, format)?;
        let x = Tensor::zeros([m, k], DType::F32, &self.device)?;
        self.device.synchronize()?;
        take_reports(); // discards those of the preparation
        ops::quant_matmul(&x, &weights, &Epilogue::default())?;
        self.device.synchronize()?;
        let mut seconds = 0.0;
        for report in take_reports() {
            let factor = if report.kernel.contains("encode") { 1.0 } else { n as f64 / columns as f64 };
            let kernel = self.module.kernel(&report.kernel).ok_or("a kernel that is not in the PTX")?;
            let registers = self.module.registers(kernel);
            seconds += estimate(&multiplied(&report, factor), &P40, registers).time;
        }
        Ok(seconds)
    }

    /// Seconds of all products of a pass of `m` tokens; the output projection has one row.
    fn pass(&self, format: Format, m: usize) -> Result<f64> {
        let mut seconds = self.seconds(format, 1, OUTPUT.0, OUTPUT.1)?;
        for (count, n, k) in MATRICES {
            seconds += (LAYERS * count) as f64 * self.seconds(format, m, n, k)?;
        }
        Ok(seconds)
    }
}

/// The same kernel with `factor` times as many blocks.
fn multiplied(report: &LaunchReport, factor: f64) -> LaunchReport {
    let c = &report.counters;
    let times = |n: u64| (n as f64 * factor) as u64;
    let traffic =
        |t: Traffic| Traffic { requests: times(t.requests), units: times(t.units), bytes: times(t.bytes) };
    let counters = Counters {
        warp_instructions: c.warp_instructions.map(times),
        thread_instructions: c.thread_instructions.map(times),
        global_loads: traffic(c.global_loads),
        global_stores: traffic(c.global_stores),
        shared_loads: traffic(c.shared_loads),
        shared_stores: traffic(c.shared_stores),
        distinct_sectors: times(c.distinct_sectors),
        barriers: times(c.barriers),
        ..*c
    };
    let grid = [(f64::from(report.grid[0] * report.grid[1]) * factor).ceil() as u32, 1, 1];
    LaunchReport { grid, counters, ..report.clone() }
}

fn main() -> Result<()> {
    let products = Products { module: Module::parse(&cuda::ptx()?)?, device: Device::virtual_gpu()? };
    keep_reports();
    let weights = LAYERS * MATRICES.iter().map(|(count, n, k)| count * n * k).sum::<usize>();
    let output = OUTPUT.0 * OUTPUT.1;
    println!("| 7B, Tesla P40 | format | llama.cpp, published | this, estimated |");
    println!("|---|---|---|---|");
    for (format, name, bits) in [(Format::Q4_0, "Q4_0", 4.5), (Format::Q8_0, "Q8_0", 8.5)] {
        let published = |figure: &'static str| if format == Format::Q4_0 { figure } else { "–" };
        let bytes = (weights + output) as f64 * bits / 8.0;
        let seconds = products.pass(format, 1)?;
        let small = (LAYERS * SMALL_LAUNCHES) as f64 * LAUNCH_SECONDS;
        let share = |seconds: f64| 100.0 * bytes / seconds / (P40.bandwidth * 1e9);
        println!(
            "| decode, of the published bandwidth | {name} | {} | {:.0} % products alone, {:.0} % with {SMALL_LAUNCHES} small launches a layer |",
            published("63 %"),
            share(seconds),
            share(seconds + small)
        );
        let multiply_adds = (PROMPT * weights + output) as f64;
        // four multiply-adds for one FFMA
        let share = 100.0 * 2.0 * multiply_adds / products.pass(format, PROMPT)? / (4.0 * P40.fp32_flops());
        println!(
            "| prefill of {PROMPT} tokens, of the dp4a peak | {name} | {} | {share:.0} % products alone |",
            published("30 %")
        );
    }
    println!("\nThe model is off by 5 to 25 % (virtual-gpu/COSTS.md); nothing here was measured on a card.");
    Ok(())
}
