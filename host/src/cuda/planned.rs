//! Planned devices: which thread plans, and with which devices. `crate::plan` makes plans.

use super::current::forget_current;
use crate::{Error, Result};
use pascaline_driver::planning;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// The ordinals of planned devices begin here. Each has one of its own.
const FIRST: u32 = 1 << 20;

thread_local! {
    /// The ordinals of the plan that this thread makes.
    static PLANNED: RefCell<Option<Range<u32>>> = const { RefCell::new(None) };
    /// Bytes in host memory that only the plan knows.
    static HOST_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The properties of a GPU that decide which kernels run and what memory they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedGpu {
    /// Compute capability, such as (6, 1).
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// The most bytes that its pool may reserve.
    pub memory: usize,
}

/// Exists while the thread plans.
pub(crate) struct Planning {
    ordinals: Range<u32>,
}

impl Planning {
    /// Gives this thread the ordinals of that many devices, which it may use while the result exists. The driver keeps books for the
    /// thread already.
    pub fn begin(devices: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let count = devices as u32;
        let first = FIRST + NEXT.fetch_add(count, Ordering::Relaxed) % (u32::MAX - FIRST - count);
        let ordinals = first..first + count;
        PLANNED.set(Some(ordinals.clone()));
        HOST_BYTES.set(0);
        forget_current();
        Self { ordinals }
    }

    /// The ordinals of its devices.
    pub fn ordinals(&self) -> Range<u32> {
        self.ordinals.clone()
    }

    /// Bytes of weights that would be in host memory.
    pub fn host_bytes(&self) -> usize {
        HOST_BYTES.get()
    }
}

impl Drop for Planning {
    fn drop(&mut self) {
        PLANNED.set(None);
        forget_current();
    }
}

/// Whether this thread plans.
pub(super) fn is_any() -> bool {
    PLANNED.with_borrow(Option::is_some)
}

/// Whether this is the ordinal of a planned device.
pub(super) fn is_planned(ordinal: u32) -> bool {
    ordinal >= FIRST
}

/// Refuses a device that is none of the plan in progress.
pub(super) fn check(ordinal: Option<u32>, call: &'static str) -> Result<()> {
    let reason = PLANNED.with_borrow(|planned| match (planned, ordinal) {
        (_, None) => None,
        (Some(own), Some(ordinal)) if own.contains(&ordinal) => None,
        (Some(_), _) => Some("a plan is made, which has devices of its own"),
        (None, _) => Some("its plan is over"),
    });
    reason.map_or(Ok(()), |reason| Err(refused(call, reason)))
}

/// Makes a device of the plan current.
pub(super) fn make_current(ordinal: u32) -> Result<()> {
    check(Some(ordinal), "cuCtxSetCurrent")?;
    let first = PLANNED.with_borrow(|planned| planned.as_ref().map_or(ordinal, |own| own.start));
    planning::make_current((ordinal - first) as usize);
    Ok(())
}

/// Counts weights that would be in host memory.
pub(crate) fn count_host_bytes(bytes: usize) {
    HOST_BYTES.set(HOST_BYTES.get() + bytes);
}

pub(crate) fn refused(op: &'static str, reason: &str) -> Error {
    let (argument, value) = ("device", "a planned GPU".to_owned());
    Error::Unsupported { op, argument, value, reason: reason.to_owned() }
}
