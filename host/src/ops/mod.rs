//! The public, safe ops. Each checks shapes, types, layouts and devices once, for all backends, and then runs on the device
//! of its tensors: `gpu/‹op›.rs` or `cpu/‹op›.rs`.
//!
//! Most ops have two forms. `‹op›(inputs)` allocates its output. `‹op›_into(output, inputs)` writes into a tensor whose
//! storage is not shared ([`Tensor::view_mut`](crate::Tensor::view_mut)), or into a part of one. GPU work is queued on the
//! tensors' stream; only reading a result waits for it. A tensor without elements is valid wherever its shape is.
//!
//! ```
//! use pascaline::{DType, Device, Tensor, ops};
//! let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2], &Device::Cpu)?;
//! let mut y = Tensor::zeros([2, 2], DType::F32, &Device::Cpu)?;
//! ops::scale_into(y.view_mut()?.narrow(0, 1, 1)?, &x, 10.0)?; // row 1 of y
//! assert_eq!(y.to_vec::<f32>()?, [0.0, 0.0, 10.0, 20.0]);
//! # Ok::<(), pascaline::Error>(())
//! ```
//!
//! **Errors.** Everything is checked before anything is written. An argument that an op can't take is named, with the op, by
//! [`Error::DType`](crate::Error::DType), [`Error::Shape`](crate::Error::Shape), [`Error::Layout`](crate::Error::Layout) where it
//! must be contiguous, [`Error::TooLarge`](crate::Error::TooLarge) from 2³¹ elements on, and
//! [`Error::DeviceMismatch`](crate::Error::DeviceMismatch). Every op may fail for want of memory or by an error of the driver.
//! Each op lists its further refusals, which hold for its other forms as well.
//!
//! **Why functions and not operators.** Every op allocates and can fail because of its arguments' shapes, types and devices,
//! or for lack of memory. So `+` would have to panic, which nothing here does, or return a `Result`. `((&a + &b)? * &c)?` is
//! no clearer than the functions' names, and hides that each step is a launch and a pass over memory. The fast ops on these
//! GPUs are fused, and have more than two operands ([`linear()`], [`silu_mul`], [`Epilogue`]). Also, users of `+` and `*`
//! expect broadcasting, and `-` and `/`, for which there are no kernels.

mod activate;
mod append_attention;
mod attention;
mod cast;
mod cat;
mod check;
mod chosen_attention;
mod copy;
mod display;
mod elementwise;
mod embedding;
mod experts;
mod float16;
mod int8_attention;
mod layer_norm;
mod linear;
mod lora;
mod matmul;
mod paged_attention;
mod quant;
mod quantize_with;
mod reduce;
mod rms_norm;
mod rope;
mod rope_append;
mod softmax;
#[cfg(feature = "sparse")]
mod sparse_attention;
mod transpose;

pub use crate::problem::activate::{Activation, Epilogue};
pub use crate::problem::attention::Attention;
pub use crate::problem::chosen_attention::{KEYS_PER_CHOICE, QUERIES_PER_CHOICE, SequenceKv};
pub use crate::problem::experts::{ExpertRows, Routes};
pub use crate::problem::matmul::{Matmul, Variant};
pub use crate::problem::rope_append::{HeadNorms, Projection};

#[cfg(feature = "training")]
#[path = "."]
mod training {
    use super::*;

    pub(super) mod activate_backward;
    pub(super) mod adamw8bit;
    pub(super) mod attention_backward;
    pub(super) mod column_sum;
    pub(super) mod cross_entropy;
    pub(super) mod dequant_linear;
    pub(super) mod embedding_backward;
    pub(super) mod norm_backward;
    pub(super) mod optimizer;
    pub(super) mod quantize_scaled;
    pub(super) mod softmax_backward;
    #[cfg(feature = "sparse")]
    pub(super) mod sparse_attention_backward;

