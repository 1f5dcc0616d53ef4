//! Calls by pointer, by the results of all threads of a block whose last warp is a part of one.

use crate::common::{self, THREADS};
use pascaline_virtual_gpu::{Checks, Config, Counters, Finding, FindingKind, Gpu, Launch, Module};

const HEAD: &str = ".version 6.4\n.target sm_61\n.address_size 64\n";

/// Three functions of one number, a table of them, and one that takes two.
const FUNCTIONS: &str = "
.func (.param .b32 r) triple(.param .b32 x) { .reg .b32 %r<3>; ld.param.u32 %r1, [x]; mul.lo.u32 %r1, %r1, 3; st.param.b32 [r], %r1; ret; }
.func (.param .b32 r) next(.param .b32 x) { .reg .b32 %r<9>; ld.param.u32 %r1, [x]; add.u32 %r8, %r1, 1; st.param.b32 [r], %r8; ret; }
.func (.param .b32 r) shared(.param .b32 x) { .shared .align 4 .b8 s[160]; .reg .b32 %r<4>;
  ld.param.u32 %r1, [x]; mov.u32 %r2, %tid.x; shl.b32 %r2, %r2, 2; mov.u32 %r3, s; add.u32 %r2, %r2, %r3;
  st.shared.u32 [%r2], %r1; ld.shared.u32 %r1, [%r2]; add.u32 %r1, %r1, 1000; st.param.b32 [r], %r1; ret; }
.func (.param .b32 r) sum(.param .b32 x, .param .b32 y) { .reg .b32 %r<3>; ld.param.u32 %r1, [x]; ld.param.u32 %r2, [y]; add.u32 %r1, %r1, %r2; st.param.b32 [r], %r1; ret; }
.global .align 8 .u64 table[4] = {triple, next, generic(shared), 0};
.global .align 8 .u64 to_sum[1] = {sum};
";

fn function(which: u32, x: u32) -> u32 {
    [3 * x, x + 1, x + 1000][which as usize]
}

/// Each thread stores %r0, which is 0 at first, after `code`; %r1 is its number, and P the prototype of the three.
fn launch(config: Config, functions: &str, code: &str) -> Result<(Vec<u32>, Counters), Finding> {
    let text = format!(
        "{HEAD}{FUNCTIONS}{functions}\n.visible .entry k(.param .u64 out) {{\n.reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p<4>;
        P: .callprototype (.param .b32 _) _ (.param .b32 _); mov.u32 %r1, %tid.x; mov.u32 %r0, 0;\n{code}
        ld.param.u64 %rd1, [out]; mad.wide.u32 %rd1, %r1, 4, %rd1; st.global.u32 [%rd1], %r0; ret;\n}}"
    );
    let mut gpu = Gpu::new(config);
    let module = gpu.load(Module::parse(&text).unwrap_or_else(|e| panic!("{text}\n{e}"))).unwrap();
    let out = gpu.alloc(THREADS as u64 * 4).unwrap();
    let params = out.to_le_bytes();
    let launch = Launch { grid: [1; 3], block: [THREADS as u32, 1, 1], dynamic_shared: 0, params: &params };
    let report = gpu.launch(&module, "k", launch)?;
    let mut bytes = [0; THREADS * 4];
    gpu.read(out, &mut bytes).unwrap();
    let words = bytes.chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
    Ok((words, report.counters))
}

#[track_caller]
fn gives(functions: &str, code: &str, want: impl Fn(u32) -> u32) -> Counters {
    common::gives(|config| launch(config, functions, code), code, want)
}

#[track_caller]
fn fault(functions: &str, code: &str) -> Finding {
    launch(Config::default(), functions, code).unwrap_err()
}

/// %rd2 = table[which]
fn pointer(which: &str) -> String {
    format!("{which} mov.u64 %rd2, table; mad.wide.u32 %rd2, %r2, 8, %rd2; ld.global.u64 %rd2, [%rd2];")
}

