//! Several devices of one process: separate memories, peer access, order across devices, faults of one.

use crate::common::{call, code, driver, launch_kernel};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::MutexGuard;

use pascaline_virtual_gpu::{Config, FindingKind, GTX1080, MX330, take_findings};

/// x = y + 1, for each of n words.
const PTX: &str = ".version 6.4
.target sm_61
.address_size 64
.visible .entry add_one(.param .u64 x, .param .u64 y, .param .u32 n) {
.reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .pred %p;
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r1, [n];
mov.u32 %r2, %tid.x;
setp.ge.u32 %p, %r2, %r1;
@%p ret;
mad.wide.u32 %rd1, %r2, 4, %rd1;
mad.wide.u32 %rd2, %r2, 4, %rd2;
ld.global.u32 %r3, [%rd2];
add.u32 %r3, %r3, 1;
st.global.u32 [%rd1], %r3;
ret;
}
";

const N: usize = 64;

/// One device with a stream and a buffer of [`N`] words, which hold 5.
struct Side {
    context: *mut c_void,
    stream: *mut c_void,
    function: *mut c_void,
    buffer: u64,
}

/// Two devices; one test at a time.
struct Pair {
    sides: [Side; 2],
    _turn: MutexGuard<'static, ()>,
}

impl Pair {
    fn new(config: Config) -> Self {
        let turn = driver(Config { card: &MX330, others: vec![(&GTX1080, Some(1 << 20))], ..config });
        Self { sides: [0, 1].map(Side::new), _turn: turn }
    }
}

impl Side {
    fn new(device: c_int) -> Self {
        let mut side = Self { context: null_mut(), stream: null_mut(), function: null_mut(), buffer: 0 };
        call!("cuDevicePrimaryCtxRetain", (*mut *mut c_void, c_int), &mut side.context, device);
        side.enter();
        call!("cuStreamCreate", (*mut *mut c_void, c_uint), &mut side.stream, 1);
        let (text, mut module) = (CString::new(PTX).unwrap(), null_mut());
        call!("cuModuleLoadData", (*mut *mut c_void, *const c_char), &mut module, text.as_ptr());
        let name = c"add_one".as_ptr();
        call!(
            "cuModuleGetFunction",
            (*mut *mut c_void, *mut c_void, *const c_char),
            &mut side.function,
            module,
            name
        );
        call!("cuMemAlloc_v2", (*mut u64, usize), &mut side.buffer, 4 * N);
        call!("cuMemsetD32Async", (u64, c_uint, usize, *mut c_void), side.buffer, 5, N, side.stream);
        side.synchronize();
        side
    }

    fn enter(&self) {
        call!("cuCtxSetCurrent", (*mut c_void), self.context);
    }

    fn synchronize(&self) {
        assert_eq!(self.wait(), 0);
    }

    fn wait(&self) -> u32 {
        self.enter();
        code!("cuStreamSynchronize", (*mut c_void), self.stream)
    }

    /// to = from + 1
    fn launch(&self, to: u64, from: u64) -> u32 {
        let n = N as u32;
        let mut arguments =
            [&raw const to as *mut c_void, &raw const from as *mut c_void, &raw const n as *mut c_void];
        launch_kernel(self.function, [1; 3], [n, 1, 1], 0, self.stream, arguments.as_mut_ptr())
    }

    fn event(&self) -> *mut c_void {
        let mut event = null_mut();
        self.enter();
        call!("cuEventCreate", (*mut *mut c_void, c_uint), &mut event, 2);
        event
    }

    fn record(&self, event: *mut c_void) {
        self.enter();
        call!("cuEventRecord", (*mut c_void, *mut c_void), event, self.stream);
    }

    fn wait_for(&self, event: *mut c_void) {
        self.enter();
        call!("cuStreamWaitEvent", (*mut c_void, *mut c_void, c_uint), self.stream, event, 0);
    }

    fn words(&self) -> Vec<u32> {
        let mut words = vec![0u32; N];
        self.enter();
        call!("cuMemcpyDtoH_v2", (*mut c_void, u64, usize), words.as_mut_ptr().cast(), self.buffer, 4 * N);
        words
    }
}

