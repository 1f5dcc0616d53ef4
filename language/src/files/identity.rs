//! Whether two paths lead to one file, through links of either kind.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Equal for paths that lead to one file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// A file that exists: its volume and its number there.
    Number(u64, u64),
    /// A file that does not exist yet: the resolved folder and the name.
    Path(PathBuf),
}

/// The identity of a file, or that of the file which a path would create. `None` for pipes and devices, which may be named more
/// than once, and where there is no such folder.
pub fn identity(path: &Path) -> Option<Identity> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => number(path, &found).ok(),
        Ok(_) => None,
        Err(_) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
            Some(Identity::Path(folder.join(path.file_name()?)))
        }
    }
}

#[cfg(unix)]
fn number(_: &Path, found: &fs::Metadata) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    Ok(Identity::Number(found.dev(), found.ino()))
}

#[cfg(windows)]
fn number(path: &Path, _: &fs::Metadata) -> io::Result<Identity> {
    let found = winapi_util::file::information(winapi_util::Handle::from_path_any(path)?)?;
    Ok(Identity::Number(found.volume_serial_number(), found.file_index()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_file_are_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a"), "a").unwrap();
        fs::write(at("b"), "a").unwrap();
        fs::hard_link(at("a"), at("hard")).unwrap();
        let mut same = vec![at("a"), at("hard"), at("./a")];
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("hard", at("soft")).unwrap();
            same.push(at("soft"));
        }
        let a = identity(&at("a")).unwrap();
        assert!(same.iter().all(|path| identity(path).as_ref() == Some(&a)), "{same:?}");
        assert_ne!(identity(&at("b")), Some(a));
        assert_eq!(identity(&at("new")), identity(&at("./new")));
        assert_ne!(identity(&at("new")), identity(&at("newer")));
        assert_eq!((identity(folder.path()), identity(&at("none/new"))), (None, None));
    }
}
