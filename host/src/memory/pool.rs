//! The pool: memory in stream order, reused across streams by events alone.
//!
//! A freed block is in its stream's list. That stream can reuse it at once, since work queued later runs later; another
//! stream only after an event. An allocation tries these in order:
//!
//! 1. memory that the stream itself has freed;
//! 2. memory that any stream may use, because its events are known to have been reached;
//! 3. a new segment from upstream: of a shared size if the block is small, else of the block's size;
//! 4. if upstream fails: the best fit among other streams' blocks, after an event on the GPU; then all their free
//!    memory, which merges;
//! 5. returning unused segments, and asking upstream once more;
//! 6. out of memory.
//!
//! Blocks up to 16 KiB are slots of size classes ([`super::slab`]); larger ones are split from segments
//! ([`super::free_list`]). A failed allocation does not change any allocated block.

use super::free_list::{FreeLists, UNIT};
use super::order::{Dependency, Order, StreamId, When, tolerate};
use super::slab::{self, Slabs};
use super::upstream::{Timeline, Upstream};
use crate::mutation::{Wait, left_out};
use crate::sync::{Mutex, MutexGuard};
use crate::{Error, Result};
use serde::Serialize;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::PoisonError;

/// Sizes of segments are multiples of this: the granularity in which drivers map memory.
const SEGMENT: usize = 2 << 20;
/// A pool grows by at least this fraction of its size, so that few segments are split into many blocks: with one segment per
/// request, a forward pass leaves a quarter of the reserved memory in pieces too small for the next request...
const GROWTH: usize = 4;
/// ...but by no more than this, unless more is needed.
const SHARED_SEGMENT: usize = 64 << 20;

/// Memory in stream order over an upstream, for any number of threads and streams.
pub struct MemoryPool<T: Timeline, U: Upstream<T::Stream>> {
    upstream: U,
    /// Segments are returned upstream in the order of this stream.
    service: T::Stream,
    state: Mutex<State<T>>,
}

struct State<T: Timeline> {
    order: Order<T>,
    lists: FreeLists,
    slabs: Slabs,
    live: HashMap<u64, Live>,
    statistics: Statistics,
}

/// An allocated block.
struct Live {
    requested: usize,
    bytes: usize,
    home: StreamId,
    /// Other streams that used it.
    uses: Vec<StreamId>,
    slab: Option<u64>,
    site: Option<&'static Location<'static>>,
}

/// A pool's statistics. All sizes are bytes; `live + free + pending = reserved` always holds exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Statistics {
    /// Allocated, after rounding up.
    pub live: usize,
    /// Allocated, as requested.
    pub requested: usize,
    /// Free for at least one stream at once.
    pub free: usize,
    /// Freed, and waiting for events of several streams or of one that is gone.
    pub pending: usize,
    /// Allocated from upstream.
    pub reserved: usize,
    /// The most that was ever live.
    pub peak_live: usize,
    /// The most that was ever reserved.
    pub peak_reserved: usize,
    /// The largest block that is free or pending.
    pub largest_free: usize,
    /// Allocations that succeeded; those of zero bytes don't count.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Allocations that failed for lack of memory.
    pub refused: u64,
    /// Frees of an address that was not live, or with another size.
    pub invalid_frees: u64,
    /// Allocations by where the memory was found.
    pub found: Found,
    /// Segments requested from upstream, including failed requests.
    pub segments_asked: u64,
    /// Segments returned upstream.
    pub segments_returned: u64,
}

/// Allocations by where the memory was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Found {
    /// In memory that the stream itself had freed.
    pub same_stream: u64,
    /// In memory of which all events had been reached.
    pub ready: u64,
    /// In a new segment.
    pub upstream: u64,
    /// In other streams' memory, after an event.
    pub waited: u64,
    /// In a new segment after unused ones were returned.
    pub trimmed: u64,
}

