//! The `CUresult` values that the functions return.

use crate::memory::MemoryError;

pub(super) const INVALID_VALUE: u32 = 1;
pub(super) const OUT_OF_MEMORY: u32 = 2;
pub(super) const NOT_INITIALIZED: u32 = 3;
pub(super) const INVALID_DEVICE: u32 = 101;
pub(super) const INVALID_CONTEXT: u32 = 201;
pub(super) const UNSUPPORTED_LIMIT: u32 = 215;
pub(super) const PEER_ACCESS_UNSUPPORTED: u32 = 217;
pub(super) const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
pub(super) const PEER_ACCESS_NOT_ENABLED: u32 = 705;
pub(super) const NO_BINARY_FOR_GPU: u32 = 209;
pub(super) const INVALID_PTX: u32 = 218;
pub(super) const FILE_NOT_FOUND: u32 = 301;
pub(super) const INVALID_HANDLE: u32 = 400;
pub(super) const NOT_FOUND: u32 = 500;
pub(super) const NOT_READY: u32 = 600;
pub(super) const LAUNCH_TIMEOUT: u32 = 702;
pub(super) const HOST_MEMORY_ALREADY_REGISTERED: u32 = 712;
pub(super) const HOST_MEMORY_NOT_REGISTERED: u32 = 713;
pub(super) const COOPERATIVE_LAUNCH_TOO_LARGE: u32 = 720;
pub(super) const NOT_SUPPORTED: u32 = 801;
pub(super) const STREAM_CAPTURE_UNSUPPORTED: u32 = 900;
pub(super) const STREAM_CAPTURE_INVALIDATED: u32 = 901;
pub(super) const STREAM_CAPTURE_UNMATCHED: u32 = 903;
pub(super) const STREAM_CAPTURE_UNJOINED: u32 = 904;
pub(super) const STREAM_CAPTURE_ISOLATION: u32 = 905;
pub(super) const STREAM_CAPTURE_IMPLICIT: u32 = 906;
pub(super) const CAPTURED_EVENT: u32 = 907;
pub(super) const UNKNOWN: u32 = 999;

/// The result of an API function's body.
pub(super) type Answer = Result<(), u32>;

pub(super) fn memory_code(e: MemoryError) -> u32 {
    match e {
        MemoryError::OutOfMemory => OUT_OF_MEMORY,
        _ => INVALID_VALUE,
    }
}
