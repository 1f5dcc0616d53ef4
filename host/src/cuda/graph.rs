//! Graphs: a sequence of launches, captured from ordinary op calls and replayed with one call.

use super::stream::{Kept, Stream};
use super::{CudaDevice, check, ensure_alive};
use crate::mutation::{Wait, left_out};
use crate::{Error, Result};
use cust::sys;
use std::ptr;
use std::sync::RwLockWriteGuard;
use std::sync::atomic::{AtomicBool, Ordering};

/// The work that a capture recorded on a stream, ready to be launched again as a whole.
///
/// A graph repeats its launches with the addresses they had. It therefore keeps all memory that the capture used:
/// inputs, outputs and temporaries stay where they are, and are nobody else's, until the graph is dropped, whatever
/// becomes of the tensors meanwhile. To feed a graph, write into its input tensors; a replay overwrites the outputs.
///
/// Memory allocated inside a capture comes from a pool of the graph's own (2 MiB or more), which reuses within the
/// capture what is freed within it.
#[derive(Debug)]
pub struct Graph {
    device: CudaDevice,
    exec: sys::CUgraphExec,
    nodes: usize,
    /// Whether a replay may still be running.
    running: AtomicBool,
    /// The memory. Freed after `drop` has waited for the last replay.
    kept: Vec<Kept>,
}

// SAFETY: the driver API lets any thread use a graph; the handle is only a name for it.
unsafe impl Send for Graph {}
// SAFETY: launches of one executable graph must not be concurrent calls; they are on one stream, whose `capture` lock
// `launch` holds.
unsafe impl Sync for Graph {}

/// A capture in progress. Ends it if the work panics.
struct Capture<'a> {
    device: &'a CudaDevice,
    /// The capture of this thread outside of this one.
    outer: *const Stream,
    /// No other thread queues anything on the stream meanwhile.
    _turn: RwLockWriteGuard<'a, ()>,
}

impl Capture<'_> {
    fn begin(device: &CudaDevice) -> Result<Capture<'_>> {
        device.bind()?;
        // Relaxed: the pool may have to ask the driver for memory in between.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let Some(turn) = device.stream().turn_to_capture() else {
            return Err(Error::Unsupported {
                op: "Graph::capture",
                argument: "stream",
                value: "being captured".into(),
                reason: "a capture is in progress on it; use a handle with a stream of its own".into(),
            });
        };
        let outer = device.stream().begin_capture(|| {
            // SAFETY: the stream lives and its context is current.
            check("cuStreamBeginCapture", unsafe {
                sys::cuStreamBeginCapture_v2(device.stream().raw(), mode)
            })
        })?;
        Ok(Capture { device, outer, _turn: turn })
    }

    fn end(&self) -> (Result<sys::CUgraph>, Vec<Kept>) {
        let mut graph = ptr::null_mut();
        let (result, kept) = self.device.stream().end_capture(self.outer, || {
            self.device.bind()?;
            let stream = self.device.stream().raw();
            // SAFETY: the stream lives; `graph` is written before it is used.
            check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(stream, &mut graph) })
        });
        (result.map(|()| graph), kept)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.device.stream().is_capturing()
            && let (Ok(graph), _) = self.end()
        {
            destroy(graph);
        }
    }
}

fn destroy(graph: sys::CUgraph) {
    if !graph.is_null() && ensure_alive("cuGraphDestroy").is_ok() {
        // SAFETY: made by a capture and destroyed once. An error can't be reported from here.
        let _ = check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) });
    }
}

impl Graph {
    /// Captures what `work` queues on this handle's stream; nothing of it runs now. Gives the graph and what `work`
    /// returned, whose tensors have undefined contents before the first replay. Other threads that queue on the
    /// stream wait meanwhile, so `work` must not wait for them.
    ///
    /// Copies to and from the host, synchronisation and other streams have no place in a capture: they are refused,
    /// and the capture fails.
    ///
    /// # Errors
    /// The error of `work`; [`Error::Unsupported`] if a capture is in progress on the stream; a driver error.
    pub fn capture<R>(device: &CudaDevice, work: impl FnOnce() -> Result<R>) -> Result<(Self, R)> {
        let capture = Capture::begin(device)?;
        let output = work();
        let (graph, kept) = capture.end();
        let output = match (output, &graph) {
            (Ok(output), _) => output,
            (Err(error), Ok(graph)) => {
                destroy(*graph);
                return Err(error);
            }
            (Err(error), Err(_)) => return Err(error),
        };
        let graph = graph?;
        let result = instantiate(graph);
        destroy(graph);
        let (exec, nodes) = result?;
        Ok((Self { device: device.clone(), exec, nodes, running: AtomicBool::new(false), kept }, output))
    }

    /// Queues everything once more on the stream that it was captured on.
    ///
    /// # Errors
    /// A driver error; [`Error::Unsupported`] while that stream is being captured.
    pub fn launch(&self) -> Result<()> {
        self.device.bind()?;
        self.running.store(true, Ordering::Relaxed);
        let stream = self.device.stream();
        let Some(_turn) = stream.turn() else {
            return Err(Error::Unsupported {
                op: "Graph::launch",
                argument: "stream",
                value: "being captured".into(),
                reason: "a graph is not captured into another".into(),
            });
        };
        let launched = stream.outside_capture(|| {
            // SAFETY: graph and stream live and belong to the current context; the memory that the graph uses is kept.
            check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.exec, stream.raw()) })
        })?;
        debug_assert!(launched.is_some(), "no capture is in progress while a turn is held");
        Ok(())
    }

    /// How many launches, copies and fills it holds.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// How many pieces of memory it keeps: buffers from outside, and its own pool if it has one.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }
}

fn instantiate(graph: sys::CUgraph) -> Result<(sys::CUgraphExec, usize)> {
    let mut nodes = 0;
    // SAFETY: the graph lives; without an array only the number is written.
    let result = unsafe { sys::cuGraphGetNodes(graph, ptr::null_mut(), &mut nodes) };
    check("cuGraphGetNodes", result)?;
    let mut exec = ptr::null_mut();
    // SAFETY: the graph lives; `exec` is written before it is used. No log is asked for.
    let result = unsafe { sys::cuGraphInstantiate_v2(&mut exec, graph, ptr::null_mut(), ptr::null_mut(), 0) };
    check("cuGraphInstantiate", result)?;
    Ok((exec, nodes))
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.bind().is_err() {
            return;
        }
        let running = self.running.load(Ordering::Relaxed) && !left_out(Wait::GraphEnd);
        if running && self.device.stream().synchronize().is_err() {
            return; // what may still run is not taken from under it
        }
        // SAFETY: made by `instantiate`, destroyed once, and no replay runs any more. An error can't be reported here.
        let _ = check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(self.exec) });
    }
}
