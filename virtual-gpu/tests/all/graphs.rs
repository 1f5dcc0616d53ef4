//! Graphs made node by node, waits for values in memory, and blocks that wait for each other.

use crate::common::{call, code, driver, launch_kernel};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::MutexGuard;

use cust_raw::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUmemorytype,
};
use pascaline_virtual_gpu::{Config, take_findings};

/// `add`: x[0] += n. `exchange`: each block writes its number, waits for all blocks at the barrier of the grid, and reads the next
/// block's.
const PTX: &str = ".version 6.4\n.target sm_61\n.address_size 64
.visible .entry add(.param .u64 x, .param .u32 n) {
.reg .b64 %rd<2>; .reg .b32 %r<3>;
ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [n];
ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, %r1; st.global.u32 [%rd1], %r2;
ret;
}
.visible .entry exchange(.param .u64 x, .param .u64 y) {
.reg .b64 %rd<6>; .reg .b32 %r<8>; .reg .pred %p<2>;
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; mov.u32 %r3, %envreg1; mov.u32 %r4, %envreg2; mov.b64 %rd3, {%r3, %r4};
mul.wide.u32 %rd4, %r1, 4; add.u64 %rd4, %rd1, %rd4; st.global.u32 [%rd4], %r1;
membar.gl;
atom.global.add.u32 %r5, [%rd3+4], 1;
again:
ld.volatile.global.u32 %r5, [%rd3+4];
setp.lt.u32 %p1, %r5, %r2;
@%p1 bra again;
membar.gl;
add.u32 %r6, %r1, 1; rem.u32 %r6, %r6, %r2;
mul.wide.u32 %rd5, %r6, 4; add.u64 %rd5, %rd1, %rd5; ld.global.u32 %r7, [%rd5];
mul.wide.u32 %rd4, %r1, 4; add.u64 %rd4, %rd2, %rd4; st.global.u32 [%rd4], %r7;
ret;
}
";

fn device(seed: u64) -> MutexGuard<'static, ()> {
    let turn = driver(Config { seed, ..Config::default() });
    let mut context: *mut c_void = null_mut();
    call!("cuCtxCreate_v2", (*mut *mut c_void, c_uint, c_int), &mut context, 0, 0);
    turn
}

fn kernel(name: &str) -> u64 {
    let (mut module, mut function) = (0u64, 0u64);
    let (ptx, name) = (CString::new(PTX).unwrap(), CString::new(name).unwrap());
    call!("cuModuleLoadData", (*mut u64, *const c_char), &mut module, ptx.as_ptr());
    call!("cuModuleGetFunction", (*mut u64, u64, *const c_char), &mut function, module, name.as_ptr());
    function
}

/// Managed memory of `words` words.
fn managed(words: usize) -> *mut u32 {
    let mut at = null_mut();
    call!("cuMemAllocManaged", (*mut *mut u32, usize, c_uint), &mut at, 4 * words, 1);
    at
}

fn graph() -> u64 {
    let mut graph = 0;
    call!("cuGraphCreate", (*mut u64, c_uint), &mut graph, 0);
    graph
}

fn launch(exec: u64) {
    call!("cuGraphLaunch", (u64, u64), exec, 0);
    call!("cuCtxSynchronize", (),);
}

fn instantiate(graph: u64) -> u64 {
    let mut exec = 0;
    call!("cuGraphInstantiateWithFlags", (*mut u64, u64, u64), &mut exec, graph, 0);
    exec
}

/// A launch of `add` of one thread, and its arguments.
struct Add {
    arguments: Box<(*mut u32, u32)>,
    list: Box<[*mut c_void; 2]>,
    function: u64,
}

impl Add {
    fn new(function: u64, x: *mut u32, n: u32) -> Self {
        let mut arguments = Box::new((x, n));
        let list = Box::new([(&raw mut arguments.0).cast(), (&raw mut arguments.1).cast()]);
        Self { arguments, list, function }
    }

    fn params(&mut self) -> CUDA_KERNEL_NODE_PARAMS {
        assert!(!self.arguments.0.is_null());
        CUDA_KERNEL_NODE_PARAMS {
            func: self.function as _,
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: self.list.as_mut_ptr(),
            extra: null_mut(),
        }
    }

    fn launch(&mut self, stream: u64) -> u32 {
        let arguments = self.list.as_mut_ptr();
        launch_kernel(self.function as *mut c_void, [1; 3], [1; 3], 0, stream as *mut c_void, arguments)
    }

