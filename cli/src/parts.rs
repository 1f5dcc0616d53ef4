//! Files that are being written, and Ctrl-C, which leaves none of them behind.

use qwen3_vl::files::part_in;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tempfile::NamedTempFile;

/// The temporary files of this process. One that has its name is no longer under this one.
static PARTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A temporary file in this folder.
pub(super) fn create(folder: &Path) -> io::Result<NamedTempFile> {
    let mut parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
    let part = part_in(folder)?;
    parts.push(part.path().to_owned());
    Ok(part)
}

/// Ctrl-C in commands that write for minutes.
#[cfg(feature = "convert")]
mod watch {
    use super::PARTS;
    use crate::failure::Failure;
    use crate::interrupt;
    use crate::output::complain;
    use std::sync::PoisonError;
    use std::sync::atomic::Ordering;
    use std::time::Duration;
    use std::{fs, process, thread};

    /// How often Ctrl-C is looked for.
    const ASKS: Duration = Duration::from_millis(20);
    /// The exit status of a program that Ctrl-C has ended.
    const INTERRUPTED: i32 = 130;

    /// From here on Ctrl-C removes what is not complete and ends the program.
    pub fn leave_none() -> Result<(), Failure> {
        let interrupted = interrupt::flag()?;
        let watch = move || {
            while !interrupted.load(Ordering::Relaxed) {
                thread::sleep(ASKS);
            }
            // held to the end, so that none is created meanwhile
            let mut parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
            for part in parts.drain(..) {
                let _ = fs::remove_file(part); // it may have its name by now, or be gone
            }
            complain("\ninterrupted; nothing unfinished is left, and the same command begins anew");
            process::exit(INTERRUPTED);
        };
        let started = thread::Builder::new().name("Ctrl-C".to_owned()).spawn(watch);
        started.map(drop).map_err(|error| Failure::Failed(format!("Ctrl-C can't be handled: {error}")))
    }
}

#[cfg(feature = "convert")]
pub(super) use watch::leave_none;
