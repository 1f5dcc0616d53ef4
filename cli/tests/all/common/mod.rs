//! Shared by the tests.

pub mod program;
#[cfg(unix)]
pub mod terminal;