    fn node(&mut self, graph: u64, after: &[u64]) -> u64 {
        let mut node = 0;
        call!(
            "cuGraphAddKernelNode",
            (*mut u64, u64, *const u64, usize, *const CUDA_KERNEL_NODE_PARAMS),
            &mut node,
            graph,
            after.as_ptr(),
            after.len(),
            &self.params()
        );
        node
    }
}

fn copy(dst: *mut u32, src: *mut u32, words: usize) -> CUDA_MEMCPY3D {
    let mut zero = std::mem::MaybeUninit::<CUDA_MEMCPY3D>::zeroed();
    // SAFETY: types of memory are the only fields of which zero is no value.
    let mut copy = unsafe {
        (*zero.as_mut_ptr()).srcMemoryType = CUmemorytype::CU_MEMORYTYPE_UNIFIED;
        (*zero.as_mut_ptr()).dstMemoryType = CUmemorytype::CU_MEMORYTYPE_UNIFIED;
        zero.assume_init()
    };
    (copy.srcDevice, copy.dstDevice) = (src as u64, dst as u64);
    (copy.WidthInBytes, copy.Height, copy.Depth) = (4 * words, 1, 1);
    copy
}

/// Adds the second of two words to a third.
unsafe extern "C" fn sum(data: *mut c_void) {
    let words = data.cast::<u32>();
    // SAFETY: the test's three words, which nothing else touches meanwhile.
    unsafe { *words.add(2) += *words.add(1) };
}

/// The nodes of a graph and how many edges it has.
fn contents(graph: u64) -> (Vec<u64>, usize) {
    let (mut count, mut edges) = (0usize, 0usize);
    call!("cuGraphGetNodes", (u64, *mut u64, *mut usize), graph, null_mut(), &mut count);
    let mut nodes = vec![7; count + 1];
    let mut room = count + 1;
    call!("cuGraphGetNodes", (u64, *mut u64, *mut usize), graph, nodes.as_mut_ptr(), &mut room);
    assert_eq!((room, nodes.pop()), (count, Some(0)), "null behind the last");
    call!(
        "cuGraphGetEdges",
        (u64, *mut u64, *mut u64, *mut usize),
        graph,
        null_mut(),
        null_mut(),
        &mut edges
    );
    (nodes, edges)
}

fn kinds(nodes: &[u64]) -> Vec<c_int> {
    let of = |&node: &u64| {
        let mut kind = -1;
        call!("cuGraphNodeGetType", (u64, *mut c_int), node, &mut kind);
        kind
    };
    nodes.iter().map(of).collect()
}

/// memset [x, y] → add n to x → copy x to y → the host adds y to z
fn chain(x: *mut u32, add: &mut Add) -> (u64, [u64; 4]) {
    let graph = graph();
    let [mut set, mut copied, mut called] = [0u64; 3];
    let params =
        CUDA_MEMSET_NODE_PARAMS { dst: x as u64, pitch: 0, value: 1, elementSize: 4, width: 2, height: 1 };
    call!(
        "cuGraphAddMemsetNode",
        (*mut u64, u64, *const u64, usize, *const CUDA_MEMSET_NODE_PARAMS, u64),
        &mut set,
        graph,
        null(),
        0,
        &params,
        0
    );
    let added = add.node(graph, &[set]);
    call!(
        "cuGraphAddMemcpyNode",
        (*mut u64, u64, *const u64, usize, *const CUDA_MEMCPY3D, u64),
        &mut copied,
        graph,
        &added,
        1,
        &copy(x.wrapping_add(1), x, 1),
        0
    );
    let params = CUDA_HOST_NODE_PARAMS { fn_: Some(sum), userData: x.cast() };
    call!(
        "cuGraphAddHostNode",
        (*mut u64, u64, *const u64, usize, *const CUDA_HOST_NODE_PARAMS),
        &mut called,
        graph,
        &copied,
        1,
        &params
    );
    (graph, [set, added, copied, called])
}

