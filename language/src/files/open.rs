//! Opens regular files alone: a pipe, a device or a socket could block for ever, or never end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file, also through links. Anything else is refused and not waited for.
///
/// # Errors
/// Those of opening it; [`io::ErrorKind::IsADirectory`]; [`io::ErrorKind::InvalidInput`] for pipes, devices and sockets.
pub fn open_regular(file: &Path) -> io::Result<File> {
    let open = open(file)?;
    // asked of the open file: the name could meanwhile stand for another
    let kind = open.metadata()?;
    match (kind.is_file(), kind.is_dir()) {
        (true, _) => Ok(open),
        (_, true) => Err(io::ErrorKind::IsADirectory.into()),
        _ => Err(not_regular()),
    }
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not an ordinary file")
}

/// Without waiting for a pipe's writer, and without making a terminal this process's own.
#[cfg(unix)]
fn open(file: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(file);
    // sockets can't be opened at all
    opened.map_err(|error| if error.raw_os_error() == Some(libc::ENXIO) { not_regular() } else { error })
}

#[cfg(not(unix))]
fn open(file: &Path) -> io::Result<File> {
    let kind = std::fs::metadata(file)?;
    match (kind.is_file(), kind.is_dir()) {
        (true, _) => File::open(file),
        (_, true) => Err(io::ErrorKind::IsADirectory.into()),
        _ => Err(not_regular()),
    }
}

/// The whole regular file, if it has no more than `limit` bytes.
///
/// # Errors
/// As [`open_regular`], those of reading, and that the file is larger.
pub fn read_at_most(file: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(file)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(io::Error::other(format!("larger than {}", pascaline::format_bytes(limit as usize)))),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_have_as_many_bytes_as_its_limit() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = folder.join("Cargo.toml");
        let whole = std::fs::read(&file).unwrap();
        let len = whole.len() as u64;
        assert_eq!(read_at_most(&file, len).unwrap(), whole);
        assert!(read_at_most(&file, len - 1).unwrap_err().to_string().contains("larger than"));
        assert_eq!(open_regular(folder).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }

    /// Also behind a link; a pipe's writer never comes here.
    #[cfg(unix)]
    #[test]
    fn pipes_devices_and_sockets_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for (name, of) in [("to-pipe", "pipe"), ("to-zero", "/dev/zero"), ("to-socket", "socket")] {
            std::os::unix::fs::symlink(of, at(name)).unwrap();
        }
        for name in ["pipe", "socket", "to-pipe", "to-zero", "to-socket"] {
            let refused = open_regular(&at(name)).unwrap_err();
            assert!(refused.to_string().contains("not an ordinary file"), "{name}: {refused}");
        }
    }
}
