//! Small blocks: slabs of slots of one size class.
//!
//! A slab belongs to one stream. A slot freed on that stream can be reused on it at once. A slot that other streams used is
//! pending until they are done. An empty slab becomes a large block again, except the last one of its class. Pure
//! bookkeeping, as in [`super::free_list`].

use super::order::{Dependency, StreamId, When};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Bytes of a slab.
pub(super) const SLAB: usize = 64 << 10;
/// The largest slot. Larger blocks are split from segments.
const LARGEST: usize = SLAB / 4;
/// The owner of slabs that any stream may take.
const NOBODY: StreamId = StreamId::MAX;

/// The size of the slot for a small block: 256 · {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, …}, so at most a fifth is
/// wasted above 1 KiB. `None` if the block is not small.
pub(super) fn class(bytes: usize) -> Option<usize> {
    if bytes > LARGEST {
        return None;
    }
    let step = (bytes.next_power_of_two() / 8).max(256);
    Some(bytes.max(1).next_multiple_of(step))
}

#[derive(Default)]
pub(super) struct Slabs {
    slabs: HashMap<u64, Slab>,
    /// Slabs with a free slot.
    open: BTreeMap<(StreamId, usize), BTreeSet<u64>>,
    /// Pending slots: (slot, slab, dependencies).
    waiting: Vec<(u64, u64, Vec<Dependency>)>,
    /// Bytes of all slabs.
    total: usize,
    /// Bytes of allocated slots.
    used: usize,
    /// Bytes of pending slots.
    pending: usize,
}

struct Slab {
    class: usize,
    home: StreamId,
    /// Free slots below `fresh`.
    free: Vec<u64>,
    /// The first slot that was never allocated.
    fresh: u64,
    /// Number of slots that are allocated or pending.
    busy: usize,
    /// Number of slots that are pending.
    waiting: usize,
}

/// A slab that is a large block again, and the stream that may use it; `None`: any stream.
pub(super) type Empty = (u64, Option<StreamId>);

fn owner(home: StreamId) -> Option<StreamId> {
    (home != NOBODY).then_some(home)
}

impl Slab {
    fn has_room(&self, base: u64) -> bool {
        !self.free.is_empty() || self.fresh + self.class as u64 <= base + SLAB as u64
    }
}

impl Slabs {
    /// Bytes of slots that are neither allocated nor pending.
    pub fn free(&self) -> usize {
        self.total - self.used - self.pending
    }

    /// Bytes of slots that wait for events.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Adds a block of [`SLAB`] bytes that the stream may use.
    pub fn add(&mut self, base: u64, stream: StreamId, class: usize) {
        self.slabs
            .insert(base, Slab { class, home: stream, free: Vec::new(), fresh: base, busy: 0, waiting: 0 });
        self.open.entry((stream, class)).or_default().insert(base);
        self.total += SLAB;
    }

    /// A slot and its slab.
    pub fn take(&mut self, stream: StreamId, class: usize) -> Option<(u64, u64)> {
        let base = match self.open.get(&(stream, class)).and_then(BTreeSet::first) {
            Some(&base) => base,
            None => {
                let &base = self.open.get(&(NOBODY, class))?.first()?;
                self.rehome(base, stream);
                base
            }
        };
        let slab = self.slabs.get_mut(&base)?;
        let slot = slab.free.pop().unwrap_or_else(|| {
            slab.fresh += class as u64;
            slab.fresh - class as u64
        });
        slab.busy += 1;
        self.used += class;
        if !slab.has_room(base) {
            self.close((stream, class), base);
        }
        Some((slot, base))
    }

    /// Frees a slot. Returns the slab and its stream if it is now empty and not the last one of its class.
    pub fn give(&mut self, slot: u64, base: u64, when: When) -> Option<Empty> {
        let slab = self.slabs.get_mut(&base)?;
        self.used -= slab.class;
        let waits = match when {
            When::Ready => Vec::new(),
            When::After(stream, _) if stream == slab.home => Vec::new(),
            other => other.dependencies().collect(),
        };
        if waits.is_empty() {
            return self.put(slot, base);
        }
        self.pending += slab.class;
        slab.waiting += 1;
        self.waiting.push((slot, base, waits));
        None
    }

    /// Marks a slot as free.
    fn put(&mut self, slot: u64, base: u64) -> Option<Empty> {
        let slab = self.slabs.get_mut(&base)?;
        slab.free.push(slot);
        slab.busy -= 1;
        let home = slab.home;
        let open = self.open.entry((home, slab.class)).or_default();
        open.insert(base);
        if slab.busy > 0 || open.len() == 1 {
            return None;
        }
        self.remove(base);
        Some((base, owner(home)))
    }

    fn remove(&mut self, base: u64) {
        if let Some(slab) = self.slabs.remove(&base) {
            self.close((slab.home, slab.class), base);
            self.total -= SLAB;
        }
    }

    /// Removes all slabs without a used slot. Returns each with its dependencies besides its stream.
    pub fn take_unused(&mut self) -> Vec<(Empty, Vec<Dependency>)> {
        let unused = self.slabs.iter().filter(|(_, slab)| slab.busy == slab.waiting);
        let mut unused: BTreeMap<_, _> =
            unused.map(|(&base, slab)| (base, ((base, owner(slab.home)), Vec::new()))).collect();
        self.waiting.retain_mut(|(_, base, dependencies)| match unused.get_mut(base) {
            Some((_, all)) => {
                self.pending -= self.slabs.get(base).map_or(0, |slab| slab.class);
                all.append(dependencies);
                false
            }
            None => true,
        });
        unused.keys().for_each(|&base| self.remove(base));
        unused.into_values().collect()
    }

