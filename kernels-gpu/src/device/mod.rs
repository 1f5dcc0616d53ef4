//! Device code that kernels share and Rust-CUDA's `cuda_std` lacks. Every function here panics when called on the host.

pub mod banks;
pub mod block_reduce;
pub mod coded;
pub mod columns;
pub mod element;
pub mod flat;
pub mod int8;
pub mod math;
pub mod order;
mod prefetch;
pub mod rows;
pub mod ticket;
pub(crate) mod unroll;
pub mod vector;

pub use columns::Columns;
pub use cuda_std::shared;
pub use cuda_std::shared::Shared;
pub use element::{Element, F16};
pub use order::{keep_order, opaque, read_thread_idx_x};
pub use prefetch::prefetch;
pub use vector::{Raw, Vector};
