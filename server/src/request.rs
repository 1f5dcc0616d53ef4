//! Request bodies, checked field by field before anything is computed.
//!
//! Unknown fields are ignored, as OpenAI does. Known but unsupported fields that would change the answer are refused.

use super::app::Config;
use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::images::{Asked, Pictures, Source, pixel_limits};
use super::limits::Limits;
use qwen3_vl::chat::{Message, Part};
use qwen3_vl::{Options, Sampling};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, ApiError>;

/// The most answers to one prompt.
const MAX_CHOICES: usize = 16;
/// The most prompts of a completion request.
const MAX_PROMPTS: usize = 16;
/// The most stop strings, and the most bytes of one.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
/// The most alternatives per token that are reported (`top_logprobs`).
const MAX_LOGPROBS: usize = 20;

/// Options of an answer that chat and completions share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wish {
    /// `max_new_tokens` is not final before the prompt is known.
    pub options: Options,
    /// `max_tokens` as requested.
    pub max_tokens: Option<usize>,
    /// Answers to each prompt; each has the seed of the one before plus 1.
    pub choices: usize,
    pub logprobs: Option<usize>,
    /// The schema of the JSON that the answer must be.
    pub schema: Option<Value>,
    pub stream: bool,
    pub include_usage: bool,
}

/// `/v1/chat/completions`
#[derive(Debug)]
pub(crate) struct Chat {
    pub messages: Vec<Message>,
    pub pictures: Pictures,
    pub wish: Wish,
}

/// A prompt without a template.
#[derive(Debug, PartialEq)]
pub(crate) enum Raw {
    Text(String),
    Tokens(Vec<u32>),
}

/// `/v1/completions`
#[derive(Debug)]
pub(crate) struct Completion {
    pub prompts: Vec<Raw>,
    pub wish: Wish,
}

/// `/tokenize`
#[derive(Debug)]
pub(crate) enum Tokenize {
    Text { text: String, parse_special: bool },
    Chat { messages: Vec<Message>, pictures: Pictures },
}

/// What is left of a parsed body.
pub(crate) trait Parsed: Sized + Send + 'static {
    /// Bytes of memory that it takes.
    fn bytes(&self) -> usize;
}

impl Parsed for Chat {
    fn bytes(&self) -> usize {
        bytes_of(&self.messages, &self.pictures)
    }
}

impl Parsed for Completion {
    fn bytes(&self) -> usize {
        let one = |prompt: &Raw| match prompt {
            Raw::Text(text) => text.len(),
            Raw::Tokens(ids) => size_of_val(&ids[..]),
        };
        self.prompts.iter().map(one).sum()
    }
}

impl Parsed for Tokenize {
    fn bytes(&self) -> usize {
        match self {
            Self::Text { text, .. } => text.len(),
            Self::Chat { messages, pictures } => bytes_of(messages, pictures),
        }
    }
}

/// Bytes of a conversation, with what each of its allocations takes besides.
pub(crate) fn bytes_of(messages: &[Message], pictures: &Pictures) -> usize {
    const ALLOCATION: usize = 64;
    let part = |part: &Part| match part {
        Part::Text { text } => text.len() + ALLOCATION,
        Part::Image | Part::Video => ALLOCATION,
    };
    let message = |message: &Message| message.content.iter().map(part).sum::<usize>() + 4 * ALLOCATION;
    let file = |asked: &Asked| asked.source.bytes() + asked.param.len() + 4 * ALLOCATION;
    messages.iter().map(message).sum::<usize>() + pictures.iter().map(file).sum::<usize>()
}

impl Chat {
    pub fn read(body: &Value, config: &Config) -> Result<Self> {
        let fields = Fields::root(body)?;
        for name in ["tools", "functions"] {
            if fields.list(name)?.is_some_and(|list| !list.is_empty()) {
                return Err(ApiError::unsupported(name, format!("{name} are not supported")));
            }
        }
        if let Some(modalities) = fields.list("modalities")?
            && modalities.iter().any(|kind| kind != "text")
        {
            return Err(ApiError::unsupported("modalities", "answers are text only"));
        }
        let (messages, pictures) = messages(&fields, &config.limits)?;
        let mut wish = wish(&fields, config)?;
        let report = fields.bool("logprobs")?.unwrap_or(false);
        let top = fields.whole("top_logprobs", 0, MAX_LOGPROBS)?;
        if top.is_some_and(|top| top > 0) && !report {
            return Err(ApiError::invalid("top_logprobs", "top_logprobs asks for logprobs = true"));
        }
        wish.logprobs = report.then(|| top.unwrap_or(0));
        wish.schema = schema(&fields)?;
        if wish.schema.is_some() {
            wish.options.stop_at_eos = true; // nothing can follow the JSON
        }
        Ok(Self { messages, pictures, wish })
    }
}

