//! Anthropic's `/v1/messages`: its requests as conversations of OpenAI's form, and answers in its own.

use super::answer::{Answer, Part};
use super::calls::{Call, Delta};
use super::error::{ApiError, json_response};
use super::fields::{Fields, take};
use super::form::{Form, named};
use super::model::Config;
use super::prepare;
use super::reply::new_id;
use super::request::{Chat, Tokenize};
use super::server::{Asked, Server, parsed, translated};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use qwen3_vl::StopReason;
use qwen3_vl::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tokio::time::timeout_at;

type Result<T> = std::result::Result<T, ApiError>;

pub(crate) async fn answer(State(server): State<Arc<Server>>, request: Request) -> Response {
    translated(server, request, read, refused).await
}

/// `/v1/messages/count_tokens`
pub(crate) async fn count(State(server): State<Arc<Server>>, request: Request) -> Response {
    let deadline = server.deadline();
    let result = async {
        let read = |body: Value, config: &Config| Tokenize::read(&openai(body)?, &config.limits);
        let (app, wish, charge) = parsed(&server, request, deadline, read).await?;
        let work = prepare::tokens(&app, wish, charge);
        let (tokens, _charge) = timeout_at(deadline, work).await.map_err(|_| app.too_slow())??;
        Ok(json_response(StatusCode::OK, &json!({ "input_tokens": tokens.len() })))
    };
    result.await.unwrap_or_else(|error: ApiError| error.response(&refused(&error)))
}

/// A request and the form of its answer.
pub(crate) fn read(body: Value, config: &Config) -> Result<Asked> {
    let stops = body["stop_sequences"].as_array().cloned().unwrap_or_default();
    let chat = Chat::read(&openai(body)?, config)?;
    let stop = if let [Value::String(stop)] = &stops[..] { Some(stop.clone()) } else { None };
    let form = Message {
        id: new_id("msg_"),
        model: chat.wish.model.name.clone(),
        stop,
        block: None,
        blocks: 0,
        has_called: false,
        end: None,
    };
    Ok(Asked { chat, form: Box::new(form) })
}

/// The body in OpenAI's form. Only what has another name or place is changed: `Chat::read` checks the rest.
fn openai(mut body: Value) -> Result<Value> {
    let fields = Fields::root(&body)?;
    let tools =
        fields.list("tools")?.map(|list| list.iter().enumerate().map(tool).collect::<Result<Vec<_>>>());
    let tools = tools.transpose()?;
    let (choice, is_one) = choice(&fields)?;
    let mut messages = Vec::new();
    if let Some(system) = fields.get("system") {
        messages.push(json!({ "role": "system", "content": system }));
    }
    fields.required("messages", fields.list("messages")?)?;
    let Value::Array(turns) = take(&mut body, "messages") else {
        return Err(ApiError::internal("a list is none"));
    };
    for turn in turns {
        add_turn(turn, &mut messages);
    }
    let Value::Object(mut map) = body else { return Err(ApiError::internal("an object is none")) };
    let mut set = |name: &str, value: Value| {
        map.insert(name.to_owned(), value);
    };
    set("messages", messages.into());
    set("tools", tools.into());
    set("tool_choice", choice);
    set("parallel_tool_calls", (!is_one).into());
    let stops = map.remove("stop_sequences");
    map.insert("stop".to_owned(), stops.unwrap_or_default());
    Ok(Value::Object(map))
}

fn tool((at, tool): (usize, &Value)) -> Result<Value> {
    let tool = Fields::at(format!("tools[{at}]"), tool)?;
    if let Some(kind) = tool.str("type")?.filter(|kind| *kind != "custom") {
        let path = tool.path("type");
        return Err(ApiError::unsupported(path.clone(), format!("{path} is {kind:?}; it may be custom")));
    }
    let mut function = Map::new();
    for (name, own) in [
        ("name", "name"),
        ("description", "description"),
        ("parameters", "input_schema"),
        ("strict", "strict"),
    ] {
        function.extend(tool.get(own).map(|value| (name.to_owned(), value.clone())));
    }
    Ok(json!({ "type": "function", "function": function }))
}

