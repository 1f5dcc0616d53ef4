//! One test per instruction: small kernels whose results are written down from the text of the PTX ISA.
//!
//! A case is code over preloaded registers (%rdN, %rN, %hN hold input N in 64, 32 and 16 bits) that writes its
//! result to %rd0, %r0, %h0 or %p0. Each case runs with a full warp and with a part of one.

use pascaline_virtual_gpu::{Arch, Checks, Class, Config, Gpu, Launch, Module};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Out {
    D(u64),
    R(u32),
    H(u16),
    P(bool),
}
use Out::*;

fn f(x: f32) -> u64 {
    x.to_bits() as u64
}

fn rf(x: f32) -> Out {
    R(x.to_bits())
}

fn d(x: f64) -> u64 {
    x.to_bits()
}

fn df(x: f64) -> Out {
    D(x.to_bits())
}

const NAN: u64 = 0x7fc0_0000;
/// The NaN that f32 arithmetic returns for any NaN.
const NAN_OUT: Out = R(0x7fff_ffff);
const INF: u64 = 0x7f80_0000;
const SUB: u64 = 0x0000_1000; // a subnormal f32

fn ptx(code: &str) -> String {
    format!(
        ".version 6.4
.target sm_61
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 c) {{
.reg .b64 %rd<16>; .reg .b32 %r<16>; .reg .b16 %h<16>; .reg .pred %p<8>; .reg .b64 %out; .reg .b32 %lane; .reg .pred %one;
ld.param.b64 %out, [out];
ld.param.b64 %rd1, [a]; ld.param.b64 %rd2, [b]; ld.param.b64 %rd3, [c];
cvt.u32.u64 %r1, %rd1; cvt.u32.u64 %r2, %rd2; cvt.u32.u64 %r3, %rd3;
cvt.u16.u64 %h1, %rd1; cvt.u16.u64 %h2, %rd2; cvt.u16.u64 %h3, %rd3;
mov.b64 %rd0, 0; mov.b32 %r0, 0; mov.b16 %h0, 0; setp.ne.u32 %p0, 0, 0;
{code}
mov.u32 %lane, %laneid; setp.ne.u32 %one, %lane, 3;
@%one ret;
st.global.b64 [%out], %rd0;
st.global.b32 [%out+8], %r0;
st.global.b16 [%out+12], %h0;
selp.b32 %r0, 1, 0, %p0;
st.global.b32 [%out+16], %r0;
ret;
}}
"
    )
}

fn run(code: &str, inputs: [u64; 3], threads: u32, kind: Out) -> Out {
    // what sm_61 has is the same on a newer device
    let of = |arch: Arch| run_on(arch, code, inputs, threads, kind);
    let (pascal, turing) = (of(Arch::Sm61), of(Arch::Sm75));
    assert_eq!(pascal, turing, "{code}");
    pascal
}

fn run_on(arch: Arch, code: &str, inputs: [u64; 3], threads: u32, kind: Out) -> Out {
    // some exchange within a warp without a barrier, which newer devices do not promise
    let checks = Checks { races: arch == Arch::Sm61, ..Checks::ALL };
    let mut gpu = Gpu::new(Config { threads: 1, card: arch.card(), checks, ..Config::default() });
    let module = Module::parse(&ptx(code)).unwrap_or_else(|e| panic!("{code}: {e}"));
    let module = gpu.load(module).unwrap();
    let out = gpu.alloc(24).unwrap();
    let params: Vec<u8> =
        [out, inputs[0], inputs[1], inputs[2]].iter().flat_map(|v| v.to_le_bytes()).collect();
    let launch = Launch { grid: [1; 3], block: [threads, 1, 1], dynamic_shared: 0, params: &params };
    gpu.launch(&module, "k", launch).unwrap_or_else(|e| panic!("{code}: {e}"));
    let mut bytes = [0u8; 24];
    gpu.read(out, &mut bytes).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    match kind {
        D(_) => D(u64::from_le_bytes(bytes[..8].try_into().unwrap())),
        R(_) => R(word(8)),
        H(_) => H(word(12) as u16),
        P(_) => P(word(16) != 0),
    }
}

