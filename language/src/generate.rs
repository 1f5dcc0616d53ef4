//! Generation for one conversation: prefill, then decode one token after another. Many requests at once are `batch`'s.

use super::decode::{Decoder, Logits};
use super::lookup::Lookup;
use super::media::Visual;
use super::model::{LanguageModel, Session};
use super::network::Progress;
use super::processor::Prompt;
use super::request::{Accepted, Request};
use super::sampling::{Logprobs, Sampler};
use pascaline::governor::Pacer;
use pascaline::{Error, Result};
use std::ops::ControlFlow;

pub use super::request::{Options, Output, Statistics, StopReason};

/// Tokens that the cache gets room for at once, in addition to those in it, if only the context bounds the answer.
const ROOM: usize = 512;

/// A point of generation at which the receiver is asked whether to go on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step<'a> {
    /// The new token; `None` before the answer, and for text that was held back to the end.
    pub id: Option<u32>,
    /// The text that is final now.
    pub text: &'a str,
    /// The token's probability, if the sampler reports it.
    pub logprobs: Option<Logprobs>,
    /// How far the prompt is computed, before its end.
    pub progress: Option<Progress>,
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
    /// once for each token. While pictures and the prompt are computed it is called before each layer (of a pass of fewer than 16
    /// tokens before the first alone), so that long work can be ended soon: a GPU has at most two layers queued. The text is empty where there is none yet.
    ///
    /// The session's cache has room for the whole answer if [`Options::max_new_tokens`] bounds it, and else grows with it. An
    /// answer for which no memory is left ends with [`StopReason::ContextFull`].
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
    /// is given the tokens and the progress too.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_with(
        &self,
        session: &mut Session,
        prompt: &Prompt,
        options: &Options,
        sampler: Sampler,
        mut receive: impl FnMut(Step) -> ControlFlow<()>,
    ) -> Result<Output> {
        let mut request = Request::new(self, prompt, options, sampler, usize::MAX)?;
        let limit = request.limit();
        let spare = match session.cache.capacity().saturating_sub(prompt.ids.len()) {
            _ if limit == options.max_new_tokens => limit,
            0 => limit.min(ROOM),
            free => limit.min(ROOM).min(free),
        };
        let mut pacers: Vec<_> = self.devices().map(Pacer::new).collect();
        let mut go_on = |progress| receive(Step { progress: Some(progress), ..Step::default() });
        let Some(prefill) = self.prefill(session, prompt, spare, &mut go_on)? else {
            return Ok(request.finish(self, StopReason::Cancelled, session.cache.bytes()).1);
        };
        request.passed(prefill.passed);
        let mut next = Logits::new(prefill.logits, &request.sampler)?.choose(&mut request.sampler)?;
        let mut peak = self.bytes_in_use();
        let lookup = options.prompt_lookup.then(|| Lookup::new(&prompt.ids));
        let mut decoder = Decoder::new(&self.network, request.first_position(), options.graph, lookup)?;
        let mut end = (limit == 0).then(|| request.at_limit());
        let stop_reason = loop {
            if let Some(reason) = end {
                break reason;
            }
            let Accepted { text, logprobs, end: at_token } = request.accept(next);
            end = at_token;
            if let Some(text) = &text
                && receive(Step { id: Some(next), text, logprobs, progress: None }).is_break()
            {
                break StopReason::Cancelled;
            }
            pacers.iter_mut().for_each(Pacer::pace);
            if end.is_none() {
                if !grow(session, prompt.ids.len() + limit, &mut decoder)? {
                    break StopReason::ContextFull;
                }
                let id = next;
                next = decoder.next(&mut session.cache, id, &mut request.sampler)?;
                session.ids.push(id);
            }
        };
        session.cache.truncate(session.ids.len()); // drops wrong guesses
        let (rest, mut output) = request.finish(self, stop_reason, session.cache.bytes());
        if !rest.is_empty() {
            let _ = receive(Step { text: &rest, ..Step::default() }); // nothing is left to end
        }
        peak = peak.max(self.bytes_in_use());
        let statistics = &mut output.statistics;
        (statistics.guessed_tokens, statistics.right_guesses) =
            (decoder.guesses().checked, decoder.guesses().right);
        statistics.graph_launches = decoder.launches();
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

/// Makes room for the next token, with more for those after it: at most for `most` tokens in all. Returns whether there is room.
fn grow(session: &mut Session, most: usize, decoder: &mut Decoder) -> Result<bool> {
    let (held, capacity) = (session.ids.len(), session.cache.capacity());
    if held < capacity {
        return Ok(true);
    }
    decoder.forget(); // graphs read the cache where it is now
    session.cache.truncate(held);
    // much at a time, as all keys and values are copied; little where that does not fit
    for more in [capacity.max(ROOM), ROOM, 1] {
        match session.cache.reserve(capacity.saturating_add(more).min(most)) {
            Ok(()) => return Ok(session.cache.capacity() > held),
            Err(Error::OutOfMemory { .. } | Error::TooLarge { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// A user's turn: the images and videos, then the text.
pub fn user_turn(visuals: &[Visual], text: &str) -> super::chat::Message {
    let mut content: Vec<_> = visuals.iter().map(Visual::part).collect();
    content.push(super::chat::Part::Text { text: text.to_owned() });
    super::chat::Message { role: "user".into(), content }
}
