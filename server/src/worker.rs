//! The thread that owns the model: a queue of jobs in, events of each answer out.
//!
//! All that concerns who is computed when stays in here: jobs run together in a [`Batch`]. Whoever submits a job sees only its
//! events. A client that has left has dropped its receiver; its job ends, and its pages are free, before the next step.

use super::metrics::{Gauges, Metrics};
use pascaline::{Device, Error, memory};
use qwen3_vl::batch::{self, Batch, BatchOptions, RequestId};
use qwen3_vl::sampling::{Constraint, Logprobs, Sampler};
use qwen3_vl::{Options, Prompt, Qwen3Vl, StopReason};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
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
    /// The computation ended in a panic. The answers that ran are lost; others are computed.
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
    /// Jobs that the thread has taken, and how the batch stands.
    taken: usize,
    batch: batch::Metrics,
    closed: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Worker {
    /// Starts the thread. At most `limit` jobs wait; those that run share what [`BatchOptions::for_model`] takes.
    ///
    /// # Errors
    /// As [`start_with`](Self::start_with).
    pub fn start(model: Qwen3Vl, limit: usize) -> io::Result<Self> {
        let options = BatchOptions::for_model(&model).map_err(io::Error::other)?;
        Self::start_with(model, limit, options)
    }

    /// Starts the thread. At most `limit` jobs wait; those that run share what `options` says.
    ///
    /// # Errors
    /// If the system has no thread left, or the device too little memory for the pages.
    pub fn start_with(model: Qwen3Vl, limit: usize, options: BatchOptions) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            limit,
            health: watch::Sender::new(Health::Up),
            metrics: Metrics::default(),
        });
        let model = Arc::new(model);
        let (of_thread, its_model) = (Arc::clone(&shared), Arc::clone(&model));
        let (started, has_started) = mpsc::channel();
        thread::Builder::new().name("model".into()).spawn(move || {
            let batch = Batch::new(&its_model, options);
            let _ = started.send(batch.as_ref().err().cloned()); // whoever starts it waits
            if let Ok(batch) = batch {
                Thread { batch, options, model: &its_model, shared: &of_thread, running: BTreeMap::new() }
                    .run();
            }
        })?;
        match has_started.recv() {
            Ok(None) => Ok(Self { model, shared }),
            Ok(Some(error)) => Err(io::Error::other(error)),
            Err(gone) => Err(io::Error::other(gone)),
        }
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
        // those that have no pages yet, or had to give them back, wait
        let running = queue.batch.running.min(queue.taken);
        let waiting = queue.waiting.len() + queue.taken - running;
        Gauges { running, waiting, up: *self.shared.health.borrow() == Health::Up, batch: queue.batch }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.changed.notify_one();
    }
}

/// The thread's state.
struct Thread<'a> {
    batch: Batch<'a>,
    options: BatchOptions,
    model: &'a Qwen3Vl,
    shared: &'a Shared,
    running: BTreeMap<RequestId, Running>,
}

/// A job that the thread has taken.
struct Running {
    events: UnboundedSender<Event>,
    /// When it was taken, and then its last token.
    since: Instant,
    first: bool,
}

