//! Ollama's addresses, `/api/chat`, `/api/generate`, `/api/tags`, `/api/show`: its requests as conversations of OpenAI's
//! form, and answers in its own, a line of JSON for each piece.

use super::answer::{Answer, Part, Spent};
use super::calls::{Call, Delta};
use super::error::{ApiError, json_response};
use super::fields::{Fields, take};
use super::form::Form;
use super::model::{App, Config};
use super::reply::unix_seconds;
use super::request::{Chat, Parsed};
use super::server::{Asked, Server, parsed, translated};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use qwen3_vl::StopReason;
use qwen3_vl::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, ApiError>;

pub(crate) fn routes() -> Router<Arc<Server>> {
    Router::new()
        .route("/api/chat", post(chat))
        .route("/api/generate", post(generate))
        .route("/api/tags", get(tags))
        .route("/api/ps", get(loaded))
        .route("/api/show", post(show))
        .route("/api/version", get(version))
}

async fn chat(State(server): State<Arc<Server>>, request: Request) -> Response {
    translated(server, request, read_chat, refused).await
}

async fn generate(State(server): State<Arc<Server>>, request: Request) -> Response {
    translated(server, request, read_generate, refused).await
}

/// A request of `/api/chat`, and the form of its answer.
pub(crate) fn read_chat(mut body: Value, config: &Config) -> Result<Asked> {
    Fields::root(&body)?.list("messages")?;
    let mut messages = take(&mut body, "messages");
    for message in messages.as_array_mut().into_iter().flatten() {
        change(message)?;
    }
    asked(body, messages, true, config)
}

/// A request of `/api/generate`, and the form of its answer.
pub(crate) fn read_generate(mut body: Value, config: &Config) -> Result<Asked> {
    let fields = Fields::root(&body)?;
    for name in ["suffix", "template", "context", "raw"] {
        let is_idle = |value: &Value| match value {
            Value::Bool(value) => !value,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        if fields.get(name).is_some_and(|value| !is_idle(value)) {
            return Err(ApiError::unsupported(name, format!("{name} is not supported")));
        }
    }
    let prompt = fields.required("prompt", fields.str("prompt")?)?;
    let mut messages = Vec::new();
    if let Some(system) = fields.str("system")?.filter(|text| !text.is_empty()) {
        messages.push(json!({ "role": "system", "content": system }));
    }
    let mut message = json!({ "role": "user", "content": prompt });
    message["images"] = take(&mut body, "images");
    change(&mut message)?;
    messages.push(message);
    asked(body, messages.into(), false, config)
}

/// A message in OpenAI's form.
fn change(message: &mut Value) -> Result<()> {
    let images = take(message, "images");
    if let Value::Array(images) = images {
        let url = |image: Value| match image {
            Value::String(data) => {
                json!({ "type": "image_url", "image_url": { "url": format!("data:image;base64,{data}") } })
            }
            other => other,
        };
        let mut parts: Vec<Value> = images.into_iter().map(url).collect();
        if !parts.is_empty() {
            match take(message, "content") {
                Value::String(text) if text.is_empty() => {}
                text => parts.push(json!({ "type": "text", "text": text })),
            }
            message["content"] = parts.into();
        }
    }
    let thinking = take(message, "thinking");
    if let Value::Object(map) = message {
        if thinking.is_string() {
            map.insert("reasoning_content".to_owned(), thinking);
        }
        // an assistant's turn that only calls has an empty text
        let is_silent = map.get("content").is_some_and(|content| content == "");
        if is_silent && map.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty())
        {
            map.remove("content");
        }
    }
    Ok(())
}