#[test]
fn nodes_run_in_the_order_of_their_edges() {
    for seed in 0..4 {
        let _turn = device(seed);
        let x = managed(3);
        let mut add = Add::new(kernel("add"), x, 4);
        let (graph, [set, added, ..]) = chain(x, &mut add);
        // SAFETY: managed memory, and no work is queued.
        unsafe { x.add(2).write(0) };
        let exec = instantiate(graph);
        launch(exec);
        // the host's node has been called once: 1 + 4
        // SAFETY: managed memory, and the launch has ended.
        assert_eq!(unsafe { [*x, *x.add(1), *x.add(2)] }, [5, 5, 5]);

        // another number in the graph that is launched; the graph that it was made from keeps its own
        let mut other = Add::new(add.function, x, 10);
        call!(
            "cuGraphExecKernelNodeSetParams",
            (u64, u64, *const CUDA_KERNEL_NODE_PARAMS),
            exec,
            added,
            &other.params()
        );
        launch(exec);
        // SAFETY: managed memory, and the launch has ended.
        assert_eq!(unsafe { [*x, *x.add(2)] }, [11, 16]);
        let mut params = std::mem::MaybeUninit::<CUDA_KERNEL_NODE_PARAMS>::uninit();
        call!("cuGraphKernelNodeGetParams", (u64, *mut CUDA_KERNEL_NODE_PARAMS), added, params.as_mut_ptr());
        // SAFETY: it was written; the second parameter is a number.
        let n = unsafe { (*params.assume_init_ref().kernelParams.add(1)).cast::<u32>().read() };
        assert_eq!(n, 4);

        // without the memset: it is off, then its node is gone
        call!("cuGraphNodeSetEnabled", (u64, u64, c_uint), exec, set, 0);
        launch(exec);
        // SAFETY: managed memory, and the launch has ended.
        assert_eq!(unsafe { *x }, 21);
        call!("cuGraphDestroyNode", (u64), set);
        assert_eq!(contents(graph).1, 2, "its edge is gone too");
        launch(instantiate(graph));
        // SAFETY: managed memory, and the launch has ended.
        assert_eq!(unsafe { *x }, 25);
        assert_eq!(take_findings(), []);
    }
}

#[test]
fn captured_nodes_are_the_same_as_made_ones() {
    let _turn = device(0);
    let x = managed(3);
    let mut add = Add::new(kernel("add"), x, 4);
    let (made, nodes) = chain(x, &mut add);
    let (mut stream, mut captured) = (0u64, 0u64);
    call!("cuStreamCreate", (*mut u64, c_uint), &mut stream, 1);
    call!("cuStreamBeginCapture_v2", (u64, c_int), stream, 0);
    call!("cuMemsetD32Async", (*mut u32, c_uint, usize, u64), x, 1, 2, stream);
    assert_eq!(add.launch(stream), 0);
    call!("cuMemcpyAsync", (*mut u32, *mut u32, usize, u64), x.wrapping_add(1), x, 4, stream);
    call!("cuLaunchHostFunc", (u64, unsafe extern "C" fn(*mut c_void), *mut u32), stream, sum, x);
    call!("cuStreamEndCapture", (u64, *mut u64), stream, &mut captured);
    let (same, edges) = contents(captured);
    assert_eq!(kinds(&nodes), [2, 0, 1, 3]);
    assert_eq!((kinds(&same), edges), (kinds(&nodes), contents(made).1));
    let params = |node: u64| {
        let mut params = copy(null_mut(), null_mut(), 0);
        call!("cuGraphMemcpyNodeGetParams", (u64, *mut CUDA_MEMCPY3D), node, &mut params);
        (params.srcDevice, params.dstDevice, params.WidthInBytes, params.Height, params.Depth)
    };
    assert_eq!(params(same[2]), (x as u64, x as u64 + 4, 4, 1, 1));
    assert_eq!(params(same[2]), params(nodes[2]));

    // a graph of the same shape replaces the work of an executable one, another shape does not
    let exec = instantiate(made);
    let mut other = Add::new(add.function, x, 30);
    let (bigger, _) = chain(x, &mut other);
    let mut update = (0u64, -1);
    call!("cuGraphExecUpdate", (u64, u64, *mut u64, *mut c_int), exec, bigger, &mut update.0, &mut update.1);
    launch(exec);
    // SAFETY: managed memory, and no work is queued.
    assert_eq!((update.1, unsafe { *x }), (0, 31));
    other.node(bigger, &[]);
    let code = code!(
        "cuGraphExecUpdate",
        (u64, u64, *mut u64, *mut c_int),
        exec,
        bigger,
        &mut update.0,
        &mut update.1
    );
    assert_eq!((code, update.1), (910, 2), "the topology has changed");
}

