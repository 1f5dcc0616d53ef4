//! Each check has a kernel that commits exactly its fault, and a similar one that does not.

use pascaline_virtual_gpu::{Checks, Config, Finding, FindingKind, Gpu, Launch, LaunchReport, Module};

const HEAD: &str = ".version 6.4\n.target sm_61\n.address_size 64\n.visible .entry faulty(.param .u64 p) {\n\
    .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .b16 %h<4>; .reg .pred %p<4>; .shared .align 16 .b8 s[256]; .local .align 8 .b8 l[16];\n\
    ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; shl.b32 %r2, %r1, 2; mov.u32 %r3, s; add.u32 %r3, %r3, %r2;\n";

/// Runs `code` (which begins on line 7) with a buffer of 64 written words, then 64 unwritten ones.
fn run_with(config: Config, grid: u32, threads: u32, code: &str) -> Result<LaunchReport, Finding> {
    let mut gpu = Gpu::new(config);
    let module = gpu.load(Module::parse(&format!("{HEAD}{code}\nret;\n}}")).unwrap()).unwrap();
    let p = gpu.alloc(512).unwrap();
    gpu.write(p, &[1; 256]).unwrap();
    let params = p.to_le_bytes();
    let launch = Launch { grid: [grid, 1, 1], block: [threads, 1, 1], dynamic_shared: 0, params: &params };
    gpu.launch(&module, "faulty", launch)
}

/// With a limit that ends warps which wait for ever.
fn run(threads: u32, code: &str) -> Result<LaunchReport, Finding> {
    run_with(Config { instruction_limit: 1 << 26, ..Config::default() }, 1, threads, code)
}

#[track_caller]
fn caught(threads: u32, code: &str, kind: FindingKind, line: u32, thread: u32) -> Finding {
    let f = run(threads, code).expect_err("the fault must be found");
    assert_eq!((f.kind, f.line, f.thread, f.kernel.as_str()), (kind, line, [thread, 0, 0], "faulty"), "{f}");
    f
}

#[track_caller]
fn clean(threads: u32, code: &str) {
    if let Err(f) = run(threads, code) {
        panic!("false alarm: {f}");
    }
}

#[test]
fn global_out_of_bounds() {
    let f = caught(64, "st.global.u32 [%rd3+260], %r1;", FindingKind::OutOfBounds, 7, 63);
    assert_eq!(f.kind.code(), 700);
    assert!(f.message.contains("0 bytes past the end of an allocation of 512 bytes"), "{f}");
    caught(32, "ld.global.u32 %r4, [%rd1+-4];", FindingKind::OutOfBounds, 7, 0);
    // A vector that begins inside and ends outside.
    caught(
        32,
        "ld.global.u32 %r4, [%rd1];\nld.global.v2.u32 {%r4, %r5}, [%rd1+512];",
        FindingKind::OutOfBounds,
        8,
        0,
    );
    caught(1, "mov.u64 %rd4, 0; ld.u32 %r4, [%rd4];", FindingKind::OutOfBounds, 7, 0);
    clean(64, "st.global.u32 [%rd3+256], %r1;");
}

#[test]
fn an_access_that_begins_in_an_allocation_and_ends_outside() {
    let mut gpu = Gpu::new(Config::default());
    let text = format!("{HEAD}ld.global.u32 %r4, [%rd1+4];\nret;\n}}");
    let module = gpu.load(Module::parse(&text).unwrap()).unwrap();
    let p = gpu.alloc(6).unwrap();
    gpu.write(p, &[0; 6]).unwrap();
    let params = p.to_le_bytes();
    let launch = Launch { grid: [1; 3], block: [32, 1, 1], dynamic_shared: 0, params: &params };
    let f = gpu.launch(&module, "faulty", launch).unwrap_err();
    assert_eq!((f.kind, f.line), (FindingKind::OutOfBounds, 7), "{f}");
    let message = format!("4-byte load at 0x{:x}, which crosses the end of an allocation of 6 bytes", p + 4);
    assert_eq!(f.message, message);
}

#[test]
fn an_off_by_one_in_a_bound() {
    let body =
        |cmp: &str| format!("setp.{cmp}.u32 %p1, %r1, 128;\n@%p1 bra E;\nst.global.u32 [%rd3], %r1;\nE:");
    clean(160, &body("ge"));
    caught(160, &body("gt"), FindingKind::OutOfBounds, 9, 128);
}

#[test]
fn shared_and_local_out_of_bounds() {
    caught(65, "st.shared.u32 [%r3], %r1;", FindingKind::OutOfBounds, 7, 64);
    clean(64, "st.shared.u32 [%r3], %r1;");
    // the end of an array is not the begin of the next one
    let next =
        |at: &str| format!(".shared .align 4 .b8 t[8]; st.shared.u32 [t], %r1;\nst.shared.u32 [{at}], %r1;");
    caught(1, &next("s+256"), FindingKind::OutOfBounds, 8, 0);
    caught(1, &next("t+8"), FindingKind::OutOfBounds, 8, 0);
    clean(1, &next("s+252"));
    clean(1, &next("t+4"));
    caught(1, "st.local.u32 [l+16], %r1;", FindingKind::OutOfBounds, 7, 0);
    clean(1, "st.local.u32 [l+12], %r1;");
}

#[test]
fn misaligned() {
    let f = caught(32, "ld.global.u32 %r4, [%rd1+2];", FindingKind::Misaligned, 7, 0);
    assert_eq!(f.kind.code(), 716);
    caught(32, "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd3];", FindingKind::Misaligned, 7, 1);
    caught(32, "st.shared.u64 [%r3], %rd1;", FindingKind::Misaligned, 7, 1);
    caught(1, "st.local.u32 [l+2], %r1;", FindingKind::Misaligned, 7, 0);
}

#[test]
fn use_after_free() {
    let mut gpu = Gpu::new(Config::default());
    let text = format!("{HEAD}ld.global.u32 %r4, [%rd3];\nret;\n}}");
    let module = gpu.load(Module::parse(&text).unwrap()).unwrap();
    let p = gpu.alloc(512).unwrap();
    gpu.write(p, &[0; 512]).unwrap();
    gpu.free(p).unwrap();
    let params = p.to_le_bytes();
    let launch = Launch { grid: [1; 3], block: [32, 1, 1], dynamic_shared: 0, params: &params };
    let f = gpu.launch(&module, "faulty", launch).unwrap_err();
    assert_eq!((f.kind, f.line), (FindingKind::UseAfterFree, 7), "{f}");
}