impl Statistics {
    /// The part of the free and pending memory that is outside the largest block: 0 if it is one block.
    pub fn fragmentation(&self) -> f64 {
        match self.free + self.pending {
            0 => 0.0,
            idle => 1.0 - self.largest_free as f64 / idle as f64,
        }
    }
}

/// A block that is still allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// Its address.
    pub address: u64,
    /// Bytes requested.
    pub bytes: usize,
    /// The line that allocated it; known in debug builds.
    pub site: Option<&'static Location<'static>>,
}

impl<T: Timeline, U: Upstream<T::Stream>> MemoryPool<T, U> {
    /// An empty pool. `service` is a stream without other work: segments are returned upstream in its order, so that no work
    /// has to wait for that.
    pub fn new(timeline: T, upstream: U, service: T::Stream) -> Self {
        let state = State {
            order: Order::new(timeline),
            lists: FreeLists::default(),
            slabs: Slabs::default(),
            live: HashMap::new(),
            statistics: Statistics::default(),
        };
        Self { upstream, service, state: Mutex::new(state) }
    }

    /// Its source of segments.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for work queued on `stream` from now on, 256-byte aligned. Zero bytes have address 0 and need not be freed.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if every step has failed; [`Error::TooLarge`] for a size that overflows;
    /// [`Error::DeviceLost`]; another error of upstream.
    #[track_caller]
    pub fn allocate(&self, bytes: usize, stream: &T::Stream) -> Result<u64> {
        let site = if cfg!(debug_assertions) { Some(Location::caller()) } else { None };
        if bytes == 0 {
            return Ok(0);
        }
        let Some(need) = rounded(bytes) else {
            let limit = isize::MAX as u128;
            return Err(Error::TooLarge {
                op: "allocate",
                argument: "bytes",
                elements: bytes as u128,
                limit,
            });
        };
        let mut state = self.lock();
        let state = &mut *state;
        state.order.timeline().alive()?;
        let home = self.stream_id(state, stream)?;
        let found = self.search(state, need, stream, home);
        if let Err(Error::OutOfMemory { .. }) = &found {
            state.statistics.refused += 1;
        }
        let (address, slab) = found?;
        let live = Live { requested: bytes, bytes: need, home, uses: Vec::new(), slab, site };
        state.live.insert(address, live);
        let books = &mut state.statistics;
        books.allocations += 1;
        books.live += need;
        books.requested += bytes;
        books.peak_live = books.peak_live.max(books.live);
        Ok(address)
    }

