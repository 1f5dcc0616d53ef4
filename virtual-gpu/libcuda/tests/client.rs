//! A program that is not ours: it opens the library by its file and calls it by its C interface.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};

use libloading::Library;

/// The function `name` of the library as a function of these types.
macro_rules! function {
    ($library:ident, $name:expr, ($($ty:ty),*)) => {
        // SAFETY: the types are those of cuda.h.
        unsafe { $library.get::<unsafe extern "C" fn($($ty),*) -> u32>($name).expect("it is exported") }
    };
}

/// Calls a function and asserts its result.
macro_rules! call {
    ($library:ident, $name:expr, ($($ty:ty),*), ($($argument:expr),*)) => { call!($library, $name, ($($ty),*), ($($argument),*), 0) };
    ($library:ident, $name:expr, ($($ty:ty),*), ($($argument:expr),*), $code:literal) => {{
        let f = function!($library, $name, ($($ty),*));
        // SAFETY: the arguments are valid for the call.
        let code = unsafe { f($($argument),*) };
        assert_eq!(code, $code, "{}", String::from_utf8_lossy($name));
    }};
}

/// out[i] = i, without a check of i.
const PTX: &str = ".version 6.4\n.target sm_61\n.address_size 64
.visible .entry store(.param .u64 out) {
.reg .b64 %rd<3>; .reg .b32 %r<4>;
ld.param.u64 %rd1, [out];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd1, %rd2;
st.global.u32 [%rd2], %r1;
ret;
}
";

/// The library, which cargo has built with this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this test's path");
    test.with_file_name("libpascaline_virtual_driver.so")
}

/// out[i] = the texture at i + 0.75, between two texels.
const SAMPLE: &str = ".version 6.4\n.target sm_61\n.address_size 64
.visible .entry sample(.param .u64 out, .param .u64 texture) {
.reg .b64 %rd<4>; .reg .b32 %r<2>; .reg .f32 %f<6>;
ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [texture];
mov.u32 %r1, %tid.x; cvt.rn.f32.u32 %f1, %r1; add.f32 %f1, %f1, 0f3F400000;
tex.1d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%rd2, {%f1}];
mul.wide.u32 %rd3, %r1, 4; add.u64 %rd3, %rd1, %rd3;
st.global.f32 [%rd3], %f2;
ret;
}
";

/// `CUDA_RESOURCE_DESC`, `CUDA_TEXTURE_DESC`
#[repr(C)]
struct Resource(c_int, [u64; 16], c_uint);
#[repr(C)]
struct Sampling([c_int; 4], [c_uint; 3], [f32; 7], [c_int; 12]);

/// A module's kernel.
fn kernel(cuda: &Library, ptx: &str, name: &str) -> *mut c_void {
    let (mut module, mut kernel) = (null_mut::<c_void>(), null_mut::<c_void>());
    let (ptx, name) = (CString::new(ptx).expect("no NUL"), CString::new(name).expect("no NUL"));
    call!(cuda, b"cuModuleLoadData", (*mut *mut c_void, *const c_char), (&mut module, ptx.as_ptr()));
    call!(
        cuda,
        b"cuModuleGetFunction",
        (*mut *mut c_void, *mut c_void, *const c_char),
        (&mut kernel, module, name.as_ptr())
    );
    kernel
}

/// Launches blocks of threads on the null stream: eleven arguments, five of them on the stack.
fn launch(
    cuda: &Library,
    entry: &[u8],
    kernel: *mut c_void,
    [blocks, threads]: [c_uint; 2],
    parameters: &mut [*mut c_void],
) {
    call!(
        cuda,
        entry,
        (
            *mut c_void,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            *mut c_void,
            *mut *mut c_void,
            *mut c_void
        ),
        (kernel, blocks, 1, 1, threads, 1, 1, 0, null_mut(), parameters.as_mut_ptr(), null_mut())
    );
}

