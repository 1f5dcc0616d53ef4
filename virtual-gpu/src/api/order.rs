//! The happens-before order of work on several devices, and the accesses that lack a wait.
//!
//! Each stream has a vector clock: for every stream, the last work that its own next work follows. Edges are the order of a
//! stream, waits for events, and what the host has waited for before it queued something. The shadow of each byte holds the
//! unit of work that wrote it last. An access that crosses devices, or goes through page-locked host memory, must follow the
//! last writer of its bytes, and a writer must follow such accesses to them. Otherwise it is a finding, in whatever order the
//! work has run.
//!
//! Sources: Mattern 1989, "Virtual time and global states of distributed systems"; Flanagan & Freund 2009, "FastTrack".
//!
//! Not checked: what the host itself reads or writes. A missing wait within one device is not found here; the seeded order
//! makes it show in the results.

use std::sync::Arc;

use super::clock::{Clock, Order, Read, follows, join};
use super::state::Driver;
use super::stream_id::{Mark, StreamId};
use crate::exec::RemoteReads;
use crate::finding::{Finding, FindingKind};
use crate::memory::{Allocation, Kind, WRITTEN};

/// Numbers of units of work in the shadow. They are used in turn; the units of a half are forgotten when its first number is
/// used again.
const FIRST_UNIT: u8 = WRITTEN + 1;
const HALF: u8 = 128;
/// Reads across devices that are remembered.
const MOST_READS: usize = 256;
/// Clocks of recorded events that are remembered.
const MOST_RECORDED: usize = 16 << 10;

impl Driver {
    /// Whether the order is checked: with several devices.
    pub(super) fn ordered(&self) -> bool {
        self.devices.len() > 1
    }

    /// The clock after a piece of work: as recorded there, or else what its stream follows by now.
    pub(super) fn clock_at(&self, mark: Mark) -> Clock {
        if let Some(clock) = self.order.recorded.get(&mark) {
            return clock.clone();
        }
        let mut clock = self.streams.get(&mark.0).map(|s| s.clock.clone()).unwrap_or_default();
        join(&mut clock, &Clock::from([mark]));
        clock
    }

    /// The host has waited for a piece of work.
    pub(super) fn observe(&mut self, mark: Mark) {
        if self.ordered() {
            let clock = self.clock_at(mark);
            join(Arc::make_mut(&mut self.order.host), &clock);
        }
    }

    /// The host has waited for all work of a device, which is done.
    pub(super) fn observe_device(&mut self, device: usize) {
        let done = self.streams.iter().filter(|(_, s)| s.device == device).map(|(id, s)| (*id, s.finished));
        let done: Vec<_> = done.collect();
        done.into_iter().for_each(|mark| self.observe(mark));
    }

    /// An event's record has run.
    pub(super) fn note_record(&mut self, mark: Mark) {
        if !self.ordered() {
            return;
        }
        if self.order.recorded.len() >= MOST_RECORDED {
            let streams = &self.streams;
            let is_recent = |(stream, n): &Mark| streams.get(stream).is_some_and(|s| s.finished < n + 256);
            self.order.recorded.retain(|mark, _| is_recent(mark));
        }
        let clock = self.streams.get(&mark.0).map(|s| s.clock.clone()).unwrap_or_default();
        self.order.recorded.insert(mark, clock);
    }

    /// A unit of work's number, for the shadow of the bytes that it writes.
    pub(super) fn new_unit(&mut self, mark: Mark) -> u8 {
        if !self.ordered() {
            return WRITTEN;
        }
        let order = &mut self.order;
        order.unit = if order.unit == u8::MAX { FIRST_UNIT } else { order.unit + 1 };
        let old = match order.unit {
            FIRST_UNIT => Some(FIRST_UNIT..=HALF - 1),
            HALF => Some(HALF..=u8::MAX),
            _ => None,
        };
        let unit = order.unit;
        if let Some(old) = old {
            self.devices.iter().for_each(|device| device.gpu.memory.forget_writers(old.clone()));
            old.for_each(|unit| self.order.units[unit as usize] = None);
        }
        self.order.units[unit as usize] = Some(mark);
        unit
    }

