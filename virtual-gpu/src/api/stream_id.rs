//! How streams are numbered.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::MAX_DEVICES;

pub(super) type StreamId = u64;
/// The legacy default stream of a device has the device's number. No handle is so small.
pub(super) fn is_null(id: StreamId) -> bool {
    id < MAX_DEVICES as u64
}

/// Marks a thread's own default stream on a device, whose number is in the lowest byte and the thread's above it.
const PER_THREAD: StreamId = 1 << 62;

pub(super) fn is_per_thread(id: StreamId) -> bool {
    id & PER_THREAD != 0 && id >> 63 == 0
}

thread_local! {
    /// Whether the call that this thread makes takes a null stream for the thread's own default stream.
    pub(super) static NULL_IS_PER_THREAD: Cell<bool> = const { Cell::new(false) };
    static THREAD_NUMBER: u64 = {
        static THREADS: AtomicU64 = AtomicU64::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed)
    };
}

/// The calling thread's own default stream on a device.
pub(super) fn own_stream(device: usize) -> StreamId {
    PER_THREAD | THREAD_NUMBER.with(|number| number << 8) | device as u64
}

/// Work number `n` of a stream.
pub(super) type Mark = (StreamId, u64);
