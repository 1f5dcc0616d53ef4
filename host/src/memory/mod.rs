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
mod layers;
mod link;
#[cfg(all(test, feature = "virtual-gpu"))]
mod link_tests;
mod order;
mod pinned;
mod pool;
pub mod simulated;
mod slab;
#[cfg(test)]
mod tests;
mod upstream;

/// Free and total bytes of host memory; zeros where the system does not report them.
pub(crate) fn of_the_host() -> (usize, usize) {
    let bytes = |name| reported("/proc/meminfo", name).unwrap_or(0);
    (bytes("MemAvailable:"), bytes("MemTotal:"))
}

/// The most bytes of host memory that this process had; `None` where the system does not report it.
pub fn peak_of_the_process() -> Option<usize> {
    reported("/proc/self/status", "VmHWM:")
}

/// The bytes on a line such as `MemTotal: 16 kB` of a file of the system.
fn reported(file: &str, name: &str) -> Option<usize> {
    let text = std::fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?;
    value.parse::<usize>().ok()?.checked_mul(1 << 10)
}

pub use buffer::{DeviceBuffer, refusing, trace};
pub(crate) use device::forget_planned;
pub use device::{
    CudaTimeline, DevicePool, DriverPool, PlainMemory, StreamHandle, available, pool, set_limit, settle,
    source,
};
pub use layers::LayerStream;
pub(crate) use layers::{Resident, Run};
pub(crate) use link::{InFlight, reach};
pub use link::{Link, Way};
pub use pinned::{CHUNK, Download, PinnedBuffer};
pub(crate) use pinned::{Posted, SharedHost};
pub use pool::{Found, Leak, MemoryPool, Statistics};
pub use upstream::{Timeline, Upstream};
