//! The driver API through its symbols, as the seam calls it.

use crate::common::{call, code, driver, launch_kernel};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard};

use pascaline_virtual_gpu::{
    Config, FindingKind, GRAPH_LAUNCH_SECONDS, GTX1080, LAUNCH_SECONDS, LaunchReport, estimate, keep_reports,
    restart, symbol, symbols, take_findings, take_reports,
};

/// A fresh device with a current context, for one test at a time.
fn device(config: Config) -> MutexGuard<'static, ()> {
    let turn = driver(config);
    let mut context: *mut c_void = std::ptr::null_mut();
    call!("cuDevicePrimaryCtxRetain", (*mut *mut c_void, c_int), &mut context, 0);
    call!("cuCtxSetCurrent", (*mut c_void), context);
    turn
}

const PTX: &str = ".version 6.4
.target sm_61
.address_size 64
.visible .global .align 4 .u32 answer = 42;
.visible .entry scale(.param .u64 x, .param .f32 a, .param .u32 n) .maxntid 256, 1, 1 {
.reg .b64 %rd<3>; .reg .b32 %r<8>; .reg .pred %p;
ld.param.u64 %rd1, [x]; ld.param.f32 %r5, [a]; ld.param.u32 %r6, [n];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
setp.ge.u32 %p, %r1, %r6;
@%p ret;
mad.wide.u32 %rd2, %r1, 4, %rd1;
ld.global.f32 %r4, [%rd2];
mul.f32 %r4, %r4, %r5;
st.global.f32 [%rd2], %r4;
ret;
}
";

fn load(text: &str) -> *mut c_void {
    let text = CString::new(text).unwrap();
    let mut module = std::ptr::null_mut();
    call!("cuModuleLoadData", (*mut *mut c_void, *const c_char), &mut module, text.as_ptr());
    module
}

fn function(module: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    let mut f = std::ptr::null_mut();
    call!(
        "cuModuleGetFunction",
        (*mut *mut c_void, *mut c_void, *const c_char),
        &mut f,
        module,
        name.as_ptr()
    );
    f
}

fn alloc(bytes: usize) -> u64 {
    let mut p = 0;
    call!("cuMemAlloc_v2", (*mut u64, usize), &mut p, bytes);
    p
}

fn upload(p: u64, v: &[f32]) {
    call!("cuMemcpyHtoD_v2", (u64, *const f32, usize), p, v.as_ptr(), v.len() * 4);
}

fn download(p: u64, n: usize) -> Vec<f32> {
    let mut v = vec![0f32; n];
    call!("cuMemcpyDtoH_v2", (*mut f32, u64, usize), v.as_mut_ptr(), p, n * 4);
    v
}

fn stream(flags: c_uint) -> *mut c_void {
    let mut s = std::ptr::null_mut();
    call!("cuStreamCreate", (*mut *mut c_void, c_uint), &mut s, flags);
    s
}

fn event() -> *mut c_void {
    let mut e = std::ptr::null_mut();
    call!("cuEventCreate", (*mut *mut c_void, c_uint), &mut e, 0);
    e
}

fn scale(f: *mut c_void, s: *mut c_void, x: u64, a: f32, n: u32) -> u32 {
    launch(f, s, x, a, n, n.div_ceil(256).max(1), 256)
}

fn launch(f: *mut c_void, s: *mut c_void, x: u64, a: f32, n: u32, grid: u32, block: u32) -> u32 {
    let mut params =
        [&x as *const u64 as *mut c_void, &a as *const f32 as *mut c_void, &n as *const u32 as *mut c_void];
    launch_kernel(f, [grid, 1, 1], [block, 1, 1], 0, s, params.as_mut_ptr())
}

const NULL: *mut c_void = std::ptr::null_mut();

#[test]
fn unknown_symbols_are_not_supported() {
    assert!(symbol("cuMemAlloc").is_none(), "only exact names");
    assert!(symbol("cuMipmappedArrayCreate").is_none());
    assert!(symbols().count() > 100);
}

