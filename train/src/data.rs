//! Conversations to learn from, one a line, in the format of Qwen's own fine-tuning (QwenLM/Qwen3-VL, `qwen-vl-finetune`):
//!
//! ```text
//! {"image": "pictures/1.png", "conversations": [
//!   {"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "a red circle"}]}
//! ```
//!
//! `image` is a path or a list of them, relative to the file's folder, and each `<image>` is the placeholder of the next. There may be several turns, and
//! a first one from `system`. Only what `gpt` says is learned, with the token that ends it.

use crate::files::bad;
use crate::model::Example;
use pascaline::{Error, Result};
use qwen3_vl::chat::{Message, Part};
use qwen3_vl::{Processor, Visual};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The placeholder of an image.
const IMAGE: &str = "<image>";
/// How a turn ends in the chat format of all Qwen models.
const END: &str = "<|im_end|>\n";
/// The most bytes of a file.
const MAX_FILE: u64 = 1 << 32;

/// A line of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// The pictures' files.
    pub images: Vec<PathBuf>,
    /// The turns.
    pub messages: Vec<Message>,
    /// Which turns are learned.
    is_answer: Vec<bool>,
    /// The line that it comes from, for errors.
    file: PathBuf,
    line: usize,
}

/// Reads the conversations of a file. Empty lines are skipped.
///
/// # Errors
/// [`Error::Checkpoint`] with the file, the line and what is wrong in it.
pub fn read(file: &Path) -> Result<Vec<Conversation>> {
    let size = fs::metadata(file).map_err(|error| bad(file, error))?.len();
    if size > MAX_FILE {
        return Err(bad(file, format!("has {size} bytes, at most {MAX_FILE} are read")));
    }
    let text = fs::read_to_string(file).map_err(|error| bad(file, error))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let all: Vec<_> = lines.map(|(line, text)| parse(file, line + 1, text)).collect::<Result<_>>()?;
    match all.is_empty() {
        false => Ok(all),
        true => Err(bad(file, "has no conversations")),
    }
}

fn parse(file: &Path, line: usize, text: &str) -> Result<Conversation> {
    let wrong = |reason: &str| wrong(file, line, reason);
    let value: Value = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
    if value.get("video").is_some() {
        return Err(wrong("videos are not supported"));
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let path = |value: &Value| value.as_str().map(|path| folder.join(path));
    let images: Option<Vec<PathBuf>> = match value.get("image") {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(path).collect(),
        Some(one) => path(one).map(|one| vec![one]),
    };
    let images = images.ok_or_else(|| wrong("`image` is neither a path nor a list of them"))?;
    let turns = value.get("conversations").and_then(Value::as_array);
    let turns = turns.ok_or_else(|| wrong("has no list `conversations`"))?;
    let (mut messages, mut is_answer, mut placeholders) = (Vec::new(), Vec::new(), 0);
    for turn in turns {
        let text = |name: &str| turn.get(name).and_then(Value::as_str);
        let (Some(from), Some(value)) = (text("from"), text("value")) else {
            return Err(wrong("a turn has no text `from` or `value`"));
        };
        let role = match from {
            "human" => "user",
            "gpt" => "assistant",
            "system" if messages.is_empty() => "system",
            _ => {
                return Err(wrong(
                    "a turn is from neither human nor gpt, and only the first may be from system",
                ));
            }
        };
        let answers = role == "assistant";
        if answers && messages.last().is_none_or(|last: &Message| last.role != "user") {
            return Err(wrong("a turn of gpt follows no human turn"));
        }
        let content = if answers { vec![Part::Text { text: value.to_owned() }] } else { parts(value) };
        placeholders += content.iter().filter(|part| **part == Part::Image).count();
        messages.push(Message { role: role.to_owned(), content });
        is_answer.push(answers);
    }
    if placeholders != images.len() {
        return Err(wrong(&format!("has {IMAGE} {placeholders} times and {} images", images.len())));
    }
    if !is_answer.contains(&true) {
        return Err(wrong("gpt says nothing, so nothing can be learned"));
    }
    Ok(Conversation { images, messages, is_answer, file: file.to_owned(), line })
}

fn wrong(file: &Path, line: usize, reason: &str) -> Error {
    bad(file, format!("line {line}: {reason}"))
}

/// Text with placeholders, as parts. The line break after a placeholder belongs to it.
fn parts(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    for (i, piece) in text.split(IMAGE).enumerate() {
        let piece = match i {
            0 => piece,
            _ => {
                parts.push(Part::Image);
                piece.strip_prefix('\n').unwrap_or(piece)
            }
        };
        if !piece.is_empty() {
            parts.push(Part::Text { text: piece.to_owned() });
        }
    }
    parts
}

impl Conversation {
    /// Its tokens and pictures as the model takes them. An answer's tokens are those that follow the prompt in generation.
    ///
    /// # Errors
    /// [`Error::Image`] if a picture can't be used, [`Error::Prompt`], or [`Error::Checkpoint`] with the line if the chat template does not
    /// repeat earlier turns as they were.
    pub fn example(&self, processor: &Processor) -> Result<Example> {
        let visuals = self.images.iter().map(|file| Visual::image(file)).collect::<Result<Vec<_>>>()?;
        let mut example = Example::default();
        for (turn, _) in self.is_answer.iter().enumerate().filter(|(_, is_answer)| **is_answer) {
            let before = &self.messages[..turn];
            let images = before
                .iter()
                .flat_map(|message| &message.content)
                .filter(|part| **part == Part::Image)
                .count();
            let prompt = processor.prepare(before, &visuals[..images])?;
            if !prompt.ids.starts_with(&example.ids) {
                return Err(wrong(
                    &self.file,
                    self.line,
                    "the chat template changes earlier turns, so the turns do not form one sequence",
                ));
            }
            example.ids = prompt.ids;
            example.is_answer.resize(example.ids.len(), false);
            example.visuals = prompt.patches;
            let Some(Part::Text { text }) = self.messages[turn].content.first() else { continue };
            example.ids.extend(processor.tokenizer.encode(&format!("{text}{END}"))?);
            example.is_answer.resize(example.ids.len(), true);
        }
        Ok(example)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Conversation> {
        parse(Path::new("data/train.jsonl"), 7, text)
    }

    #[test]
    fn turns_pictures_and_answers_are_found() {
        let found = parsed(
            r#"{"image": "a.png", "conversations": [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "It."}]}"#,
        )
        .unwrap();
        assert_eq!(found.images, [Path::new("data/a.png")]);
        assert_eq!(found.messages[0], Message::user(1, "What?"));
        assert_eq!(found.is_answer, [false, true]);
        let two = parts("first <image> then <image>");
        let text = |text: &str| Part::Text { text: text.into() };
        assert_eq!(two, [text("first "), Part::Image, text(" then "), Part::Image]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (line, part) in [
            ("{", "EOF"),
            ("{}", "conversations"),
            (r#"{"conversations": []}"#, "nothing"),
            (r#"{"conversations": [{"from": "gpt", "value": "x"}]}"#, "no human"),
            (
                r#"{"conversations": [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "x"}]}"#,
                "1 times",
            ),
            (r#"{"video": "a", "conversations": []}"#, "videos"),
            (r#"{"image": 3, "conversations": []}"#, "path"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains("line 7") && error.contains(part), "{line}: {error}");
        }
    }
}
