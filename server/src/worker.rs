//! The model's replicas: jobs are queued, and each answer's events come out.
//!
//! Each replica has a thread that computes jobs together in a batch. The scheduling stays in here; whoever submits a job
//! sees only its events. A client that disconnects drops its receiver; its job then ends, and its pages are free, before
//! the next step.

use super::account::Charge;
use super::balance::{self, Candidate};
use super::metrics::{Gauges, Metrics, ReplicaGauges};
use super::replica;
use pascaline::{Device, Error, memory};
use qwen3_vl::batch::{self, BatchOptions, KeyedPrompt, PAGE, Prefixes};
use qwen3_vl::sampling::{Constraint, Logprobs};
use qwen3_vl::{LanguageModel, Options, StopReason};
use std::collections::VecDeque;
use std::iter::Sum;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};
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

/// A handle to the replicas. When it is dropped, each of their threads ends as soon as no job runs on it.
pub struct Worker {
    models: Vec<Arc<LanguageModel>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// State shared by the threads and those who submit.
pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The most jobs in the queue.
    limit: usize,
    health: watch::Sender<Health>,
    pub metrics: Arc<Metrics>,
}

/// Work with a model that is no answer; dropped without being run once no replica can run it.
pub(crate) type Task = Box<dyn FnOnce(&LanguageModel) + Send>;

struct State {
    waiting: VecDeque<Waiting>,
    /// Run by any replica, one between two steps of its batch.
    tasks: VecDeque<Task>,
    replicas: Vec<Replica>,
    closed: bool,
}

