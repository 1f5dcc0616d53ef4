//! The locks of the memory pool and of the simulated device, and the atomic numbers of a team of threads: the standard library's, or, with
//! the feature `shuttle` that `testing/interleavings` asks for, shuttle's, whose scheduler chooses which thread runs after each.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    sync::{Mutex, MutexGuard},
    thread::yield_now,
};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    sync::{Mutex, MutexGuard},
    thread::yield_now,
};
