//! The nodes of graphs: added one by one, captured from streams, copied, and made ready to launch.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::Arc;

use cust_raw::CUstream;

use super::codes::*;
use super::state::{Capture, Driver, Stream};
use super::stream_id::{StreamId, is_null};
use super::work::{Exec, Graph, Node, Work};

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
        let graph_of = self.graphs.get(&graph).filter(|graph| !graph.has_memory());
        let mut clone = graph_of.ok_or(INVALID_VALUE)?.clone();
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
        for of in self.graph_allocations.values_mut() {
            of.freed_by.remove(&graph);
        }
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
    pub(super) fn end_capture(&mut self, id: StreamId) -> Result<u64, u32> {
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
        let is_own = |node: &Node| graph_and_number(node.handle).is_ok_and(|(of, _)| of == graph);
        if self.execs.values().flat_map(|exec| &exec.nodes).any(|node| node.is_of_memory() && is_own(node)) {
            return Err(INVALID_VALUE); // memory at one address is one executable graph's
        }
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

    pub(super) fn remove_lanes(&mut self, exec: &Exec) {
        exec.lanes.values().for_each(|lane| drop(self.streams.remove(lane)));
    }
}