fn check(cases: &[(&str, [u64; 3], Out)]) {
    let mut wrong = Vec::new();
    for &(code, inputs, want) in cases {
        for threads in [32, 5] {
            let got = run(code, inputs, threads, want);
            if got != want {
                wrong.push(format!("{code} {inputs:x?}: {got:x?}, expected {want:x?} ({threads} threads)"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn integer_arithmetic() {
    let m1 = u32::MAX as u64;
    check(&[
        ("add.u32 %r0, %r1, %r2;", [m1, 2, 0], R(1)),
        ("add.s64 %rd0, %rd1, %rd2;", [u64::MAX, 2, 0], D(1)),
        ("add.u16 %h0, %h1, %h2;", [0xffff, 3, 0], H(2)),
        ("add.sat.s32 %r0, %r1, %r2;", [0x7fff_ffff, 1, 0], R(0x7fff_ffff)),
        ("sub.s32 %r0, %r1, %r2;", [0, 1, 0], R(u32::MAX)),
        ("sub.sat.s32 %r0, %r1, %r2;", [0x8000_0000, 1, 0], R(0x8000_0000)),
        ("mul.lo.u32 %r0, %r1, %r2;", [0x1_0001, 0x1_0001, 0], R(0x0002_0001)),
        ("mul.hi.u32 %r0, %r1, %r2;", [m1, m1, 0], R(0xffff_fffe)),
        ("mul.hi.s32 %r0, %r1, %r2;", [m1, 5, 0], R(u32::MAX)),
        ("mul.hi.u64 %rd0, %rd1, %rd2;", [u64::MAX, u64::MAX, 0], D(u64::MAX - 1)),
        ("mul.hi.s64 %rd0, %rd1, %rd2;", [u64::MAX, 7, 0], D(u64::MAX)),
        ("mul.hi.u16 %h0, %h1, %h2;", [0xffff, 0xffff, 0], H(0xfffe)),
        ("mul.wide.s32 %rd0, %r1, %r2;", [m1, 3, 0], D(-3i64 as u64)),
        ("mul.wide.u32 %rd0, %r1, %r2;", [m1, 3, 0], D(3 * m1)),
        ("mul.wide.u16 %r0, %h1, %h2;", [0xffff, 0xffff, 0], R(0xfffe_0001)),
        ("mul.wide.s16 %r0, %h1, %h2;", [0xffff, 2, 0], R(-2i32 as u32)),
        ("mul24.lo.u32 %r0, %r1, %r2;", [0xff00_0003, 5, 0], R(15)),
        ("mul24.hi.s32 %r0, %r1, %r2;", [0x80_0000, 0x80_0000, 0], R(0x4000_0000)),
        ("mad.lo.s32 %r0, %r1, %r2, %r3;", [3, 4, 5], R(17)),
        ("mad.hi.u32 %r0, %r1, %r2, %r3;", [m1, m1, 2], R(0)),
        ("mad.hi.sat.s32 %r0, %r1, %r2, %r3;", [0x7fff_ffff, 0x7fff_ffff, 0x7fff_ffff], R(0x7fff_ffff)),
        ("mad.wide.u32 %rd0, %r1, %r2, %rd3;", [m1, m1, 1], D(m1 * m1 + 1)),
        ("mad.wide.s16 %r0, %h1, %h2, %r3;", [0xffff, 2, 1], R(u32::MAX)),
        ("mad.wide.u16 %r0, %h1, %h2, %r3;", [0xffff, 0xffff, 1], R(0xfffe_0002)),
        ("mad.wide.s32 %rd0, %r1, %r2, %rd3;", [m1, 3, 5], D(2)),
        ("mad.hi.sat.s32 %r0, %r1, %r2, %r3;", [0x4000_0000, 0x10, 5], R(9)),
        ("mad.lo.u64 %rd0, %rd1, %rd2, %rd3;", [1 << 40, 1 << 24, 9], D(9)),
        ("mad24.lo.s32 %r0, %r1, %r2, %r3;", [0xff_ffff, 2, 5], R(3)),
        ("div.u32 %r0, %r1, %r2;", [100, 7, 0], R(14)),
        ("div.s32 %r0, %r1, %r2;", [-100i32 as u32 as u64, 7, 0], R(-14i32 as u32)),
        ("div.s64 %rd0, %rd1, %rd2;", [-9i64 as u64, 2, 0], D(-4i64 as u64)),
        ("rem.s32 %r0, %r1, %r2;", [-100i32 as u32 as u64, 7, 0], R(-2i32 as u32)),
        ("rem.u64 %rd0, %rd1, %rd2;", [u64::MAX, 10, 0], D(5)),
        ("neg.s32 %r0, %r1;", [5, 0, 0], R(-5i32 as u32)),
        ("neg.s16 %h0, %h1;", [1, 0, 0], H(0xffff)),
        ("abs.s32 %r0, %r1;", [-5i32 as u32 as u64, 0, 0], R(5)),
        ("abs.s16 %h0, %h1;", [0xfffb, 0, 0], H(5)),
        ("abs.s64 %rd0, %rd1;", [-5i64 as u64, 0, 0], D(5)),
        ("min.s32 %r0, %r1, %r2;", [m1, 1, 0], R(u32::MAX)),
        ("min.u32 %r0, %r1, %r2;", [m1, 1, 0], R(1)),
        ("max.s64 %rd0, %rd1, %rd2;", [u64::MAX, 1, 0], D(1)),
        ("max.u16 %h0, %h1, %h2;", [0xffff, 1, 0], H(0xffff)),
        ("min.s16 %h0, %h1, %h2;", [0xffff, 1, 0], H(0xffff)),
        ("sad.u32 %r0, %r1, %r2, %r3;", [3, 10, 100], R(107)),
        ("sad.s32 %r0, %r1, %r2, %r3;", [m1, 10, 0], R(11)),
    ]);
}

#[test]
fn carry_chains() {
    let m1 = u32::MAX as u64;
    check(&[
        ("add.cc.u32 %r4, %r1, %r2; addc.u32 %r0, %r3, 0;", [m1, 1, 7], R(8)),
        ("add.cc.u32 %r4, %r1, %r2; addc.u32 %r0, %r3, 0;", [1, 1, 7], R(7)),
        ("add.cc.u32 %r4, %r1, 1; addc.cc.u32 %r5, %r2, 0; addc.u32 %r0, %r3, 0;", [m1, m1, 7], R(8)),
        ("sub.cc.u32 %r4, %r1, %r2; subc.u32 %r0, %r3, 0;", [0, 1, 7], R(6)),
        ("sub.cc.u32 %r4, %r1, %r2; subc.u32 %r0, %r3, 0;", [1, 1, 7], R(7)),
        ("add.cc.u64 %rd4, %rd1, %rd2; addc.u64 %rd0, %rd3, 0;", [u64::MAX, 1, 7], D(8)),
        ("mad.lo.cc.u32 %r4, %r1, %r2, %r3; madc.hi.u32 %r0, %r1, %r2, 0;", [m1, m1, m1], R(0xffff_ffff)),
        ("mad.hi.cc.u32 %r4, %r1, %r2, %r3; addc.u32 %r0, 0, 0;", [m1, m1, m1], R(1)),
        ("mad.hi.cc.s32 %r0, %r1, %r2, %r3;", [m1, 5, 7], R(6)),
        ("mad.hi.cc.s64 %rd0, %rd1, %rd2, %rd3;", [u64::MAX, 5, 7], D(6)),
        ("add.cc.u32 %r4, %r1, 1; madc.lo.u32 %r0, %r2, %r3, 5;", [m1, 3, 4], R(18)),
        // inactive lanes keep their carry
        (
            "mov.u32 %r4, %laneid; setp.eq.u32 %p1, %r4, 3; add.cc.u32 %r4, %r1, 1; @!%p1 add.cc.u32 %r4, %r2, 0; addc.u32 %r0, 0, 0;",
            [m1, 0, 0],
            R(1),
        ),
        (
            "mov.u32 %r4, %laneid; setp.eq.u32 %p1, %r4, 3; add.cc.u32 %r4, %r2, 0; @!%p1 add.cc.u32 %r4, %r1, 1; addc.u32 %r0, 0, 0;",
            [m1, 0, 0],
            R(0),
        ),
    ]);
}

#[test]
fn bits_and_shifts() {
    check(&[
        ("and.b32 %r0, %r1, %r2;", [0xff00, 0x0ff0, 0], R(0x0f00)),
        ("or.b64 %rd0, %rd1, %rd2;", [1 << 40, 1, 0], D((1 << 40) + 1)),
        ("xor.b16 %h0, %h1, %h2;", [0xff, 0x0f, 0], H(0xf0)),
        ("not.b32 %r0, %r1;", [0, 0, 0], R(u32::MAX)),
        ("cnot.b32 %r0, %r1;", [0, 0, 0], R(1)),
        ("cnot.b64 %rd0, %rd1;", [5, 0, 0], D(0)),
        ("shl.b32 %r0, %r1, %r2;", [1, 31, 0], R(1 << 31)),
        ("shl.b32 %r0, %r1, %r2;", [1, 32, 0], R(0)),
        ("shl.b64 %rd0, %rd1, %r2;", [1, 63, 0], D(1 << 63)),
        ("shl.b16 %h0, %h1, %r2;", [1, 16, 0], H(0)),
        ("shr.u32 %r0, %r1, %r2;", [0x8000_0000, 40, 0], R(0)),
        ("shr.s32 %r0, %r1, %r2;", [0x8000_0000, 40, 0], R(u32::MAX)),
        ("shr.s32 %r0, %r1, %r2;", [0x7000_0000, 99, 0], R(0)),
        ("shr.s64 %rd0, %rd1, %r2;", [1 << 63, 64, 0], D(u64::MAX)),
        ("shr.s16 %h0, %h1, %r2;", [0x8000, 3, 0], H(0xf000)),
        ("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", [0x8000_0001, 0x1, 33], R(0x3)),
        ("shf.l.clamp.b32 %r0, %r1, %r2, %r3;", [0x1234, 0x1, 40], R(0x1234)),
        ("shf.r.wrap.b32 %r0, %r1, %r2, %r3;", [0x10, 0x3, 4], R(0x3000_0001)),
        ("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", [0x10, 0x3, 99], R(3)),
        ("bfe.u32 %r0, %r1, 4, 8;", [0xabcd, 0, 0], R(0xbc)),
        ("bfe.s32 %r0, %r1, 4, 8;", [0xabcd, 0, 0], R(0xffff_ffbc)),
        ("bfe.s32 %r0, %r1, 28, 8;", [0x8000_0000, 0, 0], R(0xffff_fff8)),
        ("bfe.u32 %r0, %r1, 0, 0;", [0xabcd, 0, 0], R(0)),
        ("bfe.u64 %rd0, %rd1, 60, 200;", [u64::MAX, 0, 0], D(0xf)),
        ("bfe.s64 %rd0, %rd1, 70, 2;", [u64::MAX, 0, 0], D(u64::MAX)),
        ("bfe.s32 %r0, %r1, 4, 8;", [0x0765, 0, 0], R(0x76)),
        ("bfe.s32 %r0, %r1, 4, 8;", [0x0b30, 0, 0], R(0xffff_ffb3)),
        ("bfe.u64 %rd0, %rd1, 64, 8;", [u64::MAX, 0, 0], D(0)),
        ("bfi.b32 %r0, %r1, %r2, 40, 4;", [0xf, 5, 0], R(5)),
        ("bfi.b64 %rd0, %rd1, %rd2, 4, 200;", [1, 0xf, 0], D(0x1f)),
        ("bfi.b32 %r0, %r1, %r2, 8, 4;", [0xa, u32::MAX as u64, 0], R(0xffff_faff)),
        ("bfi.b32 %r0, %r1, %r2, 30, 8;", [3, 0, 0], R(0xc000_0000)),
        ("bfi.b64 %rd0, %rd1, %rd2, 32, 32;", [7, 5, 0], D((7 << 32) + 5)),
        ("bfind.u32 %r0, %r1;", [0x10, 0, 0], R(4)),
        ("bfind.u32 %r0, %r1;", [0, 0, 0], R(u32::MAX)),
        ("bfind.s32 %r0, %r1;", [u32::MAX as u64, 0, 0], R(u32::MAX)),
        ("bfind.s32 %r0, %r1;", [0xffff_fff0, 0, 0], R(3)),
        ("bfind.shiftamt.u32 %r0, %r1;", [0x10, 0, 0], R(27)),
        ("bfind.u64 %r0, %rd1;", [1 << 40, 0, 0], R(40)),
        ("bfind.s64 %r0, %rd1;", [1 << 40, 0, 0], R(40)),
        ("bfind.s64 %r0, %rd1;", [-16i64 as u64, 0, 0], R(3)),
        ("brev.b32 %r0, %r1;", [1, 0, 0], R(1 << 31)),
        ("brev.b64 %rd0, %rd1;", [1, 0, 0], D(1 << 63)),
        ("clz.b32 %r0, %r1;", [0, 0, 0], R(32)),
        ("clz.b64 %r0, %rd1;", [1, 0, 0], R(63)),
        ("popc.b32 %r0, %r1;", [0xf0f0, 0, 0], R(8)),
        ("mov.b32 %r4, 0xff; mov.b64 %rd4, 0; popc.b32 %r0, %r4;", [0; 3], R(8)),
        ("popc.b64 %r0, %rd1;", [u64::MAX, 0, 0], R(64)),
        ("prmt.b32 %r0, %r1, %r2, 0x5410;", [0x3322_1100, 0x7766_5544, 0], R(0x5544_1100)),
        ("prmt.b32 %r0, %r1, %r2, 0x000f;", [0, 0x8000_0000, 0], R(0xff)),
        ("prmt.b32.f4e %r0, %r1, %r2, 1;", [0x0302_0100, 0x0706_0504, 0], R(0x0403_0201)),
        ("prmt.b32.b4e %r0, %r1, %r2, 1;", [0x0302_0100, 0x0706_0504, 0], R(0x0607_0001)),
        ("prmt.b32.rc8 %r0, %r1, %r2, 2;", [0x0302_0100, 0, 0], R(0x0202_0202)),
        ("prmt.b32.ecl %r0, %r1, %r2, 2;", [0x0302_0100, 0, 0], R(0x0302_0202)),
        ("prmt.b32.ecr %r0, %r1, %r2, 1;", [0x0302_0100, 0, 0], R(0x0101_0100)),
        ("prmt.b32.rc16 %r0, %r1, %r2, 1;", [0x0302_0100, 0, 0], R(0x0302_0302)),
        ("prmt.b32.rc16 %r0, %r1, %r2, 2;", [0x0302_0100, 0, 0], R(0x0100_0100)),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", [0xff00, 0x0ff0, 0x00ff], R(0xff00 ^ 0x0ff0 ^ 0x00ff)),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0xea;", [0xff00, 0x0ff0, 0x00ff], R((0xff00 & 0x0ff0) | 0xff)),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0xf0;", [0xff00, 0x0ff0, 0x00ff], R(0xff00)),
    ]);
}

#[test]
fn dot_products() {
    check(&[
        ("dp4a.u32.u32 %r0, %r1, %r2, %r3;", [0xff01_0203, 0xff01_0101, 10], R(255 * 255 + 1 + 2 + 3 + 10)),
        ("dp4a.s32.s32 %r0, %r1, %r2, %r3;", [0x8001_0203, 0x8001_0101, 10], R(128 * 128 + 1 + 2 + 3 + 10)),
        ("dp4a.u32.s32 %r0, %r1, %r2, %r3;", [0xff00_0000, 0xff00_0000, 0], R(-255i32 as u32)),
        ("dp4a.s32.u32 %r0, %r1, %r2, %r3;", [0xff00_0000, 0xff00_0000, 0], R(-255i32 as u32)),
        ("dp2a.lo.s32.s32 %r0, %r1, %r2, %r3;", [0xffff_0002, 0x0909_0305, 1], R((-3i32 + 10 + 1) as u32)),
        ("dp2a.hi.u32.u32 %r0, %r1, %r2, %r3;", [0xffff_0002, 0x0305_0909, 1], R(65535 * 3 + 2 * 5 + 1)),
        ("dp2a.lo.s32.s32 %r0, %r1, %r2, %r3;", [0xffff_0002, 0xfeff, 1], R(1)),
        ("dp2a.lo.s32.u32 %r0, %r1, %r2, %r3;", [0xffff_0002, 0xfeff, 1], R(2 * 255 - 254 + 1)),
        ("dp2a.lo.u32.s32 %r0, %r1, %r2, %r3;", [0xffff_0002, 0xfeff, 1], R((-2i32 - 65535 * 2 + 1) as u32)),
        ("dp2a.lo.u32.u32 %r0, %r1, %r2, %r3;", [0xffff_0002, 0xfeff, 1], R(2 * 255 + 65535 * 254 + 1)),
    ]);
}

#[test]
fn moves_selections_and_predicates() {
    check(&[
        ("mov.u32 %r0, 0x1234;", [0; 3], R(0x1234)),
        ("mov.b64 %rd0, {%r1, %r2};", [1, 2, 0], D((2 << 32) + 1)),
        ("mov.b64 {%r4, %r0}, %rd1;", [7 << 32, 0, 0], R(7)),
        ("mov.b64 %rd0, {%r1, %r2};", [0x8765_4321, 0x1234_5678, 0], D(0x1234_5678_8765_4321)),
        ("mov.b64 {%r0, %r4}, %rd1;", [0x1234_5678_8765_4321, 0, 0], R(0x8765_4321)),
        ("mov.b32 %r0, {%h1, %h2};", [0x1111, 0x2222, 0], R(0x2222_1111)),
        ("mov.b32 {_, %h0}, %r1;", [0xabcd_0000, 0, 0], H(0xabcd)),
        ("mov.b64 %rd0, {%h1, %h2, %h3, %h1};", [1, 2, 3], D(0x0001_0003_0002_0001)),
        ("mov.f32 %r0, 0f3F800000;", [0; 3], rf(1.0)),
        ("mov.f64 %rd0, 0d4000000000000000;", [0; 3], df(2.0)),
        ("mov.u32 %r0, WARP_SZ;", [0; 3], R(32)),
        ("mov.u32 %r0, %laneid;", [0; 3], R(3)),
        ("mov.u32 %r0, %lanemask_lt;", [0; 3], R(7)),
        ("mov.u32 %r0, %lanemask_le;", [0; 3], R(15)),
        ("mov.u32 %r0, %lanemask_gt;", [0; 3], R(!15)),
        ("mov.u32 %r0, %lanemask_ge;", [0; 3], R(!7)),
        ("mov.u32 %r0, %lanemask_eq;", [0; 3], R(8)),
        ("mov.u32 %r0, %nctaid.y;", [0; 3], R(1)),
        ("setp.lt.s32 %p1, %r1, %r2; selp.b32 %r0, 10, 20, %p1;", [u32::MAX as u64, 0, 0], R(10)),
        ("setp.lt.u32 %p1, %r1, %r2; selp.b64 %rd0, 10, 20, %p1;", [u32::MAX as u64, 0, 0], D(20)),
        ("setp.eq.s32 %p0|%p1, %r1, %r2;", [1, 1, 0], P(true)),
        ("setp.eq.s32 %p1|%p0, %r1, %r2;", [1, 1, 0], P(false)),
        ("setp.ne.s32 %p1, %r1, %r1; setp.eq.and.s32 %p0, %r1, %r1, !%p1;", [1, 1, 0], P(true)),
        ("setp.ne.s32 %p1, %r1, %r1; setp.eq.and.s32 %p2|%p0, %r1, %r2, %p1;", [1, 2, 0], P(false)),
        ("setp.hi.u32 %p0, %r1, %r2;", [u32::MAX as u64, 1, 0], P(true)),
        ("setp.ge.s64 %p0, %rd1, %rd2;", [u64::MAX, 0, 0], P(false)),
        ("setp.gt.u16 %p0, %h1, %h2;", [0xffff, 0, 0], P(true)),
        ("setp.gt.s16 %p0, %h1, %h2;", [0xffff, 0, 0], P(false)),
        ("setp.eq.f32 %p0, %r1, %r1;", [NAN, 0, 0], P(false)),
        ("setp.ne.f32 %p0, %r1, %r1;", [NAN, 0, 0], P(false)),
        ("setp.neu.f32 %p0, %r1, %r1;", [NAN, 0, 0], P(true)),
        ("setp.ltu.f32 %p0, %r1, %r2;", [NAN, 0, 0], P(true)),
        ("setp.num.f32 %p0, %r1, %r2;", [NAN, 0, 0], P(false)),
        ("setp.nan.f64 %p0, %rd1, %rd2;", [d(f64::NAN), 0, 0], P(true)),
        ("setp.gt.ftz.f32 %p0, %r1, %r2;", [SUB, 0, 0], P(false)),
        ("setp.gt.f32 %p0, %r1, %r2;", [SUB, 0, 0], P(true)),
        ("setp.lt.f16 %p0, %h1, %h2;", [0x3c00, 0x4000, 0], P(true)),
        ("set.lt.u32.s32 %r0, %r1, %r2;", [1, 2, 0], R(u32::MAX)),
        ("set.lt.u32.s32 %r0, %r1, %r2;", [2, 1, 0], R(0)),
        ("set.eq.f16.f16 %h0, %h1, %h2;", [0, 0x8000, 0], H(0x3c00)),
        ("set.lt.f16.f16 %h0, %h1, %h2;", [0x3c00, 0x3c00, 0], H(0)),
        ("set.gtu.u16.f16 %h0, %h1, %h2;", [0x7e00, 0x3c00, 0], H(0xffff)),
        ("set.gt.s16.f16 %h0, %h1, %h2;", [0x7e00, 0x3c00, 0], H(0)),
        ("set.ge.f16.s32 %h0, %r1, %r2;", [5, 5, 0], H(0x3c00)),
        ("set.lt.f16x2.f16x2 %r0, %r1, %r2;", [0x4000_3c00, 0x3c00_4000, 0], R(0x3c00)),
        ("set.gt.f16x2.f16x2 %r0, %r1, %r2;", [0x4000_3c00, 0x3c00_4000, 0], R(0x3c00_0000)),
        ("set.eq.u32.f16x2 %r0, %r1, %r2;", [0x8000_3c00, 0x0000_3c00, 0], R(u32::MAX)),
        ("set.equ.s32.f16x2 %r0, %r1, %r2;", [0x7e00_3c00, 0x3c00_4000, 0], R(0xffff_0000)),
        ("set.ne.f16x2.f16x2 %r0, %r1, %r2;", [0x0000_0001, 0, 0], R(0x3c00)),
        ("set.ne.ftz.f16x2.f16x2 %r0, %r1, %r2;", [0x0001_0001, 0, 0], R(0)),
        (
            "setp.ne.u32 %p1, %r1, %r1; set.eq.xor.f16x2.f16x2 %r0, %r1, %r2, !%p1;",
            [0x4000_3c00, 0x4000_4000, 0],
            R(0x3c00),
        ),
        (
            "setp.eq.u32 %p1, 0, 0; set.eq.or.u32.f16x2 %r0, %r1, %r2, !%p1;",
            [0x4000_3c00, 0x4000_4000, 0],
            R(0xffff_0000),
        ),
        (
            "setp.eq.u32 %p1, %r3, 0; set.num.and.s32.f16x2 %r0, %r1, %r2, %p1;",
            [0x7e00_3c00, 0x4000_4000, 0],
            R(0xffff),
        ),
        ("mov.b32 %r0, {%h1, %h2}; set.nan.f16x2.f16x2 %r0, %r0, %r0;", [0x7e00, 0xfe00, 0], R(0x3c00_3c00)),
        ("mov.u32 %r4, %laneid; setp.ne.u32 %p1, %r4, 3; @%p1 set.eq.u32.f16x2 %r0, %r1, %r1;", [0; 3], R(0)),
        (
            "mov.u32 %r4, %laneid; setp.ne.u32 %p1, %r4, 3; @%p1 setp.eq.f16x2 %p2|%p0, %r1, %r1;",
            [0; 3],
            P(false),
        ),
        ("setp.lt.f16x2 %p0|%p1, %r1, %r2;", [0x4000_3c00, 0x3c00_4000, 0], P(true)),
        ("setp.lt.f16x2 _|%p0, %r1, %r2;", [0x3c00_4000, 0x4000_3c00, 0], P(true)),
        ("setp.lt.f16x2 %p0|_, %r1, %r2;", [0x3c00_4000, 0x4000_3c00, 0], P(false)),
        // q is the comparison of the upper halves, and not p's complement; the third predicate is read before p is written.
        (
            "setp.eq.u32 %p1, 0, 0; setp.lt.and.f16x2 %p1|%p0, %r1, %r2, %p1;",
            [0x3c00_4000, 0x4000_3c00, 0],
            P(true),
        ),
        (
            "setp.ne.u32 %p1, 0, 0; setp.lt.xor.f16x2 %p0|%p2, %r1, %r2, !%p1;",
            [0x3c00_4000, 0x4000_3c00, 0],
            P(true),
        ),
        ("setp.ne.ftz.f16x2 %p1|%p0, %r1, %r2;", [0x0001_0000, 0x8002_0000, 0], P(false)),
        ("setp.ne.f16x2 %p1|%p0, %r1, %r2;", [0x0001_0000, 0x8002_0000, 0], P(true)),
        ("setp.ne.f16 %p0, %h1, %h2;", [1, 0, 0], P(true)),
        ("setp.lt.f16x2 %p1|%p0, %r1, %r2;", [0x4000_3c00, 0x3c00_4000, 0], P(false)),
        ("setp.ne.u32 %p1, %r1, %r1; setp.eq.and.f16x2 %p0|%p2, %r1, %r1, %p1;", [0, 0, 0], P(false)),
        ("setp.ne.ftz.f16 %p0, %h1, %h2;", [1, 0, 0], P(false)),
        ("set.gt.f32.s32 %r0, %r1, %r2;", [3, 2, 0], rf(1.0)),
        ("slct.b32.s32 %r0, %r1, %r2, %r3;", [1, 2, u32::MAX as u64], R(2)),
        ("slct.f32.f32 %r0, %r1, %r2, %r3;", [f(1.0), f(2.0), NAN], rf(2.0)),
        ("slct.f32.f32 %r0, %r1, %r2, %r3;", [f(1.0), f(2.0), f(-0.0)], rf(1.0)),
        ("setp.eq.u32 %p1, 0, 0; not.pred %p2, %p1; or.pred %p0, %p1, %p2;", [0; 3], P(true)),
        ("setp.eq.u32 %p1, 0, 0; mov.pred %p2, %p1; xor.pred %p0, %p1, %p2;", [0; 3], P(false)),
        ("setp.eq.u32 %p1, 0, 1; @%p1 mov.u32 %r0, 7; @!%p1 add.u32 %r0, %r0, 1;", [0; 3], R(1)),
    ]);
}

#[test]
fn f32_arithmetic() {
    let third = 1.0f32 / 3.0;
    check(&[
        ("add.f32 %r0, %r1, %r2;", [f(1.5), f(2.25), 0], rf(3.75)),
        ("add.rn.f32 %r0, %r1, %r2;", [NAN, f(1.0), 0], NAN_OUT),
        ("add.f32 %r0, %r1, %r2;", [INF, INF | 1 << 31, 0], NAN_OUT),
        ("add.rp.f32 %r0, %r1, %r2;", [f(1.0), f(1e-20), 0], rf(1.0f32.next_up())),
        ("add.rz.f32 %r0, %r1, %r2;", [f(1.0), f(-1e-20), 0], rf(1.0f32.next_down())),
        ("add.ftz.f32 %r0, %r1, %r2;", [SUB, SUB, 0], R(0)),
        ("add.f32 %r0, %r1, %r2;", [SUB, SUB, 0], R(0x2000)),
        ("add.sat.f32 %r0, %r1, %r2;", [f(1.0), f(1.0), 0], rf(1.0)),
        ("add.sat.f32 %r0, %r1, %r2;", [NAN, f(1.0), 0], R(0)),
        ("add.sat.f32 %r0, %r1, %r2;", [f(0.25), f(0.25), 0], rf(0.5)),
        ("add.sat.f32 %r0, %r1, %r2;", [f(-0.0), f(-0.0), 0], R(0)),
        ("sub.sat.f32 %r0, %r1, %r2;", [f(1.0), f(0.25), 0], rf(0.75)),
        ("sub.rz.f32 %r0, %r1, %r2;", [f(1.0), f(1e-20), 0], rf(1f32.next_down())),
        ("add.rp.f32 %r0, %r1, %r2;", [INF, f(1.0), 0], R(INF as u32)),
        ("add.rz.f32 %r0, %r1, %r2;", [INF, f(1.0), 0], R(INF as u32)),
        ("add.rp.f32 %r0, %r1, %r2;", [f(1.0), f(-1.0), 0], R(0)),
        ("add.rm.f32 %r0, %r1, %r2;", [f(1.0), f(-1.0), 0], rf(-0.0)),
        ("add.rz.f32 %r0, %r1, %r2;", [f(f32::MAX), f(f32::MAX), 0], rf(f32::MAX)),
        ("sub.f32 %r0, %r1, %r2;", [f(1.0), f(3.0), 0], rf(-2.0)),
        ("mul.f32 %r0, %r1, %r2;", [f(3.0), f(-2.0), 0], rf(-6.0)),
        (
            "mul.rm.f32 %r0, %r1, %r2;",
            [f(0.1), f(0.1), 0],
            rf((0.1f32 * 0.1).min((0.1f32 * 0.1).next_down())),
        ),
        ("mul.ftz.f32 %r0, %r1, %r2;", [f(1e-30), f(-1e-10), 0], R(1 << 31)),
        ("fma.rn.f32 %r0, %r1, %r2, %r3;", [f(0.1), f(10.0), f(-1.0)], rf(0.1f32.mul_add(10.0, -1.0))),
        ("fma.rp.f32 %r0, %r1, %r2, %r3;", [f(1.0), f(1.0), f(1e-20)], rf(1f32.next_up())),
        ("fma.rz.f32 %r0, %r1, %r2, %r3;", [f(1.0), f(1.0), f(-1e-20)], rf(1f32.next_down())),
        ("fma.rn.ftz.sat.f32 %r0, %r1, %r2, %r3;", [f(2.0), f(2.0), f(2.0)], rf(1.0)),
        ("fma.rn.ftz.f32 %r0, %r1, %r2, %r3;", [SUB, f(1.0), SUB], R(0)),
        ("fma.rn.sat.f32 %r0, %r1, %r2, %r3;", [f(2.0), f(2.0), f(2.0)], rf(1.0)),
        ("mad.rn.f32 %r0, %r1, %r2, %r3;", [f(2.0), f(3.0), f(4.0)], rf(10.0)),
        ("div.rn.f32 %r0, %r1, %r2;", [f(1.0), f(3.0), 0], rf(third)),
        ("div.rz.f32 %r0, %r1, %r2;", [f(1.0), f(3.0), 0], rf(third.next_down())),
        ("div.approx.f32 %r0, %r1, %r2;", [f(1.0), 0x7f00_0000, 0], R(0)),
        ("div.full.f32 %r0, %r1, %r2;", [f(6.0), f(2.0), 0], rf(3.0)),
        ("div.approx.f32 %r0, %r1, %r2;", [f(6.0), f(2.0), 0], rf(3.0)),
        ("div.approx.f32 %r0, %r1, %r2;", [f(2.0), 0x7e80_0000, 0], R(0x0100_0000)),
        ("div.approx.f32 %r0, %r1, %r2;", [f(-1.0), 0x7f00_0000, 0], rf(-0.0)),
        ("div.approx.f32 %r0, %r1, %r2;", [f(-1.0), 0xff00_0000, 0], R(0)),
        ("div.approx.f32 %r0, %r1, %r2;", [INF, 0x7f00_0000, 0], NAN_OUT),
        ("div.approx.f32 %r0, %r1, %r2;", [INF, f(2.0), 0], R(INF as u32)),
        ("div.approx.f32 %r0, %r1, %r2;", [NAN, 0x7f00_0000, 0], NAN_OUT),
        ("div.approx.f32 %r0, %r1, %r2;", [INF, INF, 0], NAN_OUT),
        ("div.rp.f32 %r0, %r1, %r2;", [f(1.0), INF, 0], R(0)),
        ("div.rp.f32 %r0, %r1, %r2;", [0, f(3.0), 0], R(0)),
        ("div.rz.f32 %r0, %r1, %r2;", [f(1.0), 0, 0], R(INF as u32)),
        ("div.rn.f32 %r0, %r1, %r2;", [f(1.0), 0, 0], R(INF as u32)),
        ("neg.f32 %r0, %r1;", [f(1.0), 0, 0], rf(-1.0)),
        ("neg.ftz.f32 %r0, %r1;", [SUB, 0, 0], R(1 << 31)),
        ("abs.f32 %r0, %r1;", [f(-1.0), 0, 0], rf(1.0)),
        ("min.f32 %r0, %r1, %r2;", [NAN, f(2.0), 0], rf(2.0)),
        ("min.f32 %r0, %r1, %r2;", [f(2.0), NAN, 0], rf(2.0)),
        ("min.f32 %r0, %r1, %r2;", [f(1.0), f(2.0), 0], rf(1.0)),
        ("min.f32 %r0, %r1, %r2;", [f(2.0), f(1.0), 0], rf(1.0)),
        ("min.f32 %r0, %r1, %r2;", [f(-2.0), f(-3.0), 0], rf(-3.0)),
        ("min.f32 %r0, %r1, %r2;", [f(-0.0), f(0.0), 0], rf(-0.0)),
        ("max.f32 %r0, %r1, %r2;", [f(2.0), NAN, 0], rf(2.0)),
        ("max.f32 %r0, %r1, %r2;", [NAN, f(2.0), 0], rf(2.0)),
        ("max.f32 %r0, %r1, %r2;", [f(1.0), f(2.0), 0], rf(2.0)),
        ("max.f32 %r0, %r1, %r2;", [f(2.0), f(1.0), 0], rf(2.0)),
        ("max.f32 %r0, %r1, %r2;", [f(-3.0), f(-2.0), 0], rf(-2.0)),
        ("max.f32 %r0, %r1, %r2;", [f(-2.0), f(-3.0), 0], rf(-2.0)),
        ("max.f32 %r0, %r1, %r2;", [f(0.0), f(-0.0), 0], rf(0.0)),
        ("max.f32 %r0, %r1, %r2;", [f(-0.0), f(0.0), 0], rf(0.0)),
        ("min.f32 %r0, %r1, %r2;", [f(0.0), f(-0.0), 0], rf(-0.0)),
        ("max.f32 %r0, %r1, %r2;", [NAN, NAN, 0], NAN_OUT),
        ("sqrt.rn.f32 %r0, %r1;", [f(2.0), 0, 0], rf(2f32.sqrt())),
        ("sqrt.rn.f32 %r0, %r1;", [f(-1.0), 0, 0], NAN_OUT),
        ("sqrt.rp.f32 %r0, %r1;", [f(-1.0), 0, 0], NAN_OUT),
        ("sqrt.rp.f32 %r0, %r1;", [NAN, 0, 0], NAN_OUT),
        ("sqrt.rp.f32 %r0, %r1;", [f(-0.0), 0, 0], rf(-0.0)),
        ("sqrt.rp.f32 %r0, %r1;", [INF, 0, 0], R(INF as u32)),
        ("rcp.rn.f32 %r0, %r1;", [f(3.0), 0, 0], rf(third)),
        ("rcp.rp.f32 %r0, %r1;", [f(3.0), 0, 0], rf(third)),
        ("rcp.approx.ftz.f32 %r0, %r1;", [SUB, 0, 0], R(INF as u32)),
        ("rsqrt.approx.f32 %r0, %r1;", [f(4.0), 0, 0], rf(0.5)),
        ("rsqrt.approx.f32 %r0, %r1;", [f(-0.0), 0, 0], rf(f32::NEG_INFINITY)),
        ("sqrt.approx.ftz.f32 %r0, %r1;", [f(9.0), 0, 0], rf(3.0)),
        ("ex2.approx.f32 %r0, %r1;", [f(-3.0), 0, 0], rf(0.125)),
        ("ex2.approx.ftz.f32 %r0, %r1;", [f(f32::NEG_INFINITY), 0, 0], R(0)),
        ("ex2.approx.ftz.f32 %r0, %r1;", [f(-130.0), 0, 0], R(0)),
        ("lg2.approx.f32 %r0, %r1;", [f(8.0), 0, 0], rf(3.0)),
        ("lg2.approx.ftz.f32 %r0, %r1;", [SUB, 0, 0], rf(f32::NEG_INFINITY)),
        ("sin.approx.f32 %r0, %r1;", [f(0.0), 0, 0], rf(0.0)),
        ("cos.approx.f32 %r0, %r1;", [f(0.0), 0, 0], rf(1.0)),
        ("sin.approx.f32 %r0, %r1;", [INF, 0, 0], NAN_OUT),
        ("testp.finite.f32 %p0, %r1;", [INF, 0, 0], P(false)),
        ("testp.subnormal.f32 %p0, %r1;", [SUB, 0, 0], P(true)),
        ("testp.subnormal.f32 %p0, %r1;", [0, 0, 0], P(false)),
        ("testp.subnormal.f32 %p0, %r1;", [f(1.0), 0, 0], P(false)),
        ("testp.subnormal.f32 %p0, %r1;", [f(f32::MIN_POSITIVE), 0, 0], P(false)),
        ("testp.subnormal.f64 %p0, %rd1;", [d(1e-40), 0, 0], P(false)),
        ("testp.normal.f32 %p0, %r1;", [f(f32::MIN_POSITIVE), 0, 0], P(true)),
        ("testp.normal.f32 %p0, %r1;", [SUB, 0, 0], P(false)),
        ("testp.normal.f32 %p0, %r1;", [INF, 0, 0], P(false)),
        ("testp.infinite.f32 %p0, %r1;", [INF, 0, 0], P(true)),
        ("testp.infinite.f32 %p0, %r1;", [f(1.0), 0, 0], P(false)),
        ("testp.number.f32 %p0, %r1;", [NAN, 0, 0], P(false)),
        ("testp.number.f32 %p0, %r1;", [f(1.0), 0, 0], P(true)),
        ("testp.notanumber.f64 %p0, %rd1;", [d(f64::NAN), 0, 0], P(true)),
        ("copysign.f32 %r0, %r1, %r2;", [f(-1.0), f(3.0), 0], rf(-3.0)),
        ("copysign.f64 %rd0, %rd1, %rd2;", [d(1.0), d(-3.0), 0], df(3.0)),
        ("copysign.f32 %r0, %r1, %r2;", [f(1.0), f(-3.0), 0], rf(3.0)),
        ("copysign.f64 %rd0, %rd1, %rd2;", [d(-1.0), d(3.0), 0], df(-3.0)),
    ]);
}

/// Sums, products, quotients and roots of whole numbers, against the exact value in integers: each direction gives
/// the neighbour on its side, the nearest one no farther than the others.
#[test]
fn every_direction_of_rounding_is_exact() {
    // An exact value as a ratio of integers, which is compared with result · scale.
    struct Exact {
        op: &'static str,
        value: fn([i128; 3]) -> i128,
        result: fn(i128, [i128; 3]) -> i128,
        scale: f64,
    }
    let exact = |op, value, result, scale| Exact { op, value, result, scale };
    let narrow = [
        exact("add", |[a, b, _]| a + b, |r, _| r, 1.0),
        exact("mul", |[a, b, _]| a * b, |r, _| r, 1.0),
        exact("fma", |[a, b, c]| a * b + c, |r, _| r, 1.0),
        exact("div", |[a, ..]| a << 40, |r, [_, b, _]| r * b, (1u64 << 40) as f64),
        exact("sqrt", |[a, ..]| a << 40, |r, _| r * r, (1u64 << 20) as f64),
    ];
    let wide = [
        exact("div", |[a, ..]| a << 60, |r, [_, b, _]| r * b, (1u64 << 60) as f64),
        exact("sqrt", |[a, ..]| a << 56, |r, _| r * r, (1u64 << 28) as f64),
    ];
    let mut state = 1u64;
    let mut draw = |bits: u32| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let value = (state >> (64 - bits)) as i128 | 1 << (bits - 1) | 1;
        if state & 1 << 7 != 0 { -value } else { value }
    };
    for round in 0..6 {
        for is_wide in [false, true] {
            for case in &narrow {
                let bits = if is_wide { 53 } else { 24 };
                let case = wide.iter().find(|w| is_wide && w.op == case.op).unwrap_or(case);
                let mut x = [draw(bits), draw(bits - 11 - round), draw(bits - 3)];
                if case.op == "sqrt" {
                    x[0] = x[0].abs();
                }
                let operands = if case.op == "sqrt" { 1 } else { 2 + (case.op == "fma") as usize };
                check_directions(case.op, is_wide, x, operands, |got| {
                    let scaled = got * case.scale;
                    assert_eq!(scaled, scaled.trunc(), "the scale is large enough");
                    // A quotient's sign is on the divisor too.
                    let (result, value) = ((case.result)(scaled as i128, x), (case.value)(x));
                    if case.op == "div" && x[1] < 0 { value - result } else { result - value }
                });
            }
        }
    }
}

/// `off` tells by how much a result is above the exact value, in any unit.
fn check_directions(op: &str, wide: bool, x: [i128; 3], operands: usize, off: impl Fn(f64) -> i128) {
    let register = if wide { "%rd" } else { "%r" };
    let ty = if wide { "f64" } else { "f32" };
    let list: String = (1..=operands).map(|n| format!(", {register}{n}")).collect();
    let inputs = x.map(|x| if wide { d(x as f64) } else { f(x as f32) });
    for mode in ["rn", "rz", "rm", "rp"] {
        let code = format!("{op}.{mode}.{ty} {register}0{list};");
        let (got, below, above) = match run(&code, inputs, 32, if wide { D(0) } else { R(0) }) {
            D(bits) => {
                (f64::from_bits(bits), f64::from_bits(bits).next_down(), f64::from_bits(bits).next_up())
            }
            R(bits) => {
                let x = f32::from_bits(bits);
                (x as f64, x.next_down() as f64, x.next_up() as f64)
            }
            _ => unreachable!(),
        };
        let (got_off, up_ok, down_ok) = (off(got), off(below) < 0, off(above) > 0);
        let down = mode == "rm" || mode == "rz" && got > 0.0;
        let right = match mode {
            "rn" => got_off.abs() <= off(below).abs() && got_off.abs() <= off(above).abs(),
            _ if down => got_off <= 0 && down_ok,
            _ => got_off >= 0 && up_ok,
        };
        assert!(right, "{code} {x:?}: {got}, off by {got_off}");
    }
}

/// The approximations against f64, over many arguments: the ISA allows 2 ulp and more.
#[test]
fn approximations_stay_within_the_isa() {
    type Exact = fn(f64) -> f64;
    let functions: [(&str, Exact); 6] = [
        ("ex2.approx.ftz.f32", f64::exp2),
        ("lg2.approx.ftz.f32", f64::log2),
        ("rsqrt.approx.ftz.f32", |x| 1.0 / x.sqrt()),
        ("rcp.approx.ftz.f32", |x| 1.0 / x),
        ("sin.approx.ftz.f32", f64::sin),
        ("cos.approx.ftz.f32", f64::cos),
    ];
    for (op, exact) in functions {
        for x in [0.37f32, 1.0, 1.5, 2.9, 0.011] {
            let R(bits) = run(&format!("{op} %r0, %r1;"), [f(x), 0, 0], 32, R(0)) else { unreachable!() };
            let (got, want) = (f32::from_bits(bits) as f64, exact(x as f64));
            assert!((got - want).abs() <= want.abs() * 2f64.powi(-22), "{op} {x}: {got} {want}");
        }
    }
}

#[test]
fn f64_and_f16_arithmetic() {
    check(&[
        ("add.f64 %rd0, %rd1, %rd2;", [d(1.0), d(1e-20), 0], df(1.0)),
        ("add.rp.f64 %rd0, %rd1, %rd2;", [d(1.0), d(1e-20), 0], df(1f64.next_up())),
        ("sub.f64 %rd0, %rd1, %rd2;", [d(1.0), d(3.0), 0], df(-2.0)),
        ("mul.rz.f64 %rd0, %rd1, %rd2;", [d(f64::MAX), d(2.0), 0], df(f64::MAX)),
        ("fma.rn.f64 %rd0, %rd1, %rd2, %rd3;", [d(0.1), d(10.0), d(-1.0)], df(0.1f64.mul_add(10.0, -1.0))),
        ("fma.rm.f64 %rd0, %rd1, %rd2, %rd3;", [d(1.0), d(1.0), d(-1e-30)], df(1f64.next_down())),
        ("fma.rp.f64 %rd0, %rd1, %rd2, %rd3;", [d(1e-30), d(1.0), d(1.0)], df(1f64.next_up())),
        ("fma.rm.f64 %rd0, %rd1, %rd2, %rd3;", [d(1e-30), d(1.0), d(1.0)], df(1.0)),
        ("div.rn.f64 %rd0, %rd1, %rd2;", [d(1.0), d(3.0), 0], df(1.0 / 3.0)),
        ("sqrt.rn.f64 %rd0, %rd1;", [d(2.0), 0, 0], df(2f64.sqrt())),
        ("rcp.rn.f64 %rd0, %rd1;", [d(4.0), 0, 0], df(0.25)),
        ("rsqrt.approx.f64 %rd0, %rd1;", [d(4.0), 0, 0], df(0.5)),
        ("min.f64 %rd0, %rd1, %rd2;", [d(f64::NAN), d(1.0), 0], df(1.0)),
        ("min.f64 %rd0, %rd1, %rd2;", [d(2.0), d(f64::NAN), 0], df(2.0)),
        ("min.f64 %rd0, %rd1, %rd2;", [d(2.0), d(3.0), 0], df(2.0)),
        ("min.f64 %rd0, %rd1, %rd2;", [d(3.0), d(2.0), 0], df(2.0)),
        ("min.f64 %rd0, %rd1, %rd2;", [d(-3.0), d(-2.0), 0], df(-3.0)),
        ("min.f64 %rd0, %rd1, %rd2;", [d(0.0), d(-0.0), 0], df(-0.0)),
        ("min.f64 %rd0, %rd1, %rd2;", [d(-0.0), d(0.0), 0], df(-0.0)),
        ("max.f64 %rd0, %rd1, %rd2;", [d(f64::NAN), d(2.0), 0], df(2.0)),
        ("max.f64 %rd0, %rd1, %rd2;", [d(2.0), d(f64::NAN), 0], df(2.0)),
        ("max.f64 %rd0, %rd1, %rd2;", [d(2.0), d(3.0), 0], df(3.0)),
        ("max.f64 %rd0, %rd1, %rd2;", [d(3.0), d(2.0), 0], df(3.0)),
        ("max.f64 %rd0, %rd1, %rd2;", [d(0.0), d(-0.0), 0], df(0.0)),
        ("max.f64 %rd0, %rd1, %rd2;", [d(-0.0), d(0.0), 0], df(0.0)),
        ("add.rz.f64 %rd0, %rd1, %rd2;", [d(f64::INFINITY), d(1.0), 0], df(f64::INFINITY)),
        ("add.rz.f64 %rd0, %rd1, %rd2;", [d(f64::MAX), d(f64::MAX), 0], df(f64::MAX)),
        ("add.rm.f64 %rd0, %rd1, %rd2;", [d(1.0), d(-1.0), 0], df(-0.0)),
        ("mul.rz.f64 %rd0, %rd1, %rd2;", [d(f64::INFINITY), d(2.0), 0], df(f64::INFINITY)),
        ("fma.rz.f64 %rd0, %rd1, %rd2, %rd3;", [d(f64::INFINITY), d(2.0), d(1.0)], df(f64::INFINITY)),
        ("fma.rz.f64 %rd0, %rd1, %rd2, %rd3;", [d(2.0), d(2.0), d(f64::INFINITY)], df(f64::INFINITY)),
        ("fma.rz.f64 %rd0, %rd1, %rd2, %rd3;", [d(f64::MAX), d(2.0), d(1.0)], df(f64::MAX)),
        ("div.rp.f64 %rd0, %rd1, %rd2;", [d(1.0), d(f64::INFINITY), 0], df(0.0)),
        ("div.rz.f64 %rd0, %rd1, %rd2;", [d(1.0), d(0.0), 0], df(f64::INFINITY)),
        ("sqrt.rp.f64 %rd0, %rd1;", [d(0.0), 0, 0], df(0.0)),
        ("sqrt.rp.f64 %rd0, %rd1;", [d(f64::INFINITY), 0, 0], df(f64::INFINITY)),
        ("neg.f64 %rd0, %rd1;", [d(1.0), 0, 0], df(-1.0)),
        ("abs.f64 %rd0, %rd1;", [d(-1.0), 0, 0], df(1.0)),
        ("add.f16 %h0, %h1, %h2;", [0x3c00, 0x4000, 0], H(0x4200)),
        ("mul.rn.f16 %h0, %h1, %h2;", [0x7bff, 0x4000, 0], H(0x7c00)),
        ("fma.rn.f16 %h0, %h1, %h2, %h3;", [0x3c00, 0x3c00, 0x1000], H(0x3c00)),
        ("add.f16x2 %r0, %r1, %r2;", [0x3c00_4000, 0x3c00_3c00, 0], R(0x4000_4200)),
        ("fma.rn.f16x2 %r0, %r1, %r2, %r3;", [0x3c00_4000, 0x4000_4000, 0], R(0x4000_4400)),
        ("neg.f16 %h0, %h1;", [0x3c00, 0, 0], H(0xbc00)),
        ("neg.f16 %h0, %h1;", [0xbc00, 0, 0], H(0x3c00)),
        ("neg.f16x2 %r0, %r1;", [0xbc00_3c00, 0, 0], R(0x3c00_bc00)),
        ("abs.f16 %h0, %h1;", [0xbc00, 0, 0], H(0x3c00)),
        ("abs.f16x2 %r0, %r1;", [0xbc00_3c00, 0, 0], R(0x3c00_3c00)),
        ("fma.rn.f16x2 %r0, %r1, %r2, %r3;", [0x3c00_4000, 0x4000_4000, 0x3c00_4000], R(0x4200_4600)),
        // halves are flushed with .ftz alone, and keep their sign
        ("add.f16 %h0, %h1, %h2;", [0x0001, 0x0001, 0], H(0x0002)),
        ("add.ftz.f16 %h0, %h1, %h2;", [0x0001, 0x0001, 0], H(0x0000)),
        ("add.ftz.f16 %h0, %h1, %h2;", [0x8001, 0x8001, 0], H(0x8000)),
        ("add.ftz.f16 %h0, %h1, %h2;", [0x3c00, 0x4000, 0], H(0x4200)),
        // halfway between two halves; beyond the largest
        ("fma.rn.f16 %h0, %h1, %h2, %h3;", [0x3c01, 0x3c00, 0x1000], H(0x3c02)),
        ("fma.rn.f16 %h0, %h1, %h2, %h3;", [0x6801, 0x6801, 0x0001], H(0x7c00)),
        ("sub.sat.f16 %h0, %h1, %h2;", [0x3c00, 0x4000, 0], H(0)),
    ]);
}

#[test]
fn conversions() {
    check(&[
        ("cvt.u64.u32 %rd0, %r1;", [0xffff_ffff, 0, 0], D(0xffff_ffff)),
        ("cvt.s64.s32 %rd0, %r1;", [0xffff_ffff, 0, 0], D(u64::MAX)),
        ("cvt.u32.u64 %r0, %rd1;", [0x1_0000_0005, 0, 0], R(5)),
        ("cvt.s32.s8 %r0, %r1;", [0x1ff, 0, 0], R(u32::MAX)),
        ("cvt.u32.u8 %r0, %r1;", [0x1ff, 0, 0], R(0xff)),
        ("cvt.s16.s8 %h0, %h1;", [0x80, 0, 0], H(0xff80)),
        ("cvt.u8.u32 %r0, %r1;", [0x1ff, 0, 0], R(0xff)),
        ("cvt.sat.u8.s32 %r0, %r1;", [0x1ff, 0, 0], R(0xff)),
        ("cvt.sat.s8.s32 %r0, %r1;", [-1000i32 as u32 as u64, 0, 0], R(0xffff_ff80)),
        ("cvt.sat.u32.s32 %r0, %r1;", [0xffff_ffff, 0, 0], R(0)),
        ("cvt.rn.f32.s32 %r0, %r1;", [16777217, 0, 0], rf(16777216.0)),
        ("cvt.rp.f32.s32 %r0, %r1;", [16777217, 0, 0], rf(16777218.0)),
        ("cvt.rp.f32.s32 %r0, %r1;", [-16777217i32 as u32 as u64, 0, 0], rf(-16777216.0)),
        ("cvt.rm.f32.s32 %r0, %r1;", [-16777217i32 as u32 as u64, 0, 0], rf(-16777218.0)),
        ("cvt.rm.f32.s32 %r0, %r1;", [16777217, 0, 0], rf(16777216.0)),
        ("cvt.rn.f32.s32 %r0, %r1;", [-16777219i32 as u32 as u64, 0, 0], rf(-16777220.0)),
        ("cvt.rz.f32.s32 %r0, %r1;", [-16777217i32 as u32 as u64, 0, 0], rf(-16777216.0)),
        // eight bits too many for f32: below, at and above one half, after an even and an odd number
        ("cvt.rn.f32.u64 %r0, %rd1;", [0x8000_0040, 0, 0], rf(2147483648.0)),
        ("cvt.rn.f32.u64 %r0, %rd1;", [0x8000_0080, 0, 0], rf(2147483648.0)),
        ("cvt.rn.f32.u64 %r0, %rd1;", [0x8000_0180, 0, 0], rf(2147484160.0)),
        ("cvt.rn.f32.u64 %r0, %rd1;", [0x8000_00c0, 0, 0], rf(2147483904.0)),
        ("cvt.rp.f32.u32 %r0, %r1;", [0x8000_0040, 0, 0], rf(2147483904.0)),
        ("cvt.rm.f32.u32 %r0, %r1;", [0x8000_00c0, 0, 0], rf(2147483648.0)),
        ("cvt.rn.f32.u64 %r0, %rd1;", [u64::MAX, 0, 0], rf(18446744073709551616.0)),
        ("cvt.rz.f32.u64 %r0, %rd1;", [u64::MAX, 0, 0], rf(18446742974197923840.0)),
        // three quarters of a half's last digit above one, and the smallest beside zero, in each direction
        ("cvt.rn.f16.f32 %h0, %r1;", [f(1.0 + 0.75 / 1024.0), 0, 0], H(0x3c01)),
        ("cvt.rp.f16.f32 %h0, %r1;", [f(1.0 + 0.75 / 1024.0), 0, 0], H(0x3c01)),
        ("cvt.rm.f16.f32 %h0, %r1;", [f(1.0 + 0.75 / 1024.0), 0, 0], H(0x3c00)),
        ("cvt.rz.f16.f32 %h0, %r1;", [f(1.0 + 0.75 / 1024.0), 0, 0], H(0x3c00)),
        ("cvt.rp.f16.f32 %h0, %r1;", [f(-1.0 - 0.75 / 1024.0), 0, 0], H(0xbc00)),
        ("cvt.rm.f16.f32 %h0, %r1;", [f(-1.0 - 0.75 / 1024.0), 0, 0], H(0xbc01)),
        ("cvt.rz.f16.f32 %h0, %r1;", [f(-1.0 - 0.75 / 1024.0), 0, 0], H(0xbc00)),
        ("cvt.rp.f16.f32 %h0, %r1;", [f(1.0 + 0.25 / 1024.0), 0, 0], H(0x3c01)),
        ("cvt.rm.f16.f32 %h0, %r1;", [f(-1.0 - 0.25 / 1024.0), 0, 0], H(0xbc01)),
        ("cvt.rz.f16.f32 %h0, %r1;", [f(-1.0 - 0.25 / 1024.0), 0, 0], H(0xbc00)),
        ("cvt.rp.f16.f32 %h0, %r1;", [f(1e-9), 0, 0], H(0x0001)),
        ("cvt.rm.f16.f32 %h0, %r1;", [f(1e-9), 0, 0], H(0x0000)),
        ("cvt.rp.f16.f32 %h0, %r1;", [f(-1e-9), 0, 0], H(0x8000)),
        ("cvt.rm.f16.f32 %h0, %r1;", [f(-1e-9), 0, 0], H(0x8001)),
        ("cvt.rp.f16.f32 %h0, %r1;", [f(1.0), 0, 0], H(0x3c00)),
        ("cvt.rm.f16.f32 %h0, %r1;", [f(-1.0), 0, 0], H(0xbc00)),
        ("cvt.rn.f64.s64 %rd0, %rd1;", [-3i64 as u64, 0, 0], df(-3.0)),
        ("cvt.rn.f64.u32 %rd0, %r1;", [u32::MAX as u64, 0, 0], df(4294967295.0)),
        ("cvt.rzi.s32.f32 %r0, %r1;", [f(-2.7), 0, 0], R(-2i32 as u32)),
        ("cvt.rni.s32.f32 %r0, %r1;", [f(2.5), 0, 0], R(2)),
        ("cvt.rmi.s32.f32 %r0, %r1;", [f(-2.1), 0, 0], R(-3i32 as u32)),
        ("cvt.rpi.s32.f32 %r0, %r1;", [f(2.1), 0, 0], R(3)),
        ("cvt.rzi.s32.f32 %r0, %r1;", [f(3e9), 0, 0], R(i32::MAX as u32)),
        ("cvt.rzi.u32.f32 %r0, %r1;", [f(-3.0), 0, 0], R(0)),
        ("cvt.rzi.s32.f32 %r0, %r1;", [NAN, 0, 0], R(0)),
        ("cvt.rzi.u64.f32 %rd0, %r1;", [NAN, 0, 0], D(1 << 63)),
        ("cvt.rzi.s64.f64 %rd0, %rd1;", [d(-1e30), 0, 0], D(1 << 63)),
        ("cvt.rzi.u8.f32 %r0, %r1;", [f(300.0), 0, 0], R(255)),
        ("cvt.rzi.ftz.u32.f32 %r0, %r1;", [SUB, 0, 0], R(0)),
        ("cvt.rni.f32.f32 %r0, %r1;", [f(3.5), 0, 0], rf(4.0)),
        ("cvt.rmi.f32.f32 %r0, %r1;", [f(-0.5), 0, 0], rf(-1.0)),
        ("cvt.rpi.f64.f64 %rd0, %rd1;", [d(-0.5), 0, 0], df(-0.0)),
        ("cvt.f64.f32 %rd0, %r1;", [f(0.1), 0, 0], df(0.1f32 as f64)),
        ("cvt.rn.f32.f64 %r0, %rd1;", [d(0.1), 0, 0], rf(0.1)),
        ("cvt.rp.f32.f64 %r0, %rd1;", [d(0.1), 0, 0], rf(0.1f64 as f32)),
        // a quarter and three quarters of an f32's last digit above one, in each direction
        ("cvt.rp.f32.f64 %r0, %rd1;", [d(1.0 + 1.0 / 33554432.0), 0, 0], rf(1f32.next_up())),
        ("cvt.rm.f32.f64 %r0, %rd1;", [d(1.0 + 1.0 / 33554432.0), 0, 0], rf(1.0)),
        ("cvt.rz.f32.f64 %r0, %rd1;", [d(1.0 + 1.0 / 33554432.0), 0, 0], rf(1.0)),
        ("cvt.rp.f32.f64 %r0, %rd1;", [d(1.0 + 3.0 / 33554432.0), 0, 0], rf(1f32.next_up())),
        ("cvt.rm.f32.f64 %r0, %rd1;", [d(1.0 + 3.0 / 33554432.0), 0, 0], rf(1.0)),
        ("cvt.rz.f32.f64 %r0, %rd1;", [d(1.0 + 3.0 / 33554432.0), 0, 0], rf(1.0)),
        ("cvt.rp.f32.f64 %r0, %rd1;", [d(-(1.0 + 1.0 / 33554432.0)), 0, 0], rf(-1.0)),
        ("cvt.rm.f32.f64 %r0, %rd1;", [d(-(1.0 + 1.0 / 33554432.0)), 0, 0], rf(-1f32.next_up())),
        ("cvt.rz.f32.f64 %r0, %rd1;", [d(-(1.0 + 1.0 / 33554432.0)), 0, 0], rf(-1.0)),
        ("cvt.rp.f32.f64 %r0, %rd1;", [d(-(1.0 + 3.0 / 33554432.0)), 0, 0], rf(-1.0)),
        ("cvt.rm.f32.f64 %r0, %rd1;", [d(-(1.0 + 3.0 / 33554432.0)), 0, 0], rf(-1f32.next_up())),
        ("cvt.rz.f32.f64 %r0, %rd1;", [d(-(1.0 + 3.0 / 33554432.0)), 0, 0], rf(-1.0)),
        ("cvt.rp.f32.f64 %r0, %rd1;", [d(1.0), 0, 0], rf(1.0)),
        ("cvt.rm.f32.f64 %r0, %rd1;", [d(-1.0), 0, 0], rf(-1.0)),
        ("cvt.rz.f32.f64 %r0, %rd1;", [d(1.0), 0, 0], rf(1.0)),
        ("cvt.rz.f32.f64 %r0, %rd1;", [d(-1.0), 0, 0], rf(-1.0)),
        ("cvt.rm.f32.f64 %r0, %rd1;", [d(0.1), 0, 0], rf((0.1f64 as f32).next_down())),
        ("cvt.rz.f32.f64 %r0, %rd1;", [d(1e300), 0, 0], rf(f32::MAX)),
        ("cvt.sat.f32.f32 %r0, %r1;", [f(1.5), 0, 0], rf(1.0)),
        ("cvt.sat.u32.u64 %r0, %rd1;", [0x1_0000_0005, 0, 0], R(u32::MAX)),
        ("cvt.sat.f32.f16 %r0, %h1;", [0x4000, 0, 0], rf(1.0)),
        ("cvt.rn.sat.f32.s32 %r0, %r1;", [5, 0, 0], rf(1.0)),
        ("cvt.sat.f64.f64 %rd0, %rd1;", [d(0.5), 0, 0], df(0.5)),
        ("cvt.sat.f64.f64 %rd0, %rd1;", [d(2.0), 0, 0], df(1.0)),
        ("cvt.sat.f64.f64 %rd0, %rd1;", [d(-2.0), 0, 0], df(0.0)),
        ("cvt.sat.f64.f64 %rd0, %rd1;", [d(-0.0), 0, 0], df(0.0)),
        ("cvt.sat.f64.f64 %rd0, %rd1;", [d(f64::NAN), 0, 0], df(0.0)),
        ("cvt.rzi.s64.f64 %rd0, %rd1;", [d(-1e40), 0, 0], D(1 << 63)),
        ("cvt.rzi.s64.f64 %rd0, %rd1;", [d(1e40), 0, 0], D(i64::MAX as u64)),
        ("cvt.ftz.f32.f32 %r0, %r1;", [SUB, 0, 0], R(0)),
        ("cvt.f32.f16 %r0, %h1;", [0x3555, 0, 0], rf(0.33325195)),
        ("cvt.f32.f16 %r0, %h1;", [0x0001, 0, 0], rf(5.9604645e-8)),
        ("cvt.f32.f16 %r0, %h1;", [0xfc00, 0, 0], rf(f32::NEG_INFINITY)),
        ("cvt.rn.f16.f32 %h0, %r1;", [f(65519.0), 0, 0], H(0x7bff)),
        ("cvt.rn.f16.f32 %h0, %r1;", [f(65520.0), 0, 0], H(0x7c00)),
        ("cvt.rz.f16.f32 %h0, %r1;", [f(1e9), 0, 0], H(0x7bff)),
        ("cvt.rn.f16.f32 %h0, %r1;", [f(1.0 + 1.0 / 2048.0), 0, 0], H(0x3c00)),
        ("cvt.rp.f16.f32 %h0, %r1;", [f(1.0 + 1.0 / 2048.0), 0, 0], H(0x3c01)),
        ("cvt.rn.f16.f32 %h0, %r1;", [f(3e-8), 0, 0], H(0x0001)),
        ("cvt.rn.f16.f32 %h0, %r1;", [NAN, 0, 0], H(0x7fff)),
        ("cvt.rn.f16.s32 %h0, %r1;", [2049, 0, 0], H(0x6800)),
        ("cvt.rzi.s32.f16 %r0, %h1;", [0xc500, 0, 0], R(-5i32 as u32)),
        ("cvt.f64.f16 %rd0, %h1;", [0x3c00, 0, 0], df(1.0)),
        ("cvt.rn.f16.f64 %h0, %rd1;", [d(1.0009765625 + 1e-12), 0, 0], H(0x3c01)),
    ]);
}

#[test]
fn memory_spaces_and_widths() {
    let local = ".local .align 16 .b8 buf[32]; .reg .b64 %g; ";
    let generic =
        "mov.u64 %rd4, buf; cvta.local.u64 %g, %rd4; st.local.u32 [buf+4], %r1; ld.u32 %r0, [%g+4];";
    check(&[
        (&format!("{local}{generic}"), [77, 0, 0], R(77)),
        (
            &format!("{local} st.local.v2.u32 [buf+8], {{%r1, %r2}}; ld.local.u64 %rd0, [buf+8];"),
            [1, 2, 0],
            D((2 << 32) + 1),
        ),
        (&format!("{local} st.local.u16 [buf], %h1; ld.local.s8 %r0, [buf];"), [0x1ff, 0, 0], R(u32::MAX)),
        (&format!("{local} st.local.u16 [buf], %h1; ld.local.u8 %r0, [buf+1];"), [0x1ff, 0, 0], R(1)),
        (&format!("{local} st.local.s16 [buf], %h1; ld.local.s16 %rd0, [buf];"), [0xfffe, 0, 0], D(-2i64 as u64)),
        (&format!("{local} st.local.s16 [buf], %h1; ld.local.s16 %rd0, [buf];"), [0xfe00, 0, 0], D(-512i64 as u64)),
        (
            &format!("{local} st.local.u32 [buf], %r1; ld.local.s32 %rd0, [buf];"),
            [0x8000_0000, 0, 0],
            D(0xffff_ffff_8000_0000),
        ),
        (
            &format!("{local} st.local.u32 [buf+8], %r1; st.local.u32 [buf+12], %r2; ld.local.v2.u32 {{%r4, %r0}}, [buf+8];"),
            [1, 2, 0],
            R(2),
        ),
        ("st.global.v2.u32 [%out+8], {%r1, %r2}; ld.global.u32 %r0, [%out+12];", [1, 2, 0], R(2)),
        (
            "st.global.u32 [%out+8], %r1; st.global.u32 [%out+12], %r2; ld.global.v2.u32 {%r4, %r0}, [%out+8];",
            [1, 2, 0],
            R(2),
        ),
        (
            "{ .shared .align 8 .b8 t[16]; st.shared.u32 [t+8], %r1; st.shared.u32 [t+12], %r2; ld.shared.v2.u32 {%r4, %r0}, [t+8]; }",
            [1, 2, 0],
            R(2),
        ),
        (
            "{ .shared .align 8 .b8 t[16]; st.shared.u32 [t+4], 0; st.shared.u8 [t+5], %r1; st.shared.u16 [t+6], %h2; ld.shared.u32 %r0, [t+4]; }",
            [0x1ff, 0x1234, 0],
            R(0x1234_ff00),
        ),
        // narrow ones beside others
        (&format!("{local} st.local.u32 [buf], %r1; st.local.u8 [buf+1], 5; ld.local.u32 %r0, [buf];"), [0x0a0b_0c0d, 0, 0], R(0x0a0b_050d)),
        (&format!("{local} st.local.u32 [buf], %r1; st.local.u16 [buf], %h2; ld.local.u32 %r0, [buf];"), [0x0a0b_0c0d, 0x1ff, 0], R(0x0a0b_01ff)),
        (&format!("{local} st.local.u32 [buf+28], %r1; ld.local.u16 %r0, [buf+30];"), [0xfa0b_0c0d, 0, 0], R(0xfa0b)),
        (&format!("{local} st.local.u32 [buf+28], %r1; ld.local.s16 %r0, [buf+28];"), [0x0a0b_fc0d, 0, 0], R(0xffff_fc0d)),
        ("{ .shared .align 4 .b8 t[4]; st.shared.u32 [t], %r1; ld.shared.u16 %r0, [t+2]; }", [0xfa0b_0c0d, 0, 0], R(0xfa0b)),
        ("{ .shared .align 4 .b8 t[4]; st.shared.u32 [t], %r1; ld.shared.u16 %r0, [t]; }", [0x0a0b_fc0d, 0, 0], R(0xfc0d)),
        // addresses of three spaces in one instruction
        (
            "{ .shared .align 8 .b8 t[8]; .local .align 8 .b8 l[8]; .reg .b64 %g<4>; .reg .pred %q<2>; .reg .b32 %n;
               mov.u32 %n, %laneid; mov.u64 %g1, t; cvta.shared.u64 %g1, %g1; mov.u64 %g2, l; cvta.local.u64 %g2, %g2;
               setp.eq.u32 %q0, %n, 3; setp.eq.u32 %q1, %n, 2; selp.b64 %g3, %g1, %out, %q0; selp.b64 %g3, %g2, %g3, %q1;
               @%q0 st.shared.u32 [t], 5; st.u32 [%g3], 77; ld.u32 %r0, [%g3]; ld.shared.u32 %r4, [t]; add.u32 %r0, %r0, %r4; }",
            [0; 3],
            R(154),
        ),
        // the first and the last address of a window, and the one after it
        ("isspacep.shared %p0, %rd1;", [0x1_f000_0000_0000, 0, 0], P(true)),
        ("isspacep.shared %p0, %rd1;", [0x1_f000_00ff_ffff, 0, 0], P(true)),
        ("isspacep.shared %p0, %rd1;", [0x1_f000_0100_0000, 0, 0], P(false)),
        ("isspacep.local %p0, %rd1;", [0x1_f100_00ff_ffff, 0, 0], P(true)),
        ("isspacep.local %p0, %rd1;", [0x1_f100_0100_0000, 0, 0], P(false)),
        ("isspacep.global %p0, %rd1;", [0x1_f100_0100_0000, 0, 0], P(true)),
        (
            &format!("{local} mov.u64 %rd4, buf; cvta.local.u64 %g, %rd4; isspacep.local %p0, %g;"),
            [0; 3],
            P(true),
        ),
        (
            &format!("{local} mov.u64 %rd4, buf; cvta.local.u64 %g, %rd4; cvta.to.local.u64 %rd5, %g; sub.u64 %rd0, %rd5, %rd4;"),
            [0; 3],
            D(0),
        ),
        (
            "{ .shared .align 16 .b8 t[2048]; .reg .b32 %a; mov.u32 %a, t; mov.u32 %r4, %tid.x; mad.lo.u32 %a, %r4, 16, %a;
               st.shared.v4.u32 [%a], {%r1, %r2, %r3, %r4}; bar.sync 0; ld.shared.u32 %r0, [%a+12]; }",
            [1, 2, 3],
            R(3),
        ),
        (
            "{ .shared .align 8 .b8 t[8]; .reg .b64 %g; .reg .pred %q; mov.u64 %g, t; cvta.shared.u64 %g, %g;
               setp.eq.u32 %q, %r9, 0; @%q bra W; W: mov.u32 %r4, %tid.x; setp.eq.u32 %q, %r4, 0;
               @%q st.u64 [%g], %rd1; bar.sync 0; ld.u64 %rd0, [%g]; }",
            [1 << 33, 0, 0],
            D(1 << 33),
        ),
        ("ld.param.u32 %r0, [a+4];", [5 << 32, 0, 0], R(5)),
        ("ld.param.v2.u32 {%r4, %r0}, [b];", [0, 9 << 32, 0], R(9)),
        ("ld.param.s8 %r0, [c];", [0, 0, 0x80], R(0xffff_ff80)),
    ]);
}

#[test]
fn atomics() {
    let on = |op: &str| {
        format!(
            "{{ .shared .align 8 .b8 t[8]; .reg .pred %q; mov.u32 %r4, %tid.x; setp.eq.u32 %q, %r4, 3;
               @%q st.shared.u64 [t], %rd1; bar.sync 0; {op} bar.sync 0; ld.shared.u64 %rd0, [t]; }}"
        )
    };
    let old = |op: &str| on(op).replace("ld.shared.u64 %rd0, [t];", "cvt.u64.u32 %rd0, %r5;");
    let global = |ty: &str| {
        format!(
            "mov.u32 %r4, %laneid; setp.eq.u32 %p1, %r4, 3; st.global.u32 [%out+8], %r1;
             @%p1 red.global.add.{ty} [%out+8], %r2; ld.global.u32 %r0, [%out+8];"
        )
    };
    check(&[
        (&on("@%q atom.shared.add.u32 %r5, [t], %r2;"), [5, 7, 0], D(12)),
        (&old("@%q atom.shared.add.u32 %r5, [t], %r2;"), [5, 7, 0], D(5)),
        (&on("@%q red.shared.add.u64 [t], %rd2;"), [5, 1 << 40, 0], D((1 << 40) + 5)),
        (&on("@%q red.shared.add.f32 [t], %r2;"), [f(1.5), f(2.0), 0], D(f(3.5))),
        (&on("@%q red.shared.add.f32 [t], %r2;"), [SUB, SUB, 0], D(0x2000)),
        (&on("@%q red.shared.add.f64 [t], %rd2;"), [d(1.5), d(2.0), 0], D(d(3.5))),
        (&on("@%q red.shared.min.s32 [t], %r2;"), [5, 0xffff_ffff, 0], D(0xffff_ffff)),
        (&on("@%q red.shared.min.u32 [t], %r2;"), [5, 0xffff_ffff, 0], D(5)),
        (&on("@%q red.shared.max.s64 [t], %rd2;"), [5, u64::MAX, 0], D(5)),
        (&on("@%q red.shared.and.b32 [t], %r2;"), [6, 3, 0], D(2)),
        (&on("@%q red.shared.or.b32 [t], %r2;"), [6, 3, 0], D(7)),
        (&on("@%q red.shared.xor.b64 [t], %rd2;"), [6, 3, 0], D(5)),
        (&on("@%q red.shared.inc.u32 [t], %r2;"), [6, 6, 0], D(0)),
        (&on("@%q red.shared.dec.u32 [t], %r2;"), [0, 6, 0], D(6)),
        (&on("@%q red.shared.inc.u32 [t], %r2;"), [2, 6, 0], D(3)),
        (&on("@%q red.shared.dec.u32 [t], %r2;"), [5, 3, 0], D(3)),
        (&on("@%q red.shared.dec.u32 [t], %r2;"), [3, 5, 0], D(2)),
        (&on("@%q red.shared.dec.u32 [t], %r2;"), [5, 5, 0], D(4)),
        (&on("@%q atom.shared.exch.b32 %r5, [t], %r2;"), [6, 9, 0], D(9)),
        (&on("@%q atom.shared.cas.b32 %r5, [t], %r2, %r3;"), [6, 6, 11], D(11)),
        (&on("@%q atom.shared.cas.b32 %r5, [t], %r2, %r3;"), [6, 7, 11], D(6)),
        (&on("@%q atom.shared.cas.b64 %rd5, [t], %rd2, %rd3;"), [1 << 40, 1 << 40, 11], D(11)),
        // global sums of f32 are flushed, unlike shared ones
        (&global("f32"), [f(1.5), f(2.5), 0], rf(4.0)),
        (&global("f32"), [SUB, SUB, 0], R(0)),
        (&global("u32"), [SUB, SUB, 0], R(0x2000)),
    ]);
}

