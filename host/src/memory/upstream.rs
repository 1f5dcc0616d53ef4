//! The interfaces under the pool: a source of memory, and streams with events to order its use by.
//!
//! Both are traits, so that the pool's logic runs on a driver, on the virtual GPU and, in tests, on the [simulated
//! device](super::simulated). [`pool`](super::pool()) is the one of a CUDA device.

use crate::Result;
use std::sync::Arc;

/// A source of memory in stream order: the driver, a pool, or an adaptor that wraps either.
///
/// Zero bytes are never requested.
pub trait Upstream<S>: Send + Sync {
    /// Memory of at least `bytes` bytes, 256-byte aligned, for work queued on `stream` from now on.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if there is not enough memory; nothing has changed then.
    fn allocate(&self, bytes: usize, stream: &S) -> Result<u64>;

    /// Frees memory.
    ///
    /// # Errors
    /// An error of the source; the memory then stays allocated. Sources that know their blocks refuse an address that is not
    /// one of them, or another size.
    ///
    /// # Safety
    /// If `address` is a block that [`allocate`](Self::allocate) of this source returned, the caller owns it: every use of it is
    /// ordered before work that is queued on `stream` from now on, and there is none after this call.
    unsafe fn free(&self, address: u64, bytes: usize, stream: &S) -> Result<()>;

    /// Returns memory that is kept in reserve to where it came from.
    ///
    /// # Errors
    /// A driver error.
    fn trim(&self) -> Result<()> {
        Ok(())
    }
}

macro_rules! forward {
    ($($pointer:ident),*) => {$(
        impl<S, U: Upstream<S> + ?Sized> Upstream<S> for $pointer<U> {
            fn allocate(&self, bytes: usize, stream: &S) -> Result<u64> {
                (**self).allocate(bytes, stream)
            }

            unsafe fn free(&self, address: u64, bytes: usize, stream: &S) -> Result<()> {
                // SAFETY: the caller owns the block, and the source behind the pointer is the one that returned it.
                unsafe { (**self).free(address, bytes, stream) }
            }

            fn trim(&self) -> Result<()> {
                (**self).trim()
            }
        }
    )*};
}

forward!(Arc, Box);

/// Streams and events, as the pool needs them to order uses of memory.
pub trait Timeline: Send + Sync {
    /// A handle of a stream. The stream exists as long as the pool has one.
    type Stream: Clone + PartialEq + Send + Sync;
    /// A point in a stream.
    type Event: Send + Sync;

    /// Fails after a device fault; no other call is made then.
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost).
    fn alive(&self) -> Result<()>;

    /// A new event.
    ///
    /// # Errors
    /// A driver error.
    fn event(&self) -> Result<Self::Event>;

    /// Records the event after all work queued on the stream so far. Returns `false` if the stream is being captured into a
    /// graph, where that is not possible.
    ///
    /// # Errors
    /// A driver error.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<bool>;

    /// Whether the event's last record has been reached.
    ///
    /// # Errors
    /// A driver error.
    fn is_done(&self, event: &Self::Event) -> Result<bool>;

    /// Makes work queued on the stream from now on wait for the event's last record. `false` as for
    /// [`record`](Self::record).
    ///
    /// # Errors
    /// A driver error.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<bool>;

    /// Whether only the pool has a handle of this stream, so that no more work will be queued on it.
    fn is_abandoned(&self, _stream: &Self::Stream) -> bool {
        false
    }
}
