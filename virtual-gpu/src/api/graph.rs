//! Stream capture and graphs: captured work and nodes made one by one are the same nodes.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::sync::Arc;

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::engine::after_enqueue;
use super::entry::enter;
use super::work::Graph;

/// Flags of instantiation: memory is freed at the next launch, upload, and the nodes' priorities, which have no effect here.
const KNOWN_FLAGS: u64 = 1 | 2 | 8;

pub(super) fn instantiate(exec: Out<CUgraphExec>, graph: CUgraph, flags: u64) -> Answer {
    // a graph that kernels launch can't free memory at its launches
    if flags & !KNOWN_FLAGS & !4 != 0 || flags & 5 == 5 {
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
        d.collect_graph_memory();
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
        let exec = Arc::clone(d.execs.get(&(exec as u64)).ok_or(INVALID_VALUE)?);
        d.upload_graph(&exec)
    }

    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) {
        let mut guard = enter()?;
        let d = &mut *guard;
        let exec = Arc::clone(d.execs.get(&(exec as u64)).ok_or(INVALID_VALUE)?);
        let stream = d.id(stream);
        if d.stream(stream)?.capture.is_some() {
            // This device captures no child graphs.
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        d.launch_graph(exec, stream)?;
        after_enqueue(guard)
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) {
        let d = &mut *enter()?;
        let exec = d.execs.remove(&(exec as u64)).ok_or(INVALID_VALUE)?;
        if Arc::strong_count(&exec) == 1 {
            d.remove_lanes(&exec); // otherwise they are removed when it has run
        }
        drop(exec);
        d.collect_graph_memory();
        Ok(())
    }
}
