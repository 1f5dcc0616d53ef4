//! What is asked about streams, events and captures by functions of newer versions.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::entry::enter;
use super::stream::elapsed;

thread_local! {
    static CAPTURE_MODE: Cell<c_int> = const { Cell::new(0) };
}

/// Status, number and graph of a stream's capture, and the nodes that its next work follows; none of them has data of its edge.
fn capture_info(
    stream: CUstream,
    status: Out<c_int>,
    [id, graph]: [Out<u64>; 2],
    dependencies: Out<*const u64>,
    count: Out<usize>,
) -> Answer {
    let d = &mut *enter()?;
    let of = d.id(stream);
    let capture = d.stream(of)?.capture;
    let Some((handle, nodes)) = d.capture_of(of)? else { return status.write(0) };
    id.write_unless_null(capture.unwrap_or_default());
    graph.write_unless_null(handle);
    count.write_unless_null(nodes.len());
    dependencies.write_unless_null(nodes.as_ptr());
    status.write(1)
}

/// Bytes of a stream attribute's value.
fn attribute_bytes(attribute: c_uint) -> Result<usize, u32> {
    match attribute {
        1 => Ok(32),         // the window of accesses that L2 keeps
        3 | 8 | 10 => Ok(4), // policy of waits, priority, domain of memory order
        9 => Ok(2),          // map of such domains
        _ => Err(INVALID_VALUE),
    }
}

api! {
    newer

    fn cuStreamGetAttribute(stream: CUstream, attribute: c_uint, value: *mut c_void) {
        let bytes = attribute_bytes(attribute)?;
        let d = &mut *enter()?;
        let s = d.stream(d.id(stream))?;
        let mut own = s.attributes.get(&attribute).copied().unwrap_or_default();
        if attribute == 8 {
            own[..4].copy_from_slice(&s.priority.to_le_bytes());
        }
        if value.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's value of this attribute, which has as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(own.as_ptr(), value.cast(), bytes) };
        Ok(())
    }

    fn cuStreamSetAttribute(stream: CUstream, attribute: c_uint, value: *const c_void) {
        let bytes = attribute_bytes(attribute)?;
        let d = &mut *enter()?;
        let s = d.stream(d.id(stream))?;
        if value.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut new = [0; 32];
        // SAFETY: not null, so the caller's value of this attribute, which has as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(value.cast(), new.as_mut_ptr(), bytes) };
        if attribute == 8 {
            s.priority = i32::from_le_bytes([new[0], new[1], new[2], new[3]]).clamp(-1, 0);
        }
        s.attributes.insert(attribute, new);
        Ok(())
    }

    fn cuStreamCopyAttributes(to: CUstream, from: CUstream) {
        let d = &mut *enter()?;
        let from = d.stream(d.id(from))?;
        let (attributes, priority) = (from.attributes.clone(), from.priority);
        let to = d.stream(d.id(to))?;
        (to.attributes, to.priority) = (attributes, priority);
        Ok(())
    }

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
        stream: CUstream, status: *mut c_int => Out<c_int>, id: *mut cuuint64_t => Out<cuuint64_t>, graph: *mut u64 => Out<u64>,
        dependencies: *mut *const u64 => Out<*const u64>, count: *mut usize => Out<usize>,
    ) {
        capture_info(stream, status, [id, graph], dependencies, count)
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: CUstream, status: *mut c_int => Out<c_int>, id: *mut cuuint64_t => Out<cuuint64_t>, graph: *mut u64 => Out<u64>,
        dependencies: *mut *const u64 => Out<*const u64>, edges: *mut *const c_void => Out<*const c_void>, count: *mut usize => Out<usize>,
    ) {
        edges.write_unless_null(std::ptr::null());
        capture_info(stream, status, [id, graph], dependencies, count)
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
        // SAFETY: not null, so the caller's, who lends it for this call.
        unsafe { mode.write(CAPTURE_MODE.replace(new)) };
        Ok(())
    }

    fn cuEventElapsedTime_v2(milliseconds: *mut f32 => Out<f32>, start: CUevent, end: CUevent) {
        elapsed(milliseconds, start, end)
    }
}
