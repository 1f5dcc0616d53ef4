//! The public, safe ops. Each checks shapes, types, layouts and devices once, for all backends, and then runs on the
//! device that its tensors are on: `gpu/‹op›.rs` or `cpu/‹op›.rs`.
//!
//! Every op comes in two forms: `‹op›(inputs)` allocates its output; `‹op›_into(output, inputs)` writes into a tensor
//! that nothing else refers to ([`Tensor::view_mut`](crate::Tensor::view_mut)). GPU work is queued on the tensors' stream; only reading back
//! waits for it. A tensor without elements is a valid argument everywhere its shape fits.

pub(crate) mod attention;
pub(crate) mod check;
mod copy;
mod float16;
pub(crate) mod matmul;
mod quant;
mod softmax;

pub use attention::{Attention, attention, attention_into};
pub use copy::{copy, copy_into};
pub use float16::{float16_decode, float16_encode};
pub use matmul::{Matmul, Variant, matmul, matmul_into};
pub use quant::{
    Activation, Epilogue, dequantize, dequantize_into, fake_quantize, quant_embedding, quant_embedding_into,
    quant_matmul, quant_matmul_into, quantize, quantize_rows,
};
pub use softmax::{softmax, softmax_into};
