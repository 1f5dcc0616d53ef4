//! Stream capture and graphs: captured work and nodes made one by one are the same nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::sync::Arc;

use cust_raw::*;

use super::codes::*;
use super::engine::{Driver, Guard, Stream, StreamId, Work, after_enqueue, call_host, is_null};
use super::order::{Clock, join};
use super::{Answer, Out, api, enter};

/// A node: its work in order, none for an empty node.
#[derive(Clone)]
pub(super) struct Node {
    pub handle: u64,
    pub work: Vec<Work>,
    /// The graph that it stands for.
    pub child: Option<u64>,
    /// By their numbers in the graph; in a graph that can be launched, by their places.
    pub after: Vec<usize>,
    /// Nodes of the same lane are those captured on a stream; other nodes have lanes of their own.
    lane: u64,
    pub device: usize,
    /// Whether its work runs when a graph is launched.
    pub enabled: bool,
    /// Addresses of its parameters, as a caller was last given them.
    pub told: Vec<u64>,
}

#[derive(Clone, Default)]
pub(super) struct Graph {
    /// By number; no number is used twice.
    pub nodes: BTreeMap<usize, Node>,
    next: usize,
    /// Whether it belongs to a node of another graph.
    pub is_child: bool,
    /// The graph that it was copied from.
    pub of: Option<u64>,
}

/// A graph that can be launched: its nodes, and those of its child graphs.
#[derive(Clone)]
pub(super) struct Exec {
    id: u64,
    pub flags: u64,
    pub nodes: Vec<Node>,
    /// For a graph over several devices: for each lane, the stream that its nodes run on. Each has a clock of its own, as
    /// nodes of different lanes are ordered by edges alone. Empty for a graph of one device.
    pub lanes: BTreeMap<u64, StreamId>,
}

