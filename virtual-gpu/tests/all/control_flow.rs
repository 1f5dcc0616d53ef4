//! Branches, calls and returns, by the results of all threads of a block whose last warp is a part of one.

use crate::common::{self, THREADS};
use pascaline_virtual_gpu::{Config, Counters, Finding, FindingKind, Gpu, Launch, Module};

/// The word of a thread that stores nothing.
const NOTHING: u32 = 0xdead;

/// Each thread stores %r0, which is 0 at first, after `code`; %r1 is its number.
fn launch(config: Config, functions: &str, code: &str) -> Result<(Vec<u32>, Counters), Finding> {
    let text = format!(
        ".version 6.4\n.target sm_61\n.address_size 64\n{functions}\n.visible .entry k(.param .u64 out) {{\n\
        .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p<4>; mov.u32 %r1, %tid.x; mov.u32 %r0, 0;\n{code}\n\
        ld.param.u64 %rd1, [out]; mad.wide.u32 %rd1, %r1, 4, %rd1; st.global.u32 [%rd1], %r0; ret;\n}}"
    );
    let mut gpu = Gpu::new(config);
    let module = gpu.load(Module::parse(&text).unwrap_or_else(|e| panic!("{text}\n{e}"))).unwrap();
    let out = gpu.alloc(64 * 4).unwrap();
    gpu.write(out, &NOTHING.to_le_bytes().repeat(64)).unwrap();
    let params = out.to_le_bytes();
    let block = [THREADS as u32, 1, 1];
    let report =
        gpu.launch(&module, "k", Launch { grid: [1; 3], block, dynamic_shared: 0, params: &params })?;
    let mut bytes = [0; 64 * 4];
    gpu.read(out, &mut bytes).unwrap();
    let words: Vec<u32> = bytes.chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
    assert_eq!(words[THREADS..], [NOTHING; 64 - THREADS], "threads that the block does not have");
    Ok((words[..THREADS].to_vec(), report.counters))
}

#[track_caller]
fn gives(functions: &str, code: &str, want: impl Fn(u32) -> u32) -> Counters {
    common::gives(|config| launch(config, functions, code), code, want)
}

/// 3 x, and one more above 5.
const INNER: &str = ".func (.param .b32 r) inner(.param .b32 x) { .reg .b32 %r<3>; .reg .pred %p<3>;
ld.param.u32 %r1, [x]; setp.gt.u32 %p1, %r1, 5; mul.lo.u32 %r2, %r1, 3; @%p1 add.u32 %r2, %r2, 1;
st.param.b32 [r], %r2; ret; }
";

fn inner(x: u32) -> u32 {
    3 * x + u32::from(x > 5)
}

#[test]
fn registers_of_the_caller_outlive_calls() {
    let outer = ".func (.param .b32 r) outer(.param .b32 x) { .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .pred %p<5>;
ld.param.u32 %r1, [x]; setp.eq.u32 %p4, %r1, 7; add.u32 %r8, %r1, 100;
call (%r2), inner, (%r1);
call (%r3), inner, (%r8);
mad.lo.u32 %r2, %r3, 10, %r2; @%p4 add.u32 %r2, %r2, 10000; add.u32 %r2, %r2, %r8; st.param.b32 [r], %r2; ret; }";
    let of_outer = |x: u32| inner(x) + 10 * inner(x + 100) + if x == 7 { 10000 } else { 0 } + x + 100;
    gives(
        &format!("{INNER}{outer}"),
        "setp.eq.u32 %p1, %r1, 9; mov.u32 %r3, 50000; call (%r4), outer, (%r1);
        add.u32 %r0, %r4, %r3; add.u32 %r0, %r0, %r1; @%p1 add.u32 %r0, %r0, 100000;",
        |t| of_outer(t) + 50000 + t + if t == 9 { 100000 } else { 0 },
    );
}

/// Two results, of different sizes, through `.param` variables of a caller that was called itself.
#[test]
fn parameters_and_results_in_memory() {
    let functions = ".func (.param .b64 q, .param .b32 r) divide(.param .b32 x, .param .b32 y) {
.reg .b32 %r<4>; .reg .b64 %rd<2>; ld.param.u32 %r1, [x]; ld.param.u32 %r2, [y];
div.u32 %r3, %r1, %r2; cvt.u64.u32 %rd1, %r3; st.param.b64 [q], %rd1; rem.u32 %r3, %r1, %r2; st.param.b32 [r], %r3; ret; }
.func (.param .b32 r) outer(.param .b32 x) {
.reg .b32 %r<4>; .reg .b64 %rd<2>; .local .align 4 .b8 own[20]; .param .b32 c; .param .b32 d; .param .b64 a; .param .b32 b;
st.local.u32 [own+16], 5; ld.param.u32 %r1, [x]; st.param.b32 [c], %r1; st.param.b32 [d], 7;
call (a, b), divide, (c, d);
ld.param.b64 %rd1, [a]; cvt.u32.u64 %r1, %rd1; ld.param.b32 %r2, [b]; mad.lo.u32 %r1, %r1, 1000, %r2;
ld.local.u32 %r2, [own+16]; mad.lo.u32 %r1, %r2, 100000, %r1; st.param.b32 [r], %r1; ret; }";
    gives(
        functions,
        ".local .align 4 .b8 own[4]; st.local.u32 [own], %r1; call (%r0), outer, (%r1); ld.local.u32 %r2, [own]; add.u32 %r0, %r0, %r2;",
        |t| 500000 + t / 7 * 1000 + t % 7 + t,
    );
}

