//! Functions of graphs newer than CUDA 11: descriptions with contexts, edges with data, nodes of any type by one function.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::entry::enter;
use super::graph::instantiate;
use super::graph_build::graph_and_number;
use super::graph_memory::{add_alloc, add_free};
use super::library::CUkernel;
use super::nodes::{
    EMPTY, GRAPH, HOST, KERNEL, MEM_ALLOC, MEM_FREE, MEMCPY, MEMSET, Made, UPDATE_FAILURE, add, add_child,
    change_edges, copy_work, edges, exec_node, host_work, kernel_params, kernel_work, memset_work,
    neighbours, numbers, replace, replace_in, update, write_lists,
};
use super::state::Driver;
use crate::refusal::refuse;

/// `CUgraphEdgeData`: ports and type, all zero for a plain edge.
type EdgeData = u64;

/// `CUDA_KERNEL_NODE_PARAMS_v2`
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelParams {
    base: CUDA_KERNEL_NODE_PARAMS,
    kernel: CUkernel,
    context: CUcontext,
}

impl KernelParams {
    /// As the older description has it: a library's kernel stands for its function on the current device.
    fn older(&self) -> CUDA_KERNEL_NODE_PARAMS {
        let func = if self.base.func.is_null() { self.kernel.cast() } else { self.base.func };
        CUDA_KERNEL_NODE_PARAMS { func, ..self.base }
    }
}

/// `CUDA_MEMCPY_NODE_PARAMS`
#[repr(C)]
struct CopyParams {
    flags: c_int,
    reserved: c_int,
    context: CUcontext,
    copy: CUDA_MEMCPY3D,
}

/// `CUDA_MEMSET_NODE_PARAMS_v2`
#[repr(C)]
struct MemsetParams {
    base: CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
}

/// `CUDA_CHILD_GRAPH_NODE_PARAMS`
#[repr(C)]
struct ChildParams {
    graph: CUgraph,
    /// 0: the node has a copy of the graph.
    ownership: c_int,
}