impl Thread<'_> {
    /// Until the last [`Worker`] is dropped: takes what waits, and steps.
    fn run(mut self) {
        while let Some(jobs) = self.next() {
            for (job, since) in jobs {
                self.shared.metrics.queued.record(since.elapsed());
                self.take(job);
            }
            let left: Vec<_> =
                self.running.iter().filter(|(_, job)| job.events.is_closed()).map(|(id, _)| *id).collect();
            for id in left {
                self.batch.remove(id);
                self.running.remove(&id);
                self.shared.metrics.left.add(1);
            }
            self.step();
            let mut queue = self.shared.queue();
            (queue.taken, queue.batch) = (self.running.len(), self.batch.metrics());
        }
    }

    /// The jobs that there is room for; waits for one if none runs. None comes any more once the last [`Worker`] is dropped.
    fn next(&self) -> Option<Vec<(Job, Instant)>> {
        let mut queue = self.shared.queue();
        while self.running.is_empty() && queue.waiting.is_empty() {
            if queue.closed {
                return None;
            }
            queue = self.shared.changed.wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        let room = self.options.max_sequences.max(1).saturating_sub(self.running.len());
        let count = room.min(queue.waiting.len());
        queue.taken += count;
        Some(queue.waiting.drain(..count).collect())
    }

    fn take(&mut self, Job { prompt, options, logprobs, constraint, events }: Job) {
        if events.is_closed() {
            return self.shared.metrics.left.add(1);
        }
        let sampler = Sampler::new(options.sampling.clone(), &prompt.ids);
        let sampler = sampler.map(|sampler| sampler.constrained(constraint).reporting(logprobs));
        match sampler.and_then(|sampler| self.batch.add_with(prompt, &options, sampler)) {
            Ok(id) => drop(self.running.insert(id, Running { events, since: Instant::now(), first: true })),
            Err(error) => {
                self.shared.metrics.failed.add(1);
                let _ = events.send(Event::Failed(error.into())); // a client that left needs no end
            }
        }
    }

    /// A step of all that run.
    fn step(&mut self) {
        // A bug in the computation of some answers is no reason to take those to come away.
        match catch_unwind(AssertUnwindSafe(|| self.batch.step())) {
            Ok(events) => {
                if let Some(error) = self.batch.fault().cloned() {
                    self.lose(&error.into());
                }
                events.into_iter().for_each(|event| self.tell(event));
            }
            Err(_) => {
                self.fail_all(&Failure::Panicked);
                match Batch::new(self.model, self.options) {
                    Ok(batch) => self.batch = batch,
                    Err(error) => self.lose(&error.into()),
                }
            }
        }
    }

    /// Sends an event to whom it concerns, and counts it.
    fn tell(&mut self, event: batch::Event) {
        let metrics = &self.shared.metrics;
        match event {
            batch::Event::Token { id, token, text, logprobs } => {
                let Some(job) = self.running.get_mut(&id) else { return };
                let times = if job.first { &metrics.first_token } else { &metrics.next_token };
                times.record(job.since.elapsed());
                (job.since, job.first) = (Instant::now(), false);
                metrics.generated_tokens.add(1);
                let _ = job.events.send(Event::Token { id: token, text, logprobs }); // noticed before the next step
            }
            batch::Event::Finished { id, rest, output } => {
                let Some(job) = self.running.remove(&id) else { return };
                let statistics = output.statistics;
                let usage = Usage {
                    prompt_tokens: statistics.prompt_tokens,
                    cached_tokens: statistics.prompt_tokens.saturating_sub(statistics.prefill_tokens),
                    completion_tokens: output.ids.len(),
                };
                metrics.prompt_tokens.add(usage.prompt_tokens);
                metrics.cached_tokens.add(usage.cached_tokens);
                metrics.finished.add(1);
                let _ = job.events.send(Event::Done { rest, reason: output.stop_reason, usage });
            }
            batch::Event::Failed { id, error } => {
                let Some(job) = self.running.remove(&id) else { return };
                metrics.failed.add(1);
                for device in self.model.devices() {
                    if let (Device::Cuda(device), Error::OutOfMemory { .. }) = (device, &error) {
                        let _ = memory::pool(device).and_then(|pool| pool.trim()); // a fault shows in the next step
                    }
                }
                let _ = job.events.send(Event::Failed(error.into()));
            }
        }
    }

    fn fail_all(&mut self, failure: &Failure) {
        for job in std::mem::take(&mut self.running).into_values() {
            self.shared.metrics.failed.add(1);
            let _ = job.events.send(Event::Failed(failure.clone()));
        }
    }

    /// Says that no answers are to be had any more, before anybody hears of an answer's end.
    fn lose(&mut self, failure: &Failure) {
        let mut queue = self.shared.queue();
        self.shared.health.send_replace(Health::Lost(failure.to_string()));
        let waiting = queue.waiting.drain(..).map(|(job, _)| job.events);
        let running = std::mem::take(&mut self.running).into_values().map(|job| job.events);
        for events in running.chain(waiting) {
            self.shared.metrics.failed.add(1);
            let _ = events.send(Event::Failed(failure.clone()));
        }
    }
}
