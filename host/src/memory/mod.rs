//! Memory in stream order: the pool, what it stands on, and the buffers of device memory that come from it.

mod buffer;
mod free_list;
mod mutation;
mod order;
mod pool;
pub mod simulated;
mod slab;
#[cfg(test)]
mod tests;
mod upstream;

pub use buffer::DeviceBuffer;
pub use pool::{Found, Leak, MemoryPool, Statistics};
pub use upstream::{Timeline, Upstream};