    /// Records that work queued on `stream` so far uses the block, so that it is not reused before that work is done.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is not a live block.
    pub fn record_use(&self, address: u64, stream: &T::Stream) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        if !state.live.contains_key(&address) {
            return Err(foreign("record_use", address, "it is not a live block of this pool"));
        }
        let user = self.stream_id(state, stream)?;
        if let Some(live) = state.live.get_mut(&address)
            && live.home != user
            && !live.uses.contains(&user)
        {
            live.uses.push(user);
        }
        Ok(())
    }

    /// Frees a block. Work that its stream queues from now on may use the memory; work of other streams after an event of
    /// this stream and of all streams that [used](Self::record_use) it. `bytes` is the size that was requested.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an address that is not live (such as in a double free) or another size. The error is
    /// counted; nothing else changes.
    ///
    /// # Safety
    /// If `address` is a live block, the caller owns it: [`allocate`](Self::allocate) returned it to the caller, and no work that is
    /// queued after this call uses it. A [`DeviceBuffer`](super::DeviceBuffer) owns its block and frees it when it is dropped.
    ///
    /// ```compile_fail,E0133
    /// # fn dangle(gpu: &pascaline::cuda::CudaDevice, x: &pascaline::Tensor) -> pascaline::Result<()> {
    /// let address = x.device_address::<f32>()?; // x lives on
    /// pascaline::memory::pool(gpu)?.free(address, 4)
    /// # }
    /// ```
    ///
    /// Nor through the pool's source, or the driver's own calls:
    ///
    /// ```compile_fail,E0133
    /// # use pascaline::memory::{StreamHandle, Upstream};
    /// # fn dangle(gpu: &pascaline::cuda::CudaDevice, address: u64) -> pascaline::Result<()> {
    /// pascaline::memory::pool(gpu)?.upstream().free(address, 4, &StreamHandle::new(gpu))
    /// # }
    /// ```
    ///
    /// ```compile_fail,E0133
    /// # use pascaline::memory::{PlainMemory, StreamHandle, Upstream};
    /// # fn dangle(gpu: &pascaline::cuda::CudaDevice, address: u64) -> pascaline::Result<()> {
    /// PlainMemory::new(gpu).free(address, 4, &StreamHandle::new(gpu))
    /// # }
    /// ```
    pub unsafe fn free(&self, address: u64, bytes: usize) -> Result<()> {
        if (address, bytes) == (0, 0) {
            return Ok(());
        }
        let mut state = self.lock();
        let state = &mut *state;
        let refused = match state.live.get(&address) {
            None => Some("it is not a live block of this pool"),
            Some(live) if live.requested != bytes => Some("the block has another size"),
            Some(_) => None,
        };
        if let Some(reason) = refused {
            state.statistics.invalid_frees += 1;
            return Err(foreign("free", address, reason));
        }
        let Some(live) = state.live.remove(&address) else { return Ok(()) };
        state.statistics.frees += 1;
        state.statistics.live -= live.bytes;
        state.statistics.requested -= live.requested;
        let mut streams = vec![live.home];
        if !left_out(Wait::OtherUses) {
            streams.extend(live.uses);
        }
        let when = state.order.after(&streams);
        match live.slab {
            None => state.lists.give(address, when),
            Some(base) => {
                let empty = state.slabs.give(address, base, when);
                state.dissolve(empty);
            }
        }
        Ok(())
    }

    /// Releases a stream that will be destroyed: from now on an event after all its work represents it.
    ///
    /// # Errors
    /// A driver error; the stream must then not be destroyed yet.
    ///
    /// # Safety
    /// No work is queued on the stream after this call: memory that it used counts as free after the event.
    pub unsafe fn retire(&self, stream: &T::Stream) -> Result<()> {
        let mut state = self.lock();
        state.order.timeline().alive()?;
        match state.order.find(stream) {
            Some(id) => match state.retire(id)? {
                true => Ok(()),
                false => Err(foreign("retire", 0, "the stream is being captured into a graph")),
            },
            None => Ok(()),
        }
    }

    /// Returns all segments without live blocks upstream, after their last use, and trims upstream. Returns the bytes
    /// returned.
    ///
    /// # Errors
    /// A driver error; segments that could not be returned stay.
    pub fn trim(&self) -> Result<usize> {
        let mut state = self.lock();
        let state = &mut *state;
        state.order.timeline().alive()?;
        self.sweep(state)?;
        let returned = self.give_back(state)?;
        self.upstream.trim()?;
        Ok(returned)
    }

    /// Asks which streams' work has ended. The memory that they have freed is then free for all streams.
    ///
    /// # Errors
    /// A driver error.
    pub fn settle(&self) -> Result<()> {
        let mut state = self.lock();
        state.order.timeline().alive()?;
        if state.order.poll()? {
            state.settle();
        }
        Ok(())
    }

    /// The current statistics.
    pub fn statistics(&self) -> Statistics {
        self.lock().books()
    }

    /// Every allocated block, the largest first.
    pub fn leaks(&self) -> Vec<Leak> {
        let state = self.lock();
        let leak = |(&address, live): (&u64, &Live)| Leak { address, bytes: live.requested, site: live.site };
        let mut leaks: Vec<_> = state.live.iter().map(leak).collect();
        leaks.sort_by_key(|leak| (std::cmp::Reverse(leak.bytes), leak.address));
        leaks
    }

    /// Checks all bookkeeping. For tests.
    ///
    /// # Errors
    /// A description of the first inconsistency.
    pub fn audit(&self) -> Result<(), String> {
        let state = self.lock();
        let books = state.books(); // under the same lock as what it is compared with
        state.lists.audit()?;
        state.slabs.audit()?;
        let live: usize = state.live.values().map(|live| live.bytes).sum();
        let requested: usize = state.live.values().map(|live| live.requested).sum();
        if (live, requested) != (books.live, books.requested) {
            return Err(format!("{live} bytes are live, {requested} of them asked for: {books:?}"));
        }
        match books.live + books.free + books.pending == books.reserved {
            true => Ok(()),
            false => Err(format!("live, free and pending are not what is reserved: {books:?}")),
        }
    }

    fn stream_id(&self, state: &mut State<T>, stream: &T::Stream) -> Result<StreamId> {
        if let Some(id) = state.order.find(stream) {
            return Ok(id);
        }
        self.sweep(state)?;
        Ok(state.order.add(stream))
    }

    /// Releases streams of which only the pool still has a handle.
    fn sweep(&self, state: &mut State<T>) -> Result<()> {
        let abandoned = state.order.abandoned();
        for &id in &abandoned {
            tolerate(state.retire(id))?; // if it can't be now, the stream is kept until it can
        }
        if !abandoned.is_empty() && state.order.poll()? {
            state.settle(); // so that streams that are gone and done are removed
        }
        Ok(())
    }

    /// The address, and the block's slab if it is a slot.
    fn search(
        &self,
        state: &mut State<T>,
        need: usize,
        stream: &T::Stream,
        home: StreamId,
    ) -> Result<(u64, Option<u64>)> {
        if let Some((block, ready)) = state.take(need, home) {
            let found = &mut state.statistics.found;
            *(if ready { &mut found.ready } else { &mut found.same_stream }) += 1;
            return Ok(block);
        }
        if state.others_have_memory(home) && state.order.poll()? {
            state.settle();
            if let Some((block, _)) = state.take(need, home) {
                state.statistics.found.ready += 1;
                return Ok(block);
            }
        }
        let segment = segment_for(need);
        let shared = (state.statistics.reserved / GROWTH).min(SHARED_SEGMENT).next_multiple_of(SEGMENT);
        let refusal = match self.grow(state, segment.max(shared), stream, home) {
            Err(Error::OutOfMemory { .. }) if shared > segment => self.grow(state, segment, stream, home),
            other => other,
        };
        let refusal = match refusal {
            Ok(()) => {
                let block = state.take(need, home).ok_or_else(|| contradiction(need));
                state.statistics.found.upstream += 1;
                return block.map(|(block, _)| block);
            }
            Err(error @ Error::OutOfMemory { .. }) => error,
            Err(error) => return Err(error),
        };
        for widely in [false, true] {
            state.wait(need, home, widely)?;
            if let Some((block, _)) = state.take(need, home) {
                state.statistics.found.waited += 1;
                return Ok(block);
            }
        }
        tolerate(self.give_back(state))?;
        tolerate(self.upstream.trim())?;
        match self.grow(state, segment, stream, home) {
            Ok(()) => {
                let block = state.take(need, home).ok_or_else(|| contradiction(need));
                state.statistics.found.trimmed += 1;
                block.map(|(block, _)| block)
            }
            Err(Error::OutOfMemory { .. }) => Err(refusal),
            Err(error) => Err(error),
        }
    }

    fn grow(&self, state: &mut State<T>, bytes: usize, stream: &T::Stream, home: StreamId) -> Result<()> {
        let books = &mut state.statistics;
        books.segments_asked += 1;
        let base = self.upstream.allocate(bytes, stream)?;
        if !base.is_multiple_of(UNIT as u64) || base == 0 || state.lists.overlaps(base, bytes) {
            return Err(foreign(
                "allocate",
                base,
                "upstream gave memory that is misaligned or given already",
            ));
        }
        books.reserved += bytes;
        books.peak_reserved = books.peak_reserved.max(books.reserved);
        // It belongs to the stream: upstream may have ordered it after work on this stream only.
        let when = state.order.after(&[home]);
        state.lists.add_segment(base, bytes, when);
        Ok(())
    }

    /// Returns unused segments upstream, after all their uses.
    fn give_back(&self, state: &mut State<T>) -> Result<usize> {
        state.dissolve_unused();
        let service = match state.order.find(&self.service) {
            Some(id) => id,
            None => state.order.add(&self.service),
        };
        let mut returned = 0;
        for (base, bytes, dependencies) in state.lists.unused_segments() {
            if !left_out(Wait::GiveBack) && !state.order.edges(&dependencies, service)? {
                continue;
            }
            // SAFETY: a segment that `grow` took from upstream, of which nothing is live; its uses are ordered before the service
            // stream by the edges above. It leaves the lists when it is freed, so it is freed once.
            let freed = unsafe { self.upstream.free(base, bytes, &self.service) };
            if tolerate(freed)?.is_some() {
                state.lists.remove_segment(base);
                state.statistics.reserved -= bytes;
                state.statistics.segments_returned += 1;
                returned += bytes;
            }
        }
        Ok(returned)
    }
}

