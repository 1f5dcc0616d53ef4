//! Streams: queues of GPU work, and the locks that keep them consistent while one is captured.

use super::context::bind_ordinal;
use super::counters::Counters;
use super::current::current;
use super::event::{CaptureId, Event};
use super::fault::{alive_on, check, check_on, ensure_alive};
use crate::{Error, Result};
use cust::sys;
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Number of counters that a stream has for its kernels.
pub(crate) const COUNTERS: usize = Counters::LEN;

/// A queue of GPU work. Non-blocking: it does not wait for the legacy default stream.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    /// The device's ordinal.
    ordinal: Option<u32>,
    capture: Mutex<Option<Captured>>,
    /// Read-locked by threads that queue work, write-locked by a capture. Work of other threads waits until the capture
    /// ends, and does not become part of the graph.
    enqueue_lock: RwLock<()>,
    counters: Counters,
    /// Whether another library created it and will destroy it.
    is_foreign: bool,
}

/// The capture in progress on a stream.
#[derive(Debug)]
struct Captured {
    id: CaptureId,
    /// The objects that it keeps alive, by address.
    kept: HashMap<usize, Kept>,
}

thread_local! {
    /// The streams that this thread is capturing.
    static CAPTURED: RefCell<Vec<*const Stream>> = const { RefCell::new(Vec::new()) };
}

/// An object that lives as long as a graph that uses it.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

// SAFETY: the driver API lets any thread use a stream, and the handle owns no memory of this process.
unsafe impl Send for Stream {}
// SAFETY: the driver serialises calls on one stream, and what is beside its handle has locks.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream in the current context.
    pub(crate) fn new() -> Result<Self> {
        ensure_alive("cuStreamCreate")?;
        let mut raw = ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the caller has made a context current; `raw` is written before it is used.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        let counters = match Counters::new(raw) {
            Ok(counters) => counters,
            Err(error) => {
                // SAFETY: created above, and no other handle of it exists. The first error is the one to report.
                let _ = check("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(raw) });
                return Err(error);
            }
        };
        Ok(Self::wrap(raw, counters, false))
    }

    /// A stream of another library, in the current context.
    ///
    /// # Safety
    /// `raw` is a stream of that context that lives as long as this.
    pub(crate) unsafe fn foreign(raw: sys::CUstream) -> Result<Self> {
        ensure_alive("a stream of another library")?;
        let counters = Counters::new(raw)?;
        Ok(Self::wrap(raw, counters, true))
    }

    fn wrap(raw: sys::CUstream, counters: Counters, is_foreign: bool) -> Self {
        let (capture, enqueue_lock) = (Mutex::new(None), RwLock::new(()));
        Self { raw, ordinal: current(), capture, enqueue_lock, counters, is_foreign }
    }

    /// The driver's handle.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// [`COUNTERS`] words of device memory that are zero when a kernel on this stream begins, and that the kernel resets to
    /// zero.
    pub(crate) fn counters(&self) -> u64 {
        self.counters.address()
    }

    /// Waits for all work queued so far, and reports any error it had.
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost) if a kernel faulted.
    pub fn synchronize(&self) -> Result<()> {
        // a wait reports faults of the current device, so the stream's device must be current
        bind_ordinal(self.ordinal)?;
        // SAFETY: the stream lives as long as `self`.
        check_on(self.ordinal, "cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Work queued from now on waits for `event`, which may be of another device. If another thread is capturing the stream,
    /// waits for the end of the capture first.
    ///
    /// # Errors
    /// [`Unsupported`](crate::Error::Unsupported) if one of the two is part of a capture that the other is not part of; a driver
    /// error.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _lock = self.lock_to_enqueue();
        self.wait_locked(event)
    }

    /// As [`wait`](Self::wait), with the stream's lock to enqueue held.
    pub(crate) fn wait_locked(&self, event: &Event) -> Result<()> {
        self.wait_in(self.capture_id(), event)
    }

    /// As [`wait`](Self::wait), for the capture that is known to be in progress on the stream.
    pub(crate) fn wait_in(&self, capture: CaptureId, event: &Event) -> Result<()> {
        alive_on(self.ordinal, "cuStreamWaitEvent")?;
        event.wait_in(capture, |event| {
            // SAFETY: both handles are alive, because both are borrowed; the driver copies what it needs of the event.
            let result = unsafe { sys::cuStreamWaitEvent(self.raw, event, 0) };
            check_on(self.ordinal, "cuStreamWaitEvent", result)
        })
    }
}

