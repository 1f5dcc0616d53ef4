//! Parsed requests → prompts, and jobs for the worker.

use super::account::Charge;
use super::answer::Answers;
use super::calls::Reader;
use super::error::ApiError;
use super::grammar::{Biased, Grammar};
use super::images::{Asked, Pictures, Source};
use super::lanes::{self, Wanted};
use super::log::Record;
use super::model::App;
use super::request::{Chat, Raw, Tokenize, Wish};
use super::videos;
use super::worker::Job;
use llguidance::Matcher;
use qwen3_vl::batch::KeyedPrompt;
use qwen3_vl::chat::{Media, Message, Part};
use qwen3_vl::media::PixelLimits;
use qwen3_vl::preprocess::{ImagePlan, Picture, PictureHeader};
use qwen3_vl::sampling::Constraint;
use qwen3_vl::{ControlTokens, LanguageModel, Prompt, Sampling, Visual};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::mpsc::unbounded_channel;

type Result<T> = std::result::Result<T, ApiError>;

/// Bytes of memory that a byte of text takes while it is tokenised.
const TOKENIZING: usize = 128;
/// Bytes that a message takes in the template's form, besides its text.
const MESSAGE: usize = 1024;
/// Bytes that a picture's token takes while the text around it is tokenised.
const PAD: usize = 256;
/// Bytes of a prompt's token, and of its copy in each choice.
const TOKEN: usize = 64;
/// Bytes of a grammar, and of its copy in each choice.
const GRAMMAR: usize = 1 << 20;
/// Text is counted in pieces of this many bytes before it is tokenised as a whole.
const PIECE: usize = 64 << 10;

/// The prompts of a request, with what they are charged.
pub(crate) struct Prepared {
    prompts: Vec<KeyedPrompt>,
    /// For each choice the grammar, if there is a rule.
    rules: Vec<Matcher>,
    reader: Reader,
    charge: Charge,
}

/// A picture or video of a request.
struct Shown {
    /// The path of its field.
    name: String,
    content: Content,
    /// The pixels that it is resized to.
    pixels: PixelLimits,
}

enum Content {
    /// A picture's file.
    File(Vec<u8>),
    /// A decoded video.
    Video(Visual),
}

type Files = Vec<Shown>;

/// Prepares a conversation. All that its texts and the headers of its pictures tell is checked before a picture is decoded.
pub(crate) async fn chat(app: &Arc<App>, chat: Chat, charge: Charge) -> Result<Prepared> {
    let Chat { messages, pictures, tools, unfinished, wish } = chat;
    let (files, mut charge) = fetched(app, pictures, charge).await?;
    let (choices, adapter) = (wish.choices, wish.model.adapter.clone());
    if wish.rule.is_some() {
        charge.grow(GRAMMAR * (choices + 1))?;
    }
    let unfinished = unfinished.unwrap_or_default();
    charge.grow(unfinished.bytes() * TOKENIZING)?;
    let names: Arc<[String]> = tools.names().map(str::to_owned).collect();
    let ((prompt, plans, files, (rules, reader)), mut charge) =
        outlined(app, messages, tools.definitions(), files, charge, move |app, prompt, wanted| {
            let begins_in_thought = app.worker.model().processor.begins_in_thought(&prompt.ids);
            let rules = matchers(app, &wish, begins_in_thought, choices)?;
            let mut reader = Reader::new(begins_in_thought, names);
            for (piece, is_tag) in unfinished.pieces(begins_in_thought) {
                let control = if is_tag { ControlTokens::Recognized } else { app.config.control_tokens };
                *prompt = prompt.continued(&encode(app, "messages", &piece, control, wanted)?)?;
                fits(app, "messages", prompt)?;
                reader = reader.after(&piece);
            }
            Ok((rules, reader))
        })
        .await?;
    let patches: usize = plans.iter().map(|plan| plan.bytes).sum();
    let kept = patches + TOKEN * prompt.ids.len() * (choices + 1) + rules.len() * GRAMMAR;
    charge.grow(kept + plans.iter().map(|plan| plan.scratch).max().unwrap_or(0))?;
    let work = seen(app, prompt, files, charge, move |model, prompt, wanted| {
        Ok(KeyedPrompt::new_adapted(model, prompt, adapter.as_deref(), &|| wanted.is_so())?)
    });
    let (prompt, mut charge) = work.await?;
    charge.shrink_to(kept);
    Ok(Prepared { prompts: vec![prompt], rules, reader, charge })
}

