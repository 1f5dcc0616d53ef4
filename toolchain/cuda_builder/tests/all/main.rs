//! Builds of GPU crates, as a build script does them and as a test does.

#[path = "../../../../tests/all/common/extent.rs"]
mod extent;

mod convergence;
mod outside;
mod stranger;
