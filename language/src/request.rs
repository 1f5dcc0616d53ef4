//! One request: its prompt, limits, sampler and text, why it ends, and its counts and times.
//!
//! `generate` steps one over a session's cache, a batch steps many over pages. This file computes nothing: it is told of tokens that
//! were passed and chosen.

use super::decode::ANGLES_AHEAD;
use super::media::Positions;
use super::model::LanguageModel;
use super::processor::Prompt;
use super::sampling::{Logprobs, Sampler, Sampling};
use super::stream::TextStream;
use pascaline::{Error, Result};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Limits and options of generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The most tokens to generate. The model's context and the memory for its cache may end the answer before; without a limit of
    /// the caller's, `usize::MAX`, nothing else does.
    pub max_new_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Text that ends the answer and is not part of it.
    pub stop: Vec<String>,
    /// Whether the checkpoint's stop tokens end the answer.
    pub stop_at_eos: bool,
    /// Whether, on a GPU, the decode pass is captured into a graph and replayed, which saves the host the launches. The
    /// tokens are the same either way. A model with streamed layers always launches kernel by kernel.
    pub graph: bool,
    /// Whether to guess tokens (prompt lookup): where the last tokens occurred before, the tokens that followed them are
    /// guessed, and several are checked in one pass. This is faster where an answer repeats parts of its prompt or of
    /// itself. The logits of a checked token differ from those of its own pass by rounding only. A
    /// [`Batch`](super::batch::Batch) does not guess.
    pub prompt_lookup: bool,
}

impl Default for Options {
    /// Greedy, to the answer's own end.
    fn default() -> Self {
        let (stop, sampling) = (Vec::new(), Sampling::GREEDY);
        Self {
            max_new_tokens: usize::MAX,
            sampling,
            stop,
            stop_at_eos: true,
            graph: true,
            prompt_lookup: false,
        }
    }
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// A stop token of the checkpoint.
    Eos,
    /// A stop string.
    StopString,
    /// The most tokens asked for.
    MaxNewTokens,
    /// The model's context is full, or the memory for its cache.
    ContextFull,
    /// The receiver of the text ended it.
    Cancelled,
}

/// Counts and times of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Statistics {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, the ones that were computed and not in the cache already.
    pub prefill_tokens: usize,
    /// Seconds from the prepared prompt to the first token, images included.
    pub time_to_first_token: f64,
    /// `prefill_tokens` per second of that.
    pub prefill_tokens_per_second: f64,
    /// Tokens after the first.
    pub decode_tokens: usize,
    /// Of these, tokens per second.
    pub decode_tokens_per_second: f64,
    /// Tokens that were guessed and checked; see [`Options::prompt_lookup`].
    pub guessed_tokens: usize,
    /// Of these, the right ones: tokens of the answer that took no pass of their own.
    pub right_guesses: usize,
    /// Launches of the graph that a decoded token replays; `None` if there is none.
    pub graph_launches: Option<usize>,
    /// Streamed layers: decoder layers whose weights are copied from host memory for every token.
    pub streamed_layers: usize,
    /// Decoder layers whose experts are in host memory.
    pub host_expert_layers: usize,
    /// The share of the router's choices that were in device memory since the model was loaded, of experts in host memory of which some are
    /// there too.
    pub expert_hit_rate: Option<f64>,
    /// Bytes of weights that a decoded token reads.
    pub weight_bytes_per_token: usize,
    /// Bytes of the KV cache's capacity.
    pub cache_bytes: usize,
    /// Peak bytes in use, as sampled: of all devices on GPUs, of the process on the CPU.
    pub peak_bytes: Option<usize>,
    /// Seconds of waiting because the GPU was near its thermal limit.
    pub paused_seconds: f64,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Its tokens, a stop token included.
    pub ids: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// How long it took.
    pub statistics: Statistics,
}

/// A request on its way.
pub(super) struct Request<'m> {
    /// The prompt's tokens and the answer's.
    pub ids: Vec<u32>,
    pub sampler: Sampler,
    prompt_len: usize,
    /// The position of the first token after the prompt.
    first: u32,
    stream: TextStream<'m>,
    eos: &'m [u32],
    limit: usize,
    /// Why it ends at the limit.
    at_limit: StopReason,
    text: String,
    begin: Instant,
    first_token: Option<Duration>,
    prefilled: usize,
}

/// A token of an answer.
pub(super) struct Accepted {
    /// The text that is final now; `None` for a stop token, which is no part of the text.
    pub text: Option<String>,
    pub logprobs: Option<Logprobs>,
    /// Why the answer ends with it, if it does.
    pub end: Option<StopReason>,
}