#[test]
fn attributes_of_the_card() {
    let _turn = device(Config { card: &pascaline_virtual_gpu::MX330, ..Config::default() });
    let attribute = |n: c_int| {
        let mut v = -1;
        call!("cuDeviceGetAttribute", (*mut c_int, c_int, c_int), &mut v, n, 0);
        v
    };
    assert_eq!((attribute(75), attribute(76), attribute(16)), (6, 1, 3));
    assert_eq!((attribute(8), attribute(81), attribute(97)), (49152, 98304, 49152));
    assert_eq!(attribute(115), 1);
    let mut total = 0usize;
    call!("cuDeviceTotalMem_v2", (*mut usize, c_int), &mut total, 0);
    assert_eq!(total, 2 << 30);
    let mut name = [0 as c_char; 64];
    call!("cuDeviceGetName", (*mut c_char, c_int, c_int), name.as_mut_ptr(), 64, 0);
    assert_eq!(code!("cuDeviceGetAttribute", (*mut c_int, c_int, c_int), &mut 0, 1, 1), 101);
}

#[test]
fn a_launch_and_its_result() {
    let _turn = device(Config::default());
    let f = function(load(PTX), "scale");
    let n = 1000;
    let x = alloc(4 * n);
    upload(x, &(0..n).map(|i| i as f32).collect::<Vec<_>>());
    assert_eq!(scale(f, NULL, x, 2.0, n as u32), 0);
    assert_eq!(download(x, n), (0..n).map(|i| 2.0 * i as f32).collect::<Vec<_>>());
    // Refused at once, and the device goes on.
    assert_eq!(launch(f, NULL, x, 2.0, n as u32, 1, 512), 701);
    assert_eq!(launch(f, NULL, x, 2.0, n as u32, 0, 256), 1);
    assert_eq!(take_findings().len(), 2);
    assert_eq!(download(x, 2), [0.0, 2.0]);
}

#[test]
fn without_a_current_context() {
    let _turn = device(Config::default());
    call!("cuCtxSetCurrent", (*mut c_void), NULL);
    assert_eq!(code!("cuMemAlloc_v2", (*mut u64, usize), &mut 0, 16), 201);
    let other = std::thread::spawn(|| code!("cuCtxSynchronize", (),)).join().unwrap();
    assert_eq!(other, 201, "a context is current on one thread only");
}

#[test]
fn module_log_globals_and_function_attributes() {
    let _turn = device(Config::default());
    let bad = CString::new(PTX.replace("mul.f32", "mul.f33")).unwrap();
    let mut log = [0u8; 200];
    let mut options = [5 as c_int, 6];
    let mut values = [log.as_mut_ptr() as *mut c_void, log.len() as *mut c_void];
    let mut module = NULL;
    let code = code!(
        "cuModuleLoadDataEx",
        (*mut *mut c_void, *const c_char, c_uint, *mut c_int, *mut *mut c_void),
        &mut module,
        bad.as_ptr(),
        2,
        options.as_mut_ptr(),
        values.as_mut_ptr()
    );
    assert_eq!(code, 218);
    let text = String::from_utf8_lossy(&log[..values[1] as usize]).into_owned();
    assert!(text.contains("line 13") && text.contains("mul.f33"), "{text}");
    assert_eq!(
        code!("cuModuleLoadData", (*mut *mut c_void, *const u8), &mut module, b"\x7fELF....".as_ptr()),
        209
    );

    let module = load(PTX);
    let (mut at, mut bytes) = (0u64, 0usize);
    let name = CString::new("answer").unwrap();
    call!(
        "cuModuleGetGlobal_v2",
        (*mut u64, *mut usize, *mut c_void, *const c_char),
        &mut at,
        &mut bytes,
        module,
        name.as_ptr()
    );
    let mut v = 0u32;
    call!("cuMemcpyDtoH_v2", (*mut u32, u64, usize), &mut v, at, 4);
    assert_eq!((v, bytes), (42, 4));
    let f = function(module, "scale");
    let attribute = |n: c_int| {
        let mut v = 0;
        call!("cuFuncGetAttribute", (*mut c_int, c_int, *mut c_void), &mut v, n, f);
        v
    };
    assert_eq!((attribute(0), attribute(1), attribute(5), attribute(6)), (256, 0, 64, 61));
    assert!((16..32).contains(&attribute(4)));
    let mut blocks = 0;
    call!(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        (*mut c_int, *mut c_void, c_int, usize),
        &mut blocks,
        f,
        256,
        0
    );
    assert_eq!(blocks, 8);
    call!("cuModuleUnload", (*mut c_void), module);
    assert_eq!(scale(f, NULL, at, 1.0, 1), 400, "a function goes with its module");
}

