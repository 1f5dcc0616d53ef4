//! `cuCtxSetLimit`: what each limit takes, and what it changes.

use crate::common::{call, code, driver, launch_kernel, load_kernel};
use pascaline_virtual_gpu::{Config, FindingKind, take_findings};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

const STACK: c_uint = 0;
const TEXT: c_uint = 1;

fn context() -> *mut c_void {
    let mut context = null_mut();
    call!("cuCtxCreate_v2", (*mut *mut c_void, c_uint, c_int), &mut context, 0, 0);
    context
}

fn get(limit: c_uint) -> Result<usize, u32> {
    let mut value = usize::MAX;
    match code!("cuCtxGetLimit", (*mut usize, c_uint), &mut value, limit) {
        0 => Ok(value),
        code => Err(code),
    }
}

fn set(limit: c_uint, value: usize) -> u32 {
    code!("cuCtxSetLimit", (c_uint, usize), limit, value)
}

fn kernel(ptx: &str, name: &str) -> *mut c_void {
    load_kernel(ptx, name).1
}

#[test]
fn limits_have_the_values_of_such_a_card_and_belong_to_their_context() {
    let _turn = driver(Config::default());
    assert_eq!((get(STACK), set(STACK, 2048)), (Err(201), 201), "without a context");
    let first = context();
    let defaults = [1 << 10, 1 << 20, 8 << 20, 2, 2048, 64];
    let all = || (0..6).map(|limit| get(limit).unwrap()).collect::<Vec<_>>();
    assert_eq!(all(), defaults);
    for limit in 6..=9 {
        assert_eq!((get(limit), set(limit, 0)), (Err(215), 215), "{limit}");
    }
    for limit in [10, 11, c_uint::MAX] {
        assert_eq!((get(limit), set(limit, 0)), (Err(1), 1), "{limit}");
    }
    // stack sizes are rounded up and have an end, a granularity is at most 128
    for (limit, value, want) in [
        (STACK, 0, 0),
        (STACK, 1000, 1008),
        (STACK, 512 << 10, 512 << 10),
        (TEXT, 12345, 12345),
        (2, 1 << 30, 1 << 30),
        (3, 4, 4),
        (4, 32768, 32768),
        (5, 32, 32),
        (5, 1 << 20, 128),
    ] {
        assert_eq!((set(limit, value), get(limit)), (0, Ok(want)), "{limit} {value}");
    }
    let changed = all();
    for too_large in [(512 << 10) + 1, usize::MAX] {
        assert_eq!((set(STACK, too_large), all()), (1, changed.clone()), "nothing is changed");
    }
    let second = context();
    assert_eq!(all(), defaults, "another context has its own");
    call!("cuCtxSetCurrent", (*mut c_void), first);
    assert_eq!(all(), changed);
    call!("cuCtxDestroy_v2", (*mut c_void), second);
}

/// `deep` calls itself as often as its parameter says, with 64 bytes of local memory each time. `flat` calls a function with 4096 bytes, `both` calls both.
const CALLS: &str = ".version 6.4\n.target sm_61\n.address_size 64
.func (.param .b32 r) down(.param .b32 x) { .local .align 4 .b8 own[64]; .reg .b32 %r<4>; .reg .pred %p;
ld.param.u32 %r1, [x]; st.local.u32 [own], %r1; mov.u32 %r2, 0; setp.eq.u32 %p, %r1, 0; @%p bra END;
add.u32 %r3, %r1, -1; call (%r2), down, (%r3);
END: ld.local.u32 %r1, [own]; add.u32 %r2, %r2, %r1; st.param.b32 [r], %r2; ret; }
.visible .entry deep(.param .u32 n) { .reg .b32 %r<3>; ld.param.u32 %r1, [n]; call (%r2), down, (%r1); ret; }
.func (.param .b32 r) wide(.param .b32 x) { .local .align 4 .b8 own[4096]; .reg .b32 %r<3>;
ld.param.u32 %r1, [x]; st.local.u32 [own+4092], %r1; ld.local.u32 %r1, [own+4092]; st.param.b32 [r], %r1; ret; }
.visible .entry flat(.param .u32 n) { .reg .b32 %r<3>; ld.param.u32 %r1, [n]; call (%r2), wide, (%r1); ret; }
.visible .entry both(.param .u32 n) { .reg .b32 %r<3>; ld.param.u32 %r1, [n]; call (%r2), wide, (%r1); call (%r2), down, (%r1); ret; }
";

fn run(name: &str, mut n: u32) -> Result<(), String> {
    let mut arguments = [(&raw mut n).cast::<c_void>()];
    let f = kernel(CALLS, name);
    assert_eq!(launch_kernel(f, [1; 3], [32, 1, 1], 0, null_mut(), arguments.as_mut_ptr()), 0);
    let code = code!("cuCtxSynchronize", (),);
    match take_findings().pop() {
        None => {
            assert_eq!(code, 0);
            Ok(())
        }
        Some(finding) => {
            assert_eq!((finding.kind, code), (FindingKind::StackOverflow, 714));
            Err(finding.message)
        }
    }
}