/// `CUgraphNodeParams`: 256 bytes, of which a union by type begins behind the first 16.
#[repr(C)]
struct NodeParams {
    kind: c_int,
    reserved: [c_int; 3],
    of_kind: [u64; 30],
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`
#[repr(C)]
struct InstantiateParams {
    flags: c_ulonglong,
    upload_stream: CUstream,
    error_node: CUgraphNode,
    result: c_int,
}

/// `CUgraphExecUpdateResultInfo`
#[repr(C)]
struct UpdateInfo {
    result: c_int,
    node: CUgraphNode,
    from: CUgraphNode,
}

/// Checks that edges have no data.
///
/// # Safety
/// `data` is null or holds `count` entries.
unsafe fn plain_edges(data: *const EdgeData, count: usize) -> Answer {
    // SAFETY: this function's contract.
    if data.is_null() || (0..count).all(|i| unsafe { data.add(i).read_unaligned() } == 0) {
        return Ok(());
    }
    refuse("an edge of a graph with data (programmatic launches)");
    Err(NOT_SUPPORTED)
}

/// Writes the data of plain edges.
///
/// # Safety
/// `data` is null or holds `*count` entries, `count` is null or valid.
unsafe fn write_plain(data: *mut EdgeData, count: *const usize) {
    // SAFETY: this function's contract.
    let count = unsafe { count.as_ref() }.copied().unwrap_or_default();
    for i in 0..if data.is_null() { 0 } else { count } {
        // SAFETY: not null, so there are `count` entries.
        unsafe { data.add(i).write_unaligned(0) };
    }
}

/// The work that a description of any type asks for, and the type; child graphs have none.
///
/// # Safety
/// `p` is null or a valid description.
unsafe fn made(d: &mut Driver, p: *const NodeParams) -> Result<(c_int, Made), u32> {
    // SAFETY: this function's contract.
    let p = unsafe { p.as_ref() }.ok_or(INVALID_VALUE)?;
    let of_kind = p.of_kind.as_ptr();
    // SAFETY: the type says which member of the union is valid; the union is as large and as aligned as any of them.
    let made = unsafe {
        match p.kind {
            KERNEL => kernel_work(d, &(*of_kind.cast::<KernelParams>()).older())?,
            MEMCPY => {
                let p = of_kind.cast::<CopyParams>();
                copy_work(d, &raw const (*p).copy, (*p).context)?
            }
            MEMSET => {
                let p = of_kind.cast::<MemsetParams>();
                memset_work(d, &(*p).base, (*p).context)?
            }
            HOST => host_work(d, of_kind.cast())?,
            GRAPH | EMPTY => (Vec::new(), d.current),
            kind => {
                refuse(&format!("a graph's node of type {kind}"));
                return Err(NOT_SUPPORTED);
            }
        }
    };
    Ok((p.kind, made))
}

/// # Safety
/// `after` and `p` are null or valid, `after` with `count` entries.
unsafe fn add_any(
    d: &mut Driver,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    p: *const NodeParams,
) -> Answer {
    // SAFETY: this function's contract.
    let of_kind = unsafe { p.as_ref() }.ok_or(INVALID_VALUE)?.of_kind.as_ptr();
    // SAFETY: the type says which member of the union is valid, and the caller lets the driver write the address.
    unsafe {
        match (*p).kind {
            MEM_ALLOC => return add_alloc(d, out, graph, after, count, of_kind.cast_mut().cast()),
            MEM_FREE => return add_free(d, out, graph, after, count, *of_kind),
            _ => {}
        }
    }
    // SAFETY: this function's contract.
    let (kind, made) = unsafe { made(d, p)? };
    if kind != GRAPH {
        // SAFETY: this function's contract.
        return unsafe { add(d, out, graph, after, count, made) };
    }
    // SAFETY: the description is one of a child graph.
    let child = unsafe { &*(*p).of_kind.as_ptr().cast::<ChildParams>() };
    if child.ownership != 0 {
        refuse("a child graph that its node takes over");
        return Err(NOT_SUPPORTED);
    }
    // SAFETY: this function's contract.
    let node = unsafe { add_child(d, graph, after, count, child.graph)? };
    out.write(node)
}

/// Sets what a capturing stream's next work follows, or adds to it.
///
/// # Safety
/// `nodes` is null or holds `count` handles.
unsafe fn follow_nodes(stream: CUstream, nodes: *const CUgraphNode, count: usize, flags: c_uint) -> Answer {
    let d = &mut *enter()?;
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let id = d.id(stream);
    let (graph, _) = d.capture_of(id)?.ok_or(900u32)?;
    // SAFETY: this function's contract.
    let new = unsafe { numbers(d, graph, nodes, count)? };
    let tail = &mut d.stream(id)?.capture_tail;
    if flags == 1 {
        tail.clear();
    }
    tail.extend(new);
    tail.sort_unstable();
    tail.dedup();
    Ok(())
}

api! {
    newer

    fn cuGraphAddKernelNode_v2(
        out: *mut CUgraphNode => Out<CUgraphNode>, graph: CUgraph, after: *const CUgraphNode, count: usize, p: *const KernelParams,
    ) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters and handles.
        unsafe {
            let work = kernel_work(d, &p.as_ref().ok_or(INVALID_VALUE)?.older())?;
            add(d, out, graph, after, count, work)
        }
    }

    fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, p: *mut KernelParams => Out<KernelParams>) {
        let base = kernel_params(enter()?.node(node as u64)?)?;
        p.write(KernelParams { base, kernel: std::ptr::null_mut(), context: std::ptr::null_mut() })
    }

    fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, p: *const KernelParams) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters.
        let work = unsafe { kernel_work(d, &p.as_ref().ok_or(INVALID_VALUE)?.older())? };
        replace(d, node, KERNEL, work)
    }

    fn cuGraphExecKernelNodeSetParams_v2(exec: CUgraphExec, node: CUgraphNode, p: *const KernelParams) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters.
        let work = unsafe { kernel_work(d, &p.as_ref().ok_or(INVALID_VALUE)?.older())? };
        replace_in(d, exec, node, KERNEL, work)
    }

    fn cuGraphAddNode(
        out: *mut CUgraphNode => Out<CUgraphNode>, graph: CUgraph, after: *const CUgraphNode, count: usize, p: *const NodeParams,
    ) {
        // SAFETY: the caller promised the driver API valid parameters and handles.
        unsafe { add_any(&mut *enter()?, out, graph, after, count, p) }
    }

    fn cuGraphAddNode_v2(
        out: *mut CUgraphNode => Out<CUgraphNode>, graph: CUgraph, after: *const CUgraphNode, data: *const EdgeData, count: usize,
        p: *const NodeParams,
    ) {
        // SAFETY: the caller promised the driver API valid parameters, handles and data.
        unsafe {
            plain_edges(data, count)?;
            add_any(&mut *enter()?, out, graph, after, count, p)
        }
    }

    fn cuGraphNodeSetParams(node: CUgraphNode, p: *const NodeParams) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters.
        let (kind, work) = unsafe { made(d, p)? };
        if matches!(kind, GRAPH | EMPTY) { Err(INVALID_VALUE) } else { replace(d, node, kind, work) }
    }

    fn cuGraphExecNodeSetParams(exec: CUgraphExec, node: CUgraphNode, p: *const NodeParams) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters.
        let (kind, work) = unsafe { made(d, p)? };
        if matches!(kind, GRAPH | EMPTY) { Err(INVALID_VALUE) } else { replace_in(d, exec, node, kind, work) }
    }

    fn cuGraphGetEdges_v2(
        graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, data: *mut EdgeData, count: *mut usize,
    ) {
        let list = edges(&*enter()?, graph)?;
        // SAFETY: the caller's arrays have as many entries as it says.
        unsafe {
            write_lists(&list, [from, to], count)?;
            write_plain(data, count);
        }
        Ok(())
    }

    fn cuGraphNodeGetDependencies_v2(node: CUgraphNode, nodes: *mut CUgraphNode, data: *mut EdgeData, count: *mut usize) {
        let list = neighbours(&*enter()?, node, true)?;
        // SAFETY: the caller's arrays have as many entries as it says.
        unsafe {
            write_lists(&list, [nodes], count)?;
            write_plain(data, count);
        }
        Ok(())
    }

    fn cuGraphNodeGetDependentNodes_v2(node: CUgraphNode, nodes: *mut CUgraphNode, data: *mut EdgeData, count: *mut usize) {
        let list = neighbours(&*enter()?, node, false)?;
        // SAFETY: the caller's arrays have as many entries as it says.
        unsafe {
            write_lists(&list, [nodes], count)?;
            write_plain(data, count);
        }
        Ok(())
    }

    fn cuGraphAddDependencies_v2(
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const EdgeData, count: usize,
    ) {
        // SAFETY: the caller promised the driver API valid handles and data.
        unsafe {
            plain_edges(data, count)?;
            change_edges(&mut *enter()?, graph, from, to, count, true)
        }
    }

    fn cuGraphRemoveDependencies_v2(
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const EdgeData, count: usize,
    ) {
        // SAFETY: the caller promised the driver API valid handles and data.
        unsafe {
            plain_edges(data, count)?;
            change_edges(&mut *enter()?, graph, from, to, count, false)
        }
    }

    fn cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, info: *mut UpdateInfo => Out<UpdateInfo>) {
        let (result, node) = update(&mut *enter()?, exec, graph)?.err().unwrap_or((0, 0));
        info.write(UpdateInfo { result, node: node as CUgraphNode, from: std::ptr::null_mut() })?;
        if result == 0 { Ok(()) } else { Err(UPDATE_FAILURE) }
    }

    fn cuGraphInstantiateWithParams(exec: *mut CUgraphExec => Out<CUgraphExec>, graph: CUgraph, p: *mut InstantiateParams) {
        // SAFETY: null or the caller's valid description.
        let p = unsafe { p.as_mut() }.ok_or(INVALID_VALUE)?;
        let answer = instantiate(exec, graph, p.flags);
        (p.error_node, p.result) = (std::ptr::null_mut(), answer.is_err() as c_int);
        answer
    }

    fn cuGraphExecGetFlags(exec: CUgraphExec, flags: *mut c_ulonglong => Out<c_ulonglong>) {
        let own = enter()?.execs.get(&(exec as u64)).ok_or(INVALID_VALUE)?.flags;
        flags.write(own)
    }

    fn cuGraphNodeGetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: *mut c_uint => Out<c_uint>) {
        let own = exec_node(&mut *enter()?, exec, node)?.enabled;
        enabled.write(own.into())
    }

    /// Only of kernels, copies and memsets.
    fn cuGraphNodeSetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: c_uint) {
        let d = &mut *enter()?;
        let node = exec_node(d, exec, node)?;
        if !matches!(super::nodes::kind(node), KERNEL | MEMCPY | MEMSET) {
            return Err(INVALID_VALUE);
        }
        node.enabled = enabled != 0;
        Ok(())
    }

    fn cuGraphNodeGetContainingGraph(node: CUgraphNode, graph: *mut CUgraph => Out<CUgraph>) {
        enter()?.node(node as u64)?;
        graph.write(graph_and_number(node as u64)?.0 as CUgraph)
    }

    fn cuStreamBeginCaptureToGraph(
        stream: CUstream, graph: CUgraph, after: *const CUgraphNode, data: *const EdgeData, count: usize, mode: c_int,
    ) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid handles and data.
        let after = unsafe {
            plain_edges(data, count)?;
            numbers(d, graph as u64, after, count)?
        };
        if !d.graphs.contains_key(&(graph as u64)) {
            return Err(INVALID_VALUE);
        }
        d.begin_capture(stream, mode, Some((graph as u64, after)))
    }

    fn cuStreamUpdateCaptureDependencies(stream: CUstream, nodes: *const CUgraphNode, count: usize, flags: c_uint) {
        // SAFETY: the caller promised the driver API valid handles.
        unsafe { follow_nodes(stream, nodes, count, flags) }
    }

    fn cuStreamUpdateCaptureDependencies_v2(
        stream: CUstream, nodes: *const CUgraphNode, data: *const EdgeData, count: usize, flags: c_uint,
    ) {
        // SAFETY: the caller promised the driver API valid handles and data.
        unsafe {
            plain_edges(data, count)?;
            follow_nodes(stream, nodes, count, flags)
        }
    }
}

const _: () = assert!(size_of::<NodeParams>() == 256 && size_of::<CopyParams>() <= 232);
const _: () = assert!(size_of::<KernelParams>() == 72 && size_of::<*mut c_void>() == 8);
