//! Output files. A file appears under its name when it is complete, or not at all: after a signal, a full disk or a failure
//! the previous file is still there.

use super::failure::Failure;
use super::parts;
use qwen3_vl::files::{Identity, identity, read_at_most, sync_folder};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tempfile::{NamedTempFile, PersistError};

/// The files that this process reads, and by which names: no output may replace one. A new file may have the number of one that was
/// deleted.
static INPUTS: Mutex<Option<HashMap<Identity, PathBuf>>> = Mutex::new(None);

/// Notes a file, or those of a folder, as read by this command. Beside a GGUF file its shards and its vision file are too.
pub(super) fn note_input(path: &Path) {
    let is_gguf = |path: &Path| path.extension().is_some_and(|extension| extension == "gguf");
    let inside = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        files = inside(path);
    } else if is_gguf(path) {
        files.extend(inside(folder_of(path)).into_iter().filter(|file| is_gguf(file)));
    }
    let mut inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
    let noted = files.into_iter().filter_map(|file| Some((identity(&file)?, file)));
    inputs.get_or_insert_default().extend(noted);
}

/// Reads a regular file of at most `limit` bytes, which no output of this command may then replace.
///
/// # Errors
/// As [`read_at_most`].
pub(super) fn read_input(file: &Path, limit: u64) -> io::Result<Vec<u8>> {
    note_input(file);
    read_at_most(file, limit)
}

/// As [`read_input`], UTF-8.
///
/// # Errors
/// As [`read_input`], and [`io::ErrorKind::InvalidData`].
pub(super) fn read_input_text(file: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read_input(file, limit)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))
}

/// Refuses an output that is one of the inputs, whatever its name.
fn refuse_input(to: &Path) -> Result<(), Failure> {
    let inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = identity(to);
    let input = inputs.as_ref().zip(found.as_ref()).and_then(|(inputs, found)| inputs.get(found));
    if input.is_some_and(|input| identity(input) == found) { Err(twice(to)) } else { Ok(()) }
}

fn twice(to: &Path) -> Failure {
    Failure::Usage(format!("{} is read or written twice; name another file", to.display()))
}

/// A file that is being written.
pub(super) struct OutputFile {
    to: PathBuf,
    force: bool,
    kind: Kind,
}

enum Kind {
    /// A temporary file in the same folder, to be renamed to this path. On Windows the path is in the form that may exceed
    /// 260 characters.
    Temporary(NamedTempFile, PathBuf),
    /// A device or a pipe: it is written to directly, as it has no content to lose.
    Special(File),
}

impl OutputFile {
    /// Starts a file; `force` says whether it may replace an existing one.
    ///
    /// # Errors
    /// [`Failure::Failed`] if there is one already, or none can be created there.
    pub fn create(to: &Path, force: bool) -> Result<Self, Failure> {
        let cannot = |error: io::Error| unwritable(to, &error);
        refuse_input(to)?;
        match fs::metadata(to) {
            Ok(found) if found.is_dir() => Err(cannot(io::ErrorKind::IsADirectory.into())),
            Ok(found) if !found.is_file() => {
                let file = File::options().write(true).open(to).map_err(cannot)?;
                Ok(Self { to: to.to_owned(), force, kind: Kind::Special(file) })
            }
            Ok(_) if !force => Err(exists(to)),
            Ok(found) => {
                // A link stays, and its target is replaced; the target's permissions stay too.
                let place = whole(to).map_err(cannot)?;
                let file = parts::create(folder_of(&place)).map_err(cannot)?;
                file.as_file().set_permissions(found.permissions()).map_err(cannot)?;
                Ok(Self { to: to.to_owned(), force, kind: Kind::Temporary(file, place) })
            }
            Err(_) => {
                let name = to.file_name().ok_or_else(|| cannot(io::ErrorKind::InvalidFilename.into()))?;
                let place = whole(folder_of(to)).map_err(cannot)?.join(name);
                let file = parts::create(folder_of(&place)).map_err(cannot)?;
                Ok(Self { to: to.to_owned(), force, kind: Kind::Temporary(file, place) })
            }
        }
    }