/// The grammar of the request's rule, and a copy for each answer.
fn matchers(app: &App, wish: &Wish, begins_in_thought: bool, answers: usize) -> Result<Vec<Matcher>> {
    if let Some((id, _)) =
        wish.bias.iter().find(|(id, _)| *id as usize >= app.worker.model().config().text.vocab_size)
    {
        return Err(ApiError::invalid(
            "logit_bias",
            format!("logit_bias has token {id}, which is not in the vocabulary"),
        ));
    }
    let Some(rule) = &wish.rule else { return Ok(Vec::new()) };
    let param = &rule.param;
    let matcher = app.grammars()?.matcher(rule, begins_in_thought);
    let matcher = matcher.map_err(|reason| ApiError::invalid(param.clone(), format!("{param}: {reason}")))?;
    Ok(vec![matcher; answers])
}

/// A prompt with its pictures, for work that is no answer. `others` are bytes of the request that stay.
pub(crate) async fn prompt(
    app: &Arc<App>,
    messages: Vec<Message>,
    pictures: Pictures,
    others: usize,
    charge: Charge,
) -> Result<(Prompt, Charge)> {
    let (files, charge) = fetched(app, pictures, charge).await?;
    let ((prompt, plans, files, ()), mut charge) =
        outlined(app, messages, Vec::new(), files, charge, |_, _, _| Ok(())).await?;
    let patches: usize = plans.iter().map(|plan| plan.bytes).sum();
    let kept = patches + TOKEN * prompt.ids.len();
    charge.grow(kept + plans.iter().map(|plan| plan.scratch).max().unwrap_or(0))?;
    let (prompt, mut charge) = seen(app, prompt, files, charge, |_, prompt, _| Ok(prompt)).await?;
    charge.shrink_to(kept + others);
    Ok((prompt, charge))
}

/// Decodes a prompt's pictures, and makes `then` of it.
async fn seen<T: Send + 'static>(
    app: &Arc<App>,
    mut prompt: Prompt,
    files: Files,
    charge: Charge,
    then: impl FnOnce(&LanguageModel, Prompt, &Wanted) -> Result<T> + Send + 'static,
) -> Result<(T, Charge)> {
    let same = Arc::clone(app);
    let work = lanes::run(&app.lanes, charge, move |wanted, _| {
        let (model, limits) = (same.worker.model(), &same.config.limits);
        for Shown { name, content, pixels } in files {
            wanted.check()?;
            let visual = match content {
                Content::File(file) => {
                    let picture = Picture::decode_while(&name, &file, limits.pixels, &|| wanted.is_so())?;
                    Visual::Image { name, picture }
                }
                Content::Video(visual) => visual,
            };
            wanted.check()?;
            prompt.patches.push(model.processor.seeing()?.within(pixels).patches(&visual)?);
        }
        then(model, prompt, wanted)
    });
    work.await
}

