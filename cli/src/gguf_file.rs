//! Writes GGUF files tensor by tensor.

use super::failure::Failure;
use super::files::{OutputFile, unwritable};
use qwen3_vl::gguf::Plan;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file in progress. It appears under its name when it is kept.
pub(super) struct GgufFile {
    to: PathBuf,
    file: OutputFile,
    bytes: u64,
}

impl GgufFile {
    /// Starts a file with everything before the tensors.
    pub fn create(to: &Path, plan: &Plan, force: bool) -> Result<Self, Failure> {
        let mut this = Self { to: to.to_owned(), file: OutputFile::create(to, force)?, bytes: 0 };
        this.write(&plan.header())?;
        Ok(this)
    }

    /// Appends the next tensor's bytes, or a part of them.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|error| unwritable(&self.to, &error))
    }

    /// Pads with zeros up to the next tensor.
    pub fn pad(&mut self) -> Result<(), Failure> {
        let end = self.bytes.next_multiple_of(Plan::ALIGNMENT as u64);
        self.write(&[0; Plan::ALIGNMENT][..(end - self.bytes) as usize])
    }

    /// The bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The complete file, ready to be given its name.
    pub fn finished(self) -> OutputFile {
        self.file
    }
}

/// The paths of the text file and the vision file. If `to` is a folder, which is created if necessary, both are in it. If
/// `to` is the path of a GGUF file, it is the text file, and the vision file is in the same folder.
pub(super) fn targets(to: &Path, kind: &str) -> Result<[PathBuf; 2], Failure> {
    if to.extension().is_some_and(|extension| extension == "gguf") && !to.is_dir() {
        return Ok([to.to_owned(), to.with_file_name(names(kind)[1].as_str())]);
    }
    std::fs::create_dir_all(to)
        .map_err(|error| Failure::Failed(format!("{} can't be created: {error}", to.display())))?;
    Ok(names(kind).map(|name| to.join(name)))
}

/// The names of the text file and the vision file in a folder.
pub(super) fn names(kind: &str) -> [String; 2] {
    [format!("model-{kind}.gguf"), "mmproj-F16.gguf".to_owned()]
}
