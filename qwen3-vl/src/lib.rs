//! Qwen3-VL, pictures and text in, text out; and Qwen3, of text alone; each dense and with a mixture of experts.
//!
//! The computation is that of transformers' `qwen3_vl`, `qwen3_vl_moe`, `qwen3` and `qwen3_moe`; every number of a model comes from its own files.
//!
//! Everything that any decoder model needs is in `pascaline-language`, which this crate re-exports: files, tokens, memory, generation, many
//! requests at once. Here is what is a model's own: `family` and `qwen3` say how configurations read, `names` has the tensors of the
//! vision tower, `vision` computes it, `pictures` and `preprocess` turn pictures into tokens and patches.

pub mod config;
mod family;
pub mod gguf;
mod load;
mod names;
mod pictures;
pub mod positions;
pub mod preprocess;
mod qwen3;
pub mod resize;
pub mod vision;

#[cfg(feature = "hub")]
pub use language::hub;
pub use language::{
    ControlTokens, ExpertPlacement, LanguageModel, LoadOptions, Matrices, Options, Output, Phase, Placement,
    Processor, Progress, Prompt, Sampling, Session, SplitMode, Statistics, StopReason, VisionPlace,
    VisionScores, Visual, adapter, batch, cases, checkpoint, embed, estimate, files, fit, footprint, forward,
    generate, json, media, model, options, placement, reasoning, rows, safetensors, sampling, seam, sparse,
    spec, split, stream, text, tokenizer, validate, video, weights,
};
pub use load::{Checkpoint, Qwen3Vl, processor};
pub use pictures::{Pictures, Spellings, pictures};

/// The models that this crate has.
pub const MODELS: language::seam::Models =
    &[&family::DENSE, &qwen3::DENSE, &family::MIXTURE, &qwen3::MIXTURE];

/// Messages → prompt text.
pub mod chat {
    pub use super::pictures::{Spellings, expand};
    pub use language::chat::*;
}

#[cfg(all(test, feature = "virtual-gpu"))]
mod tests;
