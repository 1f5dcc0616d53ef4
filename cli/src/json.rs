//! The file of `--json FILE`, written whole or not at all. The option itself is in `output.rs`.

use super::failure::Failure;
use super::files;
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The destination of a report: a file, or stdout for `-`.
pub(super) struct Report {
    /// `None` is stdout.
    file: Option<PathBuf>,
    /// Whether the file may be replaced: because the user said so, or because this report has written it.
    replace: bool,
}

impl Report {
    /// Fails before the work begins if the file can't be written, so that no minutes are lost; an existing file needs
    /// `force`.
    pub fn open(path: &Path, force: bool) -> Result<Self, Failure> {
        if path.as_os_str() == "-" {
            return Ok(Self { file: None, replace: force });
        }
        files::check(path, force)?;
        Ok(Self { file: Some(path.to_owned()), replace: force })
    }

    /// Writes the results so far, so that an interrupted run leaves them. Only for ordinary files, which can be replaced.
    pub fn write_partial(&mut self, report: &impl Serialize) -> Result<(), Failure> {
        match &self.file {
            Some(file) if fs::metadata(file).map_or(true, |found| found.is_file()) => {
                files::write(file, &text(report)?, self.replace)?;
                self.replace = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub fn write(self, report: &impl Serialize) -> Result<(), Failure> {
        let text = text(report)?;
        match self.file {
            Some(file) => files::write(&file, &text, self.replace),
            None => {
                let mut out = io::stdout().lock();
                out.write_all(&text).and_then(|()| out.flush()).map_err(Failure::from)
            }
        }
    }
}

fn text(report: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let text = serde_json::to_vec_pretty(report);
    let mut text =
        text.map_err(|error| Failure::Failed(format!("the report can't be written as JSON: {error}")))?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_so_far_is_replaced() -> Result<(), Failure> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("report");
        let mut report = Report::open(&path, false)?;
        let read = || fs::read_to_string(&path);
        assert!(read().is_err(), "there is no file before there is a report");
        report.write_partial(&"a longer text")?;
        assert_eq!(read()?, "\"a longer text\"\n");
        report.write_partial(&[1])?;
        assert_eq!(read()?, "[\n  1\n]\n");
        report.write(&"end")?;
        assert_eq!(read()?, "\"end\"\n");
        assert!(Report::open(&path, false).is_err(), "the next report needs --force");
        Report::open(&path, true)?.write(&2)?;
        assert_eq!(read()?, "2\n");
        Ok(())
    }
}