#[test]
fn reads_of_memory_never_written() {
    clean(64, "ld.global.u32 %r4, [%rd3];");
    caught(65, "ld.global.u32 %r4, [%rd3];", FindingKind::Uninitialized, 7, 64);
    caught(1, "ld.shared.u32 %r4, [%r3];", FindingKind::Uninitialized, 7, 0);
    caught(1, "st.shared.u16 [%r3], %h1;\nld.shared.u32 %r4, [%r3];", FindingKind::Uninitialized, 8, 0);
    // halves of what each lane loads, with space between the lanes
    let place = "mov.u32 %r4, s; mad.lo.u32 %r4, %r1, 32, %r4;";
    let load = "ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r4];";
    let [low, high] = [0, 8].map(|at| format!("st.shared.u64 [%r4+{at}], %rd1;"));
    caught(2, &format!("{place} {low}\n{load}"), FindingKind::Uninitialized, 8, 0);
    caught(2, &format!("{place} {high}\n{load}"), FindingKind::Uninitialized, 8, 0);
    clean(2, &format!("{place} {low} {high}\n{load}"));
    clean(
        1,
        "mov.b16 %h1, 0; st.shared.u16 [%r3], %h1; st.shared.u16 [%r3+2], %h1; ld.shared.u32 %r4, [%r3];",
    );
    caught(1, "st.local.u32 [l], %r1;\nld.local.u64 %rd4, [l];", FindingKind::Uninitialized, 8, 0);
    caught(1, "red.shared.add.u32 [s], 1;", FindingKind::Uninitialized, 7, 0);
    let off = Config { checks: Checks { uninitialized: false, ..Checks::ALL }, ..Config::default() };
    run_with(off, 1, 65, "ld.global.u32 %r4, [%rd3];").unwrap();
}

/// Moves of structures copy padding, which nothing writes.
#[test]
fn padding_is_moved_through_registers_that_do_nothing_else() {
    let found = FindingKind::Uninitialized;
    // [l] has a word and a byte, of which 3 bytes of padding follow
    let made = "mov.b16 %h1, 7; st.local.u32 [l], %r1; st.local.u8 [l+4], %h1;";
    let moved = format!("{made} ld.local.u64 %rd4, [l]; st.local.u64 [l+8], %rd4;");
    let generic = "mov.u64 %rd5, l; cvta.local.u64 %rd5, %rd5; ld.u64 %rd4, [%rd5]; st.u64 [%rd5+8], %rd4;";
    let parts = "ld.local.v2.u32 {%r4, %r5}, [l]; st.local.v2.u32 [l+8], {%r4, %r5};";
    let bytes: String =
        (0..8).map(|n| format!("ld.local.u8 %r4, [l+{n}]; st.local.u8 [l+{}], %r4;\n", 8 + n)).collect();
    for moved in
        [&moved, &format!("{made} {generic}"), &format!("{made} {parts}"), &format!("{made} {bytes}")]
    {
        clean(
            40,
            &format!("{moved} ld.local.u32 %r6, [l+8]; ld.local.u8 %r7, [l+12]; add.u32 %r6, %r6, %r7;"),
        );
        // the copy's padding is as unwritten as the first one, also moved again
        caught(40, &format!("{}\nld.local.u8 %r7, [l+13];", moved.replace('\n', " ")), found, 8, 0);
        let again = format!("{} ld.local.u64 %rd6, [l+8]; st.local.u64 [l], %rd6;", moved.replace('\n', " "));
        caught(40, &format!("{again}\nld.local.u32 %r7, [l+4];"), found, 8, 0);
        clean(40, &format!("{again}\nld.local.u8 %r7, [l+4];"));
        // until it is written
        clean(40, &format!("{again} st.local.u32 [l+4], 0; ld.local.u32 %r7, [l+4];"));
    }
    // any other use of the register is one of the padding
    for other in [
        "add.u64 %rd6, %rd4, 1;",
        "st.global.u64 [%rd1], %rd4;",
        "st.shared.u64 [s], %rd4;",
        "setp.eq.u64 %p1, %rd4, 0;",
        "cvt.u32.u64 %r6, %rd4;",
        "mov.b64 {%r6, %r7}, %rd4;",
        "mov.b64 %rd4, 0;",
        "ld.global.u32 %r6, [%rd4];",
        "atom.global.exch.b64 %rd6, [%rd1], %rd4;",
    ] {
        caught(
            40,
            &format!("{made}\nld.local.u64 %rd4, [l]; st.local.u64 [l+8], %rd4; {other}"),
            found,
            8,
            0,
        );
    }
    caught(40, &format!("{made}\nld.local.s32 %rd4, [l+4]; st.local.u64 [l+8], %rd4;"), found, 8, 0);
    caught(
        40,
        &format!("{made}\nld.local.v2.u32 {{%r4, %r5}}, [l]; st.local.u64 [l+8], %rd1; add.u32 %r5, %r5, 1;"),
        found,
        8,
        0,
    );
    // where a generic address decides, at the store; of the lanes that have unwritten bytes
    let global =
        format!("{made} setp.ge.u32 %p1, %r1, 35; @!%p1 st.local.u32 [l+4], 0; ld.local.u64 %rd4, [l];\n");
    let f = caught(40, &format!("{global}st.u64 [%rd1], %rd4;"), found, 8, 35);
    assert!(f.message.ends_with("of bytes from local memory that nothing has written"), "{f}");
    let checks = Checks { races: false, ..Checks::ALL };
    run_with(Config { checks, ..Config::default() }, 1, 35, &format!("{global}st.u64 [%rd1], %rd4;"))
        .unwrap();
    let some = format!("{global}@!%p1 st.u64 [%rd1], %rd4;");
    run_with(Config { checks, ..Config::default() }, 1, 40, &some).unwrap();
    let to_shared = "mov.u64 %rd5, s; cvta.shared.u64 %rd5, %rd5; st.u64 [%rd5+8], %rd4;";
    let f =
        run_with(Config { checks, ..Config::default() }, 1, 40, &format!("{global}{to_shared}")).unwrap_err();
    assert_eq!((f.kind, f.line, f.thread), (found, 8, [35, 0, 0]), "{f}");
    assert!(f.message.starts_with("8-byte store at shared address 0x8 of bytes"), "{f}");
    // the half that is stored counts, and what is loaded last
    clean(
        1,
        &format!(
            "{made} ld.local.u64 %rd4, [l]; mov.u64 %rd5, s; cvta.shared.u64 %rd5, %rd5; st.u32 [%rd5], %rd4;"
        ),
    );
    let last = "ld.global.u64 %rd4, [%rd1]; st.local.u64 [l+8], %rd4; ld.local.u64 %rd6, [l+8]; add.u64 %rd6, %rd6, 1;";
    clean(40, &format!("{moved} {last}"));
}