#[test]
fn recursion_has_the_stack_that_is_set() {
    let too_deep = |limit: Option<usize>, name: &str, n: u32| {
        let _turn = driver(Config::default());
        context();
        if let Some(limit) = limit {
            assert_eq!(set(STACK, limit), 0);
        }
        run(name, n)
    };
    assert_eq!(too_deep(None, "deep", 500), Ok(()), "nothing is set");
    // n + 1 calls take 80 bytes each, 16 of them for the parameter and the result
    assert_eq!(too_deep(Some(1024), "deep", 11), Ok(()));
    let message = |depth: u32, stack: u32| {
        let needs = 80 * depth;
        Err(format!(
            "`down`, {depth} calls deep, needs {needs} bytes of stack (CU_LIMIT_STACK_SIZE): a thread has {stack}"
        ))
    };
    assert_eq!(too_deep(Some(1024), "deep", 12), message(13, 1024));
    assert_eq!(too_deep(Some(1025), "deep", 12), Ok(()), "rounded up to 1040");
    assert_eq!(too_deep(Some(1040), "deep", 13), message(14, 1040));
    // calls that are known have what they need, here 4112 bytes, and recursion may use as much
    assert_eq!(too_deep(Some(1024), "flat", 1), Ok(()));
    assert_eq!(too_deep(Some(1024), "both", 50), Ok(()));
    assert_eq!(too_deep(Some(1024), "both", 51), message(52, 4112));
}

/// A launch, and a graph's node, keep the limits of their time.
#[test]
fn a_launch_has_the_limits_of_when_it_was_queued() {
    let _turn = driver(Config::default());
    context();
    let mut n = 100u32;
    let mut arguments = [(&raw mut n).cast::<c_void>()];
    let f = kernel(CALLS, "deep");
    assert_eq!(set(STACK, 16 << 10), 0);
    let mut stream = null_mut();
    call!("cuStreamCreate", (*mut *mut c_void, c_uint), &mut stream, 1);
    assert_eq!(launch_kernel(f, [1; 3], [32, 1, 1], 0, stream, arguments.as_mut_ptr()), 0);
    assert_eq!(set(STACK, 256), 0);
    call!("cuStreamSynchronize", (*mut c_void), stream);
    assert_eq!(launch_kernel(f, [1; 3], [32, 1, 1], 0, stream, arguments.as_mut_ptr()), 0);
    assert_eq!(code!("cuStreamSynchronize", (*mut c_void), stream), 714);
    assert_eq!(take_findings().len(), 1);
}

const PRINTS: &str = ".version 6.4\n.target sm_61\n.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 1 .b8 $f[4] = {97, 98, 10, 0};
.func say() { .reg .b64 %rd<2>; .reg .b32 %r<2>; mov.u64 %rd1, $f; cvta.global.u64 %rd1, %rd1;
{ .param .b32 r; .param .b64 a; .param .b64 b; st.param.b64 [a], %rd1; st.param.b64 [b], 0; call (r), vprintf, (a, b); } ret; }
.visible .entry speak() { call say; ret; }
.visible .entry silent() { ret; }
";

fn launch_plain(f: *mut c_void, threads: u32, stream: *mut c_void) {
    assert_eq!(launch_kernel(f, [1; 3], [threads, 1, 1], 0, stream, null_mut()), 0);
}

#[test]
fn the_buffer_of_text_is_set_before_a_kernel_prints() {
    let _turn = driver(Config::default());
    context();
    let [speak, silent] = ["speak", "silent"].map(|name| kernel(PRINTS, name));
    launch_plain(silent, 1, null_mut());
    assert_eq!(set(TEXT, 1 << 16), 0, "nothing that prints was launched");
    // captured work was not launched either
    let (mut stream, mut graph, mut exec) =
        (null_mut::<c_void>(), null_mut::<c_void>(), null_mut::<c_void>());
    call!("cuStreamCreate", (*mut *mut c_void, c_uint), &mut stream, 1);
    call!("cuStreamBeginCapture_v2", (*mut c_void, c_int), stream, 0);
    launch_plain(speak, 1, stream);
    call!("cuStreamEndCapture", (*mut c_void, *mut *mut c_void), stream, &mut graph);
    call!("cuGraphInstantiateWithFlags", (*mut *mut c_void, *mut c_void, u64), &mut exec, graph, 0);
    assert_eq!(set(TEXT, 1 << 17), 0);
    call!("cuGraphLaunch", (*mut c_void, *mut c_void), exec, stream);
    assert_eq!((set(TEXT, 1 << 16), get(TEXT)), (1, Ok(1 << 17)));
    call!("cuStreamSynchronize", (*mut c_void), stream);
    context();
    assert_eq!(set(TEXT, 1 << 16), 0, "of another context");
    launch_plain(speak, 1, null_mut());
    assert_eq!(set(TEXT, 1 << 15), 1);
    call!("cuCtxSynchronize", (),);
}

/// Runs itself as a process of its own, whose output it reads.
#[test]
fn a_launch_prints_as_much_as_the_buffer_holds() {
    const CHILD: &str = "PASCALINE_TEST_PRINTS";
    if std::env::var_os(CHILD).is_some() {
        let _turn = driver(Config { threads: 1, ..Config::default() });
        context();
        assert_eq!(set(TEXT, 30), 0);
        launch_plain(kernel(PRINTS, "speak"), 32, null_mut());
        call!("cuCtxSynchronize", (),);
        return;
    }
    let name = "context_limits::a_launch_prints_as_much_as_the_buffer_holds";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{text}");
    assert_eq!(text.matches("ab\n").count(), 10, "{text}");
    assert!(text.contains("[66 bytes beyond a launch's limit of 30 are missing]\n"), "{text}");
}
