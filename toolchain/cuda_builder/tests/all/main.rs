//! Builds of GPU crates, as a build script does them and as a test does.

#[path = "../../../../tests/all/common/extent.rs"]
mod extent;

mod convergence;
mod outside;
mod stranger;

/// Where all tests that compile for the GPU do so, those of other packages too: `core` is compiled once for each set of options, which takes
/// longer than the kernels.
const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/the target folder");
