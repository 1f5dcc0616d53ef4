//! A device without a driver, for tests of allocators: its streams run late, and it checks every use of memory.
//!
//! Work is queued and runs when a seeded scheduler chooses it, in any order that streams and events allow. Vector clocks
//! record which use of memory is ordered before which. A use that is not ordered after every earlier use of the same bytes
//! under another tag is a violation, whether or not the schedule exposes it. With
//! [`with_contents`](Simulated::with_contents) the memory has contents, so that a wrong order also shows as a wrong pattern.

use super::upstream::{Timeline, Upstream};
use crate::sync::{Mutex, MutexGuard};
use crate::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};

/// Bytes per word of [contents](Simulated::with_contents).
const GRANULE: usize = 256;
/// The lowest address.
const BASE: u64 = 1 << 32;

/// A simulated device. Clones refer to the same one.
#[derive(Clone)]
pub struct Simulated {
    state: Arc<Mutex<State>>,
}

/// A stream of a simulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedStream(usize, u32);

/// An event of a simulated device.
#[derive(Debug, Default)]
pub struct SimulatedEvent {
    recorded: Mutex<Option<(usize, u64, Clock)>>,
}

/// The calls to the device, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of the calls")]
pub enum Call {
    Allocate { bytes: usize, refused: bool },
    Free { bytes: usize },
    Trim,
    Record,
    Query { done: bool },
    Wait,
}

/// The position that each stream has reached.
type Clock = Vec<u64>;

#[derive(Default)]
struct State {
    streams: Vec<Stream>,
    /// The work that the host knows to be complete.
    host: Clock,
    capacity: usize,
    /// Free address ranges.
    gaps: BTreeMap<u64, usize>,
    allocated: BTreeMap<u64, usize>,
    allocated_bytes: usize,
    /// By address: the range's end, its tag, and its last use by each stream.
    uses: BTreeMap<u64, Uses>,
    contents: Vec<u32>,
    violations: Vec<String>,
    refuse_percent: u64,
    lost: bool,
    calls: Option<Vec<Call>>,
    random: u64,
}

#[derive(Clone)]
struct Uses {
    end: u64,
    tag: u32,
    last: Vec<(usize, u64)>,
}

#[derive(Default)]
struct Stream {
    queue: VecDeque<Work>,
    issued: u64,
    done: u64,
    clock: Clock,
    destroyed: bool,
    abandoned: bool,
    /// How many earlier streams had this index.
    generation: u32,
    captured: bool,
}

enum Work {
    Nothing,
    Wait(usize, u64),
    Write { at: u64, bytes: usize, tag: u32 },
    Check { at: u64, bytes: usize, tag: u32 },
}

