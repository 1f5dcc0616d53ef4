//! Memory that nodes of graphs allocate and free: its life, who frees it, what a device keeps, and what such graphs refuse.

use crate::common::{call, code, driver, load_kernel};
use pascaline_virtual_gpu::{Config, FindingKind, GTX1080, take_findings};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::MutexGuard;

const WORDS: usize = 256;
const BYTES: usize = 4 * WORDS;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    kind: c_int,
    handle_types: c_int,
    place: [c_int; 2],
    security: usize,
    reserved: [u64; 8],
    accesses: *const [c_int; 3],
    count: usize,
    bytes: usize,
    address: u64,
}

fn params(bytes: usize) -> Params {
    Params {
        kind: 1,
        handle_types: 0,
        place: [1, 0],
        security: 0,
        reserved: [0; 8],
        accesses: null(),
        count: 0,
        bytes,
        address: 7,
    }
}

fn device(config: Config) -> MutexGuard<'static, ()> {
    let turn = driver(config);
    let mut context: *mut c_void = null_mut();
    call!("cuCtxCreate_v2", (*mut *mut c_void, c_uint, c_int), &mut context, 0, 0);
    turn
}

fn graph() -> u64 {
    let mut graph = 0;
    call!("cuGraphCreate", (*mut u64, c_uint), &mut graph, 0);
    graph
}

/// The node and the address.
fn alloc_with(graph: u64, after: &[u64], mut p: Params) -> Result<(u64, u64), u32> {
    let mut node = 0;
    let code = code!(
        "cuGraphAddMemAllocNode",
        (*mut u64, u64, *const u64, usize, *mut Params),
        &mut node,
        graph,
        after.as_ptr(),
        after.len(),
        &mut p
    );
    if code == 0 { Ok((node, p.address)) } else { Err(code) }
}

fn alloc(graph: u64, after: &[u64]) -> (u64, u64) {
    alloc_with(graph, after, params(BYTES)).unwrap()
}

fn free(graph: u64, after: &[u64], address: u64) -> Result<u64, u32> {
    let mut node = 0;
    let code = code!(
        "cuGraphAddMemFreeNode",
        (*mut u64, u64, *const u64, usize, u64),
        &mut node,
        graph,
        after.as_ptr(),
        after.len(),
        address
    );
    if code == 0 { Ok(node) } else { Err(code) }
}

/// A node that sets words.
fn set(graph: u64, after: &[u64], address: u64, value: u32) -> u64 {
    let p = cust_raw::CUDA_MEMSET_NODE_PARAMS {
        dst: address,
        pitch: 0,
        value,
        elementSize: 4,
        width: WORDS,
        height: 1,
    };
    let mut node = 0;
    call!(
        "cuGraphAddMemsetNode",
        (*mut u64, u64, *const u64, usize, *const cust_raw::CUDA_MEMSET_NODE_PARAMS, u64),
        &mut node,
        graph,
        after.as_ptr(),
        after.len(),
        &p,
        0
    );
    node
}

/// A node that launches [`ADD`] on words at an address.
fn add(graph: u64, after: &[u64], function: *mut c_void, mut to: u64, mut from: u64) -> u64 {
    let mut list = [(&raw mut to).cast::<c_void>(), (&raw mut from).cast()];
    let p = cust_raw::CUDA_KERNEL_NODE_PARAMS {
        func: function.cast(),
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: WORDS as c_uint,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: list.as_mut_ptr(),
        extra: null_mut(),
    };
    let mut node = 0;
    call!(
        "cuGraphAddKernelNode",
        (*mut u64, u64, *const u64, usize, *const cust_raw::CUDA_KERNEL_NODE_PARAMS),
        &mut node,
        graph,
        after.as_ptr(),
        after.len(),
        &p
    );
    node
}

/// to[i] += from[i]
const ADD: &str = ".version 6.4\n.target sm_61\n.address_size 64
.visible .entry add(.param .u64 to, .param .u64 from) {
.reg .b64 %rd<4>; .reg .b32 %r<4>;
ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4;
add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
ld.global.u32 %r1, [%rd1]; ld.global.u32 %r2, [%rd2]; add.u32 %r1, %r1, %r2; st.global.u32 [%rd1], %r1; ret; }
";