    /// The writers on other devices that a launch on `stream` has not waited for.
    pub(super) fn unordered_writers(&self, stream: StreamId) -> Option<Box<[bool; 256]>> {
        let s = self.streams.get(&stream).filter(|_| self.ordered())?;
        let mut not_yet = Box::new([false; 256]);
        for (unit, mark) in self.order.units.iter().enumerate() {
            let Some(mark) = *mark else { continue };
            let other = self.streams.get(&mark.0).is_some_and(|writer| writer.device != s.device);
            not_yet[unit] = other && !follows(&s.clock, mark);
        }
        not_yet.contains(&true).then_some(not_yet)
    }

    /// Checks a copy against the writers of the ranges that it reads and overwrites. Records its read if it crosses devices
    /// or goes through host memory.
    pub(super) fn check_copy(
        &mut self,
        mark: Mark,
        src: Option<(&Arc<Allocation>, u64)>,
        dst: Option<(&Arc<Allocation>, u64)>,
        bytes: u64,
    ) {
        let Some(stream) = self.streams.get(&mark.0).filter(|_| self.ordered()) else { return };
        let (device, clock) = (stream.device, stream.clock.clone());
        let is_remote = |&(a, at): &(&Arc<Allocation>, u64)| {
            a.kind != Kind::Device || crate::memory::device_of(at) != Some(device)
        };
        let crosses = src.iter().chain(&dst).any(is_remote);
        let writer_of_other = |unit: u8| {
            let writer = self.order.units[unit as usize].filter(|&writer| !follows(&clock, writer))?;
            let other = self.streams.get(&writer.0).is_some_and(|s| s.device != device);
            (crosses || other).then_some(writer)
        };
        let mut missing = None;
        for (verb, side) in [("reads", &src), ("overwrites", &dst)] {
            let Some((a, at)) = side else { continue };
            let mut last = WRITTEN;
            for &unit in a.writers(*at, bytes) {
                if unit > WRITTEN && unit != last && writer_of_other(unit).is_some() {
                    missing = missing.or(Some((verb, *at)));
                }
                last = unit;
            }
        }
        if let Some((verb, at)) = missing {
            let message =
                format!("it {verb} {bytes} bytes at 0x{at:x} without waiting for the work that writes them");
            self.missing_wait(device, "memcpy", message);
        }
        if let (true, Some((a, at))) = (crosses, src) {
            self.note_read(Read { allocation: Arc::clone(a), at, bytes, by: mark });
        }
    }

    /// A stream has waited for a value: it follows the work that wrote it.
    pub(super) fn follow_writer(&mut self, mark: Mark, at: u64, bytes: u64) {
        let Ok(a) = self.holder(at).memory.locate(at, bytes) else { return };
        if !self.ordered() {
            return;
        }
        let Some(writer) = a.writers(at, bytes).iter().find_map(|&unit| self.order.units[unit as usize])
        else {
            return;
        };
        let clock = self.clock_at(writer);
        self.streams.get_mut(&mark.0).into_iter().for_each(|s| join(&mut s.clock, &clock));
    }

    /// Records the bytes of other devices' and of host memory that a launch has read.
    pub(super) fn note_remote_reads(&mut self, mark: Mark, remote: &RemoteReads) {
        for (allocation, range) in remote.read() {
            let (allocation, at, bytes) = (Arc::clone(allocation), range.start, range.end - range.start);
            self.note_read(Read { allocation, at, bytes, by: mark });
        }
    }

    fn note_read(&mut self, read: Read) {
        let Order { reads, host, .. } = &mut self.order;
        reads.retain(|read| !follows(host, read.by));
        if reads.len() >= MOST_READS {
            reads.pop_front();
        }
        reads.push_back(read);
    }

    /// Checks work that has written the bytes of `unit`: it must follow those that read them across devices.
    pub(super) fn check_writes(&mut self, mark: Mark, unit: u8, what: &str) {
        let Some(stream) = self.streams.get(&mark.0).filter(|_| self.ordered()) else { return };
        let (device, clock) = (stream.device, &stream.clock);
        let overwritten = self.order.reads.iter().find(|read| {
            read.by != mark
                && !follows(clock, read.by)
                && read.allocation.is_live()
                && read.allocation.writers(read.at, read.bytes).contains(&unit)
        });
        if let Some(Read { at, bytes, .. }) = overwritten {
            let message = format!(
                "it overwrites some of {bytes} bytes at 0x{at:x} without waiting for the work that reads them"
            );
            self.missing_wait(device, what, message);
        }
    }

    fn missing_wait(&mut self, device: usize, what: &str, message: String) {
        self.fault(device, Finding::new(FindingKind::MissingWait, what, message));
    }
}
