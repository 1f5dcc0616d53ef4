//! Large blocks: segments from upstream, split best-fit and merged with their free neighbours.
//!
//! Free blocks are in lists by when they may be used: at once, after one stream, or (pending) after several streams or after
//! a stream that is gone. Neighbours in the same list merge, so a stream's memory becomes contiguous again as it is freed.
//! Pure bookkeeping: nothing here calls a driver.

use super::order::{Dependency, StreamId, When};
use std::collections::{BTreeMap, BTreeSet};

/// Sizes of large blocks are multiples of this, and upstream's memory is aligned to it.
pub(super) const UNIT: usize = 256;

#[derive(Default)]
pub(super) struct FreeLists {
    /// Every block of every segment by address; together they cover the segments.
    blocks: BTreeMap<u64, Block>,
    segments: BTreeMap<u64, Segment>,
    ready: BySize,
    after: BTreeMap<StreamId, BySize>,
    after_all: BySize,
    /// Bytes in `ready` and `after`.
    free: usize,
    /// Bytes in `after_all`.
    pending: usize,
}

/// (bytes, address). The first entry at or above (n, 0) is the best fit for n, with the lowest address.
type BySize = BTreeSet<(usize, u64)>;

struct Block {
    bytes: usize,
    segment: u64,
    /// `None` if it is allocated.
    free: Option<When>,
}

struct Segment {
    bytes: usize,
    /// Bytes of it that are allocated.
    used: usize,
}

impl FreeLists {
    /// Bytes that some stream can use at once.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Bytes that wait for events.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// The largest free or pending block.
    pub fn largest(&self) -> usize {
        let lists = self.after.values().chain([&self.ready, &self.after_all]);
        lists.filter_map(|list| list.last()).map(|&(bytes, _)| bytes).max().unwrap_or(0)
    }

    /// Adds a segment as one free block.
    pub fn add_segment(&mut self, base: u64, bytes: usize, when: When) {
        self.segments.insert(base, Segment { bytes, used: 0 });
        self.blocks.insert(base, Block { bytes, segment: base, free: None });
        self.enlist(base, when);
    }

    /// Whether an address range overlaps a segment, which means that upstream returned memory twice.
    pub fn overlaps(&self, base: u64, bytes: usize) -> bool {
        let before = self.segments.range(..base.saturating_add(bytes as u64)).next_back();
        before.is_some_and(|(&start, segment)| start + segment.bytes as u64 > base)
    }

    /// Segments without allocated blocks, with all dependencies of their memory.
    pub fn unused_segments(&self) -> Vec<(u64, usize, Vec<Dependency>)> {
        let unused = self.segments.iter().filter(|(_, segment)| segment.used == 0);
        let dependencies = |base: u64, bytes: usize| {
            let blocks = self.blocks.range(base..base + bytes as u64);
            blocks.filter_map(|(_, block)| block.free.as_ref()).flat_map(When::dependencies).collect()
        };
        unused.map(|(&base, segment)| (base, segment.bytes, dependencies(base, segment.bytes))).collect()
    }

    /// Removes an unused segment.
    pub fn remove_segment(&mut self, base: u64) {
        let Some(segment) = self.segments.remove(&base) else { return };
        let blocks: Vec<_> =
            self.blocks.range(base..base + segment.bytes as u64).map(|(&at, _)| at).collect();
        for address in blocks {
            self.delist(address);
            self.blocks.remove(&address);
        }
    }

    /// The best fit that `stream` may use without waiting.
    pub fn take_after(&mut self, bytes: usize, stream: StreamId) -> Option<u64> {
        let &(_, address) = self.after.get(&stream)?.range((bytes, 0)..).next()?;
        Some(self.take(address, bytes))
    }

    /// The best fit that any stream may use.
    pub fn take_ready(&mut self, bytes: usize) -> Option<u64> {
        let &(_, address) = self.ready.range((bytes, 0)..).next()?;
        Some(self.take(address, bytes))
    }