fn kernel() -> *mut c_void {
    load_kernel(ADD, "add").1
}

fn instantiate_with(graph: u64, flags: u64) -> Result<u64, u32> {
    let mut exec = 0;
    match code!("cuGraphInstantiateWithFlags", (*mut u64, u64, u64), &mut exec, graph, flags) {
        0 => Ok(exec),
        code => Err(code),
    }
}

fn instantiate(graph: u64) -> u64 {
    instantiate_with(graph, 0).unwrap()
}

fn launch(exec: u64) -> u32 {
    code!("cuGraphLaunch", (u64, u64), exec, 0)
}

fn synchronize() -> u32 {
    code!("cuCtxSynchronize", (),)
}

/// A buffer of words of value 0.
fn zeroes() -> u64 {
    let mut at = 0;
    call!("cuMemAlloc_v2", (*mut u64, usize), &mut at, BYTES);
    call!("cuMemsetD32_v2", (u64, c_uint, usize), at, 0, WORDS);
    at
}

fn words(at: u64) -> Vec<u32> {
    let mut words = vec![9; WORDS];
    call!("cuMemcpyDtoH_v2", (*mut u32, u64, usize), words.as_mut_ptr(), at, BYTES);
    words
}

fn free_async(at: u64) -> u32 {
    code!("cuMemFreeAsync", (u64, u64), at, 0)
}

fn free_now(at: u64) -> u32 {
    code!("cuMemFree_v2", (u64), at)
}

fn attribute(n: c_int) -> u64 {
    let mut bytes = u64::MAX;
    call!("cuDeviceGetGraphMemAttribute", (c_int, c_int, *mut u64), 0, n, &mut bytes);
    bytes
}

/// Used and its most, reserved and its most.
fn attributes() -> [u64; 4] {
    [0, 1, 2, 3].map(attribute)
}

fn free_bytes() -> u64 {
    let (mut free, mut total) = (0usize, 0usize);
    call!("cuMemGetInfo_v2", (*mut usize, *mut usize), &mut free, &mut total);
    free as u64
}

fn kind(node: u64) -> c_int {
    let mut kind = -1;
    call!("cuGraphNodeGetType", (u64, *mut c_int), node, &mut kind);
    kind
}

/// alloc → set to 3 → add to a sum → free; and the nodes and the address
fn chain(sum: u64, function: *mut c_void) -> (u64, [u64; 4], u64) {
    let graph = graph();
    let (a, at) = alloc(graph, &[]);
    let s = set(graph, &[a], at, 3);
    let k = add(graph, &[s], function, sum, at);
    let f = free(graph, &[k], at).unwrap();
    (graph, [a, s, k, f], at)
}

#[test]
fn memory_lives_between_its_nodes() {
    for seed in 0..4 {
        let _turn = device(Config { seed, ..Config::default() });
        let (sum, function) = (zeroes(), kernel());
        let (graph, nodes, at) = chain(sum, function);
        assert!(at != 0 && at != 7);
        assert_eq!(nodes.map(kind), [10, 2, 0, 11]);
        let mut told = params(0);
        call!("cuGraphMemAllocNodeGetParams", (u64, *mut Params), nodes[0], &mut told);
        assert_eq!((told.kind, told.place, told.bytes, told.address), (1, [1, 0], BYTES, at));
        let mut freed = 0;
        call!("cuGraphMemFreeNodeGetParams", (u64, *mut u64), nodes[3], &mut freed);
        assert_eq!(freed, at);
        for (name, node) in [("cuGraphMemAllocNodeGetParams", 1), ("cuGraphMemFreeNodeGetParams", 0)] {
            assert_eq!(code!(name, (u64, *mut Params), nodes[node], &mut told), 1, "another node");
        }
        let exec = instantiate(graph);
        for n in 1..4 {
            assert_eq!((launch(exec), synchronize()), (0, 0));
            assert_eq!(words(sum), [3 * n; WORDS]);
        }
        assert_eq!([launch(exec), launch(exec), synchronize()], [0; 3], "queued one behind the other");
        assert_eq!(words(sum), [15; WORDS]);
        assert_eq!([free_async(at), free_now(at)], [1, 1], "its own graph frees it");
        // what an earlier launch wrote is gone
        call!("cuGraphNodeSetEnabled", (u64, u64, c_uint), exec, nodes[1], 0);
        assert_eq!((launch(exec), synchronize()), (0, 719));
        let finding = take_findings().pop().unwrap();
        assert_eq!((finding.kind, finding.kernel.as_str()), (FindingKind::Uninitialized, "add"));
    }
}

