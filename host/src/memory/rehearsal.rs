//! A pool without memory: computes what a sequence of allocations would reserve.
//!
//! It is [`MemoryPool`] itself, so segments and fragmentation are those that a device's pool would have after the same
//! allocations. It assumes that work of one stream has not ended when another requests memory. That is the worst case, so a
//! plan holds however slow the GPU is.

use super::adaptor::Limit;
use super::{MemoryPool, Statistics, Timeline, Upstream};
use crate::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The least distance between addresses.
const GAP: u64 = 2 << 20;

/// Allocations that take no memory.
///
/// ```
/// use pascaline::memory::Rehearsal;
/// let rehearsal = Rehearsal::new();
/// let weights = rehearsal.take(100 << 20)?;
/// drop(rehearsal.take(10 << 20)?);
/// drop(weights);
/// let books = rehearsal.statistics();
/// assert_eq!((books.live, books.peak_live), (0, 110 << 20));
/// assert!(books.peak_reserved >= books.peak_live);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone)]
pub struct Rehearsal {
    pool: Arc<MemoryPool<Arc<Work>, Box<dyn Upstream<u32>>>>,
    work: Arc<Work>,
}

/// Bytes that are live until this is dropped.
pub struct Rehearsed {
    pool: Rehearsal,
    address: u64,
    bytes: usize,
}

impl Rehearsal {
    /// A pool with nothing reserved.
    #[allow(clippy::new_without_default)] // there is only one way to create it
    pub fn new() -> Self {
        Self::within(usize::MAX)
    }

    /// A pool of a device with this many bytes. Near the limit the pool uses less before it fails.
    pub fn within(bytes: usize) -> Self {
        Self::over(Limit::new(Endless(AtomicU64::new(GAP)), bytes))
    }

    fn over(upstream: impl Upstream<u32> + 'static) -> Self {
        let work = Arc::new(Work::default());
        let pool = MemoryPool::new(Arc::clone(&work), Box::new(upstream) as Box<_>, u32::MAX);
        Self { pool: Arc::new(pool), work }
    }

    /// A graph's pool, which takes segments from this one on a stream of their own.
    pub fn graph(&self, stream: u32) -> Self {
        Self::over(OfGraph { pool: self.clone(), stream })
    }

    /// All work so far ends, as when a stream is waited for before it is captured.
    ///
    /// # Errors
    /// None happens here; see [`MemoryPool::settle`].
    pub fn settle(&self) -> Result<()> {
        self.work.has_ended.store(true, Ordering::Relaxed);
        let settled = self.pool.settle();
        self.work.has_ended.store(false, Ordering::Relaxed);
        settled
    }

    /// Allocates on stream 0.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); [`Error::TooLarge`](crate::Error::TooLarge) for a size that overflows.
    pub fn take(&self, bytes: usize) -> Result<Rehearsed> {
        self.take_on(0, bytes)
    }

    /// Allocates on a stream.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_on(&self, stream: u32, bytes: usize) -> Result<Rehearsed> {
        let address = self.pool.allocate(bytes, &stream)?;
        Ok(Rehearsed { pool: self.clone(), address, bytes })
    }

    /// Gives back segments of which nothing is live.
    ///
    /// # Errors
    /// Never fails here; see [`MemoryPool::trim`].
    pub fn trim(&self) -> Result<usize> {
        MemoryPool::trim(&self.pool)
    }

    /// The pool's statistics.
    pub fn statistics(&self) -> Statistics {
        self.pool.statistics()
    }
}

impl Drop for Rehearsed {
    fn drop(&mut self) {
        // SAFETY: `take_on` allocated it for this value, which is dropped; there is no memory behind the address.
        let freed = unsafe { MemoryPool::free(&self.pool.pool, self.address, self.bytes) };
        debug_assert!(freed.is_ok(), "it was live: {freed:?}");
    }
}

/// A device whose work ends only when told, although waiting for it returns.
#[derive(Default)]
struct Work {
    has_ended: AtomicBool,
}

impl Timeline for Arc<Work> {
    type Stream = u32;
    type Event = ();

    fn alive(&self) -> Result<()> {
        Ok(())
    }

    fn event(&self) -> Result<()> {
        Ok(())
    }

    fn record(&self, (): &(), _stream: &u32) -> Result<bool> {
        Ok(true)
    }

    fn is_done(&self, (): &()) -> Result<bool> {
        Ok(self.has_ended.load(Ordering::Relaxed))
    }

    fn wait(&self, _stream: &u32, (): &()) -> Result<bool> {
        Ok(true)
    }
}

/// Returns each address once. The field is the next one.
struct Endless(AtomicU64);

impl Upstream<u32> for Endless {
    fn allocate(&self, bytes: usize, _stream: &u32) -> Result<u64> {
        // an address never touches another segment, so none merge
        Ok(self.0.fetch_add((bytes as u64).next_multiple_of(GAP) + GAP, Ordering::Relaxed))
    }

    unsafe fn free(&self, _address: u64, _bytes: usize, _stream: &u32) -> Result<()> {
        Ok(())
    }
}

/// The upstream of a graph's pool.
struct OfGraph {
    pool: Rehearsal,
    stream: u32,
}

impl Upstream<u32> for OfGraph {
    fn allocate(&self, bytes: usize, _stream: &u32) -> Result<u64> {
        self.pool.pool.allocate(bytes, &self.stream)
    }

    unsafe fn free(&self, address: u64, bytes: usize, _stream: &u32) -> Result<()> {
        // SAFETY: the caller owns the block, which `allocate` took from this pool; there is no memory behind it.
        unsafe { MemoryPool::free(&self.pool.pool, address, bytes) }
    }
}
