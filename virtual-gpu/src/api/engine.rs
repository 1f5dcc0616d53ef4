//! Streams as queues, and the seeded order in which work runs.
//!
//! Work is queued with its dependencies. It runs when something waits for it, together with other work that may
//! run, in an order that the seed decides. So code that lacks an edge between streams will run in an order that needs it
//! under some seeds.

use std::time::Duration;

use super::clock::{Clock, join};
use super::codes::*;
use super::execute::{RETURNED, call_host};
use super::state::{Driver, Guard, Queued, Stream, lock};
use super::stream_id::{Mark, StreamId, is_null};
use super::work::Work;

/// Beyond this many, queued work runs at once: a driver's queue is finite too.
const QUEUE_LIMIT: usize = 1024;

/// Between two looks at a value that a stream waits for.
const POLL: Duration = Duration::from_millis(1);

impl Driver {
    fn blocking(s: &Stream) -> bool {
        s.flags & 1 == 0
    }

    /// Queues work on a stream, or records it if the stream is being captured. Returns its mark.
    pub fn enqueue(&mut self, id: StreamId, work: Work) -> Result<Mark, u32> {
        if self.stream(id)?.capture.is_some() {
            self.capture_work(id, work)?;
            return Ok((id, 0));
        }
        let mut after = Vec::new();
        let device = self.stream(id)?.device;
        if is_null(id) {
            if self.captures.values().any(|c| !c.relaxed) {
                return Err(STREAM_CAPTURE_IMPLICIT);
            }
            // The legacy default stream follows all earlier work of blocking streams …
            after.extend(
                self.streams
                    .iter()
                    .filter(|(i, s)| **i != id && s.device == device && Self::blocking(s))
                    .map(|(i, s)| (*i, s.queued)),
            );
        } else if Self::blocking(self.stream(id)?) {
            // … and all later work of theirs follows it.
            after.push((device as u64, self.devices[device].last_null));
        }
        let host = self.order.host();
        let s = self.stream(id)?;
        after.append(&mut s.pending_waits);
        s.queued += 1;
        let mark = (id, s.queued);
        s.queue.push_back(Queued { work, after, host });
        if is_null(id) {
            self.devices[device].last_null = mark.1;
        }
        Ok(mark)
    }

    /// Makes the stream's next work wait for a mark.
    pub fn follow(&mut self, id: StreamId, mark: Mark) -> Result<(), u32> {
        self.stream(id)?.pending_waits.push(mark);
        // Queued as work of its own, so that whoever waits for the stream waits for the mark too.
        self.enqueue(id, Work::Wait).map(|_| ())
    }

    /// Records an event behind all work of a device that is queued, on a stream of its own.
    pub fn record_device(&mut self, device: usize, event: u64) -> Result<Mark, u32> {
        let of_device = self.streams.iter().filter(|(_, s)| s.device == device);
        let marks = of_device.map(|(id, s)| (*id, s.queued)).collect();
        let id = self.handle();
        self.streams.insert(id, Stream { pending_waits: marks, ..Stream::new(device, 1, 0) });
        let mark = self.enqueue(id, Work::Record(event))?;
        self.stream(id)?.destroyed = true;
        Ok(mark)
    }

    /// Makes all later work of a device wait for a mark.
    pub fn follow_on_device(&mut self, device: usize, mark: Mark) -> Result<(), u32> {
        let mut streams: Vec<_> = self
            .streams
            .iter()
            .filter(|(_, s)| s.device == device && !s.destroyed)
            .map(|(id, _)| *id)
            .collect();
        streams.sort_unstable();
        streams.into_iter().try_for_each(|id| self.follow(id, mark))?;
        let done = |mark: &Mark| self.streams.get(&mark.0).is_none_or(|s| s.finished >= mark.1);
        let mut waits = std::mem::take(&mut self.devices[device].waits);
        waits.retain(|mark| !done(mark));
        waits.push(mark);
        self.devices[device].waits = waits;
        Ok(())
    }

    fn follows(&self, q: &Queued) -> bool {
        q.after.iter().all(|&mark| self.done(mark))
    }

    /// Whether all that could run waits for values, which the host or another thread's work may write.
    fn waits_for_values(&self) -> bool {
        let waits = |q: &Queued| matches!(q.work, Work::WaitValue { .. }) && self.follows(q);
        self.ready().is_empty() && self.streams.values().any(|s| s.queue.front().is_some_and(waits))
    }

