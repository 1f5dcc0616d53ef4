//! The case table, and what checks it: one list of [`Case`]s drives the tests, `pascaline validate` and
//! `pascaline bench`.
//!
//! A case knows its shapes, makes its inputs from a fixed seed, runs its op on a device, and computes any rows of the
//! result naively in f64. [`check()`] runs one on a device and compares.

mod attention;
pub mod case;
pub mod check;
pub mod data;
mod matmul;
pub mod quant;
mod softmax;

pub use case::{Case, Gemm, HostTensor, Purpose, Tolerance};
pub use check::{Outcome, Verdict, check, check_with};

/// Every case of every op, ops in the order of the README's table.
pub fn cases() -> Vec<Box<dyn Case>> {
    let ops: &[fn() -> Vec<Box<dyn Case>>] = &[
        attention::cases,
        matmul::cases,
        quant::cases,
        softmax::cases, //
    ];
    ops.iter().flat_map(|cases| cases()).collect()
}
