//! A replica's thread: takes jobs from the queue, computes them together in a [`Batch`], and sends each its events.
//!
//! A bug in the computation (a panic) ends the running answers with an error, and the thread goes on with a new batch. If
//! no batch can be created, the replica is taken out of service, as after the loss of its device. So no answer waits for a
//! dead thread.

use super::account::Charge;
use super::queue::{Event, Failure, Job, Shared, Usage, Waiting, Weight};
use pascaline::{Device, Error, memory};
use qwen3_vl::LanguageModel;
use qwen3_vl::batch::{self, Batch, BatchOptions, RequestId};
use qwen3_vl::sampling::Sampler;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// Computes jobs for replica `index` until the queue is closed. `started` is sent the error of the start, or `None`.
pub(crate) fn run(
    index: usize,
    model: &LanguageModel,
    options: BatchOptions,
    shared: &Shared,
    started: &mpsc::Sender<Option<Error>>,
) {
    let batch = Batch::new(model, options);
    if let Ok(batch) = &batch {
        shared.begin(index, batch.prefixes());
    }
    let _ = started.send(batch.as_ref().err().cloned()); // the starter waits for it
    if let Ok(batch) = batch {
        let _end = End { index, shared };
        Thread { index, batch: Some(batch), options, model, shared, running: BTreeMap::new() }.run();
    }
}

/// Takes the replica out of service if its thread panics.
struct End<'a> {
    index: usize,
    shared: &'a Shared,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.lose(self.index, &Failure::Panicked);
        }
    }
}

/// The thread's state.
struct Thread<'a> {
    index: usize,
    /// `None` while a new one replaces it, and after none could be created.
    batch: Option<Batch<'a>>,
    options: BatchOptions,
    model: &'a LanguageModel,
    shared: &'a Shared,
    running: BTreeMap<RequestId, Running>,
}

/// A job that the thread has taken.
struct Running {
    events: UnboundedSender<Event>,
    /// When it was taken; later, when its last token was sent.
    since: Instant,
    first: bool,
    weight: Weight,
    /// Dropped after the batch has dropped the prompt.
    _charge: Option<Arc<Charge>>,
}

impl Thread<'_> {
    fn run(mut self) {
        while let Some(jobs) = self.next() {
            for Waiting { job, since, .. } in jobs {
                self.take(job, since.elapsed());
            }
            if let Some(task) = self.shared.task() {
                // its client sees that nothing came of it
                let _ = catch_unwind(AssertUnwindSafe(|| task(self.model)));
            }
            // A bug in the computation of these answers is no reason to fail later ones.
            if catch_unwind(AssertUnwindSafe(|| self.step())).is_err() {
                self.restart_batch();
            }
        }
    }

    fn next(&self) -> Option<Vec<Waiting>> {
        let heavy = self.running.values().map(|job| job.weight).sum();
        self.shared.next(self.index, self.running.len(), heavy)
    }

    fn take(&mut self, job: Job, queued: Duration) {
        let weight = job.weight();
        let Job { prompt, options, logprobs, constraint, events, charge, taken } = job;
        self.shared.metrics.queued.record(queued);
        if let Some(taken) = taken {
            taken(queued);
        }
        if events.is_closed() {
            return self.shared.metrics.left.add(1);
        }
        let added = catch_unwind(AssertUnwindSafe(|| {
            let sampler = Sampler::new(options.sampling.clone(), &prompt.prompt().ids)?;
            let sampler = sampler.constrained(constraint).reporting(logprobs);
            self.batch.as_mut().map(|batch| batch.add_keyed(prompt, &options, sampler)).transpose()
        }));
        let failure = match added {
            Ok(Ok(Some(id))) => {
                let since = Instant::now();
                self.running.insert(id, Running { events, since, first: true, weight, _charge: charge });
                return;
            }
            Ok(Ok(None)) => Failure::Panicked,
            Ok(Err(error)) => error.into(),
            Err(_) => {
                self.restart_batch(); // it may have been left half changed
                Failure::Panicked
            }
        };
        self.shared.metrics.failed.add(1);
        let _ = events.send(Event::Failed(failure)); // the client may have disconnected
    }

    /// Removes jobs whose client has disconnected, and computes a step of all others.
    fn step(&mut self) {
        let Some(batch) = &mut self.batch else { return };
        let left: Vec<_> =
            self.running.iter().filter(|(_, job)| job.events.is_closed()).map(|(id, _)| *id).collect();
        for id in left {
            batch.remove(id);
            self.running.remove(&id);
            self.shared.metrics.left.add(1);
        }
        // A pass for nobody is ended. One that others share goes on, as it would have to be computed again.
        let running = &self.running;
        let events = batch.step_while(&mut || match !running.is_empty()
            && running.values().all(|job| job.events.is_closed())
        {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        let (fault, metrics) = (batch.fault().cloned(), batch.metrics());
        if let Some(error) = fault {
            self.lose(&error.into());
        }
        // before the events: a client that has one sees gauges that are as new
        let ended = events.iter().filter(|event| !matches!(event, batch::Event::Token { .. })).count();
        self.shared.report(self.index, self.running.len().saturating_sub(ended), metrics);
        events.into_iter().for_each(|event| self.tell(event));
    }

    /// After a panic: fails all answers, and starts a new batch.
    fn restart_batch(&mut self) {
        let (old, model, options) = (self.batch.take(), self.model, self.options);
        // the old batch's memory is freed before the new one allocates
        let new = catch_unwind(AssertUnwindSafe(|| {
            drop(old);
            model.devices().try_for_each(Device::synchronize)?;
            self.trim();
            Batch::new(model, options)
        }));
        match new {
            Ok(Ok(batch)) => {
                self.shared.begin(self.index, batch.prefixes());
                self.batch = Some(batch);
            }
            Ok(Err(error)) => self.lose(&error.into()),
            Err(_) => self.lose(&Failure::Panicked),
        }
        self.shared.report(self.index, 0, batch::Metrics::default());
        self.fail_all(&Failure::Panicked);
    }

    /// Sends an event to its job, and counts it.
    fn tell(&mut self, event: batch::Event) {
        let metrics = &self.shared.metrics;
        match event {
            batch::Event::Token { id, token, text, logprobs } => {
                let Some(job) = self.running.get_mut(&id) else { return };
                let times = if job.first { &metrics.first_token } else { &metrics.next_token };
                times.record(job.since.elapsed());
                (job.since, job.first, job.weight.unanswered) = (Instant::now(), false, 0);
                metrics.generated_tokens.add(1);
                let _ = job.events.send(Event::Token { id: token, text, logprobs }); // the next step notices a lost client
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
                if matches!(error, Error::OutOfMemory { .. }) {
                    self.trim();
                }
                let _ = job.events.send(Event::Failed(error.into()));
            }
        }
    }

    /// Returns unused memory of the pools to the drivers.
    fn trim(&self) {
        for device in self.model.devices() {
            if let Device::Cuda(device) = device {
                let _ = memory::pool(device).and_then(|pool| pool.trim()); // a fault is reported by the next step
            }
        }
    }

    fn fail_all(&mut self, failure: &Failure) {
        for job in std::mem::take(&mut self.running).into_values() {
            self.shared.metrics.failed.add(1);
            let _ = job.events.send(Event::Failed(failure.clone()));
        }
    }

    /// Takes the replica out of service, before any client sees an answer's end.
    fn lose(&mut self, failure: &Failure) {
        self.shared.lose(self.index, failure);
        self.fail_all(failure);
    }
}
