//! Streams.

use super::{Event, check, ensure_alive, is_lost};
use crate::Result;
use cust::sys;
use std::ptr;

/// A queue of GPU work. Non-blocking: it does not wait for the legacy default stream.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
}

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
        Ok(Self { raw })
    }

    /// The driver's handle.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Waits for all work queued so far, and reports any error it had.
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost) if a kernel faulted.
    pub fn synchronize(&self) -> Result<()> {
        ensure_alive("cuStreamSynchronize")?;
        // SAFETY: the stream lives as long as `self`.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Lets work queued from now on wait for `event`.
    ///
    /// # Errors
    /// A driver error.
    pub fn wait(&self, event: &Event) -> Result<()> {
        ensure_alive("cuStreamWaitEvent")?;
        // SAFETY: both handles live; the driver keeps what it needs of the event.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.raw(), 0) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !is_lost() {
            // SAFETY: created by `new` and destroyed once; the driver finishes queued work first. An error can't be
            // reported from a drop, and the next call reports a sticky one.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}
