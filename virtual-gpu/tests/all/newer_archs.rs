//! Instructions that sm_70 and sm_75 add, by the text of the PTX ISA, and what each architecture refuses.

use crate::common::{call, code, driver, launch_kernel, threads_on};
use pascaline_virtual_gpu::{Arch, Card, Checks, Config, FindingKind, Gpu, Launch, Module};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

/// The code leaves `want` in %r0 of every thread, of a warp and of a part of one.
#[track_caller]
fn gives(arch: Arch, code: &str, want: u32) {
    for threads in [32, 5] {
        let got = threads_on(arch, code, threads, Checks::ALL).unwrap_or_else(|e| panic!("{code}: {e}"));
        assert!(got.iter().all(|&r| r == want), "{code}: {got:x?}, expected {want:x}");
    }
}

#[test]
fn bit_fields() {
    for (code, want) in [
        ("bmsk.clamp.b32 %r0, 4, 8;", 0xff0),
        ("bmsk.clamp.b32 %r0, 4, 99;", 0xffff_fff0),
        ("bmsk.wrap.b32 %r0, 4, 40;", 0xff0),
        ("bmsk.clamp.b32 %r0, 32, 8;", 0),
        ("bmsk.wrap.b32 %r0, 36, 8;", 0xff0),
        ("bmsk.clamp.b32 %r0, 28, 8;", 0xf000_0000),
        ("bmsk.clamp.b32 %r0, 4, 0;", 0),
        ("szext.clamp.s32 %r0, 0x8f, 8;", 0xffff_ff8f),
        ("szext.clamp.u32 %r0, 0xabcd, 8;", 0xcd),
        ("szext.clamp.s32 %r0, 0x7f, 8;", 0x7f),
        ("szext.clamp.s32 %r0, 0xabcd, 0;", 0),
        ("szext.clamp.s32 %r0, 0xabcd, 32;", 0xabcd),
        ("szext.wrap.u32 %r0, 0xabcd, 40;", 0xcd),
    ] {
        gives(Arch::Sm70, code, want);
    }
}

#[test]
fn lanes_with_equal_values() {
    let of = |code: &str| threads_on(Arch::Sm70, code, 32, Checks::ALL).unwrap();
    let classes = of("rem.u32 %r2, %r1, 3; match.any.sync.b32 %r0, %r2, -1;");
    let class = |n: u32| (0..32).filter(|l| l % 3 == n).fold(0, |all, l| all | 1u32 << l);
    assert_eq!(classes, (0..32).map(|l| class(l % 3)).collect::<Vec<_>>());
    // the upper halves differ
    let wide = of("shr.u32 %r2, %r1, 4; mov.b64 %rd2, {7, %r2}; match.any.sync.b64 %r0, %rd2, -1;");
    assert_eq!(wide, (0..32).map(|l| if l < 16 { 0xffff } else { 0xffff_0000 }).collect::<Vec<_>>());
    let all = |value: &str| {
        of(&format!(
            "mov.u32 %r3, 5; {value} match.all.sync.b32 %r0|%p1, %r3, -1; selp.u32 %r2, 0, 1, %p1; add.u32 %r0, %r0, %r2;"
        ))
    };
    assert_eq!(all(""), [u32::MAX; 32]);
    assert_eq!(all("shr.u32 %r3, %r1, 4;"), [1; 32]);
}

#[test]
fn orders_sleep_and_half_atomics() {
    for (code, want) in [
        ("nanosleep.u32 100; fence.sc.sys; fence.acq_rel.gpu; fence.cta; mov.u32 %r0, 3;", 3),
        ("st.relaxed.gpu.global.u32 [%rd1], 4; ld.acquire.sys.global.u32 %r0, [%rd1];", 4),
        ("st.release.cta.global.v2.u32 [%rd1], {5, 6}; ld.relaxed.cta.v2.u32 {%r2, %r0}, [%rd1];", 6),
        ("atom.acq_rel.gpu.global.max.u32 %r2, [%rd1], 9; ld.relaxed.gpu.u32 %r0, [%rd1];", 9),
        ("red.release.gpu.global.or.b32 [%rd1], 9; ld.acquire.gpu.u32 %r0, [%rd1];", 9),
        (
            "mov.b16 %h1, 0; mov.b16 %h2, 7; atom.cas.b16 %h3, [%rd1], %h1, %h2; ld.volatile.u16 %r0, [%rd1];",
            7,
        ),
        // 65504 + 65504: the sum overflows, and an exchange would not
        (
            "mov.b16 %h1, 0x7bff; atom.global.add.noftz.f16 %h3, [%rd1], %h1; atom.global.add.noftz.f16 %h3, [%rd1], %h1; ld.volatile.u16 %r0, [%rd1];",
            0x7c00,
        ),
    ] {
        gives(Arch::Sm70, code, want);
    }
    // each adds 1; of a pair of halves the other stays
    let sum = "mov.b16 %h1, 0x3c00; add.u64 %rd1, %rd1, 2; red.relaxed.gpu.global.add.noftz.f16 [%rd1], %h1; bar.sync 0; ld.global.u32 %r0, [%rd1+-2];";
    let sum = threads_on(Arch::Sm70, sum, 32, Checks::ALL).unwrap();
    assert_eq!(sum, [0x5000_0000; 32], "{sum:x?}");
    let shared = "mov.b16 %h1, 0x3c00; st.shared.u32 [s], 0; bar.sync 0; atom.shared.add.noftz.f16 %h2, [s], %h1; bar.sync 0; ld.shared.u32 %r0, [s];";
    assert_eq!(threads_on(Arch::Sm70, shared, 32, Checks::ALL).unwrap(), [0x5000; 32]);
}