#[test]
fn a_pointer_is_called_as_its_function() {
    let counters =
        gives("", "mov.u64 %rd2, next; call (%r0), %rd2, (%r1), P; add.u32 %r0, %r0, 7;", |t| t + 8);
    // 3 and 1 before the call, 4 in the function, 5 after it
    assert_eq!((counters.warp_total(), counters.divergent_branches), (2 * (2 + 1 + 1 + 4 + 5), 0));
    let by_table = pointer("mov.u32 %r2, 2;");
    gives("", &format!("{by_table} call.uni (%r0), %rd2, (%r1), P;"), |t| t + 1000);
    let targets = "T: .calltargets next, triple;";
    gives("", &format!("{targets} mov.u64 %rd2, triple; call (%r0), %rd2, (%r1), T;"), |t| 3 * t);
    // where its parameters lie is the function's matter, not the prototype's
    let second = ".func (.param .b32 r) second(.param .align 8 .b8 x[8]) { .reg .b32 %r<2>; ld.param.u32 %r1, [x+4]; st.param.b32 [r], %r1; ret; }";
    let code = "A: .callprototype (.param .b32 _) _ (.param .align 4 .b8 _[8]); .param .align 4 .b8 p[8]; st.param.b32 [p], 7; st.param.b32 [p+4], %r1;
        mov.u64 %rd2, second; call (%r0), %rd2, (p), A;";
    gives(second, code, |t| t);
    // neither parameters nor results, and a prototype of the block around
    let nothing =
        ".global .u32 count; .func nothing() { .reg .b32 %r<2>; atom.global.add.u32 %r1, [count], 1; ret; }";
    let code = "N: .callprototype _; mov.u64 %rd2, nothing; { call %rd2, N; } { call %rd2, (), N; } bar.sync 0; ld.global.u32 %r0, [count];";
    gives(nothing, code, |_| 80);
}

#[test]
fn lanes_call_different_functions_and_go_on_together() {
    let which = pointer("rem.u32 %r2, %r1, 3;");
    let code = format!(
        "{which} mov.u32 %r4, %r1; call (%r0), %rd2, (%r1), P; activemask.b32 %r3; bar.sync 0; popc.b32 %r3, %r3; mad.lo.u32 %r0, %r3, 10000, %r0;"
    );
    let counters = gives("", &code, |t| function(t % 3, t) + 10000 * if t < 32 { 32 } else { 8 });
    // three calls and the bodies of 4, 4 and 10 instructions, each by a third of a warp's lanes
    assert_eq!(counters.warp_total(), 2 * (2 + 4 + 1 + 3 + 4 + 4 + 10 + 4 + 4), "{counters:?}");
    assert_eq!(counters.divergent_branches, 2 * 2);
    // only some lanes call, some of them in a loop that others have left
    let code = format!(
        "{which} mov.u32 %r0, %r1; and.b32 %r4, %r1, 7; L: setp.ne.u32 %p1, %r4, 0; @%p1 call (%r0), %rd2, (%r0), P; add.s32 %r4, %r4, -1;
        setp.gt.s32 %p2, %r4, 0; @%p2 bra L;"
    );
    gives("", &code, |t| (0..t % 8).fold(t, |x, _| function(t % 3, x)));
}

#[test]
fn functions_that_exit_and_wait_do_as_in_branches() {
    let exits = ".func (.param .b32 r) exits(.param .b32 x) { exit; }";
    let code =
        "setp.lt.u32 %p1, %r1, 5; mov.u64 %rd2, next; @%p1 mov.u64 %rd2, exits; call (%r0), %rd2, (%r1), P;";
    let (words, _) = launch(Config { checks: Checks::NONE, ..Config::default() }, exits, code).unwrap();
    assert_eq!(words[5..], (6..41).collect::<Vec<u32>>()[..]);
    assert!(words[..5].iter().zip(1..).all(|(&word, next)| word != next), "{words:?}");
    let waits = ".func (.param .b32 r) waits(.param .b32 x) { bar.sync 0; st.param.b32 [r], 1; ret; }";
    let code = code.replace("exits", "waits");
    assert_eq!(fault(waits, &code).kind, FindingKind::BarrierDivergence);
    gives(waits, "mov.u64 %rd2, waits; call (%r0), %rd2, (%r1), P;", |_| 1);
}

/// The sum of the first numbers, by a function that calls itself through a table.
const RECURSIVE: &str = ".func (.param .b32 r) first(.param .b32 x);
.global .u64 itself = first;
.func (.param .b32 r) first(.param .b32 x) { .local .align 4 .b8 own[4]; .reg .b32 %r<4>; .reg .b64 %rd<2>; .reg .pred %p<2>;
P: .callprototype (.param .b32 _) _ (.param .b32 _);
ld.param.u32 %r1, [x]; st.local.u32 [own], %r1; mov.u32 %r2, 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra END;
add.u32 %r3, %r1, -1; ld.global.u64 %rd1, [itself]; call (%r2), %rd1, (%r3), P;
END: ld.local.u32 %r1, [own]; add.u32 %r2, %r2, %r1; st.param.b32 [r], %r2; ret; }";

