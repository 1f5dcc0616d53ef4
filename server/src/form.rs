//! How an interface writes answers: OpenAI's are in `reply.rs` and `responses.rs`, Anthropic's in `anthropic.rs`, Ollama's
//! in `ollama.rs`.

use super::answer::{Answer, Part};
use super::error::ApiError;
use qwen3_vl::tokenizer::Tokenizer;
use serde_json::Value;

/// An interface's form of one request's answers. Events are returned as they are sent; several may be in one text.
pub(crate) trait Form: Send + Sync + 'static {
    /// The complete response.
    fn complete(&mut self, answers: &[Answer], tokenizer: &Tokenizer) -> Value;

    /// Of a stream.
    fn content_type(&self) -> &'static str {
        "text/event-stream"
    }

    /// Sent before the first part.
    fn begin(&mut self) -> String {
        String::new()
    }

    /// A part of answer `index`.
    fn part(&mut self, index: usize, part: Part, tokenizer: &Tokenizer) -> String;

    /// Sent after the last part.
    fn end(&mut self) -> String;

    /// The error that ends a stream.
    fn error(&mut self, error: &ApiError) -> String;

    /// Sent when nothing has come for a while, so that proxies keep the connection.
    fn silence(&self) -> &'static str {
        ": the answer is still to come\n\n"
    }
}

/// An event of a stream without a name.
pub(crate) fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// An event of a stream that has the name of its `type`.
pub(crate) fn named(value: &Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or_default())
}