#[test]
fn a_device_fault_is_sticky_and_reported() {
    let _turn = device(Config::default());
    let f = function(load(PTX), "scale");
    let x = alloc(40);
    call!("cuMemsetD32_v2", (u64, c_uint, usize), x, 0, 10);
    assert_eq!(scale(f, NULL, x, 2.0, 11), 0, "the launch itself succeeds");
    assert_eq!(code!("cuCtxSynchronize", (),), 700);
    assert_eq!(code!("cuMemAlloc_v2", (*mut u64, usize), &mut 0, 16), 700);
    assert_eq!(code!("cuStreamSynchronize", (*mut c_void), NULL), 700);
    let found = take_findings();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].kind, found[0].line, found[0].thread), (FindingKind::OutOfBounds, 12, [10, 0, 0]));
}

#[test]
fn memory_limit_and_info() {
    let _turn = device(Config { memory_limit: Some(1 << 20), ..Config::default() });
    let a = alloc(700 << 10);
    let mut p = 0;
    assert_eq!(code!("cuMemAlloc_v2", (*mut u64, usize), &mut p, 400 << 10), 2);
    let (mut free, mut total) = (0usize, 0usize);
    call!("cuMemGetInfo_v2", (*mut usize, *mut usize), &mut free, &mut total);
    assert_eq!((free, total), (324 << 10, 1 << 20));
    call!("cuMemFree_v2", (u64), a);
    assert_eq!(code!("cuMemFree_v2", (u64), a), 1, "a second free");
    alloc(1 << 20);
}

#[test]
fn pools_and_their_absence() {
    {
        let _turn = device(Config { pools: false, ..Config::default() });
        assert_eq!(code!("cuMemAllocAsync", (*mut u64, usize, *mut c_void), &mut 0, 64, NULL), 801);
    }
    let _turn = device(Config::default());
    let s = stream(1);
    let mut pool = NULL;
    call!("cuDeviceGetDefaultMemPool", (*mut *mut c_void, c_int), &mut pool, 0);
    let attribute = |n: c_int| {
        let mut v = 0u64;
        call!("cuMemPoolGetAttribute", (*mut c_void, c_int, *mut u64), pool, n, &mut v);
        v
    };
    let mut p = 0;
    call!("cuMemAllocAsync", (*mut u64, usize, *mut c_void), &mut p, 4096, s);
    assert_eq!(attribute(7), 4096);
    call!("cuMemsetD8Async", (u64, u8, usize, *mut c_void), p, 7, 4096, s);
    call!("cuMemFreeAsync", (u64, *mut c_void), p, s);
    call!("cuStreamSynchronize", (*mut c_void), s);
    assert_eq!((attribute(7), attribute(5), attribute(8)), (0, 0, 4096));
    assert_eq!(code!("cuMemFreeAsync", (u64, *mut c_void), p, s), 1, "already free");
}

