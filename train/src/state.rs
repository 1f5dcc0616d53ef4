//! The stored state of a fine-tune. Each state is a folder of its own; a manifest names the one that counts, with the sizes and
//! hashes of its files. Replacing the manifest is the only step that changes which state counts, so a process may be killed at any moment.
//!
//! ```text
//! state/lock                     locked as long as a process trains here
//! state/state.json               the manifest
//! state/saved-12-0/…             the files of the state after step 12
//! ```

use crate::files::{self, bad};
use crate::fingerprint::hex;
use pascaline::{Error, Result};
use qwen3_vl::files::{open_regular, read_at_most, sync_folder};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The manifest's file.
pub const MANIFEST: &str = "state.json";
const LOCK: &str = "lock";
/// How the folders of states begin.
const FOLDER: &str = "saved-";
/// The format of the manifest. The first had no number, and its files were replaced one after another.
const FORMAT: u64 = 2;
/// The files of that first format beside its manifest.
const OF_FIRST_FORMAT: [&str; 2] = ["parameters.safetensors", "moments.safetensors"];
/// The most bytes of a manifest.
const MAX_MANIFEST: u64 = 16 << 20;

/// A folder of states, locked against other processes.
pub struct StateFolder {
    path: PathBuf,
    inputs: Value,
    _lock: File,
}

/// A file of a state: its name, and the function that writes it.
pub(crate) type Entry<'a> = (&'a str, &'a dyn Fn(&mut dyn Write) -> io::Result<()>);

/// A complete state that was found, its files checked.
pub(crate) struct Stored {
    pub folder: PathBuf,
    pub steps: u32,
    pub run: Value,
}

impl StateFolder {
    /// Opens a folder, which is made if it is not there, for this process alone. The remains of killed processes in it are removed.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it can't be made, or another process has it open.
    pub fn open(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(|error| bad(path, error))?;
        let lock = path.join(LOCK);
        let file = File::options().create(true).truncate(false).write(true).open(&lock);
        let file = file.map_err(|error| bad(&lock, error))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(bad(
                    path,
                    "another process trains here; wait for its end, or name another folder",
                ));
            }
            // some file systems have no locks
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let this = Self { path: path.to_owned(), inputs: Value::Null, _lock: file };
        if let Ok(manifest) = this.manifest() {
            this.remove_all_but(manifest.as_ref().and_then(folder_of));
        }
        Ok(this)
    }

    /// With a description of what the run is made from (model, data, options), which must be the same when it is resumed.
    pub fn with_inputs(self, inputs: Value) -> Self {
        Self { inputs, ..self }
    }

    /// Stores a state. The one before stays until the new one is on the disk and has been read back.
    pub(crate) fn save(&self, steps: u32, run: Value, entries: &[Entry]) -> Result<()> {
        let name = (0..).map(|i| format!("{FOLDER}{steps}-{i}")).find(|name| !self.path.join(name).exists());
        let name = name.unwrap_or_default(); // some number is free
        let folder = self.path.join(&name);
        fs::create_dir(&folder).map_err(|error| bad(&folder, error))?;
        let mut listed = Map::new();
        for (entry, write) in entries {
            let file = folder.join(entry);
            let mut written = None;
            files::write_with(&file, |to| {
                let mut to = Hashing { to, hash: Sha256::new(), bytes: 0 };
                write(&mut to)?;
                written = Some(to.listed());
                Ok(())
            })?;
            listed.insert((*entry).to_owned(), written.unwrap_or_default());
        }
        sync_folder(&self.path).map_err(|error| bad(&self.path, error))?;
        check(&folder, &listed)?;
        let manifest = json!({
            "format": FORMAT, "steps": steps, "run": run, "inputs": self.inputs, "folder": name, "files": listed,
        });
        files::write(&self.path.join(MANIFEST), format!("{manifest:#}\n").as_bytes())?;
        self.remove_all_but(Some(&name));
        Ok(())
    }

    /// The stored state; `None` if none was ever completed.
    pub(crate) fn load(&self) -> Result<Option<Stored>> {
        let file = self.path.join(MANIFEST);
        let Some(manifest) = self.manifest()? else { return Ok(None) };
        let wrong =
            |reason: &str| bad(&file, format!("{reason}; start again with --force, or in another folder"));
        match manifest.get("format").and_then(Value::as_u64) {
            Some(FORMAT) => {}
            None if manifest.get("steps").is_some() => {
                return Err(wrong(
                    "is of an older version, whose files do not tell whether they belong to one step",
                ));
            }
            _ => return Err(wrong("is of a format that this version does not know")),
        }
        let steps = manifest.get("steps").and_then(Value::as_u64).and_then(|steps| u32::try_from(steps).ok());
        let files = manifest.get("files").and_then(Value::as_object);
        let (Some(steps), Some(files), Some(name)) = (steps, files, folder_of(&manifest)) else {
            return Err(wrong("has no `steps`, `files` or `folder`"));
        };
        if manifest.get("inputs") != Some(&self.inputs) {
            return Err(bad(
                &file,
                "belongs to a run with another model, other data or other options; use the same, or start in another folder",
            ));
        }
        let folder = self.path.join(name);
        check(&folder, files)?;
        Ok(Some(Stored { folder, steps, run: manifest.get("run").cloned().unwrap_or_default() }))
    }

    /// Where the manifest is, for errors.
    pub(crate) fn manifest_file(&self) -> PathBuf {
        self.path.join(MANIFEST)
    }

    fn manifest(&self) -> Result<Option<Value>> {
        let file = self.path.join(MANIFEST);
        match read_at_most(&file, MAX_MANIFEST) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                bad(&file, format!("{error}; start again with --force, or in another folder"))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(bad(&file, error)),
        }
    }

    /// Removes the other states and, where one of this format counts, the files of the first format. A file that can't be removed stays
    /// until the next time.
    fn remove_all_but(&self, kept: Option<&str>) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| kept != Some(name)) else { continue };
            if name.starts_with(FOLDER) {
                let _ = fs::remove_dir_all(entry.path());
            } else if kept.is_some() && OF_FIRST_FORMAT.contains(&name) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// The folder that a manifest names, if it is one of those made here.
