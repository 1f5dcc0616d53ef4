//! Device and pinned memory, copies, memset, pointer attributes.

use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use cust_raw::*;

use super::call::{Out, api, write_out};
use super::codes::*;
use super::engine::{after_enqueue, run_until};
use super::entry::enter;
use super::state::{Driver, Guard};
use super::stream_id::Mark;
use super::work::{Place, Work};
use crate::finding::{self, Finding, FindingKind};
use crate::memory::{Allocation, Kind, device_of};

/// Waits for a mark and returns its device's fault, if there is one.
pub(super) fn wait(guard: Guard, mark: Mark) -> Answer {
    let mut guard = run_until(guard, |d| d.done(mark))?;
    let d = &mut *guard;
    d.observe(mark);
    d.fault_of(d.device_of_stream(mark.0))
}

fn no_capture(d: &Driver) -> Answer {
    if d.captures.values().any(|c| !c.relaxed) { Err(STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

/// Checks a device range named in a call: it must be in one allocation, live or queued.
pub(super) fn device_range(d: &Driver, at: u64, bytes: u64) -> Answer {
    d.holder(at).memory.locate(at, bytes).map(|_| ()).map_err(memory_code)
}

/// Checks that a device may touch an address: its own memory or the host's, or a peer's. Anything else is a finding.
fn reachable(d: &Driver, device: usize, at: u64, what: &str) -> Answer {
    let Some(owner) = device_of(at).filter(|&owner| owner != device) else { return Ok(()) };
    if d.devices[device].peers.contains(&owner) {
        return Ok(());
    }
    let message = format!(
        "0x{at:x} is memory of device {owner}, named in a call for device {device}, which has no peer access to it"
    );
    wrong_device(what, message);
    Err(INVALID_VALUE)
}

/// Reports a pointer to memory of the wrong device.
pub(super) fn wrong_device(what: &str, message: String) {
    finding::report(Finding::new(FindingKind::WrongDevice, what, message));
}

/// Makes page-locked memory known to all devices.
fn share(d: &Driver, allocation: &Arc<Allocation>) {
    d.devices.iter().for_each(|device| device.gpu.memory.share(allocation));
}

/// Takes page-locked memory away from all devices.
fn withdraw(d: &Driver, base: u64, kind: Kind) -> Result<(), u32> {
    let each = d.devices.iter().map(|device| device.gpu.memory.remove(base, kind).map_err(memory_code));
    each.fold(Ok(()), Result::and)
}

/// The memory that a unified address names.
pub(super) fn place(d: &Driver, address: u64) -> Place {
    if d.holder(address).memory.locate(address, 1).is_ok() || address >= 1 << 48 {
        Place::Device(address)
    } else {
        Place::Host(address as usize)
    }
}

pub(super) struct Copy {
    pub dst: Place,
    pub src: Place,
    pub width: u64,
    pub rows: u64,
    pub dst_pitch: u64,
    pub src_pitch: u64,
    /// `cuMemcpyPeer`, which names both devices and needs no peer access: without it the driver copies through host memory.
    pub between: bool,
    pub of_array: bool,
}

impl Copy {
    /// As `cuMemcpyPeer` makes it.
    pub(super) fn between(dst: u64, src: u64, bytes: u64) -> Self {
        Self { between: true, ..Self::plain(Place::Device(dst), Place::Device(src), bytes) }
    }

    fn plain(dst: Place, src: Place, bytes: u64) -> Self {
        Self {
            dst,
            src,
            width: bytes,
            rows: 1,
            dst_pitch: bytes,
            src_pitch: bytes,
            between: false,
            of_array: false,
        }
    }

    pub fn work(self) -> Work {
        let Self { dst, src, width, rows, dst_pitch, src_pitch, .. } = self;
        Work::Copy { dst, src, width, rows, dst_pitch, src_pitch }
    }
}

/// Checks the places of a copy for a device. Pinned host memory becomes a place that is read and written when the copy runs, as by
/// the hardware.
pub(super) fn check_places(d: &Driver, device: usize, c: &mut Copy) -> Answer {
    for (side, pitch) in [(&mut c.dst, c.dst_pitch), (&mut c.src, c.src_pitch)] {
        let bytes = pitch * (c.rows - 1) + c.width;
        match *side {
            Place::Device(at) => {
                device_range(d, at, bytes)?;
                if !c.between {
                    reachable(d, device, at, "memcpy")?;
                }
            }
            Place::Host(0) => return Err(INVALID_VALUE),
            Place::Host(p) if d.pinned(p as u64, bytes) => *side = Place::Device(p as u64),
            _ => {}
        }
    }
    Ok(())
}

/// The answer to a copy of an array that would be a node of a graph.
pub(super) fn no_node_of_array() -> u32 {
    crate::refusal::refuse("a copy of an array in a graph");
    NOT_SUPPORTED
}

/// Queues a copy, and waits for it if `synchronous`.
pub(super) fn copy(mut guard: Guard, stream: CUstream, c: Copy, synchronous: bool) -> Answer {
    let d = &mut *guard;
    let stream = d.id(stream);
    let device = d.device_of_stream(stream);
    if c.width == 0 || c.rows == 0 {
        return d.stream(stream).map(|_| ());
    }
    let mut c = c;
    let mut blocks = synchronous;
    check_places(d, device, &mut c)?;
    let capturing = d.stream(stream)?.capture.is_some();
    if capturing && c.of_array {
        return Err(no_node_of_array());
    }
    if synchronous {
        no_capture(d)?;
    } else if !capturing {
        // Pageable memory: the driver reads the source before it returns, and waits for the destination.
        if let Place::Host(p) = c.src {
            let bytes = (c.src_pitch * (c.rows - 1) + c.width) as usize;
            // SAFETY: the caller promised the driver API that the source is valid for these bytes.
            c.src = Place::Bytes(unsafe { std::slice::from_raw_parts(p as *const u8, bytes) }.into());
        }
        blocks |= matches!(c.dst, Place::Host(_));
    }
    let mark = d.enqueue(stream, c.work())?;
    if blocks && !capturing { wait(guard, mark) } else { after_enqueue(guard) }
}

/// Queues a copy between unified addresses.
pub(super) fn copy_async(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) -> Answer {
    let guard = enter()?;
    let c = Copy::plain(place(&guard, dst), place(&guard, src), bytes as u64);
    copy(guard, stream, c, false)
}

/// As [`set`] on the null stream; it waits where the memory is the host's, as the driver does.
pub(super) fn set_at_once(at: u64, value: u64, size: u8, count: usize) -> Answer {
    let null = std::ptr::null_mut();
    set(enter()?, null, at, value, size, count)?;
    let mut guard = enter()?;
    let d = &mut *guard;
    if !d.pinned(at, 1) {
        return Ok(());
    }
    let id = d.id(null);
    let mark = (id, d.stream(id)?.queued);
    wait(guard, mark)
}

/// The work that sets memory from a device; `None` if there are no bytes to set.
pub(super) fn set_work(
    d: &Driver,
    device: usize,
    at: u64,
    value: u64,
    size: u8,
    count: usize,
) -> Result<Option<Work>, u32> {
    let Some(bytes) = (count as u64).checked_mul(size as u64) else { return Err(INVALID_VALUE) };
    if !at.is_multiple_of(size as u64) {
        return Err(INVALID_VALUE);
    }
    if count == 0 {
        return Ok(None);
    }
    device_range(d, at, bytes)?;
    if let Some(owner) = device_of(at).filter(|&owner| owner != device) {
        wrong_device("memset", format!("0x{at:x} is memory of device {owner}, set on a stream of another"));
        return Err(INVALID_VALUE);
    }
    Ok(Some(Work::Set { at, value, size, count: count as u64 }))
}

pub(super) fn set(mut guard: Guard, stream: CUstream, at: u64, value: u64, size: u8, count: usize) -> Answer {
    let d = &mut *guard;
    let stream = d.id(stream);
    let Some(work) = set_work(d, d.device_of_stream(stream), at, value, size, count)? else { return Ok(()) };
    d.enqueue(stream, work)?;
    after_enqueue(guard)
}

/// Page-locked host memory, known to all devices.
pub(super) fn allocate_pinned(d: &mut Driver, bytes: usize) -> Result<u64, u32> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let track = d.ordered() && d.gpu().config().checks.uninitialized;
    let a = d.gpu().memory.insert_pinned(bytes as u64, track).map_err(memory_code)?;
    share(d, &a);
    Ok(a.base)
}

fn alloc_pinned(out: Out<*mut c_void>, bytes: usize) -> Answer {
    let at = allocate_pinned(&mut *enter()?, bytes)?;
    out.write(at as *mut c_void)
}

/// Memory of the current device.
pub(super) fn allocate(d: &mut Driver, bytes: usize) -> Result<u64, u32> {
    no_capture(d)?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let at = d.gpu().memory.alloc(bytes as u64).map_err(memory_code)?;
    d.note_peak(d.current);
    Ok(at)
}

/// Writes an attribute of a pointer, by its number.
pub(super) fn pointer_attribute(d: &mut Driver, data: *mut c_void, attr: c_int, ptr: CUdeviceptr) -> Answer {
    let a = d.holder(ptr).memory.locate(ptr, 1).map_err(memory_code)?;
    let managed = d.managed.contains(&a.base);
    let device = a.kind == Kind::Device;
    let owner = device_of(ptr).unwrap_or(d.current);
    let context = match d.devices[owner].primary {
        0 => super::entry::current(),
        primary => primary,
    };
    // SAFETY: the caller's pointer is null or valid; the type of each attribute is the one its documentation gives.
    unsafe {
        match attr {
            1 => write_out(data.cast::<u64>(), context),
            2 => write_out(data.cast::<c_uint>(), if device || managed { 2 } else { 1 }),
            3 => write_out(data.cast::<u64>(), ptr),
            4 if !device => write_out(data.cast::<u64>(), ptr),
            7 => write_out(data.cast::<u64>(), a.base),
            8 => write_out(data.cast::<c_uint>(), managed as c_uint),
            9 => write_out(data.cast::<c_int>(), owner as c_int),
            11 => write_out(data.cast::<u64>(), a.base),
            12 => write_out(data.cast::<usize>(), a.size as usize),
            13 => write_out(data.cast::<c_uint>(), 1),
            17 => write_out(data.cast::<u64>(), d.pool_of.get(&a.base).copied().unwrap_or(0)),
            4 => Err(INVALID_VALUE),
            _ => Err(NOT_SUPPORTED),
        }
    }
}

api! {
    fn cuMemAlloc_v2(ptr: *mut CUdeviceptr => Out<CUdeviceptr>, bytes: usize) {
        let at = allocate(&mut *enter()?, bytes)?;
        ptr.write(at)
    }

    /// Waits for the whole device first, as the driver does.
    fn cuMemFree_v2(ptr: CUdeviceptr) {
        let mut guard = enter()?;
        if ptr == 0 {
            return Ok(());
        }
        let d = &mut *guard;
        no_capture(d)?;
        if d.managed.remove(&ptr) {
            let guard = run_until(guard, Driver::idle)?;
            return withdraw(&guard, ptr, Kind::Pinned);
        }
        let device = d.current;
        let of_graph = d.graph_allocations.get(&ptr).is_some_and(|of| of.device == device);
        if of_graph && let Some(answer) = d.free_graph_allocation(ptr) {
            answer?;
        }
        let mut guard = run_until(guard, |d| d.is_idle(device))?;
        let d = &mut *guard;
        d.observe_device(device);
        if of_graph {
            d.graph_allocations.get(&ptr).inspect(|of| of.allocation.end());
            d.collect_graph_memory();
            return d.fault_of(device);
        }
        // only the current device's memory: a pointer of another is unknown to it
        let memory = &d.devices[device].gpu.memory;
        let bytes = memory.locate(ptr, 1).map_or(0, |a| a.size);
        memory.free(ptr).map_err(memory_code)?;
        d.forget_pooled(ptr, bytes);
        d.fault_of(device)
    }

    fn cuMemGetInfo_v2(free: *mut usize => Out<usize>, total: *mut usize => Out<usize>) {
        let d = &mut *enter()?;
        let (f, t) = (d.free_memory() as usize, d.gpu().memory.limit() as usize);
        free.write(f)?;
        total.write(t)
    }

    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr => Out<CUdeviceptr>, size: *mut usize => Out<usize>, ptr: CUdeviceptr) {
        let a = enter()?.holder(ptr).memory.locate(ptr, 1).map_err(|_| NOT_FOUND)?;
        base.write_unless_null(a.base);
        size.write_unless_null(a.size as usize);
        Ok(())
    }

    fn cuMemAllocHost_v2(ptr: *mut *mut c_void => Out<*mut c_void>, bytes: usize) {
        alloc_pinned(ptr, bytes)
    }

    /// All flags are accepted: this memory is portable and mapped in any case.
    fn cuMemHostAlloc(ptr: *mut *mut c_void => Out<*mut c_void>, bytes: usize, flags: c_uint) {
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        alloc_pinned(ptr, bytes)
    }

    /// Waits for all devices first: any of them may use the memory.
    fn cuMemFreeHost(ptr: *mut c_void) {
        let guard = enter()?;
        let guard = run_until(guard, Driver::idle)?;
        withdraw(&guard, ptr as u64, Kind::Pinned)
    }

    fn cuMemHostRegister_v2(ptr: *mut c_void, bytes: usize, flags: c_uint) {
        let mut guard = enter()?;
        let Some(p) = NonNull::new(ptr.cast::<u8>()) else { return Err(INVALID_VALUE) };
        if bytes == 0 || flags > 15 {
            return Err(INVALID_VALUE);
        }
        let d = &mut *guard;
        // SAFETY: the caller promised the driver API that the range stays valid until it is unregistered.
        let a = unsafe { d.gpu().memory.register(p, bytes as u64) };
        share(d, &a.map_err(|_| HOST_MEMORY_ALREADY_REGISTERED)?);
        Ok(())
    }

    fn cuMemHostUnregister(ptr: *mut c_void) {
        let guard = enter()?;
        let guard = run_until(guard, Driver::idle)?;
        withdraw(&guard, ptr as u64, Kind::Registered).map_err(|_| HOST_MEMORY_NOT_REGISTERED)
    }

    fn cuMemHostGetDevicePointer_v2(out: *mut CUdeviceptr => Out<CUdeviceptr>, ptr: *mut c_void, flags: c_uint) {
        if flags != 0 || !enter()?.pinned(ptr as u64, 1) {
            return Err(INVALID_VALUE);
        }
        out.write(ptr as u64)
    }

    fn cuMemHostGetFlags(flags: *mut c_uint => Out<c_uint>, ptr: *mut c_void) {
        if !enter()?.pinned(ptr as u64, 1) {
            return Err(INVALID_VALUE);
        }
        // Portable and mapped.
        flags.write(3)
    }

    fn cuPointerGetAttribute(data: *mut c_void, attr: CUpointer_attribute => c_int, ptr: CUdeviceptr) {
        pointer_attribute(&mut *enter()?, data, attr, ptr)
    }

    fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize) {
        let c = Copy::plain(Place::Device(dst), Place::Host(src as usize), bytes as u64);
        copy(enter()?, std::ptr::null_mut(), c, true)
    }

    fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize) {
        let c = Copy::plain(Place::Host(dst as usize), Place::Device(src), bytes as u64);
        copy(enter()?, std::ptr::null_mut(), c, true)
    }

    /// Between device buffers the driver does not wait, so neither does this.
    fn cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) {
        copy(enter()?, std::ptr::null_mut(), Copy::plain(Place::Device(dst), Place::Device(src), bytes as u64), false)
    }

    fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) {
        let mut guard = enter()?;
        let d = &mut *guard;
        let c = Copy::plain(place(d, dst), place(d, src), bytes as u64);
        copy(guard, std::ptr::null_mut(), c, true)
    }

    fn cuMemcpyHtoDAsync_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize, stream: CUstream) {
        let c = Copy::plain(Place::Device(dst), Place::Host(src as usize), bytes as u64);
        copy(enter()?, stream, c, false)
    }

    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize, stream: CUstream) {
        let c = Copy::plain(Place::Host(dst as usize), Place::Device(src), bytes as u64);
        copy(enter()?, stream, c, false)
    }

    fn cuMemcpyDtoDAsync_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy(enter()?, stream, Copy::plain(Place::Device(dst), Place::Device(src), bytes as u64), false)
    }

    fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy_async(dst, src, bytes, stream)
    }

    fn cuMemsetD8_v2(dst: CUdeviceptr, value: c_uchar, n: usize) {
        set_at_once(dst, value as u64, 1, n)
    }

    fn cuMemsetD16_v2(dst: CUdeviceptr, value: c_ushort, n: usize) {
        set_at_once(dst, value as u64, 2, n)
    }

    fn cuMemsetD32_v2(dst: CUdeviceptr, value: c_uint, n: usize) {
        set_at_once(dst, value as u64, 4, n)
    }

    fn cuMemsetD8Async(dst: CUdeviceptr, value: c_uchar, n: usize, stream: CUstream) {
        set(enter()?, stream, dst, value as u64, 1, n)
    }

    fn cuMemsetD16Async(dst: CUdeviceptr, value: c_ushort, n: usize, stream: CUstream) {
        set(enter()?, stream, dst, value as u64, 2, n)
    }

    fn cuMemsetD32Async(dst: CUdeviceptr, value: c_uint, n: usize, stream: CUstream) {
        set(enter()?, stream, dst, value as u64, 4, n)
    }
}
