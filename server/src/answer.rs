//! The events of one request's answers, streamed or collected.

use super::calls::{Call, Delta, Reader};
use super::error::ApiError;
use super::log::Record;
use super::model::App;
use super::worker::{Event, Usage};
use qwen3_vl::StopReason;
use qwen3_vl::batch::PromptProgress;
use qwen3_vl::sampling::Logprobs;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::mpsc::UnboundedReceiver;

/// The answers that are not complete yet. Dropping it cancels them.
pub(crate) struct Answers {
    app: Arc<App>,
    /// What is written of the request.
    pub record: Arc<Record>,
    /// Answers to each prompt, which follow each other.
    choices: usize,
    /// `None`: the answer is complete.
    receivers: Vec<Option<UnboundedReceiver<Event>>>,
    /// The progress of their prompts, until these are computed.
    progress: Vec<Option<UnboundedReceiver<PromptProgress>>>,
    /// What tells each answer's text apart, and its tokens inside a thought.
    readers: Vec<(Reader, usize)>,
}

/// A part of one of the answers.
pub(crate) enum Part {
    /// A part of the prompt was computed.
    Prompt(PromptProgress),
    /// A token, and what its text adds.
    Token { id: u32, deltas: Vec<Delta>, logprobs: Option<Logprobs> },
    /// The end.
    Done { deltas: Vec<Delta>, reason: StopReason, spent: Spent },
}

impl Part {
    /// What it adds to the answer; of the last part, `end` gets the reason and the counts.
    pub fn deltas(self, end: &mut Option<(StopReason, Spent)>) -> Vec<Delta> {
        match self {
            Self::Prompt(_) => Vec::new(),
            Self::Token { deltas, .. } => deltas,
            Self::Done { deltas, reason, spent } => {
                *end = Some((reason, spent));
                deltas
            }
        }
    }
}

/// Token counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub usage: Usage,
    /// Of the answer's tokens, those of its thought.
    pub reasoning_tokens: usize,
}

/// A thing that is received.
enum Next {
    Prompt(PromptProgress),
    Event(Option<Event>),
}

impl Answers {
    /// Each answer is read by a copy of `reader`.
    pub fn new(
        receivers: Vec<(UnboundedReceiver<Event>, UnboundedReceiver<PromptProgress>)>,
        choices: usize,
        reader: &Reader,
        app: &Arc<App>,
        record: Arc<Record>,
    ) -> Self {
        let readers = receivers.iter().map(|_| (reader.clone(), 0)).collect();
        let (receivers, progress) =
            receivers.into_iter().map(|(events, of)| (Some(events), Some(of))).unzip();
        Self { app: Arc::clone(app), record, choices, receivers, progress, readers }
    }

    pub fn len(&self) -> usize {
        self.receivers.len()
    }

    /// The next part of any answer, and the answer's index; `None` after the last one's end. No part follows an error.
    pub async fn next(&mut self) -> Option<Result<(usize, Part), ApiError>> {
        let (at, event) = poll_fn(|context| {
            for (at, slot) in self.progress.iter_mut().enumerate() {
                let Some(receiver) = slot else { continue };
                match receiver.poll_recv(context) {
                    Poll::Ready(Some(progress)) => return Poll::Ready(Some((at, Next::Prompt(progress)))),
                    Poll::Ready(None) => *slot = None,
                    Poll::Pending => {}
                }
            }
            let mut waits = false;
            for (at, slot) in self.receivers.iter_mut().enumerate() {
                let Some(receiver) = slot else { continue };
                match receiver.poll_recv(context) {
                    Poll::Ready(event) => return Poll::Ready(Some((at, Next::Event(event)))),
                    Poll::Pending => waits = true,
                }
            }
            if waits { Poll::Pending } else { Poll::Ready(None) }
        })
        .await?;
        let event = match event {
            Next::Prompt(progress) => return Some(Ok((at, Part::Prompt(progress)))),
            Next::Event(event) => event,
        };
        let part = match event {
            Some(Event::Token { id, text, logprobs }) => {
                self.record.add_token();
                let (reader, thought) = &mut self.readers[at];
                *thought += usize::from(reader.is_in_thought());
                Part::Token { id, deltas: reader.push(&text), logprobs }
            }
            Some(Event::Done { rest, reason, usage }) => {
                self.receivers[at] = None;
                if at % self.choices == 0 {
                    self.record.add_cached(usage.cached_tokens);
                }
                self.record.stopped(reason);
                let (reader, reasoning_tokens) = &mut self.readers[at];
                let spent = Spent { usage, reasoning_tokens: *reasoning_tokens };
                Part::Done { deltas: reader.finish(&rest), reason, spent }
            }
            Some(Event::Failed(failure)) => return self.fail(failure.into()),
            None => return self.fail(ApiError::internal("the model's thread has ended")),
        };
        Some(Ok((at, part)))
    }

    /// Ends with this error, and cancels the other answers.
    fn fail<T>(&mut self, error: ApiError) -> Option<Result<T, ApiError>> {
        self.receivers.iter_mut().for_each(|receiver| *receiver = None);
        Some(Err(error))
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if self.receivers.iter().any(Option::is_some) {
            self.receivers.clear();
            self.app.worker.forget_left(); // a running one is noticed before its next step
        }
    }
}

/// A complete answer.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub text: String,
    pub reasoning: String,
    pub calls: Vec<Call>,
    /// Each token and its reported probability, if requested.
    pub tokens: Vec<(u32, Logprobs)>,
    pub reason: Option<StopReason>,
    pub spent: Spent,
}

impl Answer {
    pub fn push(&mut self, part: Part) {
        let deltas = match part {
            Part::Prompt(_) => Vec::new(),
            Part::Token { id, deltas, logprobs } => {
                self.tokens.extend(logprobs.map(|logprobs| (id, logprobs)));
                deltas
            }
            Part::Done { deltas, reason, spent } => {
                (self.reason, self.spent) = (Some(reason), spent);
                deltas
            }
        };
        for delta in deltas {
            match delta {
                Delta::Text(text) => self.text += &text,
                Delta::Reasoning(text) => self.reasoning += &text,
                Delta::Call(call) => self.calls.push(call),
            }
        }
    }
}