/// A result in a register has no note of unwritten bytes, so a function's parameters and results are other uses.
#[test]
fn unwritten_bytes_do_not_leave_a_function() {
    let run = |function: &str, code: &str| {
        let text = format!(
            ".version 6.4\n.target sm_61\n.address_size 64\n.shared .align 16 .b8 s[16];
.func (.param .b32 r) f(.param .align 4 .b8 x[8]) {{ .reg .b32 %r<4>; .local .align 4 .b8 o[8];\n{function} ret; }}
.func (.param .b32 r) g(.param .b64 x) {{ st.param.b32 [r], 1; ret; }}
.func h(.param .b64 p) {{ .reg .b64 %rd; .reg .b32 %r<4>; ld.param.b64 %rd, [p];
mov.u32 %r0, 1; mov.u32 %r1, 1; mov.u32 %r2, 1; mov.u32 %r3, 1; st.v4.u32 [%rd], {{%r0, %r1, %r2, %r3}}; ret; }}
.visible .entry k() {{ .reg .b32 %r<4>; .reg .b64 %rd<2>; .local .align 8 .b8 l[8];\n{code} ret; }}"
        );
        let mut gpu = Gpu::new(Config::default());
        let module = gpu.load(Module::parse(&text).unwrap_or_else(|e| panic!("{text}\n{e}"))).unwrap();
        let launch = Launch { grid: [1; 3], block: [1; 3], dynamic_shared: 0, params: &[] };
        gpu.launch(&module, "k", launch).map(|_| ()).map_err(|f| (f.kind, f.line))
    };
    let in_f = Err((FindingKind::Uninitialized, 6));
    let in_k = Err((FindingKind::Uninitialized, 11));
    let call =
        "{ .param .align 4 .b8 p[8]; ld.local.u32 %r1, [l]; st.param.b32 [p], %r1; call (%r2), f, (p); }";
    let set = "st.local.u32 [l], 1;";
    let returns = "ld.local.u32 %r1, [o]; st.param.b32 [r], %r1;";
    assert_eq!(run(returns, &format!("{set} {call}")), in_f);
    assert_eq!(run("st.param.b32 [r], 1;", call), in_k);
    let register = "ld.local.b64 %rd1, [l]; st.local.b64 [l], %rd1; call (%r2), g, (%rd1);";
    assert_eq!(run("", &format!("{set} {register}")), in_k);
    // the half of a parameter that was not given is moved and not used
    let moves =
        "ld.param.b32 %r1, [x]; st.local.u32 [o], %r1; ld.param.b32 %r2, [x+4]; st.local.u32 [o+4], %r2;";
    let result = "ld.local.u32 %r3, [o]; add.u32 %r3, %r3, 1; st.param.b32 [r], %r3;";
    assert_eq!(run(&format!("{moves} {result}"), &format!("{set} {call}")), Ok(()));
    let wrong = result.replace("[o]", "[o+4]");
    assert_eq!(run(&format!("{moves} {wrong}"), &format!("{set} {call}")), in_f);
    // another function has its registers where those were
    let then = format!("{set} {call} mov.u64 %rd1, s; cvta.shared.u64 %rd1, %rd1; call h, (%rd1);");
    assert_eq!(run(&format!("{moves} {result}"), &then), Ok(()));
}

/// Thread t writes word t and reads word t ^ 32: another warp's.
const EXCHANGE: [&str; 3] = [
    "st.shared.u32 [%r3], %r1;\n",
    "bar.sync 0;\n",
    "xor.b32 %r4, %r2, 128;\nmov.u32 %r5, s; add.u32 %r4, %r4, %r5;\nld.shared.u32 %r6, [%r4];",
];

#[test]
fn shared_race_between_warps() {
    let [write, barrier, read] = EXCHANGE;
    clean(64, &format!("{write}{barrier}{read}"));
    let uninitialized_off =
        Config { checks: Checks { uninitialized: false, ..Checks::ALL }, ..Config::default() };
    let f = run_with(uninitialized_off.clone(), 1, 64, &format!("{write}{read}")).unwrap_err();
    assert_eq!(f.kind, FindingKind::SharedRace, "{f}");
    assert!(f.message.contains("at line"), "{f}");
    // Write after read: the loop's second barrier is missing.
    let f = run(64, &format!("{write}{barrier}{read}\n{write}")).unwrap_err();
    assert!(f.kind == FindingKind::SharedRace && matches!(f.line, 11 | 12), "{f}");
    clean(64, &format!("{write}{barrier}{read}\n{barrier}{write}"));
    let off = Config { checks: Checks { races: false, ..uninitialized_off.checks }, ..uninitialized_off };
    run_with(off, 1, 64, &format!("{write}{read}")).unwrap();
}

#[test]
fn races_know_named_barriers_and_atomics() {
    // Only warps 0 and 1 meet at barrier 1; warp 2 reads without having met them.
    let meet = "setp.ge.u32 %p1, %r1, 64;\n@%p1 bra R;\nst.shared.u32 [s+0], 5;\nbar.sync 1, 64;\nR:\n";
    let writer = "setp.ne.u32 %p1, %r1, 0;\n@!%p1 st.shared.u32 [s], %r1;\nsetp.ge.u32 %p2, %r1, 64;\n@!%p2 bar.sync 1, 64;\n";
    let reader = "setp.eq.u32 %p3, %r1, 32;\n@%p3 ld.shared.u32 %r6, [s];";
    clean(96, &format!("{writer}{reader}"));
    let other = "setp.eq.u32 %p3, %r1, 64;\n@%p3 ld.shared.u32 %r6, [s];";
    let quiet = Config { checks: Checks { uninitialized: false, ..Checks::ALL }, ..Config::default() };
    let f = run_with(quiet, 1, 96, &format!("{writer}{other}")).unwrap_err();
    assert_eq!(f.kind, FindingKind::SharedRace, "{f}");
    // Two warps store to the same word without a barrier: a race even if the values are equal.
    assert_eq!(run(96, meet).unwrap_err().kind, FindingKind::SharedRace);
    let zero = "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.u32 [s], 0;\nbar.sync 0;\n";
    clean(96, &format!("{zero}red.shared.add.u32 [s], 1;\nbar.sync 0;\nld.shared.u32 %r6, [s];"));
    let f = run(96, &format!("{zero}red.shared.add.u32 [s], 1;\nld.shared.u32 %r6, [s];")).unwrap_err();
    assert_eq!(f.kind, FindingKind::SharedRace, "{f}");
}