impl<T: Timeline> State<T> {
    fn books(&self) -> Statistics {
        let (lists, slabs) = (&self.lists, &self.slabs);
        Statistics {
            free: lists.free() + slabs.free(),
            pending: lists.pending() + slabs.pending(),
            largest_free: lists.largest(),
            ..self.statistics
        }
    }

    /// From the stream's own memory, or (true) from memory that any stream may use.
    fn take(&mut self, need: usize, home: StreamId) -> Option<((u64, Option<u64>), bool)> {
        let Some(class) = slab::class(need) else {
            if let Some(address) = self.lists.take_after(need, home) {
                return Some(((address, None), false));
            }
            return Some(((self.lists.take_ready(need)?, None), true));
        };
        if let Some((slot, base)) = self.slabs.take(home, class) {
            return Some(((slot, Some(base)), false));
        }
        let own = self.lists.take_after(slab::SLAB, home);
        let ready = own.is_none();
        let base = own.or_else(|| self.lists.take_ready(slab::SLAB))?;
        self.slabs.add(base, home, class);
        let (slot, base) = self.slabs.take(home, class)?;
        Some(((slot, Some(base)), ready))
    }

    fn others_have_memory(&self, home: StreamId) -> bool {
        self.lists.pending() + self.slabs.pending() > 0
            || self.lists.waits_for_others(home)
            || self.slabs.owners().iter().any(|&owner| owner != home)
    }