impl Completion {
    pub fn read(body: &Value, config: &Config) -> Result<Self> {
        let fields = Fields::root(body)?;
        for (name, idle) in [("echo", json!(false)), ("suffix", json!("")), ("best_of", json!(1))] {
            if fields.get(name).is_some_and(|value| *value != idle) {
                return Err(ApiError::unsupported(name, format!("{name} is not supported")));
            }
        }
        let prompts = prompts(&fields)?;
        let mut wish = wish(&fields, config)?;
        wish.logprobs = fields.whole("logprobs", 0, MAX_LOGPROBS)?;
        Ok(Self { prompts, wish })
    }
}

impl Tokenize {
    pub fn read(body: &Value, limits: &Limits) -> Result<Self> {
        let fields = Fields::root(body)?;
        if fields.get("messages").is_some() {
            let (messages, pictures) = messages(&fields, limits)?;
            return Ok(Self::Chat { messages, pictures });
        }
        let name = if fields.get("prompt").is_some() { "prompt" } else { "content" };
        let text = fields.required(name, fields.str(name)?)?.to_owned();
        let parse_special = fields.bool("parse_special")?.unwrap_or(false);
        Ok(Self::Text { text, parse_special })
    }
}

/// Parses the fields that chat and completions share.
fn wish(fields: &Fields, config: &Config) -> Result<Wish> {
    let defaults = &config.defaults;
    fields.str("model")?; // there is only one model, so any name is accepted
    if let Some(bias) = fields.object("logit_bias")?
        && !bias.is_empty()
    {
        return Err(ApiError::unsupported("logit_bias", "logit_bias is not supported"));
    }
    let usual = &defaults.sampling;
    let top_k = match fields.get("top_k") {
        Some(value) if value.as_i64() == Some(-1) => Some(0), // as other servers spell it
        _ => fields.whole("top_k", 0, usize::MAX)?,
    };
    let mut sampling = Sampling {
        temperature: fields.number("temperature")?.unwrap_or(usual.temperature),
        top_k: top_k.unwrap_or(usual.top_k),
        top_p: fields.number("top_p")?.unwrap_or(usual.top_p),
        min_p: fields.number("min_p")?.unwrap_or(usual.min_p),
        repetition_penalty: fields.number("repetition_penalty")?.unwrap_or(usual.repetition_penalty),
        presence_penalty: fields.number("presence_penalty")?.unwrap_or(usual.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(usual.frequency_penalty),
        seed: 0,
    };
    for (name, value, least, most) in [
        ("presence_penalty", sampling.presence_penalty, -2.0, 2.0),
        ("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0),
        ("repetition_penalty", sampling.repetition_penalty, 0.01, 100.0),
    ] {
        if fields.get(name).is_some() && !(least..=most).contains(&value) {
            let message = format!("{name} is {value}; it may be from {least} to {most}");
            return Err(ApiError::invalid(name, message));
        }
    }
    sampling.check()?;
    sampling.seed = fields.bits("seed")?.or(config.seed).unwrap_or_else(rand::random);
    let [old, new] = ["max_tokens", "max_completion_tokens"].map(|name| fields.whole(name, 1, usize::MAX));
    let (old, new) = (old?, new?);
    let stream = fields.bool("stream")?.unwrap_or(false);
    let stream_options = fields.object("stream_options")?;
    let include_usage =
        stream_options.map_or(Ok(None), |options| options.bool("include_usage"))?.unwrap_or(false);
    let stop = stops(fields)?;
    Ok(Wish {
        options: Options {
            max_new_tokens: defaults.max_new_tokens,
            sampling,
            stop: if stop.is_empty() { defaults.stop.clone() } else { stop },
            stop_at_eos: !fields.bool("ignore_eos")?.unwrap_or(!defaults.stop_at_eos),
            graph: defaults.graph,
            prompt_lookup: false,
        },
        max_tokens: new.or(old),
        choices: fields.whole("n", 1, MAX_CHOICES)?.unwrap_or(1),
        logprobs: None,
        schema: None,
        stream,
        include_usage,
    })
}

fn stops(fields: &Fields) -> Result<Vec<String>> {
    let stops = match fields.get("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) if stops.len() <= MAX_STOPS => {
            let one = |(at, stop): (usize, &Value)| {
                let stop = stop.as_str().map(str::to_owned);
                stop.ok_or_else(|| wrong(&format!("stop[{at}]"), "a string", &stops[at]))
            };
            stops.iter().enumerate().map(one).collect::<Result<_>>()?
        }
        Some(other) => {
            return Err(wrong("stop", &format!("a string or a list of up to {MAX_STOPS}"), other));
        }
    };
    if stops.iter().any(|stop| stop.len() > MAX_STOP_BYTES) {
        return Err(ApiError::invalid("stop", format!("a stop string has more than {MAX_STOP_BYTES} bytes")));
    }
    Ok(stops)
}

/// The schema of `response_format`; `None` for text.
fn schema(fields: &Fields) -> Result<Option<Value>> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    match format.required("type", format.str("type")?)? {
        "text" => Ok(None),
        "json_object" => Ok(Some(json!({ "type": "object" }))),
        "json_schema" => {
            let outer = format.required("json_schema", format.object("json_schema")?)?;
            let schema = outer.required("schema", outer.get("schema"))?;
            match schema.is_object() || schema.is_boolean() {
                true => Ok(Some(schema.clone())),
                false => Err(wrong(&outer.path("schema"), "a schema", schema)),
            }
        }
        other => Err(ApiError::invalid(
            "response_format.type",
            format!("response_format.type is {other:?}; it may be text, json_object or json_schema"),
        )),
    }
}