impl Simulated {
    /// A device with `capacity` bytes of memory, without contents.
    pub fn new(capacity: usize, seed: u64) -> Self {
        let mut state = State { capacity, random: seed, ..State::default() };
        state.gaps.insert(BASE, capacity);
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// A device whose memory has contents: one word for every 256 bytes.
    pub fn with_contents(capacity: usize, seed: u64) -> Self {
        let device = Self::new(capacity, seed);
        device.lock().contents = vec![0; capacity.div_ceil(GRANULE)];
        device
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new stream.
    pub fn stream(&self) -> SimulatedStream {
        let mut state = self.lock();
        // An index can be reused once the host knows that its last stream has completed.
        let done = |place: usize, stream: &Stream| {
            stream.destroyed && state.host.get(place).copied().unwrap_or(0) >= stream.issued
        };
        let old = state.streams.iter().enumerate().position(|(place, stream)| done(place, stream));
        if let Some(place) = old {
            let stream = &mut state.streams[place];
            (stream.destroyed, stream.abandoned, stream.captured) = (false, false, false);
            stream.generation += 1;
            return SimulatedStream(place, stream.generation);
        }
        state.streams.push(Stream::default());
        SimulatedStream(state.streams.len() - 1, 0)
    }

    /// Destroys a stream. Its queued work still runs, and any further call with it is a violation.
    pub fn destroy(&self, stream: SimulatedStream) {
        self.lock().streams[stream.0].destroyed = true;
    }

    /// Says that only an allocator still has this stream, so that no more work is queued on it.
    pub fn abandon(&self, stream: SimulatedStream) {
        self.lock().streams[stream.0].abandoned = true;
    }

    /// Begins or ends a capture, during which the stream takes no events.
    pub fn capture(&self, stream: SimulatedStream, on: bool) {
        self.lock().streams[stream.0].captured = on;
    }

    /// Queues work on `stream` that fills a block with `tag`, which no other block may have.
    pub fn write(&self, stream: SimulatedStream, at: u64, bytes: usize, tag: u32) {
        self.lock().touch(stream.0, at, bytes, tag, Work::Write { at, bytes, tag });
    }

    /// Queues work on `stream` that expects the block to be filled with `tag`.
    pub fn check(&self, stream: SimulatedStream, at: u64, bytes: usize, tag: u32) {
        self.lock().touch(stream.0, at, bytes, tag, Work::Check { at, bytes, tag });
    }

    /// Runs up to 16 pieces of work of one stream, `turns` times, all chosen at random. Streams that wait for others are
    /// skipped; otherwise less would run the more of them there are.
    pub fn run(&self, turns: usize) {
        let mut state = self.lock();
        for _ in 0..turns {
            let places = state.streams.len();
            let (first, pieces) = (state.chance(places.max(1) as u64) as usize, state.chance(16));
            let Some(stream) = (first..places).chain(0..first).find(|&place| state.step(place)) else {
                return;
            };
            let _ = (0..pieces).all(|_| state.step(stream));
        }
    }

    /// Runs the work of one stream, as far as possible.
    pub fn run_stream(&self, stream: SimulatedStream) {
        let mut state = self.lock();
        while state.step(stream.0) {}
    }

    /// Runs all work, and records that the host has waited for it.
    pub fn finish(&self) {
        let mut state = self.lock();
        while (0..state.streams.len()).any(|stream| state.step(stream)) {}
        state.host = state.streams.iter().map(|stream| stream.issued).collect();
        if let Some(stuck) = state.streams.iter().position(|stream| !stream.queue.is_empty()) {
            state.violations.push(format!("stream {stuck} waits for ever"));
        }
    }

    /// Fails this percentage of allocations, at random.
    pub fn refuse(&self, percent: u64) {
        self.lock().refuse_percent = percent;
    }

    /// Simulates a fault: from now on every call is a violation.
    pub fn lose(&self) {
        self.lock().lost = true;
    }

    /// Bytes that are allocated.
    pub fn allocated(&self) -> usize {
        self.lock().allocated_bytes
    }

    /// All violations so far.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// The calls since the last query. They are recorded from the first query on.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.replace(Vec::new()).unwrap_or_default()
    }
}

impl State {
    /// A random number below `limit`, by SplitMix64 (Steele, Lea, Flood 2014).
    fn chance(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn call(&mut self, call: Call, stream: Option<usize>) {
        if self.lost {
            self.violations.push(format!("{call:?} after a fault"));
        }
        if stream.is_some_and(|stream| self.streams[stream].destroyed) {
            self.violations.push(format!("{call:?} on a destroyed stream"));
        }
        if let Some(calls) = &mut self.calls {
            calls.push(call);
        }
    }

    /// Queues work; returns its position.
    fn issue(&mut self, stream: usize, work: Work) -> u64 {
        let this = &mut self.streams[stream];
        this.issued += 1;
        this.queue.push_back(work);
        *entry(&mut this.clock, stream) = this.issued;
        this.issued
    }

    /// Whether a use is ordered before work that is queued on `stream` next.
    fn is_ordered_after(&self, stream: usize, (user, position): (usize, u64)) -> bool {
        let known = |clock: &Clock| clock.get(user).is_some_and(|&at| at >= position);
        known(&self.streams[stream].clock) || known(&self.host)
    }

    fn touch(&mut self, stream: usize, at: u64, bytes: usize, tag: u32, work: Work) {
        let known = self.allocated.range(..=at).next_back();
        if known.is_none_or(|(&base, &size)| base + (size as u64) < at + bytes as u64) {
            self.violations.push(format!("{bytes} bytes at {at:#x} are not allocated"));
        }
        let position = self.issue(stream, work);
        let end = at + bytes as u64;
        if let Some(uses) = self.uses.get_mut(&at)
            && (uses.end, uses.tag) == (end, tag)
        {
            uses.last.retain(|&(user, _)| user != stream);
            uses.last.push((stream, position));
            return;
        }
        for use_ in self.cut(at, end) {
            if !self.is_ordered_after(stream, use_) {
                let (user, then) = use_;
                self.violations
                    .push(format!("{at:#x} is used on {stream} before use {then} of it on {user} is done"));
            }
        }
        self.uses.insert(at, Uses { end, tag, last: vec![(stream, position)] });
    }

    /// Removes and returns the uses of a range.
    fn cut(&mut self, at: u64, end: u64) -> Vec<(usize, u64)> {
        let before = self.uses.range(..at).next_back().filter(|(_, uses)| uses.end > at).map(|(&a, _)| a);
        let inside: Vec<_> = before.into_iter().chain(self.uses.range(at..end).map(|(&a, _)| a)).collect();
        let mut found = Vec::new();
        for start in inside {
            let Some(uses) = self.uses.remove(&start) else { continue };
            found.extend(uses.last.iter().copied());
            if start < at {
                self.uses.insert(start, Uses { end: at, ..uses.clone() });
            }
            if uses.end > end {
                self.uses.insert(end, uses);
            }
        }
        found
    }

    /// Runs the next piece of work of a stream, if possible.
    fn step(&mut self, stream: usize) -> bool {
        let Some(this) = self.streams.get(stream) else { return false };
        let granules = |at: u64, bytes: usize| {
            let first = (at - BASE) as usize / GRANULE;
            first..first + bytes.div_ceil(GRANULE)
        };
        match this.queue.front() {
            None => return false,
            Some(&Work::Wait(other, position)) if self.streams[other].done < position => return false,
            Some(&Work::Write { at, bytes, tag }) if !self.contents.is_empty() => {
                self.contents[granules(at, bytes)].fill(tag)
            }
            Some(&Work::Check { at, bytes, tag }) if !self.contents.is_empty() => {
                let found = self.contents[granules(at, bytes)].iter().find(|&&word| word != tag);
                if let Some(other) = found {
                    self.violations.push(format!("{bytes} bytes at {at:#x} hold {other}, not {tag}"));
                }
            }
            _ => {}
        }
        let this = &mut self.streams[stream];
        this.queue.pop_front();
        this.done += 1;
        true
    }
}

fn entry(clock: &mut Clock, stream: usize) -> &mut u64 {
    if clock.len() <= stream {
        clock.resize(stream + 1, 0);
    }
    &mut clock[stream]
}

fn join(clock: &mut Clock, other: &Clock) {
    for (stream, &position) in other.iter().enumerate() {
        let at = entry(clock, stream);
        *at = position.max(*at);
    }
}

impl Timeline for Simulated {
    type Stream = SimulatedStream;
    type Event = SimulatedEvent;

