//! The case table and its checks. One list of [`Case`]s drives the tests, `pascaline validate` and `pascaline bench`.
//!
//! A case knows its shapes, makes its inputs from a fixed seed, runs its op on a device, and computes any rows of the
//! result naively in f64. [`check()`] runs one on a device and compares.

mod activate;
mod adamw8bit;
mod append_attention;
mod attention;
mod attention_cached;
mod backward;
pub mod case;
mod cast;
mod cat;
pub mod check;
mod chosen_attention;
mod copy;
pub mod data;
mod dequant_linear;
mod elementwise;
mod embedding;
mod experts;
mod float16;
mod held;
mod int8_attention;
pub(crate) mod kv;
mod layer_norm;
mod linear;
mod lora;
mod matmul;
mod misaligned;
mod optimizer;
mod paged_attention;
pub mod quant;
mod quant_linear;
mod quant_rows;
mod quantize;
mod reduce;
mod rms_norm;
mod rope;
mod rope_append;
mod row_op;
mod softmax;
mod sparse_attention;
mod transpose;

pub use case::{About, Case, Gemm, HostTensor, Purpose, Tolerance};
pub use check::{Outcome, Verdict, check, check_with};

/// Every case of every op, ops in the order in which `validate` and `bench` print them.
pub fn cases() -> Vec<Box<dyn Case>> {
    type Cases = fn() -> Vec<Box<dyn Case>>;
    let ops: &[Cases] = &[
        attention::cases,
        attention_cached::cases,
        paged_attention::cases,
        append_attention::cases,
        chosen_attention::cases,
        int8_attention::cases,
        sparse_attention::cases,
        matmul::cases,
        linear::cases,
        lora::cases,
        quant::cases,
        quant_linear::cases,
        quant_rows::cases,
        quantize::cases,
        softmax::cases,
        rms_norm::cases,
        layer_norm::cases,
        reduce::cases,
        elementwise::cases,
        activate::cases,
        cast::cases,
        float16::cases,
        transpose::cases,
        copy::cases,
        cat::cases,
        embedding::cases,
        experts::cases,
        rope::cases,
        rope_append::cases,
        backward::cases,
        optimizer::cases,
        adamw8bit::cases,
        dequant_linear::cases,
    ];
    ops.iter().flat_map(|cases| cases()).collect()
}
