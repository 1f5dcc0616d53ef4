//! What Rust-CUDA's `cuda_std` does not have and the kernels need. Everything here panics when called on the host.

pub mod element;
pub mod int8;
pub mod math;
pub mod reduce;
pub mod shared;

pub use element::{Element, F16};
pub use shared::Shared;
