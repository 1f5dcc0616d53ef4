//! Warp instructions per second of the interpreter, over kernels of this repository.
//!
//! `pascaline doctor --ptx kernels.ptx && cargo run --release -p pascaline-virtual-gpu --example speed -- kernels.ptx [REPEATS] [KERNEL]`
//!
//! Each kernel runs on one CPU thread, with all checks and with none. The last column is a hash of the kernel's results and
//! counters: a change that is to leave them alone leaves it alone. For instructions of the CPU per warp instruction, run one kernel
//! under `valgrind --tool=callgrind --toggle-collect=pascaline_virtual_gpu::exec::Gpu::launch`.

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use pascaline_virtual_gpu::{Checks, Config, Gpu, Launch, Module};

/// A kernel's parameter.
enum Parameter {
    /// Written by the kernel: bytes.
    Output(u64),
    /// Random values from −1 to 1: elements.
    Floats(u64),
    /// Random bytes.
    Bytes(u64),
    /// The same half-precision value: elements.
    Halves(u64),
    Null,
    Word(u32),
    Float(f32),
}
use Parameter::*;

struct Case {
    kernel: &'static str,
    grid: [u32; 3],
    threads: u32,
    parameters: Vec<Parameter>,
}

fn cases() -> Vec<Case> {
    let words = |words: &[u32]| words.iter().map(|&word| Word(word)).collect::<Vec<_>>();
    let (m, n, k) = (128, 128, 128);
    let mut matmul = vec![Output(4 * m * n), Floats(m * k), Floats(k * n), Null];
    matmul.extend(words(&[128, 128, 128, 128, 128, 128, 0, 0, 0, 128]));
    matmul.extend([Float(1.0), Float(0.0), Null, Null]);
    let (rows, cols) = (32, 512);
    let mut softmax = vec![Output(4 * rows * cols), Floats(rows * cols)];
    softmax.extend(words(&[32, 512, 1, 32]));
    let cols = 2048;
    let mut layer_norm = vec![Output(4 * rows * cols), Floats(rows * cols), Floats(cols), Floats(cols)];
    layer_norm.extend(words(&[32, 2048]));
    layer_norm.push(Float(1e-5));
    layer_norm.extend(words(&[1, 32]));
    // two heads of 64 queries and keys, of 64 columns
    let mut attention =
        vec![Output(4 * 2 * 64 * 64), Floats(2 * 64 * 64), Floats(2 * 64 * 64), Floats(2 * 64 * 64)];
    attention.extend((0..4).flat_map(|_| words(&[2 * 64 * 64, 64 * 64, 64])));
    attention.extend(words(&[2, 1, 64, 64, 64]));
    attention.push(Float(0.18));
    attention.extend(words(&[1, 1, 0]));
    attention.extend([Null, Word(0), Null, Null]);
    let product = |m: u64| {
        let (n, k) = (64, 512);
        let mut all =
            vec![Output(4 * m * n), Bytes(m * k), Bytes(m * k / 32 * 8), Bytes(n * k), Halves(n * k / 32)];
        all.extend([Null, Null]);
        all.extend(words(&[m as u32, 64, 512, 512, 0]));
        all
    };
    let (many, few) = (product(64), product(4));
    let case = |kernel, grid, threads, parameters| Case { kernel, grid, threads, parameters };
    vec![
        case("matmul_tile128_nn_f32", [1, 1, 1], 256, matmul),
        case("softmax_warp_f32", [4, 1, 1], 256, softmax),
        case("layer_norm_block_f32", [32, 1, 1], 128, layer_norm),
        case("attention_prefill_d64_f32", [2, 1, 1], 128, attention),
        case("quant_tile64_q8_0", [1, 1, 1], 256, many),
        case("quant_vector4_q8_0", [64, 1, 1], 128, few),
    ]
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: speed kernels.ptx [repeats] [kernel]")?;
    let repeats = arguments.next().map_or(Ok(8), |text| text.parse::<u32>())?;
    let only = arguments.next().unwrap_or_default();
    let ptx = std::fs::read_to_string(path)?;
    println!("| kernel | checks | warp instructions | millions a second | hash |\n|---|---|---|---|---|");
    for case in cases().into_iter().filter(|case| case.kernel.contains(&only)) {
        let ptx = alone(&ptx, case.kernel).ok_or("the PTX has no such kernel")?;
        for (name, checks) in [("all", Checks::ALL), ("none", Checks::NONE)] {
            let mut gpu = Gpu::new(Config { checks, threads: 1, ..Config::default() });
            let module = gpu.load(Module::parse(&ptx)?).map_err(|error| format!("{error:?}"))?;
            let (parameters, outputs) = parameters(&mut gpu, &case.parameters)?;
            let block = [case.threads, 1, 1];
            let launch = Launch { grid: case.grid, block, dynamic_shared: 0, params: &parameters };
            let (mut best, mut instructions) = (f64::MAX, 0);
            let mut hasher = DefaultHasher::new();
            for _ in 0..repeats {
                let start = Instant::now();
                let report = gpu.launch(&module, case.kernel, launch)?;
                best = best.min(start.elapsed().as_secs_f64());
                instructions = report.counters.warp_total();
                hasher = DefaultHasher::new();
                format!("{:?}", report.counters).hash(&mut hasher);
            }
            for (address, bytes) in outputs {
                let mut out = vec![0; bytes as usize];
                gpu.read(address, &mut out).map_err(|error| format!("{error:?}"))?;
                out.hash(&mut hasher);
            }
            let rate = instructions as f64 / best / 1e6;
            println!("| {} | {name} | {instructions} | {rate:.2} | {:016x} |", case.kernel, hasher.finish());
        }
    }
    Ok(())
}