/// Code whose parts run one after the other, each by the warp of that number, in which %p3 holds for lane 3 alone.
/// Part n is on line 8 + 3 n.
fn in_turn(parts: &[(u32, &str)]) -> String {
    let mut code = "and.b32 %r4, %r1, 31; setp.eq.u32 %p3, %r4, 3; shr.u32 %r4, %r1, 5;".to_owned();
    for (n, (warp, part)) in parts.iter().enumerate() {
        let (turn, next) = (0x0101_0101 + n, 0x0101_0102 + n);
        code += &format!(
            " setp.ne.u32 %p1, %r4, {warp}; @%p1 bra E{n};\n\
            L{n}: ld.volatile.global.u32 %r7, [%rd1]; setp.ne.u32 %p2, %r7, {turn}; @%p2 bra L{n};\n{part}\n\
            bar.warp.sync -1; st.volatile.global.u32 [%rd1], {next}; E{n}:"
        );
    }
    // the first part comes two lines after the code's first
    code.replacen('\n', " ", 1)
}

/// Which accesses of lanes 3 race, and what is said about the other one.
#[test]
fn races_in_every_order() {
    const W: &str = "@%p3 st.shared.u32 [s+64], 5;";
    const R: &str = "@%p3 ld.shared.u32 %r6, [s+64];";
    const A: &str = "@%p3 red.shared.add.u32 [s+64], 5;";
    const BOTH: &str = "bar.sync 3, 64;";
    const ARRIVE: &str = "bar.arrive 3, 64;";
    let checks = Checks { uninitialized: false, ..Checks::ALL };
    let config = Config { checks, instruction_limit: 1 << 26, ..Config::default() };
    // The parts, and of a race the parts it is between and what the first of the two did.
    type Race = Option<(usize, &'static str, usize)>;
    let cases: &[(&[(u32, &str)], Race)] = &[
        (&[(0, W), (1, R)], Some((0, "wrote", 1))),
        (&[(1, W), (0, R)], Some((0, "wrote", 1))),
        (&[(1, W), (0, W)], Some((0, "wrote", 1))),
        (&[(1, R), (0, W)], Some((0, "read", 1))),
        (&[(0, R), (1, W)], Some((0, "read", 1))),
        (&[(0, R), (1, R)], None),
        (&[(1, R), (1, W), (1, R), (1, W)], None),
        (&[(0, A), (1, A)], None),
        (&[(0, A), (1, W)], Some((0, "wrote", 1))),
        (&[(1, W), (0, A)], Some((0, "wrote", 1))),
        (&[(1, A), (0, R)], Some((0, "wrote", 1))),
        (&[(0, R), (1, R), (0, W)], Some((1, "read", 2))),
        // Accesses before an arrival are ordered, those after it are not.
        (&[(1, W), (1, ARRIVE), (0, BOTH), (0, R)], None),
        (&[(1, ARRIVE), (1, W), (0, BOTH), (0, R)], Some((1, "wrote", 3))),
        (&[(1, R), (1, ARRIVE), (0, BOTH), (0, W)], None),
        (&[(1, ARRIVE), (1, R), (0, BOTH), (0, W)], Some((1, "read", 3))),
    ];
    for (parts, race) in cases {
        let got = run_with(config.clone(), 1, 64, &in_turn(parts)).err();
        let Some((first, did, second)) = *race else {
            assert_eq!(got, None, "{parts:?}");
            continue;
        };
        let f = got.unwrap_or_else(|| panic!("{parts:?} is a race"));
        let thread = |part: usize| 32 * parts[part].0 + 3;
        assert_eq!(
            (f.kind, f.line, f.thread),
            (FindingKind::SharedRace, 8 + 3 * second as u32, [thread(second), 0, 0])
        );
        let (verb, line) = (
            match parts[second].1 {
                W => "store",
                R => "load",
                _ => "atomic",
            },
            8 + 3 * first,
        );
        let other = format!(
            "4-byte {verb} at shared address 0x40, which thread ({},0,0) {did} at line {line} with no barrier between",
            thread(first)
        );
        assert_eq!(f.message, other, "{parts:?}");
    }
    // Where a later read of the same memory does not race, the warp of the one that does is known.
    for (first, last) in [(1, 0), (0, 1)] {
        let f = run_with(config.clone(), 1, 64, &in_turn(&[(first, R), (last, R), (last, W)])).unwrap_err();
        assert_eq!((f.kind, f.line, f.thread), (FindingKind::SharedRace, 14, [32 * last + 3, 0, 0]), "{f}");
        let other =
            format!("4-byte store at shared address 0x40, which warp {first} read with no barrier between");
        assert_eq!(f.message, other);
    }
}

/// A load that is looked at lane by lane, since one of its words was stored by another warp, though before a barrier of both: a word that
/// a lane of its own warp has stored is right by lockstep alone.
#[test]
fn lanes_rely_on_lockstep_if_they_may() {
    const LOAD: &str = "and.b32 %r5, %r1, 31; setp.eq.u32 %p2, %r5, 5; @%p2 st.shared.u32 [s+128], 6; setp.gt.u32 %p2, %r5, 3; \
        mov.u32 %r5, s; @%p2 add.u32 %r5, %r5, 64; ld.shared.u32 %r6, [%r5+64];";
    let parts =
        [(1, "@%p3 st.shared.u32 [s+64], 5;"), (1, "bar.arrive 3, 64;"), (0, "bar.sync 3, 64;"), (0, LOAD)];
    let mut config = Config { instruction_limit: 1 << 26, ..Config::default() };
    run_with(config.clone(), 1, 64, &in_turn(&parts)).unwrap();
    config.lockstep = false;
    let f = run_with(config, 1, 64, &in_turn(&parts)).unwrap_err();
    assert_eq!((f.kind, f.line, f.thread), (FindingKind::SharedRace, 17, [4, 0, 0]), "{f}");
}

#[test]
fn a_block_that_reads_what_another_writes_races() {
    let code = |order: &str| {
        format!(
            "mov.u32 %r4, %ctaid.x; setp.ne.u32 %p1, %r4, 0; @%p1 bra R;\nst.global.u32 [%rd1+4], 7; {order}\n\
            st.volatile.global.u32 [%rd1], 9; bra E;\n\
            R: ld.volatile.global.u32 %r5, [%rd1]; setp.ne.u32 %p2, %r5, 9; @%p2 bra R; {order}\nld.global.u32 %r6, [%rd1+4];\nE:"
        )
    };
    let config = Config { instruction_limit: 1 << 26, ..Config::default() };
    run_with(config.clone(), 2, 1, &code("membar.gl;")).unwrap();
    let f = run_with(config, 2, 1, &code("")).unwrap_err();
    assert_eq!((f.kind, f.line), (FindingKind::GlobalRace, 11), "{f}");
    assert!(f.message.contains("at line 8"), "{f}");
}

#[test]
fn lanes_of_one_instruction_that_store_different_values() {
    caught(32, "st.shared.u32 [s], %r1;", FindingKind::SharedRace, 7, 1);
    clean(32, "st.shared.u32 [s], 7;");
    // Neighbouring halves of a word by different warps are no race.
    clean(64, "mov.u32 %r4, s; mad.lo.u32 %r4, %r1, 2, %r4; mov.b16 %h1, 3; st.shared.u16 [%r4], %h1;");
}

#[test]
fn barriers_not_reached_by_all() {
    // Part of a warp.
    let f = run(32, "setp.lt.u32 %p1, %r1, 5;\n@%p1 bra E;\nbar.sync 0;\nE:").unwrap_err();
    assert_eq!((f.kind, f.line, f.thread), (FindingKind::BarrierDivergence, 9, [5, 0, 0]), "{f}");
    assert_eq!(f.kind.code(), 719);
    // A whole warp has left.
    let f = run(64, "setp.lt.u32 %p1, %r1, 32;\n@%p1 ret;\nbar.sync 0;").unwrap_err();
    assert_eq!((f.kind, f.line), (FindingKind::BarrierDivergence, 9), "{f}");
    assert!(f.message.contains("(0,0,0) has exited"), "{f}");
    // Two warps at different barriers.
    let f = run(64, "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra A;\nbar.sync 1;\nbra E;\nA:\nbar.sync 2;\nE:")
        .unwrap_err();
    assert_eq!(f.kind, FindingKind::BarrierDivergence, "{f}");
    clean(64, "bar.sync 0; bar.sync 1, 64; bar.sync 0;");
    clean(64, "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra A;\nbar.sync 3, 64;\nbra E;\nA:\nbar.arrive 3, 64;\nE:");
}

/// Lanes that exit are not waited for: the others of both arms meet before the barrier, where ptxas for sm_61 has its reconvergence point too.
#[test]
fn arms_meet_though_some_of_their_lanes_may_exit() {
    let code = "setp.lt.u32 %p1, %r1, 5;\n@%p1 bra A;\nsetp.gt.u32 %p2, %r1, 99;\n@%p2 bra X;\nadd.u32 %r4, %r1, 1;\nbra B;\n\
        A:\nadd.u32 %r4, %r1, 2;\nB:\nbar.sync 0;\nbra E;\nX:\nexit;\nE:";
    clean(32, code);
    // Where all paths exit, they do not meet: each arm comes to the barrier alone.
    let apart = code.replace("B:\nbar.sync 0;\nbra E;", "bar.sync 0;\nexit;\nB:\nbar.sync 0;\nexit;");
    let f = run(32, &apart).unwrap_err();
    assert_eq!(f.kind, FindingKind::BarrierDivergence, "{f}");
}

#[test]
fn shuffles_without_convergence() {
    let branch = "setp.lt.u32 %p1, %r1, 16;\n@%p1 bra A;\nadd.u32 %r5, %r1, 1;\nshfl.sync.bfly.b32 %r4, %r5, 1, 31, -1;\nbra E;\nA:\nadd.u32 %r5, %r1, 2;\nshfl.sync.bfly.b32 %r4, %r5, 1, 31, -1;\nE:";
    let f = run(32, branch).unwrap_err();
    assert_eq!(f.kind, FindingKind::NotConverged, "{f}");
    assert!(f.line == 10 || f.line == 14, "{f}");
    // With the right mask on each side there is no finding.
    clean(32, &branch.replacen("31, -1", "31, 0xffff0000", 1).replacen("31, -1", "31, 0x0000ffff", 1));
    let f = run(32, "setp.lt.u32 %p1, %r1, 16;\n@%p1 vote.sync.ballot.b32 %r4, %p1, -1;").unwrap_err();
    assert_eq!((f.kind, f.line), (FindingKind::NotConverged, 8), "{f}");
    let f = run(32, "setp.lt.u32 %p1, %r1, 16;\n@%p1 bar.warp.sync -1;").unwrap_err();
    assert_eq!((f.kind, f.line), (FindingKind::NotConverged, 8), "{f}");
    caught(32, "shfl.sync.bfly.b32 %r4, %r1, 1, 31, 0xffff;", FindingKind::NotConverged, 7, 0);
    // Lanes that have exited need not arrive.
    clean(32, "setp.ge.u32 %p1, %r1, 16;\n@%p1 ret;\nshfl.sync.bfly.b32 %r4, %r1, 1, 31, -1;");
}

#[test]
fn convergence_is_not_checked_unless_asked_for() {
    let off = Config { checks: Checks { convergence: false, ..Checks::ALL }, ..Config::default() };
    for code in
        ["@%p1 bar.warp.sync -1;", "@%p1 bar.sync 0;", "@%p1 shfl.sync.bfly.b32 %r4, %r1, 31, 31, -1;"]
    {
        let code = format!("setp.lt.u32 %p1, %r1, 16;\n{code}");
        assert!(run(32, &code).is_err(), "{code}");
        run_with(off.clone(), 1, 32, &code).unwrap();
    }
    // No lane executes it.
    clean(32, "setp.lt.u32 %p1, %r1, 0;\n@%p1 bar.warp.sync 0;");
}

#[test]
fn shuffle_from_an_inactive_lane() {
    let f =
        run(32, "setp.ge.u32 %p1, %r1, 16;\n@%p1 ret;\nshfl.sync.down.b32 %r4, %r1, 1, 31, -1;").unwrap_err();
    assert_eq!((f.kind, f.line, f.thread), (FindingKind::ShuffleInactive, 9, [15, 0, 0]), "{f}");
}

#[test]
fn trap_and_endless_loops() {
    caught(64, "setp.eq.u32 %p1, %r1, 40;\n@%p1 trap;", FindingKind::Trap, 8, 40);
    let config = Config { instruction_limit: 1 << 20, ..Config::default() };
    let f = run_with(config, 1, 32, "L: bra L;").unwrap_err();
    assert_eq!((f.kind, f.kind.code()), (FindingKind::Timeout, 702), "{f}");
}

/// A launch ends, however many blocks it asks for and whatever they do.
#[test]
fn a_launch_has_a_limit_too() {
    let f = run_with(Config::default(), 0x7fff_ffff, 1, "").unwrap_err();
    assert_eq!((f.kind, f.kind.code(), f.line), (FindingKind::Timeout, 702, 0), "{f}");
    // 100 blocks of 32 threads in a loop of 4 instructions, 4096 times
    let code = "mov.u32 %r4, 0;\nL: add.u32 %r4, %r4, 1;\nsetp.lt.u32 %p1, %r4, 4096;\n@%p1 bra L;";
    let launch = |launch_limit| run_with(Config { launch_limit, ..Config::default() }, 100, 32, code);
    let spent = 100 * (Config::BLOCK_COST + 32 * 3 * 4096);
    let f = launch(spent).unwrap_err(); // what is around the loop is beyond
    assert_eq!(f.kind, FindingKind::Timeout, "{f}");
    assert!(f.message.contains("the launch costs more than"), "{f}");
    launch(spent + 100 * 32 * 100).unwrap();
}

#[test]
fn a_panic_path_beside_a_barrier_is_reported_as_the_trap() {
    let code = "setp.eq.u32 %p1, %r1, 7;\n@%p1 bra P;\nbar.sync 0;\nbra E;\nP:\ntrap;\nE:";
    let f = run(32, code).unwrap_err();
    assert!(matches!(f.kind, FindingKind::Trap | FindingKind::BarrierDivergence), "{f}");
    clean(32, &code.replace(", 7;", ", 99;"));
}

#[test]
fn warps_may_wait_for_each_other() {
    // Warp 1 spins until warp 0 has set a flag in global memory, and block 1 until block 0 has.
    let code = "mov.u32 %r4, %ctaid.x; shl.b32 %r5, %r4, 1; shr.u32 %r6, %r1, 5; add.u32 %r5, %r5, %r6;\n\
        L: ld.volatile.global.u32 %r7, [%rd1]; setp.ne.u32 %p1, %r7, %r5; @%p1 bra L;\n\
        and.b32 %r6, %r1, 31; setp.eq.u32 %p2, %r6, 0; add.u32 %r5, %r5, 1; bar.warp.sync -1; @%p2 st.volatile.global.u32 [%rd1], %r5;";
    let mut gpu = Gpu::new(Config { threads: 2, ..Config::default() });
    let module = gpu.load(Module::parse(&format!("{HEAD}{code}\nret;\n}}")).unwrap()).unwrap();
    let p = gpu.alloc(4).unwrap();
    gpu.write(p, &[0; 4]).unwrap();
    let params = p.to_le_bytes();
    let launch = Launch { grid: [4, 1, 1], block: [64, 1, 1], dynamic_shared: 0, params: &params };
    gpu.launch(&module, "faulty", launch).unwrap();
    let mut out = [0; 4];
    gpu.read(p, &mut out).unwrap();
    assert_eq!(out, 8u32.to_le_bytes());
}

#[test]
fn launch_limits() {
    let text = ".version 6.4 .target sm_61 .address_size 64
.visible .entry k() .maxntid 128, 1, 1 { .extern .shared .align 16 .b8 d[]; .shared .b8 s[1000]; .reg .b32 %r<3>; mov.u32 %r1, d; mov.u32 %r2, s; ret; }";
    let mut gpu = Gpu::new(Config::default());
    let module = gpu.load(Module::parse(text).unwrap()).unwrap();
    let mut launch = |grid, block, dynamic_shared| {
        gpu.launch(&module, "k", Launch { grid, block, dynamic_shared, params: &[] })
            .map(|_| ())
            .map_err(|f| f.kind)
    };
    assert_eq!(launch([1; 3], [128, 1, 1], 48 * 1024 - 1008), Ok(()));
    assert_eq!(launch([1; 3], [128, 1, 1], 48 * 1024 - 1007), Err(FindingKind::InvalidLaunch));
    assert_eq!(launch([1; 3], [160, 1, 1], 0), Err(FindingKind::TooManyThreads));
    assert_eq!(launch([1; 3], [2048, 1, 1], 0), Err(FindingKind::InvalidLaunch));
    assert_eq!(launch([1; 3], [1, 1, 65], 0), Err(FindingKind::InvalidLaunch));
    assert_eq!(launch([0, 1, 1], [1; 3], 0), Err(FindingKind::InvalidLaunch));
    assert_eq!(launch([1, 65536, 1], [1; 3], 0), Err(FindingKind::InvalidLaunch));
    let text = ".version 6.4 .target sm_61 .address_size 64
.visible .entry any(.param .u32 p) { ret; } .visible .entry exact(.param .u32 p) .reqntid 8, 8, 1 { ret; }";
    let module = gpu.load(Module::parse(text).unwrap()).unwrap();
    let mut launch = |kernel, grid, block, params: &[u8]| {
        gpu.launch(&module, kernel, Launch { grid, block, dynamic_shared: 0, params })
            .map(|_| ())
            .map_err(|f| f.kind)
    };
    let invalid = Err(FindingKind::InvalidLaunch);
    for block in [[1024, 1, 1], [1, 1024, 1], [1, 16, 64], [32, 32, 1]] {
        assert_eq!(launch("any", [1; 3], block, &[0; 4]), Ok(()), "{block:?}");
    }
    for block in [[1025, 1, 1], [1, 1025, 1], [1, 1, 65], [33, 32, 1], [0, 1, 1]] {
        assert_eq!(launch("any", [1; 3], block, &[0; 4]), invalid, "{block:?}");
    }
    assert_eq!(launch("any", [1, 65535, 1], [1; 3], &[0; 4]), Ok(()));
    assert_eq!(launch("any", [1, 1, 65535], [1; 3], &[0; 4]), Ok(()));
    for grid in [[1, 1, 65536], [0x8000_0000, 1, 1], [1, 0, 1], [1, 1, 0]] {
        assert_eq!(launch("any", grid, [1; 3], &[0; 4]), invalid, "{grid:?}");
    }
    assert_eq!(launch("any", [1; 3], [1; 3], &[0; 3]), invalid);
    assert_eq!(launch("any", [1; 3], [1; 3], &[0; 8]), Ok(()));
    assert_eq!(launch("exact", [1; 3], [8, 8, 1], &[0; 4]), Ok(()));
    assert!(launch("exact", [1; 3], [64, 1, 1], &[0; 4]).is_err());
}

#[test]
fn the_block_of_a_fault_is_named() {
    let code = "mov.u32 %r4, %ctaid.x;\nsetp.ge.u32 %p1, %r4, 5;\n@%p1 trap;";
    for threads in [1, 3] {
        let config = Config { threads, ..Config::default() };
        let f = run_with(config, 40, 32, code).unwrap_err();
        assert_eq!((f.kind, f.line), (FindingKind::Trap, 9), "{f}");
        assert!(f.block[0] >= 5 && f.to_string().contains("PTX line 9, block ("), "{f}");
    }
}

/// The second block is at fault long before the first, which is the one that is named.
#[test]
fn the_lowest_block_at_fault_is_named() {
    let code = "mov.u32 %r4, %ctaid.x; setp.eq.u32 %p1, %r4, 2; @%p1 trap;\n\
        mov.u32 %r5, 0; L: add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 20000; @%p1 bra L;\n\
        and.b32 %r6, %r1, 31; setp.ne.u32 %p1, %r6, 0; @%p1 ret; mul.wide.u32 %rd4, %r4, 4; add.s64 %rd4, %rd1, %rd4;\n\
        atom.global.add.u32 %r7, [%rd4], 1; setp.eq.u32 %p1, %r7, 0x01010108; setp.eq.and.u32 %p2, %r4, 1, %p1;\n@%p2 trap;";
    for threads in [1, 2] {
        let f = run_with(Config { threads, ..Config::default() }, 3, 256, code).unwrap_err();
        assert_eq!((f.kind, f.line, f.block), (FindingKind::Trap, 11, [1, 0, 0]), "{f}");
    }
}

#[test]
fn counters() {
    let code = "ld.global.u32 %r4, [%rd3];\nst.shared.u32 [%r3], %r4;\nbar.sync 0;\nsetp.lt.u32 %p1, %r1, 16;\n@%p1 bra A;\nadd.u32 %r4, %r4, 1;\nA:";
    let report = run(64, code).unwrap();
    let c = report.counters;
    assert_eq!((c.global_loads.requests, c.global_loads.units, c.global_loads.bytes), (2, 8, 256));
    assert_eq!(c.distinct_sectors, 8);
    assert_eq!((c.shared_stores.requests, c.shared_stores.units, c.bank_conflicts), (2, 2, 0));
    assert_eq!((c.barriers, c.branches, c.divergent_branches), (2, 2, 1));
    assert_eq!(c.sectors_per_request(), 4.0);
    // 11 instructions by all threads, the branch by the 16 that take it, the addition by the others, ret by all.
    assert_eq!(c.thread_total(), 64 * 11 + 16 + 48 + 64);
    assert_eq!(c.warp_total(), 2 * 14);
}

/// Thread 35 alone is at fault, which is lane 3 of the second warp.
#[test]
fn a_fault_names_its_thread() {
    let alone = |setup: &str, fault: &str, kind: FindingKind| {
        let code = format!("setp.eq.u32 %p1, %r1, 35; {setup}\n@%p1 {fault}");
        let f = run(64, &code).expect_err(fault);
        assert_eq!((f.kind, f.line, f.thread), (kind, 8, [35, 0, 0]), "{f}");
    };
    alone("", "ld.global.u32 %r4, [%rd1+2];", FindingKind::Misaligned);
    alone("", "ld.global.u32 %r4, [%rd1+256];", FindingKind::Uninitialized);
    alone("", "red.global.add.u32 [%rd1+256], 1;", FindingKind::Uninitialized);
    alone("", "ld.global.u32 %r4, [%rd1+512];", FindingKind::OutOfBounds);
    alone("", "st.shared.u32 [s+256], %r1;", FindingKind::OutOfBounds);
    alone("", "st.local.u32 [l+16], %r1;", FindingKind::OutOfBounds);
    alone("", "ld.local.u32 %r4, [l];", FindingKind::Uninitialized);
    alone("", "ld.param.u32 %r4, [p+8];", FindingKind::OutOfBounds);
    let generic = "mov.u64 %rd4, l; cvta.local.u64 %rd4, %rd4;";
    alone(generic, "red.add.u32 [%rd4], 1;", FindingKind::OutOfBounds);
    // The later of two lanes that store different values to one place.
    let code = "setp.lt.u32 %p1, %r1, 33;\n@%p1 bra E;\nst.shared.u32 [s], %r1;\nE:";
    caught(64, code, FindingKind::SharedRace, 9, 34);
    let gone = "setp.ge.u32 %p1, %r1, 48;\n@%p1 ret;\nshfl.sync.down.b32 %r4, %r1, 1, 31, -1;";
    caught(64, gone, FindingKind::ShuffleInactive, 9, 47);
    let lanes = |mask: &str| {
        let code = format!(
            "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra E;\nshfl.sync.bfly.b32 %r4, %r1, 1, 31, {mask};\nE:"
        );
        caught(64, &code, FindingKind::NotConverged, 9, 32).message
    };
    assert!(lanes("0xfffffffe").contains("does not name the executing lane 0"));
    assert!(lanes("0x0000ffff").contains("leaves out lane 16"));
    // Part of the second warp does not come to a barrier.
    let f = run(64, "setp.eq.u32 %p1, %r1, 35;\n@%p1 bra E;\nbar.sync 0;\nE:").unwrap_err();
    assert_eq!((f.kind, f.line), (FindingKind::BarrierDivergence, 9), "{f}");
    assert!(f.message.contains("(35,0,0)"), "{f}");
    let f = run(64, "setp.eq.u32 %p1, %r1, 35;\n@%p1 ret;\nbar.sync 0;").unwrap_err();
    assert_eq!((f.kind, f.line), (FindingKind::BarrierDivergence, 9), "{f}");
    assert_eq!(f.message, "thread (35,0,0) has exited and never reaches this barrier");
    caught(
        64,
        "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra E;\nbar.sync 16;\nE:",
        FindingKind::BarrierDivergence,
        9,
        32,
    );
    // The first of the threads that still run.
    let config = Config { instruction_limit: 1 << 20, ..Config::default() };
    let f = run_with(config, 1, 64, "setp.lt.u32 %p1, %r1, 40;\n@%p1 ret;\nL: bra L;").unwrap_err();
    assert_eq!((f.kind, f.line, f.thread), (FindingKind::Timeout, 9, [40, 0, 0]), "{f}");
}

#[test]
fn faults_in_blocks_of_three_dimensions() {
    let text = ".version 6.4 .target sm_61 .address_size 64 .visible .entry k() { .reg .b32 %r<3>; .reg .pred %p;
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r1, %r2, 10, %r1; mov.u32 %r2, %ctaid.z; mad.lo.u32 %r1, %r2, 100, %r1;
mov.u32 %r2, %tid.x; mad.lo.u32 %r1, %r2, 1000, %r1; mov.u32 %r2, %tid.y; mad.lo.u32 %r1, %r2, 10000, %r1;
mov.u32 %r2, %tid.z; mad.lo.u32 %r1, %r2, 100000, %r1; setp.eq.u32 %p, %r1, 213321; @%p trap; ret; }";
    let mut gpu = Gpu::new(Config::default());
    let module = gpu.load(Module::parse(text).unwrap()).unwrap();
    let launch = Launch { grid: [2, 3, 4], block: [4, 3, 5], dynamic_shared: 0, params: &[] };
    let f = gpu.launch(&module, "k", launch).unwrap_err();
    assert_eq!((f.kind, f.block, f.thread), (FindingKind::Trap, [1, 2, 3], [3, 1, 2]), "{f}");
}

