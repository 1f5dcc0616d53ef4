//! Answers in the format of OpenAI's chat completions and completions.

use super::answer::{Answer, Part, Spent};
use super::calls::{Call, Delta};
use super::error::ApiError;
use super::form::{Form, data};
use super::request::Wish;
use qwen3_vl::StopReason;
use qwen3_vl::batch::PromptProgress;
use qwen3_vl::sampling::Logprobs;
use qwen3_vl::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::mem;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Chat,
    Text,
}

/// The answers of a request.
#[derive(Debug)]
pub(crate) struct Shape {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    /// Answers to each prompt.
    choices: usize,
    /// Whether a stream ends with the token counts.
    include_usage: bool,
    /// Of each answer that has begun in a stream.
    sent: Vec<Sent>,
}

/// What was sent of an answer.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    has_begun: bool,
    /// Bytes of its text.
    bytes: usize,
    calls: usize,
    spent: Spent,
}

impl Shape {
    pub fn new(kind: Kind, wish: &Wish) -> Self {
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        Self {
            kind,
            id: new_id(&format!("{prefix}-")),
            created: unix_seconds(),
            model: wish.model.name.clone(),
            choices: wish.choices,
            include_usage: wish.include_usage,
            sent: Vec::new(),
        }
    }

    fn object(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("pascaline-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        self.object(
            if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" },
            choices,
        )
    }

    /// The progress of an answer's prompt, in the form of llama-server: a chunk without text.
    fn progress(&self, index: usize, progress: &PromptProgress) -> String {
        let mut choice = match self.kind {
            Kind::Chat => json!({ "delta": {} }),
            Kind::Text => json!({ "text": "" }),
        };
        (choice["index"], choice["logprobs"], choice["finish_reason"]) =
            (index.into(), Value::Null, Value::Null);
        let mut value = self.chunk(vec![choice]);
        if self.include_usage {
            value["usage"] = Value::Null;
        }
        value["prompt_progress"] = json!({
            "total": progress.total,
            "cache": progress.cached,
            "processed": progress.processed,
            "time_ms": u64::try_from(progress.time.as_millis()).unwrap_or(u64::MAX),
        });
        data(&value)
    }

    /// A choice of a streamed chunk.
    fn choice(
        &self,
        index: usize,
        mut content: Value,
        logprobs: Option<Value>,
        reason: Option<&str>,
    ) -> String {
        content["index"] = index.into();
        content["logprobs"] = logprobs.unwrap_or_default();
        content["finish_reason"] = reason.into();
        let mut value = self.chunk(vec![content]);
        if self.include_usage {
            value["usage"] = Value::Null;
        }
        data(&value)
    }

    /// A part of an answer to a conversation. The probability is in the first chunk, the reason in the last.
    fn chat_part(
        &mut self,
        index: usize,
        deltas: Vec<Delta>,
        mut logprobs: Option<Value>,
        reason: Option<StopReason>,
    ) -> String {
        let mut pieces: Vec<Map<String, Value>> = Vec::new();
        let mut piece =
            |name: &str, value: Value| pieces.push([(name.to_owned(), value)].into_iter().collect());
        for delta in deltas {
            match delta {
                Delta::Text(text) => piece("content", text.into()),
                Delta::Reasoning(text) => piece("reasoning_content", text.into()),
                Delta::Call(Call { id, name, arguments }) => {
                    let at = self.sent[index].calls;
                    self.sent[index].calls += 1;
                    let begin = json!({ "index": at, "id": id, "type": "function", "function": { "name": name, "arguments": "" } });
                    piece("tool_calls", json!([begin]));
                    piece("tool_calls", json!([{ "index": at, "function": { "arguments": arguments } }]));
                }
            }
        }
        let is_first = !mem::replace(&mut self.sent[index].has_begun, true);
        if pieces.is_empty() {
            // nothing that a client must know: a token that begins a character, a tag or a call
            if !is_first && logprobs.is_none() && reason.is_none() {
                return String::new();
            }
            pieces.push(Map::new());
        }
        if is_first {
            let first = &mut pieces[0];
            first.insert("role".into(), "assistant".into());
            if first.len() == 1 && reason.is_none() {
                first.insert("content".into(), "".into());
            }
        }
        let last = pieces.len() - 1;
        let reason = reason.map(|reason| finish_reason(reason, self.sent[index].calls > 0));
        let mut events = String::new();
        for (at, piece) in pieces.into_iter().enumerate() {
            let reason = reason.filter(|_| at == last);
            events += &self.choice(index, json!({ "delta": piece }), logprobs.take(), reason);
        }
        events
    }

    /// A part of an answer to a prompt without a template.
    fn text_part(
        &mut self,
        index: usize,
        deltas: &[Delta],
        token: Option<(u32, Logprobs)>,
        reason: Option<StopReason>,
        tokenizer: &Tokenizer,
    ) -> String {
        let text: String =
            deltas.iter().map(|delta| if let Delta::Text(text) = delta { text } else { "" }).collect();
        let sent = &mut self.sent[index];
        let (is_first, offset) = (!mem::replace(&mut sent.has_begun, true), sent.bytes);
        sent.bytes += text.len();
        if text.is_empty() && token.is_none() && reason.is_none() && !is_first {
            return String::new();
        }
        let logprobs = token.map(|token| text_logprobs(&[token], offset, tokenizer));
        let reason = reason.map(|reason| finish_reason(reason, false));
        self.choice(index, json!({ "text": text }), logprobs, reason)
    }
}

