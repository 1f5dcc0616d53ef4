//! Conversations in files: JSON lines, a message each. Pictures and videos are named by their paths or addresses.

use super::content::lines;
use super::failure::Failure;
use super::files;
use super::source::{image, video};
use super::state;
use qwen3_vl::Visual;
use qwen3_vl::chat::{Message, Part};
use qwen3_vl::files::open_regular;
use qwen3_vl::video::FrameSampling;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io, process};

/// The extension of the files.
const EXTENSION: &str = "jsonl";

/// Where a picture or video of a conversation is: an absolute path or an address.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub is_video: bool,
    pub place: String,
}

impl Place {
    /// That of a file as it was given.
    pub fn of(file: &Path, is_video: bool) -> Result<Self, String> {
        let text =
            file.to_str().ok_or("its name is not UTF-8, so that the conversation could not be saved")?;
        let place = match text.starts_with("http://") || text.starts_with("https://") {
            true => text.to_owned(),
            false => {
                let whole = std::path::absolute(file).map_err(|error| error.to_string())?;
                whole.to_str().ok_or("its folder's name is not UTF-8")?.to_owned()
            }
        };
        Ok(Self { is_video, place })
    }
}

/// Reads a picture or video.
pub(super) fn open(path: &Path, is_video: bool) -> Result<Visual, Failure> {
    let sampling = FrameSampling::default();
    if is_video { video(path, &sampling) } else { image(path, &sampling) }
}

/// A conversation from a file.
#[derive(Debug, Default)]
pub(super) struct Saved {
    pub messages: Vec<Message>,
    /// The pictures and videos of the messages, in order.
    pub visuals: Vec<Visual>,
    pub places: Vec<Place>,
}

/// The folder of conversations that were given no file.
fn folder() -> io::Result<PathBuf> {
    Ok(state::folder()?.join("chats"))
}

/// The file of a new conversation.
pub(super) fn new_file() -> io::Result<PathBuf> {
    let folder = folder()?;
    state::create_folder(&folder)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(folder.join(format!("{}-{}.{EXTENSION}", now.as_millis(), process::id())))
}

/// The conversation that was saved last.
pub(super) fn last_file() -> Result<PathBuf, Failure> {
    let folder = folder()?;
    let files = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == EXTENSION));
    let last =
        files.max_by_key(|file| (fs::metadata(file).and_then(|found| found.modified()).ok(), file.clone()));
    last.ok_or_else(|| Failure::Failed(format!("no conversation is saved in {}", folder.display())))
}

/// Writes a conversation; `force` says whether it may replace a file.
pub(super) fn write(file: &Path, messages: &[Message], places: &[Place], force: bool) -> Result<(), Failure> {
    let (mut text, mut places) = (String::new(), places.iter());
    for message in messages {
        text += &serde_json::to_string(&line(message, &mut places)).map_err(io::Error::from)?;
        text.push('\n');
    }
    files::write_private(file, text.as_bytes(), force)
}

/// A message in a file.
#[derive(Serialize)]
struct Line<'a> {
    role: &'a str,
    /// A text, or a list of parts if there is more.
    content: Value,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
}

fn line<'a, 'b>(message: &'a Message, places: &mut impl Iterator<Item = &'b Place>) -> Line<'a> {
    let (mut parts, mut thought) = (Vec::new(), String::new());
    for part in &message.content {
        match part {
            Part::Text { text } => parts.push(json!({ "type": "text", "text": text })),
            Part::Reasoning { text } => thought += text,
            Part::Image | Part::Video => parts.extend(places.next().map(|Place { is_video, place }| {
                let kind = if *is_video { "video" } else { "image" };
                json!({ "type": kind, kind: place })
            })),
            Part::ToolCall { .. } => {} // `chat` has no tools
        }
    }
    let content = match &mut parts[..] {
        [one] if one["type"] == "text" => one["text"].take(),
        _ => parts.into(),
    };
    Line { role: &message.role, content, reasoning_content: thought }
}

/// Reads a conversation and its pictures.
///
/// # Errors
/// That a line is no message, or a message at the wrong place; that the last answer is missing; what is wrong with a picture. The
/// file and the line are named.
pub(super) fn read(file: &Path) -> Result<Saved, Failure> {
    let name = file.display().to_string();
    let opened = open_regular(file).map_err(|error| Failure::Failed(format!("{name}: {error}")))?;
    let (mut saved, mut number) = (Saved::default(), 0);
    lines(&name, BufReader::new(opened), |fields| {
        number += 1;
        let before = saved.messages.last().map(|message| &*message.role);
        let message = read_message(fields, &mut saved.places).map_err(Failure::Failed)?;
        let fits = match &*message.role {
            "system" => before.is_none(),
            "user" => matches!(before, None | Some("system" | "assistant")),
            _ => before == Some("user"),
        };
        if !fits {
            let before = before
                .map_or_else(|| "at the beginning".to_owned(), |before| format!("after one of {before}"));
            return Err(Failure::Failed(format!("a message of {} can't stand {before}", message.role)));
        }
        for place in &saved.places[saved.visuals.len()..] {
            saved.visuals.push(open(Path::new(&place.place), place.is_video)?);
        }
        saved.messages.push(message);
        Ok(())
    })?;
    match saved.messages.last() {
        Some(message) if message.role == "assistant" => Ok(saved),
        Some(_) => Err(Failure::Failed(format!(
            "{name}, line {}: the answer is missing; the file is cut off",
            number + 1
        ))),
        None => Err(Failure::Failed(format!("{name}, line 1: there is no message"))),
    }
}

