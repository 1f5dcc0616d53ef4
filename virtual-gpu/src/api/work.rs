//! The work that streams and the nodes of graphs hold.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use super::resource::Bound;
use super::stream_id::StreamId;
use crate::exec::{LaunchLimits, LoadedModule};
use crate::memory::{Allocation, Memory};
use crate::reports::LaunchKey;

/// A host function to call in stream order.
pub(super) enum Callback {
    Host(unsafe extern "C" fn(*mut c_void)),
    Stream(unsafe extern "C" fn(cust_raw::CUstream, cust_raw::CUresult, *mut c_void)),
}

/// Host or device memory named in a copy.
#[derive(Clone)]
pub(super) enum Place {
    /// A device address, or a host address that the device can reach.
    Device(u64),
    /// Pageable host memory.
    Host(usize),
    /// Host bytes taken when the copy was queued.
    Bytes(Arc<[u8]>),
}

#[derive(Clone)]
pub(super) enum Work {
    Launch(Arc<KernelLaunch>),
    /// Rows of `width` bytes at the two pitches.
    Copy {
        dst: Place,
        src: Place,
        width: u64,
        rows: u64,
        dst_pitch: u64,
        src_pitch: u64,
    },
    Set {
        at: u64,
        value: u64,
        size: u8,
        count: u64,
    },
    /// Makes a stream-ordered allocation usable.
    Alloc(Arc<Allocation>),
    Free {
        base: u64,
    },
    /// A graph's allocation begins to live, and ends.
    GraphAlloc(Arc<Allocation>),
    GraphFree {
        base: u64,
    },
    Record(u64),
    /// Only waits.
    Wait,
    /// Waits until the 4 or 8 bytes at an address compare with a value as the flags of `cuStreamWaitValue32` say.
    WaitValue {
        at: u64,
        value: u64,
        size: u8,
        flags: u32,
    },
    Call {
        function: Arc<Callback>,
        stream: StreamId,
        data: usize,
    },
    Graph(Arc<Exec>),
}

pub(super) struct KernelLaunch {
    /// The handle of the function or the library's kernel.
    pub function: u64,
    pub module: Arc<LoadedModule>,
    pub kernel: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub params: Vec<u8>,
    pub registers: u32,
    /// Whether its blocks may wait for each other.
    pub cooperative: bool,
    /// What was bound to the module's references when it was queued.
    pub references: Vec<Bound>,
    /// Those of its context when it was queued or made a node.
    pub limits: LaunchLimits,
}

impl KernelLaunch {
    /// All that a launch's counts depend on, except the contents and the addresses of its memory.
    pub fn without_addresses(&self, memory: &Memory) -> LaunchKey {
        let mut params = self.params.clone();
        let kernel = self.module.module.kernel(&self.kernel);
        for p in kernel.iter().flat_map(|k| &k.params) {
            let bytes = &mut params[p.offset as usize..][..p.bytes as usize];
            for word in bytes.chunks_exact_mut(8) {
                let address = word.iter().rev().fold(0, |high, &byte| high << 8 | u64::from(byte));
                if memory.locate(address, 1).is_ok() {
                    word.fill(0xff);
                }
            }
        }
        LaunchKey {
            kernel: self.kernel.clone(),
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            params,
        }
    }
}

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
    pub lane: u64,
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
    pub next: usize,
    /// Whether it belongs to a node of another graph.
    pub is_child: bool,
    /// The graph that it was copied from.
    pub of: Option<u64>,
}

impl Node {
    /// Whether it allocates or frees memory.
    pub fn is_of_memory(&self) -> bool {
        matches!(self.work.first(), Some(Work::GraphAlloc(_) | Work::GraphFree { .. }))
    }
}

impl Graph {
    /// Whether it has nodes that allocate or free memory: then it is not copied, and loses no nodes and edges.
    pub fn has_memory(&self) -> bool {
        self.nodes.values().any(Node::is_of_memory)
    }
}

/// A graph that can be launched: its nodes, and those of its child graphs.
#[derive(Clone)]
pub(super) struct Exec {
    pub id: u64,
    pub flags: u64,
    pub nodes: Vec<Node>,
    /// For a graph over several devices: for each lane, the stream that its nodes run on. Each has a clock of its own, as
    /// nodes of different lanes are ordered by edges alone. Empty for a graph of one device.
    pub lanes: BTreeMap<u64, StreamId>,
}