    fn alive(&self) -> Result<()> {
        match self.lock().lost {
            true => Err(Error::DeviceLost { call: "simulated", code: 719, text: "lost".into() }),
            false => Ok(()),
        }
    }

    fn event(&self) -> Result<SimulatedEvent> {
        Ok(SimulatedEvent::default())
    }

    fn record(&self, event: &SimulatedEvent, stream: &SimulatedStream) -> Result<bool> {
        let mut state = self.lock();
        state.call(Call::Record, Some(stream.0));
        if state.streams[stream.0].captured {
            return Ok(false);
        }
        let position = state.issue(stream.0, Work::Nothing);
        let clock = state.streams[stream.0].clock.clone();
        *event.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some((stream.0, position, clock));
        Ok(true)
    }

    fn is_done(&self, event: &SimulatedEvent) -> Result<bool> {
        let mut state = self.lock();
        let recorded = event.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let done = match &*recorded {
            Some((stream, position, clock)) => {
                let done = state.streams[*stream].done >= *position;
                if done {
                    join(&mut state.host, clock);
                }
                done
            }
            None => true,
        };
        state.call(Call::Query { done }, None);
        Ok(done)
    }

    fn wait(&self, stream: &SimulatedStream, event: &SimulatedEvent) -> Result<bool> {
        let mut state = self.lock();
        state.call(Call::Wait, Some(stream.0));
        if state.streams[stream.0].captured {
            return Ok(false);
        }
        if let Some((other, position, clock)) =
            &*event.recorded.lock().unwrap_or_else(PoisonError::into_inner)
        {
            state.issue(stream.0, Work::Wait(*other, *position));
            join(&mut state.streams[stream.0].clock, clock);
        }
        Ok(true)
    }

