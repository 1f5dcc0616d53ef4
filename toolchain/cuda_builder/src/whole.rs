//! Files that other builds may be reading while they are written.

use std::path::Path;
use std::{fs, io};

/// Writes a file whole at once. One with the same text is left as it is: a new modification time would have all compiled again.
///
/// # Errors
/// The file system's.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let partial = path.with_extension(format!("{}", std::process::id()));
    fs::write(&partial, text)?;
    fs::rename(&partial, path)
}
