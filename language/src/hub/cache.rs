//! One repository in the hub's cache, as its Python client lays it out:
//!
//! ```text
//! .locks/models--OWNER--NAME/ETAG.lock
//! models--OWNER--NAME/blobs/ETAG               a file's content; ETAG.incomplete while it is fetched
//! models--OWNER--NAME/refs/REVISION            holds COMMIT
//! models--OWNER--NAME/snapshots/COMMIT/FILE    a link to ../../blobs/ETAG
//! ```
//!
//! ETAG, COMMIT and FILE come from the network. They are checked by [`is_name`], [`is_commit`] and [`is_path`] before they
//! come here.

use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::iter;
#[cfg(unix)]
use std::os::unix::fs::symlink as link;
#[cfg(windows)]
use std::os::windows::fs::symlink_file as link;
use std::path::{Path, PathBuf};

pub(super) struct Repo {
    root: PathBuf,
    locks: PathBuf,
}

impl Repo {
    pub(super) fn new(cache: &Path, id: &str) -> Self {
        let folder = format!("models--{}", id.replace('/', "--"));
        Self { locks: cache.join(".locks").join(&folder), root: cache.join(folder) }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder that shows a commit's files.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// The commit that a revision was when it was last fetched.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join("refs").join(revision));
        let commit = text.map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned());
        is_commit(&commit).then_some(commit)
    }

    /// Notes which commit a revision is.
    pub(super) fn set_commit(&self, revision: &str, commit: &str) -> io::Result<()> {
        if self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let (folders, name) = revision.rsplit_once('/').unwrap_or(("", revision));
        let path = self.folder(&["refs"], folders)?.join(name);
        let new = self.root.join("refs.incomplete");
        remove(&new)?;
        OpenOptions::new().write(true).create_new(true).open(&new)?.write_all(commit.as_bytes())?;
        fs::rename(&new, path)
    }

    /// The path of a file's content, whose folder exists.
    pub(super) fn blob(&self, etag: &str) -> io::Result<PathBuf> {
        Ok(self.folder(&["blobs"], "")?.join(etag))
    }

    /// Locks a blob against other processes until the file is dropped; `on_wait` is called if one has it.
    pub(super) fn lock(&self, etag: &str, on_wait: &mut dyn FnMut()) -> io::Result<File> {
        fs::create_dir_all(&self.locks)?;
        let path = self.locks.join(format!("{etag}.lock"));
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                on_wait();
                file.lock()?;
            }
            Err(TryLockError::Error(error)) if error.kind() != ErrorKind::Unsupported => return Err(error),
            _ => {} // without locks, as on some network file systems, the hash still guards the result
        }
        Ok(file)
    }

    /// Shows a blob as a commit's file.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> io::Result<()> {
        let (folders, name) = file.rsplit_once('/').unwrap_or(("", file));
        let path = self.folder(&["snapshots", commit], folders)?.join(name);
        remove(&path)?;
        let up = iter::repeat_n("..", 2 + file.matches('/').count());
        let target: PathBuf = up.chain(["blobs", etag]).collect();
        link(&target, &path).or_else(|error| match cfg!(windows) {
            // Links need a privilege there. Without it the file itself is shown, as by the Python client.
            true => fs::rename(self.root.join("blobs").join(etag), path),
            false => Err(error),
        })
    }

    /// Creates a folder of the repository. A link on the way is refused: it could lead out of the cache.
    fn folder(&self, parts: &[&str], more: &str) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.root)?;
        let mut path = self.root.clone();
        for part in parts.iter().copied().chain(more.split('/')).filter(|part| !part.is_empty()) {
            path.push(part);
            match fs::create_dir(&path) {
                Err(_) if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    let reason = format!("{} is not a folder; delete it", path.display());
                    return Err(io::Error::new(ErrorKind::NotADirectory, reason));
                }
                result => result?,
            }
        }
        Ok(path)
    }
}

/// Removes a file or a link, if there is one.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether a path is a file, and no link, of this size and SHA-256.
pub(super) fn is_complete(path: &Path, size: u64, sha256: Option<&str>) -> io::Result<bool> {
    if !fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == size) {
        return Ok(false);
    }
    let Some(sha256) = sha256 else { return Ok(true) };
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(found.eq_ignore_ascii_case(sha256))
}

/// The full hash of a commit.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether an ETag can name a blob: one component of a path, and no name that the cache gives to other files.
pub(super) fn is_name(etag: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ours = |ending: &str| etag.to_ascii_lowercase().ends_with(ending);
    (1..=128).contains(&etag.len())
        && !etag.starts_with('.')
        && etag.chars().all(allowed)
        && !ours(".incomplete")
        && !ours(".lock")
}

/// Whether a path of a repository stays in the folder that it is joined to and can be shown on a terminal.
pub(super) fn is_path(path: &str) -> bool {
    let plain = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= 255;
    let refused = |c: char| c.is_control() || is_bidi(c) || c == '\\' || (cfg!(windows) && c == ':');
    path.len() <= 1024 && path.split('/').all(plain) && !path.chars().any(refused)
}

/// The characters that reorder the text after them on a terminal.
fn is_bidi(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_the_network_are_plain() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert!(is_commit(commit) && is_name(commit) && is_path(commit));
        for other in
            ["", "main", "../../x", "/tmp/x", &commit[1..], &commit.to_uppercase(), &format!("{commit}0")]
        {
            assert!(!is_commit(other), "{other}");
        }
        for etag in ["d41d8cd98f00b204e9800998ecf8427e-12", "model.safetensors-etag", "a_b"] {
            assert!(is_name(etag), "{etag}");
        }
        let long = "a".repeat(129);
        for etag in [
            "",
            ".",
            "..",
            "../a",
            "/a",
            "a/b",
            "a\\b",
            "a\0",
            "C:a",
            "é",
            "a b",
            "a.Incomplete",
            "a.lock",
            &long,
        ] {
            assert!(!is_name(etag), "{etag:?}");
        }
        for path in ["config.json", ".gitattributes", "a/b/c.gguf", "漢字 (1).gguf", "a..b"] {
            assert!(is_path(path), "{path}");
        }
        let long = "a/".repeat(512) + "b";
        for path in [
            "",
            "/a",
            "a/",
            "a//b",
            "..",
            "a/../b",
            "./a",
            "a\\b",
            "\u{1b}[2J",
            "a\nb",
            "a\u{202e}b",
            "\u{9b}",
            &long,
        ] {
            assert!(!is_path(path), "{path:?}");
        }
    }
}