    fn is_abandoned(&self, stream: &SimulatedStream) -> bool {
        self.lock().streams[stream.0].abandoned
    }
}

impl Upstream<SimulatedStream> for Simulated {
    fn allocate(&self, bytes: usize, stream: &SimulatedStream) -> Result<u64> {
        let mut state = self.lock();
        let size = bytes.next_multiple_of(GRANULE);
        let by_chance = state.refuse_percent > 0 && state.chance(100) < state.refuse_percent;
        let gap = state.gaps.iter().find(|&(_, &gap)| gap >= size).map(|(&at, &gap)| (at, gap));
        let (Some((at, gap)), false) = (gap, by_chance) else {
            state.call(Call::Allocate { bytes, refused: true }, Some(stream.0));
            let free = state.capacity - state.allocated_bytes;
            let device = "the simulated device".into();
            return Err(Error::OutOfMemory { device, requested: bytes, free, total: state.capacity });
        };
        state.call(Call::Allocate { bytes, refused: false }, Some(stream.0));
        state.gaps.remove(&at);
        if gap > size {
            state.gaps.insert(at + size as u64, gap - size);
        }
        state.allocated.insert(at, size);
        state.allocated_bytes += size;
        // As in a driver: the memory waits for work that was queued on the stream where it was freed.
        for (user, position) in state.cut(at, at + size as u64) {
            state.issue(stream.0, Work::Wait(user, position));
            let known = entry(&mut state.streams[stream.0].clock, user);
            *known = position.max(*known);
        }
        Ok(at)
    }

    unsafe fn free(&self, address: u64, bytes: usize, stream: &SimulatedStream) -> Result<()> {
        let mut state = self.lock();
        state.call(Call::Free { bytes }, Some(stream.0));
        let size = bytes.next_multiple_of(GRANULE);
        if state.allocated.get(&address) != Some(&size) {
            let (op, argument, value) = ("free", "address", format!("{address:#x}"));
            return Err(Error::Unsupported { op, argument, value, reason: "it was not allocated".into() });
        }
        state.allocated.remove(&address);
        state.allocated_bytes -= size;
        let end = address + size as u64;
        for use_ in state.cut(address, end) {
            if !state.is_ordered_after(stream.0, use_) {
                state
                    .violations
                    .push(format!("{address:#x} is given back before use {} on {}", use_.1, use_.0));
            }
        }
        let position = state.issue(stream.0, Work::Nothing);
        state.uses.insert(address, Uses { end, tag: 0, last: vec![(stream.0, position)] });
        let (mut at, mut gap) = (address, size);
        if let Some((&before, &bytes)) = state.gaps.range(..address).next_back()
            && before + bytes as u64 == address
        {
            state.gaps.remove(&before);
            (at, gap) = (before, gap + bytes);
        }
        if let Some(bytes) = state.gaps.remove(&end) {
            gap += bytes;
        }
        state.gaps.insert(at, gap);
        Ok(())
    }

    fn trim(&self) -> Result<()> {
        self.lock().call(Call::Trim, None);
        Ok(())
    }
}
