//! A pool without memory: computes what a sequence of allocations would reserve.
//!
//! It is [`MemoryPool`] itself, so segments and fragmentation are those that a device's pool would have after the same
//! allocations. It assumes that work of one stream has not ended when another requests memory. That is the worst case, so a
//! plan holds however slow the GPU is.

use super::adaptor::Limit;
use super::{MemoryPool, Statistics, Timeline, Upstream};
use crate::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
pub struct Rehearsal(Arc<MemoryPool<Never, Limit<Endless>>>);

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
        let device = Limit::new(Endless(AtomicU64::new(GAP)), bytes);
        Self(Arc::new(MemoryPool::new(Never, device, u32::MAX)))
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
        let address = self.0.allocate(bytes, &stream)?;
        Ok(Rehearsed { pool: self.clone(), address, bytes })
    }

    /// Gives back segments of which nothing is live.
    ///
    /// # Errors
    /// Never fails here; see [`MemoryPool::trim`].
    pub fn trim(&self) -> Result<usize> {
        MemoryPool::trim(&self.0)
    }

    /// The pool's statistics.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }
}

impl Drop for Rehearsed {
    fn drop(&mut self) {
        let freed = MemoryPool::free(&self.pool.0, self.address, self.bytes);
        debug_assert!(freed.is_ok(), "it was live: {freed:?}");
    }
}

/// A device whose work never ends, although waiting for it returns.
struct Never;

impl Timeline for Never {
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
        Ok(false)
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

    fn free(&self, _address: u64, _bytes: usize, _stream: &u32) -> Result<()> {
        Ok(())
    }
}