    /// Moves memory without dependencies to the lists where it can be used.
    fn settle(&mut self) {
        self.relist();
        let order = &self.order;
        let left = |mut dependencies: Vec<Dependency>| {
            dependencies.retain(|&dependency| !order.is_reached(dependency));
            dependencies
        };
        let empty = self.slabs.settle(left);
        empty.into_iter().for_each(|empty| self.dissolve(Some(empty)));
        for owner in self.slabs.owners() {
            if self.order.last(owner).is_none() && self.order.handle(owner).is_none() {
                self.slabs.move_all(owner, None); // gone and done
            }
        }
    }

    /// Moves every free block to the list for its current dependencies.
    fn relist(&mut self) {
        for address in self.lists.waiting() {
            // Read again for each block: neighbours merge, and the older epoch of one must not be used for both.
            if let Some(dependencies) = self.lists.dependencies(address) {
                let when = self.order.simplify(dependencies);
                self.lists.move_to(address, when);
            }
        }
    }

    /// Orders the stream after other streams' work, so that it may use their memory: just enough for one block, or (widely)
    /// all of it.
    fn wait(&mut self, need: usize, home: StreamId, widely: bool) -> Result<()> {
        if !widely {
            let bytes = if slab::class(need).is_some() { slab::SLAB } else { need };
            if let Some((address, dependencies)) = self.lists.best_elsewhere(bytes, home)
                && self.order.edges(&dependencies, home)?
            {
                let when = self.order.after(&[home]);
                self.lists.move_to(address, when);
            }
            return Ok(());
        }
        self.dissolve_unused();
        for address in self.lists.waiting() {
            let Some(dependencies) = self.lists.dependencies(address) else { continue };
            if self.order.edges(&dependencies, home)? {
                let when = self.order.after(&[home]);
                self.lists.move_to(address, when);
            }
        }
        for owner in self.slabs.owners() {
            let ordered = self.order.last(owner).map_or(Ok(true), |last| self.order.edges(&[last], home))?;
            if ordered {
                self.order.now(home); // the waits are in this epoch, even if `home` never uses a slot
                self.slabs.move_all(owner, Some(home));
            }
        }
        Ok(())
    }