/// Accesses that no edge orders behind the allocation or before the free, for which a seed is found, and those of other work.
#[test]
fn accesses_outside_of_its_life_are_findings() {
    let found = |edges: &dyn Fn(u64, u64, *mut c_void)| {
        (0..16).any(|seed| {
            let _turn = device(Config { seed, ..Config::default() });
            let (sum, function) = (zeroes(), kernel());
            edges(graph(), sum, function);
            synchronize();
            let findings = take_findings();
            findings.iter().for_each(|finding| assert_eq!(finding.kind, FindingKind::UseAfterFree));
            !findings.is_empty()
        })
    };
    assert!(found(&|graph, _, _| {
        let (_, at) = alloc(graph, &[]);
        set(graph, &[], at, 1);
        launch(instantiate(graph));
    }));
    assert!(found(&|graph, _, _| {
        let (a, at) = alloc(graph, &[]);
        set(graph, &[a], at, 1);
        free(graph, &[a], at).unwrap();
        launch(instantiate(graph));
    }));
    assert!(found(&|_, sum, function| {
        let (graph, _, at) = chain(sum, function);
        launch(instantiate(graph));
        call!("cuMemsetD32Async", (u64, c_uint, usize, u64), at, 1, WORDS, 0);
    }));
    assert!(found(&|graph, _, _| {
        let (_, at) = alloc(graph, &[]);
        call!("cuMemsetD32Async", (u64, c_uint, usize, u64), at, 1, WORDS, 0);
    }));
}

#[test]
fn memory_that_a_graph_leaves_is_freed_before_its_next_launch() {
    let _turn = device(Config::default());
    let graph = graph();
    let (a, at) = alloc(graph, &[]);
    set(graph, &[a], at, 5);
    assert_eq!([free_async(at), free_now(at)], [1, 1], "it is not allocated");
    let exec = instantiate(graph);
    assert_eq!(launch(exec), 0);
    assert_eq!(launch(exec), 1, "it is still allocated");
    assert_eq!(words(at), [5; WORDS]);
    assert_eq!([free_async(at), launch(exec)], [0, 0], "by the order of what is queued");
    assert_eq!(words(at), [5; WORDS]);
    assert_eq!([free_now(at), free_now(at), free_async(at)], [0, 1, 1]);
    assert_eq!([launch(exec), free_async(at), free_async(at), synchronize()], [0, 0, 1, 0]);
    assert_eq!(take_findings(), []);
}

#[test]
fn a_launch_that_does_not_follow_the_free_is_a_finding() {
    let found = |follows: bool| {
        (0..16).any(|seed| {
            let _turn = device(Config { seed, ..Config::default() });
            let (graph, mut streams, mut event) = (graph(), [0u64; 2], 0u64);
            let (_, at) = alloc(graph, &[]);
            streams.iter_mut().for_each(|stream| call!("cuStreamCreate", (*mut u64, c_uint), stream, 1));
            call!("cuEventCreate", (*mut u64, c_uint), &mut event, 2);
            let exec = instantiate(graph);
            call!("cuGraphLaunch", (u64, u64), exec, streams[0]);
            call!("cuStreamSynchronize", (u64), streams[0]);
            call!("cuMemFreeAsync", (u64, u64), at, streams[1]);
            if follows {
                call!("cuEventRecord", (u64, u64), event, streams[1]);
                call!("cuStreamWaitEvent", (u64, u64, c_uint), streams[0], event, 0);
            }
            call!("cuGraphLaunch", (u64, u64), exec, streams[0]);
            let code = code!("cuStreamSynchronize", (u64), streams[0]);
            take_findings().pop().is_some_and(|finding| {
                assert_eq!((finding.kind, code), (FindingKind::InvalidLaunch, 1));
                true
            })
        })
    };
    assert!(found(false) && !found(true));
}