fn read_message(mut fields: Map<String, Value>, places: &mut Vec<Place>) -> Result<Message, String> {
    let role = match fields.remove("role") {
        Some(Value::String(role)) if matches!(&*role, "system" | "user" | "assistant") => role,
        Some(other) => {
            return Err(format!("role is {other}; it may be \"system\", \"user\" or \"assistant\""));
        }
        None => return Err("it is no message of a conversation, as it has no role".to_owned()),
    };
    let mut content = Vec::new();
    match fields.remove("reasoning_content") {
        Some(Value::String(text)) if role == "assistant" => content.push(Part::Reasoning { text }),
        Some(_) => return Err("reasoning_content must be a text of the assistant".to_owned()),
        None => {}
    }
    match fields.remove("content") {
        Some(Value::String(text)) => content.push(Part::Text { text }),
        Some(Value::Array(parts)) => {
            for part in parts {
                content.push(read_part(&part, role == "user", places)?);
            }
        }
        _ => return Err("content must be a text or a list".to_owned()),
    }
    match fields.keys().next() {
        Some(name) => Err(format!("the field {name:?} is unknown")),
        None => Ok(Message { role, content }),
    }
}

fn read_part(part: &Value, may_show: bool, places: &mut Vec<Place>) -> Result<Part, String> {
    let kind = part["type"].as_str().unwrap_or_default();
    match (kind, part[kind].as_str()) {
        ("text", Some(text)) => Ok(Part::Text { text: text.to_owned() }),
        ("image" | "video", Some(place)) if may_show => {
            let is_video = kind == "video";
            places.push(Place { is_video, place: place.to_owned() });
            Ok(if is_video { Part::Video } else { Part::Image })
        }
        _ => Err("a part must be a text or, of the user, an image or a video with its path".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(text: &str) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("chat.jsonl");
        fs::write(&file, text).expect("a file");
        let failure = read(&file).expect_err(text);
        let sentence = failure.sentence().expect("a reason");
        sentence.strip_prefix(&*file.display().to_string()).expect("the file's name").to_owned()
    }

    #[test]
    fn a_conversation_comes_back_as_it_was() -> Result<(), Failure> {
        let folder = tempfile::tempdir()?;
        let picture =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny/cases/square.png");
        let places = vec![Place::of(&picture, false).map_err(Failure::Failed)?];
        let thought = Part::Reasoning { text: "why".into() };
        let messages = vec![
            Message::text("system", "Be brief."),
            Message::user(1, "What\nis \"this\"?"),
            Message {
                role: "assistant".into(),
                content: vec![thought, Part::Text { text: "A square.".into() }],
            },
            Message::text("user", ""),
            Message::text("assistant", "Yes?"),
        ];
        let file = folder.path().join("chat.jsonl");
        write(&file, &messages, &places, false)?;
        let saved = read(&file)?;
        assert_eq!((saved.messages, saved.places, saved.visuals.len()), (messages, places, 1));
        assert_eq!(fs::read_to_string(&file)?.lines().count(), 5);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&file)?.permissions().mode() & 0o777, 0o600);
        }
        Ok(())
    }

    #[test]
    fn cut_and_foreign_files_are_refused_by_line() {
        let (question, answer) =
            (r#"{"role":"user","content":"a"}"#, r#"{"role":"assistant","content":"b"}"#);
        for (text, expected) in [
            (String::new(), ", line 1: there is no message"),
            (format!("{question}\n"), ", line 2: the answer is missing"),
            (format!("{question}\n{answer}\n{question}\n{}", &answer[..20]), ", line 4: EOF"),
            (format!("{question}\n{question}\n{answer}\n"), ", line 2: a message of user"),
            (format!("{answer}\n"), ", line 1: a message of assistant can't stand at the beginning"),
            (format!("{question}\n{{\"role\":\"tool\",\"content\":\"\"}}\n"), ", line 2: role is \"tool\""),
            ("{\"model\": 1}\n".into(), ", line 1: it is no message"),
            ("\"text\"\n".into(), ", line 1: it is no message"),
            ("[1]\n".into(), ", line 1: it is neither"),
            ("GGUF\u{3}\n".into(), ", line 1: expected value"),
            (format!("{{\"role\":\"user\",\"content\":5}}\n{answer}\n"), ", line 1: content must be"),
            (
                format!("{{\"role\":\"user\",\"content\":\"a\",\"x\":1}}\n{answer}\n"),
                ", line 1: the field \"x\"",
            ),
            (
                format!(
                    "{{\"role\":\"user\",\"content\":[{{\"type\":\"image\",\"image\":\"/none.png\"}}]}}\n{answer}\n"
                ),
                ", line 1: ",
            ),
        ] {
            let found = sentence(&text);
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }
}
