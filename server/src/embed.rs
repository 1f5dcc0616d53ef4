//! Embeddings and rankings: `/v1/embeddings` as OpenAI has it, and `/v1/rerank` as Jina and Cohere have it.
//!
//! Inputs are prepared and computed one after the other, each between two steps of the running answers, so that a long list keeps
//! little memory and lets others pass.

use super::account::Charge;
use super::error::{ApiError, json_response};
use super::fields::{Fields, wrong};
use super::images::{Pictures, bound};
use super::log::Record;
use super::messages::content;
use super::model::{App, Config};
use super::prepare;
use super::request::{Parsed, bytes_of};
use super::server::{Server, parsed};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use qwen3_vl::chat::{Message, Part};
use qwen3_vl::embed::{PIXELS, embedding_messages, ranking_messages, shortened};
use qwen3_vl::{LanguageModel, Prompt};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

type Result<T> = std::result::Result<T, ApiError>;

/// The most inputs of a request; OpenAI's.
const MAX_INPUTS: usize = 2048;

/// A conversation to compute, and its pictures.
struct Item {
    messages: Vec<Message>,
    pictures: Pictures,
}

/// `/v1/embeddings`
pub(crate) struct Embeddings {
    items: Vec<Item>,
    dimensions: Option<usize>,
    is_base64: bool,
}

/// `/v1/rerank`
pub(crate) struct Rerank {
    items: Vec<Item>,
    top: usize,
    /// The documents as they were given, if they are to be returned.
    documents: Option<Vec<Value>>,
}

fn bytes(items: &[Item]) -> usize {
    items.iter().map(|item| bytes_of(&item.messages, &item.pictures)).sum()
}

impl Parsed for Embeddings {
    fn bytes(&self) -> usize {
        bytes(&self.items)
    }
}

impl Parsed for Rerank {
    fn bytes(&self) -> usize {
        let documents = self.documents.iter().flatten().map(|document| document.to_string().len());
        bytes(&self.items) + documents.sum::<usize>()
    }
}

/// Pictures, then the text: the order that the models were trained with.
struct Content {
    visuals: Vec<Part>,
    text: String,
    pictures: Pictures,
}

impl Content {
    /// A string, a list of content parts, or an object with text, image, video or content.
    fn read(path: &str, value: &Value, config: &Config) -> Result<Self> {
        let parts = match value {
            Value::String(text) => {
                return Ok(Self { visuals: Vec::new(), text: text.clone(), pictures: Vec::new() });
            }
            Value::Array(_) => value.clone(),
            Value::Object(_) => {
                let fields = Fields::at(path.to_owned(), value)?;
                match fields.get("content") {
                    Some(content) => content.clone(),
                    None => Self::fields(&fields)?,
                }
            }
            other => return Err(wrong(path, "a string, a list of parts or an object", other)),
        };
        if parts.as_array().is_some_and(Vec::is_empty) {
            return Ok(Self { visuals: Vec::new(), text: String::new(), pictures: Vec::new() });
        }
        let (mut pictures, whole) = (Vec::new(), json!({ "content": parts }));
        let mut found = Self { visuals: Vec::new(), text: String::new(), pictures: Vec::new() };
        for part in content(&Fields::at(path.to_owned(), &whole)?, &mut pictures, &config.limits)? {
            match part {
                Part::Text { text } => found.text.push_str(&text),
                visual => found.visuals.push(visual),
            }
        }
        Ok(Self { pictures, ..found })
    }

    /// The parts of an object with text, image and video, as Jina has it.
    fn fields(fields: &Fields) -> Result<Value> {
        let mut parts = Vec::new();
        for (name, kind) in [("image", "image_url"), ("video", "video_url")] {
            if let Some(url) = fields.str(name)? {
                parts.push(json!({ "type": kind, kind: { "url": url } }));
            }
        }
        if let Some(text) = fields.str("text")? {
            parts.push(json!({ "type": "text", "text": text }));
        }
        Ok(parts.into())
    }

    fn parts(&self) -> impl Iterator<Item = Part> {
        let is_nothing = self.visuals.is_empty() && self.text.is_empty();
        let text = if is_nothing { "NULL" } else { &self.text };
        let text = (!text.is_empty()).then(|| Part::Text { text: text.to_owned() });
        self.visuals.iter().cloned().chain(text)
    }
}

fn check_pictures(param: &str, pictures: usize, config: &Config) -> Result<()> {
    let most = config.limits.pictures;
    match pictures <= most {
        true => Ok(()),
        false => {
            Err(ApiError::invalid(param, format!("{param} has {pictures} pictures, and may have {most}")))
        }
    }
}

