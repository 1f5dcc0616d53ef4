//! Transition: contracts without a parameter type.
pub use cuda_std::KernelInfo as KernelSpec;
