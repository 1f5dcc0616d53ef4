//! Files in the making. Each is locked by its writer, so that one whose writer is dead is told from one that grows, and removed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use tempfile::NamedTempFile;

const PREFIX: &str = ".pascaline-";
const SUFFIX: &str = ".part";
/// How often another process may find a new file before it is locked.
const TRIES: usize = 32;

/// A new file `.pascaline-….part` in this folder, with the permissions of an ordinary one, locked until it is closed or its process
/// ends. Those that dead processes have left in the folder are removed.
///
/// # Errors
/// Those of creating a file.
pub fn part_in(folder: &Path) -> io::Result<NamedTempFile> {
    remove_dead(folder);
    for _ in 0..TRIES {
        let file = create(folder)?;
        match file.as_file().try_lock() {
            Ok(()) if file.path().exists() => return Ok(file),
            // another process has found it before it was locked, and removes it
            Ok(()) | Err(TryLockError::WouldBlock) => {}
            // a file system without locks: nothing is removed there either
            Err(TryLockError::Error(_)) => return Ok(file),
        }
    }
    Err(io::Error::other("another process removes each new file of this folder"))
}

fn create(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    #[cfg(unix)]
    {
        // The mode of an ordinary new file; the system removes the bits of the user's umask.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Removes the parts that no living process has locked. A part that can't be read or removed stays.
fn remove_dead(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_part = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        if is_part && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let Ok(file) = super::open::open_regular(&entry.path()) else { continue };
            if file.try_lock().is_ok() {
                let _ = fs::remove_file(entry.path()); // it is tried again next time
            }
        }
    }
}

/// Makes the names in a folder last through a crash of the machine.
///
/// # Errors
/// Those of opening and writing it. On Windows folders can't be written so, and nothing happens.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(windows) {
        return Ok(());
    }
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_dead_are_removed_and_those_of_the_living_stay() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let dead = [".pascaline-a1b2c3.part", ".pascaline-.part"];
        let others = [".pascaline-a1b2c3.parts", "pascaline-a.part", ".other-a1b2c3.part"];
        dead.iter().chain(&others).for_each(|name| fs::write(at(name), "x").unwrap());
        let living = part_in(folder.path()).unwrap();
        let second = part_in(folder.path()).unwrap();
        assert!(living.path().exists() && second.path().exists());
        assert!(others.iter().all(|name| at(name).exists()));
        assert!(!dead.iter().any(|name| at(name).exists()));
        living.persist(at("whole")).unwrap();
        assert!(at("whole").exists());
    }
}
