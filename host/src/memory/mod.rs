//! Memory in stream order: the pool, the sources that it allocates from, and the buffers of device memory that come from it.
//!
//! Tensors hold [`DeviceBuffer`]s. All buffers of a device come from its [`pool`]; [`MemoryPool`] is its logic,
//! over any [`Upstream`] and [`Timeline`].

pub mod adaptor;
mod buffer;
mod device;
#[cfg(test)]
pub(crate) mod device_tests;
mod free_list;
mod layers;
mod order;
mod pinned;
mod pool;
pub mod simulated;
mod slab;
#[cfg(test)]
mod tests;
mod upstream;

pub use buffer::{DeviceBuffer, trace};
pub use device::{CudaTimeline, DevicePool, DriverPool, PlainMemory, StreamHandle, pool, set_limit, source};
pub use layers::LayerStream;
pub use pinned::{CHUNK, Download, PinnedBuffer};
pub use pool::{Found, Leak, MemoryPool, Statistics};
pub use upstream::{Timeline, Upstream};
