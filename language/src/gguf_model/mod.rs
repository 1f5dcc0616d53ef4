//! Decoder models in GGUF files: their keys and tensors, read and written.
//!
//! | file       | idea                                                                    |
//! |------------|-------------------------------------------------------------------------|
//! | config     | sizes and stop tokens from metadata                                     |
//! | vocabulary | the tokenizer from metadata                                             |
//! | names      | the names of a published checkpoint's tensors in GGUF files             |
//! | mix        | the type of each tensor in files that are written                       |
//! | convert    | the keys and tensors that the files of a published checkpoint have      |

mod config;
mod convert;
mod mix;
mod names;
mod vocabulary;

pub use config::{refuse_missing, text_config, token};
pub use convert::{planned_tensors, size_label, text_plan};
pub use mix::Mix;
pub use names::numbered;
pub use vocabulary::TOKENS;

pub(crate) use config::generation;
pub(crate) use names::{Tensors, gguf_name};
pub(crate) use vocabulary::tokenizer;