    /// Gives the complete file its name.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it can't be written, or a file that may not be replaced has appeared meanwhile.
    pub fn keep(self) -> Result<(), Failure> {
        let Self { to, force, kind } = self;
        let (file, place) = match kind {
            Kind::Temporary(file, place) => (file, place),
            Kind::Special(mut file) => return file.flush().map_err(|error| unwritable(&to, &error)),
        };
        refuse_input(&to)?; // it may have been read meanwhile
        // Without this a crash of the machine could leave an empty file under the name.
        file.as_file().sync_all().map_err(|error| unwritable(&to, &error))?;
        match persist(file, &place, force) {
            Ok(()) => sync_folder(folder_of(&place)).map_err(|error| unwritable(&to, &error)),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(exists(&to)),
            Err(PersistError { error, file }) => Err(match keep_beside(file, &place) {
                Ok(kept) => {
                    let (to, kept) = (to.display(), kept.display());
                    Failure::Failed(format!(
                        "{to} can't be written: {error}; what would be in it is in {kept}"
                    ))
                }
                Err(_) => unwritable(&to, &error),
            }),
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.kind {
            Kind::Temporary(file, _) => file.write(bytes),
            Kind::Special(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.kind {
            Kind::Temporary(file, _) => file.flush(),
            Kind::Special(file) => file.flush(),
        }
    }
}

/// Gives complete files their names, of which the last marks the others as complete. An old file of its name is removed before,
/// so that at no moment it stands beside new ones.
///
/// # Errors
/// As [`OutputFile::keep`].
pub(super) fn keep_all(files: Vec<OutputFile>) -> Result<(), Failure> {
    for OutputFile { to, kind, .. } in &files {
        refuse_input(to)?;
        if let Kind::Temporary(file, _) = kind {
            file.as_file().sync_all().map_err(|error| unwritable(to, &error))?;
        }
    }
    if let [_, .., OutputFile { to, force: true, kind: Kind::Temporary(_, place) }] = &files[..]
        && place.exists()
    {
        fs::remove_file(place).map_err(|error| unwritable(to, &error))?;
    }
    files.into_iter().try_for_each(OutputFile::keep)
}

/// Keeps results that did not get their name under one that is not cleaned up.
fn keep_beside(file: NamedTempFile, place: &Path) -> Result<PathBuf, PersistError> {
    let kept = file.path().with_extension("kept");
    let kept =
        place.with_file_name(kept.file_name().unwrap_or_default().to_string_lossy().trim_start_matches('.'));
    file.persist_noclobber(&kept).map(|_| kept)
}

/// On Windows, renaming is retried: indexers and virus scanners open new files for moments.
const TRIES: u32 = if cfg!(windows) { 10 } else { 1 };

/// Gives a file its name.
fn persist(mut file: NamedTempFile, place: &Path, force: bool) -> Result<(), PersistError> {
    let mut tries = 1;
    loop {
        let kept = if force { file.persist(place) } else { file.persist_noclobber(place) };
        match kept {
            Ok(_) => return Ok(()),
            Err(error) if tries < TRIES && is_held(&error.error) => file = error.file,
            Err(error) => return Err(error),
        }
        tries += 1;
        thread::sleep(Duration::from_millis(100));
    }
}

/// Whether another program has the file open: access denied, or a sharing violation.
fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(5 | 32))
}

/// Writes a complete file.
pub(super) fn write(to: &Path, bytes: &[u8], force: bool) -> Result<(), Failure> {
    let mut file = OutputFile::create(to, force)?;
    file.write_all(bytes).map_err(|error| unwritable(to, &error))?;
    file.keep()
}

/// As [`write`], for a file that its owner alone may read.
pub(super) fn write_private(to: &Path, bytes: &[u8], force: bool) -> Result<(), Failure> {
    let mut file = OutputFile::create(to, force)?;
    #[cfg(unix)]
    if let Kind::Temporary(file, _) = &file.kind {
        use std::os::unix::fs::PermissionsExt;
        let private = fs::Permissions::from_mode(0o600);
        file.as_file().set_permissions(private).map_err(|error| unwritable(to, &error))?;
    }
    file.write_all(bytes).map_err(|error| unwritable(to, &error))?;
    file.keep()
}

/// Fails early if [`OutputFile::create`] would fail after the work.
pub(super) fn check(to: &Path, force: bool) -> Result<(), Failure> {
    match fs::metadata(to) {
        // Opening a pipe here would wait for its reader a second time.
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        _ => OutputFile::create(to, force).map(drop),
    }
}

/// Refuses a target that is also a source or another target: the one written last would replace it.
///
/// # Errors
/// [`Failure::Usage`].
pub(super) fn check_apart<'a>(
    sources: impl Iterator<Item = &'a Path>,
    targets: impl Iterator<Item = &'a Path>,
) -> Result<(), Failure> {
    let mut taken: HashSet<Identity> = sources.filter_map(identity).collect();
    for target in targets {
        // `None` for pipes and devices, which may be named more than once
        if identity(target).is_some_and(|target| !taken.insert(target)) {
            return Err(twice(target));
        }
    }
    Ok(())
}

/// The path without links and `..`; on Windows in the form that may exceed 260 characters.
pub(super) fn whole(path: &Path) -> io::Result<PathBuf> {
    let whole = fs::canonicalize(path);
    // Wine can't tell the name of a file whose path is long; then links are not resolved
    if cfg!(windows) && whole.is_err() {
        std::path::absolute(path).map(|path| verbatim(&path))
    } else {
        whole
    }
}