fn counted<'a>(param: &str, list: &'a [Value]) -> Result<&'a [Value]> {
    match list.len() {
        0 => Err(ApiError::invalid(param, format!("{param} is empty"))),
        1..=MAX_INPUTS => Ok(list),
        count => {
            Err(ApiError::invalid(param, format!("{param} has {count} items, and may have {MAX_INPUTS}")))
        }
    }
}

impl Embeddings {
    pub fn read(body: &Value, config: &Config) -> Result<Self> {
        let fields = Fields::root(body)?;
        own_model(&fields, config)?;
        let is_base64 = match fields.str("encoding_format")? {
            None | Some("float") => false,
            Some("base64") => true,
            Some(other) => {
                let message = format!("encoding_format is {other:?}; it may be float or base64");
                return Err(ApiError::invalid("encoding_format", message));
            }
        };
        let dimensions = fields.whole("dimensions", 1, usize::MAX)?;
        let mut instruction = fields.str("instruction")?.map(str::to_owned);
        let mut contents = Vec::new();
        match fields.get("messages") {
            Some(_) => {
                let list = fields.required("messages", fields.list("messages")?)?;
                for (at, value) in list.iter().enumerate() {
                    let path = format!("messages[{at}]");
                    let message = Fields::at(path.clone(), value)?;
                    let found = Content::read(&path, value, config)?;
                    match message.required("role", message.str("role")?)? {
                        "system" | "developer" => instruction = Some(found.text),
                        "user" if contents.is_empty() => contents.push(found),
                        other => {
                            let message =
                                format!("{path}.role is {other:?}: an embedding has one user message");
                            return Err(ApiError::invalid(format!("{path}.role"), message));
                        }
                    }
                }
                if contents.is_empty() {
                    return Err(ApiError::invalid("messages", "messages has no user message"));
                }
            }
            None => match fields.required("input", fields.get("input"))? {
                Value::Array(list) if list.iter().any(|item| item.get("type").is_some()) => {
                    contents.push(Content::read("input", &Value::Array(list.clone()), config)?);
                }
                Value::Array(list) => {
                    for (at, value) in counted("input", list)?.iter().enumerate() {
                        if value.is_number() || value.get(0).is_some_and(Value::is_number) {
                            let message = "input has tokens; an embedding is made of text and pictures";
                            return Err(ApiError::unsupported("input", message));
                        }
                        contents.push(Content::read(&format!("input[{at}]"), value, config)?);
                    }
                }
                one => contents.push(Content::read("input", one, config)?),
            },
        }
        check_pictures("input", contents.iter().map(|content| content.pictures.len()).sum(), config)?;
        bound(
            &fields,
            contents.iter_mut().flat_map(|content| &mut content.pictures),
            &config.limits,
            PIXELS,
        )?;
        let item = |content: Content| {
            let Content { visuals, text, pictures } = content;
            let messages = embedding_messages(visuals.into_iter(), &text, instruction.as_deref());
            Item { messages: messages.into(), pictures }
        };
        Ok(Self { items: contents.into_iter().map(item).collect(), dimensions, is_base64 })
    }
}

/// Refuses a model that is not there, and adapters, which are for answers.
fn own_model(fields: &Fields, config: &Config) -> Result<()> {
    match config.named(fields.str("model")?)?.adapter {
        None => Ok(()),
        Some(_) => Err(ApiError::unsupported(
            "model",
            "embeddings and rankings are the model's own, without an adapter",
        )),
    }
}

impl Rerank {
    pub fn read(body: &Value, config: &Config) -> Result<Self> {
        let fields = Fields::root(body)?;
        own_model(&fields, config)?;
        let query = Content::read("query", fields.required("query", fields.get("query"))?, config)?;
        let list = counted("documents", fields.required("documents", fields.list("documents")?)?)?;
        let instruction = fields.str("instruction")?;
        let top = fields.whole("top_n", 1, usize::MAX)?.unwrap_or(list.len()).min(list.len());
        let documents = fields.bool("return_documents")?.unwrap_or(false).then(|| list.to_vec());
        let (mut items, mut pictures) = (Vec::new(), query.pictures.len());
        for (at, value) in list.iter().enumerate() {
            let document = Content::read(&format!("documents[{at}]"), value, config)?;
            pictures += document.pictures.len();
            check_pictures("documents", pictures, config)?;
            let messages = ranking_messages(query.parts(), document.parts(), instruction);
            let pictures = query.pictures.iter().cloned().chain(document.pictures).collect();
            let mut item = Item { messages: messages.into(), pictures };
            bound(&fields, item.pictures.iter_mut(), &config.limits, PIXELS)?;
            items.push(item);
        }
        Ok(Self { items, top, documents })
    }
}

