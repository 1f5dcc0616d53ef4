//! Request bodies, checked field by field before anything is computed.
//!
//! Unknown fields are ignored, as OpenAI does; those of other servers that would change the answer are refused by name
//! (`refused.rs`).

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::images::{Asked, Pictures};
use super::limits::Limits;
use super::messages::messages;
use super::model::{Config, Named};
use super::refused;
use super::rule::Rule;
use super::tools::Tools;
use super::unfinished::Unfinished;
use qwen3_vl::chat::Message;
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
/// The most tokens of `logit_bias`.
const MAX_BIASES: usize = 300;

/// Options of an answer that chat and completions share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wish {
    pub model: Named,
    /// `max_new_tokens` is not final before the prompt is known.
    pub options: Options,
    /// `max_tokens` as requested.
    pub max_tokens: Option<usize>,
    /// Answers to each prompt; each has the seed of the one before plus 1.
    pub choices: usize,
    pub logprobs: Option<usize>,
    /// What the answer must be.
    pub rule: Option<Rule>,
    /// What is added to the logits of tokens.
    pub bias: Vec<(u32, f32)>,
    pub stream: bool,
    pub include_usage: bool,
    /// Whether a stream has the progress of the prompt.
    pub return_progress: bool,
}

/// `/v1/chat/completions`
#[derive(Debug)]
pub(crate) struct Chat {
    pub messages: Vec<Message>,
    pub pictures: Pictures,
    pub tools: Tools,
    /// What the answer goes on from.
    pub unfinished: Option<Unfinished>,
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
    Chat { messages: Vec<Message>, pictures: Pictures, tools: Tools },
}

/// `/detokenize`
#[derive(Debug)]
pub(crate) struct Detokenize {
    pub tokens: Vec<u32>,
}

/// What is left of a parsed body.
pub(crate) trait Parsed: Sized + Send + 'static {
    /// Bytes of memory that it takes.
    fn bytes(&self) -> usize;
}

impl Parsed for Chat {
    fn bytes(&self) -> usize {
        let unfinished = self.unfinished.as_ref().map_or(0, Unfinished::bytes);
        bytes_of(&self.messages, &self.pictures) + self.tools.bytes() + self.wish.bytes() + unfinished
    }
}

impl Parsed for Detokenize {
    fn bytes(&self) -> usize {
        size_of_val(&self.tokens[..])
    }
}

impl Wish {
    fn bytes(&self) -> usize {
        self.rule.as_ref().map_or(0, Rule::bytes) + size_of_val(&self.bias[..])
    }
}

impl Parsed for Completion {
    fn bytes(&self) -> usize {
        let one = |prompt: &Raw| match prompt {
            Raw::Text(text) => text.len(),
            Raw::Tokens(ids) => size_of_val(&ids[..]),
        };
        self.prompts.iter().map(one).sum::<usize>() + self.wish.bytes()
    }
}

impl Parsed for Tokenize {
    fn bytes(&self) -> usize {
        match self {
            Self::Text { text, .. } => text.len(),
            Self::Chat { messages, pictures, tools } => bytes_of(messages, pictures) + tools.bytes(),
        }
    }
}

/// Bytes of a conversation, with what each of its allocations takes besides.
pub(crate) fn bytes_of(messages: &[Message], pictures: &Pictures) -> usize {
    const ALLOCATION: usize = 64;
    let message = |message: &Message| message.bytes() + (4 + message.content.len()) * ALLOCATION;
    let file = |asked: &Asked| asked.source.bytes() + asked.param.len() + 4 * ALLOCATION;
    messages.iter().map(message).sum::<usize>() + pictures.iter().map(file).sum::<usize>()
}

impl Chat {
    pub fn read(body: &Value, config: &Config) -> Result<Self> {
        let fields = Fields::root(body)?;
        if let Some(modalities) = fields.list("modalities")?
            && modalities.iter().any(|kind| kind != "text")
        {
            return Err(ApiError::unsupported("modalities", "answers are text only"));
        }
        let (mut messages, pictures) = messages(&fields, &config.limits)?;
        let unfinished = Unfinished::take(&fields, &mut messages)?;
        let mut wish = wish(&fields, config)?;
        let report = fields.bool("logprobs")?.unwrap_or(false);
        let top = fields.whole("top_logprobs", 0, MAX_LOGPROBS)?;
        if top.is_some_and(|top| top > 0) && !report {
            return Err(ApiError::invalid("top_logprobs", "top_logprobs asks for logprobs = true"));
        }
        wish.logprobs = report.then(|| top.unwrap_or(0));
        let tools = Tools::read(&fields)?;
        if let (Some(asked), Some(calls)) = (&wish.rule, &tools.rule) {
            let message = format!(
                "{} says what the answer must be, and {} which calls it has",
                asked.param, calls.param
            );
            return Err(ApiError::invalid(asked.param.clone(), message));
        }
        wish.rule = wish.rule.or_else(|| tools.rule.clone());
        if let (Some(rule), Some(_)) = (&wish.rule, &unfinished) {
            let message = format!("{} is for whole answers, and this one goes on", rule.param);
            return Err(ApiError::invalid(rule.param.clone(), message));
        }
        if wish.rule.is_some() {
            wish.options.stop_at_eos = true; // nothing can follow what the rule ends
        }
        Ok(Self { messages, pictures, tools, unfinished, wish })
    }
}

impl Detokenize {
    pub fn read(body: &Value, limits: &Limits) -> Result<Self> {
        let fields = Fields::root(body)?;
        let list = fields.required("tokens", fields.list("tokens")?)?;
        if list.len() > 2 * limits.context {
            let message = format!("{} tokens; it may have {}", list.len(), 2 * limits.context);
            return Err(ApiError::too_long("tokens", message));
        }
        let tokens = tokens(list).ok_or_else(|| wrong("tokens", "a list of tokens", &Value::from(list)))?;
        Ok(Self { tokens })
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
            return Ok(Self::Chat { messages, pictures, tools: Tools::read(&fields)? });
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
    let model = config.named(fields.str("model")?)?;
    refused::check(fields)?;
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
        model,
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
        rule: Rule::read(fields)?,
        bias: bias(fields)?,
        stream,
        include_usage,
        return_progress: fields.bool("return_progress")?.unwrap_or(false),
    })
}

/// `logit_bias`: at most OpenAI's 300 tokens, each by up to 100 either way.
fn bias(fields: &Fields) -> Result<Vec<(u32, f32)>> {
    const NAME: &str = "logit_bias";
    let Some(map) = fields.object(NAME)? else { return Ok(Vec::new()) };
    if map.len() > MAX_BIASES {
        let message = format!("{NAME} has {} tokens; it may have {MAX_BIASES}", map.len());
        return Err(ApiError::invalid(NAME, message));
    }
    let one = |name: &str| {
        let path = map.path(name);
        let id = name.parse().map_err(|_| {
            ApiError::invalid(path.clone(), format!("{path}: {name:?} is no token; /tokenize tells them"))
        })?;
        let bias = map.required(name, map.number(name)?)?;
        match (-100.0..=100.0).contains(&bias) {
            true => Ok((id, bias as f32)),
            false => {
                Err(ApiError::invalid(path.clone(), format!("{path} is {bias}; it may be from -100 to 100")))
            }
        }
    };
    map.names().map(one).collect()
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
