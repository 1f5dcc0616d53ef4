//! The parts that every decoder model needs: its files, tokens, memory and devices, answers, and many requests at once.
//!
//! A model says in [`seam`] what is its own: how its configuration reads, and the part that sees. Everything else is here, once.
//!
//! Read in this order: `seam` and `config` say what a model is; `checkpoint` and `weights` open the files (`safetensors`, `gguf`);
//! `chat`, `tokenizer` and `processor` turn messages into tokens; `text` is the decoder and `network` joins it with the part that sees;
//! `model` loads, `request` is an answer's way from its prompt to its end, `generate` steps one. `batch` answers many requests at once; `fit`, `footprint` and `estimate` plan memory and time;
//! `placement`, `split` and `rows` spread a model over devices. Kernels and ops are the library's.

pub mod adapter;
pub mod batch;
pub mod cases;
pub mod chat;
pub mod checkpoint;
pub mod config;
mod control;
mod cut;
mod decode;
pub mod embed;
pub mod estimate;
mod ffmpeg;
pub mod files;
pub mod fit;
pub mod footprint;
pub mod forward;
mod frames;
pub mod generate;
pub mod gguf;
pub mod gguf_model;
#[cfg(feature = "hub")]
pub mod hub;
pub mod inference;
pub mod json;
pub mod layers;
mod lookup;
pub mod media;
mod message;
pub mod model;
mod network;
mod number;
pub mod options;
mod pass;
pub mod picture;
pub mod placement;
pub mod processor;
mod published;
mod read_at;
pub mod reasoning;
mod relay;
mod request;
pub mod rope;
pub mod rows;
pub mod safetensors;
pub mod sampling;
pub mod seam;
mod softmax_share;
pub mod sparse;
pub mod spec;
pub mod split;
pub mod stream;
mod template;
pub mod text;
pub mod tokenizer;
mod tokenizer_parts;
mod tools;
pub mod validate;
pub mod video;
pub mod weights;
mod workload;

pub use checkpoint::Checkpoint;
pub use control::ControlTokens;
pub use generate::{Options, Output, Statistics, StopReason};
pub use media::Visual;
pub use model::{LanguageModel, Session};
pub use network::{Phase, Progress};
pub use options::{ExpertPlacement, LoadOptions, Matrices};
pub use placement::{Placement, SplitMode};
pub use processor::{Processor, Prompt};
pub use sampling::Sampling;
pub use seam::Config;
pub use seam::{VisionPlace, VisionScores};
