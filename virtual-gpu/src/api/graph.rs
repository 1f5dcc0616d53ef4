//! Stream capture and graphs.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::sync::Arc;

use cust_raw::*;

use super::codes::*;
use super::engine::{Driver, Stream, StreamId, Work, after_enqueue, is_null};
use super::order::{Clock, join};
use super::{Answer, Out, api, enter};

/// Captured work, the nodes it follows, and the stream that it was captured on.
#[derive(Clone)]
pub(super) struct Node {
    pub work: Work,
    pub after: Vec<usize>,
    stream: StreamId,
    device: usize,
}

pub(super) struct Graph {
    nodes: Vec<Node>,
}

/// A graph that can be launched.
pub(super) struct Exec {
    id: u64,
    pub nodes: Vec<Node>,
    /// For a graph over several devices: for each captured stream, the stream that its nodes run on. Each has a clock of its
    /// own, as nodes of different streams are ordered by edges alone. Empty for a graph of one device.
    pub lanes: BTreeMap<StreamId, StreamId>,
}

/// A capture in progress.
pub(super) struct Capture {
    origin: StreamId,
    nodes: Vec<Node>,
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`: potentially unsafe API calls are allowed during the capture.
    pub relaxed: bool,
    joined: Vec<StreamId>,
    /// The handle that its graph will have.
    pub graph: u64,
    /// What a caller was last told that its stream's next work follows.
    pub told: Vec<u64>,
}

/// The handle of a node. No function takes one yet; callers count and compare them.
fn node_handle(graph: u64, node: usize) -> u64 {
    graph << 24 | (node as u64 + 1)
}

impl Driver {
    pub(super) fn capture_work(&mut self, id: StreamId, work: Work) -> Answer {
        let s = self.stream(id)?;
        let device = s.device;
        let Some(capture) = s.capture else { return Err(STREAM_CAPTURE_UNMATCHED) };
        let after = std::mem::take(&mut s.capture_tail);
        let Some(c) = self.captures.get_mut(&capture) else { return Err(STREAM_CAPTURE_INVALIDATED) };
        c.nodes.push(Node { work, after, stream: id, device });
        let node = c.nodes.len() - 1;
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

    /// The graph and its handle.
    fn end_capture(&mut self, id: StreamId) -> Result<(u64, Graph), u32> {
        let Some(capture) = self.stream(id)?.capture else { return Err(INVALID_VALUE) };
        let Some(c) = self.captures.get(&capture) else { return Err(STREAM_CAPTURE_INVALIDATED) };
        if c.origin != id {
            return Err(STREAM_CAPTURE_UNMATCHED);
        }
        let Some(c) = self.captures.remove(&capture) else { return Err(STREAM_CAPTURE_INVALIDATED) };
        let tail = self.stream(id)?.capture_tail.clone();
        let mut reached = vec![false; c.nodes.len()];
        let mut todo = tail;
        while let Some(n) = todo.pop() {
            if !std::mem::replace(&mut reached[n], true) {
                todo.extend(&c.nodes[n].after);
            }
        }
        for s in &c.joined {
            if let Some(s) = self.streams.get_mut(s) {
                s.capture = None;
                s.capture_tail.clear();
            }
        }
        // A forked stream has work that the origin never waited for.
        if reached.contains(&false) {
            Err(STREAM_CAPTURE_UNJOINED)
        } else {
            Ok((c.graph, Graph { nodes: c.nodes }))
        }
    }

    /// Runs a graph over several devices that was launched on a stream: each node on its own device, in any order that the edges
    /// allow. Nodes that follow a faulty one do not run, on any device.
    pub(super) fn execute_lanes(&mut self, id: StreamId, exec: &Exec) {
        let (start, begin) = self.streams.get(&id).map(|s| (s.clock.clone(), s.time)).unwrap_or_default();
        /// After a node: what its lane follows, the model time, and whether it ran.
        type End = (Clock, f64, bool);
        let mut ends: Vec<Option<End>> = vec![None; exec.nodes.len()];
        for _ in 0..exec.nodes.len() {
            let is_ready =
                |&n: &usize| ends[n].is_none() && exec.nodes[n].after.iter().all(|&a| ends[a].is_some());
            let ready: Vec<usize> = (0..exec.nodes.len()).filter(is_ready).collect();
            let n = ready[self.pick(ready.len() as u64) as usize];
            let node = &exec.nodes[n];
            let Some(&lane) = exec.lanes.get(&node.stream) else { continue };
            let (mut clock, mut time, mut ran) = (start.clone(), begin, true);
            for (before, ended, did) in node.after.iter().filter_map(|&a| ends[a].as_ref()) {
                join(&mut clock, before);
                (time, ran) = (time.max(*ended), ran && *did);
            }
            if let Some(s) = self.streams.get_mut(&lane) {
                s.queued += 1;
                clock.insert(lane, s.queued);
                (s.clock, s.time) = (clock, time);
            }
            if ran {
                self.execute(lane, &node.work);
            }
            let ran = ran && self.fault_of(node.device).is_ok();
            if let Some(s) = self.streams.get_mut(&lane) {
                s.finished += 1;
                ends[n] = Some((s.clock.clone(), s.time, ran));
            }
        }
        if let Some(s) = self.streams.get_mut(&id) {
            for (clock, time, _) in ends.iter().flatten() {
                join(&mut s.clock, clock);
                s.time = s.time.max(*time);
            }
        }
        if !self.execs.contains_key(&exec.id) {
            self.remove_lanes(exec); // it was destroyed before it ran
        }
    }

    fn remove_lanes(&mut self, exec: &Exec) {
        exec.lanes.values().for_each(|lane| drop(self.streams.remove(lane)));
    }
}

fn instantiate(exec: Out<CUgraphExec>, graph: CUgraph) -> Answer {
    let d = &mut *enter()?;
    let g = d.graphs.get(&(graph as u64)).ok_or(INVALID_VALUE)?;
    let nodes = g.nodes.clone();
    let mut lanes = BTreeMap::new();
    if nodes.iter().any(|node| node.device != nodes[0].device) {
        for node in &nodes {
            lanes.entry(node.stream).or_insert_with(|| {
                let lane = d.handle();
                d.streams.insert(lane, Stream::new(node.device, 1, 0));
                lane
            });
        }
    }
    let id = d.handle();
    d.execs.insert(id, Arc::new(Exec { id, nodes, lanes }));
    exec.write(id as CUgraphExec)
}

api! {
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode => c_int) {
        let d = &mut *enter()?;
        let id = d.id(stream);
        if is_null(id) {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        if !(0..=2).contains(&mode) || d.stream(id)?.capture.is_some() {
            return Err(INVALID_VALUE);
        }
        let (capture, graph) = (d.handle(), d.handle());
        let (nodes, joined, told) = (Vec::new(), vec![id], Vec::new());
        let relaxed = mode == 2;
        d.captures.insert(capture, Capture { origin: id, nodes, relaxed, joined, graph, told });
        let s = d.stream(id)?;
        s.capture = Some(capture);
        s.capture_tail.clear();
        Ok(())
    }

    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph => Out<CUgraph>) {
        let d = &mut *enter()?;
        let stream = d.id(stream);
        let (id, g) = d.end_capture(stream)?;
        d.graphs.insert(id, g);
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
        d.graphs.insert(id, Graph { nodes: Vec::new() });
        graph.write(id as CUgraph)
    }

    fn cuGraphDestroy(graph: CUgraph) {
        enter()?.graphs.remove(&(graph as u64)).map(|_| ()).ok_or(INVALID_VALUE)
    }

    /// Gives the number of nodes; this device has no node handles.
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize => Out<usize>) {
        let n = enter()?.graphs.get(&(graph as u64)).ok_or(INVALID_VALUE)?.nodes.len();
        if !nodes.is_null() {
            return Err(NOT_SUPPORTED);
        }
        count.write(n)
    }

    fn cuGraphInstantiate_v2(
        exec: *mut CUgraphExec => Out<CUgraphExec>, graph: CUgraph, _node: *mut CUgraphNode, _log: *mut c_char, _bytes: usize,
    ) {
        instantiate(exec, graph)
    }

    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec => Out<CUgraphExec>, graph: CUgraph, flags: c_ulonglong) {
        if flags != 0 {
            return Err(NOT_SUPPORTED);
        }
        instantiate(exec, graph)
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
