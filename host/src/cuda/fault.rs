//! What calls of the driver answer: errors, and the faults after which a device gets no further call.

use super::current::current;
use super::planned;
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
    check_on(current(), call, result)
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
    failure_on(current(), call, code)
}

pub(super) fn failure_on(ordinal: Option<u32>, call: &'static str, code: u32) -> Error {
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
    alive_on(current(), call)
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
