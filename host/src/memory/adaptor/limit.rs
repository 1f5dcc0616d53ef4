//! An adaptor that limits the bytes allocated at a time.

use crate::memory::upstream::Upstream;
use crate::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rejects allocations beyond a limit, without calling the upstream inside.
#[derive(Debug)]
pub struct Limit<U> {
    inner: U,
    limit: AtomicUsize,
    used: AtomicUsize,
}

impl<U> Limit<U> {
    /// Limits `inner` to `limit` bytes.
    pub fn new(inner: U, limit: usize) -> Self {
        Self { inner, limit: AtomicUsize::new(limit), used: AtomicUsize::new(0) }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. Blocks that are allocated already stay allocated.
    pub fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that are allocated.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The upstream inside.
    pub fn inner(&self) -> &U {
        &self.inner
    }
}

impl<S, U: Upstream<S>> Upstream<S> for Limit<U> {
    fn allocate(&self, bytes: usize, stream: &S) -> Result<u64> {
        let limit = self.limit();
        let fits = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= limit);
        // Counted before the allocation, so that several threads can't exceed the limit together.
        if let Err(used) = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            let device = "the memory limit".to_owned();
            let free = limit.saturating_sub(used);
            return Err(Error::OutOfMemory { device, requested: bytes, free, total: limit });
        }
        let result = self.inner.allocate(bytes, stream);
        if result.is_err() {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        result
    }

    unsafe fn free(&self, address: u64, bytes: usize, stream: &S) -> Result<()> {
        // SAFETY: the caller owns the block, which the upstream inside returned.
        unsafe { self.inner.free(address, bytes, stream) }?;
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn trim(&self) -> Result<()> {
        self.inner.trim()
    }
}
