//! Shared by the tests.

#[path = "../../../../tests/all/common/extent.rs"]
pub mod extent;
pub mod program;
#[cfg(unix)]
pub mod terminal;