impl<'m> Request<'m> {
    /// Checks a request; `capacity` is the most tokens that its cache may hold.
    pub fn new(
        model: &'m LanguageModel,
        prompt: &Prompt,
        options: &Options,
        sampler: Sampler,
        capacity: usize,
    ) -> Result<Self> {
        let room = model.room_after(prompt)?;
        let fits = capacity.saturating_add(1).saturating_sub(prompt.ids.len()); // the last token is never passed
        let limit = options.max_new_tokens.min(room).min(fits);
        if (room.min(fits), options.max_new_tokens > 0) == (0, true) {
            let most =
                if room == 0 { "the model's context".into() } else { format!("{capacity} in the cache") };
            let reason = format!("its {} tokens fill {most}", prompt.ids.len());
            return Err(Error::Prompt { reason });
        }
        model.capacity(prompt, limit)?;
        Ok(Self {
            ids: prompt.ids.clone(),
            sampler,
            prompt_len: prompt.ids.len(),
            first: first_position(prompt, limit)?,
            stream: TextStream::new(&model.processor.tokenizer, &options.stop),
            eos: if options.stop_at_eos { &model.processor.generation.eos_token_ids } else { &[] },
            limit,
            at_limit: match limit < options.max_new_tokens {
                true => StopReason::ContextFull,
                false => StopReason::MaxNewTokens,
            },
            text: String::new(),
            begin: Instant::now(),
            first_token: None,
            prefilled: 0,
        })
    }

    /// The most tokens of the answer.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Why it ends after as many tokens.
    pub fn at_limit(&self) -> StopReason {
        self.at_limit
    }

    /// The number of the prompt's tokens.
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// The position of the first token after the prompt.
    pub fn first_position(&self) -> u32 {
        self.first
    }

    /// Whether the answer has a token.
    pub fn has_begun(&self) -> bool {
        self.first_token.is_some()
    }

    /// The time since the request was made.
    pub fn time(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Counts tokens that were computed; those before the first token of the answer are the prompt's.
    pub fn passed(&mut self, tokens: usize) {
        if !self.has_begun() {
            self.prefilled += tokens;
        }
    }

    /// Appends the next token of the answer, which was chosen with its sampler.
    pub fn accept(&mut self, token: u32) -> Accepted {
        self.first_token.get_or_insert_with(|| self.begin.elapsed());
        self.ids.push(token);
        let logprobs = self.sampler.take_logprobs();
        if self.eos.contains(&token) {
            return Accepted { text: None, logprobs, end: Some(StopReason::Eos) };
        }
        let piece = self.stream.push(token);
        self.text += &piece;
        let end = match (self.stream.stopped(), self.ids.len() - self.prompt_len >= self.limit) {
            (true, _) => Some(StopReason::StopString),
            (false, true) => Some(self.at_limit),
            (false, false) => None,
        };
        Accepted { text: Some(piece), logprobs, end }
    }

    /// The complete answer, and the text that had been held back.
    pub fn finish(
        mut self,
        model: &LanguageModel,
        stop_reason: StopReason,
        cache_bytes: usize,
    ) -> (String, Output) {
        let elapsed = self.begin.elapsed();
        let rest = self.stream.finish();
        self.text += &rest;
        let first = self.first_token.unwrap_or(elapsed);
        let ids = self.ids.split_off(self.prompt_len);
        let decode_tokens = ids.len().saturating_sub(1);
        let statistics = Statistics {
            prompt_tokens: self.prompt_len,
            prefill_tokens: self.prefilled,
            time_to_first_token: first.as_secs_f64(),
            prefill_tokens_per_second: rate(self.prefilled, first),
            decode_tokens,
            decode_tokens_per_second: rate(decode_tokens, elapsed.saturating_sub(first)),
            streamed_layers: model.streamed_layers(),
            host_expert_layers: model.host_expert_layers(),
            expert_hit_rate: model.expert_hits().rate(),
            weight_bytes_per_token: model.weight_bytes(),
            cache_bytes,
            ..Statistics::default()
        };
        (rest, Output { ids, text: self.text, stop_reason, statistics })
    }
}

/// The position of the first token after a prompt; an error if `tokens` more do not fit 32 bits.
fn first_position(prompt: &Prompt, tokens: usize) -> Result<u32> {
    let Positions { axes, rope_delta } = &prompt.positions;
    let first = i64::try_from(axes.len()).ok().and_then(|len| len.checked_add(*rope_delta));
    let first = first.and_then(|first| u32::try_from(first).ok());
    // The last table of angles may reach beyond the last token.
    let last =
        first.and_then(|first| first.checked_add(u32::try_from(tokens).ok()?)?.checked_add(ANGLES_AHEAD));
    first.filter(|_| last.is_some()).ok_or_else(|| Error::Prompt {
        reason: format!("{tokens} tokens after {} and {rope_delta} have no positions", axes.len()),
    })
}

fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}
