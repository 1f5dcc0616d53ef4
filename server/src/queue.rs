//! Jobs, the queue in which they wait for a replica, and the events of their answers.

use super::account::Charge;
use super::metrics::Metrics;
use pascaline::Error;
use qwen3_vl::batch::{self, KeyedPrompt, Prefixes};
use qwen3_vl::sampling::{Constraint, Logprobs};
use qwen3_vl::{LanguageModel, Options, StopReason};
use std::collections::VecDeque;
use std::iter::Sum;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

/// A requested answer.
pub struct Job {
    /// The prompt.
    pub prompt: KeyedPrompt,
    /// Length, sampling and stop options.
    pub options: Options,
    /// Reports each token's probability, and this many of the likeliest tokens.
    pub logprobs: Option<usize>,
    /// Restricts which tokens may come.
    pub constraint: Option<Box<dyn Constraint>>,
    /// The channel of its events. Sending never blocks; the answer's most tokens bound the channel's length.
    pub events: UnboundedSender<Event>,
    /// The memory of its prompt, given back when the last job that shares it has ended.
    pub charge: Option<Arc<Charge>>,
    /// Told how long the job was queued when a replica takes it.
    pub taken: Option<Box<dyn FnOnce(Duration) + Send>>,
}

/// An event of an answer.
#[derive(Debug)]
pub enum Event {
    /// A token was generated.
    Token {
        /// Which.
        id: u32,
        /// The text that is final now; empty while a character or a stop string is incomplete.
        text: String,
        /// Its probability, if the job requests it.
        logprobs: Option<Logprobs>,
    },
    /// The answer is complete; no event follows.
    Done {
        /// The text that had been held back.
        rest: String,
        /// Why it ended.
        reason: StopReason,
        /// Token counts.
        usage: Usage,
    },
    /// The answer failed; no event follows.
    Failed(Failure),
}

/// Why an answer failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The model's own error.
    #[error(transparent)]
    Model(#[from] Error),
    /// The computation panicked. The running answers are lost; later ones are computed.
    #[error("a bug ended this answer; the server's standard error says where")]
    Panicked,
}

/// Token counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens that were not computed again.
    pub cached_tokens: usize,
    /// Tokens of the answer, a stop token included.
    pub completion_tokens: usize,
}

/// Whether the server computes answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Health {
    /// It accepts jobs.
    Up,
    /// It finishes waiting and running jobs and accepts no others.
    Draining,
    /// The devices of all replicas are lost, and all answers with them. Only a new process can use them.
    Lost(String),
}

/// Why a job is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// Too many wait already.
    #[error("{0} requests are waiting, the most allowed; try again later")]
    QueueFull(usize),
    /// The server is about to end.
    #[error("the server is shutting down")]
    Draining,
    /// See [`Health::Lost`].
    #[error("{0}")]
    Lost(String),
}

/// State shared by the threads and those who submit.
pub(crate) struct Shared {
    pub state: Mutex<State>,
    pub changed: Condvar,
    /// The most jobs in the queue, besides those that replicas have free places for.
    pub limit: usize,
    pub health: watch::Sender<Health>,
    pub metrics: Arc<Metrics>,
}

/// Work with a model that is no answer; dropped without being run once no replica can run it.
pub(crate) type Task = Box<dyn FnOnce(&LanguageModel) + Send>;

pub(crate) struct State {
    pub waiting: VecDeque<Waiting>,
    /// Run by any replica, one between two steps of its batch.
    pub tasks: VecDeque<Task>,
    pub replicas: Vec<Replica>,
    pub closed: bool,
}

/// A job in the queue.
pub(crate) struct Waiting {
    pub job: Job,
    pub since: Instant,
    /// The replica that it is queued for.
    pub replica: usize,
}

impl Job {
    /// Its share of the heavy work: one job, and its prompt's tokens. Zero if it is light.
    pub(crate) fn weight(&self) -> Weight {
        match self.charge.as_ref().is_some_and(|charge| !charge.is_light()) {
            true => Weight { jobs: 1, tokens: self.prompt.prompt().ids.len(), unanswered: 1 },
            false => Weight::default(),
        }
    }
}

/// Heavy jobs together. They take at most three quarters of the queue, and of a replica's places and pages: a short
/// question does not wait for large pictures.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weight {
    pub jobs: usize,
    pub tokens: usize,
    /// Those that have no token of their answer yet. While light jobs are there, a replica computes one such prompt at a
    /// time: a batch computes larger parts of prompts, and thus slower steps, while more wait for a token than have one.
    pub unanswered: usize,
}

/// The most heavy prompts that a replica computes at a time without light jobs.
const MAX_UNANSWERED: usize = 4;