/// `tool_choice` in OpenAI's form, and whether there may be one call only.
fn choice(fields: &Fields) -> Result<(Value, bool)> {
    let Some(choice) = fields.object("tool_choice")? else { return Ok((Value::Null, false)) };
    let is_one = choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
    let value = match choice.required("type", choice.str("type")?)? {
        "any" => json!("required"),
        kind @ ("auto" | "none") => json!(kind),
        "tool" => {
            let name = choice.required("name", choice.str("name")?)?;
            json!({ "type": "function", "function": { "name": name } })
        }
        other => {
            let message = format!("tool_choice.type is {other:?}; it may be auto, any, tool or none");
            return Err(ApiError::invalid("tool_choice.type", message));
        }
    };
    Ok((value, is_one))
}

/// A turn as one message, or a result of a tool as one of its own, which come first.
fn add_turn(mut turn: Value, messages: &mut Vec<Value>) {
    if !turn.get("content").is_some_and(Value::is_array) {
        return messages.push(turn);
    }
    let Value::Array(blocks) = take(&mut turn, "content") else { return };
    let (mut parts, mut calls, mut reasoning) = (Vec::new(), Vec::new(), String::new());
    let is_empty = blocks.is_empty();
    let mut has_results = false;
    for mut block in blocks {
        match block["type"].as_str() {
            Some("tool_result") => {
                has_results = true;
                let content = match take(&mut block, "content") {
                    Value::Array(inner) if inner.is_empty() => json!(""),
                    Value::Array(inner) => inner.into_iter().map(part).collect(),
                    Value::Null => json!(""),
                    other => other,
                };
                messages.push(json!({ "role": "tool", "content": content, "tool_call_id": take(&mut block, "tool_use_id") }));
            }
            Some("tool_use") => calls.push(json!({
                "id": take(&mut block, "id"), "type": "function",
                "function": { "name": take(&mut block, "name"), "arguments": take(&mut block, "input") },
            })),
            Some("thinking") => reasoning += block["thinking"].as_str().unwrap_or_default(),
            Some("redacted_thinking") => {}
            _ => parts.push(part(block)),
        }
    }
    if has_results && parts.is_empty() && calls.is_empty() {
        return;
    }
    let mut message = json!({ "role": take(&mut turn, "role") });
    if !parts.is_empty() || is_empty {
        message["content"] = parts.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    messages.push(message);
}

/// A block that is a text or a picture.
fn part(mut block: Value) -> Value {
    if block["type"] != "image" {
        return block;
    }
    let mut source = take(&mut block, "source");
    let url = match (source["type"].as_str(), source["media_type"].as_str(), source["data"].as_str()) {
        (Some("base64"), Some(kind), Some(data)) => json!(format!("data:{kind};base64,{data}")),
        (Some("url"), ..) => take(&mut source, "url"),
        _ => Value::Null,
    };
    json!({ "type": "image_url", "image_url": { "url": url } })
}

/// An error as Anthropic writes it.
fn refused(error: &ApiError) -> Value {
    let kind = match error.status {
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => error.kind(),
    };
    json!({ "type": "error", "error": { "type": kind, "message": error.message } })
}

/// The answer to one request.
#[derive(Debug)]
pub(crate) struct Message {
    id: String,
    model: String,
    /// The stop sequence, if there is one only.
    stop: Option<String>,
    /// The type of the block that has begun in a stream.
    block: Option<&'static str>,
    blocks: usize,
    has_called: bool,
    /// The reason and the counts of the end.
    end: Option<(StopReason, super::answer::Spent)>,
}

impl Message {
    fn message(&self, content: Vec<Value>, reason: Option<&str>, usage: &Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": reason, "stop_sequence": self.stop_sequence(reason), "usage": usage,
        })
    }

    fn stop_sequence(&self, reason: Option<&str>) -> Option<&String> {
        self.stop.as_ref().filter(|_| reason == Some("stop_sequence"))
    }

    /// Begins a block if none of this type has begun.
    fn open(&mut self, kind: &'static str, block: &Value) -> String {
        if self.block == Some(kind) && kind != "tool_use" {
            return String::new();
        }
        let events = self.close();
        self.block = Some(kind);
        let begin = json!({ "type": "content_block_start", "index": self.blocks, "content_block": block });
        events + &named(&begin)
    }

    fn close(&mut self) -> String {
        match self.block.take() {
            None => String::new(),
            Some(_) => {
                let end = json!({ "type": "content_block_stop", "index": self.blocks });
                self.blocks += 1;
                named(&end)
            }
        }
    }

    fn delta(&self, delta: &Value) -> String {
        named(&json!({ "type": "content_block_delta", "index": self.blocks, "delta": delta }))
    }
}