    /// Slabs without used slots become free blocks, after the events that their slots wait for.
    fn dissolve_unused(&mut self) {
        for ((base, home), mut dependencies) in self.slabs.take_unused() {
            if let Some(home) = home {
                dependencies.extend(self.order.now(home).map(|epoch| (home, epoch)));
            }
            let when = self.order.simplify(dependencies);
            self.lists.give(base, when);
        }
    }

    /// An empty slab becomes a free block.
    fn dissolve(&mut self, empty: Option<slab::Empty>) {
        if let Some((base, home)) = empty {
            let when = home.map_or(When::Ready, |home| self.order.after(&[home]));
            self.lists.give(base, when);
        }
    }

    fn retire(&mut self, id: StreamId) -> Result<bool> {
        if !self.order.retire(id)? {
            return Ok(false);
        }
        self.relist(); // memory that only this stream could use at once is now pending
        Ok(true)
    }
}

impl<T: Timeline, U: Upstream<T::Stream>> Upstream<T::Stream> for MemoryPool<T, U> {
    #[track_caller]
    fn allocate(&self, bytes: usize, stream: &T::Stream) -> Result<u64> {
        MemoryPool::allocate(self, bytes, stream)
    }

    unsafe fn free(&self, address: u64, bytes: usize, stream: &T::Stream) -> Result<()> {
        // `free` returns the error for the address; if the device is lost, the pool gives out no memory any more
        let _ = self.record_use(address, stream);
        // SAFETY: the caller owns the block; its uses are ordered before `stream`, which was recorded as a user.
        unsafe { MemoryPool::free(self, address, bytes) }
    }

    fn trim(&self) -> Result<()> {
        MemoryPool::trim(self).map(drop)
    }
}

impl<T: Timeline, U: Upstream<T::Stream>> Drop for MemoryPool<T, U> {
    /// Returns memory that is not live. An error can't be reported from a drop.
    fn drop(&mut self) {
        let _ = self.trim();
    }
}

/// The size of the block for a request; `None` if it overflows.
fn rounded(bytes: usize) -> Option<usize> {
    let block = slab::class(bytes).or_else(|| bytes.checked_next_multiple_of(UNIT))?;
    let room = isize::MAX as usize - 2 * SEGMENT;
    (block <= room).then_some(block)
}

/// The size of the new segment when no block of this size is free.
fn segment_for(need: usize) -> usize {
    need.max(slab::SLAB).next_multiple_of(SEGMENT)
}

fn foreign(op: &'static str, address: u64, reason: &str) -> Error {
    Error::Unsupported { op, argument: "address", value: format!("{address:#x}"), reason: reason.into() }
}

fn contradiction(need: usize) -> Error {
    let reason = "a new segment does not hold the block it was made for".into();
    Error::Unsupported { op: "allocate", argument: "bytes", value: need.to_string(), reason }
}
