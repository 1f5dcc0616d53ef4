//! Nodes of graphs that allocate and free memory, made one by one or captured, and the memory that graphs keep.
//!
//! A node's allocation has its address from the beginning, memory of the device from the first launch or upload on, and is live between the
//! allocation and the free, in the order of the device. No two of them share memory, though their lives be apart.
//!
//! Source: the descriptions of `cuGraphAddMemAllocNode` and its like in cuda.h of CUDA 12.9, "Graph Memory Nodes" of the CUDA C++ Programming
//! Guide. Where they say "an error", it is `CUDA_ERROR_INVALID_VALUE`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cust_raw::*;

use super::call::{Out, api, write_out};
use super::codes::*;
use super::device::with_device;
use super::entry::enter;
use super::graph_allocation::{Access, GraphAllocation};
use super::nodes::add;
use super::state::Driver;
use super::stream_id::StreamId;
use super::work::{Exec, Work};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`
const AUTO_FREE: u64 = 1;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`, with numbers for its enums.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AllocParams {
    /// 1: pinned, the only one.
    kind: c_int,
    handle_types: c_int,
    /// Type of place (1: a device) and its number.
    place: [c_int; 2],
    security: u64,
    reserved: [u64; 8],
    accesses: *const Access,
    access_count: usize,
    bytes: usize,
    address: CUdeviceptr,
}

const _: () = assert!(size_of::<AllocParams>() == size_of::<CUDA_MEM_ALLOC_NODE_PARAMS>());

/// The addresses that an executable graph allocates and frees.
fn memory_of(exec: &Exec) -> [BTreeSet<u64>; 2] {
    let mut sets = [BTreeSet::new(), BTreeSet::new()];
    for work in exec.nodes.iter().flat_map(|node| &node.work) {
        match work {
            Work::GraphAlloc(a) => sets[0].insert(a.base),
            Work::GraphFree { base } => sets[1].insert(*base),
            _ => false,
        };
    }
    sets
}