#[test]
fn stream_ordered_memory_used_on_another_stream_without_an_edge() {
    let mut caught = 0;
    for seed in 0..20 {
        let _turn = device(Config { seed, ..Config::default() });
        let (a, b) = (stream(1), stream(1));
        let mut p = 0;
        call!("cuMemAllocAsync", (*mut u64, usize, *mut c_void), &mut p, 4096, a);
        let set = code!("cuMemsetD8Async", (u64, u8, usize, *mut c_void), p, 7, 4096, b);
        let sync = code!("cuStreamSynchronize", (*mut c_void), b);
        caught += (set != 0 || sync != 0) as u32;
        assert!(matches!(sync, 0 | 700));
    }
    assert!(caught > 3, "the missing edge shows itself in {caught} of 20 orders");
}

/// Copy on one stream, kernel on another: right in every order only with the event between.
fn edge(seed: u64, with_event: bool) -> bool {
    let _turn = device(Config { seed, ..Config::default() });
    let f = function(load(PTX), "scale");
    let (a, b) = (stream(1), stream(1));
    let (x, y) = (alloc(256), alloc(256));
    upload(x, &[1.0; 64]);
    upload(y, &[5.0; 64]);
    call!("cuMemcpyDtoDAsync_v2", (u64, u64, usize, *mut c_void), x, y, 256, a);
    if with_event {
        let e = event();
        call!("cuEventRecord", (*mut c_void, *mut c_void), e, a);
        call!("cuStreamWaitEvent", (*mut c_void, *mut c_void, c_uint), b, e, 0);
    }
    assert_eq!(scale(f, b, x, 2.0, 64), 0);
    call!("cuStreamSynchronize", (*mut c_void), b);
    call!("cuCtxSynchronize", (),);
    download(x, 64)[0] == 10.0
}

#[test]
fn a_missing_event_shows_itself_and_a_present_one_holds() {
    assert!((0..20).all(|seed| edge(seed, true)));
    let right = (0..20).filter(|&seed| edge(seed, false)).count();
    assert!((1..20).contains(&right), "{right} of 20 orders give the right result by luck");
}

#[test]
fn the_legacy_default_stream_orders_blocking_streams() {
    for seed in 0..10 {
        let _turn = device(Config { seed, ..Config::default() });
        let f = function(load(PTX), "scale");
        let (a, b) = (stream(0), stream(0));
        let x = alloc(256);
        upload(x, &[1.0; 64]);
        assert_eq!(scale(f, a, x, 3.0, 64), 0);
        call!("cuMemsetD32Async", (u64, c_uint, usize, *mut c_void), x, 1f32.to_bits(), 32, NULL);
        assert_eq!(scale(f, b, x, 5.0, 64), 0);
        call!("cuStreamSynchronize", (*mut c_void), b);
        let v = download(x, 64);
        assert_eq!((v[0], v[63]), (5.0, 15.0));
    }
}

#[test]
fn work_runs_late_and_queries_make_progress() {
    let _turn = device(Config { seed: 3, ..Config::default() });
    let s = stream(1);
    let mut p: *mut u32 = std::ptr::null_mut();
    call!("cuMemHostAlloc", (*mut *mut u32, usize, c_uint), &mut p, 4, 0);
    let x = alloc(4);
    // Pinned memory is read when the copy runs, not when it is queued.
    let mut late = 0;
    for i in 0..50u32 {
        // SAFETY: p is the live pinned allocation above, and nothing of the device is running now.
        unsafe { p.write(i) };
        call!("cuMemcpyHtoDAsync_v2", (u64, *const u32, usize, *mut c_void), x, p, 4, s);
        // SAFETY: p is the live pinned allocation above; the write races with the copy on purpose.
        unsafe { p.write(1000) };
        let mut queries = 0;
        while code!("cuStreamQuery", (*mut c_void), s) == 600 {
            queries += 1;
            assert!(queries < 100);
        }
        let mut v = 0u32;
        call!("cuMemcpyDtoH_v2", (*mut u32, u64, usize), &mut v, x, 4);
        late += (v == 1000) as u32;
        assert!(v == 1000 || v == i);
    }
    assert!(late > 20, "{late} of 50 copies ran late");
    call!("cuMemFreeHost", (*mut u32), p);
}