#[test]
fn the_limit_of_a_block_counts_thread_instructions() {
    let code = "mov.u32 %r4, 0;\nL: add.u32 %r4, %r4, 1;\nsetp.lt.u32 %p1, %r4, 40000;\n@%p1 bra L;";
    let limited =
        |instruction_limit| run_with(Config { instruction_limit, ..Config::default() }, 1, 32, code);
    limited(32 * (3 * 40000 + 100)).unwrap();
    assert_eq!(limited(32 * 2 * 40000).unwrap_err().kind, FindingKind::Timeout);
}

/// The second warp comes long after the first, which must not pass before.
#[test]
fn barriers_wait_for_slow_warps() {
    let slow = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra B;\nmov.u32 %r4, 0;\nL: add.u32 %r4, %r4, 1;\nsetp.lt.u32 %p2, %r4, 50000;\n\
        @%p2 bra L;\nst.shared.u32 [%r3], %r1;\nB:\n";
    let read = "\nsetp.lt.u32 %p1, %r1, 32;\n@%p1 ld.shared.u32 %r6, [%r3+128];";
    for barrier in ["bar.sync 0;", "bar.sync 1, 64;", "bar.sync 15, 64;"] {
        clean(64, &format!("{slow}{barrier}{read}"));
    }
    // One warp only arrives, and goes on: the other waits for what it does then.
    let arrive = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra A;\nbar.arrive 3, 64;\nst.volatile.global.u32 [%rd1], 7;\nbra E;\n\
        A: ld.volatile.global.u32 %r4, [%rd1];\nsetp.ne.u32 %p2, %r4, 7;\n@%p2 bra A;\nbar.sync 3, 64;\nE:";
    clean(64, arrive);
    // A write after its arrival races with the other's reads, one before it does not.
    let write = |before: &str, after: &str| {
        format!(
            "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra A;\n{before}\nbar.arrive 3, 64;\n{after}\nbra E;\nA:\nbar.sync 3, 64;\nld.shared.u32 %r6, [s];\nE:"
        )
    };
    let store = "st.shared.u32 [s], 7;";
    clean(64, &write(store, ""));
    let f = run(64, &write(store, store)).unwrap_err();
    assert_eq!(f.kind, FindingKind::SharedRace, "{f}");
}