/// The pictures' files, and the videos' frames. Each address is charged a whole body until its file is there, and each video all
/// the bytes that its frames may take until they are decoded.
async fn fetched(app: &Arc<App>, pictures: Pictures, mut charge: Charge) -> Result<(Files, Charge)> {
    let mut files = Vec::with_capacity(pictures.len());
    if !pictures.is_empty() {
        app.worker.model().processor.seeing()?;
    }
    for Asked { param, source, pixels, frames } in pictures {
        let file = match source {
            Source::Elsewhere(_) => {
                let most = app.config.limits.body;
                charge.grow(most)?;
                let (same, name) = (Arc::clone(app), param.clone());
                let fetch =
                    move |wanted: &Wanted, _: &mut Charge| source.fetch(&name, &same.config.limits, wanted);
                let (file, mut back) = lanes::aside(charge, fetch).await?;
                back.give_back(most - file.len().min(most));
                charge = back;
                Source::Here(file)
            }
            here => here,
        };
        let content = match (file, frames) {
            (Source::Here(file), None) => Content::File(file),
            (_, None) => return Err(Source::no_picture(&param)),
            (file, Some(frames)) => {
                let most = app.config.limits.video_bytes();
                charge.grow(most)?;
                let (same, name) = (Arc::clone(app), param.clone());
                let decode = move |wanted: &Wanted, _: &mut Charge| {
                    file.video(&name, frames, &same.config.limits, wanted)
                };
                let (visual, mut back) = lanes::run(&app.lanes, charge, decode).await?;
                let (frames, header) = videos::frames(&visual);
                back.give_back(most - (frames * header.bytes).min(most));
                charge = back;
                Content::Video(visual)
            }
        };
        files.push(Shown { name: param, content, pixels });
    }
    Ok((files, charge))
}

/// A conversation's tokens and the plans of its pictures, from their headers, with what `then` makes of them. Too long ones
/// are refused.
async fn outlined<T: Send + 'static>(
    app: &Arc<App>,
    messages: Vec<Message>,
    tools: Vec<Value>,
    files: Files,
    mut charge: Charge,
    then: impl FnOnce(&App, &mut Prompt, &Wanted) -> Result<T> + Send + 'static,
) -> Result<((Prompt, Vec<ImagePlan>, Files, T), Charge)> {
    let defined: Vec<String> = tools.iter().map(Value::to_string).collect();
    let text = messages.iter().map(Message::bytes).chain(defined.iter().map(String::len)).sum::<usize>();
    // a message has at least one token
    if text > app.longest_text || messages.len() >= app.config.limits.context {
        return Err(too_long(app, "messages", "more tokens than fit"));
    }
    let tokenizing = text * TOKENIZING + messages.len() * MESSAGE;
    charge.grow(tokenizing)?;
    let same = Arc::clone(app);
    let work = lanes::run(&app.lanes, charge, move |wanted, charge| {
        let (app, limits) = (&*same, &same.config.limits);
        let processor = &app.worker.model().processor;
        let plan = |Shown { name, content, pixels }: &Shown| {
            wanted.check()?;
            let seeing = processor.seeing()?.within(*pixels);
            let (plan, media) = match content {
                Content::File(file) => {
                    let plan = seeing.plan(name, PictureHeader::read(name, file, limits.pixels)?, None)?;
                    (plan, Media::Image { tokens: plan.tokens })
                }
                Content::Video(visual) => {
                    let (frames, header) = videos::frames(visual);
                    let plan = seeing.plan(name, header, Some(frames))?;
                    (plan, seeing.media(visual, plan.grid))
                }
            };
            Ok((plan, (media, plan.grid)))
        };
        let (plans, media): (Vec<ImagePlan>, Vec<_>) =
            files.iter().map(plan).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let tokens = plans.iter().fold(0usize, |sum, plan| sum.saturating_add(plan.tokens));
        if tokens >= limits.context {
            return Err(too_long(app, "messages", &format!("{tokens} tokens of pictures and videos")));
        }
        let texts = messages.iter().flat_map(|message| &message.content).filter_map(|part| match part {
            Part::Text { text } | Part::Reasoning { text } => Some(&**text),
            Part::Image | Part::Video | Part::ToolCall { .. } => None,
        });
        let texts = texts.chain(defined.iter().map(|text| &**text));
        fit(app, "messages", texts, wanted)?;
        charge.grow(PAD * tokens)?;
        let mut prompt = processor.outline(&messages, &tools, &media, app.config.control_tokens)?;
        fits(app, "messages", &prompt)?;
        charge.give_back(PAD * tokens);
        wanted.check()?;
        let more = then(app, &mut prompt, wanted)?;
        Ok((prompt, plans, files, more))
    });
    let (found, mut charge) = work.await?;
    charge.give_back(tokenizing);
    Ok((found, charge))
}