#[test]
fn capture_replays() {
    for seed in 0..6 {
        let _turn = device(Config { seed, ..Config::default() });
        let f = function(load(PTX), "scale");
        let (s, side) = (stream(1), stream(1));
        let (x, y) = (alloc(256), alloc(256));
        upload(x, &[1.0; 64]);
        upload(y, &[1.0; 64]);
        call!("cuStreamBeginCapture_v2", (*mut c_void, c_int), s, 0);
        let (fork, join) = (event(), event());
        call!("cuEventRecord", (*mut c_void, *mut c_void), fork, s);
        call!("cuStreamWaitEvent", (*mut c_void, *mut c_void, c_uint), side, fork, 0);
        assert_eq!(scale(f, s, x, 2.0, 64), 0);
        assert_eq!(scale(f, side, y, 3.0, 64), 0);
        call!("cuEventRecord", (*mut c_void, *mut c_void), join, side);
        call!("cuStreamWaitEvent", (*mut c_void, *mut c_void, c_uint), s, join, 0);
        call!("cuMemcpyDtoDAsync_v2", (u64, u64, usize, *mut c_void), x, y, 4, s);
        assert_eq!(code!("cuStreamSynchronize", (*mut c_void), s), 900, "not while capturing");
        let (mut graph, mut exec) = (NULL, NULL);
        call!("cuStreamEndCapture", (*mut c_void, *mut *mut c_void), s, &mut graph);
        let mut nodes = 0usize;
        call!("cuGraphGetNodes", (*mut c_void, *mut c_void, *mut usize), graph, NULL, &mut nodes);
        assert_eq!(nodes, 3);
        call!("cuGraphInstantiateWithFlags", (*mut *mut c_void, *mut c_void, u64), &mut exec, graph, 0);
        assert_eq!(download(x, 1), [1.0], "capturing runs nothing");
        for _ in 0..2 {
            call!("cuGraphLaunch", (*mut c_void, *mut c_void), exec, s);
        }
        call!("cuStreamSynchronize", (*mut c_void), s);
        assert_eq!((download(x, 2), download(y, 1)), (vec![9.0, 4.0], vec![9.0]));
        call!("cuGraphExecDestroy", (*mut c_void), exec);
        call!("cuGraphDestroy", (*mut c_void), graph);
    }
}

#[test]
fn an_unjoined_fork_is_refused() {
    let _turn = device(Config::default());
    let (s, side) = (stream(1), stream(1));
    let x = alloc(256);
    let fork = event();
    call!("cuStreamBeginCapture_v2", (*mut c_void, c_int), s, 0);
    call!("cuEventRecord", (*mut c_void, *mut c_void), fork, s);
    call!("cuStreamWaitEvent", (*mut c_void, *mut c_void, c_uint), side, fork, 0);
    call!("cuMemsetD8Async", (u64, u8, usize, *mut c_void), x, 0, 256, side);
    let mut graph = NULL;
    assert_eq!(code!("cuStreamEndCapture", (*mut c_void, *mut *mut c_void), s, &mut graph), 904);
}

#[test]
fn events_measure_model_time() {
    let _turn = device(Config::default());
    let f = function(load(PTX), "scale");
    let s = stream(0);
    let n = 1u32 << 20;
    let x = alloc(4 * n as usize);
    call!("cuMemsetD32_v2", (u64, c_uint, usize), x, 0, n as usize);
    let (a, b) = (event(), event());
    call!("cuEventRecord", (*mut c_void, *mut c_void), a, s);
    assert_eq!(scale(f, s, x, 2.0, n), 0);
    call!("cuEventRecord", (*mut c_void, *mut c_void), b, s);
    call!("cuEventSynchronize", (*mut c_void), b);
    let mut ms = 0f32;
    call!("cuEventElapsedTime", (*mut f32, *mut c_void, *mut c_void), &mut ms, a, b);
    // Each of the 4 MiB is moved once in, once out at 320 GB/s: the model's perfect cache counts a sector once.
    assert!((0.01..0.2).contains(&ms), "{ms} ms");
}

