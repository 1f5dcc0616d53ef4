//! Ctrl-C in commands that write for minutes: it leaves no unfinished file behind.

use super::failure::Failure;
use super::interrupt;
use super::output::complain;
use super::parts;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{fs, process, thread};

/// How often Ctrl-C is looked for.
const ASKS: Duration = Duration::from_millis(20);
/// The exit status of a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// From here on Ctrl-C removes what is not complete and ends the program.
pub(super) fn leave_none() -> Result<(), Failure> {
    let interrupted = interrupt::flag()?;
    let watch = move || {
        while !interrupted.load(Ordering::Relaxed) {
            thread::sleep(ASKS);
        }
        let mut parts = parts::hold(); // to the end, so that none is created meanwhile
        for part in parts.drain(..) {
            let _ = fs::remove_file(part); // it may have its name by now, or be gone
        }
        complain("\ninterrupted; nothing unfinished is left, and the same command begins anew");
        process::exit(INTERRUPTED);
    };
    let started = thread::Builder::new().name("Ctrl-C".to_owned()).spawn(watch);
    started.map(drop).map_err(|error| Failure::Failed(format!("Ctrl-C can't be handled: {error}")))
}
