//! Stream capture and graphs.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::sync::Arc;

use cust_raw::*;

use super::codes::*;
use super::engine::{Driver, StreamId, Work, after_enqueue, is_null};
use super::{Answer, api, enter, give, inside};

/// Captured work and the nodes it follows.
pub(super) struct Node {
    pub work: Work,
    pub after: Vec<usize>,
}

pub(super) struct Graph {
    nodes: Vec<Node>,
}

/// A capture in progress.
pub(super) struct Capture {
    origin: StreamId,
    nodes: Vec<Node>,
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`: other unsafe calls are allowed meanwhile.
    pub relaxed: bool,
    joined: Vec<StreamId>,
}

impl Driver {
    pub(super) fn capture_work(&mut self, id: StreamId, work: Work) -> Answer {
        let s = self.stream(id)?;
        let Some(capture) = s.capture else { return Err(STREAM_CAPTURE_UNMATCHED) };
        let after = std::mem::take(&mut s.capture_tail);
        let Some(c) = self.captures.get_mut(&capture) else { return Err(STREAM_CAPTURE_INVALIDATED) };
        c.nodes.push(Node { work, after });
        let node = c.nodes.len() - 1;
        self.stream(id)?.capture_tail = vec![node];
        Ok(())
    }

    /// Adds a stream that waits for a captured event to the capture.
    pub(super) fn join_capture(&mut self, id: StreamId, capture: u64, after: Vec<usize>) -> Answer {
        let device = self.stream(id)?.device;
        let Some(c) = self.captures.get_mut(&capture) else { return Err(INVALID_VALUE) };
        // This driver's graphs are of one device.
        if self.streams.get(&c.origin).is_some_and(|origin| origin.device != device) {
            return Err(NOT_SUPPORTED);
        }
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

    fn end_capture(&mut self, id: StreamId) -> Result<Graph, u32> {
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
        if reached.contains(&false) { Err(STREAM_CAPTURE_UNJOINED) } else { Ok(Graph { nodes: c.nodes }) }
    }
}

fn instantiate(exec: *mut CUgraphExec, graph: CUgraph) -> Answer {
    let mut guard = enter()?;
    let d = inside(&mut guard)?;
    let g = d.graphs.get(&(graph as u64)).ok_or(INVALID_VALUE)?;
    let nodes = g.nodes.iter().map(|n| Node { work: n.work.clone(), after: n.after.clone() }).collect();
    let id = d.handle();
    d.execs.insert(id, Arc::new(nodes));
    // SAFETY: the caller's out-pointer.
    unsafe { give(exec, id as CUgraphExec) }
}

// SAFETY of the unsafe blocks below: each out-pointer is the caller's, who promised the driver API that it is
// null or valid.
api! {
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode => c_int) {
        let mut guard = enter()?;
        let d = inside(&mut guard)?;
        let id = d.id(stream);
        if is_null(id) {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        if !(0..=2).contains(&mode) || d.stream(id)?.capture.is_some() {
            return Err(INVALID_VALUE);
        }
        let capture = d.handle();
        d.captures.insert(
            capture,
            Capture { origin: id, nodes: Vec::new(), relaxed: mode == 2, joined: vec![id] },
        );
        let s = d.stream(id)?;
        s.capture = Some(capture);
        s.capture_tail.clear();
        Ok(())
    }

    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) {
        let mut guard = enter()?;
        let d = inside(&mut guard)?;
        let stream = d.id(stream);
        let g = d.end_capture(stream)?;
        let id = d.handle();
        d.graphs.insert(id, g);
        // SAFETY: as above.
        unsafe { give(graph, id as CUgraph) }
    }

    fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus) {
        let mut guard = enter()?;
        let d = inside(&mut guard)?;
        let capturing = d.stream(d.id(stream))?.capture.is_some();
        let value = if capturing {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
        } else {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
        };
        // SAFETY: as above.
        unsafe { give(status, value) }
    }

    fn cuStreamGetCaptureInfo(stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t) {
        let mut guard = enter()?;
        let d = inside(&mut guard)?;
        let capture = d.stream(d.id(stream))?.capture;
        let value = match capture {
            Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
            None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        };
        // SAFETY: as above.
        unsafe {
            give(status, value)?;
            match (capture, id.is_null()) {
                (Some(c), false) => give(id, c),
                _ => Ok(()),
            }
        }
    }

    fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint) {
        let mut guard = enter()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let d = inside(&mut guard)?;
        let id = d.handle();
        d.graphs.insert(id, Graph { nodes: Vec::new() });
        // SAFETY: as above.
        unsafe { give(graph, id as CUgraph) }
    }

    fn cuGraphDestroy(graph: CUgraph) {
        let mut guard = enter()?;
        inside(&mut guard)?.graphs.remove(&(graph as u64)).map(|_| ()).ok_or(INVALID_VALUE)
    }

    /// Gives the number of nodes; this device has no node handles.
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let mut guard = enter()?;
        let n = inside(&mut guard)?.graphs.get(&(graph as u64)).ok_or(INVALID_VALUE)?.nodes.len();
        if !nodes.is_null() {
            return Err(NOT_SUPPORTED);
        }
        // SAFETY: as above.
        unsafe { give(count, n) }
    }

    fn cuGraphInstantiate_v2(
        exec: *mut CUgraphExec, graph: CUgraph, _node: *mut CUgraphNode, _log: *mut c_char, _bytes: usize,
    ) {
        instantiate(exec, graph)
    }

    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) {
        if flags != 0 {
            return Err(NOT_SUPPORTED);
        }
        instantiate(exec, graph)
    }

    fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) {
        let mut guard = enter()?;
        let d = inside(&mut guard)?;
        d.stream(d.id(stream))?;
        if d.execs.contains_key(&(exec as u64)) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) {
        let mut guard = enter()?;
        let d = inside(&mut guard)?;
        let nodes = d.execs.get(&(exec as u64)).ok_or(INVALID_VALUE)?.clone();
        let stream = d.id(stream);
        if d.stream(stream)?.capture.is_some() {
            // This device has no child graphs.
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        d.enqueue(stream, Work::Graph(nodes))?;
        after_enqueue(guard)
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) {
        let mut guard = enter()?;
        inside(&mut guard)?.execs.remove(&(exec as u64)).map(|_| ()).ok_or(INVALID_VALUE)
    }
}