impl Driver {
    /// Graphs that belong to nodes of others have no nodes of memory.
    fn may_have_memory(&self, graph: u64) -> Answer {
        if self.graphs.get(&graph).is_some_and(|graph| !graph.is_child) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// A new allocation of a graph's node; gives the node's work.
    fn new_graph_allocation(
        &mut self,
        owner: u64,
        device: usize,
        bytes: u64,
        accesses: Vec<Access>,
    ) -> Result<Work, u32> {
        self.may_have_memory(owner)?;
        let allocation = self.devices[device].gpu.memory.insert_unmapped(bytes).map_err(memory_code)?;
        let work = Work::GraphAlloc(Arc::clone(&allocation));
        let of = GraphAllocation {
            allocation,
            device,
            owner,
            freed_by: BTreeSet::new(),
            accesses,
            is_mapped: false,
            is_allocated: false,
        };
        self.graph_allocations.insert(of.allocation.base, of);
        Ok(work)
    }

    /// A captured `cuMemAllocAsync`; gives the address.
    pub(super) fn capture_alloc(&mut self, stream: StreamId, bytes: u64, pool: u64) -> Result<u64, u32> {
        let graph = self.captured_graph(stream)?;
        let pool = self.pools.get(&pool).ok_or(INVALID_VALUE)?;
        let accesses = pool.access.iter().map(|&device| [1, device as c_int, 3]).collect();
        let work = self.new_graph_allocation(graph, pool.device, bytes, accesses)?;
        let Work::GraphAlloc(allocation) = &work else { return Err(UNKNOWN) };
        let base = allocation.base;
        self.capture_work(stream, work)?;
        Ok(base)
    }

    /// A captured `cuMemFreeAsync`.
    pub(super) fn capture_free(&mut self, stream: StreamId, base: u64) -> Answer {
        let graph = self.captured_graph(stream)?;
        let work = self.graph_free(graph, base)?;
        self.capture_work(stream, work)
    }

    fn captured_graph(&mut self, stream: StreamId) -> Result<u64, u32> {
        let capture = self.stream(stream)?.capture.ok_or(STREAM_CAPTURE_UNMATCHED)?;
        self.captures.get(&capture).map(|capture| capture.graph).ok_or(STREAM_CAPTURE_INVALIDATED)
    }

    /// The work of a node that frees an allocation. One that its own graph frees is freed nowhere else, and once.
    fn graph_free(&mut self, graph: u64, base: u64) -> Result<Work, u32> {
        self.may_have_memory(graph)?;
        let of = self.graph_allocations.get_mut(&base).ok_or(INVALID_VALUE)?;
        let elsewhere = of.owner == graph && !of.freed_by.is_empty();
        if elsewhere || of.freed_by.contains(&of.owner) || !of.freed_by.insert(graph) {
            return Err(INVALID_VALUE);
        }
        Ok(Work::GraphFree { base })
    }

    /// Notes that a call frees an allocation of a graph, which is an error unless a graph left it. `None`: it is not one.
    pub(super) fn free_graph_allocation(&mut self, base: u64) -> Option<Answer> {
        let of = self.graph_allocations.get_mut(&base)?;
        if !of.is_allocated {
            return Some(Err(INVALID_VALUE));
        }
        of.is_allocated = false;
        Some(Ok(()))
    }

    /// Gives allocations memory of their devices: to all or, if there is too little, to none.
    fn map(&mut self, bases: &BTreeSet<u64>) -> Answer {
        let mut needs = BTreeMap::<usize, u64>::new();
        for of in bases.iter().filter_map(|base| self.graph_allocations.get(base)).filter(|of| !of.is_mapped)
        {
            *needs.entry(of.device).or_default() += of.allocation.size;
        }
        for (&device, &bytes) in &needs {
            let of = &self.devices[device];
            if of.graph_memory.missing(bytes) > of.gpu.memory.available() {
                return Err(OUT_OF_MEMORY);
            }
        }
        for (device, bytes) in needs {
            let of = &mut self.devices[device];
            of.gpu.memory.reserve(of.graph_memory.missing(bytes)).map_err(memory_code)?;
            of.graph_memory.take(bytes);
            self.note_peak(device);
        }
        for base in bases {
            self.graph_allocations.entry(*base).and_modify(|of| of.is_mapped = true);
        }
        Ok(())
    }

    /// Takes memory from an allocation; the device keeps it for graphs.
    fn unmap(&mut self, base: u64) {
        if let Some(of) = self.graph_allocations.get_mut(&base).filter(|of| of.is_mapped) {
            of.is_mapped = false;
            self.devices[of.device].graph_memory.used -= of.allocation.size;
        }
    }

    /// Maps the memory of an executable graph.
    pub(super) fn upload_graph(&mut self, exec: &Exec) -> Answer {
        self.map(&memory_of(exec)[0])
    }

    /// Queues a launch. A graph that leaves memory allocated is launched again when that was freed, or frees it first if it was made so.
    pub(super) fn launch_graph(&mut self, exec: Arc<Exec>, stream: StreamId) -> Answer {
        let [allocated, freed] = memory_of(&exec);
        let is_allocated = |base: &u64| self.graph_allocations.get(base).is_some_and(|of| of.is_allocated);
        let still: Vec<u64> = allocated.iter().copied().filter(is_allocated).collect();
        if !still.is_empty() && exec.flags & AUTO_FREE == 0 || !freed.difference(&allocated).all(is_allocated)
        {
            return Err(INVALID_VALUE);
        }
        self.map(&allocated)?;
        for base in still {
            self.enqueue(stream, Work::GraphFree { base })?;
            self.graph_allocations.entry(base).and_modify(|of| of.is_allocated = false);
        }
        let work = Work::Graph(exec);
        self.note_printing(&work);
        self.enqueue(stream, work)?;
        for base in allocated.symmetric_difference(&freed) {
            self.graph_allocations.entry(*base).and_modify(|of| of.is_allocated = allocated.contains(base));
        }
        Ok(())
    }

    /// Takes memory from allocations that no executable graph has and that are free, and forgets those whose graph is gone too.
    pub(super) fn collect_graph_memory(&mut self) {
        let is_free = |of: &&GraphAllocation| !of.is_allocated && !of.allocation.is_live();
        let free = self.graph_allocations.values().filter(is_free);
        let unused = free.filter_map(|of| {
            // the device's memory and the list of graphs' allocations have it too
            let uses = Arc::strong_count(&of.allocation) - 2;
            let has_graph = self.graphs.contains_key(&of.owner);
            (uses <= usize::from(has_graph)).then_some((of.allocation.base, has_graph))
        });
        for (base, has_graph) in unused.collect::<Vec<_>>() {
            self.unmap(base);
            if !has_graph && let Some(of) = self.graph_allocations.remove(&base) {
                self.devices[of.device].gpu.memory.discard(base);
            }
        }
    }

    /// Whether queued or running work has an allocation.
    fn is_scheduled(&self, of: &GraphAllocation) -> bool {
        let mut execs = self.execs.values();
        let exec = execs.find(|exec| memory_of(exec)[0].contains(&of.allocation.base));
        let others = 2 + usize::from(self.graphs.contains_key(&of.owner)) + usize::from(exec.is_some());
        Arc::strong_count(&of.allocation) > others || exec.is_some_and(|exec| Arc::strong_count(exec) > 1)
    }

    /// Gives back what a device keeps for graphs, but for allocations that are live or that queued work has.
    fn trim_graph_memory(&mut self, device: usize) {
        self.collect_graph_memory();
        let is_idle =
            |of: &&GraphAllocation| !of.is_allocated && !of.allocation.is_live() && !self.is_scheduled(of);
        let own = self.graph_allocations.values().filter(|of| of.device == device);
        let idle: Vec<_> = own.filter(is_idle).map(|of| of.allocation.base).collect();
        idle.into_iter().for_each(|base| self.unmap(base));
        let of = &mut self.devices[device];
        of.gpu.memory.release(of.graph_memory.reserved - of.graph_memory.used);
        of.graph_memory.reserved = of.graph_memory.used;
    }

    /// The devices that may access an allocation, as a caller says it.
    ///
    /// # Safety
    /// `accesses` is null or holds `count` entries.
    unsafe fn read_accesses(
        &self,
        own: usize,
        accesses: *const Access,
        count: usize,
    ) -> Result<Vec<Access>, u32> {
        if accesses.is_null() && count > 0 {
            return Err(INVALID_VALUE);
        }
        let peers = self.gpu().config().peers;
        let entry = |n| {
            // SAFETY: not null, so there are `count` entries.
            let access = unsafe { accesses.add(n).read() };
            let device = usize::try_from(access[1]).ok().filter(|&device| device < self.devices.len());
            match (access[0], device, access[2]) {
                (1, Some(device), 3) if device == own || peers => Ok(access),
                (1, Some(device), 0) if device != own => Ok(access),
                _ => Err(INVALID_VALUE),
            }
        };
        (0..count).map(entry).collect()
    }
}

/// Adds a node that allocates memory, and writes its address.
///
/// # Safety
/// `after` is null or holds `count` handles, `p` is null or a valid description.
pub(super) unsafe fn add_alloc(
    d: &mut Driver,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    p: *mut AllocParams,
) -> Answer {
    // SAFETY: this function's contract.
    let p = unsafe { p.as_mut() }.ok_or(INVALID_VALUE)?;
    if !d.gpu().config().pools {
        return Err(NOT_SUPPORTED);
    }
    let device = usize::try_from(p.place[1]).ok().filter(|&device| device < d.devices.len());
    let (1, 0, 1, Some(device), 1..) = (p.kind, p.handle_types, p.place[0], device, p.bytes) else {
        return Err(INVALID_VALUE);
    };
    if out.0.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: this function's contract.
    let accesses = unsafe { d.read_accesses(device, p.accesses, p.access_count)? };
    let work = d.new_graph_allocation(graph as u64, device, p.bytes as u64, accesses)?;
    let base = if let Work::GraphAlloc(a) = &work { a.base } else { 0 };
    // SAFETY: this function's contract.
    if let Err(code) = unsafe { add(d, out, graph, after, count, (vec![work], device)) } {
        d.graph_allocations.remove(&base);
        d.devices[device].gpu.memory.discard(base);
        return Err(code);
    }
    p.address = base;
    Ok(())
}

/// Adds a node that frees memory.
///
/// # Safety
/// `after` is null or holds `count` handles.
pub(super) unsafe fn add_free(
    d: &mut Driver,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    base: CUdeviceptr,
) -> Answer {
    if out.0.is_null() {
        return Err(INVALID_VALUE);
    }
    let graph_id = graph as u64;
    let work = d.graph_free(graph_id, base)?;
    let device = d.graph_allocations.get(&base).map_or(d.current, |of| of.device);
    // SAFETY: this function's contract.
    let added = unsafe { add(d, out, graph, after, count, (vec![work], device)) };
    if added.is_err()
        && let Some(of) = d.graph_allocations.get_mut(&base)
    {
        of.freed_by.remove(&graph_id);
    }
    added
}

api! {
    fn cuGraphAddMemAllocNode(
        out: *mut CUgraphNode => Out<CUgraphNode>, graph: CUgraph, after: *const CUgraphNode, count: usize,
        p: *mut CUDA_MEM_ALLOC_NODE_PARAMS => *mut AllocParams,
    ) {
        // SAFETY: the caller promised the driver API valid parameters and handles.
        unsafe { add_alloc(&mut *enter()?, out, graph, after, count, p) }
    }

    fn cuGraphAddMemFreeNode(
        out: *mut CUgraphNode => Out<CUgraphNode>, graph: CUgraph, after: *const CUgraphNode, count: usize, address: CUdeviceptr,
    ) {
        // SAFETY: the caller promised the driver API valid handles.
        unsafe { add_free(&mut *enter()?, out, graph, after, count, address) }
    }

    fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, p: *mut CUDA_MEM_ALLOC_NODE_PARAMS => Out<AllocParams>) {
        let d = &mut *enter()?;
        let Some(Work::GraphAlloc(a)) = d.node(node as u64)?.work.first() else { return Err(INVALID_VALUE) };
        let base = a.base;
        let of = d.graph_allocations.get(&base).ok_or(INVALID_VALUE)?;
        p.write(AllocParams {
            kind: 1,
            handle_types: 0,
            place: [1, of.device as c_int],
            security: 0,
            reserved: [0; 8],
            accesses: of.accesses.as_ptr(),
            access_count: of.accesses.len(),
            bytes: of.allocation.size as usize,
            address: of.allocation.base,
        })
    }

    fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, address: *mut CUdeviceptr => Out<CUdeviceptr>) {
        let Some(&Work::GraphFree { base }) = enter()?.node(node as u64)?.work.first() else {
            return Err(INVALID_VALUE);
        };
        address.write(base)
    }

    fn cuDeviceGraphMemTrim(dev: CUdevice) {
        let (mut guard, device) = with_device(dev)?;
        guard.trim_graph_memory(device);
        Ok(())
    }

    fn cuDeviceGetGraphMemAttribute(dev: CUdevice, attribute: CUgraphMem_attribute => c_int, value: *mut c_void) {
        let (mut guard, device) = with_device(dev)?;
        guard.collect_graph_memory();
        let of = &guard.devices[device].graph_memory;
        let bytes = match attribute {
            0 => of.used,
            1 => of.used_high,
            2 => of.reserved,
            3 => of.reserved_high,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: null or the caller's place of a `cuuint64_t`, the type of all four.
        unsafe { write_out(value.cast(), bytes) }
    }

    /// Marks of high water, which can only be reset.
    fn cuDeviceSetGraphMemAttribute(dev: CUdevice, attribute: CUgraphMem_attribute => c_int, value: *mut c_void) {
        let (mut guard, device) = with_device(dev)?;
        let of = &mut guard.devices[device].graph_memory;
        // SAFETY: null or the caller's `cuuint64_t`.
        match (attribute, unsafe { value.cast::<u64>().as_ref() }) {
            (1, Some(0)) => of.used_high = of.used,
            (3, Some(0)) => of.reserved_high = of.reserved,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}