#[test]
fn global_atomics_over_many_blocks() {
    let ptx = ".version 6.4 .target sm_61 .address_size 64
.visible .entry k(.param .u64 p) { .reg .b64 %rd<3>; .reg .b32 %r<3>;
ld.param.u64 %rd1, [p]; mov.u32 %r1, 1; red.global.add.u32 [%rd1], %r1; atom.global.gpu.inc.u32 %r2, [%rd1+4], 99; ret; }";
    let mut gpu = Gpu::new(Config { threads: 4, ..Config::default() });
    let m = gpu.load(Module::parse(ptx).unwrap()).unwrap();
    let p = gpu.alloc(8).unwrap();
    gpu.write(p, &[0; 8]).unwrap();
    let launch = Launch { grid: [50, 4, 1], block: [96, 1, 1], dynamic_shared: 0, params: &p.to_le_bytes() };
    let report = gpu.launch(&m, "k", launch).unwrap();
    let mut out = [0; 8];
    gpu.read(p, &mut out).unwrap();
    assert_eq!(out[..4], 19200u32.to_le_bytes());
    assert_eq!(out[4..], 0u32.to_le_bytes(), "19200 is a multiple of 100");
    assert_eq!(report.counters.atomics.requests, 2 * 600);
}

#[test]
fn warp_exchange() {
    // With five threads the mask must name only those, and only sources among them are read.
    let full = |code: &str, want: Out| {
        let got = run(code, [0, 0, 0], 32, want);
        assert_eq!(got, want, "{code}");
    };
    let lane = "mov.u32 %r4, %laneid; mul.lo.u32 %r5, %r4, 10; ";
    full(&format!("{lane} shfl.sync.up.b32 %r0, %r5, 1, 0, -1;"), R(20));
    full(&format!("{lane} shfl.sync.down.b32 %r0, %r5, 2, 31, -1;"), R(50));
    full(&format!("{lane} shfl.sync.bfly.b32 %r0, %r5, 16, 31, -1;"), R(190));
    full(&format!("{lane} shfl.sync.idx.b32 %r0, %r5, 31, 31, -1;"), R(310));
    full(&format!("{lane} shfl.sync.up.b32 %r0|%p0, %r5, 4, 0, -1;"), P(false));
    full(&format!("{lane} shfl.sync.up.b32 %r0|%p1, %r5, 4, 0, -1;"), R(30));
    // Segments of four lanes: c = 0x1c03.
    full(&format!("{lane} shfl.sync.down.b32 %r0|%p0, %r5, 1, 0x1c03, -1;"), P(false));
    full(&format!("{lane} shfl.sync.idx.b32 %r0, %r5, 1, 0x1c03, -1;"), R(10));
    full(&format!("{lane} shfl.sync.down.b32 %r0|%p0, %r5, 1, 31, -1;"), P(true));
    full(&format!("{lane} shfl.sync.bfly.b32 %r0, %r5, 1, 2, -1;"), R(20));
    full(&format!("{lane} shfl.sync.bfly.b32 %r0, %r5, 4, 3, -1;"), R(30));
    // The values of the first and the third lane of the second segment.
    let of = |n: u32| format!("shfl.sync.idx.b32 %r0, %r6, {n}, 31, -1;");
    full(&format!("{lane} shfl.sync.up.b32 %r6, %r5, 1, 0x1c00, -1; {}", of(4)), R(40));
    full(&format!("{lane} shfl.sync.idx.b32 %r6, %r5, 1, 0x1c03, -1; {}", of(6)), R(50));
    full(&format!("{lane} shfl.sync.idx.b32 %r6, %r5, 3, 0x1c01, -1; {}", of(6)), R(60));
    full(&format!("{lane} shfl.bfly.b32 %r0, %r5, 1, 31;"), R(20));
    let odd = "and.b32 %r6, %r4, 1; setp.eq.u32 %p1, %r6, 1; ";
    full(&format!("{lane}{odd} vote.sync.ballot.b32 %r0, %p1, -1;"), R(0xaaaa_aaaa));
    full(&format!("{lane}{odd} vote.sync.any.pred %p0, %p1, -1;"), P(true));
    full(&format!("{lane}{odd} vote.sync.all.pred %p0, %p1, -1;"), P(false));
    full(&format!("{lane}{odd} vote.sync.uni.pred %p0, !%p1, -1;"), P(false));
    full("setp.eq.u32 %p1, 0, 0; vote.sync.uni.pred %p0, %p1, -1;", P(true));
    full("setp.eq.u32 %p1, 0, 1; vote.sync.uni.pred %p0, %p1, -1;", P(true));
    full(&format!("{lane}{odd} vote.ballot.b32 %r0, !%p1;"), R(0x5555_5555));
    full(&format!("{lane}{odd} @%p1 activemask.b32 %r0;"), R(0xaaaa_aaaa));
    full(&format!("{lane}{odd} bar.warp.sync -1; mov.u32 %r0, %r4;"), R(3));
    full(&format!("{lane}{odd} bar.red.popc.u32 %r0, 0, %p1;"), R(16));
    full(&format!("{lane}{odd} bar.red.and.pred %p0, 0, %p1;"), P(false));
    full(&format!("{lane}{odd} bar.red.or.pred %p0, 0, %p1;"), P(true));
    full("membar.cta; membar.gl; membar.sys; mov.u32 %r0, 1;", R(1));
    // Reductions of a barrier count what holds, of all threads there are.
    let few = format!("{lane} setp.lt.u32 %p1, %r4, 4; setp.lt.u32 %p2, %r4, 99;");
    check(&[
        (&format!("{few} bar.red.popc.u32 %r0, 0, %p1;"), [0; 3], R(4)),
        (&format!("{few} bar.red.popc.u32 %r0, 0, !%p2;"), [0; 3], R(0)),
        (&format!("{few} bar.red.and.pred %p0, 0, %p2;"), [0; 3], P(true)),
        (&format!("{few} bar.red.or.pred %p0, 0, !%p2;"), [0; 3], P(false)),
    ]);
}