#[test]
fn a_barrier_that_never_completes_says_why() {
    let message = |threads, code: &str| {
        let f = run(threads, code).unwrap_err();
        assert_eq!(f.kind, FindingKind::BarrierDivergence, "{f}");
        f.message
    };
    assert_eq!(message(64, "bar.sync 1, 96;"), "warp 0 waits at barrier 1 for more threads than there are");
    let ended = "setp.ge.u32 %p1, %r1, 32;\n@%p1 ret;\nbar.sync 1, 64;";
    assert_eq!(message(96, ended), "warp 0 waits at barrier 1, warp 1 has ended");
    // Where a warp would go on is the line after its barrier.
    let two = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra A;\nbar.sync 1, 64;\nbra E;\nA:\nbar.sync 2, 64;\nE:";
    assert_eq!(message(64, two), "warp 0 waits at barrier 2, warp 1 is at line 10");
    let lines = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra A;\nbar.sync 2, 96;\nbra E;\nA:\nbar.sync 2, 96;\nE:";
    assert_eq!(message(64, lines), "warp 0 waits at barrier 2, warp 1 is at line 10");
    assert_eq!(message(64, "bar.sync 16;"), "barrier 16: there are 16");
    assert!(message(64, "bar.sync 1, 33;").contains("a barrier of 33 threads"));
    assert!(message(64, "bar.sync 1, 0;").contains("a barrier of 0 threads"));
    message(64, "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra A;\nbar.sync 2, 64;\nbra E;\nA:\nbar.sync 2, 96;\nE:");
}

