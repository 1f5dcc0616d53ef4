//! Functions of the driver API that Pascaline does not call and other programs do.

use crate::common::{call, code, driver};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::MutexGuard;

use pascaline_virtual_gpu::{Config, null_stream_is_per_thread};

fn device() -> MutexGuard<'static, ()> {
    let turn = driver(Config::default());
    let mut context: *mut c_void = null_mut();
    call!("cuCtxCreate_v2", (*mut *mut c_void, c_uint, c_int), &mut context, 0, 0);
    turn
}

const HEADER: &str = ".version 6.4\n.target sm_61\n.address_size 64\n";
/// x[0] = twice(n)
const CALLER: &str = ".extern .func (.param .u32 r) twice(.param .u32 n);
.visible .entry store(.param .u64 x, .param .u32 n) {
.reg .b64 %rd<2>; .reg .b32 %r<3>;
ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [n];
{ .param .u32 p; .param .u32 q; st.param.u32 [p], %r1; call (q), twice, (p); ld.param.u32 %r2, [q]; }
st.global.u32 [%rd1], %r2;
ret;
}
";
const CALLEE: &str = ".visible .func (.param .u32 r) twice(.param .u32 n) {
.reg .b32 %r<2>;
ld.param.u32 %r1, [n]; add.u32 %r1, %r1, %r1; st.param.u32 [r], %r1;
ret;
}
";

/// Two texts, linked: the image.
fn linked() -> *mut c_void {
    let (mut linker, mut image, mut bytes) = (null_mut::<c_void>(), null_mut::<c_void>(), 0usize);
    let none = null_mut::<c_void>();
    call!(
        "cuLinkCreate_v2",
        (c_uint, *mut c_void, *mut c_void, *mut *mut c_void),
        0,
        none,
        none,
        &mut linker
    );
    for text in [CALLER, CALLEE] {
        let text = format!("{HEADER}{text}");
        call!(
            "cuLinkAddData_v2",
            (*mut c_void, c_int, *const u8, usize, *const c_char, c_uint, *mut c_void, *mut c_void),
            linker,
            1,
            text.as_ptr(),
            text.len(),
            null(),
            0,
            none,
            none
        );
    }
    call!("cuLinkComplete", (*mut c_void, *mut *mut c_void, *mut usize), linker, &mut image, &mut bytes);
    assert!(bytes > CALLER.len());
    image // the linker lives as long as the test
}

#[test]
fn texts_are_linked_and_loaded_as_a_library_whose_kernel_is_launched() {
    let _turn = device();
    let (mut library, mut kernel) = (null_mut::<c_void>(), null_mut::<c_void>());
    let none = null_mut::<c_void>();
    call!(
        "cuLibraryLoadData",
        (*mut *mut c_void, *mut c_void, *mut c_void, *mut c_void, c_uint, *mut c_void, *mut c_void, c_uint),
        &mut library,
        linked(),
        none,
        none,
        0,
        none,
        none,
        0
    );
    let name = CString::new("store").unwrap();
    call!(
        "cuLibraryGetKernel",
        (*mut *mut c_void, *mut c_void, *const c_char),
        &mut kernel,
        library,
        name.as_ptr()
    );
    let mut threads = 0;
    call!("cuKernelGetAttribute", (*mut c_int, c_int, *mut c_void, c_int), &mut threads, 0, kernel, 0);
    assert_eq!(threads, 1024);
    let mut x = 0u64;
    call!("cuMemAllocManaged", (*mut u64, usize, c_uint), &mut x, 4, 1);
    let mut n = 21u32;
    let mut parameters = [(&raw mut x).cast::<c_void>(), (&raw mut n).cast()];
    // grid, block, shared memory, stream, attributes and their number
    let config: [u64; 7] = [1 << 32 | 1, 1 << 32 | 1, 1 << 32 | 1, 0, 0, 0, 0];
    call!(
        "cuLaunchKernelEx",
        (*const u64, *mut c_void, *mut *mut c_void, *mut c_void),
        config.as_ptr(),
        kernel,
        parameters.as_mut_ptr(),
        none
    );
    call!("cuCtxSynchronize", (),);
    // SAFETY: managed memory is the host's, and the device has finished.
    assert_eq!(unsafe { (x as *const u32).read() }, 42);
    call!("cuMemFree_v2", (u64), x);
    call!("cuLibraryUnload", (*mut c_void), library);
    assert_eq!(code!("cuLibraryUnload", (*mut c_void), library), 400, "a stale handle");
}