/// An absolute Windows path in the form that the system does not parse: `\\?\C:\…` or `\\?\UNC\server\…`.
fn verbatim(path: &Path) -> PathBuf {
    match path.as_os_str().to_str() {
        Some(text) if text.starts_with(r"\\?\") => path.to_owned(),
        Some(text) => match text.strip_prefix(r"\\") {
            Some(share) => format!(r"\\?\UNC\{share}").into(),
            None => format!(r"\\?\{text}").into(),
        },
        None => path.to_owned(),
    }
}

pub(super) fn unwritable(to: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("{} can't be written: {error}; choose another path", to.display()))
}

fn exists(to: &Path) -> Failure {
    Failure::Failed(format!("{} exists; --force replaces it", to.display()))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(result: Result<(), Failure>) -> String {
        result.expect_err("it is refused").sentence().expect("with a reason").to_owned()
    }

    /// A file with the number of a deleted input, as systems give numbers again, is not that input.
    #[test]
    fn an_input_is_not_replaced_and_its_number_is_not_its_name() -> Result<(), Failure> {
        let folder = tempfile::tempdir()?;
        let [input, later] = ["input", "later"].map(|name| folder.path().join(name));
        fs::write(&input, "read")?;
        note_input(&input);
        assert!(sentence(write(&input, b"one", true)).contains("twice"));
        fs::hard_link(&input, &later)?;
        assert!(sentence(write(&later, b"one", true)).contains("twice"));
        fs::remove_file(&input)?;
        write(&later, b"one", true)?;
        assert_eq!(fs::read(&later)?, b"one");
        Ok(())
    }

    #[test]
    fn a_file_is_replaced_only_when_asked_for_and_only_as_a_whole() -> Result<(), Failure> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("report");
        write(&file, b"one", false)?;
        assert!(sentence(write(&file, b"two", false)).contains("--force"));
        assert_eq!(fs::read(&file)?, b"one");
        let mut unfinished = OutputFile::create(&file, true)?;
        unfinished.write_all(b"half")?;
        drop(unfinished);
        assert_eq!(fs::read(&file)?, b"one");
        write(&file, b"two", true)?;
        assert_eq!(fs::read(&file)?, b"two");
        assert_eq!(fs::read_dir(folder.path())?.count(), 1, "no temporary file stays");
        Ok(())
    }

    #[test]
    fn a_file_that_has_come_meanwhile_is_not_replaced() -> Result<(), Failure> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("report");
        let mut ours = OutputFile::create(&file, false)?;
        ours.write_all(b"ours")?;
        fs::write(&file, b"theirs")?;
        assert!(sentence(ours.keep()).contains("--force"));
        assert_eq!(fs::read(&file)?, b"theirs");
        Ok(())
    }

    #[test]
    fn long_paths_of_windows_have_their_form() {
        let form = |path: &str| verbatim(Path::new(path)).display().to_string();
        assert_eq!(form(r"C:\a b\ü"), r"\\?\C:\a b\ü");
        assert_eq!(form(r"\\server\share\a"), r"\\?\UNC\server\share\a");
        assert_eq!(form(r"\\?\C:\a"), r"\\?\C:\a");
    }

    #[test]
    fn results_that_get_no_name_stay_beside_it() -> Result<(), Failure> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("report");
        let mut ours = OutputFile::create(&file, true)?;
        ours.write_all(b"ours")?;
        fs::create_dir(&file)?;
        let said = sentence(ours.keep());
        let (_, kept) = said.split_once("what would be in it is in ").expect("a place");
        assert_eq!(fs::read(kept)?, b"ours", "{said}");
        Ok(())
    }

    #[test]
    fn folders_and_places_that_are_not_there_are_refused_early() -> Result<(), Failure> {
        let folder = tempfile::tempdir()?;
        assert!(sentence(check(folder.path(), true)).contains("can't be written"));
        assert!(sentence(check(&folder.path().join("no/file"), true)).contains("can't be written"));
        check(&folder.path().join("file"), false)?;
        assert_eq!(fs::read_dir(folder.path())?.count(), 0);
        Ok(())
    }

    #[cfg(unix)]
    #[test]
    fn devices_links_and_permissions_stay() -> Result<(), Failure> {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir()?;
        write(Path::new("/dev/null"), b"gone", false)?;
        let full = sentence(write(Path::new("/dev/full"), b"more than there is room for", false));
        assert!(full.contains("/dev/full can't be written"), "{full}");

        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        write(&file, b"one", false)?;
        let mode = |path: &Path| fs::metadata(path).map(|found| found.permissions().mode() & 0o777);
        let ordinary = folder.path().join("ordinary");
        fs::write(&ordinary, b"")?;
        assert_eq!(mode(&file)?, mode(&ordinary)?);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        symlink(&file, &link)?;
        write(&link, b"two", true)?;
        assert!(fs::symlink_metadata(&link)?.is_symlink());
        assert_eq!((fs::read(&file)?, mode(&file)?), (b"two".to_vec(), 0o600));
        Ok(())
    }
}
