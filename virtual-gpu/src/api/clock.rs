//! Vector clocks of streams, and the state by which the order of work is checked.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::stream_id::{Mark, StreamId};
use crate::memory::{Allocation, WRITTEN};

/// For each stream, the number of its last work that is followed.
pub(super) type Clock = BTreeMap<StreamId, u64>;

/// Adds to `clock` what `other` follows.
pub(super) fn join(clock: &mut Clock, other: &Clock) {
    for (&stream, &n) in other {
        let own = clock.entry(stream).or_default();
        *own = n.max(*own);
    }
}

pub(super) fn follows(clock: &Clock, (stream, n): Mark) -> bool {
    clock.get(&stream).is_some_and(|&own| own >= n)
}

/// Bytes that were read across devices, by copies and by kernels that read a peer's memory.
pub(super) struct Read {
    pub allocation: Arc<Allocation>,
    pub at: u64,
    pub bytes: u64,
    pub by: Mark,
}

/// The state by which the order of work is checked.
pub(super) struct Order {
    /// The work that the host has waited for.
    pub host: Arc<Clock>,
    /// For work that recorded an event: its stream's clock at that point.
    pub recorded: HashMap<Mark, Clock>,
    pub units: Box<[Option<Mark>; 256]>,
    pub unit: u8,
    pub reads: VecDeque<Read>,
}

impl Default for Order {
    fn default() -> Self {
        let (host, recorded, reads) = (Arc::default(), HashMap::new(), VecDeque::new());
        Self { host, recorded, units: Box::new([None; 256]), unit: WRITTEN, reads }
    }
}

impl Order {
    /// The clock that work queued now follows, because the host does.
    pub fn host(&self) -> Arc<Clock> {
        Arc::clone(&self.host)
    }
}
