//! Two settings of the operating system that no crate here wraps.

#![allow(unsafe_code, reason = "calls of the C library")]

#[cfg(target_os = "linux")]
use std::ffi::c_int;

/// Makes the C library return large freed blocks of host memory to the system at once. glibc otherwise keeps freed blocks of
/// up to 32 MB in each thread's arena, so a process that many threads allocate in may hold far more than it uses.
pub(crate) fn return_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        const M_MMAP_THRESHOLD: c_int = -3;
        const M_ARENA_MAX: c_int = -8;
        // SAFETY: the declaration is that of glibc's malloc.h, which this target has. It takes two integers, locks the
        // allocator's state, and leaves blocks that are allocated as they are.
        unsafe {
            mallopt(M_MMAP_THRESHOLD, 4 << 20);
            mallopt(M_ARENA_MAX, 4);
        }
    }
}

/// Gives the calling thread a tenth of the processor time of one that competes with it. Linux alone has this for a thread.
pub(crate) fn yield_to_others() {
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn nice(increment: c_int) -> c_int;
        }
        // SAFETY: the declaration is that of POSIX' unistd.h. It takes an integer and changes the scheduling of this thread.
        unsafe {
            nice(10);
        }
    }
}