impl Form for Shape {
    fn complete(&mut self, answers: &[Answer], tokenizer: &Tokenizer) -> Value {
        let choice = |(index, answer): (usize, &Answer)| {
            let reason = answer.reason.map(|reason| finish_reason(reason, !answer.calls.is_empty()));
            let reported = !answer.tokens.is_empty();
            match self.kind {
                Kind::Chat => {
                    let content: Vec<_> =
                        answer.tokens.iter().map(|token| chat_logprob(token, tokenizer)).collect();
                    json!({
                        "index": index,
                        "message": message(answer),
                        "logprobs": reported.then(|| json!({ "content": content, "refusal": null })),
                        "finish_reason": reason,
                    })
                }
                Kind::Text => json!({
                    "index": index,
                    "text": answer.text,
                    "logprobs": reported.then(|| text_logprobs(&answer.tokens, 0, tokenizer)),
                    "finish_reason": reason,
                }),
            }
        };
        let object = if self.kind == Kind::Chat { "chat.completion" } else { "text_completion" };
        let mut value = self.object(object, answers.iter().enumerate().map(choice).collect());
        value["usage"] = usage(answers.iter().map(|answer| answer.spent), self.choices);
        value
    }

    fn part(&mut self, index: usize, part: Part, tokenizer: &Tokenizer) -> String {
        if self.sent.len() <= index {
            self.sent.resize(index + 1, Sent::default());
        }
        let (deltas, token, reason) = match part {
            Part::Prompt(progress) => return self.progress(index, &progress),
            Part::Token { id, deltas, logprobs } => (deltas, logprobs.map(|logprobs| (id, logprobs)), None),
            Part::Done { deltas, reason, spent } => {
                self.sent[index].spent = spent;
                (deltas, None, Some(reason))
            }
        };
        match self.kind {
            Kind::Chat => {
                let logprobs = token
                    .map(|token| json!({ "content": [chat_logprob(&token, tokenizer)], "refusal": null }));
                self.chat_part(index, deltas, logprobs, reason)
            }
            Kind::Text => self.text_part(index, &deltas, token, reason, tokenizer),
        }
    }

    fn end(&mut self) -> String {
        let mut events = String::new();
        if self.include_usage {
            let mut value = self.chunk(Vec::new());
            value["usage"] = usage(self.sent.iter().map(|sent| sent.spent), self.choices);
            events += &data(&value);
        }
        events + "data: [DONE]\n\n"
    }

    fn error(&mut self, error: &ApiError) -> String {
        data(&error.to_json())
    }
}

/// An answer as a message. Its content is null if it has calls and no text.
fn message(answer: &Answer) -> Value {
    let content = match answer.text.is_empty() && !answer.calls.is_empty() {
        true => Value::Null,
        false => answer.text.as_str().into(),
    };
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !answer.reasoning.is_empty() {
        message["reasoning_content"] = answer.reasoning.as_str().into();
    }
    if !answer.calls.is_empty() {
        let call = |Call { id, name, arguments }: &Call| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        message["tool_calls"] = answer.calls.iter().map(call).collect();
    }
    message
}

/// An id that no other answer has.
pub(crate) fn new_id(prefix: &str) -> String {
    format!("{prefix}{:032x}", rand::random::<u128>())
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn finish_reason(reason: StopReason, has_called: bool) -> &'static str {
    match reason {
        StopReason::Eos | StopReason::StopString if has_called => "tool_calls",
        StopReason::Eos | StopReason::StopString | StopReason::Cancelled => "stop",
        StopReason::MaxNewTokens | StopReason::ContextFull => "length",
    }
}

/// A prompt counts once, however many answers it has.
fn usage(answers: impl Iterator<Item = Spent>, choices: usize) -> Value {
    let (mut prompt, mut cached, mut completion, mut reasoning) = (0, 0, 0, 0);
    for (at, Spent { usage, reasoning_tokens }) in answers.enumerate() {
        if at % choices == 0 {
            prompt += usage.prompt_tokens;
            cached += usage.cached_tokens;
        }
        completion += usage.completion_tokens;
        reasoning += reasoning_tokens;
    }
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
        "completion_tokens_details": { "reasoning_tokens": reasoning },
    })
}

/// A token's bytes; for a special token those of its spelling.
fn bytes(id: u32, tokenizer: &Tokenizer) -> Vec<u8> {
    tokenizer.control(id).map_or_else(|| tokenizer.token_bytes(id), String::into_bytes)
}

/// JSON has no infinities; OpenAI writes this value for −∞.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

fn chat_logprob((id, logprobs): &(u32, Logprobs), tokenizer: &Tokenizer) -> Value {
    let one = |id: u32, logprob: f32| {
        let bytes = bytes(id, tokenizer);
        json!({ "token": String::from_utf8_lossy(&bytes), "logprob": finite(logprob), "bytes": bytes })
    };
    let mut value = one(*id, logprobs.chosen);
    let top = logprobs.top.iter().map(|&(id, logprob)| one(id, logprob));
    value["top_logprobs"] = top.collect();
    value
}

fn text_logprobs(tokens: &[(u32, Logprobs)], mut offset: usize, tokenizer: &Tokenizer) -> Value {
    let spelled = |id| String::from_utf8_lossy(&bytes(id, tokenizer)).into_owned();
    let mut offsets = Vec::with_capacity(tokens.len());
    for (id, _) in tokens {
        offsets.push(offset);
        offset += tokenizer.token_bytes(*id).len();
    }
    let top = |logprobs: &Logprobs| -> Map<String, Value> {
        logprobs.top.iter().map(|&(id, logprob)| (spelled(id), finite(logprob).into())).collect()
    };
    json!({
        "tokens": tokens.iter().map(|(id, _)| spelled(*id)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|(_, logprobs)| finite(logprobs.chosen)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(|(_, logprobs)| top(logprobs)).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}
