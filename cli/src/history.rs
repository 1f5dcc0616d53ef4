//! The messages that were typed in earlier conversations, for the arrow keys: a file with a JSON string a line.

use super::files;
use super::state;
use qwen3_vl::files::read_at_most;
use std::io::{self, Write};
use std::path::PathBuf;

/// The most messages that are kept, and the most bytes of the file.
pub(super) const KEPT: usize = 1000;
const MAX_FILE: u64 = 64 << 20;

/// The file, to which messages are added.
pub(super) struct History {
    file: PathBuf,
}

impl History {
    /// Its file and the last messages in it, the oldest first. A file with more than twice as many is shortened.
    pub fn open() -> io::Result<(Self, Vec<String>)> {
        let folder = state::folder()?;
        state::create_folder(&folder)?;
        let file = folder.join("history.jsonl");
        let bytes = match read_at_most(&file, MAX_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        let lines: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).collect();
        // a line that a crash has cut is no message
        let mut messages: Vec<String> =
            lines.iter().filter_map(|line| serde_json::from_slice(line).ok()).collect();
        messages.drain(..messages.len().saturating_sub(KEPT));
        let is_whole = bytes.last().is_none_or(|&last| last == b'\n');
        if !is_whole || lines.len() > 2 * KEPT {
            let text: String = messages.iter().map(|message| line(message)).collect();
            let shortened = files::write_private(&file, text.as_bytes(), true);
            shortened.map_err(|failure| {
                io::Error::other(failure.sentence().unwrap_or("it can't be shortened").to_owned())
            })?;
        }
        Ok((Self { file }, messages))
    }

    /// Adds a message.
    pub fn add(&self, message: &str) -> io::Result<()> {
        state::append(&self.file)?.write_all(line(message).as_bytes()) // at once, beside other conversations
    }
}

fn line(message: &str) -> String {
    format!("{}\n", serde_json::Value::from(message))
}
