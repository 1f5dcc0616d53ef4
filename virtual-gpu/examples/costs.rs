//! The cost model against published Pascal figures: the table of `COSTS.md`.
//!
//! `pascaline doctor --ptx kernels.ptx && cargo run --release -p pascaline-virtual-gpu --example costs -- kernels.ptx`

use std::error::Error;

use pascaline_virtual_gpu::{
    Card, Checks, Class, Config, Counters, GTX1080, GTX1080TI, Gpu, LAUNCH_SECONDS, Launch, LaunchReport,
    Module, P40, Traffic, estimate,
};

/// The slice of a TITAN X that was simulated.
static TWO_SMS: Card = Card { name: "2 SMs of a TITAN X", id: "slice", sms: 2, bandwidth: 34.3, ..GTX1080TI };

/// Runs one of the project's matmul kernels on m × n × k and returns its report.
fn product(
    module: &str,
    kernel: &str,
    [bm, bn, threads]: [u32; 3],
    [m, n, k]: [u32; 3],
) -> Result<LaunchReport, Box<dyn Error>> {
    let config = Config { checks: Checks::NONE, ..Config::default() };
    let mut gpu = Gpu::new(config);
    let module = gpu.load(Module::parse(module)?).map_err(|e| format!("{e:?}"))?;
    let mut alloc = |elements: u32| gpu.alloc(4 * elements as u64).map_err(|e| format!("{e:?}"));
    let (c, a, b) = (alloc(m * n)?, alloc(m * k)?, alloc(k * n)?);
    let mut params: Vec<u8> = [c, a, b].iter().flat_map(|p| p.to_le_bytes()).collect();
    params.extend(0u64.to_le_bytes());
    params.extend([m, n, k, k, n, n, 0, 0, 0, k].iter().flat_map(|w| w.to_le_bytes()));
    params.extend([1f32, 0.0].iter().flat_map(|w| w.to_le_bytes()));
    params.extend([0; 16]); // neither bias nor addend
    let grid = [m.div_ceil(bm) * n.div_ceil(bn), 1, 1];
    Ok(gpu.launch(
        &module,
        kernel,
        Launch { grid, block: [threads, 1, 1], dynamic_shared: 0, params: &params },
    )?)
}

/// The report of the same kernel on a product `f` times as large in each dimension.
fn enlarge(r: &LaunchReport, f: u64) -> LaunchReport {
    let c = &r.counters;
    let traffic = |t: Traffic| Traffic {
        requests: t.requests * f.pow(3),
        units: t.units * f.pow(3),
        bytes: t.bytes * f.pow(3),
    };
    let counters = Counters {
        warp_instructions: c.warp_instructions.map(|n| n * f.pow(3)),
        thread_instructions: c.thread_instructions.map(|n| n * f.pow(3)),
        global_loads: traffic(c.global_loads),
        global_stores: c.global_stores,
        shared_loads: traffic(c.shared_loads),
        shared_stores: traffic(c.shared_stores),
        distinct_sectors: c.distinct_sectors * f.pow(2),
        barriers: c.barriers * f.pow(3),
        ..*c
    };
    LaunchReport { grid: [r.grid[0] * (f * f) as u32, 1, 1], counters, ..r.clone() }
}

