//! Ctrl-C, as a flag.

use super::failure::Failure;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag that Ctrl-C sets from now on. One that finds it set ends the program, as work that does not look at it can't be
/// ended otherwise.
pub(super) fn flag() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    handle(&flag).map_err(|error| Failure::Failed(format!("Ctrl-C can't be handled: {error}")))?;
    Ok(flag)
}

#[cfg(not(windows))]
fn handle(flag: &Arc<AtomicBool>) -> std::io::Result<()> {
    use signal_hook::consts::SIGINT;
    // in this order: the first Ctrl-C must not find the flag that it sets
    signal_hook::flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(flag))?;
    signal_hook::flag::register(SIGINT, Arc::clone(flag))?;
    Ok(())
}

/// By the console itself: the C library's signals know nothing of the console's other events, and Wine's lack a part of them.
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