/// The request in OpenAI's form: the options have other names and a place of their own.
fn asked(mut body: Value, messages: Value, is_chat: bool, config: &Config) -> Result<Asked> {
    let fields = Fields::root(&body)?;
    let mut map = Map::new();
    if let Some(options) = fields.object("options")? {
        for name in options.names() {
            let value = options.get(name).cloned().unwrap_or_default();
            match name {
                "num_predict" if value.as_i64().is_some_and(|most| most < 0) => {} // to the end
                "num_predict" => drop(map.insert("max_tokens".to_owned(), value)),
                "repeat_penalty" => drop(map.insert("repetition_penalty".to_owned(), value)),
                "num_ctx" => {} // the context is the server's
                name => drop(map.insert(name.to_owned(), value)),
            }
        }
    }
    let format = match fields.get("format") {
        None => Value::Null,
        Some(Value::String(text)) if text.is_empty() => Value::Null,
        Some(Value::String(text)) if text == "json" => json!({ "type": "json_object" }),
        Some(schema @ Value::Object(_)) => {
            json!({ "type": "json_schema", "json_schema": { "schema": schema } })
        }
        Some(_) => return Err(ApiError::invalid("format", "format must be \"json\" or a schema")),
    };
    let is_stream = fields.bool("stream")?.unwrap_or(true);
    let shows_thought = fields.get("think") != Some(&Value::Bool(false));
    for name in ["model", "tools", "logprobs", "top_logprobs"] {
        map.insert(name.to_owned(), take(&mut body, name));
    }
    map.insert("messages".to_owned(), messages);
    map.insert("response_format".to_owned(), format);
    map.insert("stream".to_owned(), is_stream.into());
    let chat = Chat::read(&Value::Object(map), config)?;
    let form = Lines {
        model: chat.wish.model.name.clone(),
        is_chat,
        shows_thought,
        begun: Instant::now(),
        first: None,
        end: None,
    };
    Ok(Asked { chat, form: Box::new(form) })
}

fn refused(error: &ApiError) -> Value {
    json!({ "error": error.message })
}

/// The answer to one request.
#[derive(Debug)]
pub(crate) struct Lines {
    model: String,
    is_chat: bool,
    shows_thought: bool,
    begun: Instant,
    /// When the first token came.
    first: Option<Instant>,
    end: Option<(StopReason, Spent)>,
}

impl Lines {
    fn line(&self, text: &str, thought: &str, calls: &[Call]) -> Value {
        let mut value =
            json!({ "model": self.model, "created_at": timestamp(unix_seconds()), "done": false });
        let thought = if self.shows_thought { thought } else { "" };
        let place = match self.is_chat {
            true => {
                value["message"] = json!({ "role": "assistant", "content": text });
                &mut value["message"]
            }
            false => {
                value["response"] = text.into();
                &mut value
            }
        };
        if !thought.is_empty() {
            place["thinking"] = thought.into();
        }
        if !calls.is_empty() {
            let call = |(at, call): (usize, &Call)| {
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
                json!({ "id": call.id, "function": { "index": at, "name": call.name, "arguments": arguments } })
            };
            place["tool_calls"] = calls.iter().enumerate().map(call).collect();
        }
        value
    }

    /// The fields of the last line.
    fn finish(&self, value: &mut Value, reason: StopReason, spent: Spent) {
        let now = Instant::now();
        let first = self.first.unwrap_or(now);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        value["done"] = true.into();
        value["done_reason"] = match reason {
            StopReason::MaxNewTokens | StopReason::ContextFull => "length",
            StopReason::Eos | StopReason::StopString | StopReason::Cancelled => "stop",
        }
        .into();
        value["total_duration"] = nanoseconds(now - self.begun).into();
        value["load_duration"] = 0.into();
        value["prompt_eval_count"] = spent.usage.prompt_tokens.into();
        value["prompt_eval_duration"] = nanoseconds(first - self.begun).into();
        value["eval_count"] = spent.usage.completion_tokens.into();
        value["eval_duration"] = nanoseconds(now - first).into();
    }
}

impl Form for Lines {
    fn complete(&mut self, answers: &[Answer], _: &Tokenizer) -> Value {
        let Some(answer) = answers.first() else { return Value::Null };
        let mut value = self.line(&answer.text, &answer.reasoning, &answer.calls);
        if let Some(reason) = answer.reason {
            self.finish(&mut value, reason, answer.spent);
        }
        value
    }

