//! Which work is ordered before which: the pool's record of streams, by epochs and events.
//!
//! The work of a stream is divided into epochs; recording the stream's event ends one. A block that is freed on stream X in
//! epoch e may be used by X at once; by stream Y once Y waits for an event of X recorded in e or later; by any stream once
//! such an event is known to be reached. Events are recorded only when another stream needs memory: a program with one
//! stream records none. One event object per stream is enough, since a stream's events are reached in order.

use super::upstream::Timeline;
use crate::mutation::{Wait, left_out};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// The pool's number of a stream; never reused.
pub(super) type StreamId = u64;
/// Number of records of a stream's event.
pub(super) type Epoch = u64;
/// "After the work queued on this stream in this epoch."
pub(super) type Dependency = (StreamId, Epoch);

/// When free memory may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// By any stream, at once.
    Ready,
    /// By this stream at once, by others after the epoch.
    After(StreamId, Epoch),
    /// By any stream after all of these.
    AfterAll(Vec<Dependency>),
}

pub(super) struct Order<T: Timeline> {
    timeline: T,
    streams: BTreeMap<StreamId, Known<T>>,
    next: StreamId,
}

struct Known<T: Timeline> {
    /// `None` if the stream is gone; its last epoch ended with a record.
    stream: Option<T::Stream>,
    event: Option<T::Event>,
    /// The epoch of work that is queued now; all earlier ones ended with a record of the event.
    epoch: Epoch,
    /// Whether memory waits for the current epoch.
    dirty: bool,
    /// The last epoch that is known to be reached, as are all before it.
    reached: Option<Epoch>,
    /// The epochs of other streams that this stream's work is already ordered after.
    ordered_after: BTreeMap<StreamId, Epoch>,
}

impl<T: Timeline> Order<T> {
    pub fn new(timeline: T) -> Self {
        Self { timeline, streams: BTreeMap::new(), next: 0 }
    }

    pub fn timeline(&self) -> &T {
        &self.timeline
    }

    /// The stream's number, if it has one.
    pub fn find(&self, stream: &T::Stream) -> Option<StreamId> {
        self.streams.iter().find(|(_, known)| known.stream.as_ref() == Some(stream)).map(|(&id, _)| id)
    }

    pub fn add(&mut self, stream: &T::Stream) -> StreamId {
        let id = self.next;
        self.next += 1;
        let known = Known {
            stream: Some(stream.clone()),
            event: None,
            epoch: 0,
            dirty: false,
            reached: None,
            ordered_after: BTreeMap::new(),
        };
        self.streams.insert(id, known);
        id
    }

    pub fn handle(&self, id: StreamId) -> Option<&T::Stream> {
        self.streams.get(&id)?.stream.as_ref()
    }

    /// The streams of which only the pool still has a handle.
    pub fn abandoned(&self) -> Vec<StreamId> {
        let gone = |known: &Known<T>| known.stream.as_ref().is_some_and(|s| self.timeline.is_abandoned(s));
        self.streams.iter().filter(|(_, known)| gone(known)).map(|(&id, _)| id).collect()
    }

    /// The epoch that memory must wait for if it is freed now and was last used on `id`; `None` if the stream is gone and
    /// done.
    pub fn now(&mut self, id: StreamId) -> Option<Epoch> {
        let known = self.streams.get_mut(&id)?;
        if known.stream.is_none() {
            return Some(known.epoch.saturating_sub(1)); // ended with the last record; see `retire`
        }
        known.dirty = true;
        Some(known.epoch)
    }

    /// When memory may be used that is freed now and was used on these streams.
    pub fn after(&mut self, streams: &[StreamId]) -> When {
        let uses: Vec<_> = streams.iter().filter_map(|&id| Some((id, self.now(id)?))).collect();
        self.simplify(uses)
    }

    /// Removes the dependencies that have been reached.
    pub fn simplify(&self, mut dependencies: Vec<Dependency>) -> When {
        dependencies.retain(|&dependency| !self.is_reached(dependency));
        // The latest epoch of a stream includes its earlier ones.
        dependencies.sort_unstable_by(|a, b| b.cmp(a));
        dependencies.dedup_by_key(|&mut (id, _)| id);
        match dependencies[..] {
            [] => When::Ready,
            [(id, epoch)] if self.handle(id).is_some() => When::After(id, epoch),
            _ => When::AfterAll(dependencies),
        }
    }

    pub fn is_reached(&self, (id, epoch): Dependency) -> bool {
        self.streams.get(&id).is_none_or(|known| known.reached.is_some_and(|reached| reached >= epoch))
    }

    /// Queries each stream's progress, which needs an event of each on which memory waits. True if any has progressed.
    pub fn poll(&mut self) -> Result<bool> {
        let ids: Vec<_> = self.streams.keys().copied().collect();
        let mut moved = false;
        for id in ids {
            moved |= tolerate(self.poll_one(id))?.unwrap_or(false);
        }
        Ok(moved)
    }

