//! What `embed` and `rerank` read: texts, pictures and videos, from the command line or as JSON lines.

use super::failure::Failure;
use super::files::note_input;
use super::source::{image, is_stdin, video};
use qwen3_vl::Visual;
use qwen3_vl::embed::Content;
use qwen3_vl::json;
use qwen3_vl::video::FrameSampling;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The most bytes of a line.
const MAX_LINE: u64 = 64 << 20;

/// The items of a command line.
#[derive(clap::Args)]
pub(super) struct ItemArgs {
    /// A picture, or several, as for `generate --image`; each is an item. An animated one is a video.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    image: Vec<PathBuf>,

    /// A video, or several, as for `generate --video`; each is an item.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    video: Vec<PathBuf>,

    /// Items as JSON lines, in a file or, with -, on stdin. A line is a text, or an object with text, image or images, video or
    /// videos; the paths are relative to the working directory. Its other fields come back in the output.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

/// Something to embed or to rank.
pub(super) struct Item {
    /// As it was given: the fields of its line.
    pub fields: Map<String, Value>,
    pub content: Content,
}

impl ItemArgs {
    /// Calls `each` with every item: texts first, then pictures, videos and lines. A line is read when the item before it is done.
    pub fn each(
        &self,
        texts: &[String],
        mut each: impl FnMut(usize, Item) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut index = 0;
        let mut next = |fields: Map<String, Value>| {
            let item = Item { content: content(&fields)?, fields };
            index += 1;
            each(index - 1, item)
        };
        for text in texts {
            next(field("text", text))?;
        }
        for (name, files) in [("image", &self.image), ("video", &self.video)] {
            for file in files {
                next(field(name, &file.to_string_lossy()))?;
            }
        }
        let is_empty = texts.is_empty() && self.image.is_empty() && self.video.is_empty();
        match &self.input {
            Some(file) if !is_stdin(file) => {
                note_input(file);
                let unreadable = |error: io::Error| Failure::Failed(format!("{}: {error}", file.display()));
                lines(
                    &file.display().to_string(),
                    BufReader::new(File::open(file).map_err(unreadable)?),
                    next,
                )
            }
            None if !is_empty => Ok(()),
            _ => lines("stdin", io::stdin().lock(), next),
        }
    }
}

fn field(name: &str, value: &str) -> Map<String, Value> {
    Map::from_iter([(name.to_owned(), Value::from(value))])
}

/// Reads JSON lines; empty ones are skipped.
pub(super) fn lines(
    name: &str,
    mut from: impl BufRead,
    mut each: impl FnMut(Map<String, Value>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for number in 1.. {
        let failed = |reason: String| Failure::Failed(format!("{name}, line {number}: {reason}"));
        let mut line = Vec::new();
        let count = from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        match count.map_err(|error| failed(error.to_string()))? {
            0 => break,
            count if count as u64 == MAX_LINE => return Err(failed("it is too long".into())),
            _ if line.trim_ascii().is_empty() => continue,
            _ => {}
        }
        let value = json::parse(&line).map_err(|error| failed(error.to_string()))?;
        let fields = match value {
            Value::String(text) => field("text", &text),
            Value::Object(fields) => fields,
            _ => return Err(failed("it is neither a string nor an object".into())),
        };
        each(fields).map_err(|failure| match failure {
            Failure::Failed(reason) => failed(reason),
            other => other,
        })?;
    }
    Ok(())
}

/// The text, pictures and videos of a line.
fn content(fields: &Map<String, Value>) -> Result<Content, Failure> {
    let wrong = |name: &str| Failure::Failed(format!("{name} must be a string or a list of strings"));
    let text = match fields.get("text") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(_) => return Err(Failure::Failed("text must be a string".into())),
    };
    let paths = |name: &'static str| -> Result<Vec<PathBuf>, Failure> {
        match fields.get(name) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::String(path)) => Ok(vec![path.into()]),
            Some(Value::Array(list)) => {
                list.iter().map(|path| path.as_str().map(PathBuf::from).ok_or_else(|| wrong(name))).collect()
            }
            Some(_) => Err(wrong(name)),
        }
    };
    let sampling = FrameSampling::default();
    let mut visuals: Vec<Visual> = Vec::new();
    for path in paths("image")?.into_iter().chain(paths("images")?) {
        visuals.push(image(&path, &sampling)?);
    }
    for path in paths("video")?.into_iter().chain(paths("videos")?) {
        visuals.push(video(Path::new(&path), &sampling)?);
    }
    Ok(Content { text, visuals })
}