/// Queues a copy of `from`'s buffer to `to`'s on `on`'s stream.
fn copy(on: &Side, to: &Side, from: &Side) -> u32 {
    on.enter();
    code!(
        "cuMemcpyPeerAsync",
        (u64, *mut c_void, u64, *mut c_void, usize, *mut c_void),
        to.buffer,
        to.context,
        from.buffer,
        from.context,
        4 * N,
        on.stream
    )
}

fn kinds() -> Vec<FindingKind> {
    take_findings().into_iter().map(|finding| finding.kind).collect()
}

#[test]
fn each_device_has_its_name_memory_and_place() {
    let pair = Pair::new(Config::default());
    let mut count = 0;
    call!("cuDeviceGetCount", (*mut c_int), &mut count);
    assert_eq!(count, 2);
    for (device, (name, memory)) in
        [("Virtual GeForce MX330", 2 << 30), ("Virtual GeForce GTX 1080", 1 << 20)].into_iter().enumerate()
    {
        let mut text = [0u8; 64];
        call!("cuDeviceGetName", (*mut u8, c_int, c_int), text.as_mut_ptr(), 64, device as c_int);
        assert_eq!(std::str::from_utf8(&text).unwrap().trim_end_matches('\0'), name);
        let mut bytes = 0usize;
        call!("cuDeviceTotalMem_v2", (*mut usize, c_int), &mut bytes, device as c_int);
        assert_eq!(bytes, memory);
        let (mut current, mut owner) = (9, 9);
        pair.sides[device].enter();
        call!("cuCtxGetDevice", (*mut c_int), &mut current);
        call!(
            "cuPointerGetAttribute",
            (*mut c_void, c_int, u64),
            (&raw mut owner).cast(),
            9,
            pair.sides[device].buffer
        );
        assert_eq!([current, owner], [device as c_int; 2]);
    }
    // memory of one is not that of the other
    let mut at = 0;
    assert_eq!(code!("cuMemAlloc_v2", (*mut u64, usize), &mut at, 2 << 20), 2, "the second has 1 MiB");
    pair.sides[0].enter();
    call!("cuMemAlloc_v2", (*mut u64, usize), &mut at, 2 << 20);
    assert_ne!(code!("cuMemFree_v2", (u64), pair.sides[1].buffer), 0, "the other device's memory");
    assert_ne!(code!("cuDeviceGet", (*mut c_int, c_int), &mut count, 2), 0);
    assert_eq!(kinds(), []);
}

#[test]
fn copies_go_across_and_events_order_them() {
    for seed in 1..20 {
        let pair = Pair::new(Config { seed, ..Config::default() });
        let [a, b] = &pair.sides;
        a.enter();
        assert_eq!(a.launch(a.buffer, a.buffer), 0);
        let written = a.event();
        a.record(written);
        b.wait_for(written);
        assert_eq!(copy(b, b, a), 0);
        let copied = b.event();
        b.record(copied);
        assert_eq!(b.launch(b.buffer, b.buffer), 0);
        a.wait_for(copied);
        assert_eq!(a.launch(a.buffer, a.buffer), 0);
        a.synchronize();
        b.synchronize();
        assert_eq!([a.words(), b.words()], [vec![7; N], vec![7; N]], "seed {seed}");
        assert_eq!(kinds(), [], "seed {seed}");
    }
}

/// Whichever order the work happens to run in.
#[test]
fn a_missing_wait_is_a_finding_in_every_order() {
    let missed = |seed, work: &dyn Fn(&Side, &Side)| {
        let pair = Pair::new(Config { seed, ..Config::default() });
        let [a, b] = &pair.sides;
        work(a, b);
        let waits = [a.wait(), b.wait()];
        assert!(waits.contains(&719), "seed {seed}: {waits:?}");
        assert_eq!(kinds(), [FindingKind::MissingWait], "seed {seed}");
    };
    let write = |side: &Side| {
        side.enter();
        assert_eq!(side.launch(side.buffer, side.buffer), 0);
    };
    for seed in 1..20 {
        // what the copy reads is not waited for
        missed(seed, &|a, b| {
            write(a);
            assert_eq!(copy(b, b, a), 0);
        });
        // the source is written again without a wait for the copy
        missed(seed, &|a, b| {
            assert_eq!(copy(b, b, a), 0);
            write(a);
        });
        // what was sent is read by a kernel that does not wait for it
        missed(seed, &|a, b| {
            assert_eq!(copy(a, b, a), 0);
            write(b);
        });
    }
}

