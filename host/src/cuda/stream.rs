//! Streams: queues of GPU work, and the locks that keep them consistent while one is captured.

use super::counters::Counters;
use super::device::{bind_ordinal, current};
use super::{Event, alive_on, check, check_on, ensure_alive};
use crate::Result;
use cust::sys;
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How many counters a stream has for its kernels.
pub(crate) const COUNTERS: usize = Counters::LEN;

/// A queue of GPU work. Non-blocking: it does not wait for the legacy default stream.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    /// Its device.
    ordinal: Option<u32>,
    /// The objects that the capture in progress keeps alive, by address.
    capture: Mutex<Option<HashMap<usize, Kept>>>,
    /// Held for reading by who queues work, for writing by a capture: what other threads queue meanwhile waits for its end
    /// and does not become a part of the graph.
    turns: RwLock<()>,
    counters: Counters,
    /// Whether another library made it and destroys it.
    is_foreign: bool,
}

thread_local! {
    /// The streams that this thread captures.
    static CAPTURED: RefCell<Vec<*const Stream>> = const { RefCell::new(Vec::new()) };
}

/// Something that lives as long as a graph that uses it.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

// SAFETY: the driver API lets any thread use a stream; the handle is only a name for it.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver serialises calls on one stream.
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
                // SAFETY: created above, and nothing else names it. The first error is the one to report.
                let _ = check("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(raw) });
                return Err(error);
            }
        };
        Ok(Self::of(raw, counters, false))
    }

    /// A stream of another library, in the current context.
    ///
    /// # Safety
    /// `raw` is a stream of that context that lives as long as this.
    pub(crate) unsafe fn foreign(raw: sys::CUstream) -> Result<Self> {
        ensure_alive("a stream of another library")?;
        let counters = Counters::new(raw)?;
        Ok(Self::of(raw, counters, true))
    }

    fn of(raw: sys::CUstream, counters: Counters, is_foreign: bool) -> Self {
        let (capture, turns) = (Mutex::new(None), RwLock::new(()));
        Self { raw, ordinal: current(), capture, turns, counters, is_foreign }
    }

    /// The driver's handle.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Words of device memory that are zero when a kernel on this stream begins and that it leaves so; [`COUNTERS`] of them.
    pub(crate) fn counters(&self) -> u64 {
        self.counters.address()
    }

    /// Waits for all work queued so far, and reports any error it had.
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost) if a kernel faulted.
    pub fn synchronize(&self) -> Result<()> {
        // a wait reports faults of the device that is current, which so must be the stream's own
        bind_ordinal(self.ordinal)?;
        // SAFETY: the stream lives as long as `self`.
        check_on(self.ordinal, "cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Lets work queued from now on wait for `event`, which may be of another device.
    ///
    /// # Errors
    /// A driver error.
    pub fn wait(&self, event: &Event) -> Result<()> {
        alive_on(self.ordinal, "cuStreamWaitEvent")?;
        event.ensure_alive("cuStreamWaitEvent")?;
        // SAFETY: both handles live; the driver keeps what it needs of the event.
        check_on(self.ordinal, "cuStreamWaitEvent", unsafe {
            sys::cuStreamWaitEvent(self.raw, event.raw(), 0)
        })
    }
}

/// Capture into a graph: the state that the driver does not keep.
impl Stream {
    /// Whether what this thread queues on it is being captured into a graph rather than run.
    pub fn is_capturing(&self) -> bool {
        CAPTURED.with_borrow(|captured| captured.iter().any(|&one| ptr::eq(one, self)))
    }

    /// Leave to queue work: while it is held no capture begins, and one on another thread is waited for. `None` on the
    /// thread that captures. Not to be asked for again by its holder.
    pub(crate) fn turn(&self) -> Option<RwLockReadGuard<'_, ()>> {
        (!self.is_capturing()).then(|| self.turns.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does `work` with a [`turn`](Self::turn). An event recorded while another thread captures the stream would belong to the
    /// capture, and what waits for it would fail.
    pub(crate) fn in_turn<R>(&self, work: impl FnOnce(&Self) -> R) -> R {
        let _turn = self.turn();
        work(self)
    }

    /// Leave to capture, as [`turn`](Self::turn).
    pub(super) fn turn_to_capture(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        (!self.is_capturing()).then(|| self.turns.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn kept(&self) -> MutexGuard<'_, Option<HashMap<usize, Kept>>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` if the stream is not being captured, and lets no capture begin meanwhile.
    pub(crate) fn outside_capture<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<Option<R>> {
        let kept = self.kept();
        if kept.is_some() { Ok(None) } else { work().map(Some) }
    }

    /// Begins a capture by `begin`, with [`turn_to_capture`](Self::turn_to_capture) held. It is this thread's with
    /// [`captured`](Self::captured).
    pub(super) fn begin_capture(&self, begin: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut kept = self.kept();
        begin()?;
        *kept = Some(HashMap::new());
        Ok(())
    }

    /// From now on this thread captures these streams, which live until it captures others; gives those before.
    pub(super) fn captured(streams: Vec<*const Self>) -> Vec<*const Self> {
        CAPTURED.replace(streams)
    }

    /// Ends the capture by `end`; gives what it kept alive.
    pub(super) fn end_capture(&self, end: impl FnOnce() -> Result<()>) -> (Result<()>, Vec<Kept>) {
        let mut kept = self.kept();
        let result = end();
        (result, kept.take().unwrap_or_default().into_values().collect())
    }

    /// Lets the graph that is being captured keep something alive. Without a capture nothing happens.
    pub(crate) fn keep(&self, thing: &Kept) {
        if let Some(kept) = &mut *self.kept() {
            kept.entry(Arc::as_ptr(thing).addr()).or_insert_with(|| Arc::clone(thing));
        }
    }

    /// The objects of this type that the capture in progress keeps.
    pub(crate) fn kept_of<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let kept = self.kept();
        let thing = kept.as_ref()?.values().find(|thing| thing.is::<T>())?;
        Arc::clone(thing).downcast().ok()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_foreign && alive_on(self.ordinal, "cuStreamDestroy").is_ok() {
            // SAFETY: created by `new` and destroyed once; the driver finishes queued work first. An error can't be
            // reported from a drop; a fault of the device is remembered by `check_on`.
            let _ = check_on(self.ordinal, "cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(self.raw) });
        }
    }
}
