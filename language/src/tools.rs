//! Tools in the form of text, for chat templates that have no form of their own for them, and the texts inside JSON.
//!
//! The form is that of Qwen's published templates: the system message has each tool's definition on a line between
//! `<tools>` and `</tools>`, the assistant's calls stand between `<tool_call>` and `</tool_call>`, and results come in a
//! user's turn between `<tool_response>` and `</tool_response>`.

use super::message::{Message, Part};
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};
use std::io::{self, Write};
use std::mem;

/// How a call is written.
const HOW: &str = "To call one, write a JSON object with its name and its arguments:\n<tool_call>\n{\"name\": NAME, \"arguments\": \
                   {…}}\n</tool_call>\nSeveral calls may follow each other. The results come in <tool_response></tool_response>.";

/// The conversation with its tools, calls and results as text.
pub(super) fn as_text(messages: &[Message], tools: &[Value]) -> Vec<Message> {
    let mut found: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    let mut is_result = false;
    for message in messages {
        let was_result = mem::replace(&mut is_result, message.role == "tool");
        let mut content: Vec<Part> = message.content.iter().filter_map(part_as_text).collect();
        if !is_result {
            found.push(Message { role: message.role.clone(), content });
            continue;
        }
        content.insert(0, text("<tool_response>\n"));
        content.push(text("\n</tool_response>"));
        match found.last_mut() {
            Some(before) if was_result => {
                before.content.push(text("\n"));
                before.content.append(&mut content);
            }
            _ => found.push(Message { role: "user".into(), content }),
        }
    }
    found.iter_mut().for_each(join_texts);
    if !tools.is_empty() {
        let lines: String = tools.iter().map(|tool| json_text(tool) + "\n").collect();
        let told = format!("You may call these tools.\n<tools>\n{lines}</tools>\n{HOW}");
        match found.first_mut() {
            Some(first) if first.role == "system" => {
                first.content.push(text(&format!("\n\n{told}")));
                join_texts(first);
            }
            _ => found.insert(0, Message::text("system", told)),
        }
    }
    found
}

/// An assistant's calls as it writes them, other parts left out: the form of Qwen's published templates.
pub fn calls_text(parts: &[Part]) -> String {
    let calls: Vec<String> = parts.iter().filter_map(call_text).collect();
    calls.join("\n")
}

fn call_text(part: &Part) -> Option<String> {
    let Part::ToolCall { name, arguments, .. } = part else { return None };
    let (name, arguments) = (json_text(&Value::from(&**name)), json_text(arguments));
    Some(format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"))
}

fn text(text: &str) -> Part {
    Part::Text { text: text.to_owned() }
}

/// A thought is left out: a template that has no form for tools has none for it.
fn part_as_text(part: &Part) -> Option<Part> {
    match part {
        Part::Reasoning { .. } => None,
        Part::ToolCall { .. } => call_text(part).map(|call| text(&format!("\n{call}"))),
        other => Some(other.clone()),
    }
}

/// Joins neighbouring texts: templates take a single one as a string. A call that nothing precedes begins its turn.
fn join_texts(message: &mut Message) {
    let mut joined: Vec<Part> = Vec::with_capacity(message.content.len());
    for part in mem::take(&mut message.content) {
        match (joined.last_mut(), part) {
            (Some(Part::Text { text }), Part::Text { text: more }) => text.push_str(&more),
            (_, part) => joined.push(part),
        }
    }
    if let (Some(Part::Text { text }), "assistant") = (joined.first_mut(), &*message.role)
        && text.starts_with("\n<tool_call>")
    {
        text.remove(0);
    }
    message.content = joined;
}

/// Gives each text of a value, names of fields too, to `note`.
pub(super) fn texts_of(value: &Value, note: &mut impl FnMut(&str)) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => note(text),
        Value::Array(items) => items.iter().for_each(|item| texts_of(item, note)),
        Value::Object(map) => {
            for (name, value) in map {
                note(name);
                texts_of(value, note);
            }
        }
    }
}

/// The value with each text, names of fields too, replaced by that of `change`.
pub(super) fn each_text<E>(
    value: &Value,
    change: &mut impl FnMut(&str) -> Result<String, E>,
) -> Result<Value, E> {
    Ok(match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        Value::String(text) => Value::String(change(text)?),
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| each_text(item, change)).collect::<Result<_, E>>()?)
        }
        Value::Object(map) => Value::Object(
            map.iter()
                .map(|(name, value)| Ok((change(name)?, each_text(value, change)?)))
                .collect::<Result<_, E>>()?,
        ),
    })
}

/// JSON as Python writes it, which models were trained on: a space after each comma and colon.
fn json_text(value: &Value) -> String {
    let mut text = Vec::new();
    let written = serde::Serialize::serialize(value, &mut Serializer::with_formatter(&mut text, Spaced));
    debug_assert!(written.is_ok(), "a vector takes all, and names are strings");
    String::from_utf8_lossy(&text).into_owned()
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, is_first: bool) -> io::Result<()> {
        out.write_all(if is_first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, is_first: bool) -> io::Result<()> {
        out.write_all(if is_first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_conversation_with_tools_is_text() {
        let call = |name: &str| Part::ToolCall {
            id: "1".into(),
            name: name.into(),
            arguments: json!({ "x": [1, 2] }),
        };
        let result = |parts| Message { role: "tool".into(), content: parts };
        let messages = [
            Message::text("user", "Look."),
            Message {
                role: "assistant".into(),
                content: vec![Part::Reasoning { text: "hm".into() }, call("a\"b"), call("c")],
            },
            result(vec![Part::Image]),
            result(vec![text("two")]),
        ];
        let found = as_text(&messages, &[json!({ "name": "c" })]);
        assert_eq!(found.len(), 4);
        assert_eq!(found[0].role, "system");
        let told = format!("{:?}", found[0]);
        assert!(told.contains("<tools>\\n{\\\"name\\\": \\\"c\\\"}\\n</tools>"), "{told}");
        let calls = "<tool_call>\n{\"name\": \"a\\\"b\", \"arguments\": {\"x\": [1, 2]}}\n</tool_call>\n\
                     <tool_call>\n{\"name\": \"c\", \"arguments\": {\"x\": [1, 2]}}\n</tool_call>";
        assert_eq!(found[2], Message::text("assistant", calls));
        let content = vec![
            text("<tool_response>\n"),
            Part::Image,
            text("\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"),
        ];
        assert_eq!(found[3], Message { role: "user".into(), content });
        let plain = [Message::text("system", "Be brief."), Message::text("user", "Hi")];
        assert_eq!(as_text(&plain, &[]), plain);
        let told = as_text(&plain, &[json!({})]);
        assert!(
            matches!(&told[0].content[..], [Part::Text { text }] if text.starts_with("Be brief.\n\nYou may"))
        );
    }
}
