//! How fast the virtual GPU runs: thread instructions per second and core, checks off and on.
//!
//! `cargo run --release -p pascaline-virtual-gpu --example speed`
//!
//! The kernel is a textbook matrix product: 16 × 16 tiles in shared memory; per step two loads, two barriers and 16
//! FFMAs with two shared loads each. About half its instructions access memory, so it is not a favourable case.

use std::error::Error;
use std::sync::LazyLock;
use std::time::Instant;

use pascaline_virtual_gpu::{Checks, Class, Config, Gpu, Launch, Module};

const N: u32 = 256;

/// c = a · b, all N × N, row-major; grid (N / 16, N / 16), block (16, 16).
fn matmul() -> String {
    let mut steps = String::new();
    for k in 0..16 {
        steps += &format!(
            "ld.shared.f32 %f1, [%ra+{}]; ld.shared.f32 %f2, [%rb+{}]; fma.rn.f32 %f0, %f1, %f2, %f0;\n",
            4 * k,
            64 * k
        );
    }
    format!(
        ".version 6.4 .target sm_61 .address_size 64
.visible .entry matmul(.param .u64 c, .param .u64 a, .param .u64 b, .param .u32 n) .maxntid 256, 1, 1 {{
.reg .b64 %c, %a, %b, %o; .reg .f32 %f<4>; .reg .b32 %tx, %ty, %n, %row, %col, %i, %k, %sa, %sb, %ra, %rb, %t; .reg .pred %p;
.shared .align 16 .b8 ta[1024]; .shared .align 16 .b8 tb[1024];
ld.param.u64 %c, [c]; ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u32 %n, [n];
mov.u32 %tx, %tid.x; mov.u32 %ty, %tid.y;
mov.u32 %t, %ctaid.y; mad.lo.u32 %row, %t, 16, %ty; mov.u32 %t, %ctaid.x; mad.lo.u32 %col, %t, 16, %tx;
mad.lo.u32 %t, %ty, 16, %tx; shl.b32 %t, %t, 2;
mov.u32 %sa, ta; mov.u32 %sb, tb; mad.lo.u32 %ra, %ty, 64, %sa; mad.lo.u32 %rb, %tx, 4, %sb;
add.u32 %sa, %sa, %t; add.u32 %sb, %sb, %t;
mov.f32 %f0, 0f00000000; mov.u32 %k, 0;
L: add.u32 %i, %k, %tx; mad.lo.u32 %i, %row, %n, %i; mad.wide.u32 %o, %i, 4, %a; ld.global.nc.f32 %f1, [%o]; st.shared.f32 [%sa], %f1;
add.u32 %i, %k, %ty; mad.lo.u32 %i, %i, %n, %col; mad.wide.u32 %o, %i, 4, %b; ld.global.nc.f32 %f1, [%o]; st.shared.f32 [%sb], %f1;
bar.sync 0;
{steps}bar.sync 0;
add.u32 %k, %k, 16; setp.lt.u32 %p, %k, %n; @%p bra L;
mad.lo.u32 %i, %row, %n, %col; mad.wide.u32 %o, %i, 4, %c; st.global.f32 [%o], %f0; ret;
}}"
    )
}

/// CPU time of this thread, which other load on the machine does not lengthen; wall time where there is none.
fn cpu_seconds() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let ran = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = ran.as_deref().and_then(|s| s.split(' ').next()).and_then(|s| s.parse::<u64>().ok());
    nanoseconds.map_or_else(|| START.elapsed().as_secs_f64(), |n| n as f64 * 1e-9)
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:28} {:>14} {:>10} {:>16}", "checks", "instructions", "seconds", "per second, core");
    for (name, checks, traffic) in [
        ("off", Checks::NONE, false),
        ("off, traffic counted", Checks::NONE, true),
        ("all", Checks::ALL, true),
    ] {
        let mut gpu = Gpu::new(Config { checks, traffic, threads: 1, ..Config::default() });
        let module = gpu.load(Module::parse(&matmul())?).map_err(|e| format!("{e:?}"))?;
        let bytes = (4 * N * N) as usize;
        let one: Vec<u8> = std::iter::repeat_n(1f32.to_le_bytes(), bytes / 4).flatten().collect();
        let mut buffers = [0u64; 3];
        for b in &mut buffers {
            *b = gpu.alloc(bytes as u64).map_err(|e| format!("{e:?}"))?;
            gpu.write(*b, &one).map_err(|e| format!("{e:?}"))?;
        }
        let mut params: Vec<u8> = buffers.iter().flat_map(|b| b.to_le_bytes()).collect();
        params.extend(N.to_le_bytes());
        let launch =
            Launch { grid: [N / 16, N / 16, 1], block: [16, 16, 1], dynamic_shared: 0, params: &params };
        let start = cpu_seconds();
        let report = gpu.launch(&module, "matmul", launch)?;
        let seconds = cpu_seconds() - start;
        let mut c = vec![0; bytes];
        gpu.read(buffers[0], &mut c).map_err(|e| format!("{e:?}"))?;
        assert!(c.chunks(4).all(|w| w == (N as f32).to_le_bytes()), "the product is wrong");
        assert_eq!(report.counters.thread_instructions[Class::Ffma as usize], (N as u64).pow(3));
        let n = report.counters.thread_total();
        println!("{name:28} {n:14} {seconds:10.3} {:14.0} M", n as f64 / seconds / 1e6);
    }
    Ok(())
}