/// The clock is the number of warp instructions that the block has executed.
#[test]
fn clocks_and_hints() {
    check(&[
        ("mov.u32 %r4, %clock; mov.u32 %r5, %clock; sub.u32 %r0, %r5, %r4;", [0; 3], R(1)),
        ("mov.u64 %rd4, %clock64; mov.u64 %rd5, %globaltimer; sub.u64 %rd0, %rd5, %rd4;", [0; 3], D(1)),
        ("mov.u32 %r0, 7; mov.u32 %r0, %clock_hi;", [0; 3], R(0)),
        ("pmevent 1; mov.u32 %r0, %r1;", [5, 0, 0], R(5)),
    ]);
}

#[test]
fn control_flow() {
    check(&[
        // A divergent loop: lane l runs l times.
        (
            "mov.u32 %r4, %laneid; mov.u32 %r5, 0; L: setp.ge.u32 %p1, %r5, %r4; @%p1 bra E; add.u32 %r0, %r0, 2; add.u32 %r5, %r5, 1; bra.uni L; E:",
            [0; 3],
            R(6),
        ),
        // Nested divergence meets again: all lanes vote together at the end.
        (
            "mov.u32 %r4, %laneid; and.b32 %r5, %r4, 1; and.b32 %r6, %r4, 2; setp.ne.u32 %p1, %r5, 0; setp.ne.u32 %p2, %r6, 0;
             @%p1 bra A; add.u32 %r0, %r0, 1; bra J; A: @%p2 bra B; add.u32 %r0, %r0, 10; bra K; B: add.u32 %r0, %r0, 100; K: add.u32 %r0, %r0, 1000; J:
             mov.u32 %r7, 0; setp.eq.u32 %p3, 0, 0; vote.ballot.b32 %r7, %p3; and.b32 %r7, %r7, 31; setp.eq.u32 %p0, %r7, 31; selp.b32 %r0, %r0, 0, %p0;",
            [0; 3],
            R(1100),
        ),
        (
            "and.b32 %r4, %lane, 0; mov.u32 %r4, %laneid; T: .branchtargets X0, X1, X2, X3; rem.u32 %r5, %r4, 4; brx.idx %r5, T;
             X0: mov.u32 %r0, 5; bra Z; X1: mov.u32 %r0, 6; bra Z; X2: mov.u32 %r0, 7; bra Z; X3: mov.u32 %r0, 8; Z:",
            [0; 3],
            R(8),
        ),
        // Labels and registers of an inner block are its own.
        ("{ .reg .b32 %r0; bra L; L: mov.u32 %r0, 5; } bra L; L: mov.u32 %r0, %r1;", [9, 0, 0], R(9)),
    ]);
}

