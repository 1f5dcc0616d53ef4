//! Shared by the tests.

#[path = "../../../tests/all/common/extent.rs"]
pub mod extent;
#[path = "../../../tests/all/common/process.rs"]
pub mod process;
