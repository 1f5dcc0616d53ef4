//! Ctrl-C, as a flag that commands look at.

use super::failure::Failure;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag that Ctrl-C sets from now on. A second Ctrl-C ends the program, for work that does not check the flag.
pub(super) fn flag() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    handle(&flag).map_err(|error| Failure::Failed(format!("Ctrl-C can't be handled: {error}")))?;
    Ok(flag)
}

#[cfg(not(windows))]
fn handle(flag: &Arc<AtomicBool>) -> std::io::Result<()> {
    use signal_hook::consts::SIGINT;
    // in this order, so that the first Ctrl-C does not find the flag that it sets itself
    signal_hook::flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(flag))?;
    signal_hook::flag::register(SIGINT, Arc::clone(flag))?;
    Ok(())
}

/// Uses the console's own events: the C library's signals do not have all of them, and Wine's lack some more.
#[cfg(windows)]
fn handle(flag: &Arc<AtomicBool>) -> Result<(), ctrlc::Error> {
    use std::sync::atomic::Ordering;
    let flag = Arc::clone(flag);
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
}
