//! Graphs: a sequence of launches, captured from ordinary op calls and replayed with one call.
//!
//! A graph may span several devices. The capture begins on the first one's stream; the others' join it by waiting for an event of it,
//! and it waits for one of each of them at its end. Work captured on a stream runs on that stream's device:
//!
//! ```text
//! first   begin · record fork ·              launches …                 · wait for the joins · end
//! other                         wait for fork · launches … · record join
//! ```
//!
//! A replay is one call on the first stream. It follows what the others have queued, and they follow it.

use super::device::CudaDevice;
use super::event::{CaptureId, Event};
use super::fault::{check, ensure_alive};
use super::stream::{Kept, Stream};
use crate::mutation::{Wait, left_out};
use crate::{Error, Result};
use cust::sys;
use std::sync::RwLockWriteGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{mem, ptr, slice};

/// The work that a capture recorded on a stream, or on one of each of several devices, ready to be launched again as a whole.
///
/// A graph repeats its launches with the addresses they had. It therefore keeps all memory that the capture used:
/// inputs, outputs and temporaries stay where they are, and are nobody else's, until the graph is dropped, whatever
/// becomes of the tensors meanwhile. That includes tensors whose addresses were taken before the capture for a launch in it. To feed a graph, write into its input tensors; a replay overwrites the outputs.
///
/// Memory allocated inside a capture comes from a pool of the graph's own (2 MiB or more), which reuses within the
/// capture what is freed within it.
#[derive(Debug)]
pub struct Graph {
    /// It is launched on the first.
    devices: Vec<CudaDevice>,
    /// Of each: what the others wait for before and after a replay. None for one device.
    fences: Vec<Event>,
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
    devices: &'a [CudaDevice],
    id: CaptureId,
    /// How many streams are in it.
    joined: usize,
    is_over: bool,
    /// No other thread queues anything on the streams meanwhile.
    _locks: Vec<RwLockWriteGuard<'a, ()>>,
}