#[test]
fn approximations_of_turing() {
    for (code, want) in [
        ("tanh.approx.f32 %f1, 0f3F000000; mov.b32 %r0, %f1;", 0.5f64.tanh() as f32),
        ("tanh.approx.f32 %f1, 0fFF800000; mov.b32 %r0, %f1;", -1.0),
    ] {
        gives(Arch::Sm75, code, want.to_bits());
    }
    for (code, want) in [
        ("mov.b16 %h1, 0x4200; ex2.approx.f16 %h2, %h1; cvt.u32.u16 %r0, %h2;", 0x4800),
        ("mov.b32 %r2, 0xbc004000; ex2.approx.f16x2 %r0, %r2;", 0x3800_4400),
        ("mov.b32 %r2, 0x7c00fc00; tanh.approx.f16x2 %r0, %r2;", 0x3c00_bc00),
        ("mov.b16 %h1, 0x7e01; tanh.approx.f16 %h2, %h1; cvt.u32.u16 %r0, %h2;", 0x7fff),
    ] {
        gives(Arch::Sm75, code, want);
    }
}

fn refusal(device: Arch, target: &str, version: &str, code: &str) -> String {
    let text = format!(
        ".version {version} .target {target} .address_size 64 .visible .entry k() {{
.reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .b16 %h<4>; .reg .pred %p<4>; {code} ret; }}"
    );
    Module::parse_for(&text, device).map_or_else(|e| e.reason, |_| String::new())
}

#[test]
fn targets_decide_on_instructions_and_devices_on_targets() {
    let nothing = "";
    assert_eq!(refusal(Arch::Sm70, "sm_75", "6.4", nothing), ".target sm_75: this device is sm_70");
    assert_eq!(refusal(Arch::Sm75, "sm_80", "7.0", nothing), ".target sm_80: this device is sm_75");
    for target in ["sm_50", "sm_61", "sm_70", "sm_72", "sm_75"] {
        assert_eq!(refusal(Arch::Sm75, target, "6.4", nothing), "");
    }
    let sleep = "nanosleep.u32 1;";
    let refused = refusal(Arch::Sm75, "sm_61", "6.4", sleep);
    assert_eq!(refused, "`nanosleep.u32` needs sm_70 or newer, the target is sm_61");
    assert_eq!(refusal(Arch::Sm75, "sm_72", "6.4", sleep), "");
    for (code, word) in [
        ("ex2.approx.f16 %h0, %h1;", "needs sm_75 or newer, the target is sm_70"),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r1];", "needs sm_75 or newer"),
        (
            "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r0, %r1}, {%r0, %r1}, {%r2}, {%r0, %r1};",
            "m16n8k8 needs sm_75",
        ),
        ("redux.sync.add.s32 %r0, %r1, -1;", "needs sm_80"),
        ("wmma.load.a.sync.aligned.m16n16k16.shared.row.f16 {%r0}, [%rd1];", "unknown or unsupported"),
        ("shfl.bfly.b32 %r0, %r1, 1, 31;", "PTX 6.4 and later have shfl.sync alone"),
        ("vote.ballot.b32 %r0, %p1;", "PTX 6.4 and later have vote.sync alone"),
        ("ld.relaxed.global.u32 %r0, [%rd1];", "scope"),
        ("ld.release.gpu.global.u32 %r0, [%rd1];", "loads acquire"),
        ("st.acquire.gpu.global.u32 [%rd1], %r0;", "stores release"),
        ("red.acquire.gpu.global.add.u32 [%rd1], %r0;", "does not exist"),
        ("atom.global.add.f16 %h0, [%rd1], %h1;", "does not exist"),
        ("fence.acq_rel;", "scope"),
        ("tanh.approx.ftz.f32 %r0, %r1;", "sm_75"),
    ] {
        let reason = refusal(Arch::Sm70, "sm_70", "6.4", code);
        assert!(reason.contains(word), "{code}: {reason}");
    }
    assert_eq!(refusal(Arch::Sm70, "sm_70", "6.3", "shfl.bfly.b32 %r0, %r1, 1, 31;"), "");
}