#[test]
fn recursion_has_the_local_memory_that_it_needs() {
    // the lanes differ in depth
    gives(RECURSIVE, "mov.u64 %rd2, first; call (%r0), %rd2, (%r1), P;", |t| t * (t + 1) / 2);
    gives(RECURSIVE, "mov.u64 %rd2, first; add.u32 %r2, %r1, 900; call (%r0), %rd2, (%r2), P;", |t| {
        (t + 900) * (t + 901) / 2
    });
    let endless = "mov.u64 %rd2, first; mov.u32 %r2, 0xffffffff; call (%r0), %rd2, (%r2), P;";
    let f = fault(RECURSIVE, endless);
    assert_eq!(
        (f.kind, f.kind.code(), f.message.as_str()),
        (FindingKind::StackOverflow, 714, "`first` is called 1024 calls deep")
    );
    let wide = RECURSIVE.replace("own[4]", "own[2048]");
    gives(&wide, "mov.u64 %rd2, first; add.u32 %r2, %r1, 200; call (%r0), %rd2, (%r2), P;", |t| {
        (t + 200) * (t + 201) / 2
    });
    let f = fault(&wide, endless);
    assert_eq!(f.kind, FindingKind::StackOverflow);
    assert_eq!(f.message, "`first`, 255 calls deep, needs 526320 bytes of local memory: a thread has 524288");
}

/// As [`RECURSIVE`], by name: a function of its own, or two in turn.
#[test]
fn functions_call_themselves_by_name() {
    let by_name = |calls: &str| {
        format!(
            ".func (.param .b32 r) first(.param .b32 x);
.func (.param .b32 r) other(.param .b32 x) {{ .reg .b32 %r1; ld.param.b32 %r1, [x]; call (%r1), first, (%r1); st.param.b32 [r], %r1; ret; }}
.func (.param .b32 r) first(.param .b32 x) {{
.local .align 4 .b8 own[4]; .reg .b32 %r<4>; .reg .pred %p; ld.param.b32 %r1, [x]; st.local.u32 [own], %r1; mov.u32 %r2, 0;
setp.eq.u32 %p, %r1, 0; @%p bra END; sub.u32 %r3, %r1, 1; call (%r2), {calls}, (%r3);
END: ld.local.u32 %r1, [own]; add.u32 %r2, %r2, %r1; st.param.b32 [r], %r2; ret; }}"
        )
    };
    for calls in ["first", "other"] {
        let functions = by_name(calls);
        gives(&functions, "call (%r0), first, (%r1);", |t| t * (t + 1) / 2);
        gives(&functions, "add.u32 %r2, %r1, 400; call (%r0), first, (%r2);", |t| (t + 400) * (t + 401) / 2);
        let f = fault(&functions, "mov.u32 %r2, 0xffffffff; call (%r0), first, (%r2);");
        assert_eq!(f.kind, FindingKind::StackOverflow);
        assert!(f.message.contains("calls deep"), "{}", f.message);
        let wide = functions.replace("own[4]", "own[4096]");
        let f = fault(&wide, "mov.u32 %r2, 0xffffffff; call (%r0), first, (%r2);");
        assert!(f.message.contains("a thread has 524288"), "{}", f.message);
    }
}

#[test]
fn wrong_pointers_are_findings() {
    let call = "call (%r0), %rd2, (%r1), P;";
    let wrong = |code: &str| {
        let f = fault("", code);
        assert_eq!((f.kind, f.kind.code()), (FindingKind::WrongCall, 718), "{f}");
        (f.thread[0], f.message)
    };
    let null = format!(
        "{} setp.gt.u32 %p1, %r1, 3; @%p1 ld.global.u64 %rd2, [table+24]; {call}",
        pointer("mov.u32 %r2, 1;")
    );
    assert_eq!(wrong(&null), (4, "a null pointer".to_owned()));
    let inside = format!("mov.u64 %rd2, next; add.u64 %rd2, %rd2, 4; {call}");
    assert!(wrong(&inside).1.starts_with("no function of the module begins at 0x1f2"));
    // the kernel itself, and behind the last function
    for step in [16 * 4, 16 * 5, 16_u64.wrapping_neg()] {
        let beside = format!("mov.u64 %rd2, triple; add.u64 %rd2, %rd2, {step}; {call}");
        assert!(wrong(&beside).1.starts_with("no function of the module begins at 0x1f"), "{step}");
    }
    assert!(wrong(&format!("ld.param.u64 %rd2, [out]; {call}")).1.starts_with("no function"));
    assert_eq!(
        wrong(&format!("mov.u64 %rd2, sum; {call}")).1,
        "`sum` is called with other parameters or results than it has"
    );
    let other = "T: .calltargets next, shared; mov.u64 %rd2, triple; call (%r0), %rd2, (%r1), T;";
    assert_eq!(wrong(other).1, "`triple` is not among the call's targets");
    let read = fault("", "mov.u64 %rd2, next; ld.u32 %r0, [%rd2];");
    assert_eq!(read.kind, FindingKind::OutOfBounds, "{read}");
}

