//! The turns of a conversation, and their parts. `chat.rs` makes a prompt of them.

use serde_json::Value;

/// A turn of the conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, or `tool` for a tool's result.
    pub role: String,
    /// The message's parts, in order.
    pub content: Vec<Part>,
}

/// A piece of a turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// The next image.
    Image,
    /// The next video.
    Video,
    /// What the assistant thought before it answered. Templates decide which turns still show it.
    Reasoning {
        /// The thought.
        text: String,
    },
    /// A tool that the assistant called.
    ToolCall {
        /// The call's name in the conversation.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments, an object.
        arguments: Value,
    },
}

impl Message {
    /// A turn with text only.
    pub fn text(role: &str, text: impl Into<String>) -> Self {
        Self { role: role.to_owned(), content: vec![Part::Text { text: text.into() }] }
    }

    /// A user's turn: `images` images, then text.
    pub fn user(images: usize, text: impl Into<String>) -> Self {
        let mut content = vec![Part::Image; images];
        content.push(Part::Text { text: text.into() });
        Self { role: "user".into(), content }
    }

    /// Bytes of its texts, its thoughts and its tool calls.
    pub fn bytes(&self) -> usize {
        let part = |part: &Part| match part {
            Part::Text { text } | Part::Reasoning { text } => text.len(),
            Part::Image | Part::Video => 0,
            Part::ToolCall { id, name, arguments } => id.len() + name.len() + json_bytes(arguments),
        };
        self.content.iter().map(part).sum()
    }
}

/// Bytes of JSON's texts and about those of the rest.
pub(super) fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 4,
        Value::Array(items) => 4 + items.iter().map(json_bytes).sum::<usize>(),
        Value::Object(map) => {
            4 + map.iter().map(|(name, value)| name.len() + 6 + json_bytes(value)).sum::<usize>()
        }
    }
}