impl Capture<'_> {
    fn begin(devices: &[CudaDevice]) -> Result<Capture<'_>> {
        let refused = |value: &str, reason: &str| Error::Unsupported {
            op: "Graph::capture",
            argument: "stream",
            value: value.into(),
            reason: reason.into(),
        };
        let Some(first) = devices.first() else {
            return Err(refused("none", "there is no device to launch it"));
        };
        if Stream::is_any_captured() {
            return Err(refused(
                "inside a capture",
                "this thread is capturing; a graph is not captured inside another",
            ));
        }
        // in one order in all threads, so that none waits for another that waits for it
        let mut streams: Vec<&Stream> = devices.iter().map(CudaDevice::stream).collect();
        streams.sort_by_key(|stream| ptr::from_ref(*stream));
        if streams.windows(2).any(|pair| ptr::eq(pair[0], pair[1])) {
            return Err(refused("twice in a list", "each stream is captured once"));
        }
        let locks = streams.into_iter().map(Stream::lock_to_capture).collect();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = Some(NEXT.fetch_add(1, Ordering::Relaxed));
        first.bind()?;
        // Relaxed: the pool may have to ask the driver for memory in between.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        first.stream().begin_capture(id, || {
            // SAFETY: the stream lives and its context is current.
            check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(first.stream().raw(), mode) })
        })?;
        Stream::captured(devices.iter().map(|device| ptr::from_ref(device.stream())).collect());
        let mut capture = Capture { devices, id, joined: 1, is_over: false, _locks: locks };
        for device in &devices[1..] {
            first.bind()?;
            let fork = Event::untimed()?;
            fork.record_in(id, first.stream())?;
            device.bind()?;
            device.stream().begin_capture(id, || device.stream().wait_in(id, &fork))?;
            capture.joined += 1;
        }
        Ok(capture)
    }

    fn end(&mut self) -> (Result<sys::CUgraph>, Vec<Kept>) {
        self.is_over = true;
        let (first, mut all) = (&self.devices[0], Vec::new());
        let mut result = Ok(());
        for device in &self.devices[1..self.joined] {
            let join = || {
                device.bind()?;
                let join = Event::untimed()?;
                join.record_in(self.id, device.stream())?;
                first.bind()?;
                first.stream().wait_in(self.id, &join)
            };
            let (joined, kept) = device.stream().end_capture(join);
            result = result.and(joined);
            all.extend(kept);
        }
        let mut graph = ptr::null_mut();
        let (ended, kept) = first.stream().end_capture(|| {
            first.bind()?;
            let stream = first.stream().raw();
            // SAFETY: the stream lives; `graph` is written before it is used.
            check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(stream, &mut graph) })
        });
        Stream::captured(Vec::new());
        all.extend(kept);
        (result.and(ended).map(|()| graph), all)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.is_over
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
    /// Copies to and from the host, synchronisation and other streams have no place in a capture: they are refused. So is what
    /// would draw another stream into it, such as a copy to a tensor there, as nothing would keep that stream's memory.
    ///
    /// # Errors
    /// The error of `work`; [`Error::Unsupported`] if this thread is capturing already; a driver error.
    pub fn capture<R>(device: &CudaDevice, work: impl FnOnce() -> Result<R>) -> Result<(Self, R)> {
        Self::capture_over(slice::from_ref(device), work)
    }

    /// As [`capture`](Self::capture), of what `work` queues on these handles' streams, in which it may let one wait for
    /// [events](Event) of another. It is launched on the first one's stream.
    ///
    /// # Errors
    /// As there; also for no handles, and for two of one stream.
    pub fn capture_over<R>(devices: &[CudaDevice], work: impl FnOnce() -> Result<R>) -> Result<(Self, R)> {
        let mut capture = Capture::begin(devices)?;
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
        let (devices, running) = (devices.to_vec(), AtomicBool::new(false));
        let mut graph = Self { devices, fences: Vec::new(), exec, nodes, running, kept };
        if graph.devices.len() > 1 {
            for device in &graph.devices {
                device.bind()?;
                graph.fences.push(Event::untimed()?);
            }
        }
        Ok((graph, output))
    }

    /// Queues everything once more on the stream that it was captured on. Of several devices' streams none runs anything beside it.
    ///
    /// # Errors
    /// A driver error; [`Error::Unsupported`] while a stream of it is being captured.
    pub fn launch(&self) -> Result<()> {
        let captured = || Error::Unsupported {
            op: "Graph::launch",
            argument: "stream",
            value: "being captured".into(),
            reason: "a graph is not captured into another".into(),
        };
        let locks: Option<Vec<_>> =
            self.devices.iter().map(|device| device.stream().lock_to_enqueue()).collect();
        let Some(_locks) = locks else { return Err(captured()) };
        let first = self.devices[0].stream(); // a capture has one at least
        for (device, fence) in self.devices.iter().zip(&self.fences).skip(1) {
            device.bind()?;
            fence.record_locked(device.stream())?;
            first.wait_locked(fence)?;
        }
        self.devices[0].bind()?;
        self.running.store(true, Ordering::Relaxed);
        let launched = first.outside_capture(|| {
            // SAFETY: graph and stream live and belong to the current context; the memory that the graph uses is kept.
            let result = unsafe { sys::cuGraphLaunch(self.exec, first.raw()) };
            // a fault of another device is that one's, which its own streams tell
            if result != sys::CUresult::CUDA_SUCCESS && self.devices.len() > 1 {
                self.devices[1..].iter().try_for_each(|device| device.stream().synchronize())?;
                self.devices[0].bind()?;
                first.synchronize()?;
            }
            check("cuGraphLaunch", result)
        })?;
        debug_assert!(launched.is_some(), "no capture is in progress while the lock is held");
        if let Some(fence) = self.fences.first() {
            fence.record_locked(first)?;
            self.devices[1..].iter().try_for_each(|device| device.stream().wait_locked(fence))?;
        }
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
        let first = &self.devices[0];
        let running = self.running.load(Ordering::Relaxed) && !left_out(Wait::GraphEnd);
        if first.bind().is_err() || running && first.stream().synchronize().is_err() {
            if self.devices.len() > 1 {
                mem::forget(mem::take(&mut self.kept)); // what may still run on another device keeps its memory
            }
            return;
        }
        // SAFETY: made by `instantiate`, destroyed once, and no replay runs any more. An error can't be reported here.
        let _ = check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(self.exec) });
    }
}
