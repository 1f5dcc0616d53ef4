//! `--json FILE`.

use super::failure::Failure;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Where a report goes: a file, or stdout for `-`.
pub(super) struct Report {
    out: Box<dyn Write>,
}

impl Report {
    /// Opens it before the work begins, so that minutes are not lost to a path that can't be written.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        if path.as_os_str() == "-" {
            return Ok(Self { out: Box::new(io::stdout()) });
        }
        let file = File::create(path).map_err(|error| {
            let path = path.display();
            Failure::Failed(format!("{path} can't be written: {error}; choose another path for --json"))
        })?;
        Ok(Self { out: Box::new(file) })
    }

    pub fn write(mut self, report: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(report)
            .map_err(|error| Failure::Failed(format!("the report can't be made into JSON: {error}")))?;
        writeln!(self.out, "{text}").and_then(|()| self.out.flush()).map_err(Failure::from)
    }
}

/// Whether `--json` takes stdout.
pub(super) fn is_stdout(path: Option<&Path>) -> bool {
    path.is_some_and(|path| path.as_os_str() == "-")
}
