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
mod exposed;
mod foreign;
mod graph;
mod launch;
mod module;
pub(crate) mod nccl;
pub mod occupancy;
mod packed;
mod parameters;
mod planned;
mod stream;
mod typed;
#[cfg(all(test, feature = "virtual-gpu"))]
mod typed_tests;

pub use archive::{PTX_ORIGIN, ptx, ptx_compressed_bytes, ptx_modules, ptx_of};
pub use compiling::on_slow_compilation;
pub use cuda_std::{DevicePtr, DevicePtrMut, KernelInfo, KernelParams, KernelSpec};
pub(crate) use device::WITHOUT_VIRTUAL_GPU;
pub use device::{CudaDevice, Properties, driver_version, forget_current};
pub use event::Event;
pub(crate) use exposed::{conceal, expose};
#[doc(hidden)]
pub use foreign::Argument;
pub use foreign::{Function, LaunchArgument, PtxModule};
pub use graph::Graph;
pub use launch::trace;
pub use module::Loaded;
pub use parameters::Kind;
pub use planned::PlannedGpu;
pub(crate) use planned::{Planning, count_host_bytes, refused};
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

/// Codes after which the context is unusable: faults of a kernel, time-outs, ECC, a device that fell off the bus. Names are those
/// of `CUresult`; cust's enum lacks some of them.
mod sticky {
    pub const DEINITIALIZED: u32 = 4;
    pub const DEVICE_UNAVAILABLE: u32 = 46;
    pub const ECC_UNCORRECTABLE: u32 = 214;
    pub const INVALID_GRAPHICS_CONTEXT: u32 = 219;
    pub const NVLINK_UNCORRECTABLE: u32 = 220;
    pub const CONTAINED: u32 = 226;
    pub const ILLEGAL_ADDRESS: u32 = 700;
    pub const LAUNCH_TIMEOUT: u32 = 702;
    pub const CONTEXT_IS_DESTROYED: u32 = 709;
    pub const ASSERT: u32 = 710;
    pub const HARDWARE_STACK_ERROR: u32 = 714;
    pub const ILLEGAL_INSTRUCTION: u32 = 715;
    pub const MISALIGNED_ADDRESS: u32 = 716;
    pub const INVALID_ADDRESS_SPACE: u32 = 717;
    pub const INVALID_PC: u32 = 718;
    pub const LAUNCH_FAILED: u32 = 719;
}

fn is_sticky(code: u32) -> bool {
    use sticky::*;
    matches!(
        code,
        DEINITIALIZED
            | DEVICE_UNAVAILABLE
            | ECC_UNCORRECTABLE
            | INVALID_GRAPHICS_CONTEXT
            | NVLINK_UNCORRECTABLE
            | CONTAINED
            | ILLEGAL_ADDRESS
            | LAUNCH_TIMEOUT
            | CONTEXT_IS_DESTROYED
            | ASSERT
            | HARDWARE_STACK_ERROR
            | ILLEGAL_INSTRUCTION
            | MISALIGNED_ADDRESS
            | INVALID_ADDRESS_SPACE
            | INVALID_PC
            | LAUNCH_FAILED
    )
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
    if planned::is_any() || ordinal.is_some_and(planned::is_planned) {
        return planned::check(ordinal, call);
    }
    let Some(&(first, code)) = faults_of(ordinal).iter().find_map(OnceLock::get) else { return Ok(()) };
    let text = format!("{}; {call} was not tried after it", driver::code_text(code));
    Err(Error::DeviceLost { call: first, code, text })
}
