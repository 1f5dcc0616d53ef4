//! OpenAI's `/v1/responses`: its requests as conversations of the chat's form, and answers in its own. Nothing is stored.

use super::answer::{Answer, Part, Spent};
use super::calls::{Call, Delta};
use super::error::ApiError;
use super::fields::{Fields, take};
use super::form::{Form, named};
use super::model::Config;
use super::reply::{new_id, unix_seconds};
use super::request::Chat;
use super::server::{Asked, Server, translated};
use axum::extract::{Request, State};
use axum::response::Response;
use qwen3_vl::StopReason;
use qwen3_vl::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::sync::Arc;

type Result<T> = std::result::Result<T, ApiError>;

pub(crate) async fn answer(State(server): State<Arc<Server>>, request: Request) -> Response {
    translated(server, request, read, ApiError::to_json).await
}

/// A request and the form of its answer.
pub(crate) fn read(mut body: Value, config: &Config) -> Result<Asked> {
    let fields = Fields::root(&body)?;
    for name in ["previous_response_id", "conversation"] {
        if fields.get(name).is_some() {
            let message = format!("{name} is not supported: nothing is stored, so send the whole input");
            return Err(ApiError::unsupported(name, message));
        }
    }
    if fields.bool("background")?.unwrap_or(false) {
        return Err(ApiError::unsupported("background", "background is not supported"));
    }
    let tools =
        fields.list("tools")?.map(|list| list.iter().enumerate().map(tool).collect::<Result<Vec<_>>>());
    let tools: Value = tools.transpose()?.into();
    let choice = choice(&fields)?;
    let format = format(&fields)?;
    let mut messages = Vec::new();
    if let Some(instructions) = fields.str("instructions")? {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    fields.required("input", fields.get("input"))?;
    let shown = json!({
        "instructions": fields.get("instructions"), "tools": fields.get("tools").cloned().unwrap_or_else(|| json!([])),
        "tool_choice": fields.get("tool_choice").cloned().unwrap_or_else(|| json!("auto")),
        "parallel_tool_calls": fields.bool("parallel_tool_calls")?.unwrap_or(true),
        "temperature": fields.get("temperature"), "top_p": fields.get("top_p"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "text": fields.get("text").cloned().unwrap_or_else(|| json!({ "format": { "type": "text" } })),
    });
    match take(&mut body, "input") {
        Value::String(text) => messages.push(json!({ "role": "user", "content": text })),
        Value::Array(items) => {
            for (at, item) in items.into_iter().enumerate() {
                add_item(at, item, &mut messages)?;
            }
        }
        other => return Err(super::fields::wrong("input", "a string or a list", &other)),
    }
    let mut map = Map::new();
    let mut most = take(&mut body, "max_output_tokens");
    for (name, value) in [
        ("messages", messages.into()),
        ("tools", tools),
        ("tool_choice", choice),
        ("response_format", format),
        ("max_completion_tokens", most.take()),
    ] {
        map.insert(name.to_owned(), value);
    }
    if let Value::Object(rest) = body {
        for (name, value) in rest {
            if !["tools", "tool_choice", "text", "input", "max_output_tokens", "instructions"]
                .contains(&&*name)
            {
                map.entry(name).or_insert(value);
            }
        }
    }
    let chat = Chat::read(&Value::Object(map), config).map_err(|mut error| {
        error.param = error.param.map(|path| match path.strip_prefix("messages") {
            Some(rest) => format!("input{rest}"),
            None => path,
        });
        error
    })?;
    let form = Responses {
        id: new_id("resp_"),
        created: unix_seconds(),
        model: chat.wish.model.name.clone(),
        shown,
        sequence: 0,
        output: Vec::new(),
        open: None,
        end: None,
    };
    Ok(Asked { chat, form: Box::new(form) })
}

fn tool((at, tool): (usize, &Value)) -> Result<Value> {
    let tool = Fields::at(format!("tools[{at}]"), tool)?;
    let kind = tool.required("type", tool.str("type")?)?;
    if kind != "function" {
        let path = tool.path("type");
        return Err(ApiError::unsupported(path.clone(), format!("{path} is {kind:?}; it may be function")));
    }
    let mut function = Map::new();
    for name in ["name", "description", "parameters", "strict"] {
        function.extend(tool.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    Ok(json!({ "type": "function", "function": function }))
}

fn choice(fields: &Fields) -> Result<Value> {
    let Some(choice @ Value::Object(_)) = fields.get("tool_choice") else {
        return Ok(fields.get("tool_choice").cloned().unwrap_or_default());
    };
    let choice = Fields::at("tool_choice".to_owned(), choice)?;
    let name = choice.required("name", choice.str("name")?)?;
    Ok(json!({ "type": choice.get("type"), "function": { "name": name } }))
}

/// `text.format` as `response_format`.
fn format(fields: &Fields) -> Result<Value> {
    let Some(text) = fields.object("text")? else { return Ok(Value::Null) };
    let Some(format) = text.object("format")? else { return Ok(Value::Null) };
    let kind = format.required("type", format.str("type")?)?;
    Ok(match kind {
        "json_schema" => json!({ "type": kind, "json_schema": { "schema": format.get("schema") } }),
        kind => json!({ "type": kind }),
    })
}

/// Adds an item to the conversation. Thoughts, texts and calls that follow each other are one turn of the assistant.
fn add_item(at: usize, mut item: Value, messages: &mut Vec<Value>) -> Result<()> {
    let path = format!("input[{at}]");
    let fields = Fields::at(path.clone(), &item)?;
    match fields.str("type")?.unwrap_or("message") {
        "message" => {
            let role = fields.required("role", fields.str("role")?)?.to_owned();
            let content = match take(&mut item, "content") {
                Value::Array(parts) => parts.into_iter().map(part).collect(),
                other => other,
            };
            match role == "assistant" {
                true => {
                    let turn = assistant(messages, |turn| !has(turn, "content") && !has(turn, "tool_calls"));
                    turn.insert("content".to_owned(), content);
                }
                false => messages.push(json!({ "role": role, "content": content })),
            }
        }
        "function_call" => {
            let call = json!({
                "id": fields.get("call_id"), "type": "function",
                "function": { "name": fields.get("name"), "arguments": fields.get("arguments") },
            });
            let turn = assistant(messages, |_| true);
            if let Value::Array(calls) = turn.entry("tool_calls").or_insert_with(|| json!([])) {
                calls.push(call);
            }
        }
        "function_call_output" => {
            let id = take(&mut item, "call_id");
            let content = match take(&mut item, "output") {
                Value::Array(parts) => parts.into_iter().map(part).collect(),
                other => other,
            };
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
        }
        "reasoning" => {
            let thought: String = ["content", "summary"]
                .into_iter()
                .filter_map(|name| fields.get(name).and_then(Value::as_array))
                .find(|parts| !parts.is_empty())
                .into_iter()
                .flatten()
                .filter_map(|part| part.get("text").and_then(Value::as_str))
                .collect();
            let turn = assistant(messages, |turn| !has(turn, "content") && !has(turn, "tool_calls"));
            turn.insert("reasoning_content".to_owned(), thought.into());
        }
        other => {
            let path = fields.path("type");
            let message = format!(
                "{path} is {other:?}; it may be message, function_call, function_call_output or reasoning"
            );
            return Err(ApiError::unsupported(path, message));
        }
    }
    Ok(())
}

fn has(turn: &Map<String, Value>, name: &str) -> bool {
    turn.contains_key(name)
}

/// The last turn if it is the assistant's and `goes_on`, or a new one.
fn assistant(
    messages: &mut Vec<Value>,
    goes_on: impl FnOnce(&Map<String, Value>) -> bool,
) -> &mut Map<String, Value> {
    let is_open = messages
        .last()
        .and_then(Value::as_object)
        .is_some_and(|turn| turn.get("role").is_some_and(|role| role == "assistant") && goes_on(turn));
    if !is_open {
        messages.push(json!({ "role": "assistant" }));
    }
    let last = messages.len() - 1;
    match &mut messages[last] {
        Value::Object(turn) => turn,
        _ => unreachable!("it was found or pushed as an object"),
    }
}

/// A part of a message's content.
fn part(mut part: Value) -> Value {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    match kind {
        "input_text" | "output_text" => json!({ "type": "text", "text": take(&mut part, "text") }),
        "refusal" => json!({ "type": "text", "text": take(&mut part, "refusal") }),
        "input_image" => json!({ "type": "image_url", "image_url": take(&mut part, "image_url") }),
        _ => part,
    }
}

/// The answer to one request.
#[derive(Debug)]
pub(crate) struct Responses {
    id: String,
    created: u64,
    model: String,
    /// Fields of the request that the answer repeats.
    shown: Value,
    /// Events sent.
    sequence: usize,
    /// The items that are complete.
    output: Vec<Value>,
    /// The item that has begun in a stream: whether it is a thought, its id, and its text.
    open: Option<(bool, String, String)>,
    end: Option<(StopReason, Spent)>,
}

impl Responses {
    fn response(&self, status: &str) -> Value {
        let mut value = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "model": self.model,
            "output": self.output, "error": null, "incomplete_details": null, "metadata": {}, "store": false,
            "previous_response_id": null, "truncation": "disabled", "usage": null,
        });
        if let (Value::Object(map), Value::Object(shown)) = (&mut value, &self.shown) {
            map.extend(shown.clone());
        }
        if let Some((reason, Spent { usage, reasoning_tokens })) = self.end {
            value["usage"] = json!({
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": { "cached_tokens": usage.cached_tokens },
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": { "reasoning_tokens": reasoning_tokens },
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            });
            if is_cut(reason) {
                value["incomplete_details"] = json!({ "reason": "max_output_tokens" });
            }
        }
        value
    }

    fn event(&mut self, kind: &str, mut value: Value) -> String {
        value["type"] = kind.into();
        value["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        named(&value)
    }

    /// Text of the answer or of the thought.
    fn text(&mut self, is_thought: bool, delta: &str) -> String {
        let mut events = String::new();
        if self.open.as_ref().is_none_or(|(thought, ..)| *thought != is_thought) {
            events += &self.close();
            let id = new_id(if is_thought { "rs_" } else { "msg_" });
            let (at, item) = (self.output.len(), item(is_thought, &id, None));
            events += &self.event("response.output_item.added", json!({ "output_index": at, "item": item }));
            let added = json!({ "item_id": id, "output_index": at, "content_index": 0, "part": content(is_thought, "") });
            events += &self.event("response.content_part.added", added);
            self.open = Some((is_thought, id, String::new()));
        }
        let Some((_, id, text)) = &mut self.open else { return events };
        text.push_str(delta);
        let mut value =
            json!({ "item_id": id, "output_index": self.output.len(), "content_index": 0, "delta": delta });
        if !is_thought {
            value["logprobs"] = json!([]);
        }
        events
            + &self.event(
                if is_thought { "response.reasoning_text.delta" } else { "response.output_text.delta" },
                value,
            )
    }

    /// Ends the item that has begun.
    fn close(&mut self) -> String {
        let Some((is_thought, id, text)) = self.open.take() else { return String::new() };
        let at = self.output.len();
        let place = || json!({ "item_id": id, "output_index": at, "content_index": 0 });
        let mut done = place();
        done["text"] = text.as_str().into();
        if !is_thought {
            done["logprobs"] = json!([]);
        }
        let mut events = self.event(
            if is_thought { "response.reasoning_text.done" } else { "response.output_text.done" },
            done,
        );
        let mut done = place();
        done["part"] = content(is_thought, &text);
        events += &self.event("response.content_part.done", done);
        let item = item(is_thought, &id, Some(&text));
        events += &self.event("response.output_item.done", json!({ "output_index": at, "item": item }));
        self.output.push(item);
        events
    }

    fn call(&mut self, call: &Call) -> String {
        let mut events = self.close();
        let (at, id) = (self.output.len(), new_id("fc_"));
        let begun = called(call, &id, "", "in_progress");
        events += &self.event("response.output_item.added", json!({ "output_index": at, "item": begun }));
        let delta = json!({ "item_id": id, "output_index": at, "delta": call.arguments });
        events += &self.event("response.function_call_arguments.delta", delta);
        let done =
            json!({ "item_id": id, "output_index": at, "name": call.name, "arguments": call.arguments });
        events += &self.event("response.function_call_arguments.done", done);
        let item = called(call, &id, &call.arguments, "completed");
        events += &self.event("response.output_item.done", json!({ "output_index": at, "item": item }));
        self.output.push(item);
        events
    }
}

fn is_cut(reason: StopReason) -> bool {
    matches!(reason, StopReason::MaxNewTokens | StopReason::ContextFull)
}

fn content(is_thought: bool, text: &str) -> Value {
    match is_thought {
        true => json!({ "type": "reasoning_text", "text": text }),
        false => json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
    }
}

/// An item that has begun, or is complete with its text.
fn item(is_thought: bool, id: &str, text: Option<&str>) -> Value {
    let status = if text.is_some() { "completed" } else { "in_progress" };
    let content: Vec<Value> = text.map(|text| content(is_thought, text)).into_iter().collect();
    match is_thought {
        true => json!({ "type": "reasoning", "id": id, "summary": [], "content": content, "status": status }),
        false => {
            json!({ "type": "message", "id": id, "role": "assistant", "content": content, "status": status })
        }
    }
}

fn called(call: &Call, id: &str, arguments: &str, status: &str) -> Value {
    json!({
        "type": "function_call", "id": id, "call_id": call.id, "name": call.name, "arguments": arguments,
        "status": status,
    })
}

impl Form for Responses {
    fn complete(&mut self, answers: &[Answer], _: &Tokenizer) -> Value {
        let Some(answer) = answers.first() else { return Value::Null };
        if !answer.reasoning.is_empty() {
            self.output.push(item(true, &new_id("rs_"), Some(&answer.reasoning)));
        }
        if !answer.text.is_empty() || answer.calls.is_empty() {
            self.output.push(item(false, &new_id("msg_"), Some(&answer.text)));
        }
        for call in &answer.calls {
            self.output.push(called(call, &new_id("fc_"), &call.arguments, "completed"));
        }
        self.end = answer.reason.map(|reason| (reason, answer.spent));
        self.response(if answer.reason.is_some_and(is_cut) { "incomplete" } else { "completed" })
    }

    fn begin(&mut self) -> String {
        let response = self.response("in_progress");
        let created = self.event("response.created", json!({ "response": response }));
        created + &self.event("response.in_progress", json!({ "response": response }))
    }

    fn part(&mut self, _: usize, part: Part, _: &Tokenizer) -> String {
        let deltas = part.deltas(&mut self.end);
        let mut events = String::new();
        for delta in deltas {
            events += &match delta {
                Delta::Text(text) => self.text(false, &text),
                Delta::Reasoning(text) => self.text(true, &text),
                Delta::Call(call) => self.call(&call),
            };
        }
        events
    }

    fn end(&mut self) -> String {
        let events = self.close();
        let is_cut = self.end.is_some_and(|(reason, _)| is_cut(reason));
        let response = self.response(if is_cut { "incomplete" } else { "completed" });
        let kind = if is_cut { "response.incomplete" } else { "response.completed" };
        events + &self.event(kind, json!({ "response": response }))
    }

    fn error(&mut self, error: &ApiError) -> String {
        let code = error.code.unwrap_or("server_error");
        let mut response = self.response("failed");
        response["error"] = json!({ "code": code, "message": error.message });
        let failed = json!({ "code": code, "message": error.message, "param": error.param });
        let event = self.event("error", failed);
        event + &self.event("response.failed", json!({ "response": response }))
    }
}