#[test]
fn host_functions_run_in_order() {
    extern "C" fn note(data: *mut c_void) {
        // SAFETY: the test passes a pointer to a Mutex that outlives the stream's work.
        let v = unsafe { &*(data as *const Mutex<Vec<u32>>) };
        let n = v.lock().unwrap().len() as u32;
        v.lock().unwrap().push(n);
    }
    let _turn = device(Config::default());
    let s = stream(1);
    let seen = Mutex::new(Vec::<u32>::new());
    for _ in 0..5 {
        call!(
            "cuLaunchHostFunc",
            (*mut c_void, extern "C" fn(*mut c_void), *mut c_void),
            s,
            note,
            &seen as *const _ as *mut c_void
        );
    }
    call!("cuStreamSynchronize", (*mut c_void), s);
    assert_eq!(*seen.lock().unwrap(), [0, 1, 2, 3, 4]);
}

#[test]
fn pointer_attributes_and_registration() {
    let _turn = device(Config::default());
    let x = alloc(100);
    let kind = |p: u64| {
        let mut v = 0u32;
        let code = code!("cuPointerGetAttribute", (*mut u32, c_int, u64), &mut v, 2, p);
        (code, v)
    };
    assert_eq!(kind(x + 50), (0, 2));
    let mut host = vec![0u64; 64];
    let p = host.as_mut_ptr() as u64;
    assert_eq!(kind(p).0, 1);
    call!("cuMemHostRegister_v2", (u64, usize, c_uint), p, 512, 0);
    assert_eq!(kind(p + 8), (0, 1));
    assert_eq!(code!("cuMemHostRegister_v2", (u64, usize, c_uint), p, 512, 0), 712);
    call!("cuMemHostUnregister", (u64), p);
    assert_eq!(code!("cuMemHostUnregister", (u64), p), 713);
    let (mut base, mut size) = (0u64, 0usize);
    call!("cuMemGetAddressRange_v2", (*mut u64, *mut usize, u64), &mut base, &mut size, x + 99);
    assert_eq!((base, size), (x, 100));
}

#[test]
fn kernels_reach_pinned_memory() {
    let _turn = device(Config::default());
    let f = function(load(PTX), "scale");
    let mut p: *mut f32 = std::ptr::null_mut();
    call!("cuMemHostAlloc", (*mut *mut f32, usize, c_uint), &mut p, 256, 2);
    // SAFETY: the allocation has 64 floats and no work on it is queued.
    unsafe { std::slice::from_raw_parts_mut(p, 64) }.fill(4.0);
    assert_eq!(scale(f, NULL, p as u64, 0.5, 64), 0);
    call!("cuCtxSynchronize", (),);
    // SAFETY: the mapped allocation has 64 values, and the device has been waited for.
    assert_eq!(unsafe { p.add(63).read() }, 2.0);
}

#[test]
fn strided_copies() {
    let _turn = device(Config::default());
    let x = alloc(64);
    call!("cuMemsetD8_v2", (u64, u8, usize), x, 0, 64);
    let host: Vec<u8> = (0..12).collect();
    // SAFETY: an all-zero descriptor is a valid one of host memory kinds 0, which are set below.
    let mut c: cust_raw::CUDA_MEMCPY2D = cust_raw::CUDA_MEMCPY2D {
        srcXInBytes: 1,
        srcY: 0,
        srcMemoryType: cust_raw::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: host.as_ptr().cast(),
        srcDevice: 0,
        srcArray: std::ptr::null_mut(),
        srcPitch: 4,
        dstXInBytes: 0,
        dstY: 1,
        dstMemoryType: cust_raw::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: x,
        dstArray: std::ptr::null_mut(),
        dstPitch: 16,
        WidthInBytes: 2,
        Height: 3,
    };
    call!("cuMemcpy2D_v2", (*const cust_raw::CUDA_MEMCPY2D), &c);
    let mut out = [0u8; 64];
    call!("cuMemcpyDtoH_v2", (*mut u8, u64, usize), out.as_mut_ptr(), x, 64);
    assert_eq!((&out[16..18], &out[32..34], &out[48..50]), (&[1, 2][..], &[5, 6][..], &[9, 10][..]));
    c.dstY = 2;
    assert_eq!(code!("cuMemcpy2D_v2", (*const cust_raw::CUDA_MEMCPY2D), &c), 1, "beyond the allocation");
}

