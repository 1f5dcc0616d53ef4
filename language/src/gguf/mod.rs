//! Reads and writes GGUF files: quantised weights and everything else that a model needs. Files are not trusted.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md> (versions 2 and 3, little-endian): magic, version,
//! counts of tensors and of keys; the keys with typed values; each tensor's name, dimensions (innermost first), type and
//! offset; padding up to the alignment; the tensors.
//!
//! | file       | idea                                                                    |
//! |------------|-------------------------------------------------------------------------|
//! | metadata   | the keys and their values                                               |
//! | container  | one file's header, each number of which is checked before it is used    |
//! | shards     | the files of a split model as one, and reading their tensors            |
//! | config     | sizes and stop tokens from metadata                                     |
//! | vocabulary | the tokenizer from metadata                                             |
//! | names      | the names of a published checkpoint's tensors in GGUF files             |
//! | mix        | the type of each tensor in files that are written                       |
//! | encode     | f32 → blocks                                                            |
//! | plan       | the layout of a file to be written, before any value is known           |
//! | convert    | the keys and tensors that the files of a published checkpoint have      |
//!
//! The types of tensors and their blocks are the library's (`kernels-gpu/src/quant/formats`).
//!
//! Data is read with positioned reads, not memory-mapped: a file that is truncated while in use gives an error and not a
//! signal.

mod config;
mod container;
mod convert;
mod encode;
mod metadata;
mod mix;
mod names;
mod plan;
mod shards;
mod vocabulary;

pub use config::{refuse_missing, text_config, token};
pub use container::{Container, TensorInfo};
pub use convert::{planned_tensors, size_label, text_plan};
pub use encode::encode;
pub use metadata::{Array, Metadata, Value};
pub use mix::Mix;
pub use names::numbered;
pub use pascaline::quant::{DeviceStorage, GgmlType, dequantize_blocks as dequantize};
pub use plan::{Field, Plan, PlannedTensor};
pub use shards::Gguf;
pub use vocabulary::TOKENS;

pub(crate) use names::{Tensors, gguf_name};
pub(crate) use shards::is_later_part;

use crate::chat::ChatTemplate;
use crate::config::Config;
use crate::processor::Processor;
use crate::seam::{Vision, VisionFiles};
use pascaline::Result;

/// The processor of a model: everything that needs no weights.
pub(crate) fn processor(text: &Gguf, vision: Option<&Gguf>, config: Config) -> Result<Processor> {
    let metadata = text.metadata();
    let template = "tokenizer.chat_template";
    let source = metadata.required(template, metadata.str(template)?)?;
    let pictures = |(part, file): (&dyn Vision, &Gguf)| part.pictures(VisionFiles::Gguf(file));
    Ok(Processor {
        generation: config::generation(text, &config)?,
        pictures: config.vision.as_deref().zip(vision).map(pictures).transpose()?,
        tokenizer: vocabulary::tokenizer(text, &config)?,
        template: ChatTemplate::parse(text.path().to_owned(), source)?,
        config,
    })
}
