//! Streams that write 32 or 64 bits of memory, and that wait until such a value compares with another.

use std::ffi::c_uint;

use cust_raw::*;

use super::call::api;
use super::codes::*;
use super::engine::after_enqueue;
use super::entry::enter;
use super::memory::set_work;
use super::state::Driver;
use super::stream_id::StreamId;
use super::work::Work;
use crate::refusal::refuse;

/// `CU_STREAM_WAIT_VALUE_FLUSH`, for writes from other devices of the bus.
const FLUSH: c_uint = 1 << 30;

/// `CUstreamBatchMemOpParams`: 48 bytes.
#[repr(C)]
struct Operation {
    kind: c_uint,
    address: u64,
    value: u64,
    flags: c_uint,
    alias: u64,
    rest: u64,
}

const _: () = assert!(size_of::<Operation>() == 48);

/// Whether a value lets a stream go on.
fn passes(now: u64, value: u64, size: u8, flags: c_uint) -> bool {
    let mask = u64::MAX >> (64 - 8 * u32::from(size));
    match flags & !FLUSH {
        0 if size == 4 => (now as i32).wrapping_sub(value as i32) >= 0,
        0 => (now as i64).wrapping_sub(value as i64) >= 0,
        1 => now == value,
        2 => now & value != 0,
        _ => !(now | value) & mask != 0,
    }
}

impl Driver {
    /// Whether work may run now, but for what it follows.
    pub(super) fn may_run(&self, work: &Work) -> bool {
        let &Work::WaitValue { at, value, size, flags } = work else { return true };
        let Ok(a) = self.holder(at).memory.locate(at, size.into()) else { return true }; // it fails when it runs
        let from = a.host(at);
        // SAFETY: the bytes were located, and are aligned. The host may write page-locked memory meanwhile, as it may on hardware.
        let now = unsafe {
            if size == 4 {
                from.cast::<u32>().read_volatile().into()
            } else {
                from.cast::<u64>().read_volatile()
            }
        };
        passes(now, value, size, flags)
    }

    fn mem_op(&mut self, id: StreamId, op: u32, at: u64, value: u64, flags: c_uint) -> Answer {
        if self.stream(id)?.capture.is_some() {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        let size = if matches!(op, 1 | 2) { 4u8 } else { 8 };
        let value = if size == 4 { u64::from(value as u32) } else { value };
        let device = self.device_of_stream(id);
        // the same checks of the address for both
        let set = set_work(self, device, at, value, size, 1)?.ok_or(INVALID_VALUE)?;
        let work = match op {
            1 | 4 if flags & !FLUSH <= 3 => Work::WaitValue { at, value, size, flags },
            2 | 5 if flags <= 1 => set,
            _ => return Err(INVALID_VALUE),
        };
        self.enqueue(id, work).map(|_| ())
    }
}

/// Queues one operation, by its number in `CUstreamBatchMemOpType`.
fn queue(stream: CUstream, op: u32, at: u64, value: u64, flags: c_uint) -> Answer {
    let mut guard = enter()?;
    let id = guard.id(stream);
    guard.mem_op(id, op, at, value, flags)?;
    after_enqueue(guard)
}

api! {
    newer

    fn cuStreamWaitValue32_v2(stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint) {
        queue(stream, 1, at, value.into(), flags)
    }

    fn cuStreamWriteValue32_v2(stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint) {
        queue(stream, 2, at, value.into(), flags)
    }

    fn cuStreamWaitValue64_v2(stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint) {
        queue(stream, 4, at, value, flags)
    }

    fn cuStreamWriteValue64_v2(stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint) {
        queue(stream, 5, at, value, flags)
    }

    fn cuStreamWaitValue32(stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint) {
        queue(stream, 1, at, value.into(), flags)
    }

    fn cuStreamWriteValue32(stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint) {
        queue(stream, 2, at, value.into(), flags)
    }

    fn cuStreamWaitValue64(stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint) {
        queue(stream, 4, at, value, flags)
    }

    fn cuStreamWriteValue64(stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint) {
        queue(stream, 5, at, value, flags)
    }

    /// Flushes of writes from other devices of the bus have nothing to do here.
    fn cuStreamBatchMemOp_v2(stream: CUstream, count: c_uint, operations: *const Operation, flags: c_uint) {
        if flags != 0 || operations.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut guard = enter()?;
        let id = guard.id(stream);
        for i in 0..count as usize {
            // SAFETY: not null, so the caller's list, which has `count` entries.
            let operation = unsafe { &*operations.add(i) };
            match operation.kind {
                1 | 2 | 4 | 5 => {
                    guard.mem_op(id, operation.kind, operation.address, operation.value, operation.flags)?;
                }
                3 => {}
                kind => {
                    refuse(&format!("an operation of type {kind} in cuStreamBatchMemOp"));
                    return Err(NOT_SUPPORTED);
                }
            }
        }
        after_enqueue(guard)
    }
}