    fn take(&mut self, address: u64, bytes: usize) -> u64 {
        let when = self.delist(address);
        let Some(block) = self.blocks.get_mut(&address) else { return address };
        let (rest, segment) = (block.bytes - bytes, block.segment);
        block.bytes = bytes;
        if rest > 0 {
            let at = address + bytes as u64;
            self.blocks.insert(at, Block { bytes: rest, segment, free: None });
            self.enlist(at, when); // its next neighbour is allocated: free neighbours have merged
        }
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.used += bytes;
        }
        address
    }

    /// Frees a block.
    pub fn give(&mut self, address: u64, when: When) {
        let Some(block) = self.blocks.get(&address) else { return };
        if let Some(segment) = self.segments.get_mut(&block.segment) {
            segment.used -= block.bytes;
        }
        self.enlist(address, when);
    }

    /// The best fit among the blocks that belong to other streams or are pending, with its dependencies.
    pub fn best_elsewhere(&self, bytes: usize, stream: StreamId) -> Option<(u64, Vec<Dependency>)> {
        let others = self.after.iter().filter(|&(&id, _)| id != stream).map(|(_, list)| list);
        let fits = others.chain([&self.after_all]).filter_map(|list| list.range((bytes, 0)..).next());
        let &(_, address) = fits.min()?;
        let when = self.blocks.get(&address)?.free.as_ref()?;
        Some((address, when.dependencies().collect()))
    }

    /// Whether other streams have free blocks.
    pub fn waits_for_others(&self, stream: StreamId) -> bool {
        self.after.keys().any(|&id| id != stream)
    }

    /// Every free block with dependencies.
    pub fn waiting(&self) -> Vec<u64> {
        let lists = self.after.values().chain([&self.after_all]);
        lists.flatten().map(|&(_, address)| address).collect()
    }

    /// The epochs that a free block waits for; `None` if there is no such block, because it has merged.
    pub fn dependencies(&self, address: u64) -> Option<Vec<Dependency>> {
        self.blocks.get(&address)?.free.as_ref().map(|when| when.dependencies().collect())
    }

    /// Moves a free block to another list.
    pub fn move_to(&mut self, address: u64, when: When) {
        let Some(block) = self.blocks.get(&address) else { return };
        if block.free.as_ref().is_some_and(|old| *old != when) {
            self.delist(address);
            self.enlist(address, when);
        }
    }

    /// Removes a free block from its list.
    fn delist(&mut self, address: u64) -> When {
        let Some(block) = self.blocks.get_mut(&address) else { return When::Ready };
        let Some(when) = block.free.take() else { return When::Ready };
        let (bytes, entry) = (block.bytes, (block.bytes, address));
        match &when {
            When::Ready => self.ready.remove(&entry),
            When::After(stream, _) => {
                let list = self.after.get_mut(stream);
                let (removed, empty) =
                    list.map_or((false, false), |list| (list.remove(&entry), list.is_empty()));
                if empty {
                    self.after.remove(stream); // streams come and go
                }
                removed
            }
            When::AfterAll(_) => self.after_all.remove(&entry),
        };
        match when {
            When::AfterAll(_) => self.pending -= bytes,
            _ => self.free -= bytes,
        }
        when
    }

    /// Inserts a block that is in no list into the right one, merged with its neighbours there.
    fn enlist(&mut self, mut address: u64, mut when: When) {
        let Some(block) = self.blocks.get(&address) else { return };
        let (segment, mut bytes) = (block.segment, block.bytes);
        let next = address + bytes as u64;
        if let Some(merged) = self.blocks.get(&next).and_then(|block| block.merge(segment, &when)) {
            self.delist(next);
            bytes += self.blocks.remove(&next).map_or(0, |block| block.bytes);
            when = merged;
        }
        if let Some((&before, block)) = self.blocks.range(..address).next_back()
            && let Some(merged) = block.merge(segment, &when)
        {
            self.delist(before);
            self.blocks.remove(&address);
            bytes += self.blocks.get(&before).map_or(0, |block| block.bytes);
            (address, when) = (before, merged);
        }
        match &when {
            When::Ready => self.ready.insert((bytes, address)),
            When::After(stream, _) => self.after.entry(*stream).or_default().insert((bytes, address)),
            When::AfterAll(_) => self.after_all.insert((bytes, address)),
        };
        match when {
            When::AfterAll(_) => self.pending += bytes,
            _ => self.free += bytes,
        }
        self.blocks.insert(address, Block { bytes, segment, free: Some(when) });
    }

    /// Checks all bookkeeping; an error describes the first inconsistency.
    pub fn audit(&self) -> Result<(), String> {
        let (mut free, mut pending) = (0, 0);
        for (&base, segment) in &self.segments {
            let (mut at, mut used) = (base, 0);
            let mut last: Option<&When> = None;
            for (&address, block) in self.blocks.range(base..base + segment.bytes as u64) {
                if address != at || block.segment != base || !block.bytes.is_multiple_of(UNIT) {
                    return Err(format!(
                        "the block at {address:#x} does not continue its segment at {at:#x}"
                    ));
                }
                at += block.bytes as u64;
                let listed = match &block.free {
                    None => true,
                    Some(When::Ready) => self.ready.contains(&(block.bytes, address)),
                    Some(When::After(id, _)) => {
                        self.after.get(id).is_some_and(|list| list.contains(&(block.bytes, address)))
                    }
                    Some(When::AfterAll(_)) => self.after_all.contains(&(block.bytes, address)),
                };
                if !listed {
                    return Err(format!("the free block at {address:#x} is in no list"));
                }
                match &block.free {
                    None => used += block.bytes,
                    Some(When::AfterAll(_)) => pending += block.bytes,
                    Some(when) if last.is_some_and(|last| last.merge(when).is_some()) => {
                        return Err(format!("the free block at {address:#x} is not merged"));
                    }
                    Some(_) => free += block.bytes,
                }
                last = block.free.as_ref();
            }
            if at != base + segment.bytes as u64 || used != segment.used {
                return Err(format!("the segment at {base:#x} is not filled, or {used} used is miscounted"));
            }
        }
        let lists = self.after.values().chain([&self.ready, &self.after_all]);
        let listed: usize = lists.map(BTreeSet::len).sum();
        let unlisted = self.blocks.values().filter(|block| block.free.is_some()).count();
        if listed != unlisted || (free, pending) != (self.free, self.pending) {
            return Err(format!(
                "{listed} blocks listed of {unlisted}; {free} free, {pending} pending bytes"
            ));
        }
        Ok(())
    }
}

