//! Calls of the driver API by name.

use pascaline_virtual_gpu::{Config, restart, take_findings};
use std::sync::{Mutex, MutexGuard};

/// The virtual GPU anew, for one test at a time: the driver's state is that of the process.
pub fn driver(config: Config) -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    restart(config);
    take_findings();
    turn
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