fn folder_of(manifest: &Value) -> Option<&str> {
    let name = manifest.get("folder")?.as_str()?;
    let rest = name.strip_prefix(FOLDER)?;
    rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-').then_some(name)
}

/// Compares the files of a state with their sizes and hashes.
fn check(folder: &Path, listed: &Map<String, Value>) -> Result<()> {
    for (name, expected) in listed {
        let file = folder.join(name);
        let found = || -> io::Result<Value> {
            let mut to = Hashing { to: &mut io::sink(), hash: Sha256::new(), bytes: 0 };
            io::copy(&mut open_regular(&file)?, &mut to)?;
            Ok(to.listed())
        };
        if found().map_err(|error| bad(&file, error))? != *expected {
            return Err(damaged(&file));
        }
    }
    Ok(())
}

fn damaged(file: &Path) -> Error {
    bad(
        file,
        "is not as it was written: its size or hash is another; start again with --force, or in another folder",
    )
}

/// Passes bytes on and sums them up.
struct Hashing<'w> {
    to: &'w mut dyn Write,
    hash: Sha256,
    bytes: u64,
}

impl Hashing<'_> {
    fn listed(self) -> Value {
        json!({"bytes": self.bytes, "sha256": hex(self.hash)})
    }
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(state: &StateFolder, steps: u32, text: &str) -> Result<()> {
        state.save(
            steps,
            json!("run"),
            &[("a", &|to| to.write_all(text.as_bytes())), ("b", &|to| to.write_all(b"b"))],
        )
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_last_complete_state_counts_and_leftovers_go() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(folder.path()).unwrap();
        assert!(state.load().unwrap().is_none());
        saved(&state, 1, "one").unwrap();
        saved(&state, 2, "two").unwrap();
        assert_eq!(names(folder.path()), ["lock", "saved-2-0", "state.json"]);
        // a save that fails or is cut short changes nothing
        state.save(3, json!("run"), &[("a", &|_| Err(io::Error::other("the disk is full")))]).unwrap_err();
        fs::create_dir(folder.path().join("saved-3-7")).unwrap();
        fs::write(folder.path().join("saved-3-7/a"), "half").unwrap();
        fs::write(folder.path().join(".pascaline-x.part"), "half").unwrap();
        let stored = state.load().unwrap().unwrap();
        assert_eq!((stored.steps, fs::read(stored.folder.join("a")).unwrap()), (2, b"two".to_vec()));
        drop(state);
        let state = StateFolder::open(folder.path()).unwrap();
        assert_eq!(names(folder.path()), [".pascaline-x.part", "lock", "saved-2-0", "state.json"]);
        saved(&state, 2, "two").unwrap();
        assert_eq!(names(folder.path()), ["lock", "saved-2-1", "state.json"]);
    }

    #[test]
    fn what_cannot_be_continued_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let state = StateFolder::open(folder.path()).unwrap();
        let said = |error: Error| error.to_string();
        let other = StateFolder::open(folder.path()).map(drop).map_err(said).unwrap_err();
        assert!(other.contains("another process trains here"), "{other}");
        let refused = |parts: &[&str]| {
            let said = state.load().map(drop).unwrap_err().to_string();
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        };
        fs::write(at(MANIFEST), r#"{"steps": 3, "run": {}}"#).unwrap();
        refused(&["state.json", "older version", "--force"]);
        fs::write(at(MANIFEST), "{").unwrap();
        refused(&["state.json", "--force"]);
        saved(&state, 1, "one").unwrap();
        fs::write(at("saved-1-0/a"), "two").unwrap();
        refused(&["saved-1-0", "hash", "--force"]);
        fs::write(at("saved-1-0/a"), "one").unwrap();
        state.load().unwrap().unwrap();
        let manifest = fs::read_to_string(at(MANIFEST)).unwrap();
        for (from, to) in [("\"saved-1-0\"", "\"saved-../..\""), ("\"format\": 2", "\"format\": 3")] {
            fs::write(at(MANIFEST), manifest.replace(from, to)).unwrap();
            refused(&["state.json", "--force"]);
        }
        fs::write(at(MANIFEST), manifest).unwrap();
        let state = state.with_inputs(json!("other data"));
        let said = state.load().map(drop).unwrap_err().to_string();
        assert!(said.contains("other data"), "{said}");
    }
}
