//! One file of kernels, compiled against our `cuda_std` and against the published 0.2.2: every name that both have,
//! with its parameters' and results' types. That it compiles is the first test: a kernel that keeps to these names moves to
//! Rust-CUDA by a changed dependency line. The second is in `tests/all/launch.rs`: the same file, compiled for the GPU, is
//! launched by cust as a host program of Rust-CUDA would.
//!
//! Not in 0.2.2 and so not here: `launch_bounds` in `#[kernel]`, `thread::block_fence`, and the warp shuffles
//! and votes, whose names and signatures are those of Rust-CUDA's unreleased successor.

/// Against the crate in this repository.
pub mod against_ours {
    use ours as cuda_std;
    include!("kernels.rs");
}

/// Against the release, whose attribute makes kernels `extern "C"`: its own compiler decides how they take slices.
#[allow(improper_ctypes_definitions)]
pub mod against_published {
    use published as cuda_std;
    include!("kernels.rs");
}
