//! The thread that owns the model: a queue of jobs in, events of each answer out.
//!
//! All that concerns who is computed when stays in here. Whoever submits a job sees only its events. A client that has
//! left has dropped its receiver; its job ends before its next token.

use super::metrics::{Gauges, Metrics};
use pascaline::{Device, Error, memory};
use qwen3_vl::sampling::{Constraint, Logprobs, Sampler};
use qwen3_vl::{Options, Prompt, Qwen3Vl, Session, StopReason};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;
use std::{io, thread};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

/// An answer that is asked for.
pub struct Job {
    /// What is answered.
    pub prompt: Prompt,
    /// How long, and by what rule tokens are chosen.
    pub options: Options,
    /// Reports each token's probability, and so many of the likeliest ones.
    pub logprobs: Option<usize>,
    /// Which tokens may come.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Where its events go. It never blocks: the most tokens of an answer bound what waits in it.
    pub events: UnboundedSender<Event>,
}

/// Something that happened to an answer.
#[derive(Debug)]
pub enum Event {
    /// A token came.
    Token {
        /// Which.
        id: u32,
        /// The text that is certain now; none where a character or a stop string has only begun.
        text: String,
        /// Its probability, if the job asks for it.
        logprobs: Option<Logprobs>,
    },
    /// The answer is complete; nothing follows.
    Done {
        /// The text that was held back to the end.
        rest: String,
        /// Why it ended.
        reason: StopReason,
        /// What was counted.
        usage: Usage,
    },
    /// The answer failed; nothing follows.
    Failed(Failure),
}

/// Why an answer failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The model's own error.
    #[error(transparent)]
    Model(#[from] Error),
    /// The computation ended in a panic. Only this answer is lost.
    #[error("a bug ended this answer; the server's standard error says where")]
    Panicked,
}

/// Tokens of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of its prompt.
    pub prompt_tokens: usize,
    /// Of these, the ones that were not computed again.
    pub cached_tokens: usize,
    /// Of the answer, a stop token included.
    pub completion_tokens: usize,
}

/// Whether answers are to be had.
#[derive(Clone, Debug, PartialEq)]
pub enum Health {
    /// They are.
    Up,
    /// Those that wait or run are finished; no others are taken.
    Draining,
    /// The device is lost, and with it all answers: only a new process can use it.
    Lost(String),
}

/// Why jobs are not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// Too many wait already.
    #[error("{0} requests wait already, and no more may; try again later")]
    QueueFull(usize),
    /// The server is about to end.
    #[error("the server is shutting down")]
    Draining,
    /// See [`Health::Lost`].
    #[error("{0}")]
    Lost(String),
}

/// Access to the thread. When the last one is dropped, the thread ends after what it computes.
pub struct Worker {
    model: Arc<Qwen3Vl>,
    shared: Arc<Shared>,
}

/// What the thread and those who submit share.
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// The most jobs that wait.
    limit: usize,
    health: watch::Sender<Health>,
    metrics: Metrics,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Job, Instant)>,
    running: usize,
    closed: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Worker {
    /// Starts the thread. At most `limit` jobs wait.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn start(model: Qwen3Vl, limit: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            limit,
            health: watch::Sender::new(Health::Up),
            metrics: Metrics::default(),
        });
        let model = Arc::new(model);
        let (of_thread, its_model) = (Arc::clone(&shared), Arc::clone(&model));
        thread::Builder::new().name("model".into()).spawn(move || serve(&its_model, &of_thread))?;
        Ok(Self { model, shared })
    }

    /// The model, for what needs no thread of its own: its configuration and its processor.
    pub fn model(&self) -> &Qwen3Vl {
        &self.model
    }

    /// Queues jobs: all of them, or none if they do not all find room.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn submit(&self, jobs: Vec<Job>) -> Result<(), Refused> {
        let mut queue = self.shared.queue();
        match &*self.shared.health.borrow() {
            Health::Up => {}
            Health::Draining => return Err(Refused::Draining),
            Health::Lost(reason) => return Err(Refused::Lost(reason.clone())),
        }
        if queue.waiting.len() + jobs.len() > self.shared.limit {
            let before = queue.waiting.len();
            queue.waiting.retain(|(job, _)| !job.events.is_closed());
            self.shared.metrics.left.add(before - queue.waiting.len());
        }
        if queue.waiting.len() + jobs.len() > self.shared.limit {
            self.shared.metrics.refused.add(1);
            return Err(Refused::QueueFull(queue.waiting.len()));
        }
        let now = Instant::now();
        queue.waiting.extend(jobs.into_iter().map(|job| (job, now)));
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Takes no jobs any more; those that wait or run are finished.
    pub fn drain(&self) {
        let _queue = self.shared.queue(); // no job slips in between
        self.shared.health.send_if_modified(|health| {
            let was_up = *health == Health::Up;
            if was_up {
                *health = Health::Draining;
            }
            was_up
        });
    }

    /// Whether answers are to be had, and when that changes.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }

    /// The counters.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// The numbers of this moment.
    pub fn gauges(&self) -> Gauges {
        let queue = self.shared.queue();
        let (running, waiting) = (queue.running, queue.waiting.len());
        Gauges { running, waiting, up: *self.shared.health.borrow() == Health::Up }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.changed.notify_one();
    }
}