/// The last 29 words come from the other device: the first thread that reads one of them is named.
#[test]
fn a_missing_wait_of_a_kernel_names_its_thread() {
    let mut named = 0;
    for seed in 1..20 {
        let pair = Pair::new(Config { seed, ..Config::default() });
        let [a, b] = &pair.sides;
        a.enter();
        call!(
            "cuMemcpyPeerAsync",
            (u64, *mut c_void, u64, *mut c_void, usize, *mut c_void),
            b.buffer + 4 * 35,
            b.context,
            a.buffer,
            a.context,
            4 * (N - 35),
            a.stream
        );
        b.enter();
        assert_eq!(b.launch(b.buffer, b.buffer), 0);
        assert!([a.wait(), b.wait()].contains(&719), "seed {seed}");
        for finding in take_findings().iter().filter(|finding| finding.line > 0) {
            assert_eq!((finding.kernel.as_str(), finding.line, finding.thread), ("add_one", 12, [35, 0, 0]));
            let at = b.buffer + 4 * 35;
            let message = format!(
                "4-byte load at 0x{at:x} without waiting for the work on another device that writes it"
            );
            assert_eq!(finding.message, message);
            named += 1;
        }
    }
    assert!(named > 0, "in some orders the kernel comes after the copy");
}

/// Work is numbered in the shadow of memory by a byte, so numbers are used again.
#[test]
fn work_that_was_waited_for_is_not_taken_for_later_work() {
    let pair = Pair::new(Config { late: false, ..Config::default() });
    let [a, b] = &pair.sides;
    let mut other = 0;
    b.enter();
    call!("cuCtxEnablePeerAccess", (*mut c_void, c_uint), a.context, 0);
    a.enter();
    call!("cuMemAlloc_v2", (*mut u64, usize), &mut other, 4 * N);
    call!("cuMemsetD32Async", (u64, c_uint, usize, *mut c_void), other, 1, N, a.stream);
    assert_eq!(a.launch(a.buffer, a.buffer), 0);
    a.synchronize();
    // The numbers of all that device 0 does now, which device 1 does not follow, come round to that of the launch before.
    for _ in 0..300 {
        assert_eq!(a.launch(other, other), 0);
    }
    b.enter();
    assert_eq!(b.launch(b.buffer, a.buffer), 0);
    b.synchronize();
    assert_eq!((b.words(), kinds()), (vec![7; N], vec![]));
    assert_eq!(b.launch(b.buffer, other), 0);
    assert_eq!((b.wait(), kinds()), (719, vec![FindingKind::MissingWait]));
}

#[test]
fn host_memory_between_devices_must_be_waited_for_too() {
    for (seed, waits) in (1..10).flat_map(|seed| [(seed, true), (seed, false)]) {
        let pair = Pair::new(Config { seed, ..Config::default() });
        let [a, b] = &pair.sides;
        let mut pinned: *mut c_void = null_mut();
        a.enter();
        call!("cuMemHostAlloc", (*mut *mut c_void, usize, c_uint), &mut pinned, 4 * N, 1);
        assert_eq!(a.launch(a.buffer, a.buffer), 0);
        call!(
            "cuMemcpyDtoHAsync_v2",
            (*mut c_void, u64, usize, *mut c_void),
            pinned,
            a.buffer,
            4 * N,
            a.stream
        );
        let there = a.event();
        a.record(there);
        if waits {
            b.wait_for(there);
        }
        b.enter();
        call!(
            "cuMemcpyHtoDAsync_v2",
            (u64, *mut c_void, usize, *mut c_void),
            b.buffer,
            pinned,
            4 * N,
            b.stream
        );
        let codes = [a.wait(), b.wait()];
        if waits {
            assert_eq!((codes, kinds()), ([0; 2], vec![]), "seed {seed}");
            assert_eq!(b.words(), vec![6; N]);
        } else {
            assert!(codes.contains(&719), "seed {seed}: {codes:?}");
            assert_eq!(kinds(), [FindingKind::MissingWait], "seed {seed}");
        }
    }
}