/// Safe code may hold on to page-locked memory over a restart; a block of this size that is freed is unmapped.
#[test]
fn page_locked_memory_outlives_a_restart() {
    const BYTES: usize = 4 << 20;
    let guard = device(Config::default());
    let mut at: *mut c_void = std::ptr::null_mut();
    call!("cuMemHostAlloc", (*mut *mut c_void, usize, c_uint), &mut at, BYTES, 0);
    // SAFETY: the buffer has the requested length and belongs to this test.
    let held = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), BYTES) };
    held.fill(7);
    restart(Config::default());
    let others: Vec<_> = (0..8).map(|_| vec![9u8; BYTES]).collect();
    assert!(held.iter().all(|&byte| byte == 7));
    drop((others, guard));
}

/// Counted once, launches that differ in their addresses alone leave equal reports; others are run. Those of a graph say so.
#[test]
fn equal_launches_are_counted_once_if_asked_for() {
    let _device = device(Config { once: true, ..Config::default() });
    keep_reports();
    take_reports();
    let f = function(load(PTX), "scale");
    let [x, y] = [alloc(4 * 300), alloc(4 * 300)];
    let ones = [1.0; 300];
    upload(x, &ones);
    upload(y, &ones);
    let s = stream(0); // which copies wait for
    assert_eq!(scale(f, s, x, 2.0, 300), 0); // is run
    call!("cuStreamSynchronize", (*mut c_void), s);
    assert_eq!(scale(f, s, y, 2.0, 300), 0); // equal
    assert_eq!(scale(f, s, y, 2.0, 200), 0); // is run
    assert_eq!(scale(f, s, y, 3.0, 200), 0); // is run
    assert_eq!(download(x, 1), [2.0]);
    assert_eq!(download(y, 300), [[6.0; 200].as_slice(), &[1.0; 100]].concat());
    let reports = take_reports();
    let counts: Vec<_> = reports.iter().map(|r| (r.grid[0], r.counters.global_loads.bytes)).collect();
    assert_eq!(counts, [(2, 1200), (2, 1200), (1, 800), (1, 800)]);
    assert!(reports.iter().all(|r| !r.in_graph));
    // taken reports are forgotten, so this runs again
    assert_eq!(scale(f, s, x, 2.0, 300), 0);
    assert_eq!(download(x, 1), [4.0]);

    call!("cuStreamBeginCapture_v2", (*mut c_void, c_uint), s, 0);
    assert_eq!(scale(f, s, x, 2.0, 300), 0);
    let (mut graph, mut exec) = (NULL, NULL);
    call!("cuStreamEndCapture", (*mut c_void, *mut *mut c_void), s, &mut graph);
    call!("cuGraphInstantiateWithFlags", (*mut *mut c_void, *mut c_void, u64), &mut exec, graph, 0);
    take_reports();
    call!("cuGraphLaunch", (*mut c_void, *mut c_void), exec, s);
    call!("cuStreamSynchronize", (*mut c_void), s);
    let [in_graph] = take_reports().try_into().expect("one launch");
    assert!(in_graph.in_graph);
    let alone = LaunchReport { in_graph: false, ..in_graph.clone() };
    let [saved, all] = [&in_graph, &alone].map(|report| estimate(report, &GTX1080, 16).time);
    assert!((all - saved - (LAUNCH_SECONDS - GRAPH_LAUNCH_SECONDS)).abs() < 1e-12, "{all} {saved}");
}
