//! Nodes of graphs made one by one: their parameters, edges and copies, and updates of graphs that can be launched.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::entry::enter;
use super::graph_build::graph_and_number;
use super::launch::prepare;
use super::memory::set_work;
use super::rows::slice_work;
use super::state::Driver;
use super::volume::slices;
use super::work::{Callback, Exec, Graph, Node, Place, Work};
use crate::refusal::refuse;

pub(super) const KERNEL: c_int = 0;
pub(super) const MEMCPY: c_int = 1;
pub(super) const MEMSET: c_int = 2;
pub(super) const HOST: c_int = 3;
pub(super) const GRAPH: c_int = 4;
pub(super) const EMPTY: c_int = 5;
pub(super) const MEM_ALLOC: c_int = 10;
pub(super) const MEM_FREE: c_int = 11;

pub(super) const UPDATE_FAILURE: u32 = 910;
/// `CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED`, `…_NODE_TYPE_CHANGED`, `…_PARAMETERS_CHANGED`
const TOPOLOGY_CHANGED: c_int = 2;
const NODE_TYPE_CHANGED: c_int = 3;
const PARAMETERS_CHANGED: c_int = 5;

/// A node's `CUgraphNodeType`.
pub(super) fn kind(node: &Node) -> c_int {
    match node.work.first() {
        Some(Work::Launch(_)) => KERNEL,
        Some(Work::Copy { .. }) => MEMCPY,
        Some(Work::Set { .. }) => MEMSET,
        Some(Work::Call { .. }) => HOST,
        Some(Work::GraphAlloc(_)) => MEM_ALLOC,
        Some(Work::GraphFree { .. }) => MEM_FREE,
        _ if node.child.is_some() => GRAPH,
        _ => EMPTY,
    }
}

/// A node's work and its device.
pub(super) type Made = (Vec<Work>, usize);

/// The device of a context, the current one if it is null.
pub(super) fn device_of(d: &Driver, context: CUcontext) -> Result<usize, u32> {
    match context as u64 {
        0 => Ok(d.current),
        context => d.contexts.get(&context).map(|context| context.device).ok_or(INVALID_CONTEXT),
    }
}

/// # Safety
/// `p` is null or a valid description of a launch.
pub(super) unsafe fn kernel_work(d: &mut Driver, p: *const CUDA_KERNEL_NODE_PARAMS) -> Result<Made, u32> {
    // SAFETY: this function's contract.
    let p = unsafe { p.as_ref() }.ok_or(INVALID_VALUE)?;
    let geometry = [[p.gridDimX, p.gridDimY, p.gridDimZ], [p.blockDimX, p.blockDimY, p.blockDimZ]];
    // SAFETY: the parameters are the kernel's: this function's contract.
    let (launch, device) =
        unsafe { prepare(d, p.func, geometry, p.sharedMemBytes, p.kernelParams, p.extra)? };
    Ok((vec![Work::Launch(Arc::new(launch))], device))
}