/// A job in the queue.
pub(crate) struct Waiting {
    pub job: Job,
    pub since: Instant,
    /// The replica that it is queued for.
    replica: usize,
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
    fn has_room(self, more: Self, most: Self) -> bool {
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
struct Replica {
    device: String,
    /// Jobs that its thread has taken, and the most that it takes.
    taken: usize,
    most: usize,
    /// Tokens that its pages have room for.
    room: usize,
    batch: batch::Metrics,
    prefixes: Prefixes,
    /// Why its device can't be used, if so.
    lost: Option<String>,
}

impl Replica {
    fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    fn is_full(&self) -> bool {
        self.taken >= self.most
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
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

    fn forget_left(&self, waiting: &mut VecDeque<Waiting>) {
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

impl Worker {
    /// Starts one replica. At most `limit` jobs are queued; running ones share the pages of [`BatchOptions::for_model`].
    ///
    /// # Errors
    /// As [`start_replicas`](Self::start_replicas).
    pub fn start(model: LanguageModel, limit: usize) -> io::Result<Self> {
        let options = BatchOptions::for_model(&model).map_err(io::Error::other)?;
        Self::start_with(model, limit, options)
    }

    /// Starts one replica. At most `limit` jobs are queued; running ones share what `options` says.
    ///
    /// # Errors
    /// As [`start_replicas`](Self::start_replicas).
    pub fn start_with(model: LanguageModel, limit: usize, options: BatchOptions) -> io::Result<Self> {
        Self::start_replicas(vec![(model, options)], limit)
    }

    /// Starts a thread for each of these replicas of one model. At most `limit` jobs are queued for all of them together;
    /// running jobs of a replica share what its options say.
    ///
    /// # Errors
    /// If there is no replica, a thread can't be started, or a device has too little memory for the pages.
    pub fn start_replicas(replicas: Vec<(LanguageModel, BatchOptions)>, limit: usize) -> io::Result<Self> {
        Self::start_counted(replicas, limit, Arc::default())
    }

    /// As [`start_replicas`](Self::start_replicas), counting in these metrics, which other workers may share.
    ///
    /// # Errors
    /// As [`start_replicas`](Self::start_replicas).
    pub fn start_counted(
        replicas: Vec<(LanguageModel, BatchOptions)>,
        limit: usize,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        if replicas.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no replica of the model"));
        }
        let standing = replicas.iter().map(|(model, options)| Replica {
            device: model.devices().map(ToString::to_string).collect::<Vec<_>>().join("+"),
            taken: 0,
            most: options.max_sequences.max(1),
            room: options.pages * PAGE,
            batch: batch::Metrics::default(),
            prefixes: Prefixes::default(),
            lost: None,
        });
        let (waiting, tasks) = (VecDeque::new(), VecDeque::new());
        let state = State { waiting, tasks, replicas: standing.collect(), closed: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            limit,
            health: watch::Sender::new(Health::Up),
            metrics,
        });
        let mut worker = Self { models: Vec::new(), shared, threads: Vec::new() }; // dropping it on an error ends the started threads
        for (index, (model, options)) in replicas.into_iter().enumerate() {
            let model = Arc::new(model);
            worker.models.push(Arc::clone(&model));
            let shared = Arc::clone(&worker.shared);
            let (started, has_started) = mpsc::channel();
            let run = move || replica::run(index, &model, options, &shared, &started);
            let thread = thread::Builder::new().name(format!("model {index}")).spawn(run)?;
            worker.threads.push(thread);
            match has_started.recv() {
                Ok(None) => {}
                Ok(Some(error)) => return Err(io::Error::other(error)),
                Err(gone) => return Err(io::Error::other(gone)),
            }
        }
        Ok(worker)
    }

    /// Ends the threads, after the jobs that run, and frees the models' memory on their devices.
    pub fn end(mut self) {
        self.close();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a panic has been reported
        }
        let devices: Vec<Device> = self.models.iter().flat_map(|model| model.devices().cloned()).collect();
        self.models.clear();
        for device in &devices {
            if let Device::Cuda(cuda) = device {
                // a fault is reported by whoever uses the device next
                let _ = device.synchronize().and_then(|()| memory::pool(cuda)?.trim());
            }
        }
    }

    fn close(&self) {
        self.shared.state().closed = true;
        self.shared.changed.notify_all();
    }

    /// The model, for uses that need no computing thread: its configuration and its processor.
    pub fn model(&self) -> &LanguageModel {
        &self.models[0] // there is one at least
    }

    /// The most requests that the replicas compute at a time.
    pub fn places(&self) -> usize {
        self.shared
            .state()
            .replicas
            .iter()
            .filter(|replica| !replica.is_lost())
            .map(|replica| replica.most)
            .sum()
    }

    /// Queues jobs: all of them, or none if there is no room for all. Each is queued for the replica with the longest
    /// cached prefix of its prompt, unless that one is much busier than another; otherwise for the least busy one.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn submit(&self, jobs: Vec<Job>) -> Result<(), Refused> {
        let mut state = self.shared.state();
        self.is_up()?;
        let State { waiting, replicas, .. } = &mut *state;
        let limit = self.shared.limit;
        let is_full = |waiting: &VecDeque<Waiting>| {
            let [queued, more]: [Weight; 2] =
                [waiting.iter().map(|at| at.job.weight()).sum(), jobs.iter().map(Job::weight).sum()];
            let most = Weight { jobs: limit, tokens: usize::MAX, unanswered: usize::MAX };
            waiting.len() + jobs.len() > limit || !queued.has_room(more, most)
        };
        if is_full(waiting) {
            self.shared.forget_left(waiting);
        }
        if is_full(waiting) {
            self.shared.metrics.refused.add(1);
            return Err(Refused::QueueFull(waiting.len()));
        }
        let since = Instant::now();
        for job in jobs {
            let candidates = replicas.iter().enumerate().filter(|(_, replica)| !replica.is_lost());
            let candidates: Vec<_> = candidates
                .map(|(index, replica)| Candidate {
                    index,
                    jobs: replica.taken + waiting.iter().filter(|at| at.replica == index).count(),
                    most: replica.most,
                    held: replica.prefixes.tokens_held(&job.prompt),
                })
                .collect();
            let replica = balance::choose(&candidates).unwrap_or(0);
            waiting.push_back(Waiting { job, since, replica });
        }
        self.shared.changed.notify_all();
        Ok(())
    }

    fn is_up(&self) -> Result<(), Refused> {
        match &*self.shared.health.borrow() {
            Health::Up => Ok(()),
            Health::Draining => Err(Refused::Draining),
            Health::Lost(reason) => Err(Refused::Lost(reason.clone())),
        }
    }

    /// Queues work with the model that is no answer. Running answers wait while it runs.
    pub(crate) fn compute(&self, task: Task) -> Result<(), Refused> {
        let mut state = self.shared.state();
        self.is_up()?;
        if state.tasks.len() >= self.shared.limit {
            self.shared.metrics.refused.add(1);
            return Err(Refused::QueueFull(state.tasks.len()));
        }
        state.tasks.push_back(task);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Drops waiting jobs whose client has left: their memory and their places are free at once.
    pub fn forget_left(&self) {
        self.shared.forget_left(&mut self.shared.state().waiting);
    }

    /// Accepts no jobs any more; waiting and running ones are finished.
    pub fn drain(&self) {
        let _state = self.shared.state(); // so that no job is queued meanwhile
        self.shared.health.send_if_modified(|health| {
            let was_up = *health == Health::Up;
            if was_up {
                *health = Health::Draining;
            }
            was_up
        });
    }

    /// The state of the server, and a notification when it changes.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }

    /// The counters.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// The current values.
    pub fn gauges(&self) -> Gauges {
        let state = self.shared.state();
        let each = state.replicas.iter().enumerate().map(|(index, replica)| {
            // jobs that have no pages yet, or were preempted, count as waiting
            let running = replica.batch.running.min(replica.taken);
            let queued = state.waiting.iter().filter(|at| at.replica == index).count();
            ReplicaGauges {
                device: replica.device.clone(),
                running,
                waiting: queued + replica.taken - running,
                lost: replica.lost.clone(),
                model: None,
                batch: replica.batch,
            }
        });
        Gauges { up: *self.shared.health.borrow() == Health::Up, replicas: each.collect() }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.close();
    }
}