#[test]
fn a_kernel_needs_peer_access_to_a_peer() {
    let pair = Pair::new(Config::default());
    let [a, b] = &pair.sides;
    let mut can = 0;
    call!("cuDeviceCanAccessPeer", (*mut c_int, c_int, c_int), &mut can, 0, 1);
    assert_eq!(can, 1);
    a.enter();
    call!("cuCtxEnablePeerAccess", (*mut c_void, c_uint), b.context, 0);
    assert_eq!(code!("cuCtxEnablePeerAccess", (*mut c_void, c_uint), b.context, 0), 704);
    assert_eq!(a.launch(a.buffer, b.buffer), 0);
    a.synchronize();
    assert_eq!((a.words(), kinds()), (vec![6; N], vec![]));
    b.enter();
    assert_eq!(b.launch(b.buffer, a.buffer), 0, "there is no peer access in this direction");
    assert_eq!((b.wait(), kinds()), (700, vec![FindingKind::WrongDevice]));
    assert_eq!(a.wait(), 0, "a fault of one device is its own");
    a.enter();
    assert_eq!(a.launch(a.buffer, a.buffer), 0);
    a.synchronize();
    assert_eq!(a.words(), vec![7; N]);
}

#[test]
fn pointers_streams_and_kernels_of_the_wrong_device_are_findings() {
    let pair = Pair::new(Config { peers: false, ..Config::default() });
    let [a, b] = &pair.sides;
    let mut can = 9;
    call!("cuDeviceCanAccessPeer", (*mut c_int, c_int, c_int), &mut can, 0, 1);
    assert_eq!(can, 0);
    a.enter();
    assert_eq!(code!("cuCtxEnablePeerAccess", (*mut c_void, c_uint), b.context, 0), 217);
    let set = code!("cuMemsetD32Async", (u64, c_uint, usize, *mut c_void), b.buffer, 1, N, a.stream);
    let plain =
        code!("cuMemcpyDtoDAsync_v2", (u64, u64, usize, *mut c_void), b.buffer, a.buffer, 4 * N, a.stream);
    let named = code!(
        "cuMemcpyPeerAsync",
        (u64, *mut c_void, u64, *mut c_void, usize, *mut c_void),
        b.buffer,
        a.context,
        a.buffer,
        a.context,
        4 * N,
        a.stream
    );
    assert_eq!([set, plain, named], [1; 3]);
    b.enter();
    assert_eq!(a.launch(a.buffer, a.buffer), 400, "another device is current");
    assert_eq!(kinds(), [FindingKind::WrongDevice; 4]);
    let event = b.event();
    a.enter();
    assert_eq!(code!("cuEventRecord", (*mut c_void, *mut c_void), event, a.stream), 400);
    // by name a copy needs no peer access: the driver copies through host memory
    assert_eq!(copy(a, b, a), 0);
    a.synchronize();
    assert_eq!(b.words(), vec![5; N]);
    assert_eq!(kinds(), []);
}

/// A graph of both devices: a += 1, b = a + 1, a += 1, each after the one before but for the wait that is left out.
fn graph_over(pair: &Pair, left_out: Option<usize>) -> *mut c_void {
    let [a, b] = &pair.sides;
    for (side, peer) in [(a, b), (b, a)] {
        side.enter();
        code!("cuCtxEnablePeerAccess", (*mut c_void, c_uint), peer.context, 0);
    }
    let order = |number: usize, from: &Side, to: &Side| {
        let event = from.event();
        from.record(event);
        if left_out != Some(number) {
            to.wait_for(event);
        }
    };
    a.enter();
    call!("cuStreamBeginCapture_v2", (*mut c_void, c_int), a.stream, 2);
    order(9, a, b);
    a.enter();
    assert_eq!(a.launch(a.buffer, a.buffer), 0);
    order(0, a, b);
    b.enter();
    assert_eq!(b.launch(b.buffer, a.buffer), 0);
    order(1, b, a);
    a.enter();
    assert_eq!(a.launch(a.buffer, a.buffer), 0);
    order(9, b, a);
    let (mut graph, mut exec) = (null_mut(), null_mut());
    a.enter();
    call!("cuStreamEndCapture", (*mut c_void, *mut *mut c_void), a.stream, &mut graph);
    call!("cuGraphInstantiateWithFlags", (*mut *mut c_void, *mut c_void, u64), &mut exec, graph, 0);
    exec
}

