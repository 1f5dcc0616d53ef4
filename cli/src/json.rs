//! `--json FILE`.

use super::failure::Failure;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;

/// Where a report goes: a file, or stdout for `-`.
pub(super) struct Report {
    /// None is stdout.
    file: Option<File>,
}

impl Report {
    /// Opens it before the work begins, so that minutes are not lost to a path that can't be written.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        if path.as_os_str() == "-" {
            return Ok(Self { file: None });
        }
        let file = File::create(path).map_err(|error| {
            let path = path.display();
            Failure::Failed(format!("{path} can't be written: {error}; choose another path for --json"))
        })?;
        Ok(Self { file: Some(file) })
    }

    /// What is known so far, in the place of what was written before, so that a run that is cut short leaves it; only in
    /// an ordinary file, where it can be replaced.
    pub fn write_partial(&mut self, report: &impl Serialize) -> Result<(), Failure> {
        match &mut self.file {
            Some(file) if file.metadata()?.is_file() => replace(file, &text(report)?).map_err(Failure::from),
            _ => Ok(()),
        }
    }

    pub fn write(mut self, report: &impl Serialize) -> Result<(), Failure> {
        self.write_partial(report)?;
        match self.file {
            Some(file) if file.metadata()?.is_file() => Ok(()),
            Some(mut file) => file.write_all(&text(report)?).map_err(Failure::from),
            None => {
                let mut out = io::stdout().lock();
                out.write_all(&text(report)?).and_then(|()| out.flush()).map_err(Failure::from)
            }
        }
    }
}

fn text(report: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let text = serde_json::to_vec_pretty(report);
    let mut text =
        text.map_err(|error| Failure::Failed(format!("the report can't be made into JSON: {error}")))?;
    text.push(b'\n');
    Ok(text)
}

fn replace(file: &mut File, text: &[u8]) -> io::Result<()> {
    file.rewind()?;
    file.write_all(text)?;
    file.set_len(text.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_so_far_is_replaced() -> Result<(), Failure> {
        let path = std::env::temp_dir().join(format!("pascaline-report-{}", std::process::id()));
        let mut report = Report::open(&path)?;
        let read = || std::fs::read_to_string(&path);
        report.write_partial(&"a longer text")?;
        assert_eq!(read()?, "\"a longer text\"\n");
        report.write_partial(&[1])?;
        assert_eq!(read()?, "[\n  1\n]\n");
        report.write(&"end")?;
        assert_eq!(read()?, "\"end\"\n");
        std::fs::remove_file(&path)?;
        Ok(())
    }
}
