//! What is kept between runs: conversations and typed messages, in files that only their owner reads.

use std::env;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// The folder: `$XDG_STATE_HOME/pascaline`, or `~/.local/state/pascaline`; on Windows `%LOCALAPPDATA%\pascaline`.
pub(super) fn folder() -> io::Result<PathBuf> {
    let variable = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = || match cfg!(windows) {
        true => variable("LOCALAPPDATA"),
        false => env::home_dir().map(|home| home.join(".local/state")),
    };
    let base = variable("XDG_STATE_HOME").or_else(usual);
    let found = base.map(|base| base.join("pascaline"));
    found.ok_or_else(|| io::Error::other("there is no home folder; set XDG_STATE_HOME"))
}

/// Creates a folder, and those that it is in, for this user alone.
pub(super) fn create_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Opens a file to append to; a new one is for this user alone.
pub(super) fn append(file: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)
}