    fn content_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn part(&mut self, _: usize, part: Part, _: &Tokenizer) -> String {
        self.first.get_or_insert_with(Instant::now);
        let deltas = part.deltas(&mut self.end);
        let line = |delta| match delta {
            Delta::Text(text) => Some(self.line(&text, "", &[])),
            Delta::Reasoning(thought) => self.shows_thought.then(|| self.line("", &thought, &[])),
            Delta::Call(call) => Some(self.line("", "", &[call])),
        };
        deltas.into_iter().filter_map(line).map(|line| format!("{line}\n")).collect()
    }

    fn end(&mut self) -> String {
        let mut value = self.line("", "", &[]);
        if let Some((reason, spent)) = self.end {
            self.finish(&mut value, reason, spent);
        }
        format!("{value}\n")
    }

    fn error(&mut self, error: &ApiError) -> String {
        format!("{}\n", refused(error))
    }

    /// A line would be a piece of the answer.
    fn silence(&self) -> &'static str {
        ""
    }
}

/// Seconds since 1970 as RFC 3339 writes them.
fn timestamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // years that begin in March: the leap day is a year's last
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The details of the one model.
fn details(app: &App) -> Value {
    let family = app.worker.model().config().model.architecture();
    json!({
        "parent_model": "", "format": "pascaline", "family": family, "families": [family],
        "parameter_size": format!("{:.1}B", app.worker.model().parameters() as f64 / 1e9),
        "quantization_level": "",
    })
}

/// `/api/tags`
async fn tags(State(server): State<Arc<Server>>) -> Response {
    list(&server, |_| true)
}

/// `/api/ps`
async fn loaded(State(server): State<Arc<Server>>) -> Response {
    list(&server, |app| app.is_some())
}

fn list(server: &Server, is_shown: fn(&Option<Arc<App>>) -> bool) -> Response {
    let model = |(name, app): (String, Option<Arc<App>>)| {
        json!({
            "name": name, "model": name, "modified_at": timestamp(server.created), "size": 0, "digest": "",
            "details": app.map_or_else(|| json!({ "format": "pascaline" }), |app| details(&app)),
        })
    };
    let all = server.models.names().into_iter().filter(|(_, app)| is_shown(app));
    let models: Vec<_> = all.map(model).collect();
    json_response(StatusCode::OK, &json!({ "models": models }))
}

/// The model that a body names.
struct Shown;

impl Parsed for Shown {
    fn bytes(&self) -> usize {
        0
    }
}

/// `/api/show`. The one model is shown whatever the body says; one of several is loaded for it.
async fn show(State(server): State<Arc<Server>>, request: Request) -> Response {
    let deadline = server.deadline();
    let app = match server.models.one() {
        Some(app) => Ok(Arc::clone(app)),
        None => parsed(&server, request, deadline, |_, _| Ok(Shown)).await.map(|(app, ..)| app),
    };
    match app {
        Ok(app) => shown(&server, &app),
        Err(error) => error.response(&refused(&error)),
    }
}

fn shown(server: &Server, app: &App) -> Response {
    let model = app.worker.model();
    let mut capabilities = vec!["completion", "tools"];
    capabilities.extend(model.processor.pictures.as_ref().map(|_| "vision"));
    let (name, context) = (model.config().model.architecture(), app.config.limits.context);
    let mut info = json!({
        "general.architecture": name,
        "general.parameter_count": model.parameters(),
    });
    info[format!("{name}.context_length")] = context.into();
    let value = json!({
        "modelfile": "", "parameters": "", "template": "", "license": "",
        "modified_at": timestamp(server.created), "details": details(app), "model_info": info,
        "capabilities": capabilities,
    });
    json_response(StatusCode::OK, &value)
}

async fn version() -> Response {
    json_response(StatusCode::OK, &json!({ "version": env!("CARGO_PKG_VERSION") }))
}

#[cfg(test)]
mod tests {
    use super::timestamp;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(seconds), text);
        }
    }
}
