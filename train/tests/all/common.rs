//! Shared by the tests.

#[path = "../../../tests/all/common/process.rs"]
pub mod process;
