//! Qwen3-VL: pictures and text in, text out.
//!
//! The computation is that of transformers' `qwen3_vl`; every number of a model comes from its own files.
//!
//! Read in this order: `checkpoint` and `weights` open the files (`safetensors`, `gguf`) and name their tensors, `chat`, `processor` and
//! `preprocess` turn messages and pictures into tokens and patches, `vision` and `text` compute, `model` joins them, and `generate`
//! answers. `batch` answers many requests at once; `fit`, `footprint` and `estimate` plan memory and time; `placement`, `split` and
//! `rows` spread a model over devices. Kernels and ops are the library's, training is `pascaline_train`'s, HTTP is `pascaline_server`'s.

pub mod adapter;
pub mod batch;
pub mod cases;
pub mod chat;
pub mod checkpoint;
pub mod config;
mod control;
mod decode;
pub mod estimate;
pub mod files;
pub mod fit;
pub mod footprint;
pub mod generate;
pub mod gguf;
#[cfg(feature = "hub")]
pub mod hub;
mod json;
mod layers;
mod lookup;
pub mod model;
mod network;
mod picture;
pub mod placement;
pub mod positions;
pub mod preprocess;
pub mod processor;
mod read_at;
mod relay;
pub mod resize;
pub mod rows;
pub mod safetensors;
pub mod sampling;
pub mod split;
pub mod stream;
mod template;
pub mod text;
pub mod tokenizer;
mod tokenizer_parts;
pub mod validate;
pub mod vision;
pub mod weights;

pub use checkpoint::Checkpoint;
pub use control::ControlTokens;
pub use generate::{Options, Output, Statistics, StopReason};
pub use model::{LoadOptions, Matrices, Qwen3Vl, Session};
pub use placement::{Placement, SplitMode};
pub use processor::{Processor, Prompt, Visual};
pub use sampling::Sampling;
pub use vision::VisionPlace;
