//! Calls of the driver API by name, and kernels whose results are a number of each thread.

pub mod images;

use pascaline_virtual_gpu::{
    Arch, Checks, Config, Counters, Finding, Gpu, Launch, Module, restart, take_findings,
};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};

/// The virtual GPU anew, for one test at a time: the driver's state is that of the process.
pub fn driver(config: Config) -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    restart(config);
    take_findings();
    turn
}

/// Threads of a block whose last warp is a part of one.
pub const THREADS: usize = 40;

/// Launches with all checks and with none, which must not change a result: the number of each thread is `want` of its own number.
#[track_caller]
pub fn gives(
    launch: impl Fn(Config) -> Result<(Vec<u32>, Counters), Finding>,
    code: &str,
    want: impl Fn(u32) -> u32,
) -> Counters {
    let run = |checks| launch(Config { checks, ..Config::default() }).unwrap();
    let (checked, unchecked) = (run(Checks::ALL), run(Checks::NONE));
    assert_eq!(checked.0, (0..THREADS as u32).map(want).collect::<Vec<_>>(), "{code}");
    assert_eq!(checked, unchecked, "{code}");
    checked.1
}

/// Calls a symbol with the given types and answers its code.
macro_rules! code {
    ($name:expr, ($($ty:ty),*), $($arg:expr),*) => {{
        let f = pascaline_virtual_gpu::symbol($name).expect($name);
        // SAFETY: the symbol is a function of the driver API with these parameters.
        let f: unsafe extern "C" fn($($ty),*) -> u32 = unsafe { std::mem::transmute(f) };
        // SAFETY: all pointers are to live variables of the test.
        unsafe { f($($arg),*) }
    }};
}

macro_rules! call {
    ($name:expr, ($($ty:ty),*), $($arg:expr),*) => {
        assert_eq!(code!($name, ($($ty),*), $($arg),*), 0, $name)
    };
}
pub(crate) use {call, code};

/// A module of a PTX text, and its kernel of a name.
pub fn load_kernel(text: &str, name: &str) -> (*mut c_void, *mut c_void) {
    let (text, name) = (CString::new(text).unwrap(), CString::new(name).unwrap());
    let (mut module, mut function) = (null_mut::<c_void>(), null_mut::<c_void>());
    call!("cuModuleLoadData", (*mut *mut c_void, *const c_char), &mut module, text.as_ptr());
    call!(
        "cuModuleGetFunction",
        (*mut *mut c_void, *mut c_void, *const c_char),
        &mut function,
        module,
        name.as_ptr()
    );
    (module, function)
}

/// `cuLaunchKernel` with a list of pointers to arguments; its code.
pub fn launch_kernel(
    function: *mut c_void,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: *mut c_void,
    arguments: *mut *mut c_void,
) -> u32 {
    let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
    type Handle = *mut c_void;
    code!(
        "cuLaunchKernel",
        (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle, *mut Handle),
        function,
        gx,
        gy,
        gz,
        bx,
        by,
        bz,
        shared_bytes,
        stream,
        arguments,
        null_mut()
    )
}

/// What each thread of a block leaves in %r0, on the card of an architecture.
///
/// The code has its thread's number in %r1, a zeroed buffer of 1 KiB at %rd1, shared memory `s`, and registers %r, %rd, %h, %f, %p.
pub fn threads_on(arch: Arch, code: &str, threads: u32, checks: Checks) -> Result<Vec<u32>, Finding> {
    threads_with("", arch, code, threads, checks)
}

/// As [`threads_on`], with functions that the code calls.
pub fn threads_with(
    functions: &str,
    arch: Arch,
    code: &str,
    threads: u32,
    checks: Checks,
) -> Result<Vec<u32>, Finding> {
    let text = format!(
        ".version 7.6 .target {} .address_size 64
{functions}
.visible .entry k(.param .u64 out, .param .u64 buffer) {{
.reg .b64 %rd<16>, %out; .reg .b32 %r<32>; .reg .f32 %f<32>; .reg .b16 %h<8>; .reg .pred %p<8>;
.shared .align 16 .b8 s[4096];
ld.param.u64 %out, [out]; ld.param.u64 %rd1, [buffer];
mov.u32 %r1, %tid.x; mov.u32 %r0, 0;
mul.wide.u32 %rd0, %r1, 4; add.u64 %out, %out, %rd0;
{code}
st.global.u32 [%out], %r0;
ret;
}}
",
        arch.name()
    );
    let module = Module::parse_for(&text, arch).unwrap_or_else(|e| panic!("{code}: {e}"));
    // an endless loop ends soon
    let limit = 1 << 24;
    let mut gpu =
        Gpu::new(Config { card: arch.card(), checks, instruction_limit: limit, ..Config::default() });
    let module = gpu.load(module).unwrap();
    let [out, buffer] = [4 * u64::from(threads), 1024].map(|bytes| gpu.alloc(bytes).unwrap());
    gpu.write(buffer, &[0; 1024]).unwrap();
    let params: Vec<u8> = [out, buffer].iter().flat_map(|v| v.to_le_bytes()).collect();
    let launch = Launch { grid: [1; 3], block: [threads, 1, 1], dynamic_shared: 0, params: &params };
    gpu.launch(&module, "k", launch)?;
    let mut bytes = vec![0; 4 * threads as usize];
    gpu.read(out, &mut bytes).unwrap();
    Ok(bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

/// Makes the primary context of device 0 current.
pub fn primary() {
    let mut context = null_mut::<c_void>();
    call!("cuDevicePrimaryCtxRetain", (*mut *mut c_void, c_int), &mut context, 0);
    call!("cuCtxSetCurrent", (*mut c_void), context);
}