impl Weight {
    /// Whether one more fits into three quarters of `most`. The first always does.
    pub(crate) fn has_room(self, more: Self, most: Self) -> bool {
        let fits = |used: usize, more: usize, most: usize| used + more <= most / 4 * 3;
        let is_first = self.jobs == 0;
        more.jobs == 0
            || self.unanswered < most.unanswered
                && (is_first
                    || fits(self.jobs, more.jobs, most.jobs) && fits(self.tokens, more.tokens, most.tokens))
    }
}

impl Sum for Weight {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            jobs: a.jobs + b.jobs,
            tokens: a.tokens + b.tokens,
            unanswered: a.unanswered + b.unanswered,
        })
    }
}

/// A replica's state as seen from other threads.
pub(crate) struct Replica {
    pub device: String,
    /// Jobs that its thread has taken, and the most that it takes.
    pub taken: usize,
    pub most: usize,
    /// Tokens that its pages have room for.
    pub room: usize,
    pub batch: batch::Metrics,
    pub prefixes: Prefixes,
    /// Why its device can't be used, if so.
    pub lost: Option<String>,
}

impl Replica {
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free() == 0
    }

    /// Jobs that it can take now.
    pub(crate) fn free(&self) -> usize {
        if self.is_lost() { 0 } else { self.most.saturating_sub(self.taken) }
    }
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The jobs that replica `index`, which has taken `taken` already, the heavy ones together `heavy`, is to compute now;
    /// blocks until there is one if `taken` is 0. These are jobs queued for it, and jobs queued for a replica that is full
    /// or lost. `None` after the
    /// replica's loss, and once the [`Worker`] is dropped.
    pub fn next(&self, index: usize, taken: usize, mut heavy: Weight) -> Option<Vec<Waiting>> {
        let mut state = self.state();
        loop {
            let State { waiting, tasks, replicas, closed } = &mut *state;
            if replicas[index].is_lost() {
                return None;
            }
            replicas[index].taken = taken;
            let mut jobs = Vec::new();
            let has_light = taken > heavy.jobs || waiting.iter().any(|at| at.job.weight().jobs == 0);
            let unanswered = if has_light { 1 } else { MAX_UNANSWERED };
            for at in std::mem::take(waiting) {
                let other = &replicas[at.replica];
                let is_for_it = at.replica == index || other.is_full() || other.is_lost();
                let Replica { most, room, .. } = replicas[index];
                let (weight, most) = (at.job.weight(), Weight { jobs: most, tokens: room, unanswered });
                match is_for_it && !replicas[index].is_full() && heavy.has_room(weight, most) {
                    true => {
                        replicas[index].taken += 1;
                        heavy = [heavy, weight].into_iter().sum();
                        jobs.push(at);
                    }
                    false => waiting.push_back(at),
                }
            }
            if replicas[index].is_full() && !waiting.is_empty() {
                self.changed.notify_all(); // others may take jobs queued for this one
            }
            if taken > 0 || !jobs.is_empty() || !tasks.is_empty() {
                return Some(jobs);
            }
            if *closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next task, which the caller runs.
    pub fn task(&self) -> Option<Task> {
        self.state().tasks.pop_front()
    }

    pub(crate) fn forget_left(&self, waiting: &mut VecDeque<Waiting>) {
        let before = waiting.len();
        waiting.retain(|at| !at.job.events.is_closed());
        self.metrics.left.add(before - waiting.len());
    }

    /// Records the state of replica `index`.
    pub fn report(&self, index: usize, taken: usize, batch: batch::Metrics) {
        let replica = &mut self.state().replicas[index];
        (replica.taken, replica.batch) = (taken, batch);
    }

    /// Records that replica `index` has a new batch, with these cached prefixes.
    pub fn begin(&self, index: usize, prefixes: Prefixes) {
        self.state().replicas[index].prefixes = prefixes;
    }

    /// Takes replica `index` out of service, before any client sees an answer's end. Jobs queued for it go to other
    /// replicas; if none is left, they fail and the server reports [`Health::Lost`].
    pub fn lose(&self, index: usize, failure: &Failure) {
        let mut state = self.state();
        let replica = &mut state.replicas[index];
        (replica.taken, replica.batch) = (0, batch::Metrics::default());
        replica.lost.get_or_insert_with(|| failure.to_string());
        tracing::error!(device = replica.device, reason = %failure, "replica lost");
        if state.replicas.iter().all(Replica::is_lost) {
            self.health.send_replace(Health::Lost(failure.to_string()));
            state.tasks.clear();
            for Waiting { job, .. } in state.waiting.drain(..) {
                self.metrics.failed.add(1);
                let _ = job.events.send(Event::Failed(failure.clone())); // the client may have disconnected
            }
        }
        self.changed.notify_all();
    }
}