fn prompts(fields: &Fields) -> Result<Vec<Raw>> {
    let what = "a string, a list of strings, a list of tokens or a list of such lists";
    let value = fields.required("prompt", fields.get("prompt"))?;
    let refused = || wrong("prompt", what, value);
    let prompts = match value {
        Value::String(text) => vec![Raw::Text(text.clone())],
        Value::Array(list) if list.iter().any(Value::is_number) => {
            vec![Raw::Tokens(tokens(list).ok_or_else(refused)?)]
        }
        Value::Array(list) => {
            let one = |prompt: &Value| match prompt {
                Value::String(text) => Some(Raw::Text(text.clone())),
                Value::Array(list) => tokens(list).map(Raw::Tokens),
                _ => None,
            };
            list.iter().map(one).collect::<Option<_>>().ok_or_else(refused)?
        }
        _ => return Err(refused()),
    };
    match prompts.len() {
        1..=MAX_PROMPTS => Ok(prompts),
        0 => Err(ApiError::invalid("prompt", "prompt has nothing to complete")),
        count => {
            Err(ApiError::invalid("prompt", format!("{count} prompts; a request may have {MAX_PROMPTS}")))
        }
    }
}

fn tokens(list: &[Value]) -> Option<Vec<u32>> {
    list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
}

fn messages(fields: &Fields, limits: &Limits) -> Result<(Vec<Message>, Pictures)> {
    let list = fields.required("messages", fields.list("messages")?)?;
    if list.is_empty() {
        return Err(ApiError::invalid("messages", "messages is empty"));
    }
    let mut pictures = Vec::new();
    let mut messages = Vec::with_capacity(list.len());
    for (at, value) in list.iter().enumerate() {
        let fields = Fields::at(format!("messages[{at}]"), value)?;
        let role = match fields.required("role", fields.str("role")?)? {
            "developer" => "system", // its newer name
            role @ ("system" | "user" | "assistant") => role,
            other => {
                let path = fields.path("role");
                let message = format!("{path} is {other:?}; it may be system, developer, user or assistant");
                return Err(ApiError::invalid(path, message));
            }
        };
        let content = content(&fields, &mut pictures, limits)?;
        messages.push(Message { role: role.to_owned(), content });
    }
    // as Qwen's own processor takes them, and as servers pass them on to it
    let own = pixel_limits(fields, limits)?;
    let passed =
        fields.object("mm_processor_kwargs")?.map(|passed| pixel_limits(&passed, limits)).transpose()?;
    let all = own.or(passed.unwrap_or_default());
    pictures.iter_mut().for_each(|asked: &mut Asked| asked.pixels = asked.pixels.or(all));
    if pictures.len() > limits.pictures {
        let message = format!("{} pictures; a request may have {}", pictures.len(), limits.pictures);
        return Err(ApiError::invalid("messages", message));
    }
    Ok((messages, pictures))
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
            "image_url" => {
                let mut pixels = pixel_limits(&part, limits)?;
                let (path, url) = match part.get("image_url") {
                    Some(Value::String(url)) => (part.path("image_url"), url.as_str()), // as some clients send it
                    _ => {
                        let image = part.required("image_url", part.object("image_url")?)?;
                        pixels = pixels.or(pixel_limits(&image, limits)?);
                        (image.path("url"), image.required("url", image.str("url")?)?)
                    }
                };
                let source = Source::read(&path, url, limits)?;
                pictures.push(Asked { param: path, source, pixels });
                Ok(Part::Image)
            }
            other => {
                let path = part.path("type");
                let message = format!("{path} is {other:?}; it may be text or image_url");
                Err(ApiError::invalid(path, message))
            }
        }
    };
    parts.iter().enumerate().map(one).collect()
}