/// The estimates of a launch as shares of the card's peak: from the PTX alone, by the roofs alone (issue slots of the hot loop among
/// them), and by the model, which simulates the machine code.
fn shares_of_peak(report: &LaunchReport, card: &Card, registers: u32) -> [(f64, &'static str); 3] {
    let flops = 2.0 * report.counters.thread_instructions[Class::Ffma as usize] as f64;
    let unknown = LaunchReport { kernel: String::new(), ..report.clone() };
    let [ptx, model] = [&unknown, report].map(|report| estimate(report, card, registers));
    let roofs =
        [(model.compute, "compute"), (model.shared, "shared memory"), (model.l2, "L2"), (model.dram, "DRAM")];
    let roof = roofs.into_iter().fold((0.0, ""), |a, b| if b.0 > a.0 { b } else { a });
    [(ptx.time, ptx.bound.name()), (roof.0 + LAUNCH_SECONDS, roof.1), (model.time, model.bound.name())]
        .map(|(time, bound)| (flops / time / card.fp32_flops(), bound))
}

/// A matrix of 4-bit blocks (18 bytes for 32 weights) times a vector, with dp4a; one warp per row.
fn gemv_q4(rows: u64, cols: u64) -> LaunchReport {
    let bytes = rows * cols / 32 * 18;
    let warps = rows * cols / 32;
    let mut warp_instructions = [0; Class::COUNT];
    warp_instructions[Class::Dp4a as usize] = warps / 4;
    warp_instructions[Class::Int as usize] = warps / 2;
    warp_instructions[Class::Ffma as usize] = warps / 8;
    warp_instructions[Class::LoadGlobal as usize] = warps / 4;
    let requests = warps / 4;
    let global_loads = Traffic { requests, units: bytes / 32 + requests, bytes };
    let counters =
        Counters { warp_instructions, global_loads, distinct_sectors: bytes / 32, ..Counters::default() };
    LaunchReport {
        in_graph: false,
        lines: Vec::new(),
        kernel: "gemv_q4".to_owned(),
        grid: [(rows / 4) as u32, 1, 1],
        block: [128, 1, 1],
        shared_bytes: 0,
        counters,
    }
}

/// Share of the P40's bandwidth at which a 7B model decodes, weights in 4-bit blocks.
fn decode() -> f64 {
    let layer = [(4096, 4096); 4].into_iter().chain([(11008, 4096), (11008, 4096), (4096, 11008)]);
    let products: Vec<_> =
        std::iter::repeat_n(layer.collect::<Vec<_>>(), 32).flatten().chain([(32000, 4096)]).collect();
    let bytes: u64 = products.iter().map(|(r, c)| r * c / 32 * 18).sum();
    let seconds: f64 = products.iter().map(|&(r, c)| estimate(&gemv_q4(r, c), &P40, 40).time).sum();
    // Norms, rotation, attention, activations, quantised inputs: about ten small launches a layer.
    let small = 32.0 * 10.0 * LAUNCH_SECONDS;
    bytes as f64 / (seconds + small) / (P40.bandwidth * 1e9)
}

fn row(what: &str, published: f64, estimates: [(f64, &str); 3]) {
    let cell = |(share, bound): (f64, &str)| {
        format!("{:.0} % ({bound}), {:+.0} %", share * 100.0, (share / published - 1.0) * 100.0)
    };
    let [ptx, roofs, model] = estimates.map(cell);
    println!("| {what} | {:.0} % | {ptx} | {roofs} | {model} |", published * 100.0);
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: costs kernels.ptx")?;
    let ptx = std::fs::read_to_string(path)?;
    println!("| figure | published | by PTX alone | by issue slots | model |\n|---|---|---|---|---|");
    let tile = product(&ptx, "matmul_tile128_nn_f32", [128, 128, 256], [512; 3])?;
    let shares = shares_of_peak(&enlarge(&tile, 8), &GTX1080TI, 128);
    row("SGEMM 4096, 1080 Ti, of FP32 peak (hand-written)", 0.85, shares);
    let slice = product(&ptx, "matmul_tile128_nn_f32", [128, 128, 256], [512, 128, 512])?;
    row("the same 512 × 128 × 512, 2 SMs, simulator", 0.62, shares_of_peak(&slice, &TWO_SMS, 128));
    row("decode of a 7B Q4_0 model, P40, of bandwidth", 0.63, [(decode(), "DRAM and launch"); 3]);

    println!("\n| 512³ NN in f32, 2 SMs | by PTX alone | by issue slots | model |\n|---|---|---|---|");
    let tiles = [
        ("tile128", [128, 128, 256], 128),
        ("wide128", [128, 128, 128], 216),
        ("tile64x128", [64, 128, 128], 128),
        ("tile32", [32, 64, 256], 104),
        ("tile64", [64, 64, 128], 152),
    ];
    for (family, shape, registers) in tiles {
        let report = product(&ptx, &format!("matmul_{family}_nn_f32"), shape, [512; 3])?;
        let cells = shares_of_peak(&report, &TWO_SMS, registers)
            .map(|(share, bound)| format!("{:.0} % ({bound})", share * 100.0));
        println!("| {family} | {} |", cells.join(" | "));
    }
    println!(
        "\n| N³ NN in f32, 1080 Ti | cuBLAS, GFLOP/s | ours | by PTX alone | by issue slots | model |\n|---|---|---|---|---|---|"
    );
    // the kernels that `pascaline` takes there, unsplit: host/src/gpu/matmul/select.rs has a test of it
    for (n, published, (family, shape, registers)) in [
        (512, 4452.0, tiles[4]),
        (1024, 7857.0, tiles[2]),
        (2048, 9409.0, tiles[2]),
        (4096, 10180.0, tiles[0]),
    ] {
        let report = product(&ptx, &format!("matmul_{family}_nn_f32"), shape, [512; 3])?;
        let cells =
            shares_of_peak(&enlarge(&report, n / 512), &GTX1080TI, registers).map(|(share, bound)| {
                let rate = share * GTX1080TI.fp32_flops() / 1e9;
                format!("{rate:.0} ({bound}), {:+.0} %", (rate / published - 1.0) * 100.0)
            });
        println!("| {n} | {published} | {family} | {} |", cells.join(" | "));
    }
    println!("\nSGEMM 512, GTX 1080: {:?}", estimate(&tile, &GTX1080, 128));
    Ok(())
}