#[test]
fn a_graph_frees_at_its_launch_what_it_left() {
    let _turn = device(Config::default());
    let graph = graph();
    let (a, at) = alloc(graph, &[]);
    set(graph, &[a], at, 5);
    let exec = instantiate_with(graph, 1).unwrap();
    assert_eq!([launch(exec), launch(exec), launch(exec)], [0; 3]);
    assert_eq!(words(at), [5; WORDS]);
    assert_eq!([free_now(at), launch(exec), free_async(at), launch(exec), synchronize()], [0; 5]);
    assert_eq!(words(at), [5; WORDS]);
    assert_eq!(take_findings(), []);
}

#[test]
fn another_graph_frees_it() {
    let _turn = device(Config::default());
    let (owning, freeing) = (graph(), graph());
    let (_, at) = alloc(owning, &[]);
    free(freeing, &[], at).unwrap();
    assert_eq!(free(owning, &[], at), Err(1), "a graph that does not own it frees it");
    let [owner, other] = [owning, freeing].map(instantiate);
    assert_eq!(launch(other), 1, "it is not allocated");
    for _ in 0..2 {
        assert_eq!([launch(owner), launch(owner), launch(other), launch(other)], [0, 1, 0, 1]);
    }
    assert_eq!((synchronize(), take_findings()), (0, vec![]));
    call!("cuGraphDestroy", (u64), freeing);
    assert!(free(owning, &[], at).is_ok(), "no other graph frees it any more");
}

#[test]
fn such_graphs_refuse_what_would_double_an_address() {
    let _turn = device(Config::default());
    let (sum, function) = (zeroes(), kernel());
    let (graph, [a, s, ..], at) = chain(sum, function);
    let other = self::graph();
    assert_eq!(free(graph, &[], at), Err(1), "twice");
    assert_eq!(free(other, &[], at), Err(1), "its owner frees it");
    for wrong in [0, 12, at + 4, sum] {
        assert_eq!(free(graph, &[], wrong), Err(1), "{wrong:x}");
    }
    for wrong in [
        Params { bytes: 0, ..params(BYTES) },
        Params { kind: 2, ..params(BYTES) },
        Params { handle_types: 1, ..params(BYTES) },
        Params { place: [2, 0], ..params(BYTES) },
        Params { place: [1, 1], ..params(BYTES) },
        Params { place: [1, -1], ..params(BYTES) },
        Params { count: 1, ..params(BYTES) },
        Params { count: 1, accesses: &[1, 1, 3], ..params(BYTES) },
        Params { count: 1, accesses: &[1, 0, 1], ..params(BYTES) },
    ] {
        assert_eq!(alloc_with(other, &[], wrong), Err(1));
    }
    assert_eq!(alloc_with(other, &[], params(1 << 50)), Err(2));
    assert_eq!(alloc_with(other, &[a], params(BYTES)), Err(1), "a node of another graph");
    assert_eq!(alloc_with(99, &[], params(BYTES)), Err(1));
    assert!(alloc_with(other, &[], Params { count: 1, accesses: &[1, 0, 3], ..params(BYTES) }).is_ok());
    let (mut clone, mut node) = (0u64, 0u64);
    assert_eq!(code!("cuGraphClone", (*mut u64, u64), &mut clone, graph), 1);
    let child = code!(
        "cuGraphAddChildGraphNode",
        (*mut u64, u64, *const u64, usize, u64),
        &mut node,
        self::graph(),
        null(),
        0,
        graph
    );
    assert_eq!(child, 1);
    // nor does a graph get such nodes that is a child already
    let [parent, empty] = [self::graph(), self::graph()];
    call!(
        "cuGraphAddChildGraphNode",
        (*mut u64, u64, *const u64, usize, u64),
        &mut node,
        parent,
        null(),
        0,
        empty
    );
    call!("cuGraphChildGraphNodeGetGraph", (u64, *mut u64), node, &mut clone);
    assert_eq!(alloc_with(clone, &[], params(BYTES)), Err(1));
    assert!(alloc_with(empty, &[], params(BYTES)).is_ok(), "the node has a copy");
    assert_eq!(code!("cuGraphDestroyNode", (u64), s), 1);
    let edge = code!("cuGraphRemoveDependencies", (u64, *const u64, *const u64, usize), graph, &a, &s, 1);
    assert_eq!(edge, 1);
    let exec = instantiate(graph);
    assert_eq!(instantiate_with(graph, 0), Err(1), "a second at one time");
    call!("cuGraphExecDestroy", (u64), exec);
    let exec = instantiate(graph);
    // an update with its own graph changes nothing, another graph has another address
    let update = |from: u64| {
        let (mut node, mut result) = (0u64, -1);
        let code =
            code!("cuGraphExecUpdate", (u64, u64, *mut u64, *mut c_int), exec, from, &mut node, &mut result);
        (code, result)
    };
    assert_eq!(update(graph), (0, 0));
    assert_eq!(update(chain(sum, function).0), (910, 5));
    assert_eq!((launch(exec), synchronize()), (0, 0));
    assert_eq!(words(sum), [3; WORDS]);
}

