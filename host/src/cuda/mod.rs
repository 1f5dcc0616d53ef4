//! The CUDA driver through cust: device, stream, event, module, launch. Knows no op.
//!
//! Only this folder and `memory` use cust. cust's own wrappers serve initialisation, devices and the primary context.
//! Streams, events, modules and memory are types of our own over `cust::sys`, because cust strips `NON_BLOCKING` from
//! streams, has no JIT error log, and frees memory synchronously on drop.

mod archive;
mod compiling;
mod counters;
mod device;
mod event;
mod foreign;
mod graph;
mod launch;
mod module;
pub mod occupancy;
mod stream;

pub use archive::{PTX_ORIGIN, ptx, ptx_compressed_bytes, ptx_modules, ptx_of};
pub use compiling::on_slow_compilation;
pub(crate) use device::WITHOUT_VIRTUAL_GPU;
pub use device::{CudaDevice, Properties, driver_version, forget_current};
pub use event::Event;
pub use foreign::{Function, PtxModule};
pub use graph::Graph;
pub use launch::trace;
pub use module::Loaded;
pub(crate) use stream::COUNTERS;
pub(crate) use stream::Kept;
pub use stream::Stream;

use crate::{Error, Result};
use cust::sys::CUresult;
use pascaline_driver as driver;
use std::sync::OnceLock;

/// The first device fault: the call that reported it, and its code. No driver call follows it.
static FAULT: OnceLock<(&'static str, u32)> = OnceLock::new();

/// Whether the GPU has faulted in this process.
pub fn is_lost() -> bool {
    FAULT.get().is_some()
}

/// Codes after which the context is unusable: faults of a kernel, time-outs, ECC, a device that fell off the bus.
fn is_sticky(code: u32) -> bool {
    matches!(code, 4 | 46 | 214 | 219 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719)
}

/// Converts a driver result, with the raw code that cust's enum may lack.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let code = match driver::last_raw_code() {
        0 => result as u32,
        raw => raw,
    };
    Err(failure(call, code))
}

/// The error of a call that has answered this code. A fault of the device is remembered.
pub(crate) fn failure(call: &'static str, code: u32) -> Error {
    let text = driver::code_text(code).to_owned();
    if is_sticky(code) {
        FAULT.get_or_init(|| (call, code));
        return Error::DeviceLost { call, code, text };
    }
    Error::Driver { call, code, text }
}

/// Fails with the first fault if the device has faulted, so that no further call reaches it.
pub(crate) fn ensure_alive(call: &'static str) -> Result<()> {
    let Some(&(first, code)) = FAULT.get() else { return Ok(()) };
    let text = format!("{}; {call} was not tried after it", driver::code_text(code));
    Err(Error::DeviceLost { call: first, code, text })
}
