//! Reads and writes GGUF files: keys with values, and tensors. Files are not trusted.
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
//! | encode     | f32 → blocks                                                            |
//! | plan       | the layout of a file to be written, before any value is known           |
//! | random     | random values in every type, for models that are only timed             |
//!
//! The types of tensors and their blocks are the library's (`kernels-gpu/src/quant/formats`); `gguf_model` says what a model's keys
//! and tensors are.
//!
//! Data is read with positioned reads, not memory-mapped: a file that is truncated while in use gives an error and not a
//! signal.

mod container;
mod encode;
mod metadata;
mod plan;
mod random;
mod shards;

pub use container::{Container, TensorInfo};
pub use encode::encode;
pub use metadata::{Array, Metadata, Value};
pub use pascaline::quant::{DeviceStorage, GgmlType, dequantize_blocks as dequantize};
pub use plan::{Field, Plan, PlannedTensor};
pub use random::{Fill, RandomValues};
pub use shards::Gguf;

pub(crate) use shards::is_later_part;