/// An array under the names that a program of cuda.h links to, and a kernel that filters it.
fn sample_a_texture(cuda: &Library) {
    let values = [10f32, 20.0, 40.0, 80.0];
    let (mut array, mut texture, mut out) = (0u64, 0u64, 0u64);
    let descriptor: (usize, usize, c_int, c_uint) = (4, 0, 32, 1);
    type Descriptor = (usize, usize, c_int, c_uint);
    call!(cuda, b"cuArrayCreate_v2", (*mut u64, *const Descriptor), (&mut array, &descriptor));
    call!(
        cuda,
        b"cuMemcpyHtoA_v2_ptds",
        (u64, usize, *const f32, usize),
        (array, 0, values.as_ptr(), size_of_val(&values))
    );
    let mut union = [0; 16];
    union[0] = array;
    // clamp, linear
    let (resource, sampling) = (Resource(0, union, 0), Sampling([1, 1, 1, 1], [0; 3], [0.0; 7], [0; 12]));
    call!(
        cuda,
        b"cuTexObjectCreate",
        (*mut u64, *const Resource, *const Sampling, *const c_void),
        (&mut texture, &resource, &sampling, null())
    );
    call!(cuda, b"cuMemAlloc_v2", (*mut u64, usize), (&mut out, 4 * 4));
    let kernel = kernel(cuda, SAMPLE, "sample");
    let mut parameters = [(&raw mut out).cast::<c_void>(), (&raw mut texture).cast()];
    launch(cuda, b"cuLaunchKernel", kernel, [1, 4], &mut parameters);
    let mut found = [0f32; 4];
    call!(cuda, b"cuMemcpyDtoH_v2", (*mut f32, u64, usize), (found.as_mut_ptr(), out, 4 * 4));
    assert_eq!(found, [12.5, 25.0, 50.0, 80.0]);
    call!(cuda, b"cuTexObjectDestroy", (u64), (texture));
    call!(cuda, b"cuArrayDestroy", (u64), (array));
}

#[test]
fn a_foreign_program_runs_and_is_reported_on() {
    let folder = tempfile::tempdir().expect("a folder");
    // SAFETY: the only test of this process, so no other thread reads the environment.
    unsafe { std::env::set_var("PASCALINE_VIRTUAL_REPORT", folder.path()) };
    // SAFETY: it runs no code that needs more than this process gives.
    let cuda = unsafe { Library::new(library()) }.expect("it loads");

    let (mut version, mut context) = (0, null_mut::<c_void>());
    call!(cuda, b"cuDriverGetVersion", (*mut c_int), (&mut version));
    assert_eq!(version, 12_090);
    call!(cuda, b"cuInit", (c_uint), (0));
    call!(cuda, b"cuCtxCreate", (*mut *mut c_void, c_uint, c_int), (&mut context, 0, 0));

    // by cuGetProcAddress, as the CUDA runtime does
    let (mut allocate, mut status) = (null::<c_void>(), -1);
    let name = CString::new("cuMemAlloc").expect("no NUL");
    call!(
        cuda,
        b"cuGetProcAddress_v2",
        (*const c_char, *mut *const c_void, c_int, u64, *mut c_int),
        (name.as_ptr(), &mut allocate, 12_000, 0, &mut status)
    );
    assert!(!allocate.is_null() && status == 0);
    // SAFETY: the address of cuMemAlloc_v2, whose type this is.
    let allocate: unsafe extern "C" fn(*mut u64, usize) -> u32 = unsafe { std::mem::transmute(allocate) };
    let mut out = 0u64;
    // SAFETY: the out-parameter is valid.
    assert_eq!(unsafe { allocate(&mut out, 64 * 4) }, 0);

    let kernel = kernel(&cuda, PTX, "store");
    let store = |blocks: c_uint| {
        let mut address = out;
        let mut parameters = [(&raw mut address).cast::<c_void>()];
        // the entry that sets the thread's own stream
        launch(&cuda, b"cuLaunchKernel_ptsz", kernel, [blocks, 32], &mut parameters);
    };
    store(2);
    let per_thread = 2 as *mut c_void;
    call!(cuda, b"cuStreamSynchronize", (*mut c_void), (per_thread));
    let mut values = [0u32; 64];
    call!(cuda, b"cuMemcpyDtoH_v2", (*mut u32, u64, usize), (values.as_mut_ptr(), out, 64 * 4));
    assert!(values.iter().enumerate().all(|(i, value)| *value as usize == i));

    call!(
        cuda,
        b"cuMipmappedArrayCreate",
        (*mut c_void, *const c_void, c_uint),
        (null_mut(), null(), 1),
        801
    );

    sample_a_texture(&cuda);

    store(3); // 32 elements beyond the allocation
    call!(cuda, b"cuCtxSynchronize", (), (), 700);

    let file = folder.path().join(format!("{}.jsonl", std::process::id()));
    let record = std::fs::read_to_string(file).expect("the process's record");
    assert!(record.contains("\"refused\":\"cuMipmappedArrayCreate\""), "{record}");
    assert!(record.contains("\"kind\":\"OutOfBounds\",\"kernel\":\"store\""), "{record}");
    assert!(
        record.contains("\"launches\":[{\"card\":\"GeForce GTX 1080\",\"kernel\":\"store\",\"launches\":1"),
        "{record}"
    );
}
