//! Memory in stream order: the pool, the sources that it allocates from, and the device buffers that it serves.
//!
//! Tensors hold [`DeviceBuffer`]s. All buffers of a device come from its [`pool`]. [`MemoryPool`] is the pool's logic, for
//! any [`Upstream`] and [`Timeline`]. Nothing here knows shapes or element types.

pub mod adaptor;
mod buffer;
mod device;
#[cfg(test)]
pub(crate) mod device_tests;
mod free_list;
mod host;
mod layers;
mod link;
#[cfg(all(test, feature = "virtual-gpu"))]
mod link_tests;
mod order;
mod pinned;
mod pinned_pool;
mod pool;
pub mod simulated;
mod slab;
#[cfg(test)]
mod tests;
mod upstream;

pub use buffer::{DeviceBuffer, refusing, trace};
pub(crate) use device::forget_planned;
pub use device::{
    CudaTimeline, DevicePool, DriverPool, PlainMemory, StreamHandle, available, pool, set_limit, settle,
    source,
};
pub(crate) use host::of_the_host;
pub use host::peak_of_the_process;
pub use layers::LayerStream;
pub(crate) use layers::{Resident, Run};
pub(crate) use link::{InFlight, reach};
pub use link::{Link, Way};
pub use pinned::{Download, PinnedBuffer};
pub(crate) use pinned::{Posted, SharedHost};
pub use pinned_pool::CHUNK;
pub use pool::{Found, Leak, MemoryPool, Statistics};
pub use upstream::{Timeline, Upstream};
