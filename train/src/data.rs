//! Conversations to learn from, one a line, in the format of Qwen's own fine-tuning (QwenLM/Qwen3-VL, `qwen-vl-finetune`):
//!
//! ```text
//! {"image": "pictures/1.png", "conversations": [
//!   {"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "a red circle"}]}
//! ```
//!
//! `image` is a path or a list of them, relative to the file's folder, and each `<image>` is the placeholder of the next. There may be several turns, and
//! a first one from `system`. Only what `gpt` says is learned, with the token that ends it.
//!
//! Tools are in the form that LLaMA-Factory (hiyouga/LLaMA-Factory, `data/README.md`) gives them in this format: `tools` is a list of definitions or its
//! JSON, a turn from `function_call` is the JSON of a call or of a list of them and is learned as what `gpt` says is, and one from `observation` is
//! a call's result:
//!
//! ```text
//! {"tools": [{"name": "crop", "parameters": {…}}], "conversations": [{"from": "human", "value": "Look."},
//!   {"from": "function_call", "value": "{\"name\": \"crop\", \"arguments\": {\"side\": \"left\"}}"},
//!   {"from": "observation", "value": "a cat"}, {"from": "gpt", "value": "A cat."}]}
//! ```

use crate::files::bad;
use crate::model::Example;
use pascaline::{Error, Result};
use qwen3_vl::chat::{Message, Part, calls_text};
use qwen3_vl::files::read_at_most;
use qwen3_vl::{ControlTokens, Processor, Visual};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The placeholder of an image.
const IMAGE: &str = "<image>";
/// How a turn ends in the chat format of all Qwen models.
const END: &str = "<|im_end|>\n";
/// The most bytes of a file.
const MAX_FILE: u64 = 1 << 32;
/// The most bytes of a line.
const MAX_LINE: usize = 64 << 20;
/// The most pictures and turns of a line, and the most bytes that its pictures have decoded.
const MAX_IMAGES: usize = 256;
const MAX_TURNS: usize = 512;
const MAX_DECODED: usize = 1 << 30;

/// A line of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// The pictures' files.
    pub images: Vec<PathBuf>,
    /// The turns.
    pub messages: Vec<Message>,
    /// The tools that may be called, in OpenAI's form.
    pub tools: Vec<Value>,
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
    let bytes = read_at_most(file, MAX_FILE).map_err(|error| bad(file, error))?;
    let text = String::from_utf8(bytes).map_err(|error| bad(file, error))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let all: Vec<_> = lines.map(|(line, text)| parse(file, line + 1, text)).collect::<Result<_>>()?;
    match all.is_empty() {
        false => Ok(all),
        true => Err(bad(file, "has no conversations")),
    }
}