#[test]
fn kernels_have_the_shared_memory_and_registers_of_what_they_may_call() {
    let text = |call: &str| {
        format!(
            "{HEAD}{FUNCTIONS}.visible .entry k(.param .u64 f) {{ .reg .b64 %rd<2>; .reg .b32 %r<2>; {call} ret; }}"
        )
    };
    let shared = |call: &str| Module::parse(&text(call)).unwrap().kernels()[0].shared_bytes;
    let by_pointer = |prototype: &str, arguments: &str| {
        format!(
            "P: .callprototype (.param .b32 _) _ ({prototype}); ld.param.u64 %rd1, [f]; call (%r1), %rd1, ({arguments}), P;"
        )
    };
    let registers = |call: &str| {
        let module = Module::parse(&text(call)).unwrap();
        module.registers(&module.kernels()[0])
    };
    // those of a function that keeps 40 numbers at once, if the kernel may call it
    assert_eq!(registers(""), 16);
    let many: String = (1..=40).map(|i| format!("ld.shared.u32 %r{i}, [%r1];")).collect();
    let uses: String = (2..=40).map(|i| format!("add.u32 %r1, %r1, %r{i};")).collect();
    let code = format!(".reg .b32 %r<41>; ld.param.u32 %r1, [x]; {many} {uses} st.param.b32 [r], %r1; ret;");
    let many = format!(".func (.param .b32 r) many(.param .b32 x) {{ {code} }} .global .u64 to_many = many;");
    let module = Module::parse(
        &text(&by_pointer(".param .b32 _", "1")).replace(".visible", &format!("{many} .visible")),
    );
    let module = module.unwrap();
    assert!(
        (40..56).contains(&module.registers(&module.kernels()[0])),
        "{}",
        module.registers(&module.kernels()[0])
    );
    assert_eq!(shared(""), 0);
    assert_eq!(shared(&by_pointer(".param .b32 _", "1")), 160);
    assert_eq!(shared(&by_pointer(".param .b32 _, .param .b32 _", "1, 2")), 0, "`sum` has no shared memory");
}

#[test]
fn wrong_texts_are_refused() {
    let reason = |functions: &str, code: &str| {
        let text = format!(
            "{HEAD}{FUNCTIONS}{functions}\n.visible .entry k() {{ .reg .b64 %rd<3>; .reg .b32 %r<3>; {code} ret; }}"
        );
        Module::parse(&text).expect_err(code).reason
    };
    let p = "P: .callprototype (.param .b32 _) _ (.param .b32 _);";
    assert!(reason("", "call (%r0), %rd1, (%r1);").contains("a call by pointer names a prototype"));
    assert!(reason("", "call (%r0), %rd1, (%r1), P;").contains("prototype `P` is not defined"));
    assert!(
        reason("", &format!("{{ {p} }} call (%r0), %rd1, (%r1), P;"))
            .contains("prototype `P` is not defined")
    );
    assert!(reason("", &format!("{p} call (%r0), %rd1, (%r1, %r2), P;")).contains("number of parameters"));
    assert!(
        reason("", &format!("{p} call (%r0), %r1, (%r1), P;"))
            .contains("neither a declared function nor a register of 64 bits")
    );
    assert!(reason("", &format!("{p} call (%r0), next, (%r1), P;")).contains("neither"));
    assert!(reason("", "T: .calltargets next, sum;").contains("`sum` has other parameters"));
    assert!(reason("", "T: .calltargets table;").contains("`table` is not a declared function"));
    assert!(reason("", "mov.u64 %rd1, next+4;").contains("an address inside of it"));
    assert!(reason("", "mov.u32 %r1, next;").contains("has 64 bits"));
    assert!(
        reason(".func later(); .global .u64 x = later;", "")
            .contains("`later` is taken, but it is defined nowhere")
    );
    assert!(reason(".global .u32 x = next;", "").contains("an address has 64 bits"));
    assert!(reason(".global .u64 x = next+8;", "").contains("cannot initialise"));
}