    /// Frees the slots without dependencies; `left` returns the dependencies that have not been reached.
    pub fn settle(&mut self, left: impl Fn(Vec<Dependency>) -> Vec<Dependency>) -> Vec<Empty> {
        let mut empty = Vec::new();
        for (slot, base, dependencies) in std::mem::take(&mut self.waiting) {
            let dependencies = left(dependencies);
            let Some(slab) = self.slabs.get_mut(&base) else { continue };
            if dependencies.iter().all(|&(stream, _)| stream == slab.home) {
                self.pending -= slab.class;
                slab.waiting -= 1;
                empty.extend(self.put(slot, base));
            } else {
                self.waiting.push((slot, base, dependencies));
            }
        }
        empty
    }

    /// Gives all slabs of a stream to another stream whose work is ordered after it; `None`: to any stream.
    pub fn move_all(&mut self, from: StreamId, to: Option<StreamId>) {
        let bases = self.slabs.iter().filter(|(_, slab)| slab.home == from).map(|(&base, _)| base);
        let bases: Vec<_> = bases.collect();
        bases.into_iter().for_each(|base| self.rehome(base, to.unwrap_or(NOBODY)));
    }

    /// Removes a slab from the list of slabs with a free slot.
    fn close(&mut self, key: (StreamId, usize), base: u64) {
        if let Some(open) = self.open.get_mut(&key) {
            open.remove(&base);
            if open.is_empty() {
                self.open.remove(&key); // streams come and go
            }
        }
    }

    fn rehome(&mut self, base: u64, to: StreamId) {
        if let Some(slab) = self.slabs.get_mut(&base) {
            let old = (slab.home, slab.class);
            slab.home = to;
            let (room, key) = (slab.has_room(base), (to, slab.class));
            self.close(old, base);
            if room {
                self.open.entry(key).or_default().insert(base);
            }
        }
    }

    /// The streams that own slabs.
    pub fn owners(&self) -> BTreeSet<StreamId> {
        self.slabs.values().filter_map(|slab| owner(slab.home)).collect()
    }

    /// Checks all bookkeeping; an error describes the first inconsistency.
    pub fn audit(&self) -> Result<(), String> {
        let mut busy = 0;
        for (&base, slab) in &self.slabs {
            busy += slab.busy * slab.class;
            let seen = ((slab.fresh - base) as usize / slab.class).checked_sub(slab.free.len());
            let open = self.open.get(&(slab.home, slab.class)).is_some_and(|open| open.contains(&base));
            if seen != Some(slab.busy) || open != slab.has_room(base) {
                return Err(format!("the slab at {base:#x} is miscounted"));
            }
        }
        let waiting: usize = self.slabs.values().map(|slab| slab.waiting * slab.class).sum();
        if self.waiting.len() != self.slabs.values().map(|slab| slab.waiting).sum::<usize>() {
            return Err(format!("{} slots wait, the slabs count otherwise", self.waiting.len()));
        }
        let open: usize = self.open.values().map(BTreeSet::len).sum();
        let rooms = self.slabs.iter().filter(|&(&base, slab)| slab.has_room(base)).count();
        if busy != self.used + self.pending || waiting != self.pending || open != rooms {
            return Err(format!(
                "{busy} bytes of slots are used or pending, {waiting} wait, {open} slabs open"
            ));
        }
        if self.total != self.slabs.len() * SLAB {
            return Err("the bytes of slabs are miscounted".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_multiples_of_256_and_waste_little() {
        assert_eq!((class(1), class(256), class(257)), (Some(256), Some(256), Some(512)));
        assert_eq!(
            (class(1025), class(2049), class(LARGEST), class(LARGEST + 1)),
            (Some(1280), Some(2560), Some(LARGEST), None)
        );
        for bytes in 1..=LARGEST {
            let slot = class(bytes).unwrap();
            assert!(
                slot >= bytes && slot.is_multiple_of(256) && (slot - bytes) * 5 <= slot.max(1280),
                "{bytes}: {slot}"
            );
        }
    }

    #[test]
    fn slots_come_back_to_their_stream_only() {
        let mut slabs = Slabs::default();
        slabs.add(0, 1, 16384);
        let taken: Vec<_> = (0..4).map(|_| slabs.take(1, 16384).unwrap().0).collect();
        assert_eq!(taken, [0, 16384, 32768, 49152]);
        assert_eq!(slabs.take(1, 16384), None);
        assert_eq!(slabs.give(16384, 0, When::After(1, 0)), None);
        assert_eq!(slabs.give(32768, 0, When::AfterAll(vec![(1, 0), (2, 0)])), None);
        assert_eq!(
            (slabs.take(2, 16384), slabs.take(1, 16384), slabs.take(1, 16384)),
            (None, Some((16384, 0)), None)
        );
        assert_eq!((slabs.free(), slabs.pending()), (0, 16384));
        slabs.settle(|dependencies| dependencies.into_iter().filter(|d| d.0 != 2).collect());
        assert_eq!((slabs.free(), slabs.pending()), (16384, 0));
        slabs.audit().unwrap();
    }

    #[test]
    fn an_empty_slab_is_a_block_again_unless_it_is_the_last() {
        let mut slabs = Slabs::default();
        let bases = [0, SLAB as u64];
        bases.into_iter().for_each(|base| slabs.add(base, 1, LARGEST));
        let slots: Vec<_> = (0..8).map(|_| slabs.take(1, LARGEST).unwrap()).collect();
        let empty: Vec<_> =
            slots.iter().map(|&(slot, base)| slabs.give(slot, base, When::After(1, 0))).collect();
        let (kept, last) = empty.split_at(7);
        assert!(kept.iter().all(Option::is_none), "{kept:?}");
        assert_eq!((last, slabs.free()), (&[Some((bases[1], Some(1)))][..], SLAB));
        slabs.audit().unwrap();
    }
}
