//! An adaptor that counts.

use crate::memory::upstream::Upstream;
use crate::{Error, Result};
use std::sync::{Mutex, PoisonError};

/// Counts the calls and bytes of the upstream inside.
#[derive(Debug)]
pub struct Counted<U> {
    inner: U,
    traffic: Mutex<Traffic>,
}

/// The allocations and frees of the upstream, with the sizes requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Bytes allocated now.
    pub bytes: usize,
    /// The most bytes allocated at a time.
    pub peak_bytes: usize,
    /// Allocations that succeeded.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Allocations that failed for lack of memory.
    pub refused: u64,
    /// Other errors of allocations and frees.
    pub errors: u64,
}

impl<U> Counted<U> {
    /// Counts calls of `inner`, from zero.
    pub fn new(inner: U) -> Self {
        Self { inner, traffic: Mutex::default() }
    }

    /// The current counts.
    pub fn traffic(&self) -> Traffic {
        *self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The upstream inside.
    pub fn inner(&self) -> &U {
        &self.inner
    }

    fn count(&self, change: impl FnOnce(&mut Traffic)) {
        change(&mut self.traffic.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl<S, U: Upstream<S>> Upstream<S> for Counted<U> {
    fn allocate(&self, bytes: usize, stream: &S) -> Result<u64> {
        let result = self.inner.allocate(bytes, stream);
        self.count(|traffic| match &result {
            Ok(_) => {
                traffic.allocations += 1;
                traffic.bytes += bytes;
                traffic.peak_bytes = traffic.peak_bytes.max(traffic.bytes);
            }
            Err(Error::OutOfMemory { .. }) => traffic.refused += 1,
            Err(_) => traffic.errors += 1,
        });
        result
    }

    unsafe fn free(&self, address: u64, bytes: usize, stream: &S) -> Result<()> {
        // SAFETY: the caller owns the block, which the upstream inside returned.
        let result = unsafe { self.inner.free(address, bytes, stream) };
        self.count(|traffic| match &result {
            Ok(()) => {
                traffic.frees += 1;
                traffic.bytes -= bytes;
            }
            Err(_) => traffic.errors += 1,
        });
        result
    }

    fn trim(&self) -> Result<()> {
        self.inner.trim()
    }
}