/// Bounds beyond what there is are those that there are: the estimate of registers divides by them.
#[test]
fn bounds_beyond_the_hardware_are_those_of_the_hardware() {
    let registers = |bounds: &str| {
        let text = format!(
            ".version 6.4 .target sm_61 .address_size 64 .visible .entry k() .maxntid 1024 {bounds} {{ ret; }}"
        );
        let module = Module::parse(&text).unwrap();
        module.registers(&module.kernels()[0])
    };
    let most = registers(".minnctapersm 32");
    for bounds in [".minnctapersm 4194304", ".minnctapersm 4294967296", ".minnctapersm 18446744073709551615"]
    {
        assert_eq!(registers(bounds), most, "{bounds}");
    }
    assert!(registers(".maxnreg 18446744073709551615") <= 255);
}

/// The estimate of registers and the counters see a comparison of f16x2 as they see one of f16 and u32.
#[test]
fn comparisons_of_halves_have_operands_and_a_class() {
    let estimate = |instruction: &str| {
        let lines = |line: &dyn Fn(u32) -> String| (0..40).map(line).collect::<String>();
        let text = format!(
            ".version 6.4 .target sm_61 .address_size 64 .visible .entry k(.param .u64 p) {{
             .reg .b32 %r<41>; .reg .b32 %s<41>; .reg .b32 %t<41>; .reg .pred %p, %q; .reg .b64 %p64;
             ld.param.u64 %p64, [p]; {} {} {} }}",
            lines(&|n| format!("ld.global.v2.u32 {{%r{n}, %s{n}}}, [%p64+{}]; ", 8 * n)),
            lines(&|n| instruction.replace('#', &n.to_string())),
            lines(&|n| format!("st.global.u32 [%p64+{}], %t{n}; ", 4 * n)),
        );
        let module = Module::parse(&text).unwrap();
        module.registers(&module.kernels()[0])
    };
    // all sources are live at once, and the results take their places
    let of_words = estimate("set.lt.u32.u32 %t#, %r#, %s#; ");
    assert!((80..100).contains(&of_words), "{of_words}");
    assert_eq!(estimate("set.lt.u32.f16x2 %t#, %r#, %s#; "), of_words);
    assert_eq!(estimate("setp.lt.f16x2 %p|%q, %r#, %s#; selp.b32 %t#, 1, 2, %q; "), of_words);

    let mut gpu = Gpu::new(Config { threads: 1, ..Config::default() });
    let halves = "set.lt.u32.f16x2 %r4, %r1, %r2; setp.lt.f16x2 %p1|%p2, %r1, %r2;";
    let module = gpu.load(Module::parse(&ptx(halves)).unwrap()).unwrap();
    let params = [gpu.alloc(24).unwrap(), 0, 0, 0].map(u64::to_le_bytes).concat();
    let launch = Launch { grid: [1; 3], block: [32, 1, 1], dynamic_shared: 0, params: &params };
    let report = gpu.launch(&module, "k", launch).unwrap();
    assert_eq!(report.counters.warps(Class::Fp16), 2);
}

