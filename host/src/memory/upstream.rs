//! The interfaces under the pool: a source of memory, and streams with events to order its use by.
//!
//! Both are traits, so that the pool's logic runs on a driver, on the virtual GPU and, in tests, on the
//! [simulated device](super::simulated) alike. [`pool`](super::pool()) puts one on a CUDA device.

use crate::Result;
use std::sync::Arc;

/// A source of memory in stream order: the driver, a pool, or an adaptor around either.
///
/// Zero bytes are never asked for.
pub trait Upstream<S>: Send + Sync {
    /// Memory of at least `bytes` bytes, 256-byte aligned, for work queued on `stream` from now on.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) means that it is refused and nothing has changed.
    fn allocate(&self, bytes: usize, stream: &S) -> Result<u64>;

    /// Takes memory back. Every use of it is ordered before what is queued on `stream` from now on.
    ///
    /// # Errors
    /// The memory is then still the caller's.
    fn free(&self, address: u64, bytes: usize, stream: &S) -> Result<()>;

    /// Gives what is held in reserve back to where it came from.
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

            fn free(&self, address: u64, bytes: usize, stream: &S) -> Result<()> {
                (**self).free(address, bytes, stream)
            }

            fn trim(&self) -> Result<()> {
                (**self).trim()
            }
        }
    )*};
}

forward!(Arc, Box);

/// Streams and events, as far as the pool orders memory by them.
pub trait Timeline: Send + Sync {
    /// A handle of a stream. While the pool holds one, the stream exists.
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

    /// Records the event after all work queued on the stream so far. `false`: the stream is being captured into a graph
    /// and can't take it now.
    ///
    /// # Errors
    /// A driver error.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<bool>;

    /// Whether the event's last record has been reached.
    ///
    /// # Errors
    /// A driver error.
    fn is_done(&self, event: &Self::Event) -> Result<bool>;

    /// Lets work queued on the stream from now on wait for the event's last record. `false` as for
    /// [`record`](Self::record).
    ///
    /// # Errors
    /// A driver error.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<bool>;

    /// Whether nobody but the pool holds this stream, so that no more work will come on it.
    fn is_abandoned(&self, _stream: &Self::Stream) -> bool {
        false
    }
}