#[test]
fn machine_code_is_refused() {
    let _turn = device();
    let mut module = null_mut::<c_void>();
    let cubin = b"\x7fELF\x02\x01\x01\0";
    assert_eq!(code!("cuModuleLoadData", (*mut *mut c_void, *const u8), &mut module, cubin.as_ptr()), 209);
}

#[test]
fn a_volume_is_copied_slice_by_slice() {
    let _turn = device();
    let (mut at, mut pitch) = (0u64, 0usize);
    call!("cuMemAllocPitch_v2", (*mut u64, *mut usize, usize, usize, c_uint), &mut at, &mut pitch, 6, 4, 4);
    assert_eq!(pitch, 512);
    call!("cuMemsetD2D8_v2", (u64, usize, u8, usize, usize), at, pitch, 7, 6, 4);
    let (from, mut to): (Vec<u8>, _) = ((0..12).collect(), [0u8; 24]);
    // two slices of two rows of three bytes, to the second byte of each row and back with the bytes around them
    let mut nothing = std::mem::MaybeUninit::<cust_raw::CUDA_MEMCPY3D>::zeroed();
    assert_eq!(
        code!("cuMemcpy3D_v2", (*const cust_raw::CUDA_MEMCPY3D), nothing.as_ptr()),
        1,
        "no type of memory"
    );
    // SAFETY: types of memory are the only fields of which zero is no value.
    let mut copy = unsafe {
        (*nothing.as_mut_ptr()).srcMemoryType = cust_raw::CUmemorytype::CU_MEMORYTYPE_HOST;
        (*nothing.as_mut_ptr()).dstMemoryType = cust_raw::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        nothing.assume_init()
    };
    (copy.srcHost, copy.dstDevice, copy.dstXInBytes) = (from.as_ptr().cast(), at, 1);
    (copy.srcPitch, copy.srcHeight, copy.dstPitch, copy.dstHeight) = (3, 2, pitch, 2);
    (copy.WidthInBytes, copy.Height, copy.Depth) = (3, 2, 2);
    call!("cuMemcpy3D_v2", (*const cust_raw::CUDA_MEMCPY3D), &copy);
    let mut nothing = std::mem::MaybeUninit::<cust_raw::CUDA_MEMCPY2D>::zeroed();
    // SAFETY: types of memory, which are set here, are the only fields of which zero is no value.
    let mut back = unsafe {
        (*nothing.as_mut_ptr()).srcMemoryType = cust_raw::CUmemorytype::CU_MEMORYTYPE_UNIFIED;
        (*nothing.as_mut_ptr()).dstMemoryType = cust_raw::CUmemorytype::CU_MEMORYTYPE_HOST;
        nothing.assume_init()
    };
    (back.srcDevice, back.srcPitch, back.dstHost) = (at, pitch, to.as_mut_ptr().cast());
    (back.dstPitch, back.WidthInBytes, back.Height) = (6, 6, 4);
    call!("cuMemcpy2D_v2", (*const cust_raw::CUDA_MEMCPY2D), &back);
    let expected: Vec<u8> = from.chunks(3).flat_map(|row| [&[7], row, &[7, 7]].concat()).collect();
    assert_eq!(to.as_slice(), expected);
}

#[test]
fn a_threads_own_stream_is_apart_from_others() {
    let _turn = device();
    let id = |stream: u64| {
        let mut id = 0u64;
        call!("cuStreamGetId", (u64, *mut u64), stream, &mut id);
        id
    };
    let (legacy, own) = (id(1), id(2));
    assert_eq!(id(0), legacy);
    null_stream_is_per_thread();
    assert_eq!(id(0), own);
    assert_eq!(id(0), legacy, "it holds for one call");
    assert_ne!(own, legacy);
    let context = {
        let mut context = 0u64;
        call!("cuCtxGetCurrent", (*mut u64), &mut context);
        context
    };
    let other = std::thread::spawn(move || {
        call!("cuCtxSetCurrent", (u64), context);
        let mut id = 0u64;
        call!("cuStreamGetId", (u64, *mut u64), 2, &mut id);
        id
    });
    assert_ne!(other.join().unwrap(), own);
    assert_eq!(code!("cuStreamDestroy_v2", (u64), 2), 400);
}

#[test]
fn memory_of_the_host_is_set_when_the_call_returns() {
    let _turn = device();
    let mut p = null_mut::<u8>();
    call!("cuMemAllocHost_v2", (*mut *mut u8, usize), &mut p, 16);
    call!("cuMemsetD8_v2", (*mut u8, u8, usize), p, 9, 16);
    // SAFETY: 16 bytes of page-locked memory, which no queued work touches.
    assert_eq!(unsafe { std::slice::from_raw_parts(p, 16) }, [9; 16]);
}