#[test]
fn a_device_keeps_memory_for_graphs_until_it_is_trimmed() {
    let _turn = device(Config::default());
    let (sum, function) = (zeroes(), kernel());
    let trim = || call!("cuDeviceGraphMemTrim", (c_int), 0);
    let reset = |n: c_int| call!("cuDeviceSetGraphMemAttribute", (c_int, c_int, *const u64), 0, n, &0);
    let (begin, one) = (free_bytes(), BYTES as u64);
    let (graph, ..) = chain(sum, function);
    let exec = instantiate(graph);
    assert_eq!((attributes(), free_bytes()), ([0; 4], begin), "an address takes no memory");
    call!("cuGraphUpload", (u64, u64), exec, 0);
    assert_eq!((attributes(), free_bytes()), ([one; 4], begin - one));
    trim();
    assert_eq!((attributes(), free_bytes()), ([0, one, 0, one], begin));
    assert_eq!(launch(exec), 0);
    trim();
    assert_eq!(attributes(), [one; 4], "queued work has it");
    call!("cuGraphExecDestroy", (u64), exec);
    trim();
    assert_eq!(attributes(), [one; 4], "it still has");
    let exec = instantiate(graph);
    assert_eq!((synchronize(), attributes()), (0, [one; 4]));
    assert_eq!((launch(exec), synchronize()), (0, 0));
    let (second, ..) = chain(sum, function);
    let second_exec = instantiate(second);
    assert_eq!((launch(second_exec), synchronize()), (0, 0));
    assert_eq!((attributes(), free_bytes()), ([2 * one; 4], begin - 2 * one));
    call!("cuGraphExecDestroy", (u64), second_exec);
    assert_eq!((attributes(), free_bytes()), ([one, 2 * one, 2 * one, 2 * one], begin - 2 * one));
    reset(1);
    assert_eq!(attributes(), [one, one, 2 * one, 2 * one]);
    // what is kept is taken first
    call!("cuGraphDestroy", (u64), second);
    let (third, ..) = chain(sum, function);
    assert_eq!((launch(instantiate(third)), synchronize()), (0, 0));
    assert_eq!((attributes(), free_bytes()), ([2 * one; 4], begin - 2 * one));
    trim();
    reset(3);
    assert_eq!((attributes(), free_bytes()), ([0, 2 * one, 0, 0], begin));
    for (n, value) in [(0, 0u64), (2, 0), (4, 0), (1, 1), (3, 1)] {
        let set = code!("cuDeviceSetGraphMemAttribute", (c_int, c_int, *const u64), 0, n, &value);
        assert_eq!(set, 1, "{n} {value}");
    }
    let get = code!("cuDeviceGetGraphMemAttribute", (c_int, c_int, *mut u64), 0, 4, &mut 0);
    assert_eq!((get, take_findings()), (1, vec![]));
}