/// # Safety
/// `p` is null or a valid description of a copy.
pub(super) unsafe fn copy_work(
    d: &mut Driver,
    p: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> Result<Made, u32> {
    let device = device_of(d, context)?;
    // SAFETY: this function's contract.
    let slices = unsafe { slices(p, false)? };
    let work: Vec<_> = slices.iter().map(|slice| slice_work(d, device, slice)).collect::<Result<_, _>>()?;
    if work.is_empty() { Err(INVALID_VALUE) } else { Ok((work, device)) }
}

/// # Safety
/// `p` is null or a valid description.
pub(super) unsafe fn memset_work(
    d: &mut Driver,
    p: *const CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> Result<Made, u32> {
    // SAFETY: this function's contract.
    let p = unsafe { p.as_ref() }.ok_or(INVALID_VALUE)?;
    let device = device_of(d, context)?;
    let size = match p.elementSize {
        size @ (1 | 2 | 4) => size as u8,
        _ => return Err(INVALID_VALUE),
    };
    let row = p.width.checked_mul(size as usize).ok_or(INVALID_VALUE)?;
    if p.width == 0 || p.height == 0 || (p.height > 1 && p.pitch < row) {
        return Err(INVALID_VALUE);
    }
    let rows = (0..p.height).map(|n| {
        let at = n.checked_mul(p.pitch).and_then(|offset| p.dst.checked_add(offset as u64));
        set_work(d, device, at.ok_or(INVALID_VALUE)?, p.value.into(), size, p.width)
    });
    Ok((rows.filter_map(Result::transpose).collect::<Result<_, _>>()?, device))
}

/// # Safety
/// `p` is null or a valid description.
pub(super) unsafe fn host_work(d: &mut Driver, p: *const CUDA_HOST_NODE_PARAMS) -> Result<Made, u32> {
    // SAFETY: this function's contract.
    let p = unsafe { p.as_ref() }.ok_or(INVALID_VALUE)?;
    let function = Arc::new(Callback::Host(p.fn_.ok_or(INVALID_VALUE)?));
    Ok((vec![Work::Call { function, stream: 0, data: p.userData as usize }], d.current))
}

/// The numbers of nodes of a graph.
///
/// # Safety
/// `nodes` is null or holds `count` handles.
pub(super) unsafe fn numbers(
    d: &mut Driver,
    graph: u64,
    nodes: *const CUgraphNode,
    count: usize,
) -> Result<Vec<usize>, u32> {
    if nodes.is_null() && count > 0 {
        return Err(INVALID_VALUE);
    }
    let mut list = Vec::new();
    for i in 0..count {
        // SAFETY: not null, so there are `count`.
        let handle = unsafe { nodes.add(i).read() } as u64;
        let (of, number) = graph_and_number(handle)?;
        d.node(handle)?;
        if of != graph || list.contains(&number) {
            return Err(INVALID_VALUE);
        }
        list.push(number);
    }
    Ok(list)
}

/// Adds a node that follows others of its graph.
///
/// # Safety
/// `after` is null or holds `count` handles.
pub(super) unsafe fn add(
    d: &mut Driver,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    (work, device): Made,
) -> Answer {
    let graph = graph as u64;
    // SAFETY: this function's contract.
    let after = unsafe { numbers(d, graph, after, count)? };
    let number = d.add_node(graph, work, after, device, None)?;
    let handle = d.graphs.get(&graph).and_then(|graph| graph.nodes.get(&number)).map(|node| node.handle);
    out.write(handle.unwrap_or_default() as CUgraphNode)
}

/// Adds a node that stands for a copy of a graph.
///
/// # Safety
/// As of [`add`].
pub(super) unsafe fn add_child(
    d: &mut Driver,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    child: CUgraph,
) -> Result<CUgraphNode, u32> {
    let made = (Vec::new(), d.current);
    if graph == child {
        return Err(INVALID_VALUE);
    }
    let copy = d.clone_graph(child as u64, true)?;
    let mut out = std::ptr::null_mut();
    // SAFETY: this function's contract; the out-parameter is a local.
    if let Err(code) = unsafe { add(d, Out(&mut out), graph, after, count, made) } {
        d.remove_graph(copy);
        return Err(code);
    }
    d.node(out as u64)?.child = Some(copy);
    Ok(out)
}

/// The new work of a node of the same type.
pub(super) fn replace(d: &mut Driver, node: CUgraphNode, of: c_int, (work, device): Made) -> Answer {
    let node = d.node(node as u64)?;
    if kind(node) != of {
        return Err(INVALID_VALUE);
    }
    (node.work, node.device) = (work, device);
    node.told.clear();
    Ok(())
}

/// A graph that can be launched, to be changed.
fn changed(d: &mut Driver, exec: CUgraphExec) -> Result<&mut Exec, u32> {
    let exec = d.execs.get_mut(&(exec as u64)).ok_or(INVALID_VALUE)?;
    if !exec.lanes.is_empty() {
        refuse("an update of a graph over several devices");
        return Err(NOT_SUPPORTED);
    }
    Ok(Arc::make_mut(exec))
}

/// A node of a graph that can be launched, by its handle in the graph that this was made from.
pub(super) fn exec_node(d: &mut Driver, exec: CUgraphExec, node: CUgraphNode) -> Result<&mut Node, u32> {
    changed(d, exec)?
        .nodes
        .iter_mut()
        .find(|own| own.handle == node as u64 && !node.is_null())
        .ok_or(INVALID_VALUE)
}

/// The new work of a node of a graph that can be launched; launches already queued keep the old one.
pub(super) fn replace_in(
    d: &mut Driver,
    exec: CUgraphExec,
    node: CUgraphNode,
    of: c_int,
    (work, device): Made,
) -> Answer {
    let node = exec_node(d, exec, node)?;
    if kind(node) != of || node.device != device {
        return Err(INVALID_VALUE);
    }
    node.work = work;
    Ok(())
}

/// Writes a list as the functions of graphs do: without a place for it its length; otherwise as much as there is place for, null
/// behind its end, and how many these were.
///
/// # Safety
/// Each of `outs` is null or holds `*count` handles; `count` is null or valid.
pub(super) unsafe fn write_lists<const N: usize>(
    list: &[[u64; N]],
    outs: [*mut CUgraphNode; N],
    count: *mut usize,
) -> Answer {
    // SAFETY: this function's contract.
    let room = unsafe { count.as_mut() }.ok_or(INVALID_VALUE)?;
    if outs.iter().all(|out| out.is_null()) {
        *room = list.len();
        return Ok(());
    }
    if outs.iter().any(|out| out.is_null()) {
        return Err(INVALID_VALUE);
    }
    for n in 0..*room {
        let entry = list.get(n).copied().unwrap_or([0; N]);
        for (out, handle) in outs.iter().zip(entry) {
            // SAFETY: not null, so it holds as many handles as there is room for.
            unsafe { out.add(n).write(handle as CUgraphNode) };
        }
    }
    *room = list.len().min(*room);
    Ok(())
}

/// The edges of a graph, by handles.
pub(super) fn edges(d: &Driver, graph: CUgraph) -> Result<Vec<[u64; 2]>, u32> {
    let nodes = &d.graphs.get(&(graph as u64)).ok_or(INVALID_VALUE)?.nodes;
    let edges = nodes.values().flat_map(|to| to.after.iter().map(move |from| (from, to.handle)));
    Ok(edges.filter_map(|(from, to)| Some([nodes.get(from)?.handle, to])).collect())
}

/// The nodes that a node follows, or those that follow it.
pub(super) fn neighbours(d: &Driver, node: CUgraphNode, before: bool) -> Result<Vec<[u64; 1]>, u32> {
    let node = node as u64;
    let (graph, number) = graph_and_number(node)?;
    let known = d.graphs.get(&graph).is_some_and(|graph| graph.nodes.contains_key(&number));
    if !known {
        return Err(INVALID_VALUE);
    }
    let edges = edges(d, graph as CUgraph)?;
    let own = edges.iter().filter(|[from, to]| node == if before { *to } else { *from });
    Ok(own.map(|[from, to]| [if before { *from } else { *to }]).collect())
}

/// Adds or removes edges. An edge that is there already, one that is not there to be removed, and a cycle are errors.
///
/// # Safety
/// `from` and `to` are null or hold `count` handles.
pub(super) unsafe fn change_edges(
    d: &mut Driver,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
    adds: bool,
) -> Answer {
    let graph = graph as u64;
    if count > 0 && (from.is_null() || to.is_null()) {
        return Err(INVALID_VALUE);
    }
    if !adds && d.graphs.get(&graph).is_some_and(Graph::has_memory) {
        return Err(INVALID_VALUE);
    }
    for i in 0..count {
        // SAFETY: not null, so each holds `count` handles.
        let (from, to) = unsafe { (from.add(i), to.add(i)) };
        // SAFETY: each points to one handle.
        let (from, to) = unsafe { (numbers(d, graph, from, 1)?[0], numbers(d, graph, to, 1)?[0]) };
        let nodes = &mut d.graphs.get_mut(&graph).ok_or(INVALID_VALUE)?.nodes;
        let mut todo = vec![from];
        while let Some(n) = todo.pop().filter(|_| adds) {
            if n == to {
                return Err(INVALID_VALUE);
            }
            todo.extend(nodes.get(&n).iter().flat_map(|node| &node.after));
        }
        let after = &mut nodes.get_mut(&to).ok_or(INVALID_VALUE)?.after;
        match (after.iter().position(|&n| n == from), adds) {
            (None, true) => after.push(from),
            (Some(place), false) => drop(after.remove(place)),
            _ => return Err(INVALID_VALUE),
        }
    }
    Ok(())
}

/// Replaces all work of a graph that can be launched by that of a graph of the same shape. Otherwise the result's number and the
/// first node that differs.
pub(super) fn update(
    d: &mut Driver,
    exec: CUgraphExec,
    graph: CUgraph,
) -> Result<Result<(), (c_int, u64)>, u32> {
    let mut new = Vec::new();
    d.flatten(graph as u64, &mut new)?;
    let exec = changed(d, exec)?;
    for (n, node) in new.iter().enumerate() {
        let Some(old) = exec.nodes.get(n) else { return Ok(Err((TOPOLOGY_CHANGED, node.handle))) };
        if kind(old) != kind(node) {
            return Ok(Err((NODE_TYPE_CHANGED, node.handle)));
        }
        // an address is one node's
        if node.is_of_memory() && node.handle != old.handle {
            return Ok(Err((PARAMETERS_CHANGED, node.handle)));
        }
        let same = old.after.len() == node.after.len() && old.after.iter().all(|a| node.after.contains(a));
        if !same || old.device != node.device {
            return Ok(Err((TOPOLOGY_CHANGED, node.handle)));
        }
    }
    if new.len() < exec.nodes.len() {
        return Ok(Err((TOPOLOGY_CHANGED, 0)));
    }
    for (old, new) in exec.nodes.iter_mut().zip(new) {
        (old.work, old.enabled) = (new.work, new.enabled);
    }
    Ok(Ok(()))
}

/// A launch as its node describes it; the node keeps the addresses of the parameters.
pub(super) fn kernel_params(node: &mut Node) -> Result<CUDA_KERNEL_NODE_PARAMS, u32> {
    let Some(Work::Launch(launch)) = node.work.first() else { return Err(INVALID_VALUE) };
    let kernel = launch.module.module.kernel(&launch.kernel).ok_or(INVALID_VALUE)?;
    let start = launch.params.as_ptr() as u64;
    node.told = kernel.params.iter().map(|p| start + u64::from(p.offset)).collect();
    let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
    Ok(CUDA_KERNEL_NODE_PARAMS {
        func: launch.function as CUfunction,
        gridDimX: gx,
        gridDimY: gy,
        gridDimZ: gz,
        blockDimX: bx,
        blockDimY: by,
        blockDimZ: bz,
        sharedMemBytes: launch.shared,
        kernelParams: node.told.as_mut_ptr().cast(),
        extra: std::ptr::null_mut(),
    })
}

/// A copy as its node describes it: offsets are part of the addresses.
fn copy_params(node: &Node) -> Result<CUDA_MEMCPY3D, u32> {
    let Some(Work::Copy { dst, src, width, rows, dst_pitch, src_pitch }) = node.work.first() else {
        return Err(INVALID_VALUE);
    };
    // the type of memory and its address
    let side = |place: &Place| match place {
        Place::Device(at) => (CUmemorytype::CU_MEMORYTYPE_DEVICE, *at),
        Place::Host(at) => (CUmemorytype::CU_MEMORYTYPE_HOST, *at as u64),
        Place::Bytes(bytes) => (CUmemorytype::CU_MEMORYTYPE_HOST, bytes.as_ptr() as u64),
    };
    let ((src_kind, src_at), (dst_kind, dst_at)) = (side(src), side(dst));
    // rows between the first two slices
    let height = |at: u64, pitch: u64, place: fn(&Work) -> Option<&Place>| {
        let next = node.work.get(1).and_then(place).map_or(at + rows * pitch, |place| side(place).1);
        ((next - at) / pitch.max(1)) as usize
    };
    fn source(work: &Work) -> Option<&Place> {
        if let Work::Copy { src, .. } = work { Some(src) } else { None }
    }
    fn destination(work: &Work) -> Option<&Place> {
        if let Work::Copy { dst, .. } = work { Some(dst) } else { None }
    }
    let host = |kind, at: u64| if kind == CUmemorytype::CU_MEMORYTYPE_HOST { at } else { 0 };
    let device = |kind, at: u64| if kind == CUmemorytype::CU_MEMORYTYPE_HOST { 0 } else { at };
    Ok(CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: src_kind,
        srcHost: host(src_kind, src_at) as *const c_void,
        srcDevice: device(src_kind, src_at),
        srcArray: std::ptr::null_mut(),
        reserved0: std::ptr::null_mut(),
        srcPitch: *src_pitch as usize,
        srcHeight: height(src_at, *src_pitch, source),
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: dst_kind,
        dstHost: host(dst_kind, dst_at) as *mut c_void,
        dstDevice: device(dst_kind, dst_at),
        dstArray: std::ptr::null_mut(),
        reserved1: std::ptr::null_mut(),
        dstPitch: *dst_pitch as usize,
        dstHeight: height(dst_at, *dst_pitch, destination),
        WidthInBytes: *width as usize,
        Height: *rows as usize,
        Depth: node.work.len(),
    })
}

fn memset_params(node: &Node) -> Result<CUDA_MEMSET_NODE_PARAMS, u32> {
    let Some(&Work::Set { at, value, size, count }) = node.work.first() else { return Err(INVALID_VALUE) };
    let next = match node.work.get(1) {
        Some(Work::Set { at, .. }) => *at,
        _ => at,
    };
    Ok(CUDA_MEMSET_NODE_PARAMS {
        dst: at,
        pitch: (next - at) as usize,
        value: value as c_uint,
        elementSize: size.into(),
        width: count as usize,
        height: node.work.len(),
    })
}

fn host_params(node: &Node) -> Result<CUDA_HOST_NODE_PARAMS, u32> {
    let Some(Work::Call { function, data, .. }) = node.work.first() else { return Err(INVALID_VALUE) };
    let Callback::Host(function) = **function else { return Err(INVALID_VALUE) };
    Ok(CUDA_HOST_NODE_PARAMS { fn_: Some(function), userData: *data as *mut c_void })
}

api! {
    fn cuGraphAddKernelNode(
        out: *mut CUgraphNode => Out<CUgraphNode>, graph: CUgraph, after: *const CUgraphNode, count: usize, p: *const CUDA_KERNEL_NODE_PARAMS,
    ) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters and handles.
        unsafe {
            let work = kernel_work(d, p)?;
            add(d, out, graph, after, count, work)
        }
    }

    fn cuGraphAddMemcpyNode(
        out: *mut CUgraphNode => Out<CUgraphNode>, graph: CUgraph, after: *const CUgraphNode, count: usize, p: *const CUDA_MEMCPY3D,
        context: CUcontext,
    ) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters and handles.
        unsafe {
            let work = copy_work(d, p, context)?;
            add(d, out, graph, after, count, work)
        }
    }

    fn cuGraphAddMemsetNode(
        out: *mut CUgraphNode => Out<CUgraphNode>, graph: CUgraph, after: *const CUgraphNode, count: usize,
        p: *const CUDA_MEMSET_NODE_PARAMS, context: CUcontext,
    ) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters and handles.
        unsafe {
            let work = memset_work(d, p, context)?;
            add(d, out, graph, after, count, work)
        }
    }

    fn cuGraphAddHostNode(
        out: *mut CUgraphNode => Out<CUgraphNode>, graph: CUgraph, after: *const CUgraphNode, count: usize, p: *const CUDA_HOST_NODE_PARAMS,
    ) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters and handles.
        unsafe {
            let work = host_work(d, p)?;
            add(d, out, graph, after, count, work)
        }
    }

    fn cuGraphAddEmptyNode(out: *mut CUgraphNode => Out<CUgraphNode>, graph: CUgraph, after: *const CUgraphNode, count: usize) {
        let d = &mut *enter()?;
        let work = (Vec::new(), d.current);
        // SAFETY: the caller promised the driver API valid handles.
        unsafe { add(d, out, graph, after, count, work) }
    }

    fn cuGraphAddChildGraphNode(
        out: *mut CUgraphNode => Out<CUgraphNode>, graph: CUgraph, after: *const CUgraphNode, count: usize, child: CUgraph,
    ) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid handles.
        let node = unsafe { add_child(d, graph, after, count, child)? };
        out.write(node)
    }

    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph => Out<CUgraph>) {
        let child = enter()?.node(node as u64)?.child.ok_or(INVALID_VALUE)?;
        graph.write(child as CUgraph)
    }

    fn cuGraphKernelNodeGetParams(node: CUgraphNode, p: *mut CUDA_KERNEL_NODE_PARAMS => Out<CUDA_KERNEL_NODE_PARAMS>) {
        let params = kernel_params(enter()?.node(node as u64)?)?;
        p.write(params)
    }

    fn cuGraphKernelNodeSetParams(node: CUgraphNode, p: *const CUDA_KERNEL_NODE_PARAMS) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters.
        let work = unsafe { kernel_work(d, p)? };
        replace(d, node, KERNEL, work)
    }

    fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, p: *mut CUDA_MEMCPY3D => Out<CUDA_MEMCPY3D>) {
        let params = copy_params(enter()?.node(node as u64)?)?;
        p.write(params)
    }

    fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, p: *const CUDA_MEMCPY3D) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters.
        let work = unsafe { copy_work(d, p, std::ptr::null_mut())? };
        replace(d, node, MEMCPY, work)
    }

    fn cuGraphMemsetNodeGetParams(node: CUgraphNode, p: *mut CUDA_MEMSET_NODE_PARAMS => Out<CUDA_MEMSET_NODE_PARAMS>) {
        let params = memset_params(enter()?.node(node as u64)?)?;
        p.write(params)
    }

    fn cuGraphMemsetNodeSetParams(node: CUgraphNode, p: *const CUDA_MEMSET_NODE_PARAMS) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters.
        let work = unsafe { memset_work(d, p, std::ptr::null_mut())? };
        replace(d, node, MEMSET, work)
    }

    fn cuGraphHostNodeGetParams(node: CUgraphNode, p: *mut CUDA_HOST_NODE_PARAMS => Out<CUDA_HOST_NODE_PARAMS>) {
        let params = host_params(enter()?.node(node as u64)?)?;
        p.write(params)
    }

    fn cuGraphHostNodeSetParams(node: CUgraphNode, p: *const CUDA_HOST_NODE_PARAMS) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters.
        let work = unsafe { host_work(d, p)? };
        replace(d, node, HOST, work)
    }

    fn cuGraphNodeGetType(node: CUgraphNode, of: *mut CUgraphNodeType => Out<c_int>) {
        let kind = kind(enter()?.node(node as u64)?);
        of.write(kind)
    }

    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let d = &mut *enter()?;
        let graph = d.graphs.get(&(graph as u64)).ok_or(INVALID_VALUE)?;
        let list: Vec<_> = graph.nodes.values().map(|node| [node.handle]).collect();
        // SAFETY: the caller's array has as many entries as it says.
        unsafe { write_lists(&list, [nodes], count) }
    }

    fn cuGraphGetRootNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let d = &mut *enter()?;
        let graph = d.graphs.get(&(graph as u64)).ok_or(INVALID_VALUE)?;
        let roots = graph.nodes.values().filter(|node| node.after.is_empty());
        let list: Vec<_> = roots.map(|node| [node.handle]).collect();
        // SAFETY: the caller's array has as many entries as it says.
        unsafe { write_lists(&list, [nodes], count) }
    }

    fn cuGraphGetEdges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize) {
        let list = edges(&*enter()?, graph)?;
        // SAFETY: the caller's arrays have as many entries as it says.
        unsafe { write_lists(&list, [from, to], count) }
    }

    fn cuGraphNodeGetDependencies(node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) {
        let list = neighbours(&*enter()?, node, true)?;
        // SAFETY: the caller's array has as many entries as it says.
        unsafe { write_lists(&list, [nodes], count) }
    }

    fn cuGraphNodeGetDependentNodes(node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) {
        let list = neighbours(&*enter()?, node, false)?;
        // SAFETY: the caller's array has as many entries as it says.
        unsafe { write_lists(&list, [nodes], count) }
    }

    fn cuGraphAddDependencies(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) {
        // SAFETY: the caller promised the driver API valid handles.
        unsafe { change_edges(&mut *enter()?, graph, from, to, count, true) }
    }

    fn cuGraphRemoveDependencies(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) {
        // SAFETY: the caller promised the driver API valid handles.
        unsafe { change_edges(&mut *enter()?, graph, from, to, count, false) }
    }

    fn cuGraphDestroyNode(node: CUgraphNode) {
        let d = &mut *enter()?;
        let child = d.node(node as u64)?.child;
        let (graph, number) = graph_and_number(node as u64)?;
        let graph = d.graphs.get_mut(&graph).ok_or(INVALID_VALUE)?;
        if graph.is_child || graph.has_memory() {
            return Err(INVALID_VALUE);
        }
        graph.nodes.remove(&number);
        graph.nodes.values_mut().for_each(|node| node.after.retain(|&before| before != number));
        child.into_iter().for_each(|child| d.remove_graph(child));
        Ok(())
    }

    fn cuGraphClone(clone: *mut CUgraph => Out<CUgraph>, graph: CUgraph) {
        let id = enter()?.clone_graph(graph as u64, false)?;
        clone.write(id as CUgraph)
    }

    fn cuGraphNodeFindInClone(out: *mut CUgraphNode => Out<CUgraphNode>, node: CUgraphNode, clone: CUgraph) {
        let d = &mut *enter()?;
        let (graph, number) = graph_and_number(node as u64)?;
        let clone = d.graphs.get(&(clone as u64)).filter(|clone| clone.of == Some(graph)).ok_or(INVALID_VALUE)?;
        let handle = clone.nodes.get(&number).ok_or(INVALID_VALUE)?.handle;
        out.write(handle as CUgraphNode)
    }

    fn cuGraphExecKernelNodeSetParams(exec: CUgraphExec, node: CUgraphNode, p: *const CUDA_KERNEL_NODE_PARAMS) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters.
        let work = unsafe { kernel_work(d, p)? };
        replace_in(d, exec, node, KERNEL, work)
    }

    fn cuGraphExecMemcpyNodeSetParams(exec: CUgraphExec, node: CUgraphNode, p: *const CUDA_MEMCPY3D, context: CUcontext) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters.
        let work = unsafe { copy_work(d, p, context)? };
        replace_in(d, exec, node, MEMCPY, work)
    }

    fn cuGraphExecMemsetNodeSetParams(exec: CUgraphExec, node: CUgraphNode, p: *const CUDA_MEMSET_NODE_PARAMS, context: CUcontext) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters.
        let work = unsafe { memset_work(d, p, context)? };
        replace_in(d, exec, node, MEMSET, work)
    }

    fn cuGraphExecHostNodeSetParams(exec: CUgraphExec, node: CUgraphNode, p: *const CUDA_HOST_NODE_PARAMS) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API valid parameters.
        let work = unsafe { host_work(d, p)? };
        replace_in(d, exec, node, HOST, work)
    }

    fn cuGraphExecUpdate(
        exec: CUgraphExec, graph: CUgraph, node: *mut CUgraphNode => Out<CUgraphNode>, result: *mut CUgraphExecUpdateResult => Out<c_int>,
    ) {
        let (code, at) = update(&mut *enter()?, exec, graph)?.err().unwrap_or((0, 0));
        node.write_unless_null(at as CUgraphNode);
        result.write_unless_null(code);
        if code == 0 { Ok(()) } else { Err(UPDATE_FAILURE) }
    }
}
