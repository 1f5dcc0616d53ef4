//! Events: points in a stream, to wait for and to measure time between.

use super::context::bind_ordinal;
use super::current::current;
use super::fault::{alive_on, check, check_on, ensure_alive};
use crate::{Error, Result};
use cust::sys;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    /// The device's ordinal.
    ordinal: Option<u32>,
    /// The capture that its last record is part of. Locked while it is recorded or a stream is made to wait for it.
    capture: Mutex<CaptureId>,
}

/// The number of a capture in this process; `None` outside of captures.
pub(super) type CaptureId = Option<u64>;

// SAFETY: the driver API lets any thread use an event, and the handle owns no memory of this process.
unsafe impl Send for Event {}
// SAFETY: the driver serialises calls on one event, and `capture` has a lock.
unsafe impl Sync for Event {}

impl Event {
    /// A new event with timing, in the current context.
    pub(crate) fn new() -> Result<Self> {
        Self::with_flags(sys::CUevent_flags_enum::CU_EVENT_DEFAULT as u32)
    }

    /// A new event without timing, which is cheaper, in the current context.
    pub(crate) fn untimed() -> Result<Self> {
        Self::with_flags(sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32)
    }

    fn with_flags(flags: u32) -> Result<Self> {
        ensure_alive("cuEventCreate")?;
        let mut raw = ptr::null_mut();
        // SAFETY: the caller has made a context current; `raw` is written before it is used.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, flags) })?;
        Ok(Self { raw, ordinal: current(), capture: Mutex::new(None) })
    }

    /// A wait reports faults of the current device, so the event's device must be current.
    fn bind_to_wait(&self) -> Result<()> {
        bind_ordinal(self.ordinal)
    }

    /// The driver's handle.
    pub fn raw(&self) -> sys::CUevent {
        self.raw
    }

    /// Calls `record` to record the event in a stream that this capture is in progress on.
    pub(super) fn recorded_in(
        &self,
        capture: CaptureId,
        record: impl FnOnce(sys::CUevent) -> sys::CUresult,
    ) -> Result<()> {
        alive_on(self.ordinal, "cuEventRecord")?;
        let mut recorded_in = self.capture.lock().unwrap_or_else(PoisonError::into_inner);
        check_on(self.ordinal, "cuEventRecord", record(self.raw))?;
        *recorded_in = capture;
        Ok(())
    }

    /// Calls `wait` to make a stream wait for the event, unless that would draw the stream into a capture, or is a wait for an
    /// event outside the capture that is in progress on the stream.
    pub(super) fn wait_in(
        &self,
        capture: CaptureId,
        wait: impl FnOnce(sys::CUevent) -> Result<()>,
    ) -> Result<()> {
        alive_on(self.ordinal, "cuStreamWaitEvent")?;
        let recorded_in = self.capture.lock().unwrap_or_else(PoisonError::into_inner);
        if *recorded_in == capture {
            return wait(self.raw);
        }
        let (value, reason) = match *recorded_in {
            Some(_) => (
                "recorded in a capture",
                "it would draw the stream into a graph that does not keep its memory; capture both streams by `Graph::capture_over`",
            ),
            None => ("recorded outside the capture", "a graph waits for nothing outside it"),
        };
        let (op, argument) = ("Stream::wait", "event");
        Err(Error::Unsupported { op, argument, value: value.into(), reason: reason.into() })
    }

    /// Waits until the event has been reached.
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost) if a kernel faulted.
    pub fn synchronize(&self) -> Result<()> {
        self.bind_to_wait()?;
        // SAFETY: the event lives as long as `self`.
        check_on(self.ordinal, "cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// Whether the event has been reached; also true if it was never recorded.
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost) if a kernel faulted.
    pub fn is_done(&self) -> Result<bool> {
        self.bind_to_wait()?;
        // SAFETY: the event lives as long as `self`.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check_on(self.ordinal, "cuEventQuery", result).map(|()| true),
        }
    }

    /// GPU time from `earlier` to this event; both must have been reached.
    ///
    /// # Errors
    /// A driver error, also if one of them was never recorded.
    pub fn since(&self, earlier: &Event) -> Result<Duration> {
        self.bind_to_wait()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: both handles are alive, because both are borrowed; `milliseconds` is written before it is used.
        let result = unsafe { sys::cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw) };
        check_on(self.ordinal, "cuEventElapsedTime", result)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if alive_on(self.ordinal, "cuEventDestroy").is_ok() {
            // SAFETY: created by `new` and destroyed once. An error can't be reported from a drop.
            let _ = check_on(self.ordinal, "cuEventDestroy", unsafe { sys::cuEventDestroy_v2(self.raw) });
        }
    }
}
