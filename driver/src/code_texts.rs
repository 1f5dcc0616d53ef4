//! Result codes: their names and texts, and the mapping onto the closed enum of `cust_raw`. Numbers and names are those of cuda.h
//! (CUDA 11.4 to 13.x); the texts are ours. The virtual GPU's libcuda has this file too.

use std::ffi::CStr;

use cust_raw::CUresult;

pub(crate) fn name_and_text(code: u32) -> (&'static CStr, &'static CStr) {
    match TEXTS.iter().find(|entry| entry.0 == code) {
        Some(&(_, name, text)) => (name, text),
        None => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
    }
}

/// `text`, which ends in NUL, as a C string; anything else fails the build.
const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the text has a NUL inside or none at its end"),
    }
}

macro_rules! codes {
    (known { $($code:literal $name:ident $text:literal;)* } newer { $($new:literal $new_name:ident $new_text:literal;)* }) => {
        $(const _: () = assert!(CUresult::$name as u32 == $code);)*

        /// The enum's value for `code`, where `cust_raw` has one.
        pub(crate) fn known(code: u32) -> Option<CUresult> {
            match code {
                $($code => Some(CUresult::$name),)*
                _ => None,
            }
        }

        static TEXTS: &[(u32, &CStr, &CStr)] = &[
            $(($code, c_str(concat!(stringify!($name), "\0")), c_str(concat!($text, "\0"))),)*
            $(($new, c_str(concat!(stringify!($new_name), "\0")), c_str(concat!($new_text, "\0"))),)*
        ];
    };
}