/// A capture in progress.
pub(super) struct Capture {
    origin: StreamId,
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`: potentially unsafe API calls are allowed during the capture.
    pub relaxed: bool,
    joined: Vec<StreamId>,
    /// The graph that it adds to.
    pub graph: u64,
    /// Whether that graph was there before.
    appends: bool,
    nodes: Vec<usize>,
    /// What a caller was last told that its stream's next work follows.
    pub told: Vec<u64>,
}

/// Nodes of a graph, those removed included: their numbers are the lowest bits of handles.
const MOST_NODES: usize = (1 << 24) - 1;

fn node_handle(graph: u64, node: usize) -> u64 {
    graph << 24 | (node as u64 + 1)
}

/// Graph and number of a node's handle.
pub(super) fn graph_and_number(node: u64) -> Result<(u64, usize), u32> {
    let number = (node & MOST_NODES as u64).checked_sub(1).ok_or(INVALID_VALUE)?;
    Ok((node >> 24, number as usize))
}

impl Driver {
    /// Adds a node; gives its number.
    pub(super) fn add_node(
        &mut self,
        graph: u64,
        work: Vec<Work>,
        after: Vec<usize>,
        device: usize,
        lane: Option<StreamId>,
    ) -> Result<usize, u32> {
        let g = self.graphs.get_mut(&graph).ok_or(INVALID_VALUE)?;
        let number = g.next;
        if number == MOST_NODES {
            return Err(OUT_OF_MEMORY);
        }
        g.next += 1;
        let handle = node_handle(graph, number);
        let lane = lane.unwrap_or(handle);
        let node = Node { handle, work, child: None, after, lane, device, enabled: true, told: Vec::new() };
        g.nodes.insert(number, node);
        Ok(number)
    }

    pub(super) fn node(&mut self, handle: u64) -> Result<&mut Node, u32> {
        let (graph, number) = graph_and_number(handle)?;
        self.graphs.get_mut(&graph).and_then(|g| g.nodes.get_mut(&number)).ok_or(INVALID_VALUE)
    }

    /// A copy of a graph and of its child graphs; gives its handle. A node's number is the same in both.
    pub(super) fn clone_graph(&mut self, graph: u64, is_child: bool) -> Result<u64, u32> {
        let mut clone = self.graphs.get(&graph).ok_or(INVALID_VALUE)?.clone();
        (clone.is_child, clone.of) = (is_child, Some(graph));
        let id = self.handle();
        for (number, node) in &mut clone.nodes {
            if node.lane == node.handle {
                node.lane = node_handle(id, *number);
            }
            node.handle = node_handle(id, *number);
            node.told.clear();
            if let Some(child) = node.child {
                node.child = Some(self.clone_graph(child, true)?);
            }
        }
        self.graphs.insert(id, clone);
        Ok(id)
    }

    /// Removes a graph and its child graphs.
    pub(super) fn remove_graph(&mut self, graph: u64) {
        let Some(g) = self.graphs.remove(&graph) else { return };
        g.nodes.values().filter_map(|node| node.child).for_each(|child| self.remove_graph(child));
    }

    pub(super) fn capture_work(&mut self, id: StreamId, work: Work) -> Answer {
        let s = self.stream(id)?;
        let device = s.device;
        let Some(capture) = s.capture else { return Err(STREAM_CAPTURE_UNMATCHED) };
        let after = std::mem::take(&mut s.capture_tail);
        let Some(c) = self.captures.get(&capture) else { return Err(STREAM_CAPTURE_INVALIDATED) };
        let node = self.add_node(c.graph, vec![work], after, device, Some(id))?;
        self.captures.get_mut(&capture).ok_or(STREAM_CAPTURE_INVALIDATED)?.nodes.push(node);
        self.stream(id)?.capture_tail = vec![node];
        Ok(())
    }

    /// Adds a stream that waits for a captured event to the capture; it may be of another device.
    pub(super) fn join_capture(&mut self, id: StreamId, capture: u64, after: Vec<usize>) -> Answer {
        self.stream(id)?;
        let Some(c) = self.captures.get_mut(&capture) else { return Err(INVALID_VALUE) };
        if !c.joined.contains(&id) {
            c.joined.push(id);
        }
        let s = self.stream(id)?;
        match s.capture {
            Some(own) if own != capture => return Err(STREAM_CAPTURE_ISOLATION),
            _ => s.capture = Some(capture),
        }
        for n in after {
            if !s.capture_tail.contains(&n) {
                s.capture_tail.push(n);
            }
        }
        Ok(())
    }

    /// For a stream that is being captured: the graph's handle, and the nodes that its next work follows.
    pub(super) fn capture_of(&mut self, id: StreamId) -> Result<Option<(u64, &[u64])>, u32> {
        let s = self.stream(id)?;
        let Some(capture) = s.capture else { return Ok(None) };
        let tail = s.capture_tail.clone();
        let c = self.captures.get_mut(&capture).ok_or(STREAM_CAPTURE_INVALIDATED)?;
        c.told = tail.into_iter().map(|node| node_handle(c.graph, node)).collect();
        Ok(Some((c.graph, &c.told)))
    }

    /// Ends a capture; gives its graph.
    fn end_capture(&mut self, id: StreamId) -> Result<u64, u32> {
        let Some(capture) = self.stream(id)?.capture else { return Err(INVALID_VALUE) };
        let Some(c) = self.captures.get(&capture) else { return Err(STREAM_CAPTURE_INVALIDATED) };
        if c.origin != id {
            return Err(STREAM_CAPTURE_UNMATCHED);
        }
        let Some(c) = self.captures.remove(&capture) else { return Err(STREAM_CAPTURE_INVALIDATED) };
        let mut todo = self.stream(id)?.capture_tail.clone();
        for s in &c.joined {
            if let Some(s) = self.streams.get_mut(s) {
                s.capture = None;
                s.capture_tail.clear();
            }
        }
        let nodes = &self.graphs.get(&c.graph).ok_or(STREAM_CAPTURE_INVALIDATED)?.nodes;
        let mut reached = BTreeSet::new();
        while let Some(n) = todo.pop() {
            if reached.insert(n) {
                todo.extend(nodes.get(&n).iter().flat_map(|node| &node.after));
            }
        }
        // A forked stream has work that the origin never waited for.
        if c.nodes.iter().all(|n| reached.contains(n)) {
            return Ok(c.graph);
        }
        if !c.appends {
            self.remove_graph(c.graph);
        }
        Err(STREAM_CAPTURE_UNJOINED)
    }

    /// Begins a capture into a graph; its first work follows nodes of that graph.
    pub(super) fn begin_capture(
        &mut self,
        stream: CUstream,
        mode: c_int,
        graph: Option<(u64, Vec<usize>)>,
    ) -> Answer {
        let id = self.id(stream);
        if is_null(id) {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        if !(0..=2).contains(&mode) || self.stream(id)?.capture.is_some() {
            return Err(INVALID_VALUE);
        }
        let (capture, appends) = (self.handle(), graph.is_some());
        let (graph, tail) = graph.unwrap_or_else(|| {
            let graph = self.handle();
            self.graphs.insert(graph, Graph::default());
            (graph, Vec::new())
        });
        let (relaxed, joined, nodes, told) = (mode == 2, vec![id], Vec::new(), Vec::new());
        self.captures.insert(capture, Capture { origin: id, relaxed, joined, graph, appends, nodes, told });
        let s = self.stream(id)?;
        s.capture = Some(capture);
        s.capture_tail = tail;
        Ok(())
    }

    /// Appends the nodes of a graph, and in the place of each child graph its nodes between two empty ones.
    pub(super) fn flatten(&self, graph: u64, out: &mut Vec<Node>) -> Answer {
        let nodes = &self.graphs.get(&graph).ok_or(INVALID_VALUE)?.nodes;
        // the places at which each node begins and ends
        let mut places = BTreeMap::new();
        for (&number, node) in nodes {
            let begin = out.len();
            out.push(Node { after: Vec::new(), told: Vec::new(), ..node.clone() });
            if let Some(child) = node.child {
                self.flatten(child, out)?;
                let inner = begin + 1..out.len();
                for place in inner.clone() {
                    if out[place].after.is_empty() {
                        out[place].after.push(begin);
                    }
                }
                let after = std::iter::once(begin).chain(inner).collect();
                out.push(Node {
                    handle: 0,
                    after,
                    work: Vec::new(),
                    child: None,
                    told: Vec::new(),
                    ..node.clone()
                });
            }
            places.insert(number, (begin, out.len() - 1));
        }
        for (number, node) in nodes {
            out[places[number].0].after =
                node.after.iter().filter_map(|before| places.get(before)).map(|place| place.1).collect();
        }
        Ok(())
    }

    pub(super) fn instantiate(&mut self, graph: u64, flags: u64) -> Result<u64, u32> {
        let mut nodes = Vec::new();
        self.flatten(graph, &mut nodes)?;
        let mut lanes = BTreeMap::new();
        if nodes.iter().any(|node| node.device != nodes[0].device) {
            for node in &nodes {
                lanes.entry(node.lane).or_insert_with(|| {
                    let lane = self.handle();
                    self.streams.insert(lane, Stream::new(node.device, 1, 0));
                    lane
                });
            }
        }
        let id = self.handle();
        self.execs.insert(id, Arc::new(Exec { id, flags, nodes, lanes }));
        Ok(id)
    }

    /// Prepares the stream of a node in a graph over several devices: it follows the ends of the nodes before.
    fn begin_node(&mut self, node: &Node, lane: StreamId, start: &End, ends: &[Option<End>]) -> bool {
        let (mut clock, mut time, mut ran) = start.clone();
        for (before, ended, did) in node.after.iter().filter_map(|&a| ends[a].as_ref()) {
            join(&mut clock, before);
            (time, ran) = (time.max(*ended), ran && *did);
        }
        if let Some(s) = self.streams.get_mut(&lane) {
            s.queued += 1;
            clock.insert(lane, s.queued);
            (s.clock, s.time) = (clock, time);
        }
        ran
    }

    fn remove_lanes(&mut self, exec: &Exec) {
        exec.lanes.values().for_each(|lane| drop(self.streams.remove(lane)));
    }
}

/// After a node: what its lane follows, the model time, and whether it ran.
type End = (Clock, f64, bool);

/// Runs a graph that was launched on a stream: its nodes in any order that the edges allow. In a graph over several devices each
/// runs on its own device, and nodes that follow a faulty one do not run, on any device. The guard is released while a host
/// function runs.
pub(super) fn run(mut guard: Guard, id: StreamId, exec: &Exec) -> Result<Guard, u32> {
    let d = &mut *guard;
    let start: End =
        d.streams.get(&id).map_or((Clock::new(), 0.0, true), |s| (s.clock.clone(), s.time, true));
    let mut ends: Vec<Option<End>> = vec![None; exec.nodes.len()];
    for _ in 0..exec.nodes.len() {
        let is_ready =
            |&n: &usize| ends[n].is_none() && exec.nodes[n].after.iter().all(|&a| ends[a].is_some());
        let ready: Vec<usize> = (0..exec.nodes.len()).filter(is_ready).collect();
        let n = ready[guard.pick(ready.len() as u64) as usize];
        let node = &exec.nodes[n];
        let lane = exec.lanes.get(&node.lane).copied();
        let mut ran = lane.is_none_or(|lane| guard.begin_node(node, lane, &start, &ends));
        if ran && node.enabled {
            for work in &node.work {
                match work {
                    Work::Call { .. } => guard = call_host(guard, id, work)?,
                    work => guard.execute_in_graph(lane.unwrap_or(id), work),
                }
            }
        }
        ran &= guard.fault_of(node.device).is_ok();
        let end = lane.and_then(|lane| guard.streams.get_mut(&lane)).map(|s| {
            s.finished += 1;
            (s.clock.clone(), s.time, ran)
        });
        ends[n] = Some(end.unwrap_or((Clock::new(), 0.0, ran)));
    }
    if !exec.lanes.is_empty() {
        if let Some(s) = guard.streams.get_mut(&id) {
            for (clock, time, _) in ends.iter().flatten() {
                join(&mut s.clock, clock);
                s.time = s.time.max(*time);
            }
        }
        if !guard.execs.contains_key(&exec.id) {
            guard.remove_lanes(exec); // it was destroyed before it ran
        }
    }
    Ok(guard)
}

/// Flags of instantiation that have an effect on no graph of this device: frees of its own (it has no memory nodes), upload, and
/// the nodes' priorities.
const HARMLESS_FLAGS: u64 = 1 | 2 | 8;

pub(super) fn instantiate(exec: Out<CUgraphExec>, graph: CUgraph, flags: u64) -> Answer {
    // a graph that kernels launch can't free memory at its launches
    if flags & !HARMLESS_FLAGS & !4 != 0 || flags & 5 == 5 {
        return Err(INVALID_VALUE);
    }
    if flags & 4 != 0 {
        crate::refusal::refuse("a graph that kernels launch");
        return Err(NOT_SUPPORTED);
    }
    let id = enter()?.instantiate(graph as u64, flags)?;
    exec.write(id as CUgraphExec)
}

api! {
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode => c_int) {
        enter()?.begin_capture(stream, mode, None)
    }

    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph => Out<CUgraph>) {
        let d = &mut *enter()?;
        let stream = d.id(stream);
        let id = d.end_capture(stream)?;
        graph.write(id as CUgraph)
    }

    fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus => Out<CUstreamCaptureStatus>) {
        let d = &mut *enter()?;
        let capturing = d.stream(d.id(stream))?.capture.is_some();
        let value = if capturing {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
        } else {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
        };
        status.write(value)
    }

    fn cuStreamGetCaptureInfo(stream: CUstream, status: *mut CUstreamCaptureStatus => Out<CUstreamCaptureStatus>, id: *mut cuuint64_t => Out<cuuint64_t>) {
        let d = &mut *enter()?;
        let capture = d.stream(d.id(stream))?.capture;
        let value = match capture {
            Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
            None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        };
        if let Some(capture) = capture {
            id.write_unless_null(capture);
        }
        status.write(value)
    }

    fn cuGraphCreate(graph: *mut CUgraph => Out<CUgraph>, flags: c_uint) {
        let mut guard = enter()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let d = &mut *guard;
        let id = d.handle();
        d.graphs.insert(id, Graph::default());
        graph.write(id as CUgraph)
    }

    fn cuGraphDestroy(graph: CUgraph) {
        let d = &mut *enter()?;
        if d.graphs.get(&(graph as u64)).is_none_or(|graph| graph.is_child) {
            return Err(INVALID_VALUE);
        }
        d.remove_graph(graph as u64);
        Ok(())
    }

    fn cuGraphInstantiate_v2(
        exec: *mut CUgraphExec => Out<CUgraphExec>, graph: CUgraph, _node: *mut CUgraphNode, _log: *mut c_char, _bytes: usize,
    ) {
        instantiate(exec, graph, 0)
    }

    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec => Out<CUgraphExec>, graph: CUgraph, flags: c_ulonglong) {
        instantiate(exec, graph, flags)
    }

    fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) {
        let d = &mut *enter()?;
        d.stream(d.id(stream))?;
        if d.execs.contains_key(&(exec as u64)) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) {
        let mut guard = enter()?;
        let d = &mut *guard;
        let exec = Arc::clone(d.execs.get(&(exec as u64)).ok_or(INVALID_VALUE)?);
        let stream = d.id(stream);
        if d.stream(stream)?.capture.is_some() {
            // This device has no child graphs.
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        d.enqueue(stream, Work::Graph(exec))?;
        after_enqueue(guard)
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) {
        let d = &mut *enter()?;
        let exec = d.execs.remove(&(exec as u64)).ok_or(INVALID_VALUE)?;
        if Arc::strong_count(&exec) == 1 {
            d.remove_lanes(&exec); // otherwise they are removed when it has run
        }
        Ok(())
    }
}
