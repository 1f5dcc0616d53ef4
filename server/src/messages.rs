//! The messages of a request: turns, their pictures, tool calls and thoughts.

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::images::{Asked, Pictures, Source, bound, pixel_limits};
use super::limits::Limits;
use super::tools;
use super::videos::Frames;
use qwen3_vl::chat::{Message, Part};
use qwen3_vl::media::PixelLimits;
use serde_json::{Map, Value};

type Result<T> = std::result::Result<T, ApiError>;

/// The most values of all arguments of a request: a list of empty lists takes a hundred times its text.
const MAX_VALUES: usize = 100_000;
/// The most tool calls of a message.
const MAX_CALLS: usize = 128;

/// The conversation, and its pictures in their order.
pub(crate) fn messages(fields: &Fields, limits: &Limits) -> Result<(Vec<Message>, Pictures)> {
    let list = fields.required("messages", fields.list("messages")?)?;
    if list.is_empty() {
        return Err(ApiError::invalid("messages", "messages is empty"));
    }
    let mut pictures = Vec::new();
    let mut messages = Vec::with_capacity(list.len());
    let mut values = MAX_VALUES;
    for (at, value) in list.iter().enumerate() {
        let fields = Fields::at(format!("messages[{at}]"), value)?;
        let role = match fields.required("role", fields.str("role")?)? {
            "developer" => "system", // its newer name
            role @ ("system" | "user" | "assistant") => role,
            // a result needs a call that it answers
            "tool" if messages.last().is_some_and(may_have_result) => "tool",
            "tool" => {
                let path = fields.path("role");
                let message = format!("{path} is \"tool\", and the message before has no tool_calls");
                return Err(ApiError::invalid(path, message));
            }
            other => {
                let path = fields.path("role");
                let message =
                    format!("{path} is {other:?}; it may be system, developer, user, assistant or tool");
                return Err(ApiError::invalid(path, message));
            }
        };
        let content = match role {
            "assistant" => turn(&fields, &mut pictures, &mut values, limits)?,
            _ => content(&fields, &mut pictures, limits)?,
        };
        messages.push(Message { role: role.to_owned(), content });
    }
    bound(fields, pictures.iter_mut(), limits, PixelLimits::default())?;
    if pictures.len() > limits.pictures {
        let message = format!("{} pictures; a request may have {}", pictures.len(), limits.pictures);
        return Err(ApiError::invalid("messages", message));
    }
    Ok((messages, pictures))
}

/// Whether a tool's result may follow.
fn may_have_result(message: &Message) -> bool {
    message.role == "tool" || message.content.iter().any(|part| matches!(part, Part::ToolCall { .. }))
}

/// An assistant's turn: its thought, its text, which may be null if there are calls, and its calls.
fn turn(fields: &Fields, pictures: &mut Pictures, values: &mut usize, limits: &Limits) -> Result<Vec<Part>> {
    let calls = calls(fields, values)?;
    let mut thought = fields.str("reasoning_content")?;
    if thought.is_none() {
        thought = fields.str("reasoning")?; // as vLLM's later versions have it
    }
    let mut parts: Vec<Part> = thought
        .filter(|text| !text.is_empty())
        .map(|text| Part::Reasoning { text: text.to_owned() })
        .into_iter()
        .collect();
    // null and an empty list are no text
    let is_silent = fields.get("content").is_none_or(|value| value.as_array().is_some_and(Vec::is_empty));
    if !(is_silent && !(calls.is_empty() && parts.is_empty())) {
        parts.append(&mut content(fields, pictures, limits)?);
    }
    parts.extend(calls);
    Ok(parts)
}

/// `tool_calls` of an earlier answer.
fn calls(fields: &Fields, values: &mut usize) -> Result<Vec<Part>> {
    if fields.get("function_call").is_some() {
        let path = fields.path("function_call");
        let message = format!("{path} is OpenAI's old form and is not supported; use tool_calls");
        return Err(ApiError::unsupported(path, message));
    }
    let list = fields.list("tool_calls")?.unwrap_or_default();
    if list.len() > MAX_CALLS {
        let path = fields.path("tool_calls");
        return Err(ApiError::invalid(path, format!("{} calls; a message may have {MAX_CALLS}", list.len())));
    }
    let call = |(at, value): (usize, &Value)| {
        let call = Fields::at(format!("{}[{at}]", fields.path("tool_calls")), value)?;
        let function = call.required("function", call.object("function")?)?;
        let count = match function.get("arguments") {
            Some(Value::String(text)) => text.bytes().filter(|byte| b"[{,".contains(byte)).count(),
            Some(arguments) => tools::values(arguments),
            None => 0,
        };
        *values = values.checked_sub(count).ok_or_else(|| {
            let path = function.path("arguments");
            let message =
                format!("{path}: the arguments of all calls together have more than {MAX_VALUES} values");
            ApiError::invalid(path, message)
        })?;
        let arguments = match function.get("arguments") {
            None => Value::Object(Map::new()),
            // a model's own text, which need not be JSON
            Some(Value::String(text)) => match serde_json::from_str(text) {
                Ok(arguments @ Value::Object(_)) => arguments,
                Ok(_) | Err(_) if text.trim().is_empty() => Value::Object(Map::new()),
                Ok(_) | Err(_) => Value::from(&**text),
            },
            Some(arguments @ Value::Object(_)) => arguments.clone(),
            Some(other) => return Err(wrong(&function.path("arguments"), "JSON in a string", other)),
        };
        tools::check_depth(&function.path("arguments"), &arguments)?;
        Ok(Part::ToolCall {
            id: call.str("id")?.unwrap_or_default().to_owned(),
            name: tools::name(&function)?.to_owned(),
            arguments,
        })
    };
    list.iter().enumerate().map(call).collect()
}

pub(crate) fn content(fields: &Fields, pictures: &mut Pictures, limits: &Limits) -> Result<Vec<Part>> {
    let path = fields.path("content");
    let parts = match fields.required("content", fields.get("content"))? {
        Value::String(text) => return Ok(vec![Part::Text { text: text.clone() }]),
        Value::Array(parts) => parts,
        other => return Err(wrong(&path, "a string or a list of parts", other)),
    };
    if parts.is_empty() {
        return Err(ApiError::invalid(path.clone(), format!("{path} is empty")));
    }
    let one = |(at, part): (usize, &Value)| {
        let part = Fields::at(format!("{path}[{at}]"), part)?;
        match part.required("type", part.str("type")?)? {
            "text" => Ok(Part::Text { text: part.required("text", part.str("text")?)?.to_owned() }),
            kind @ ("image_url" | "video_url") => {
                let (mut pixels, mut frames) = (pixel_limits(&part, limits)?, Frames::read(&part)?);
                let (path, url) = match part.get(kind) {
                    Some(Value::String(url)) => (part.path(kind), url.as_str()), // as some clients send it
                    _ => {
                        let shown = part.required(kind, part.object(kind)?)?;
                        pixels = pixels.or(pixel_limits(&shown, limits)?);
                        frames = frames.or(Frames::read(&shown)?);
                        (shown.path("url"), shown.required("url", shown.str("url")?)?)
                    }
                };
                let source = Source::read(&path, url, limits)?;
                let is_video = kind == "video_url";
                pictures.push(Asked { param: path, source, pixels, frames: is_video.then_some(frames) });
                Ok(if is_video { Part::Video } else { Part::Image })
            }
            other => {
                let path = part.path("type");
                let message = format!("{path} is {other:?}; it may be text, image_url or video_url");
                Err(ApiError::invalid(path, message))
            }
        }
    };
    parts.iter().enumerate().map(one).collect()
}