    fn poll_one(&mut self, id: StreamId) -> Result<bool> {
        let mut moved = self.query(id)?;
        let Some(known) = self.streams.get(&id) else { return Ok(moved) };
        // An event that was recorded after an unreached one is not reached either.
        if known.dirty && known.outstanding().is_none() && self.record(id)? {
            moved |= self.query(id)?;
        }
        Ok(moved)
    }

    /// Whether the outstanding event has been reached since the last query.
    fn query(&mut self, id: StreamId) -> Result<bool> {
        let Some(known) = self.streams.get_mut(&id) else { return Ok(false) };
        let (Some(epoch), Some(event)) = (known.outstanding(), &known.event) else { return Ok(false) };
        if !left_out(Wait::ReadyQuery) && !self.timeline.is_done(event)? {
            return Ok(false);
        }
        known.reached = Some(epoch);
        if known.stream.is_none() {
            self.streams.remove(&id); // nothing waits for a stream that is gone and done
            for known in self.streams.values_mut() {
                known.ordered_after.remove(&id);
            }
        }
        Ok(true)
    }

    /// Ends the stream's epoch. False if that is not possible now.
    fn record(&mut self, id: StreamId) -> Result<bool> {
        let Some(known) = self.streams.get_mut(&id) else { return Ok(false) };
        let Some(stream) = &known.stream else { return Ok(false) };
        if known.event.is_none() {
            known.event = Some(self.timeline.event()?);
        }
        let Some(event) = &known.event else { return Ok(false) };
        // Nothing recorded yet: the current record of the event would be none at all, which counts as reached.
        if !left_out(Wait::FreshRecord) && !self.timeline.record(event, stream)? {
            return Ok(false);
        }
        known.epoch += 1;
        known.dirty = false;
        Ok(true)
    }

    /// Orders all further work of `later` after `dependency`. False if that is not possible now.
    pub fn edge(&mut self, dependency: Dependency, later: StreamId) -> Result<bool> {
        let (earlier, epoch) = dependency;
        if earlier == later || self.is_reached(dependency) {
            return Ok(true);
        }
        let known = |order: &Self| order.streams.get(&later)?.ordered_after.get(&earlier).copied();
        if known(self).is_some_and(|known| known >= epoch) {
            return Ok(true);
        }
        if self.streams.get(&earlier).is_none_or(|known| known.epoch <= epoch) && !self.record(earlier)? {
            return Ok(false);
        }
        let (Some(known), Some(stream)) = (self.streams.get(&earlier), self.handle(later)) else {
            return Ok(false);
        };
        let (Some(event), covered) = (&known.event, known.epoch - 1) else { return Ok(false) };
        if !left_out(Wait::HandOver) && !self.timeline.wait(stream, event)? {
            return Ok(false);
        }
        if let Some(known) = self.streams.get_mut(&later) {
            known.ordered_after.insert(earlier, covered);
        }
        Ok(true)
    }

    /// As [`edge`](Self::edge) for several; errors other than a lost device count as "not possible now".
    pub fn edges(&mut self, dependencies: &[Dependency], later: StreamId) -> Result<bool> {
        for &dependency in dependencies {
            if tolerate(self.edge(dependency, later))? != Some(true) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Releases a stream: from now on an event after all its work represents it.
    pub fn retire(&mut self, id: StreamId) -> Result<bool> {
        if !left_out(Wait::RetiredStream) && !self.record(id)? {
            return Ok(false);
        }
        match self.streams.get_mut(&id) {
            // memory whose last use was on this stream waits for the record just made: epoch - 1
            Some(known) if known.event.is_some() => known.stream = None,
            _ => drop(self.streams.remove(&id)),
        }
        Ok(true)
    }

    /// The last epoch that memory may wait for.
    pub fn last(&self, id: StreamId) -> Option<Dependency> {
        let known = self.streams.get(&id)?;
        match known.dirty {
            true => Some((id, known.epoch)),
            false => known.epoch.checked_sub(1).map(|epoch| (id, epoch)),
        }
    }
}

impl<T: Timeline> Known<T> {
    /// The last recorded epoch, if it is not known to be reached.
    fn outstanding(&self) -> Option<Epoch> {
        let recorded = self.epoch.checked_sub(1)?;
        self.reached.is_none_or(|reached| reached < recorded).then_some(recorded)
    }
}

/// An event that the driver rejects means only "not possible now"; a lost device is an error.
pub(super) fn tolerate<R>(result: Result<R>) -> Result<Option<R>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ Error::DeviceLost { .. }) => Err(error),
        Err(_) => Ok(None),
    }
}