fn parse(file: &Path, line: usize, text: &str) -> Result<Conversation> {
    let wrong = |reason: &str| wrong(file, line, reason);
    let at_most = |count: usize, most: usize, of: &str| match count > most {
        true => Err(wrong(&format!("has {count} {of}, at most {most} are allowed"))),
        false => Ok(()),
    };
    at_most(text.len(), MAX_LINE, "bytes")?;
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
    at_most(images.len(), MAX_IMAGES, "images")?;
    at_most(turns.len(), MAX_TURNS, "turns")?;
    let tools = tools(value.get("tools")).ok_or_else(|| wrong("`tools` is no list of tools with names"))?;
    let (mut messages, mut is_answer, mut placeholders) = (Vec::new(), Vec::new(), 0);
    for turn in turns {
        let text = |name: &str| turn.get(name).and_then(Value::as_str);
        let (Some(from), Some(value)) = (text("from"), text("value")) else {
            return Err(wrong("a turn has no text `from` or `value`"));
        };
        let before = messages.last().map(|last: &Message| &*last.role);
        let (role, content) = match from {
            "human" => ("user", parts(value)),
            "gpt" => ("assistant", vec![Part::Text { text: value.to_owned() }]),
            "function_call" => {
                let calls = calls(value).ok_or_else(|| wrong(NO_CALL))?;
                ("assistant", calls)
            }
            "observation" if messages.iter().any(calls_tools) => ("tool", parts(value)),
            "observation" => return Err(wrong("a turn of observation follows no function_call")),
            "system" if before.is_none() => ("system", parts(value)),
            _ => {
                return Err(wrong(
                    "a turn is from neither human, gpt, function_call nor observation, and only the first may be from system",
                ));
            }
        };
        let answers = role == "assistant";
        if answers && !matches!(before, Some("user" | "tool")) {
            return Err(wrong(&format!("a turn of {from} follows no human turn")));
        }
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
    Ok(Conversation { images, messages, tools, is_answer, file: file.to_owned(), line })
}

fn wrong(file: &Path, line: usize, reason: &str) -> Error {
    bad(file, format!("line {line}: {reason}"))
}

const NO_CALL: &str =
    "a turn of function_call is not the JSON of {\"name\": TEXT, \"arguments\": {…}} or of a list of these";

/// Definitions of tools, in OpenAI's form: `{"type": "function", "function": {"name", …}}`.
fn tools(value: Option<&Value>) -> Option<Vec<Value>> {
    let written: Value;
    let list = match value {
        None | Some(Value::Null) => return Some(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => return Some(Vec::new()),
        Some(Value::String(text)) => {
            written = serde_json::from_str(text).ok()?;
            written.as_array()?
        }
        Some(value) => value.as_array()?,
    };
    let tool = |tool: &Value| {
        let function = tool.get("function").unwrap_or(tool);
        function.get("name")?.as_str()?;
        Some(json!({ "type": "function", "function": function }))
    };
    list.iter().map(tool).collect()
}

/// The calls of a turn.
fn calls(text: &str) -> Option<Vec<Part>> {
    let calls = match serde_json::from_str(text).ok()? {
        Value::Array(calls) if !calls.is_empty() => calls,
        call => vec![call],
    };
    let call = |(at, call): (usize, &Value)| {
        let arguments = call.get("arguments").filter(|arguments| arguments.is_object())?.clone();
        let name = call.get("name")?.as_str()?.to_owned();
        Some(Part::ToolCall { id: format!("call_{at}"), name, arguments })
    };
    calls.iter().enumerate().map(call).collect()
}

fn calls_tools(message: &Message) -> bool {
    message.content.iter().any(|part| matches!(part, Part::ToolCall { .. }))
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
    /// [`Error::Image`] if a picture can't be used; [`Error::Checkpoint`] with the line if it has more text, tokens or pixels than there may
    /// be, or if the chat template does not repeat earlier turns as they were.
    pub fn example(&self, processor: &Processor) -> Result<Example> {
        let wrong = |reason: &str| wrong(&self.file, self.line, reason);
        let named = |error: Error| match error {
            Error::Prompt { reason } => wrong(&reason),
            other => other,
        };
        let Some(last) = self.is_answer.iter().rposition(|is_answer| *is_answer) else {
            return Err(wrong("gpt says nothing, so nothing can be learned"));
        };
        // the prompt of the last answer has all others in it; it is tokenised as a whole, and its pictures are prepared once
        let is_image = |part: &&Part| **part == Part::Image;
        let images =
            self.messages[..last].iter().flat_map(|message| &message.content).filter(is_image).count();
        let visuals = self.visuals(images)?;
        let spelled = ControlTokens::Recognized;
        let prompt = processor.prepare_with(&self.messages[..last], &self.tools, &visuals, spelled);
        let prompt = prompt.map_err(named)?;
        drop(visuals);
        let mut tokens = Vec::new();
        for patches in &prompt.patches {
            let sizes = processor.config.vision.as_ref().map(|vision| vision.sizes());
            tokens.extend(sizes.map(|sizes| patches.tokens(&sizes)).transpose()?);
        }
        // what each turn adds to the text is tokenised alone, to see which tokens are the answers'
        let mut example = Example { ids: Vec::new(), is_answer: Vec::new(), visuals: prompt.patches };
        let (mut text, mut tokens) = (String::new(), tokens.into_iter());
        for (turn, _) in self.is_answer.iter().enumerate().filter(|(_, is_answer)| **is_answer) {
            let rendered = processor.render(&self.messages[..turn], &self.tools).map_err(named)?;
            let Some(added) = rendered.strip_prefix(&text) else { return Err(wrong(CHANGED)) };
            for id in processor.tokenizer.encode(added).map_err(named)? {
                let count = if processor.is_pad(id) { tokens.next().unwrap_or(1) } else { 1 };
                example.ids.resize(example.ids.len() + count, id);
            }
            if turn == last && example.ids != prompt.ids {
                return Err(wrong(CHANGED));
            }
            example.is_answer.resize(example.ids.len(), false);
            let answer = match &self.messages[turn].content[..] {
                [Part::Text { text }] => format!("{text}{END}"),
                calls => format!("{}{END}", calls_text(calls)),
            };
            example.ids.extend(processor.tokenizer.encode(&answer).map_err(named)?);
            example.is_answer.resize(example.ids.len(), true);
            text = rendered + &answer;
        }
        let (found, most) = (example.ids.len(), processor.config.text.max_position_embeddings);
        match found > most {
            true => Err(wrong(&format!("has {found} tokens, and the model's context holds {most}"))),
            false => Ok(example),
        }
    }

    /// The first pictures, decoded.
    fn visuals(&self, count: usize) -> Result<Vec<Visual>> {
        let (mut visuals, mut decoded) = (Vec::new(), 0);
        for file in &self.images[..count] {
            let visual = Visual::image(file)?;
            if let Visual::Image { picture, .. } = &visual {
                decoded += picture.pixels.len();
            }
            if decoded > MAX_DECODED {
                let reason = format!("its pictures have more than {MAX_DECODED} bytes decoded");
                return Err(wrong(&self.file, self.line, &reason));
            }
            visuals.push(visual);
        }
        Ok(visuals)
    }
}

/// The error where a later prompt does not begin with an earlier one.
const CHANGED: &str = "the chat template changes earlier turns, so the turns do not form one sequence";

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
    fn tools_and_calls_are_read() {
        let turns = r#""conversations": [{"from": "human", "value": "Look."},
            {"from": "function_call", "value": "[{\"name\": \"a\", \"arguments\": {}}, {\"name\": \"b\", \"arguments\": {\"x\": 1}}]"},
            {"from": "observation", "value": "1"}, {"from": "observation", "value": "2"}, {"from": "gpt", "value": "3"}]"#;
        let found = parsed(&format!(
            r#"{{"tools": [{{"name": "a"}}, {{"type": "function", "function": {{"name": "b"}}}}], {turns}}}"#
        ));
        let found = found.unwrap();
        let definition = |name: &str| json!({"type": "function", "function": {"name": name}});
        assert_eq!(found.tools, ["a", "b"].map(definition));
        assert_eq!(found.is_answer, [false, true, false, false, true]);
        let roles: Vec<_> = found.messages.iter().map(|message| &*message.role).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant"]);
        let calls = "<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>\n\
                     <tool_call>\n{\"name\": \"b\", \"arguments\": {\"x\": 1}}\n</tool_call>";
        assert_eq!(calls_text(&found.messages[1].content), calls);
        let as_text =
            parsed(&format!(r#"{{"tools": "[{{\"name\": \"a\"}}, {{\"name\": \"b\"}}]", {turns}}}"#));
        assert_eq!(as_text.unwrap().tools, found.tools);
    }

    fn repeated_picture(times: usize) -> String {
        let (paths, pads) = (r#""a.png","#.repeat(times - 1), IMAGE.repeat(times));
        format!(
            r#"{{"image": [{paths}"a.png"], "conversations": [{{"from": "human", "value": "{pads}"}}, {{"from": "gpt", "value": "x"}}]}}"#
        )
    }

    fn turns(pairs: usize) -> String {
        let pair = r#"{"from": "human", "value": "and?"}, {"from": "gpt", "value": "so"},"#;
        format!(r#"{{"conversations": [{}]}}"#, pair.repeat(pairs).trim_end_matches(','))
    }

    #[test]
    fn as_many_pictures_and_turns_as_are_allowed_are_read() {
        assert_eq!(parsed(&repeated_picture(MAX_IMAGES)).unwrap().images.len(), MAX_IMAGES);
        assert_eq!(parsed(&turns(MAX_TURNS / 2)).unwrap().messages.len(), MAX_TURNS);
        let long = format!(r#"{{"conversations": []{}}}"#, " ".repeat(MAX_LINE));
        assert!(parsed(&long).unwrap_err().to_string().contains("at most 67108864"));
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
            (r#"{"tools": [{}], "conversations": []}"#, "tools"),
            (r#"{"tools": "[", "conversations": []}"#, "tools"),
            (
                r#"{"conversations": [{"from": "human", "value": "x"}, {"from": "observation", "value": "x"}]}"#,
                "no function_call",
            ),
            (
                r#"{"conversations": [{"from": "human", "value": "x"}, {"from": "function_call", "value": "crop"}]}"#,
                "not the JSON",
            ),
            (
                r#"{"conversations": [{"from": "human", "value": "x"}, {"from": "function_call", "value": "[]"}]}"#,
                "not the JSON",
            ),
            (r#"{"video": "a", "conversations": []}"#, "videos"),
            (r#"{"image": 3, "conversations": []}"#, "path"),
            (&*repeated_picture(257), "257 images, at most 256"),
            (&*repeated_picture(100_000), "100000 images, at most 256"),
            (&*turns(257), "514 turns, at most 512"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains("line 7") && error.contains(part), "{line}: {error}");
        }
    }
}
