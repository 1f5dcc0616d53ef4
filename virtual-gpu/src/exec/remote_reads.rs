//! The memory of other devices, and of the host, that a launch reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::{Allocation, Kind, Memory};

/// The bytes that a launch reads of other devices' memory and of page-locked host memory: from the first to the last of each
/// allocation.
pub(crate) struct RemoteReads {
    /// Sorted by address: each allocation, the first byte read, and the end of the last.
    ranges: Vec<(Arc<Allocation>, AtomicU64, AtomicU64)>,
}

impl RemoteReads {
    /// No reads yet, of the memory of `peers` and of the host memory in `own`.
    pub fn new(peers: &[Arc<Allocation>], own: &Memory) -> Self {
        let host = own.snapshot().live.into_iter().filter(|a| a.kind != Kind::Device);
        let all = peers.iter().cloned().chain(host);
        let mut ranges: Vec<_> = all.map(|a| (a, AtomicU64::new(u64::MAX), AtomicU64::new(0))).collect();
        ranges.sort_by_key(|(a, ..)| a.base);
        Self { ranges }
    }

    pub fn note(&self, at: u64, bytes: u64) {
        let after = self.ranges.partition_point(|(a, ..)| a.base <= at);
        if let Some((a, first, end)) = after.checked_sub(1).map(|i| &self.ranges[i])
            && a.contains(at, bytes)
        {
            first.fetch_min(at, Ordering::Relaxed);
            end.fetch_max(at + bytes, Ordering::Relaxed);
        }
    }

    /// The ranges that were read.
    pub fn read(&self) -> impl Iterator<Item = (&Arc<Allocation>, std::ops::Range<u64>)> {
        self.ranges.iter().filter_map(|(allocation, first, end)| {
            let range = first.load(Ordering::Relaxed)..end.load(Ordering::Relaxed);
            (!range.is_empty()).then_some((allocation, range))
        })
    }
}
