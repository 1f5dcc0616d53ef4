//! Whether the driver is initialised, the calling thread's contexts, and the entry of an API function.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use super::codes::*;
use super::state::{Guard, lock};

static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread's stack of contexts; the last one is current, 0 means none.
    pub(super) static CONTEXTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's current context, 0 if none.
pub(super) fn current() -> u64 {
    CONTEXTS.with_borrow(|c| c.last().copied().unwrap_or(0))
}

pub(super) fn forget_contexts() {
    CONTEXTS.with_borrow_mut(Vec::clear);
}

pub(super) fn initialised() {
    INITIALISED.store(true, Ordering::Release);
}

/// The driver, if `cuInit` was called.
pub(super) fn guard() -> Result<Guard, u32> {
    if INITIALISED.load(Ordering::Acquire) { lock() } else { Err(NOT_INITIALIZED) }
}

pub(super) fn make_current(context: u64) {
    CONTEXTS.with_borrow_mut(|c| {
        c.pop();
        if context != 0 {
            c.push(context);
        }
    });
}

/// The device, if it is initialised, has a current context and no fault.
pub(super) fn enter() -> Result<Guard, u32> {
    let guard = enter_faulted()?;
    guard.fault_of(guard.current)?;
    Ok(guard)
}

/// As [`enter`], also after a fault.
pub(super) fn enter_faulted() -> Result<Guard, u32> {
    let mut guard = guard()?;
    let context = current();
    if context == 0 {
        return Err(INVALID_CONTEXT);
    }
    // calls that need a context report one that was destroyed
    guard.current = guard.contexts.get(&context).map_or(0, |context| context.device);
    Ok(guard)
}
