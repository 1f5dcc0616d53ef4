//! Tensors, ops and modules on NVIDIA Pascal GPUs (sm_61), with the GPU code written in Rust.
//!
//! A [`Tensor`] holds data on a [`Device`], [`ops`] compute on tensors, and an [`Error`] says what failed. Every op also
//! runs on the CPU.
//!
//! ```
//! use pascaline::{Device, Tensor, ops};
//!
//! # fn main() -> pascaline::Result<()> {
//! let device = Device::auto(); // a CUDA device if there is one, else the CPU
//! let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?;
//! let y = ops::softmax(&x)?;
//! assert!((y.to_vec::<f32>()?[0] - 0.26894143).abs() < 1e-6);
//! # Ok(()) }
//! ```
//!
//! # Features
//!
//! All are on by default.
//!
//! | feature       | brings                                                                     | without it                     |
//! |---------------|----------------------------------------------------------------------------|--------------------------------|
//! | `virtual-gpu` | the sm_61 GPU in software, for [`Device::virtual_gpu`]                     | asking for it is an error      |
//! | `nvml`        | temperature, clocks and power of a device, for [`governor`]                | nothing is paced               |
//! | `sparse`      | block-sparse attention and block masks                                     | they are not there             |

#![deny(missing_docs)]

#[cfg(feature = "sparse")]
pub mod block_mask;
mod cpu;
pub mod cuda;
mod device;
mod dtype;
mod error;
pub mod float16;
pub mod governor;
#[allow(missing_docs)] // public for `internals` only
mod gpu;
#[doc(hidden)]
pub mod internals;
pub mod kv;
pub mod memory;
mod mutation;
pub mod nn;
pub mod ops;
mod parallel;
pub mod plan;
mod problem;
pub mod quant;
mod shape;
mod simd;
mod sync;
mod tensor;

pub use device::{Choice, Device};
pub use dtype::{DType, Element};
pub use error::{Error, Result, format_bytes};
/// The Rust type of elements in [`DType::F16`].
pub use half::f16;
pub use shape::Shape;
pub use tensor::{MAX_ELEMENTS, Tensor, TensorMut};

/// Compiles the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