#[test]
fn edges_are_changed_and_graphs_nest() {
    for seed in 0..4 {
        let _turn = device(seed);
        let x = managed(3);
        let mut add = Add::new(kernel("add"), x, 1);
        let inner = graph();
        let first = add.node(inner, &[]);
        let second = add.node(inner, &[first]);
        assert_eq!(
            code!("cuGraphAddDependencies", (u64, *const u64, *const u64, usize), inner, &second, &first, 1),
            1,
            "a cycle"
        );
        let outer = graph();
        let [mut a, mut b, mut clone, mut found] = [0u64; 4];
        let child = |node: &mut u64| {
            call!(
                "cuGraphAddChildGraphNode",
                (*mut u64, u64, *const u64, usize, u64),
                node,
                outer,
                null(),
                0,
                inner
            );
        };
        child(&mut a);
        child(&mut b);
        let last = add.node(outer, &[a]);
        call!("cuGraphAddDependencies", (u64, *const u64, *const u64, usize), outer, &b, &last, 1);
        call!("cuGraphAddDependencies", (u64, *const u64, *const u64, usize), outer, &a, &b, 1);
        let mut before = [0u64; 3];
        let mut count = 3;
        call!(
            "cuGraphNodeGetDependencies",
            (u64, *mut u64, *mut usize),
            last,
            before.as_mut_ptr(),
            &mut count
        );
        assert_eq!((count, before), (2, [a, b, 0]));
        // SAFETY: managed memory, and no work is queued.
        unsafe { x.write(0) };
        launch(instantiate(outer));
        // SAFETY: managed memory, and the launch has ended.
        assert_eq!(unsafe { *x }, 5, "twice two and one, none beside another");
        call!("cuGraphRemoveDependencies", (u64, *const u64, *const u64, usize), outer, &a, &last, 1);
        assert_eq!(contents(outer).1, 2);

        call!("cuGraphClone", (*mut u64, u64), &mut clone, outer);
        call!("cuGraphNodeFindInClone", (*mut u64, u64, u64), &mut found, last, clone);
        assert!(found != last && contents(clone).0.contains(&found));
        call!("cuGraphDestroy", (u64), outer);
        launch(instantiate(clone));
        // SAFETY: managed memory, and the launch has ended.
        assert_eq!(unsafe { *x }, 10);
    }
}

#[test]
fn a_stream_waits_for_a_value() {
    let _turn = device(0);
    let x = managed(2);
    let mut add = Add::new(kernel("add"), x, 3);
    // SAFETY: managed memory, and no work is queued.
    unsafe { [x.write(0), x.add(1).write(4)] };
    let mut streams = [0u64; 2];
    for stream in &mut streams {
        call!("cuStreamCreate", (*mut u64, c_uint), stream, 1);
    }
    let [waits, writes] = streams;
    let flag = x.wrapping_add(1);
    call!("cuStreamWaitValue32_v2", (u64, *mut u32, u32, c_uint), waits, flag, 5, 0);
    assert_eq!(add.launch(waits), 0);
    for _ in 0..8 {
        assert_eq!(code!("cuStreamQuery", (u64), waits), 600, "4 is less than 5");
    }
    // SAFETY: the stream that would write it waits.
    assert_eq!(unsafe { x.read() }, 0);
    call!("cuStreamWriteValue32_v2", (u64, *mut u32, u32, c_uint), writes, flag, 6, 0);
    call!("cuStreamSynchronize", (u64), waits);
    // SAFETY: no work is queued.
    assert_eq!(unsafe { x.read() }, 3);
    assert!(!add.params().kernelParams.is_null());
}

#[test]
fn blocks_of_a_cooperative_launch_wait_for_each_other() {
    let _turn = device(3);
    let (blocks, function) = (24u32, kernel("exchange"));
    let (mut x, mut y) = (managed(24), managed(24));
    let mut arguments = [(&raw mut x).cast::<c_void>(), (&raw mut y).cast()];
    let mut launch = |blocks| {
        code!(
            "cuLaunchCooperativeKernel",
            (u64, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, u64, *mut *mut c_void),
            function,
            blocks,
            1,
            1,
            1,
            1,
            1,
            0,
            0,
            arguments.as_mut_ptr()
        )
    };
    assert_eq!(launch(20 * 32 + 1), 720, "more blocks than are resident at once");
    for _ in 0..2 {
        // the barrier begins anew
        assert_eq!(launch(blocks), 0);
        call!("cuCtxSynchronize", (),);
    }
    assert_eq!(take_findings(), []);
    // SAFETY: managed memory, and no work is queued.
    let read = unsafe { std::slice::from_raw_parts(y, 24) };
    assert!(read.iter().enumerate().all(|(i, &n)| n as usize == (i + 1) % 24), "{read:?}");
}
