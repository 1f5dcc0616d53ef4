//! The locks of the memory pool and of the simulated device: the standard library's, or, with the feature `shuttle` that
//! `testing/interleavings` asks for, shuttle's, whose scheduler chooses which thread runs after each.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Mutex, MutexGuard};