/// Shared memory beyond 48 KB, which sm_61 has for no block.
#[test]
fn a_block_may_have_more_shared_memory() {
    const TEXT: &str =
        ".version 6.4 .target sm_61 .address_size 64 .extern .shared .b8 s[]; .visible .entry k() {
.reg .b32 %r; mov.u32 %r, s; st.shared.u32 [%r+61440], 1; ret; }";
    for (arch, bytes) in [(Arch::Sm61, 48), (Arch::Sm70, 96), (Arch::Sm75, 64)] {
        let mut gpu = Gpu::new(Config { card: arch.card(), ..Config::default() });
        let module = gpu.load(Module::parse(TEXT).unwrap()).unwrap();
        let mut with = |kib: u32| {
            let launch = Launch { grid: [1; 3], block: [1; 3], dynamic_shared: kib << 10, params: &[] };
            gpu.launch(&module, "k", launch)
        };
        assert_eq!(with(bytes + 1).unwrap_err().kind, FindingKind::InvalidLaunch);
        assert_eq!(with(bytes).is_ok(), bytes > 60);
    }
}

#[test]
fn the_driver_reports_the_architecture() {
    for (arch, card) in [(Arch::Sm61, "gtx1080"), (Arch::Sm70, "v100"), (Arch::Sm75, "t4")] {
        let card = Card::of_any_arch(card).unwrap();
        let _turn = driver(Config { card, ..Config::default() });
        let attribute = |n: c_int| {
            let mut value: c_int = -1;
            let f = pascaline_virtual_gpu::symbol("cuDeviceGetAttribute").unwrap();
            // SAFETY: the symbol is a function of the driver API with these parameters.
            let f: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> u32 = unsafe { std::mem::transmute(f) };
            // SAFETY: the pointer is to a variable of this function.
            assert_eq!(unsafe { f(&mut value, n, 0) }, 0);
            value
        };
        let got = [75, 76, 39, 81, 82, 97, 106, 8, 16].map(attribute);
        let want = match arch {
            Arch::Sm61 => [6, 1, 2048, 96 << 10, 64 << 10, 48 << 10, 32, 48 << 10, 20],
            Arch::Sm70 => [7, 0, 2048, 96 << 10, 64 << 10, 96 << 10, 32, 48 << 10, 80],
            Arch::Sm75 => [7, 5, 1024, 64 << 10, 64 << 10, 64 << 10, 16, 48 << 10, 40],
        };
        assert_eq!(got, want, "{}", arch.name());
        let mut capability: [c_int; 2] = [-1; 2];
        let [major, minor] = &mut capability;
        call!("cuDeviceComputeCapability", (*mut c_int, *mut c_int, c_int), major, minor, 0);
        assert_eq!(capability, want[..2], "{}", arch.name());
    }
    let _turn = driver(Config::default());
}

type Handle = *mut c_void;

/// The result of loading a text, and the module.
fn load(text: &str) -> (u32, Handle) {
    let (mut context, mut module): (Handle, Handle) = (null_mut(), null_mut());
    call!("cuCtxCreate_v2", (*mut Handle, c_uint, c_int), &mut context, 0, 0);
    let text = CString::new(text).unwrap();
    (code!("cuModuleLoadData", (*mut Handle, *const c_char), &mut module, text.as_ptr()), module)
}

/// The same text, also after another card has loaded it.
#[test]
fn the_driver_loads_what_its_device_can_run() {
    const TEXT: &str = ".version 7.0 .target sm_75 .address_size 64 .visible .entry k() { ret; }";
    for (arch, want) in [(Arch::Sm75, 0), (Arch::Sm70, 218), (Arch::Sm75, 0), (Arch::Sm61, 218)] {
        let _turn = driver(Config { card: arch.card(), ..Config::default() });
        assert_eq!(load(TEXT).0, want, "{}", arch.name());
    }
    let _turn = driver(Config::default());
}

#[test]
fn a_kernel_opts_in_to_more_shared_memory() {
    const TEXT: &str =
        ".version 6.4 .target sm_61 .address_size 64 .extern .shared .b8 s[]; .visible .entry k() { ret; }";
    const MOST_DYNAMIC: c_int = 8;
    for (arch, most) in [(Arch::Sm61, 48), (Arch::Sm70, 96), (Arch::Sm75, 64)] {
        let _turn = driver(Config { card: arch.card(), ..Config::default() });
        let (module, mut f): (Handle, Handle) = (load(TEXT).1, null_mut());
        call!("cuModuleGetFunction", (*mut Handle, Handle, *const c_char), &mut f, module, c"k".as_ptr());
        let launch = |kib: c_uint| launch_kernel(f, [1; 3], [32, 1, 1], kib << 10, null_mut(), null_mut());
        let opt_in =
            |kib: c_int| code!("cuFuncSetAttribute", (Handle, c_int, c_int), f, MOST_DYNAMIC, kib << 10);
        assert_eq!([launch(48), launch(49)], [0, 1], "{}", arch.name());
        assert_eq!([opt_in(most), opt_in(most + 1)], [0, 1], "{}", arch.name());
        assert_eq!([launch(most as c_uint), launch(most as c_uint + 1)], [0, 1], "{}", arch.name());
    }
    let _turn = driver(Config::default());
}
