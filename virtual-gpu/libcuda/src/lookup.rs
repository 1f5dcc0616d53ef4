//! Which function stands for a name: versions, variants, and `cuGetProcAddress`.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::entry::{NAMES, exported};
use crate::texts;

/// The version that the library reports: the last toolkit whose compilers know sm_61.
const VERSION: c_int = 12_090;

/// A function of the virtual GPU or of this library.
pub(crate) struct Function {
    pub address: *const c_void,
    /// Whether its null stream is the thread's own.
    pub per_thread: bool,
}

/// Versions of functions that came with CUDA 11 or later and have another type or meaning than the one before. All other
/// versions are older than any client. Source: cudaTypedefs.h of CUDA 12.9 and 13.5.
#[rustfmt::skip]
const SINCE: &[(&str, c_int)] = &[
    ("cuCtxCreate_v3", 11_040), ("cuCtxCreate_v4", 12_050), ("cuCtxGetDevice_v2", 13_000), ("cuCtxSynchronize_v2", 13_000),
    ("cuDeviceGetUuid_v2", 11_040), ("cuEventElapsedTime_v2", 12_080), ("cuGetProcAddress_v2", 12_000),
    ("cuGraphAddDependencies_v2", 12_030), ("cuGraphAddKernelNode_v2", 12_000), ("cuGraphAddNode_v2", 12_030),
    ("cuGraphAddNode_v3", 13_040), ("cuGraphExecKernelNodeSetParams_v2", 12_000), ("cuGraphExecUpdate_v2", 12_000),
    ("cuGraphGetEdges_v2", 12_030), ("cuGraphKernelNodeGetParams_v2", 12_000), ("cuGraphKernelNodeSetParams_v2", 12_000),
    ("cuGraphNodeGetDependencies_v2", 12_030), ("cuGraphNodeGetDependentNodes_v2", 12_030), ("cuGraphNodeSetParams_v2", 13_040),
    ("cuGraphRemoveDependencies_v2", 12_030), ("cuLaunchHostFunc_v2", 13_010), ("cuMemAdvise_v2", 12_020),
    ("cuMemPrefetchAsync_v2", 12_020), ("cuMemcpy3DBatchAsync_v2", 13_000), ("cuMemcpyBatchAsync_v2", 13_000),
    ("cuMulticastBindAddr_v2", 13_010), ("cuMulticastBindMem_v2", 13_010), ("cuStreamBatchMemOp_v2", 11_070),
    ("cuStreamGetCaptureInfo_v2", 11_030), ("cuStreamGetCaptureInfo_v3", 12_030), ("cuStreamGetCtx_v2", 12_050),
    ("cuStreamUpdateCaptureDependencies_v2", 12_030), ("cuStreamWaitValue32_v2", 11_070), ("cuStreamWaitValue64_v2", 11_070),
    ("cuStreamWriteValue32_v2", 11_070), ("cuStreamWriteValue64_v2", 11_070),
];

/// The function that an exported name has; `None` if there is none.
pub(crate) fn function(name: &str) -> Option<Function> {
    let base = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds"));
    let plain = base.unwrap_or(name);
    // of two old versions the first took 32-bit addresses or lacked arguments; cuda.h maps its name to the second
    let second = format!("{plain}_v2");
    let is_old = SINCE.iter().all(|(late, _)| *late != second);
    let address = own(plain).or_else(|| pascaline_virtual_gpu::symbol(plain));
    let address = address.or_else(|| is_old.then(|| pascaline_virtual_gpu::symbol(&second)).flatten())?;
    Some(Function { address, per_thread: base.is_some() })
}

/// What this library itself does.
fn own(name: &str) -> Option<*const c_void> {
    Some(match name {
        "cuDriverGetVersion" => driver_version as *const c_void,
        "cuGetErrorName" => error_name as *const c_void,
        "cuGetErrorString" => error_string as *const c_void,
        "cuGetProcAddress" => proc_address as *const c_void,
        "cuGetProcAddress_v2" => proc_address_v2 as *const c_void,
        _ => return None,
    })
}

