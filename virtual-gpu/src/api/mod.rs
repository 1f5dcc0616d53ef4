//! The CUDA driver API over the virtual GPU, by symbol name.

mod array;
mod call;
mod clock;
mod codes;
mod context;
mod context_limits;
mod descriptors;
mod device;
mod engine;
mod entry;
mod execute;
mod graph;
mod graph_allocation;
mod graph_build;
mod graph_memory;
mod graph_run;
mod inquiry;
mod kernel;
mod launch;
mod library;
mod limits;
mod link;
mod managed;
mod memory;
mod nodes;
mod nodes_newer;
mod order;
mod peer;
mod pool;
mod references;
mod resource;
mod rows;
mod state;
mod stream;
mod stream_id;
mod texture;
mod value_waits;
mod volume;
mod work;

use std::ffi::c_void;
use std::sync::Mutex;

use call::Symbol;
use state::Driver;

use crate::config::Config;

static TABLES: [&[Symbol]; 22] = [
    context::SYMBOLS,
    inquiry::SYMBOLS,
    device::SYMBOLS,
    kernel::SYMBOLS,
    library::SYMBOLS,
    link::SYMBOLS,
    managed::SYMBOLS,
    volume::SYMBOLS,
    array::SYMBOLS,
    texture::SYMBOLS,
    references::SYMBOLS,
    memory::SYMBOLS,
    rows::SYMBOLS,
    peer::SYMBOLS,
    pool::SYMBOLS,
    launch::SYMBOLS,
    stream::SYMBOLS,
    graph::SYMBOLS,
    graph_memory::SYMBOLS,
    nodes::SYMBOLS,
    nodes_newer::SYMBOLS,
    value_waits::SYMBOLS,
];

/// The `extern "C"` function of a driver-API symbol, as `dlsym` on the driver's library would give it.
///
/// The names are the versioned ones that `cust_raw` 0.11.3 declares (`cuMemAlloc_v2`), and every function has
/// the type that `cust_raw` gives it, with the return code as a 32-bit number; functions newer than these bindings have
/// the type that cuda.h of CUDA 12.9 gives them. `None`: not supported.
pub fn symbol(name: &str) -> Option<*const c_void> {
    TABLES.into_iter().flatten().find(|s| s.0 == name).map(|s| s.1)
}

/// The names that [`symbol`] knows.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    TABLES.into_iter().flatten().map(|s| s.0)
}

/// The device is in use already, so its configuration is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InUse;

impl std::fmt::Display for InUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the virtual GPU is already in use and can no longer be configured")
    }
}

impl std::error::Error for InUse {}

/// Configures the driver API's device, before the first `cuInit`. Without this call the environment decides,
/// see [`Config`].
pub fn configure(config: Config) -> Result<(), InUse> {
    state::DRIVER.set(Mutex::new(Driver::new(config))).map_err(|_| InUse)
}

/// Discards the device's whole state and initialises a fresh one, as a new process would. All handles and device
/// pointers become invalid; page-locked memory is leaked, as the host may still hold references into it. For
/// tests that need several configurations in one process.
pub fn restart(config: Config) {
    entry::forget_contexts();
    let mut fresh = Some(Driver::new(config));
    state::DRIVER.get_or_init(|| Mutex::new(fresh.take().expect("it is taken once")));
    if let (Some(fresh), Ok(mut old)) = (fresh, state::lock()) {
        old.devices.iter().for_each(|device| device.gpu.memory.leave_pinned());
        *old = fresh;
    }
    entry::initialised();
}

/// The most bytes of a device of the driver API that were in use at any one time since the last call, or since the driver began. It
/// counts what the device reports as used: allocations, and what its pools retain.
pub fn take_peak_memory(device: usize) -> u64 {
    state::lock().map_or(0, |mut driver| driver.take_peak(device))
}

/// This thread's next call of a driver function takes a null stream for the thread's own default stream, as the functions
/// whose names end in `_ptsz` and `_ptds` do.
pub fn null_stream_is_per_thread() {
    stream_id::NULL_IS_PER_THREAD.set(true);
}
