//! PTX, parsed and run on the virtual GPU.

use arbitrary::{Result, Unstructured};
use pascaline_virtual_gpu::{Config, Gpu, Launch, Module};
use std::fmt::Write;

/// Any text, parsed as PTX.
pub fn parse(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = Module::parse(text);
    }
}

/// PTX, each of whose kernels is launched with pointers to a small buffer as arguments.
pub fn run(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        launch_all(text);
    }
}

/// A kernel made of random instructions: which mutation of text rarely produces.
pub fn program(input: &[u8]) {
    if let Ok(text) = kernel(&mut Unstructured::new(input)) {
        launch_all(&text);
    }
}

fn launch_all(text: &str) {
    let Ok(module) = Module::parse(text) else { return };
    let config = Config {
        memory_limit: Some(64 << 20),
        threads: 1,
        instruction_limit: 1 << 13,
        launch_limit: 1 << 17,
        ..Config::default()
    };
    let kernels: Vec<_> = module.kernels().iter().take(4).map(|kernel| kernel.name.clone()).collect();
    let mut gpu = Gpu::new(config);
    let (Ok(buffer), Ok(module)) = (gpu.alloc(1024), gpu.load(module)) else { return };
    gpu.write(buffer, &[0x3f; 512]).expect("the half that is written");
    let params = buffer.to_le_bytes().repeat(512);
    for kernel in kernels {
        let bytes = module.module.kernel(&kernel).map_or(0, |kernel| kernel.param_bytes as usize);
        let Some(params) = params.get(..bytes) else { continue };
        let launch = Launch { grid: [2, 1, 1], block: [48, 1, 1], dynamic_shared: 256, params };
        let _ = gpu.launch(&module, &kernel, launch);
    }
}

/// Instructions with placeholders: `R` 32 bits, `D` 64 bits, `H` 16 bits, `F` f32, `E` f64, `P` predicate, `I` a number,
/// `L` a label.
const INSTRUCTIONS: [&str; 93] = [
    "add.s32 R, R, R",
    "add.s32 R, R, I",
    "sub.u32 R, R, R",
    "mul.lo.s32 R, R, R",
    "mul.hi.u32 R, R, R",
    "mul.wide.u32 D, R, R",
    "mul.wide.s16 R, H, H",
    "mad.lo.s32 R, R, R, R",
    "mad.wide.u32 D, R, R, D",
    "div.s32 R, R, R",
    "div.u32 R, R, I",
    "rem.s32 R, R, R",
    "div.s64 D, D, D",
    "rem.u64 D, D, D",
    "shl.b32 R, R, R",
    "shr.s32 R, R, I",
    "shr.u64 D, D, R",
    "and.b32 R, R, R",
    "xor.b64 D, D, D",
    "not.b32 R, R",
    "neg.s32 R, R",
    "abs.s32 R, R",
    "min.s32 R, R, R",
    "max.u64 D, D, D",
    "popc.b32 R, R",
    "clz.b64 R, D",
    "brev.b32 R, R",
    "bfe.u32 R, R, R, R",
    "bfi.b32 R, R, R, R, R",
    "prmt.b32 R, R, R, R",
    "vadd.s32.u32.s32.sat R.h1, R.b2, R, R",
    "vmad.s32.s32.u32.shr7 R, R.h0, -R, R",
    "vset.u32.s32.lt.add R, R, R.b0, R",
    "vabsdiff4.u32.u32.u32.add R, R, R, R",
    "vavrg2.s32.s32.u32 R.h1, R.h13, R, R",
    "shf.l.wrap.b32 R, R, R, R",
    "lop3.b32 R, R, R, R, 0x96",
    "add.cc.u32 R, R, R",
    "addc.u32 R, R, R",
    "mov.u32 R, %tid.x",
    "mov.u32 R, %laneid",
    "mov.u32 R, %ctaid.x",
    "mov.u32 R, I",
    "mov.b64 D, {R, R}",
    "mov.b32 F, R",
    "mov.u32 R, shared",
    "cvta.to.global.u64 D, D",
    "add.f32 F, F, F",
    "mul.rz.f32 F, F, F",
    "fma.rn.f32 F, F, F, F",
    "div.rn.f32 F, F, F",
    "sqrt.rn.f32 F, F",
    "rcp.approx.f32 F, F",
    "ex2.approx.ftz.f32 F, F",
    "lg2.approx.f32 F, F",
    "sin.approx.f32 F, F",
    "min.f32 F, F, F",
    "abs.f32 F, F",
    "add.f64 E, E, E",
    "fma.rn.f64 E, E, E, E",
    "div.rn.f64 E, E, E",
    "cvt.rn.f32.s32 F, R",
    "cvt.rzi.s32.f32 R, F",
    "cvt.rp.f32.u64 F, D",
    "cvt.rmi.s64.f64 D, E",
    "cvt.rn.f16.f32 H, F",
    "cvt.f32.f16 F, H",
    "cvt.f64.f32 E, F",
    "cvt.rn.f32.f64 F, E",
    "cvt.u32.u16 R, H",
    "cvt.s64.s32 D, R",
    "cvt.sat.u8.s32 R, R",
    "setp.lt.s32 P, R, R",
    "setp.geu.f32 P, F, F",
    "setp.eq.u64 P, D, D",
    "selp.b32 R, R, R, P",
    "@P bra L",
    "@!P bra L",
    "bra L",
    "@P ret",
    "bar.sync 0",
    "bar.sync I",
    "shfl.sync.bfly.b32 R, R, R, 0x1f, 0xffffffff",
    "shfl.sync.idx.b32 R, R, I, 0x1f, R",
    "vote.sync.ballot.b32 R, P, 0xffffffff",
    "ld.global.u32 R, [D]",
    "ld.global.v4.f32 {F, F, F, F}, [D+I]",
    "st.global.b32 [D+I], R",
    "ld.shared.u32 R, [R+I]",
    "st.shared.v2.b32 [R], {R, R}",
    "atom.global.add.u32 R, [D], R",
    "atom.shared.cas.b32 R, [R], R, R",
    "membar.gl",
];