/// Refuses texts that have more than twice as many tokens as fit, before they are tokenised as a whole, which takes long and
/// can't be ended. Cut texts have other tokens at the cuts, but not twice as many.
fn fit<'a>(
    app: &App,
    param: &str,
    texts: impl Iterator<Item = &'a str> + Clone,
    wanted: &Wanted,
) -> Result<()> {
    if texts.clone().map(str::len).sum::<usize>() <= PIECE {
        return Ok(());
    }
    let mut left = 2 * app.config.limits.context;
    for mut text in texts {
        while !text.is_empty() {
            wanted.check()?;
            let (piece, rest) = text.split_at(text.ceil_char_boundary(PIECE));
            let tokens = app.worker.model().processor.tokenizer.encode_ordinary(piece)?.len();
            left = left.checked_sub(tokens).ok_or_else(|| too_long(app, param, "more tokens than fit"))?;
            text = rest;
        }
    }
    Ok(())
}

/// Prompts without a template.
pub(crate) async fn raw(
    app: &Arc<App>,
    prompts: Vec<Raw>,
    wish: &Wish,
    mut charge: Charge,
) -> Result<Prepared> {
    let one = |prompt: &Raw| match prompt {
        Raw::Text(text) => text.len() * TOKENIZING,
        Raw::Tokens(ids) => ids.len() * TOKEN,
    };
    charge.grow(prompts.iter().map(one).sum())?;
    let answers = wish.choices * prompts.len();
    if wish.rule.is_some() {
        charge.grow(GRAMMAR * (answers + 1))?;
    }
    let (same, wish) = (Arc::clone(app), wish.clone());
    let work = lanes::run(&app.lanes, charge, move |wanted, charge| {
        let app = &*same;
        let one = |prompt| {
            let prompt = text(app, prompt, wanted)?;
            fits(app, "prompt", &prompt)?;
            let (model, adapter) = (app.worker.model(), wish.model.adapter.as_deref());
            Ok(KeyedPrompt::new_adapted(model, prompt, adapter, &|| wanted.is_so())?)
        };
        let prompts = prompts.into_iter().map(one).collect::<Result<Vec<_>>>()?;
        let tokens: usize = prompts.iter().map(|prompt: &KeyedPrompt| prompt.prompt().ids.len()).sum();
        let rules = matchers(app, &wish, false, answers)?;
        charge.settle(TOKEN * tokens * (wish.choices + 1) + GRAMMAR * rules.len())?;
        Ok((prompts, rules))
    });
    let ((prompts, rules), charge) = work.await?;
    Ok(Prepared { prompts, rules, reader: Reader::plain(), charge })
}

