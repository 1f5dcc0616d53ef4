//! Quantised tensors: weights in 8 to 4 bits, and activations in 8 bits.
//!
//! | [`Format`] | bits per value | scales                                   | for                                        |
//! |------------|----------------|------------------------------------------|--------------------------------------------|
//! | `I8`       | 8              | one f32 per row                          | rows without outliers; scales may be chosen |
//! | `Q8_0`     | 8.5            | one f16 per 32 values                    | nearly lossless                            |
//! | `Q4_0`     | 4.5            | one f16 per 32 values                    | speed: the cheapest 4 bits to multiply     |
//! | `Q4K`      | 4.5            | 6 bits per 32 values under f16 per 256, with minima | quality: at the same size as Q4_0 0.88 of its error on ggml's test data |
//! | `Q5K`      | 5.5            | as Q4_K                                  | between Q4_K and Q6_K                      |
//! | `Q6K`      | 6.6            | 8 bits per 16 values under one f16 per 256 | the embedding and output matrices of 4-bit models |
//! | `Iq4Nl`    | 4.5            | one f16 per 32 values; 16 unevenly spaced levels | less error than Q4_0 at its size, rows of any multiple of 32 |
//! | `Iq4Xs`    | 4.25           | 6 bits per 32 values under one f16 per 256; levels as Iq4Nl | small, with less error than Q4_0 |
//! | `Mxfp4`    | 4.5 (4.25 in files) | a power of two per 32 values; 4-bit floats | checkpoints that were made in it; a larger error than Q4_0's |
//!
//! All but `I8` are GGUF's formats; [`QuantTensor::from_gguf_bytes`] reads a file's bytes. In
//! memory quants and scales are separate arrays, so that kernels can load 16 bytes at a time.

mod choice;
mod format;
mod gguf;
mod report;
mod rows;
mod sizes;
mod tensor;

pub use choice::ScaleChoice;
pub use format::{FORMATS, Format, bits, block_len, error, name};
pub use gguf::dequantize_blocks;
pub(crate) use gguf::{bytes, bytes_mut};
pub use kernels_gpu::quant::formats::{DeviceStorage, GgmlType};
pub use report::ErrorReport;
pub use rows::QuantRows;
pub use tensor::QuantTensor;