fn kernel(bytes: &mut Unstructured) -> Result<String> {
    let mut text = String::from(
        ".version 6.4\n.target sm_61\n.address_size 64\n.visible .entry kernel(.param .u64 p) {\n\
         .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .b16 %h<8>; .reg .f32 %f<8>; .reg .f64 %e<8>; .reg .pred %p<8>;\n\
         .shared .align 16 .b8 shared[512];\nld.param.u64 %d0, [p]; mov.u32 %r0, %tid.x;\n\
         mad.wide.u32 %d1, %r0, 4, %d0; shl.b32 %r1, %r0, 2;\n",
    );
    let count = bytes.int_in_range(1..=40)?;
    for line in 0..count {
        let _ = write!(text, "L{line}: ");
        for c in bytes.choose(&INSTRUCTIONS)?.split_inclusive(|c: char| c.is_ascii_uppercase()) {
            let (before, place) = c.split_at(c.len() - 1);
            text += before;
            let register = |bytes: &mut Unstructured, kind: char| {
                bytes.int_in_range(0..=7).map(|number: u8| format!("%{kind}{number}"))
            };
            text += &match place {
                "R" | "D" | "H" | "F" | "E" | "P" => {
                    let kind = place.chars().next().map_or('r', |kind| kind.to_ascii_lowercase());
                    register(bytes, kind)?
                }
                "I" => [0i64, 1, 2, 4, 16, 31, 32, 64, 255, -1, 0x7fff_ffff, 0x8000_0000]
                    [bytes.int_in_range(0..=11)?]
                .to_string(),
                "L" => format!("L{}", bytes.int_in_range(0..=count)?),
                other => other.to_owned(),
            };
        }
        text += ";\n";
    }
    let _ = write!(text, "L{count}: ret;\n}}\n");
    Ok(text)
}