#[test]
fn lanes_that_do_not_call_keep_their_registers() {
    gives(
        INNER,
        "and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 1; mov.u32 %r0, 77; @%p1 call (%r0), inner, (%r1);",
        |t| if t % 2 == 1 { inner(t) } else { 77 },
    );
    // Those that return early come back with the others; those that exit in the function do not.
    let early = ".func (.param .b32 r) early(.param .b32 x) { .reg .b32 %r<3>; .reg .pred %p<3>;
ld.param.u32 %r1, [x]; add.u32 %r2, %r1, 5; st.param.b32 [r], %r2;
setp.lt.u32 %p1, %r1, 8; setp.eq.u32 %p2, %r1, 20; @%p2 exit; add.u32 %r2, %r2, 100; @%p1 ret; st.param.b32 [r], %r2; }";
    let counters = gives(early, "call (%r0), early, (%r1); add.u32 %r0, %r0, 1;", |t| match t {
        20 => NOTHING,
        _ => t + 6 + if t < 8 { 0 } else { 100 },
    });
    // Per warp 2 instructions before the call and 5 after it, and in the function 8, its last store, and its return.
    assert_eq!(counters.warp_total(), 2 * (2 + 1 + 5 + 8 + 2));
}

#[test]
fn local_memory_of_each_call_is_unwritten() {
    let keeps = ".func (.param .b32 r) keeps(.param .b32 write) { .local .align 4 .b8 own[4]; .reg .b32 %r<3>; .reg .pred %p<2>;
ld.param.u32 %r1, [write]; setp.ne.u32 %p1, %r1, 0; @%p1 st.local.u32 [own], %r1;
ld.local.u32 %r2, [own]; st.param.b32 [r], %r2; ret; }";
    gives(keeps, "call (%r0), keeps, (3); call (%r2), keeps, (4); add.u32 %r0, %r0, %r2;", |_| 7);
    let f = launch(Config::default(), keeps, "call (%r0), keeps, (3); call (%r2), keeps, (0);").unwrap_err();
    assert_eq!((f.kind, f.line), (FindingKind::Uninitialized, 6), "{f}");
}

/// A table of which two entries are the same, by some of the lanes and then by all.
#[test]
fn branches_by_tables() {
    let code = |guard: &str| {
        format!(
            "T: .branchtargets X0, X1, X2, X1; and.b32 %r2, %r1, 3; setp.lt.u32 %p1, %r1, 36; mov.u32 %r3, 0;
            add.u32 %r3, %r3, 1; {guard} brx.idx %r2, T;
            mov.u32 %r0, 90; bra Z; X0: mov.u32 %r0, 5; bra Z; X1: mov.u32 %r0, 6; bra Z; X2: mov.u32 %r0, 7;
            Z: mad.lo.u32 %r0, %r3, 100, %r0;"
        )
    };
    let target = |t: u32| 100 + [5, 6, 7, 6][t as usize % 4];
    let c = gives("", &code(""), target);
    // 7 instructions, then two of X0 and X1 and one of X2, and 5 from Z on
    assert_eq!((c.branches, c.divergent_branches, c.warp_total()), (2 * 3, 2, 2 * (7 + 5 + 5)));
    let c = gives("", &code("@%p1"), |t| if t < 36 { target(t) } else { 190 });
    assert_eq!((c.branches, c.divergent_branches, c.warp_total()), (2 * 3 + 1, 2, 2 * (7 + 5 + 5) + 2));
    // None of the second warp's lanes, and one target for the first's.
    let same = code("@%p1").replace("and.b32 %r2, %r1, 3", "mov.u32 %r2, 2").replace("36", "32");
    let c = gives("", &same, |t| if t < 32 { 107 } else { 190 });
    assert_eq!((c.branches, c.divergent_branches, c.warp_total()), (2, 0, 2 * (7 + 5) + 1 + 2));
    let far = "T: .branchtargets X, X, X; X: setp.lt.u32 %p1, %r1, 35; selp.u32 %r2, 0, 3, %p1; add.u32 %r0, %r0, 1;
        setp.eq.u32 %p1, %r0, 1; @%p1 brx.idx %r2, T;";
    let f = launch(Config::default(), "", far).unwrap_err();
    assert_eq!((f.kind, f.thread), (FindingKind::OutOfBounds, [35, 0, 0]), "{f}");
    assert_eq!(f.message, "branch index 3 of 3 targets");
}
