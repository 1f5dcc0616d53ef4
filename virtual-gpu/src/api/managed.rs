//! Managed memory, which is page-locked host memory here, hints about where memory lies, and batches of copies.

use std::ffi::{c_int, c_uint, c_void};

use cust_raw::*;

use super::call::{Out, api, write_out};
use super::codes::*;
use super::entry::enter;
use super::memory::{allocate_pinned, copy_async, pointer_attribute};
use super::state::Driver;
use crate::memory::device_of;

/// `CUmemLocation`, by value
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// Checks the range of a hint: managed memory, or memory of a device.
fn check_range(d: &Driver, at: u64, bytes: usize) -> Answer {
    let a = d.holder(at).memory.locate(at, bytes as u64).map_err(|_| INVALID_VALUE)?;
    if d.managed.contains(&a.base) { Ok(()) } else { Err(INVALID_VALUE) }
}

fn prefetch(at: CUdeviceptr, bytes: usize, stream: CUstream) -> Answer {
    let d = &mut *enter()?;
    d.stream(d.id(stream))?;
    check_range(d, at, bytes)
}

/// The lists of a batch of copies: where to, where from, and bytes.
type Batch = (*const CUdeviceptr, *const CUdeviceptr, *const usize);

/// Copies of a batch in the order of a stream; what their attributes say about locations and access is a hint.
///
/// # Safety
/// Each list is null or has `count` entries.
unsafe fn copy_batch((to, from, bytes): Batch, count: usize, stream: CUstream) -> Answer {
    if count == 0 || to.is_null() || from.is_null() || bytes.is_null() {
        return Err(INVALID_VALUE);
    }
    for i in 0..count {
        // SAFETY: not null, so there are `count` entries.
        let (to, from, bytes) = unsafe { (to.add(i).read(), from.add(i).read(), bytes.add(i).read()) };
        copy_async(to, from, bytes, stream)?;
    }
    Ok(())
}

api! {
    newer

    fn cuMemcpyBatchAsync(
        to: *const CUdeviceptr, from: *const CUdeviceptr, bytes: *const usize, count: usize, _attributes: *const c_void,
        _starts: *const usize, _kinds: usize, _failed: *mut usize, stream: CUstream,
    ) {
        // SAFETY: the caller promised the driver API lists of `count` entries.
        unsafe { copy_batch((to, from, bytes), count, stream) }
    }

    fn cuMemcpyBatchAsync_v2(
        to: *const CUdeviceptr, from: *const CUdeviceptr, bytes: *const usize, count: usize, _attributes: *const c_void,
        _starts: *const usize, _kinds: usize, stream: CUstream,
    ) {
        // SAFETY: the caller promised the driver API lists of `count` entries.
        unsafe { copy_batch((to, from, bytes), count, stream) }
    }

    fn cuMemAllocManaged(ptr: *mut CUdeviceptr => Out<CUdeviceptr>, bytes: usize, flags: c_uint) {
        if !matches!(flags, 1 | 2) {
            return Err(INVALID_VALUE);
        }
        let d = &mut *enter()?;
        let at = allocate_pinned(d, bytes)?;
        d.managed.insert(at);
        ptr.write(at)
    }

    fn cuMemPrefetchAsync(at: CUdeviceptr, bytes: usize, _device: CUdevice, stream: CUstream) {
        prefetch(at, bytes, stream)
    }

    fn cuMemPrefetchAsync_v2(at: CUdeviceptr, bytes: usize, _location: Location, _flags: c_uint, stream: CUstream) {
        prefetch(at, bytes, stream)
    }

    fn cuMemAdvise(at: CUdeviceptr, bytes: usize, advice: c_int, _device: CUdevice) {
        if !(1..=6).contains(&advice) {
            return Err(INVALID_VALUE);
        }
        check_range(&*enter()?, at, bytes)
    }

    fn cuMemAdvise_v2(at: CUdeviceptr, bytes: usize, advice: c_int, _location: Location) {
        if !(1..=6).contains(&advice) {
            return Err(INVALID_VALUE);
        }
        check_range(&*enter()?, at, bytes)
    }

    /// Attributes of a pointer that is not the driver's are zero.
    fn cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, data: *mut *mut c_void, ptr: CUdeviceptr) {
        let d = &mut *enter()?;
        if attributes.is_null() || data.is_null() {
            return Err(INVALID_VALUE);
        }
        for i in 0..count as usize {
            // SAFETY: the caller's arrays have `count` entries.
            let (attribute, to) = unsafe { (attributes.add(i).read(), data.add(i).read()) };
            if pointer_attribute(d, to, attribute, ptr).is_ok() {
                continue;
            }
            let nothing = match attribute {
                9 => -2, // no device
                _ => 0,
            };
            // SAFETY: the caller's pointer is null or valid; the type of each attribute is the one its documentation gives.
            unsafe {
                match attribute {
                    2 | 6 | 8 | 9 | 10 | 13 | 14 | 15 | 16 | 18 => write_out(to.cast::<c_int>(), nothing)?,
                    1 | 3 | 4 | 7 | 11 | 12 | 17 => write_out(to.cast::<u64>(), 0)?,
                    _ => return Err(INVALID_VALUE),
                }
            }
        }
        Ok(())
    }

    /// All work is as strict as `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` asks.
    fn cuPointerSetAttribute(value: *const c_void, attribute: c_int, ptr: CUdeviceptr) {
        let d = &mut *enter()?;
        if value.is_null() || attribute != 6 || device_of(ptr).is_none() {
            return Err(INVALID_VALUE);
        }
        d.holder(ptr).memory.locate(ptr, 1).map(|_| ()).map_err(|_| INVALID_VALUE)
    }
}