fn reason(reason: StopReason, has_called: bool) -> &'static str {
    match reason {
        StopReason::MaxNewTokens | StopReason::ContextFull => "max_tokens",
        _ if has_called => "tool_use",
        StopReason::StopString => "stop_sequence",
        StopReason::Eos | StopReason::Cancelled => "end_turn",
    }
}

/// Cached tokens are counted apart.
fn usage(spent: super::answer::Spent) -> Value {
    let usage = spent.usage;
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    })
}

fn tool_use(call: &Call, input: &Value) -> Value {
    json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input })
}

impl Form for Message {
    fn complete(&mut self, answers: &[Answer], _: &Tokenizer) -> Value {
        let Some(answer) = answers.first() else { return Value::Null };
        let mut content = Vec::new();
        if !answer.reasoning.is_empty() {
            content.push(json!({ "type": "thinking", "thinking": answer.reasoning, "signature": "" }));
        }
        if !answer.text.is_empty() {
            content.push(json!({ "type": "text", "text": answer.text }));
        }
        for call in &answer.calls {
            content.push(tool_use(call, &serde_json::from_str(&call.arguments).unwrap_or_default()));
        }
        let reason = answer.reason.map(|end| reason(end, !answer.calls.is_empty()));
        self.message(content, reason, &usage(answer.spent))
    }

    fn begin(&mut self) -> String {
        let message = self.message(Vec::new(), None, &json!({ "input_tokens": 0, "output_tokens": 0 }));
        named(&json!({ "type": "message_start", "message": message }))
    }

    fn part(&mut self, _: usize, part: Part, _: &Tokenizer) -> String {
        let deltas = part.deltas(&mut self.end);
        let mut events = String::new();
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => {
                    events += &self
                        .open("thinking", &json!({ "type": "thinking", "thinking": "", "signature": "" }));
                    events += &self.delta(&json!({ "type": "thinking_delta", "thinking": text }));
                }
                Delta::Text(text) => {
                    events += &self.open("text", &json!({ "type": "text", "text": "" }));
                    events += &self.delta(&json!({ "type": "text_delta", "text": text }));
                }
                Delta::Call(call) => {
                    self.has_called = true;
                    events += &self.open("tool_use", &tool_use(&call, &json!({})));
                    events +=
                        &self.delta(&json!({ "type": "input_json_delta", "partial_json": call.arguments }));
                }
            }
        }
        events
    }

    fn end(&mut self) -> String {
        let mut events = self.close();
        if let Some((end, spent)) = self.end {
            let reason = reason(end, self.has_called);
            let delta = json!({ "stop_reason": reason, "stop_sequence": self.stop_sequence(Some(reason)) });
            events += &named(&json!({ "type": "message_delta", "delta": delta, "usage": usage(spent) }));
        }
        events + &named(&json!({ "type": "message_stop" }))
    }

    fn error(&mut self, error: &ApiError) -> String {
        named(&refused(error))
    }

    fn silence(&self) -> &'static str {
        "event: ping\ndata: {\"type\": \"ping\"}\n\n"
    }
}