    pub use crate::problem::adamw8bit::{AdamW8bitTensor, Moment, Moments8bit};
    pub use crate::problem::optimizer::{AdamW, AdamWTensor, Sgd, SgdTensor};
    pub use activate_backward::{activate_backward, activate_backward_into};
    pub use activate_backward::{silu_mul_backward, silu_mul_backward_into};
    pub use adamw8bit::adamw8bit_step;
    pub use attention_backward::{ATTENTION_BACKWARD_BYTES, attention_backward, attention_backward_into};
    pub use column_sum::{column_sum, column_sum_into};
    pub use cross_entropy::{
        CROSS_ENTROPY_BYTES, IGNORED, LinearCrossEntropy, cross_entropy_into, linear_cross_entropy,
    };
    pub use dequant_linear::{dequant_linear, dequant_linear_backward};
    pub use embedding_backward::{embedding_backward, embedding_backward_add, embedding_backward_into};
    pub use norm_backward::{layer_norm_backward, layer_norm_backward_into};
    pub use norm_backward::{rms_norm_backward, rms_norm_backward_into};
    pub use optimizer::{adamw_step, sgd_step, squared_norm};
    pub use quantize_scaled::{
        fake_quantize_scaled, fake_quantize_scaled_backward, fake_quantize_scaled_backward_into,
        quantize_scaled,
    };
    pub use softmax_backward::{softmax_backward, softmax_backward_into};
    #[cfg(feature = "sparse")]
    pub use sparse_attention_backward::{sparse_attention_backward, sparse_attention_backward_into};
}
#[cfg(feature = "training")]
pub use training::*;

pub(crate) use activate::finish_into;
pub use activate::{activate, activate_into};
pub use append_attention::{append_attention_into, paged_append_attention_into};
pub use attention::{MAX_CACHED_QUERIES, attention, attention_into};
pub use attention::{attention_cached_into, attention_over_into};
pub use cast::{cast, cast_into};
pub use cat::{cat, cat_into, stack, stack_into};
pub use chosen_attention::{KeyTiles, attention_over_tiles_into, choose_tiles};
pub use copy::{copy, copy_into};
pub use elementwise::{add, add_into};
pub use elementwise::{gelu_erf, gelu_erf_into};
pub use elementwise::{gelu_tanh, gelu_tanh_into};
pub use elementwise::{mul, mul_into};
pub use elementwise::{scale, scale_into};
pub use elementwise::{silu_mul, silu_mul_into};
pub use embedding::{embedding, embedding_into};
pub(crate) use experts::{MAX_UNSORTED_TOKENS, experts_linear_at, quant_experts_linear_at, route_counted};
pub use experts::{experts_linear, quant_experts_gated, quant_experts_linear, quant_experts_rows, route};
pub use experts::{experts_sum, experts_sum_into};
pub use float16::{float16_decode, float16_decode_into, float16_encode, float16_matmul};
pub use int8_attention::{int8_attention, int8_attention_into};
pub use layer_norm::{layer_norm, layer_norm_into};
pub use linear::{linear, linear_into};
pub(crate) use lora::beside_into;
pub use lora::{quant_lora, quant_lora_into};
pub use matmul::{matmul, matmul_into};
pub use paged_attention::{PAGE, paged_attention_each_into, paged_attention_into};
pub(crate) use quant::is_vector;
pub use quant::{
    dequantize, dequantize_into, fake_quantize, fake_quantize_gradient, quant_embedding,
    quant_embedding_into, quant_gated_rows, quant_linear, quant_linear_into, quant_matmul, quant_matmul_into,
    quant_matmul_rows_into, quantize, quantize_rows, rms_norm_rows,
};
pub use quantize_with::quantize_with;
pub use reduce::{argmax, argmax_into};
pub use reduce::{max, max_into};
pub use reduce::{sum, sum_into};
pub use rms_norm::{rms_norm, rms_norm_into};
pub use rope::{rope, rope_into};
pub use rope::{rope_backward, rope_backward_into};
pub use rope_append::rope_append_into;
pub use softmax::{softmax, softmax_into};
#[cfg(feature = "sparse")]
pub use sparse_attention::{DENSE_FROM, Path, PreparedMask, choose_blocks};
#[cfg(feature = "sparse")]
pub use sparse_attention::{block_mean, block_mean_into};
#[cfg(feature = "sparse")]
pub use sparse_attention::{sparse_attention, sparse_attention_into};
pub use transpose::{transpose, transpose_into};
