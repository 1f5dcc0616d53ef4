//! Training of Qwen3-VL and Qwen3: gradients by a tape, optimisers, adapters. It launches no kernel: gradients and steps are ops of the library.
//!
//! Read in this order: [`tape`] records what was computed and runs it backwards, [`functions`] are the ops on it,
//! [`parameters`] are what is trained, [`model`] has the loss of a model whose own forward pass the tape records, [`lora`] adds adapters to
//! its linear maps, [`quantize_aware`](mod@quantize_aware) rounds weights as files will hold them, [`optimizer`] makes steps, [`data`] reads conversations and [`finetune`] learns from them, and [`reference`](mod@reference) compares all of it with another implementation's results.
//!
//! ```
//! use pascaline::{Device, Tensor};
//! use pascaline_train::{Parameters, Tape, functions};
//! let mut parameters = Parameters::default();
//! let w = parameters.add("w", Tensor::full(3.0f32, [1, 1], &Device::Cpu)?, true)?;
//! let mut tape = Tape::new();
//! let x = tape.constant(Tensor::full(2.0f32, [1, 1], &Device::Cpu)?);
//! let w_on_tape = tape.parameter(&parameters, w);
//! let y = functions::linear(&mut tape, &x, &w_on_tape, None)?; // 6
//! let square = functions::mul(&mut tape, &y, &y)?; // its gradient with respect to w is 2·6·2
//! tape.backward(&square, &mut parameters)?;
//! assert_eq!(parameters.get(w).gradient()?.to_vec::<f32>()?, [24.0]);
//! # Ok::<(), pascaline::Error>(())
//! ```

#![deny(missing_docs)]

pub mod curve;
pub mod data;
mod files;
pub mod finetune;
pub mod fingerprint;
pub mod functions;
pub mod lora;
pub mod model;
mod modules;
pub mod optimizer;
pub mod parameters;
pub mod quantize_aware;
pub mod reference;
pub mod shapes;
pub mod state;
pub mod tape;
mod values;

pub use lora::Lora;
pub use model::{Example, Model};
pub use optimizer::Optimizer;
pub use parameters::{Parameter, Parameters};
pub use quantize_aware::QuantizeAware;
pub use state::StateFolder;
pub use tape::{Tape, Var};
