//! The locks of the memory pool and of the simulated device: the standard library's, or, in the tests of
//! `testing/interleavings`, shuttle's, whose scheduler chooses which thread runs after each.

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};
