//! The model's replicas: jobs are queued, and each answer's events come out.
//!
//! Each replica has a thread that computes jobs together in a batch. The scheduling stays in here; whoever submits a job
//! sees only its events. A client that disconnects drops its receiver; its job then ends, and its pages are free, before
//! the next step.

use super::balance::{self, Candidate};
use super::metrics::{Gauges, Metrics, ReplicaGauges};
pub use super::queue::{Event, Failure, Health, Job, Refused, Usage};
use super::queue::{Replica, Shared, State, Task, Waiting, Weight};
use super::replica;
use pascaline::{Device, memory};
use qwen3_vl::LanguageModel;
use qwen3_vl::batch::{self, BatchOptions, PAGE, Prefixes};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;
use std::{io, thread};
use tokio::sync::watch;

/// A handle to the replicas. When it is dropped, each of their threads ends as soon as no job runs on it.
pub struct Worker {
    models: Vec<Arc<LanguageModel>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
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
        // a job that a replica has a place for does not wait, even if its thread has not taken it yet
        let limit = self.shared.limit + replicas.iter().map(Replica::free).sum::<usize>();
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