impl Block {
    fn merge(&self, segment: u64, when: &When) -> Option<When> {
        if self.segment == segment { self.free.as_ref()?.merge(when) } else { None }
    }
}

impl When {
    /// The epochs that the memory waits for.
    pub fn dependencies(&self) -> impl Iterator<Item = Dependency> + '_ {
        let (one, many) = match self {
            Self::Ready => (None, [].as_slice()),
            Self::After(stream, epoch) => (Some((*stream, *epoch)), [].as_slice()),
            Self::AfterAll(dependencies) => (None, dependencies.as_slice()),
        };
        one.into_iter().chain(many.iter().copied())
    }

    /// When two neighbours in one list may be used as one block. Pending blocks stay apart: a merged block would have to
    /// wait for the younger dependency.
    fn merge(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Ready, Self::Ready) => Some(Self::Ready),
            (Self::After(a, i), Self::After(b, k)) if a == b => Some(Self::After(*a, *i.max(k))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_neighbours_become_whole_again() {
        let mut lists = FreeLists::default();
        lists.add_segment(4096, 4096, When::After(1, 0));
        let blocks: Vec<_> = (0..4).map(|_| lists.take_after(1024, 1).unwrap()).collect();
        assert_eq!(lists.take_after(256, 1), None);
        for (at, epoch) in [(0, 3), (2, 1), (3, 2), (1, 0)] {
            lists.give(blocks[at], When::After(1, epoch));
            lists.audit().unwrap();
        }
        assert_eq!(lists.largest(), 4096);
        assert_eq!(
            lists.unused_segments(),
            [(4096, 4096, vec![(1, 3)])],
            "the youngest epoch stands for all"
        );
    }

    #[test]
    fn the_best_fit_is_taken_and_only_the_own_streams() {
        let mut lists = FreeLists::default();
        for (base, bytes, stream) in [(1 << 20, 4096, 1), (2 << 20, 1024, 1), (3 << 20, 512, 2)] {
            lists.add_segment(base, bytes, When::After(stream, 0));
        }
        assert_eq!(lists.take_after(512, 1), Some(2 << 20));
        assert_eq!(lists.take_after(512, 1), Some((2 << 20) + 512));
        assert_eq!(lists.take_after(512, 1), Some(1 << 20));
        assert_eq!(lists.take_ready(256), None);
        assert_eq!(lists.best_elsewhere(256, 1), Some((3 << 20, vec![(2, 0)])));
        lists.move_to(3 << 20, When::Ready);
        assert_eq!(lists.take_ready(256), Some(3 << 20));
        lists.audit().unwrap();
    }

    #[test]
    fn adjacent_segments_stay_apart() {
        let mut lists = FreeLists::default();
        lists.add_segment(4096, 1024, When::Ready);
        lists.add_segment(5120, 1024, When::Ready);
        assert_eq!((lists.take_ready(2048), lists.largest()), (None, 1024));
        assert!(lists.overlaps(6143, 1) && lists.overlaps(0, 4097) && !lists.overlaps(6144, 256));
        lists.remove_segment(4096);
        assert_eq!((lists.free(), lists.unused_segments().len()), (1024, 1));
        let halves = [512, 512].map(|bytes| lists.take_ready(bytes).unwrap());
        halves.into_iter().for_each(|half| lists.give(half, When::Ready));
        assert_eq!(lists.largest(), 1024, "within a segment they merge");
        lists.audit().unwrap();
    }
}