fn text(app: &App, prompt: Raw, wanted: &Wanted) -> Result<Prompt> {
    let ids = match prompt {
        Raw::Tokens(ids) => ids,
        Raw::Text(text) => encode(app, "prompt", &text, app.config.control_tokens, wanted)?,
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

fn encode(
    app: &App,
    param: &str,
    text: &str,
    control_tokens: ControlTokens,
    wanted: &Wanted,
) -> Result<Vec<u32>> {
    if text.len() > app.longest_text {
        return Err(too_long(app, param, "more tokens than fit"));
    }
    fit(app, param, std::iter::once(text), wanted)?;
    let tokenizer = &app.worker.model().processor.tokenizer;
    Ok(match control_tokens {
        ControlTokens::AsText => tokenizer.encode_ordinary(text)?,
        ControlTokens::Recognized => tokenizer.encode(text)?,
    })
}

/// The tokens of a text or of a conversation, of whose pictures only the headers are read.
pub(crate) async fn tokens(app: &Arc<App>, wish: Tokenize, mut charge: Charge) -> Result<(Vec<u32>, Charge)> {
    match wish {
        Tokenize::Chat { messages, pictures, tools } => {
            let (files, charge) = fetched(app, pictures, charge).await?;
            let ((prompt, ..), charge) =
                outlined(app, messages, tools.definitions(), files, charge, |_, _, _| Ok(())).await?;
            Ok((prompt.ids, charge))
        }
        Tokenize::Text { text, parse_special } => {
            charge.grow(text.len() * TOKENIZING)?;
            let same = Arc::clone(app);
            let work = move |wanted: &Wanted, _: &mut Charge| {
                let asked =
                    if parse_special { ControlTokens::Recognized } else { same.config.control_tokens };
                encode(&same, "prompt", &text, asked, wanted)
            };
            lanes::run(&app.lanes, charge, work).await
        }
    }
}

/// Checks that there is room for at least one token of an answer.
fn fits(app: &App, param: &str, prompt: &Prompt) -> Result<()> {
    match prompt.ids.len() < app.config.limits.context {
        true => Ok(()),
        false => Err(too_long(app, param, &format!("{} tokens", prompt.ids.len()))),
    }
}

fn too_long(app: &App, param: &str, found: &str) -> ApiError {
    let context = app.config.limits.context;
    let message = format!("the prompt has {found}; prompt and answer together may have {context}");
    ApiError::too_long(param, message)
}

/// Queues `choices` answers to each prompt. They share it, and its charge lasts as long as the last of them.
pub(crate) fn submit(app: &Arc<App>, prepared: Prepared, wish: &Wish) -> Result<Answers> {
    let Prepared { prompts, rules, reader, charge } = prepared;
    let (charge, mut rules, record) = (Arc::new(charge), rules.into_iter(), Record::current());
    let (mut jobs, mut receivers) = (Vec::new(), Vec::new());
    for prompt in prompts {
        // more than there is room for is cut, as `generate` does; the answer then ends with "length"
        let tokens = prompt.prompt().ids.len();
        let room = app.config.limits.context.saturating_sub(tokens);
        record.add_prompt(tokens);
        for choice in 0..wish.choices {
            let sampling = &wish.options.sampling;
            let seed = sampling.seed.wrapping_add(choice as u64);
            let mut options = wish.options.clone();
            options.sampling = Sampling { seed, ..sampling.clone() };
            options.max_new_tokens = wish.max_tokens.unwrap_or(wish.options.max_new_tokens).min(room);
            let grammar = rules.next().map(Grammar);
            let constraint = match wish.bias.is_empty() {
                true => grammar.map(|grammar| Box::new(grammar) as Box<dyn Constraint>),
                false => Some(Box::new(Biased { bias: wish.bias.clone(), grammar }) as _),
            };
            let (events, receiver) = unbounded_channel();
            let (sender, progress) = unbounded_channel();
            let mut prompt = prompt.clone();
            if wish.stream && wish.return_progress {
                // a client that has left is noticed by its events
                prompt = prompt.reporting(move |progress| {
                    let _ = sender.send(progress);
                });
            }
            let same = Arc::clone(&record);
            jobs.push(Job {
                prompt,
                options,
                logprobs: wish.logprobs,
                constraint,
                events,
                charge: Some(Arc::clone(&charge)),
                taken: Some(Box::new(move |queued| same.add_queued(queued))),
            });
            receivers.push((receiver, progress));
        }
    }
    app.worker.submit(jobs)?;
    Ok(Answers::new(receivers, wish.choices, &reader, app, record))
}