#[test]
fn traffic_is_counted_by_space() {
    let twice = |line: &str| {
        let report = run(64, &format!("{line}\n{line}")).unwrap();
        report.counters
    };
    let of = |t: pascaline_virtual_gpu::Traffic| (t.requests, t.units, t.bytes);
    assert_eq!(of(twice("red.global.add.u32 [%rd3], 1;").atomics), (4, 16, 512));
    let c = twice("st.global.u32 [%rd3], 1;");
    assert_eq!((of(c.global_stores), c.distinct_sectors), ((4, 16, 512), 8));
    let c = run_with(Config::default(), 3, 64, "st.global.u32 [%rd3], 1;").unwrap().counters;
    assert_eq!((of(c.global_stores), c.distinct_sectors), ((6, 24, 768), 8));
    assert_eq!(of(twice("st.local.u32 [l], 1;").local), (4, 16, 512));
    let c = twice("st.shared.u32 [%r3], %r1;");
    assert_eq!((of(c.shared_stores), c.bank_conflicts), ((4, 4, 512), 0));
    // A warp's words lie two apart: two wavefronts, of which one is a conflict.
    let c = run(32, "add.u32 %r4, %r3, %r2;\nst.shared.u32 [%r4], %r1;\nst.shared.u32 [%r4], %r1;")
        .unwrap()
        .counters;
    assert_eq!((of(c.shared_stores), c.bank_conflicts), ((2, 4, 256), 2));
    // Generic addresses count where they lead, and what no lane asks for is no request.
    let generic = "mov.u64 %rd4, s; cvta.shared.u64 %rd4, %rd4; st.u32 [%rd4], 7;";
    let c = run(32, generic).unwrap().counters;
    assert_eq!((c.global_stores.requests, c.shared_stores.requests), (0, 1));
    let c = run(32, "st.shared.u32 [s], 7;\nred.shared.add.u32 [s], 1;").unwrap().counters;
    assert_eq!(c.atomics.requests, 0);
    run(32, "atom.global.exch.b32 %r4, [%rd3+256], 1;").unwrap();
}
