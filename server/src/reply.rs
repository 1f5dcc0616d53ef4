//! Answers in the format of OpenAI's chat completions and completions.

use super::answer::Answer;
use super::app::App;
use super::worker::Usage;
use qwen3_vl::StopReason;
use qwen3_vl::batch::PromptProgress;
use qwen3_vl::sampling::Logprobs;
use qwen3_vl::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Chat,
    Text,
}

/// The fields that all parts of a request's answer share.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub kind: Kind,
    id: String,
    created: u64,
    model: String,
}

/// A chunk of a streamed answer.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub index: usize,
    /// Whether it is the answer's first.
    pub is_first: bool,
    pub text: String,
    pub token: Option<(u32, Logprobs)>,
    /// Bytes of the answer's text before it.
    pub offset: usize,
    pub reason: Option<StopReason>,
}

impl Shape {
    pub fn new(app: &App, kind: Kind) -> Self {
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{:032x}", rand::random::<u128>());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { kind, id, created: now.as_secs(), model: app.config.name.clone() }
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

    /// The complete response. `answers` has `choices` answers to each prompt.
    pub fn complete(&self, answers: &[Answer], choices: usize, tokenizer: &Tokenizer) -> Value {
        let choice = |(index, answer): (usize, &Answer)| {
            let reason = answer.reason.map(finish_reason);
            let reported = !answer.tokens.is_empty();
            match self.kind {
                Kind::Chat => {
                    let content: Vec<_> =
                        answer.tokens.iter().map(|token| chat_logprob(token, tokenizer)).collect();
                    json!({
                        "index": index,
                        "message": { "role": "assistant", "content": answer.text, "refusal": null },
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
        value["usage"] = usage(answers.iter().map(|answer| answer.usage), choices);
        value
    }

    /// A streamed chunk, with `usage: null` if the usage follows at the end.
    pub fn piece(&self, piece: &Piece, with_usage: bool, tokenizer: &Tokenizer) -> Value {
        let Piece { index, is_first, text, token, offset, reason } = piece;
        let reason = reason.map(finish_reason);
        let (object, choice) = match self.kind {
            Kind::Chat => {
                let mut delta = Map::new();
                if *is_first {
                    delta.insert("role".into(), "assistant".into());
                }
                if reason.is_none() || !text.is_empty() {
                    delta.insert("content".into(), text.clone().into());
                }
                let logprobs = token
                    .as_ref()
                    .map(|token| json!({ "content": [chat_logprob(token, tokenizer)], "refusal": null }));
                let choice = json!({
                    "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason,
                });
                ("chat.completion.chunk", choice)
            }
            Kind::Text => {
                let logprobs = token
                    .as_ref()
                    .map(|token| text_logprobs(std::slice::from_ref(token), *offset, tokenizer));
                let choice = json!({
                    "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason,
                });
                ("text_completion", choice)
            }
        };
        let mut value = self.object(object, vec![choice]);
        if with_usage {
            value["usage"] = Value::Null;
        }
        value
    }

    /// The progress of an answer's prompt, in the form of llama-server: a chunk without text.
    pub fn progress(&self, index: usize, progress: &PromptProgress) -> Value {
        let (object, choice) = match self.kind {
            Kind::Chat => (
                "chat.completion.chunk",
                json!({ "index": index, "delta": {}, "logprobs": null, "finish_reason": null }),
            ),
            Kind::Text => (
                "text_completion",
                json!({ "index": index, "text": "", "logprobs": null, "finish_reason": null }),
            ),
        };
        let mut value = self.object(object, vec![choice]);
        value["prompt_progress"] = json!({
            "total": progress.total,
            "cache": progress.cached,
            "processed": progress.processed,
            "time_ms": u64::try_from(progress.time.as_millis()).unwrap_or(u64::MAX),
        });
        value
    }

    /// The last chunk, if usage was requested.
    pub fn usage(&self, usages: &[Usage], choices: usize) -> Value {
        let object = if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" };
        let mut value = self.object(object, Vec::new());
        value["usage"] = usage(usages.iter().copied(), choices);
        value
    }
}

fn finish_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Eos | StopReason::StopString | StopReason::Cancelled => "stop",
        StopReason::MaxNewTokens | StopReason::ContextFull => "length",
    }
}

/// A prompt counts once, however many answers it has.
fn usage(usages: impl Iterator<Item = Usage>, choices: usize) -> Value {
    let (mut prompt, mut cached, mut completion) = (0, 0, 0);
    for (at, usage) in usages.enumerate() {
        if at % choices == 0 {
            prompt += usage.prompt_tokens;
            cached += usage.cached_tokens;
        }
        completion += usage.completion_tokens;
    }
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
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
