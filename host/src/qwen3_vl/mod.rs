//! Qwen3-VL: pictures and text in, text out.
//!
//! The computation is that of transformers' `qwen3_vl`; every number of a model comes from its own files.

pub mod cases;
pub mod chat;
pub mod config;
mod json;
pub mod positions;
pub mod preprocess;
pub mod processor;
pub mod resize;
pub mod safetensors;
pub mod sampling;
pub mod stream;
pub mod tokenizer;
pub mod weights;