#[test]
fn newer_instructions_are_refused_with_their_line() {
    for (code, word) in [
        ("nanosleep.u32 100;", "sm_70"),
        ("match.any.sync.b32 %r0, %r1, -1;", "sm_70"),
        ("redux.sync.add.s32 %r0, %r1, -1;", "sm_80"),
        ("cp.async.ca.shared.global [%r1], [%rd1], 16;", "sm_80"),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r1];", "sm_75"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3};", "sm_70"),
        ("fence.acq_rel.gpu;", "sm_70"),
        ("atom.global.add.noftz.f16 %h0, [%rd1], %h1;", "sm_70"),
        ("ld.relaxed.gpu.global.u32 %r0, [%rd1];", "sm_70"),
        ("tanh.approx.f32 %r0, %r1;", "sm_75"),
        ("max.NaN.f32 %r0, %r1, %r2;", "sm_80"),
        ("tex.1d.v4.f32.s32 {%r0, %r1, %r2, %r3}, [t, {%r1}];", "`t` is not declared"),
        ("add.u32 %r0, %rd1, %r2;", "64 bits"),
        ("add.wrong.u32 %r0, %r1, %r2;", "modifier .wrong"),
        ("add.u32 %r0, %r1;", "operands"),
        ("add.u32 %r0, %r1, %nothere;", "not declared"),
        ("bra NOWHERE;", "NOWHERE"),
        ("cvt.f16.f32 %h0, %r1;", "rounding"),
        ("setp.lo.s32 %p0, %r1, %r2;", "comparison"),
        ("setp.lo.f16x2 %p0|%p1, %r1, %r2;", "no comparison"),
        ("setp.lt.f16x2 %p0, %r1, %r2;", "p|q"),
        ("setp.lt.and.f16x2 %p0|%p1, %r1, %r2;", "operands"),
        ("set.lt.f32.f16x2 %r0, %r1, %r2;", "u32, s32 or f16x2"),
        ("set.lt.f16x2.f16 %r0, %h1, %h2;", "f16x2 alone"),
        ("set.lt.u32.f16x2 %r0, %h1, %h2;", "16 bits"),
        ("setp.lt.bf16 %p0, %h1, %h2;", "needs sm_90"),
        ("setp.lt.bf16x2 %p0|%p1, %r1, %r2;", "needs sm_90"),
        ("set.lt.u32.bf16x2 %r0, %r1, %r2;", "needs sm_90"),
        ("set.lt.bf16.f32 %h0, %r1, %r2;", "needs sm_90"),
    ] {
        let e = Module::parse(&ptx(code)).expect_err(code);
        assert_eq!(e.line, 11, "{code}: {e}");
        assert!(e.reason.contains(word), "{code}: {e}");
    }
}

