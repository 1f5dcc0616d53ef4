//! What is asked about streams, events and captures by functions of newer versions.

use std::cell::Cell;
use std::ffi::{c_int, c_ulonglong, c_void};

use cust_raw::*;

use super::codes::*;
use super::stream::elapsed;
use super::{Answer, Out, api, enter};

thread_local! {
    static CAPTURE_MODE: Cell<c_int> = const { Cell::new(0) };
}

/// Status and number of a stream's capture. This device has no node handles, so graph and dependencies are not given.
fn capture_info(
    stream: CUstream,
    status: Out<c_int>,
    id: Out<cuuint64_t>,
    graph: *mut CUgraph,
    dependencies: [*mut c_void; 2],
    count: *mut usize,
) -> Answer {
    let d = &mut *enter()?;
    let capture = d.stream(d.id(stream))?.capture;
    let Some(capture) = capture else { return status.write(0) };
    if !graph.is_null() || dependencies.iter().any(|to| !to.is_null()) || !count.is_null() {
        crate::refusal::refuse("graph and dependencies of a stream that is being captured");
        return Err(NOT_SUPPORTED);
    }
    id.write_unless_null(capture);
    status.write(1)
}

api! {
    newer

    fn cuStreamGetId(stream: CUstream, id: *mut c_ulonglong => Out<c_ulonglong>) {
        let d = &mut *enter()?;
        let of = d.id(stream);
        d.stream(of)?;
        id.write(of)
    }

    fn cuStreamGetDevice(stream: CUstream, device: *mut CUdevice => Out<CUdevice>) {
        let d = &mut *enter()?;
        let of = d.stream(d.id(stream))?.device;
        device.write(of as CUdevice)
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream, status: *mut c_int => Out<c_int>, id: *mut cuuint64_t => Out<cuuint64_t>, graph: *mut CUgraph,
        dependencies: *mut c_void, count: *mut usize,
    ) {
        capture_info(stream, status, id, graph, [dependencies, std::ptr::null_mut()], count)
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: CUstream, status: *mut c_int => Out<c_int>, id: *mut cuuint64_t => Out<cuuint64_t>, graph: *mut CUgraph,
        dependencies: *mut c_void, edges: *mut c_void, count: *mut usize,
    ) {
        capture_info(stream, status, id, graph, [dependencies, edges], count)
    }

    /// The mode is kept for the caller alone: captures here are as strict as the one that began them asks.
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        if mode.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's.
        let new = unsafe { mode.read() };
        if !(0..=2).contains(&new) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { mode.write(CAPTURE_MODE.replace(new)) };
        Ok(())
    }

    fn cuEventElapsedTime_v2(milliseconds: *mut f32 => Out<f32>, start: CUevent, end: CUevent) {
        elapsed(milliseconds, start, end)
    }
}