/// Runs `work` with the model on a replica's thread.
async fn computed<T: Send + 'static>(
    app: &App,
    prompt: Prompt,
    deadline: Instant,
    work: impl FnOnce(&LanguageModel, &Prompt) -> pascaline::Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    let (record, since) = (Record::current(), Instant::now());
    record.add_prompt(prompt.ids.len());
    app.worker.compute(Box::new(move |model| {
        record.add_queued(since.elapsed());
        if !sender.is_closed() {
            let _ = sender.send(work(model, &prompt)); // the client may have left
        }
    }))?;
    let found = timeout_at(deadline, receiver).await.map_err(|_| app.too_slow())?;
    // a bug or a lost device: the task was dropped, or unwound
    Ok(found.map_err(|_| ApiError::internal("the computation ended without a result"))??)
}

/// Prepares and computes each item, in turn.
async fn each<T: Send + 'static>(
    app: &Arc<App>,
    items: Vec<Item>,
    mut charge: Charge,
    deadline: Instant,
    work: impl Fn(&LanguageModel, &Prompt) -> pascaline::Result<T> + Copy + Send + 'static,
) -> Result<Vec<T>> {
    let mut found = Vec::with_capacity(items.len());
    let mut left = bytes(&items);
    for Item { messages, pictures } in items {
        left -= bytes_of(&messages, &pictures);
        let prepared = prepare::prompt(app, messages, pictures, left, charge);
        let (prompt, back) = timeout_at(deadline, prepared).await.map_err(|_| app.too_slow())??;
        charge = back;
        found.push(computed(app, prompt, deadline, work).await?);
        charge.shrink_to(left);
    }
    Ok(found)
}

pub(crate) async fn embeddings(State(server): State<Arc<Server>>, request: Request) -> Result<Response> {
    let deadline = server.deadline();
    let (app, asked, charge) =
        parsed(&server, request, deadline, |body, config| Embeddings::read(&body, config)).await?;
    let Embeddings { items, dimensions, is_base64 } = asked;
    let found = each(&app, items, charge, deadline, move |model, prompt| {
        let mut found = model.embed_prompt(prompt)?;
        if let Some(dimensions) = dimensions {
            found.vector = shortened(&found.vector, dimensions)?;
        }
        Ok(found)
    })
    .await?;
    let tokens: usize = found.iter().map(|embedding| embedding.tokens).sum();
    let data = found.into_iter().enumerate().map(|(index, found)| {
        let embedding = match is_base64 {
            true => {
                let bytes: Vec<u8> = found.vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Value::from(STANDARD.encode(bytes))
            }
            false => Value::from(found.vector),
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    let data: Vec<Value> = data.collect();
    let value = json!({ "object": "list", "data": data, "model": app.config.name, "usage": usage });
    Ok(json_response(StatusCode::OK, &value))
}

pub(crate) async fn rerank(State(server): State<Arc<Server>>, request: Request) -> Result<Response> {
    let deadline = server.deadline();
    let (app, Rerank { items, top, mut documents }, charge) =
        parsed(&server, request, deadline, |body, config| Rerank::read(&body, config)).await?;
    let found = each(&app, items, charge, deadline, |model, prompt| {
        model.relevance_of_prompt(&mut model.session()?, prompt)
    })
    .await?;
    let tokens: usize = found.iter().map(|relevance| relevance.tokens).sum();
    let mut order: Vec<usize> = (0..found.len()).collect();
    order.sort_by(|&a, &b| found[b].score.total_cmp(&found[a].score));
    let mut results = Vec::with_capacity(top);
    for index in order.into_iter().take(top) {
        let mut result = json!({ "index": index, "relevance_score": found[index].score });
        if let Some(document) = documents.as_mut().and_then(|documents| documents.get_mut(index)) {
            result["document"] = match document.take() {
                Value::String(text) => json!({ "text": text }),
                other => other,
            };
        }
        results.push(result);
    }
    let value = json!({
        "id": format!("rerank-{:016x}", rand::random::<u64>()),
        "object": "list",
        "model": app.config.name,
        "results": results,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
        "meta": { "api_version": { "version": "2" }, "tokens": { "input_tokens": tokens } },
    });
    Ok(json_response(StatusCode::OK, &value))
}
