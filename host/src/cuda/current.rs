//! The device whose context is current on this thread.

use std::cell::Cell;

thread_local! {
    /// The ordinal of the device whose context is current on this thread.
    static CURRENT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Call this after another library may have made another device current on this thread: the next use of a device then binds
/// its context again.
pub fn forget_current() {
    CURRENT.set(None);
}

/// The ordinal of the device whose context was last made current on this thread.
pub(super) fn current() -> Option<u32> {
    CURRENT.get()
}

/// Remembers that this device's context is current on this thread.
pub(super) fn set_current(ordinal: u32) {
    CURRENT.set(Some(ordinal));
}