/// The thread: one job after the other.
fn serve(model: &Qwen3Vl, shared: &Shared) {
    let mut session = None;
    while let Some((job, since)) = next(shared) {
        shared.metrics.queued.record(since.elapsed());
        if job.events.is_closed() {
            shared.metrics.left.add(1);
        } else {
            answer(model, &mut session, job, shared);
        }
        shared.queue().running = 0;
    }
}

/// Waits for a job; none comes any more once the last [`Worker`] is dropped.
fn next(shared: &Shared) -> Option<(Job, Instant)> {
    let mut queue = shared.queue();
    loop {
        if let Some(next) = queue.waiting.pop_front() {
            queue.running = 1;
            return Some(next);
        }
        if queue.closed {
            return None;
        }
        queue = shared.changed.wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner());
    }
}

/// Computes an answer and sends its events.
fn answer(model: &Qwen3Vl, session: &mut Option<Session>, job: Job, shared: &Shared) {
    let events = job.events.clone();
    // A bug in the computation of one answer is no reason to take the others away.
    let result = catch_unwind(AssertUnwindSafe(|| generate(model, session, job, &shared.metrics)));
    let result = match result {
        Ok(result) => result.map_err(Failure::from),
        Err(_) => Err(Failure::Panicked),
    };
    let metrics = &shared.metrics;
    let event = match result {
        Ok(None) => return metrics.left.add(1),
        Ok(Some(done)) => {
            metrics.finished.add(1);
            done
        }
        Err(failure) => {
            metrics.failed.add(1);
            *session = None;
            recover(model, &failure, shared);
            Event::Failed(failure)
        }
    };
    let _ = events.send(event); // a client that left needs no end
}

/// After an error: memory is given back, and a lost device is told to all who wait.
fn recover(model: &Qwen3Vl, failure: &Failure, shared: &Shared) {
    let out_of_memory = matches!(failure, Failure::Model(Error::OutOfMemory { .. }));
    if let (Device::Cuda(device), true) = (model.device(), out_of_memory) {
        let _ = memory::pool(device).and_then(|pool| pool.trim()); // a fault shows in the next job
    }
    if pascaline::cuda::is_lost() {
        let mut queue = shared.queue();
        shared.health.send_replace(Health::Lost(failure.to_string()));
        for (job, _) in queue.waiting.drain(..) {
            shared.metrics.failed.add(1);
            let _ = job.events.send(Event::Failed(failure.clone()));
        }
    }
}

/// The last event of an answer; `None` if the client left.
fn generate(
    model: &Qwen3Vl,
    session: &mut Option<Session>,
    job: Job,
    metrics: &Metrics,
) -> pascaline::Result<Option<Event>> {
    let Job { prompt, options, logprobs, constraint, events } = job;
    let sampler = Sampler::new(options.sampling.clone(), &prompt.ids)?;
    let sampler = sampler.constrained(constraint).reporting(logprobs);
    let session = match session {
        Some(session) => session,
        none => none.insert(model.session()?),
    };
    let (mut since, mut first, mut rest) = (Instant::now(), true, String::new());
    let output = model.generate_with(session, &prompt, &options, sampler, |step| {
        let Some(id) = step.id else {
            rest.push_str(step.text);
            return if events.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        };
        let times = if first { &metrics.first_token } else { &metrics.next_token };
        times.record(since.elapsed());
        (since, first) = (Instant::now(), false);
        metrics.generated_tokens.add(1);
        match events.send(Event::Token { id, text: step.text.to_owned(), logprobs: step.logprobs }) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    let usage = Usage {
        prompt_tokens: prompt.ids.len(),
        cached_tokens: prompt.ids.len().saturating_sub(output.statistics.prefill_tokens),
        completion_tokens: output.ids.len(),
    };
    if output.stop_reason == StopReason::Cancelled {
        return Ok(None);
    }
    metrics.prompt_tokens.add(usage.prompt_tokens);
    metrics.cached_tokens.add(usage.cached_tokens);
    Ok(Some(Event::Done { rest, reason: output.stop_reason, usage }))
}