#[test]
fn other_targets_and_broken_files_are_refused() {
    for (text, word) in [
        ("", ".version"),
        (".version 6.4 .target sm_70 .address_size 64", "sm_70"),
        (".version 6.4 .target sm_61 .address_size 32", "64-bit"),
        (".version 6.4 .target sm_61 .address_size 64 .visible .entry k() {", "unexpected end"),
        (
            ".version 6.4 .target sm_61 .address_size 64 .visible .entry k() { .shared .b8 t[50000]; mov.u32 %r, t; }",
            "not a register",
        ),
        (
            ".version 6.4 .target sm_61 .address_size 64 .visible .entry k() { .reg .b32 %r; .shared .b8 t[50000]; mov.u32 %r, t; }",
            "50000",
        ),
        (
            ".version 6.4 .target sm_61 .address_size 64 .extern .func f; .visible .entry k() { call f; }",
            "defined nowhere",
        ),
        (
            ".version 6.4 .target sm_61 .address_size 64 .visible .entry k() .maxntid 99999999999 { ret; }",
            ".maxntid 99999999999: a block has 1 to 1024 threads",
        ),
        (".version 6.4 .target sm_61 .address_size 64 .visible .entry k() .maxntid 0 { ret; }", ".maxntid 0"),
        (
            ".version 6.4 .target sm_61 .address_size 64 .visible .entry k() .reqntid 64, 64, 64 { ret; }",
            ".reqntid of 262144 threads",
        ),
    ] {
        let e = Module::parse(text).expect_err(text);
        assert!(e.reason.contains(word), "{text}: {e}");
    }
}
