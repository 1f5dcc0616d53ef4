//! The files that are being written under temporary names.

use qwen3_vl::files::part_in;
use std::io;
use std::path::{Path, PathBuf};
#[cfg(feature = "convert")]
use std::sync::MutexGuard;
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

/// The temporary files; none is created while they are held.
#[cfg(feature = "convert")]
pub(super) fn hold() -> MutexGuard<'static, Vec<PathBuf>> {
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}