#[test]
fn a_graph_spans_devices() {
    for seed in 1..10 {
        let pair = Pair::new(Config { seed, ..Config::default() });
        let [a, b] = &pair.sides;
        let exec = graph_over(&pair, None);
        assert_eq!(a.words(), vec![5; N], "capturing runs nothing");
        for _ in 0..2 {
            a.enter();
            call!("cuGraphLaunch", (*mut c_void, *mut c_void), exec, a.stream);
        }
        // what follows the graph follows all of it
        let done = a.event();
        a.record(done);
        b.wait_for(done);
        assert_eq!(b.launch(b.buffer, b.buffer), 0);
        b.synchronize();
        assert_eq!((a.words(), b.words(), kinds()), (vec![9; N], vec![10; N], vec![]), "seed {seed}");
        call!("cuGraphExecDestroy", (*mut c_void), exec);
        drop(pair);
        for missing in 0..2 {
            let pair = Pair::new(Config { seed, ..Config::default() });
            let [a, b] = &pair.sides;
            let exec = graph_over(&pair, Some(missing));
            a.enter();
            call!("cuGraphLaunch", (*mut c_void, *mut c_void), exec, a.stream);
            let codes = [a.wait(), b.wait()];
            assert!(codes.contains(&719), "seed {seed}, wait {missing}: {codes:?}");
            assert_eq!(kinds(), [FindingKind::MissingWait], "seed {seed}, wait {missing}");
        }
    }
}

#[test]
fn a_fault_in_a_graph_ends_what_follows_it() {
    for seed in 1..10 {
        let pair = Pair::new(Config { seed, ..Config::default() });
        let [a, b] = &pair.sides;
        let exec = graph_over(&pair, None);
        b.enter();
        call!("cuMemFree_v2", (u64), b.buffer);
        a.enter();
        call!("cuGraphLaunch", (*mut c_void, *mut c_void), exec, a.stream);
        assert_eq!((a.wait(), b.wait()), (0, 700));
        assert_eq!(kinds(), [FindingKind::UseAfterFree]);
        assert_eq!(a.words(), vec![6; N], "the last node follows the one that failed");
    }
}

#[test]
fn memory_of_a_pool_is_reached_by_its_access_list() {
    for granted in [false, true] {
        let pair = Pair::new(Config::default());
        let [a, b] = &pair.sides;
        a.enter();
        call!("cuCtxEnablePeerAccess", (*mut c_void, c_uint), b.context, 0);
        b.enter();
        let (mut pool, mut at) = (null_mut(), 0u64);
        call!("cuDeviceGetDefaultMemPool", (*mut *mut c_void, c_int), &mut pool, 1);
        let access: [c_int; 3] = [1, 0, if granted { 3 } else { 0 }];
        call!("cuMemPoolSetAccess", (*mut c_void, *const c_int, usize), pool, access.as_ptr(), 1);
        call!("cuMemAllocAsync", (*mut u64, usize, *mut c_void), &mut at, 4 * N, b.stream);
        call!("cuMemsetD32Async", (u64, c_uint, usize, *mut c_void), at, 8, N, b.stream);
        b.synchronize();
        a.enter();
        assert_eq!(a.launch(a.buffer, at), 0);
        if granted {
            a.synchronize();
            assert_eq!((a.words(), kinds()), (vec![9; N], vec![]));
        } else {
            assert_eq!((a.wait(), kinds()), (700, vec![FindingKind::WrongDevice]));
        }
    }
}
