//! The CUDA driver through cust: device, stream, event, module, launch. Knows no op.
//!
//! Only this folder and `memory` use cust. cust's own wrappers are used for initialisation, devices and the primary context.
//! Streams, events, modules and memory have types of our own over `cust::sys`, because cust removes `NON_BLOCKING` from
//! streams, returns no JIT error log, and frees memory synchronously on drop.

mod archive;
mod compiling;
mod counters;
mod device;
mod event;
mod foreign;
mod graph;
mod launch;
mod module;
pub(crate) mod nccl;
pub mod occupancy;
mod packed;
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

/// The first fault of each device: the call that reported it, and its code. No further call is made for that device. All
/// devices past the last entry share it.
static FAULTS: [OnceLock<(&'static str, u32)>; 64] = [const { OnceLock::new() }; 64];

/// Whether a GPU has faulted in this process.
pub fn is_lost() -> bool {
    FAULTS.iter().any(|fault| fault.get().is_some())
}

/// The fault of a device, by its ordinal; the faults of all devices if the ordinal is not known.
fn faults_of(ordinal: Option<u32>) -> &'static [OnceLock<(&'static str, u32)>] {
    let last = FAULTS.len() - 1;
    match ordinal.map(|ordinal| (ordinal as usize).min(last)) {
        Some(at) => &FAULTS[at..=at],
        None => &FAULTS,
    }
}

/// Codes after which the context is unusable: faults of a kernel, time-outs, ECC, a device that fell off the bus.
fn is_sticky(code: u32) -> bool {
    matches!(code, 4 | 46 | 214 | 219 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719)
}

/// Converts the result of a call for the current device, with the raw code, which cust's enum may lack.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<()> {
    check_on(device::current(), call, result)
}

/// As [`check`], for the device of this ordinal.
pub(crate) fn check_on(ordinal: Option<u32>, call: &'static str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let code = match driver::last_raw_code() {
        0 => result as u32,
        raw => raw,
    };
    Err(failure_on(ordinal, call, code))
}

/// The error of a call for the current device that returned this code. A fault of the device is recorded.
pub(crate) fn failure(call: &'static str, code: u32) -> Error {
    failure_on(device::current(), call, code)
}

fn failure_on(ordinal: Option<u32>, call: &'static str, code: u32) -> Error {
    let text = driver::code_text(code).to_owned();
    if is_sticky(code) {
        for fault in faults_of(ordinal) {
            fault.get_or_init(|| (call, code));
        }
        return Error::DeviceLost { call, code, text };
    }
    Error::Driver { call, code, text }
}

/// Fails with the first fault if the current device has faulted, so that no further call reaches it.
pub(crate) fn ensure_alive(call: &'static str) -> Result<()> {
    alive_on(device::current(), call)
}

/// As [`ensure_alive`], for the device of this ordinal.
pub(crate) fn alive_on(ordinal: Option<u32>, call: &'static str) -> Result<()> {
    let Some(&(first, code)) = faults_of(ordinal).iter().find_map(OnceLock::get) else { return Ok(()) };
    let text = format!("{}; {call} was not tried after it", driver::code_text(code));
    Err(Error::DeviceLost { call: first, code, text })
}