codes! {
    known {
        0 CUDA_SUCCESS "no error";
        1 CUDA_ERROR_INVALID_VALUE "an argument is out of range or a null pointer";
        2 CUDA_ERROR_OUT_OF_MEMORY "out of memory";
        3 CUDA_ERROR_NOT_INITIALIZED "the driver has not been initialised";
        4 CUDA_ERROR_DEINITIALIZED "the driver is shutting down";
        5 CUDA_ERROR_PROFILER_DISABLED "the profiler is disabled for this run";
        6 CUDA_ERROR_PROFILER_NOT_INITIALIZED "the profiler has not been initialised";
        7 CUDA_ERROR_PROFILER_ALREADY_STARTED "the profiler is running already";
        8 CUDA_ERROR_PROFILER_ALREADY_STOPPED "the profiler is stopped already";
        34 CUDA_ERROR_STUB_LIBRARY "a toolkit's stub was loaded in place of the driver library";
        100 CUDA_ERROR_NO_DEVICE "no CUDA device, or no driver library, was found";
        101 CUDA_ERROR_INVALID_DEVICE "no device has this number";
        102 CUDA_ERROR_DEVICE_NOT_LICENSED "the device has no licence (vGPU)";
        200 CUDA_ERROR_INVALID_IMAGE "the device code is not a valid image";
        201 CUDA_ERROR_INVALID_CONTEXT "no valid context is current";
        202 CUDA_ERROR_CONTEXT_ALREADY_CURRENT "the context is current already";
        205 CUDA_ERROR_MAP_FAILED "a resource could not be mapped";
        206 CUDA_ERROR_UNMAP_FAILED "a resource could not be unmapped";
        207 CUDA_ERROR_ARRAY_IS_MAPPED "the array is mapped and cannot be destroyed";
        208 CUDA_ERROR_ALREADY_MAPPED "the resource is mapped already";
        209 CUDA_ERROR_NO_BINARY_FOR_GPU "the image holds no code for this GPU";
        210 CUDA_ERROR_ALREADY_ACQUIRED "the resource is acquired already";
        211 CUDA_ERROR_NOT_MAPPED "the resource is not mapped";
        212 CUDA_ERROR_NOT_MAPPED_AS_ARRAY "the resource is not mapped as an array";
        213 CUDA_ERROR_NOT_MAPPED_AS_POINTER "the resource is not mapped as a pointer";
        214 CUDA_ERROR_ECC_UNCORRECTABLE "an uncorrectable memory (ECC) error";
        215 CUDA_ERROR_UNSUPPORTED_LIMIT "the device does not support this limit";
        216 CUDA_ERROR_CONTEXT_ALREADY_IN_USE "the context is bound to another thread";
        217 CUDA_ERROR_PEER_ACCESS_UNSUPPORTED "the devices cannot access each other's memory";
        218 CUDA_ERROR_INVALID_PTX "the PTX could not be compiled";
        219 CUDA_ERROR_INVALID_GRAPHICS_CONTEXT "the graphics context is invalid";
        220 CUDA_ERROR_NVLINK_UNCORRECTABLE "an uncorrectable NVLink error";
        221 CUDA_ERROR_JIT_COMPILER_NOT_FOUND "the driver's PTX compiler library was not found";
        222 CUDA_ERROR_UNSUPPORTED_PTX_VERSION "the PTX is of a newer version than the driver reads";
        223 CUDA_ERROR_JIT_COMPILATION_DISABLED "compiling PTX is disabled";
        224 CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY "the execution affinity is not supported";
        300 CUDA_ERROR_INVALID_SOURCE "the device code's source is invalid";
        301 CUDA_ERROR_FILE_NOT_FOUND "the file was not found";
        302 CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND "a shared library lacks a symbol";
        303 CUDA_ERROR_SHARED_OBJECT_INIT_FAILED "a shared library could not be initialised";
        304 CUDA_ERROR_OPERATING_SYSTEM "a call to the operating system failed";
        400 CUDA_ERROR_INVALID_HANDLE "a handle (stream, event, module, ...) is not valid";
        401 CUDA_ERROR_ILLEGAL_STATE "a resource is in the wrong state for this call";
        500 CUDA_ERROR_NOT_FOUND "a name (kernel, variable, texture) was not found";
        600 CUDA_ERROR_NOT_READY "the work queued has not finished yet";
        700 CUDA_ERROR_ILLEGAL_ADDRESS "a kernel accessed an illegal address";
        701 CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES "the launch needs more registers, threads or shared memory than there are";
        702 CUDA_ERROR_LAUNCH_TIMEOUT "a kernel ran past the display watchdog's limit";
        703 CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING "the launch uses an incompatible texturing mode";
        704 CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED "peer access is enabled already";
        705 CUDA_ERROR_PEER_ACCESS_NOT_ENABLED "peer access is not enabled";
        708 CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE "the device's primary context is initialised already";
        709 CUDA_ERROR_CONTEXT_IS_DESTROYED "the current context has been destroyed";
        710 CUDA_ERROR_ASSERT "a device-side assertion failed";
        711 CUDA_ERROR_TOO_MANY_PEERS "no room for another peer mapping";
        712 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED "the host memory is registered already";
        713 CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED "the host memory is not registered";
        714 CUDA_ERROR_HARDWARE_STACK_ERROR "a fault in a kernel's call stack";
        715 CUDA_ERROR_ILLEGAL_INSTRUCTION "a kernel met an illegal instruction";
        716 CUDA_ERROR_MISALIGNED_ADDRESS "a kernel accessed a misaligned address";
        717 CUDA_ERROR_INVALID_ADDRESS_SPACE "a kernel used an address of the wrong state space";
        718 CUDA_ERROR_INVALID_PC "a kernel's program counter left its code";
        719 CUDA_ERROR_LAUNCH_FAILED "a kernel failed while running";
        720 CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE "the cooperative grid does not fit on the device at once";
        800 CUDA_ERROR_NOT_PERMITTED "the operation is not permitted";
        801 CUDA_ERROR_NOT_SUPPORTED "the driver or device does not support this";
        802 CUDA_ERROR_SYSTEM_NOT_READY "the system is not ready for CUDA work";
        803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH "the driver library and the kernel module have different versions";
        804 CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE "the forward-compatibility driver does not support this device";
        805 CUDA_ERROR_MPS_CONNECTION_FAILED "the MPS server could not be reached";
        806 CUDA_ERROR_MPS_RPC_FAILURE "a call between MPS client and server failed";
        807 CUDA_ERROR_MPS_SERVER_NOT_READY "the MPS server takes no new clients now";
        808 CUDA_ERROR_MPS_MAX_CLIENTS_REACHED "the MPS server has no room for another client";
        809 CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED "the MPS server has no room for another connection";
        900 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED "the operation is not allowed while a stream captures";
        901 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED "an earlier error invalidated the capture";
        902 CUDA_ERROR_STREAM_CAPTURE_MERGE "the operation would join two captures";
        903 CUDA_ERROR_STREAM_CAPTURE_UNMATCHED "the capture did not begin in this stream";
        904 CUDA_ERROR_STREAM_CAPTURE_UNJOINED "a stream forked by the capture was not joined again";
        905 CUDA_ERROR_STREAM_CAPTURE_ISOLATION "a dependency would leave the capture";
        906 CUDA_ERROR_STREAM_CAPTURE_IMPLICIT "the legacy stream is not allowed to join the capture";
        907 CUDA_ERROR_CAPTURED_EVENT "the event was last recorded in a capture";
        908 CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD "the capture was begun by another thread";
        909 CUDA_ERROR_TIMEOUT "a wait ran past its time limit";
        910 CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE "the graph's structure differs from the one to update";
        911 CUDA_ERROR_EXTERNAL_DEVICE "a device outside CUDA reported an error";
        999 CUDA_ERROR_UNKNOWN "unknown error";
    }
    newer {
        36 CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER "the call needs a newer driver";
        46 CUDA_ERROR_DEVICE_UNAVAILABLE "the device is busy or held exclusively by another process";
        225 CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC "the PTX synchronises on the device, which is not supported";
        226 CUDA_ERROR_CONTAINED "a hardware fault was contained; the process must restart";
        402 CUDA_ERROR_LOSSY_QUERY "the answer would have to leave something out";
        721 CUDA_ERROR_TENSOR_MEMORY_LEAK "a kernel ended without freeing its tensor memory";
        810 CUDA_ERROR_MPS_CLIENT_TERMINATED "the MPS server ended this client";
        811 CUDA_ERROR_CDP_NOT_SUPPORTED "the code uses dynamic parallelism, which is not supported";
        812 CUDA_ERROR_CDP_VERSION_MISMATCH "the code mixes versions of dynamic parallelism";
        912 CUDA_ERROR_INVALID_CLUSTER_SIZE "the cluster size is not valid for this launch";
        913 CUDA_ERROR_FUNCTION_NOT_LOADED "the function has not been loaded";
        914 CUDA_ERROR_INVALID_RESOURCE_TYPE "a resource is of the wrong type";
        915 CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION "a resource is too small or of the wrong configuration";
        916 CUDA_ERROR_KEY_ROTATION "a fault while keys were rotated";
        917 CUDA_ERROR_STREAM_DETACHED "the stream's green context is gone";
        918 CUDA_ERROR_GRAPH_RECAPTURE_FAILURE "capturing the graph again failed";
    }
}
