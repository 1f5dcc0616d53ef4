//! A driver library that has two devices and little else. The tests compile it and have it loaded as `libcuda.so.1`.

use std::ffi::c_int;

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: u32) -> u32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: &mut c_int) -> u32 {
    *count = 2;
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: &mut c_int, ordinal: c_int) -> u32 {
    *device = ordinal;
    0
}

/// 46, "device unavailable", is newer than cust's bindings.
#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(_context: *mut usize, _device: c_int) -> u32 {
    46
}
