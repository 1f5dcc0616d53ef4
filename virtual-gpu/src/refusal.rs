//! What the driver API refuses because this device lacks it, for whoever wants to know.

use std::sync::OnceLock;

static OBSERVER: OnceLock<fn(&str)> = OnceLock::new();

/// From now on calls `observer` with each refusal: what was refused and why. A second observer is ignored. It must not call the
/// driver API.
pub fn on_refusal(observer: fn(&str)) {
    let _ = OBSERVER.set(observer);
}

/// Notes a refusal; `what` names the function.
pub(crate) fn refuse(what: &str) {
    OBSERVER.get().iter().for_each(|observer| observer(what));
}