impl Event {
    /// Records the event after all work queued on `stream` so far. If another thread is capturing the stream, waits for the end
    /// of the capture first.
    ///
    /// # Errors
    /// A driver error.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let _lock = stream.lock_to_enqueue();
        self.record_locked(stream)
    }

    /// As [`record`](Self::record), with the stream's lock to enqueue held.
    pub(crate) fn record_locked(&self, stream: &Stream) -> Result<()> {
        self.record_in(stream.capture_id(), stream)
    }

    /// As [`record`](Self::record), for the capture that is known to be in progress on the stream.
    pub(crate) fn record_in(&self, capture: CaptureId, stream: &Stream) -> Result<()> {
        // SAFETY: both handles are alive, because both are borrowed.
        self.recorded_in(capture, |event| unsafe { sys::cuEventRecord(event, stream.raw()) })
    }
}

/// Capture into a graph: the state that the driver does not keep.
impl Stream {
    /// Whether work that this thread queues is captured into a graph and not run.
    pub fn is_capturing(&self) -> bool {
        CAPTURED.with_borrow(|captured| captured.iter().any(|&one| ptr::eq(one, self)))
    }

    /// The lock for queueing work. While it is held no capture begins; a capture on another thread is waited for. `None` on
    /// the thread that captures. The holder must not take it again.
    pub(crate) fn lock_to_enqueue(&self) -> Option<RwLockReadGuard<'_, ()>> {
        (!self.is_capturing()).then(|| self.enqueue_lock.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lock for queueing a copy to or from the host, which waits for the stream: a captured stream can't be waited for.
    pub(crate) fn lock_to_copy(&self, op: &'static str) -> Result<RwLockReadGuard<'_, ()>> {
        self.lock_to_enqueue().ok_or_else(|| Error::Unsupported {
            op,
            argument: "stream",
            value: "being captured into a graph".to_owned(),
            reason: "a graph holds no copies to or from the host; do them before or after".into(),
        })
    }

    /// The lock for capturing; see [`lock_to_enqueue`](Self::lock_to_enqueue).
    /// The thread captures nothing yet.
    pub(super) fn lock_to_capture(&self) -> RwLockWriteGuard<'_, ()> {
        self.enqueue_lock.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn capture(&self) -> MutexGuard<'_, Option<Captured>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The capture in progress, which is this thread's if the lock to enqueue is held.
    pub(super) fn capture_id(&self) -> CaptureId {
        self.capture().as_ref().and_then(|capture| capture.id)
    }

    /// Runs `work` if the stream is not being captured, and prevents captures until it returns.
    pub(crate) fn outside_capture<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<Option<R>> {
        let capture = self.capture();
        if capture.is_some() { Ok(None) } else { work().map(Some) }
    }

    /// Begins a capture by `begin`, with [`lock_to_capture`](Self::lock_to_capture) held. [`captured`](Self::captured) then makes
    /// it this thread's.
    pub(super) fn begin_capture(&self, id: CaptureId, begin: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut capture = self.capture();
        begin()?;
        *capture = Some(Captured { id, kept: HashMap::new() });
        Ok(())
    }

    /// From now on this thread captures these streams, which live until it captures others.
    pub(super) fn captured(streams: Vec<*const Self>) {
        CAPTURED.set(streams);
    }

    /// Whether this thread is capturing any stream.
    pub(super) fn is_any_captured() -> bool {
        CAPTURED.with_borrow(|captured| !captured.is_empty())
    }

    /// Ends the capture by `end`. Returns the objects that it kept alive.
    pub(super) fn end_capture(&self, end: impl FnOnce() -> Result<()>) -> (Result<()>, Vec<Kept>) {
        let mut capture = self.capture();
        let result = end();
        let kept = capture.take().into_iter().flat_map(|capture| capture.kept.into_values());
        (result, kept.collect())
    }

    /// Keeps an object alive with the graph that is being captured. Without a capture it does nothing.
    pub(crate) fn keep(&self, thing: &Kept) {
        if let Some(capture) = &mut *self.capture() {
            capture.kept.entry(Arc::as_ptr(thing).addr()).or_insert_with(|| Arc::clone(thing));
        }
    }

    /// The objects of this type that the current capture keeps alive.
    pub(crate) fn kept_of<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let capture = self.capture();
        let thing = capture.as_ref()?.kept.values().find(|thing| thing.is::<T>())?;
        Arc::clone(thing).downcast().ok()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_foreign && alive_on(self.ordinal, "cuStreamDestroy").is_ok() {
            // SAFETY: created by `new` and destroyed once; the driver finishes queued work first. An error can't be reported
            // from a drop; `check_on` records a fault of the device.
            let _ = check_on(self.ordinal, "cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(self.raw) });
        }
    }
}