/// Memory that is not freed outlives its graph.
#[test]
fn a_graph_that_is_destroyed_leaves_its_memory() {
    let _turn = device(Config::default());
    let one = BYTES as u64;
    let graph = graph();
    let (a, at) = alloc(graph, &[]);
    set(graph, &[a], at, 5);
    let exec = instantiate(graph);
    assert_eq!(launch(exec), 0);
    call!("cuGraphDestroy", (u64), graph);
    call!("cuGraphExecDestroy", (u64), exec);
    assert_eq!(words(at), [5; WORDS], "it ran after that");
    call!("cuDeviceGraphMemTrim", (c_int), 0);
    assert_eq!(attributes(), [one; 4]);
    let is_known = || {
        let range = "cuMemGetAddressRange_v2";
        code!(range, (*mut u64, *mut usize, u64), null_mut(), null_mut(), at) == 0
    };
    assert!(is_known());
    assert_eq!([free_now(at), free_now(at)], [0, 1]);
    assert!(!is_known());
    assert_eq!(attributes(), [0, one, one, one]);
    call!("cuDeviceGraphMemTrim", (c_int), 0);
    assert_eq!(attributes(), [0, one, 0, one]);
    assert_eq!(take_findings(), []);
}

#[test]
fn a_launch_without_memory_changes_nothing() {
    let megabyte = 1 << 20;
    let _turn = device(Config { memory_limit: Some(megabyte), ..Config::default() });
    let graph = graph();
    let (a, at) = alloc_with(graph, &[], params(700 << 10)).unwrap();
    free(graph, &[a], at).unwrap();
    let exec = instantiate(graph);
    let mut other = 0;
    call!("cuMemAlloc_v2", (*mut u64, usize), &mut other, 400 << 10);
    let before = (attributes(), free_bytes());
    assert_eq!([launch(exec), code!("cuGraphUpload", (u64, u64), exec, 0)], [2, 2]);
    assert_eq!((attributes(), free_bytes()), before);
    assert_eq!([free_now(other), launch(exec), synchronize()], [0; 3]);
    assert_eq!(code!("cuMemAlloc_v2", (*mut u64, usize), &mut other, 400 << 10), 2, "the graph has it");
    call!("cuDeviceGraphMemTrim", (c_int), 0);
    call!("cuMemAlloc_v2", (*mut u64, usize), &mut other, 400 << 10);
}

#[test]
fn a_launch_without_memory_on_one_device_changes_no_other() {
    let others = vec![(&GTX1080, Some(1 << 20))];
    let _turn = device(Config { others, ..Config::default() });
    let graph = graph();
    let (a, first) = alloc(graph, &[]);
    let second = Params { place: [1, 1], ..params(700 << 10) };
    let (b, second) = alloc_with(graph, &[], second).unwrap();
    let third = alloc_with(graph, &[], Params { place: [1, 1], ..params(700 << 10) }).unwrap();
    for (node, at) in [(a, first), (b, second), third] {
        free(graph, &[node], at).unwrap();
    }
    let exec = instantiate(graph);
    let before = free_bytes();
    assert_eq!((launch(exec), attributes(), free_bytes()), (2, [0; 4], before));
    assert_eq!((synchronize(), take_findings()), (0, vec![]));
}