/// The text of one kernel of a file: to parse all of them takes longer than to run one.
fn alone(ptx: &str, kernel: &str) -> Option<String> {
    let from = ptx.find(&format!(".entry {kernel}("))?;
    let header = &ptx[..ptx.find(".visible")?];
    let mut depth = 0;
    let end = ptx[from..].find(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == '}' && depth == 0
    })?;
    Some(format!("{header}\n.visible {}\n", &ptx[from..=from + end]))
}

/// A parameter block, and the addresses and bytes of what the kernel writes.
type Prepared = (Vec<u8>, Vec<(u64, u64)>);

fn parameters(gpu: &mut Gpu, all: &[Parameter]) -> Result<Prepared, Box<dyn Error>> {
    let (mut block, mut outputs) = (Vec::new(), Vec::new());
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as u32
    };
    for parameter in all {
        let data: Vec<u8> = match *parameter {
            Word(word) => {
                block.extend(word.to_le_bytes());
                continue;
            }
            Float(value) => {
                block.extend(value.to_le_bytes());
                continue;
            }
            Null => Vec::new(),
            Output(bytes) => vec![0; bytes as usize],
            Bytes(bytes) => (0..bytes).map(|_| random() as u8).collect(),
            Halves(n) => (0..n).flat_map(|_| 0x2c00u16.to_le_bytes()).collect(),
            Floats(n) => {
                (0..n).flat_map(|_| (random() as f32 / (1 << 23) as f32 - 1.0).to_le_bytes()).collect()
            }
        };
        let address = match data.is_empty() {
            true => 0,
            false => gpu.alloc(data.len() as u64).map_err(|error| format!("{error:?}"))?,
        };
        if !matches!(parameter, Output(_)) && address != 0 {
            gpu.write(address, &data).map_err(|error| format!("{error:?}"))?;
        } else if address != 0 {
            outputs.push((address, data.len() as u64));
        }
        block.resize(block.len().next_multiple_of(8), 0);
        block.extend(address.to_le_bytes());
    }
    Ok((block, outputs))
}
