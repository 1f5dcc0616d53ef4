//! Calls of the driver API by name, and kernels whose results are a number of each thread.

use pascaline_virtual_gpu::{Checks, Config, Counters, Finding, restart, take_findings};
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