#[test]
fn calls_of_pools_are_captured() {
    for seed in 0..4 {
        let _turn = device(Config { seed, ..Config::default() });
        let sum = zeroes();
        let (mut stream, mut graph, mut at, mut plain) = (0u64, 0u64, 0u64, 0u64);
        call!("cuStreamCreate", (*mut u64, c_uint), &mut stream, 1);
        call!("cuMemAllocAsync", (*mut u64, usize, u64), &mut plain, BYTES, stream);
        call!("cuStreamBeginCapture_v2", (u64, c_int), stream, 0);
        assert_eq!(code!("cuMemAllocAsync", (*mut u64, usize, u64), &mut at, 0, stream), 1);
        assert_eq!(code!("cuMemFreeAsync", (u64, u64), plain, stream), 1, "no graph's allocation");
        call!("cuMemAllocAsync", (*mut u64, usize, u64), &mut at, BYTES, stream);
        call!("cuMemsetD32Async", (u64, c_uint, usize, u64), at, 8, WORDS, stream);
        call!("cuMemcpyDtoDAsync_v2", (u64, u64, usize, u64), sum, at, BYTES, stream);
        call!("cuMemFreeAsync", (u64, u64), at, stream);
        assert_eq!(code!("cuMemFreeAsync", (u64, u64), at, stream), 1, "twice");
        call!("cuStreamEndCapture", (u64, *mut u64), stream, &mut graph);
        let (mut nodes, mut count) = ([0u64; 4], 4usize);
        call!("cuGraphGetNodes", (u64, *mut u64, *mut usize), graph, nodes.as_mut_ptr(), &mut count);
        assert_eq!((count, nodes.map(kind)), (4, [10, 2, 1, 11]));
        let exec = instantiate(graph);
        assert_eq!([launch(exec), launch(exec), synchronize()], [0; 3]);
        assert_eq!(words(sum), [8; WORDS]);
        assert_eq!(take_findings(), []);
    }
}

/// `CUgraphNodeParams`
#[repr(C)]
struct AnyParams {
    kind: c_int,
    reserved: [c_int; 3],
    alloc: Params,
    rest: [u64; 15],
}

#[test]
fn the_function_for_all_nodes_makes_them_too() {
    let _turn = device(Config::default());
    let graph = graph();
    let mut any = AnyParams { kind: 10, reserved: [0; 3], alloc: params(BYTES), rest: [0; 15] };
    let add = |any: &mut AnyParams, after: &[u64]| {
        let mut node = 0;
        call!(
            "cuGraphAddNode",
            (*mut u64, u64, *const u64, usize, *mut AnyParams),
            &mut node,
            graph,
            after.as_ptr(),
            after.len(),
            any
        );
        node
    };
    let a = add(&mut any, &[]);
    let at = any.alloc.address;
    let s = set(graph, &[a], at, 1);
    // the first word of a free's description is the address
    let mut p = params(0);
    (p.kind, p.handle_types) = (at as c_int, (at >> 32) as c_int);
    let f = add(&mut AnyParams { kind: 11, reserved: [0; 3], alloc: p, rest: [0; 15] }, &[s]);
    assert_eq!([a, f].map(kind), [10, 11]);
    let exec = instantiate(graph);
    assert_eq!([launch(exec), launch(exec), synchronize()], [0; 3]);
    assert_eq!(take_findings(), []);
}

/// A device reaches another's only if the node says so.
#[test]
fn other_devices_have_the_access_that_a_node_gives() {
    for (flags, want) in [(3, 0), (0, 700)] {
        let others = vec![(&GTX1080, None)];
        let _turn = device(Config { others, ..Config::default() });
        let graph = graph();
        let accesses = [[1, 1, flags]];
        let p = Params { accesses: accesses.as_ptr(), count: 1, ..params(BYTES) };
        let (a, at) = alloc_with(graph, &[], p).unwrap();
        set(graph, &[a], at, 2);
        assert_eq!((launch(instantiate(graph)), synchronize()), (0, 0));
        let mut context: *mut c_void = null_mut();
        call!("cuCtxCreate_v2", (*mut *mut c_void, c_uint, c_int), &mut context, 0, 1);
        let (sum, function) = (zeroes(), kernel());
        let reads = self::graph();
        add(reads, &[], function, sum, at);
        assert_eq!((launch(instantiate(reads)), synchronize()), (0, want), "{flags}");
        let found = take_findings().pop().map(|finding| finding.kind);
        assert_eq!(found, (want != 0).then_some(FindingKind::WrongDevice));
    }
}

#[test]
fn a_device_without_pools_has_none() {
    let _turn = device(Config { pools: false, ..Config::default() });
    assert_eq!(alloc_with(graph(), &[], params(BYTES)), Err(801));
}
