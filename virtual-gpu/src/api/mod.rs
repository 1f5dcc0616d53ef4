//! The CUDA driver API over the virtual GPU, by symbol name.

mod clock;
mod codes;
mod context;
mod device;
mod engine;
mod execute;
mod graph;
mod graph_build;
mod graph_run;
mod inquiry;
mod kernel;
mod launch;
mod library;
mod link;
mod managed;
mod memory;
mod nodes;
mod nodes_newer;
mod order;
mod peer;
mod pool;
mod state;
mod stream;
mod stream_id;
mod value_waits;
mod volume;
mod work;

use std::ffi::c_void;
use std::sync::Mutex;

use codes::*;
use state::{Driver, Guard};

use crate::config::Config;

/// A function of the driver API and its name.
struct Symbol(&'static str, *const c_void);

// SAFETY: the pointer is the address of a function, which all threads may share.
unsafe impl Sync for Symbol {}

static TABLES: [&[Symbol]; 17] = [
    context::SYMBOLS,
    inquiry::SYMBOLS,
    device::SYMBOLS,
    kernel::SYMBOLS,
    library::SYMBOLS,
    link::SYMBOLS,
    managed::SYMBOLS,
    volume::SYMBOLS,
    memory::SYMBOLS,
    peer::SYMBOLS,
    pool::SYMBOLS,
    launch::SYMBOLS,
    stream::SYMBOLS,
    graph::SYMBOLS,
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
    device::forget_contexts();
    let mut fresh = Some(Driver::new(config));
    state::DRIVER.get_or_init(|| Mutex::new(fresh.take().expect("it is taken once")));
    if let (Some(fresh), Ok(mut old)) = (fresh, state::lock()) {
        old.devices.iter().for_each(|device| device.gpu.memory.leave_pinned());
        *old = fresh;
    }
    device::initialised();
}

/// The most bytes of a device of the driver API that were in use at any one time since the last call, or since the driver began. It
/// counts what the device reports as used: allocations, and what its pools retain.
pub fn take_peak_memory(device: usize) -> u64 {
    state::lock().map_or(0, |mut driver| driver.take_peak(device))
}

/// Runs an API function's body; a panic becomes `CUDA_ERROR_UNKNOWN`.
fn answer(body: impl FnOnce() -> Answer) -> u32 {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    stream_id::NULL_IS_PER_THREAD.set(false);
    match result {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// This thread's next call of a driver function takes a null stream for the thread's own default stream, as the functions
/// whose names end in `_ptsz` and `_ptds` do.
pub fn null_stream_is_per_thread() {
    stream_id::NULL_IS_PER_THREAD.set(true);
}

/// The device, if it is initialised, has a current context and no fault.
fn enter() -> Result<Guard, u32> {
    let guard = enter_faulted()?;
    guard.fault_of(guard.current)?;
    Ok(guard)
}

/// As [`enter`], also after a fault.
fn enter_faulted() -> Result<Guard, u32> {
    let mut guard = device::guard()?;
    let context = device::current();
    if context == 0 {
        return Err(INVALID_CONTEXT);
    }
    // calls that need a context report one that was destroyed
    guard.current = guard.contexts.get(&context).map_or(0, |context| context.device);
    Ok(guard)
}

/// An out-parameter of an API function, null or valid for a write: the driver API asks that of its callers, and only they
/// make one.
#[repr(transparent)]
struct Out<T>(*mut T);

impl<T> Out<T> {
    fn write(self, value: T) -> Answer {
        // SAFETY: null or valid for a write: what an `Out` is.
        unsafe { write_out(self.0, value) }
    }

    /// For a result that the caller need not take.
    fn write_unless_null(self, value: T) {
        let _ = self.write(value); // null is no error
    }
}

/// Writes an out-parameter.
///
/// # Safety
/// `out` is null or valid for a write, as the driver API asks of its callers.
unsafe fn write_out<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so it is valid for a write: this function's contract.
    unsafe { out.write(value) };
    Ok(())
}

/// Defines API functions, proves their types against `cust_raw`, and lists them in `SYMBOLS`.
///
/// `arg: Type => Raw` takes an argument that `cust_raw` declares as a closed enum as a plain number, so that
/// a value which the bindings lack is not undefined behaviour.
macro_rules! api {
    (@raw $ty:ty) => { $ty };
    (@raw $ty:ty, $raw:ty) => { $raw };
    // functions that `cust_raw` lacks
    (newer $($(#[$doc:meta])* fn $name:ident( $($arg:ident : $ty:ty $(=> $raw:ty)?),* $(,)? ) $body:block)*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case, clippy::too_many_arguments)]
            unsafe extern "C" fn $name($($arg: $crate::api::api!(@raw $ty $(, $raw)?)),*) -> u32 {
                $crate::api::answer(|| $body)
            }
        )*
        pub(super) static SYMBOLS: &[$crate::api::Symbol] =
            &[$($crate::api::Symbol(stringify!($name), $name as *const std::ffi::c_void)),*];
    };
    ($($(#[$doc:meta])* fn $name:ident( $($arg:ident : $ty:ty $(=> $raw:ty)?),* $(,)? ) $body:block)*) => {
        $(
            const _: unsafe extern "C" fn($($ty),*) -> cust_raw::CUresult = cust_raw::$name;
            $(#[$doc])*
            #[allow(non_snake_case, clippy::too_many_arguments)]
            unsafe extern "C" fn $name($($arg: $crate::api::api!(@raw $ty $(, $raw)?)),*) -> u32 {
                $crate::api::answer(|| $body)
            }
        )*
        pub(super) static SYMBOLS: &[$crate::api::Symbol] =
            &[$($crate::api::Symbol(stringify!($name), $name as *const std::ffi::c_void)),*];
    };
}
use api;
