//! Parsed requests → prompts, and jobs for the worker.

use super::answer::Answers;
use super::app::{App, blocking};
use super::error::ApiError;
use super::grammar::Grammar;
use super::images::{self, Pictures};
use super::request::{Raw, Tokenize, Wish};
use super::worker::Job;
use llguidance::Matcher;
use qwen3_vl::batch::KeyedPrompt;
use qwen3_vl::chat::{Message, Part};
use qwen3_vl::sampling::Constraint;
use qwen3_vl::{ControlTokens, Prompt, Sampling};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::mpsc::unbounded_channel;

type Result<T> = std::result::Result<T, ApiError>;

/// The prompt of a conversation, and for each answer the grammar if it must be JSON.
pub(crate) async fn chat(
    app: &Arc<App>,
    messages: Vec<Message>,
    pictures: Pictures,
    schema: Option<Value>,
    choices: usize,
) -> Result<(KeyedPrompt, Vec<Matcher>)> {
    let mut files = Vec::with_capacity(pictures.len());
    for (param, source) in pictures {
        let app = Arc::clone(app);
        files.push(blocking(move || Ok((source.fetch(&param, &app.config.limits)?, param))).await?);
    }
    prepared(app, move |app| {
        let rules = match schema {
            None => Vec::new(),
            Some(schema) => {
                let param = "response_format.json_schema.schema";
                let rule = app.grammars()?.json(schema);
                let rule = rule.map_err(|reason| ApiError::invalid(param, format!("{param}: {reason}")))?;
                vec![rule; choices]
            }
        };
        Ok((conversation(app, &messages, &files)?, rules))
    })
    .await
}

fn conversation(app: &App, messages: &[Message], files: &[(Vec<u8>, String)]) -> Result<KeyedPrompt> {
    let texts = messages.iter().flat_map(|message| &message.content).map(|part| match part {
        Part::Text { text } => text.len(),
        Part::Image | Part::Video => 0,
    });
    if texts.sum::<usize>() > app.longest_text {
        return Err(too_long(app, "messages", "more tokens than fit"));
    }
    let limits = &app.config.limits;
    let visuals: Vec<_> =
        files.iter().map(|(file, param)| images::decode(param, file, limits)).collect::<Result<_>>()?;
    let processor = &app.worker.model().processor;
    fits(app, "messages", processor.prepare_with(messages, &visuals, app.config.control_tokens)?)
}

/// Prompts without a template.
pub(crate) async fn raw(app: &Arc<App>, prompts: Vec<Raw>) -> Result<Vec<KeyedPrompt>> {
    prepared(app, move |app| {
        let one = |prompt| fits(app, "prompt", text(app, prompt)?);
        prompts.into_iter().map(one).collect()
    })
    .await
}

fn text(app: &App, prompt: Raw) -> Result<Prompt> {
    let ids = match prompt {
        Raw::Tokens(ids) => ids,
        Raw::Text(text) => encode(app, &text, app.config.control_tokens)?,
    };
    let vocabulary = app.worker.model().config().text.vocab_size;
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
        let message = format!("prompt has token {id}; the vocabulary has {vocabulary}");
        return Err(ApiError::invalid("prompt", message));
    }
    if ids.is_empty() {
        return Err(ApiError::invalid("prompt", "prompt has no tokens"));
    }
    let positions = app.worker.model().processor.positions(&ids, std::iter::empty())?;
    Ok(Prompt { ids, positions, patches: Vec::new() })
}

fn encode(app: &App, text: &str, control_tokens: ControlTokens) -> Result<Vec<u32>> {
    if text.len() > app.longest_text {
        return Err(too_long(app, "prompt", "more tokens than fit"));
    }
    let tokenizer = &app.worker.model().processor.tokenizer;
    Ok(match control_tokens {
        ControlTokens::AsText => tokenizer.encode_ordinary(text)?,
        ControlTokens::Recognized => tokenizer.encode(text)?,
    })
}

/// The tokens of a text or of a conversation.
pub(crate) async fn tokens(app: &Arc<App>, wish: Tokenize) -> Result<Vec<u32>> {
    match wish {
        Tokenize::Chat { messages, pictures } => {
            Ok(chat(app, messages, pictures, None, 1).await?.0.prompt().ids.clone())
        }
        Tokenize::Text { text, parse_special } => {
            prepared(app, move |app| {
                let asked = if parse_special { ControlTokens::Recognized } else { app.config.control_tokens };
                encode(app, &text, asked)
            })
            .await
        }
    }
}

/// Runs work on a core of its own; permits bound how many run at a time.
async fn prepared<T: Send + 'static>(
    app: &Arc<App>,
    work: impl FnOnce(&App) -> Result<T> + Send + 'static,
) -> Result<T> {
    let _permit = app.preparing.acquire().await;
    let app = Arc::clone(app);
    blocking(move || work(&app)).await
}

/// Checks that there is room for at least one token of an answer, and computes the prefix keys: here, where they delay no
/// answer.
fn fits(app: &App, param: &str, prompt: Prompt) -> Result<KeyedPrompt> {
    match prompt.ids.len() < app.config.limits.context {
        true => Ok(KeyedPrompt::new(app.worker.model(), prompt)?),
        false => Err(too_long(app, param, &format!("{} tokens", prompt.ids.len()))),
    }
}

fn too_long(app: &App, param: &str, found: &str) -> ApiError {
    let context = app.config.limits.context;
    let message = format!("the prompt has {found}; prompt and answer together may have {context}");
    ApiError::too_long(param, message)
}

/// Queues `choices` answers to each prompt.
pub(crate) fn submit(
    app: &App,
    prompts: Vec<KeyedPrompt>,
    wish: &Wish,
    rules: Vec<Matcher>,
) -> Result<Answers> {
    let mut rules = rules.into_iter();
    let (mut jobs, mut receivers) = (Vec::new(), Vec::new());
    for prompt in prompts {
        let tokens = prompt.prompt().ids.len();
        let room = app.config.limits.context - tokens;
        if let Some(most) = wish.max_tokens.filter(|&most| most > room) {
            let message = format!(
                "max_tokens is {most}, and after the prompt's {tokens} tokens there is room for {room}"
            );
            return Err(ApiError::too_long("max_tokens", message));
        }
        for choice in 0..wish.choices {
            let sampling = &wish.options.sampling;
            let seed = sampling.seed.wrapping_add(choice as u64);
            let mut options = wish.options.clone();
            options.sampling = Sampling { seed, ..sampling.clone() };
            options.max_new_tokens = wish.max_tokens.unwrap_or(wish.options.max_new_tokens).min(room);
            let constraint = rules.next().map(|rule| Box::new(Grammar(rule)) as Box<dyn Constraint>);
            let (events, receiver) = unbounded_channel();
            jobs.push(Job { prompt: prompt.clone(), options, logprobs: wish.logprobs, constraint, events });
            receivers.push(receiver);
        }
    }
    app.worker.submit(jobs)?;
    Ok(Answers::new(receivers))
}
