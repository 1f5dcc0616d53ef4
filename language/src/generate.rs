//! Generation for one conversation: prefill, then decode one token after another. Many requests at once are `batch`'s.

use super::decode::{ANGLES_AHEAD, Decoder, Logits};
use super::lookup::Lookup;
use super::media::Positions;
use super::media::Visual;
use super::model::{LanguageModel, Session};
use super::processor::Prompt;
use super::sampling::{Logprobs, Sampler, Sampling};
use super::stream::TextStream;
use pascaline::governor::Pacer;
use pascaline::{Error, Result};
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Limits and options of generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The most tokens to generate. The model's context may end the answer before.
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
    /// Greedy, up to 512 tokens.
    fn default() -> Self {
        let (stop, sampling) = (Vec::new(), Sampling::GREEDY);
        Self { max_new_tokens: 512, sampling, stop, stop_at_eos: true, graph: true, prompt_lookup: false }
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
    /// The model's context is full.
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

/// A point of generation at which the receiver is asked whether to go on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step<'a> {
    /// The new token; `None` before an image or a pass of the prompt, and for text that was held back to the end.
    pub id: Option<u32>,
    /// The text that is final now.
    pub text: &'a str,
    /// The token's probability, if the sampler reports it.
    pub logprobs: Option<Logprobs>,
}

impl LanguageModel {
    /// Answers a question about images and videos, which come before the text in one user turn.
    ///
    /// # Errors
    /// [`Error::Prompt`], [`Error::Image`],
    /// [`Error::NotFinite`], or a device error.
    pub fn generate(&self, visuals: &[Visual], text: &str, options: &Options) -> Result<Output> {
        let prompt = self.processor.prepare(&[user_turn(visuals, text)], visuals)?;
        self.generate_from(&mut self.session()?, &prompt, options, |_| ControlFlow::Continue(()))
    }

    /// Answers a prepared prompt. A prefix of the prompt that the session's cache holds is not computed again.
    ///
    /// `receive` is given the text as it is generated, never a part of a character, and may end the answer. It is called
    /// once for each token, and also before each image and each pass of the prompt, so that long work can be ended. The
    /// text is empty where there is none yet.
    ///
    /// The session stays usable after an error or an end by `receive`: it holds what was computed.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_from(
        &self,
        session: &mut Session,
        prompt: &Prompt,
        options: &Options,
        mut receive: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Output> {
        let sampler = Sampler::new(options.sampling.clone(), &prompt.ids)?;
        self.generate_with(session, prompt, options, sampler, |step| receive(step.text))
    }

    /// As [`generate_from`](Self::generate_from), with a sampler of the caller's; `options.sampling` is ignored. `receive`
    /// is given the tokens too.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_with(
        &self,
        session: &mut Session,
        prompt: &Prompt,
        options: &Options,
        mut sampler: Sampler,
        mut receive: impl FnMut(Step) -> ControlFlow<()>,
    ) -> Result<Output> {
        let mut stream = TextStream::new(&self.processor.tokenizer, &options.stop);
        let mut output = Output {
            ids: Vec::new(),
            text: String::new(),
            stop_reason: StopReason::MaxNewTokens,
            statistics: Statistics {
                prompt_tokens: prompt.ids.len(),
                streamed_layers: self.streamed_layers(),
                weight_bytes_per_token: self.weight_bytes(),
                ..Statistics::default()
            },
        };
        let room = self.room_after(prompt)?;
        let limit = options.max_new_tokens.min(room);
        if limit < options.max_new_tokens {
            output.stop_reason = StopReason::ContextFull; // unless something else ends it before
        }
        if (room, options.max_new_tokens > 0) == (0, true) {
            let reason = format!("its {} tokens fill the model's context", prompt.ids.len());
            return Err(Error::Prompt { reason });
        }
        self.capacity(prompt, limit)?;
        let position = first_position(prompt, limit)?;
        let mut pacers: Vec<_> = self.devices().map(Pacer::new).collect();
        let begin = Instant::now();
        let Some(prefill) = self.prefill(session, prompt, limit, &mut || receive(Step::default()))? else {
            output.stop_reason = StopReason::Cancelled;
            return Ok(output);
        };
        let mut next = Logits::new(prefill.logits, &sampler)?.choose(&mut sampler)?;
        let first_token = begin.elapsed();
        let mut peak = self.bytes_in_use();
        let lookup = options.prompt_lookup.then(|| Lookup::new(&prompt.ids));
        let mut decoder = Decoder::new(&self.network, position, options.graph, lookup)?;
        while output.ids.len() < limit {
            let id = next;
            output.ids.push(id);
            if options.stop_at_eos && self.processor.generation.eos_token_ids.contains(&id) {
                output.stop_reason = StopReason::Eos;
                break;
            }
            let piece = stream.push(id);
            output.text += &piece;
            let step = Step { id: Some(id), text: &piece, logprobs: sampler.take_logprobs() };
            if receive(step).is_break() {
                output.stop_reason = StopReason::Cancelled;
                break;
            }
            if stream.stopped() {
                output.stop_reason = StopReason::StopString;
                break;
            }
            pacers.iter_mut().for_each(Pacer::pace);
            if output.ids.len() < limit {
                next = decoder.next(&mut session.cache, id, &mut sampler)?;
                session.ids.push(id);
            }
        }
        session.cache.truncate(session.ids.len()); // drops wrong guesses
        let elapsed = begin.elapsed();
        let rest = stream.finish();
        if !rest.is_empty() {
            let _ = receive(Step { text: &rest, ..Step::default() }); // nothing is left to end
            output.text += &rest;
        }
        peak = peak.max(self.bytes_in_use());
        let statistics = &mut output.statistics;
        statistics.prefill_tokens = prefill.passed;
        statistics.time_to_first_token = first_token.as_secs_f64();
        statistics.prefill_tokens_per_second = rate(prefill.passed, first_token);
        statistics.decode_tokens = output.ids.len().saturating_sub(1);
        statistics.decode_tokens_per_second =
            rate(statistics.decode_tokens, elapsed.saturating_sub(first_token));
        (statistics.guessed_tokens, statistics.right_guesses) =
            (decoder.guesses().checked, decoder.guesses().right);
        statistics.graph_launches = decoder.launches();
        statistics.cache_bytes = session.cache.bytes();
        statistics.peak_bytes = peak;
        statistics.paused_seconds = pacers.iter().map(|pacer| pacer.paused().as_secs_f64()).sum();
        Ok(output)
    }

    /// Bytes in use now on the model's GPUs; on the CPU the peak of the process, where the system reports it.
    fn bytes_in_use(&self) -> Option<usize> {
        match self.device() {
            pascaline::Device::Cuda(_) => self
                .devices()
                .map(|device| match device {
                    pascaline::Device::Cuda(device) => {
                        device.memory_info().ok().map(|(free, total)| total - free)
                    }
                    pascaline::Device::Cpu => None,
                })
                .sum(),
            pascaline::Device::Cpu => pascaline::memory::peak_of_the_process(),
        }
    }
}

/// The position of the first token after a prompt; an error if `tokens` more do not fit 32 bits.
pub(super) fn first_position(prompt: &Prompt, tokens: usize) -> Result<u32> {
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

/// A user's turn: the images and videos, then the text.
pub fn user_turn(visuals: &[Visual], text: &str) -> super::chat::Message {
    let mut content: Vec<_> = visuals.iter().map(Visual::part).collect();
    content.push(super::chat::Part::Text { text: text.to_owned() });
    super::chat::Message { role: "user".into(), content }
}

pub(super) fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}