/// The number of the exported function that a program of a toolkit's version means by a documented name.
pub(crate) fn version_of(name: &str, version: c_int, per_thread: bool) -> Option<usize> {
    let name = match name {
        "cuGraphInstantiate" if version >= 12_000 => "cuGraphInstantiateWithFlags",
        name => name,
    };
    let since = |symbol: &str| SINCE.iter().find(|(late, _)| *late == symbol).map_or(0, |(_, since)| *since);
    let number = |symbol: &str| NAMES.binary_search(&symbol).ok();
    let versions = ["_v4", "_v3", "_v2", ""].map(|suffix| format!("{name}{suffix}"));
    let newest = versions.iter().find(|symbol| number(symbol).is_some() && since(symbol) <= version)?;
    let variants = ["_ptsz", "_ptds"].map(|suffix| format!("{newest}{suffix}"));
    let variant = variants.iter().find_map(|variant| number(variant)).filter(|_| per_thread);
    variant.or_else(|| number(newest))
}

const INVALID_VALUE: u32 = 1;
const NOT_FOUND: u32 = 500;
const UNKNOWN: u32 = 999;

unsafe extern "C" fn driver_version(version: *mut c_int) -> u32 {
    if version.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, so the caller's.
    unsafe { version.write(VERSION) };
    0
}

/// Writes a text of an error; null for a number that is none.
unsafe fn describe(code: u32, out: *mut *const c_char, text: fn(u32) -> &'static CStr) -> u32 {
    if out.is_null() {
        return INVALID_VALUE;
    }
    let known = code == UNKNOWN || texts::name_and_text(code).0 != texts::name_and_text(UNKNOWN).0;
    // SAFETY: not null, so the caller's.
    unsafe { out.write(if known { text(code).as_ptr() } else { std::ptr::null() }) };
    if known { 0 } else { INVALID_VALUE }
}

unsafe extern "C" fn error_name(code: u32, out: *mut *const c_char) -> u32 {
    // SAFETY: the caller's out-parameter.
    unsafe { describe(code, out, |code| texts::name_and_text(code).0) }
}

unsafe extern "C" fn error_string(code: u32, out: *mut *const c_char) -> u32 {
    // SAFETY: the caller's out-parameter.
    unsafe { describe(code, out, |code| texts::name_and_text(code).1) }
}

unsafe extern "C" fn proc_address(
    name: *const c_char,
    out: *mut *const c_void,
    version: c_int,
    flags: u64,
) -> u32 {
    // SAFETY: the caller's name and out-parameter.
    match unsafe { find(name, out, version, flags) } {
        Ok(true) => 0,
        Ok(false) => NOT_FOUND,
        Err(code) => code,
    }
}

unsafe extern "C" fn proc_address_v2(
    name: *const c_char,
    out: *mut *const c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> u32 {
    // SAFETY: the caller's name and out-parameter.
    let found = match unsafe { find(name, out, version, flags) } {
        Ok(found) => found,
        Err(code) => return code,
    };
    if !status.is_null() {
        // SAFETY: not null, so the caller's; CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND is 1.
        unsafe { status.write(!found as c_int) };
    }
    if found || !status.is_null() { 0 } else { NOT_FOUND }
}

/// Writes the address of a function, or null; says whether there is one.
unsafe fn find(
    name: *const c_char,
    out: *mut *const c_void,
    version: c_int,
    flags: u64,
) -> Result<bool, u32> {
    const PER_THREAD: u64 = 2;
    if name.is_null() || out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so the caller's NUL-terminated text.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    let index = version_of(name, version, flags & PER_THREAD != 0);
    // SAFETY: not null, so the caller's.
    unsafe { out.write(index.map_or(std::ptr::null(), exported)) };
    Ok(index.is_some())
}