    fn ready(&self) -> Vec<StreamId> {
        let mut ids: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, s)| {
                !s.busy && s.queue.front().is_some_and(|q| self.follows(q) && self.may_run(&q.work))
            })
            .map(|(id, _)| *id)
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Takes one piece of work that may run, at random; `None` if there is none.
    fn take(&mut self) -> Option<(StreamId, Work)> {
        let ready = self.ready();
        if ready.is_empty() {
            return None;
        }
        let id = ready[self.pick(ready.len() as u64) as usize];
        let s = self.streams.get_mut(&id)?;
        let q = s.queue.pop_front()?;
        let waited =
            q.after.iter().filter_map(|(o, _)| self.streams.get(o)).fold(0.0f64, |t, o| t.max(o.time));
        let mut clock = Clock::new();
        if self.ordered() {
            clock = (*q.host).clone();
            q.after.iter().for_each(|&mark| join(&mut clock, &self.clock_at(mark)));
        }
        let s = self.streams.get_mut(&id)?;
        s.time = s.time.max(waited);
        join(&mut s.clock, &clock);
        s.clock.insert(id, s.finished + 1);
        Some((id, q.work))
    }

    fn finish(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            s.finished += 1;
            s.busy = false;
            if s.destroyed && s.finished == s.queued {
                self.streams.remove(&id);
            }
        }
    }
}

/// Runs queued work, in a seeded order, until `until` holds. Returns the guard, which is released while a host
/// function runs.
pub(super) fn run_until(guard: Guard, until: impl Fn(&Driver) -> bool) -> Result<Guard, u32> {
    run_work(guard, until, true)
}

/// As [`run_until`]. A call that does not wait has host functions run on a thread of their own, as one may wait for what the
/// caller does next.
fn run_work(mut guard: Guard, until: impl Fn(&Driver) -> bool, waits: bool) -> Result<Guard, u32> {
    loop {
        let d = &mut *guard;
        if until(d) {
            return Ok(guard);
        }
        match d.take() {
            None if d.streams.values().any(|s| s.busy) => {
                guard = RETURNED.wait(guard).unwrap_or_else(|e| e.into_inner());
            }
            None if d.waits_for_values() => {
                drop(guard);
                std::thread::sleep(POLL);
                guard = lock()?;
            }
            // Nothing can run, so the wait would never end.
            None => return Err(LAUNCH_TIMEOUT),
            Some((id, work @ Work::Call { .. })) if !waits => {
                d.streams.entry(id).and_modify(|s| s.busy = true);
                std::thread::spawn(move || {
                    let called = lock().and_then(|guard| call_host(guard, id, &work));
                    called.into_iter().for_each(|mut guard| guard.finish(id));
                    RETURNED.notify_all();
                });
            }
            Some((id, work @ Work::Call { .. })) => {
                guard = call_host(guard, id, &work)?;
                guard.finish(id);
            }
            Some((id, Work::Graph(exec))) => {
                guard = super::graph_run::run(guard, id, &exec)?;
                guard.finish(id);
            }
            Some((id, work)) => {
                d.execute(id, &work);
                d.finish(id);
            }
        }
    }
}

/// Called after work was queued: runs none, some or all of it, as the configuration and the seed say.
pub(super) fn after_enqueue(mut guard: Guard) -> Result<(), u32> {
    let d = &mut *guard;
    let waiting: usize = d.streams.values().map(|s| s.queue.len()).sum();
    if !d.gpu().config().late {
        drop(run_until(guard, |d| d.idle() || d.waits_for_values())?);
    } else if waiting > QUEUE_LIMIT || d.chance(8) {
        drop(run_some(guard, 1 + waiting as u64 / 2)?);
    }
    Ok(())
}

/// Runs up to `n` pieces of work.
pub(super) fn run_some(mut guard: Guard, n: u64) -> Result<Guard, u32> {
    for _ in 0..n {
        let d = &*guard;
        if d.ready().is_empty() {
            break;
        }
        let before: u64 = d.streams.values().map(|s| s.finished).sum();
        // A destroyed stream takes its count with it, so a piece may have run though the sum is as before.
        let ran = move |d: &Driver| d.streams.values().map(|s| s.finished).sum::<u64>() != before;
        guard = run_work(guard, |d| ran(d) || d.ready().is_empty(), false)?;
    }
    Ok(guard)
}
