//! Modules over [`ops`](crate::ops): weights together with their computation, for building models.
//!
//! All take and return f32 activations [rows, features]; matrices may be stored in f16 or quantised. A module's constructor
//! checks that its tensors match each other, so that `forward` can only fail because of its input ([`Error::Shape`])
//! or the device. Cloning a
//! module shares its weights.

mod adapted;
mod all_reduce;
mod attention;
mod block;
mod embedding;
mod expert_cache;
mod experts;
mod hosted;
mod kv_cache;
mod kv_pages;
mod linear;
mod matrix;
mod mlp;
mod norm;
mod stacked;
mod streamed;

pub use adapted::Adapted;
pub use all_reduce::AllReduce;
pub use attention::{Attention, Rope};
pub use block::TransformerBlock;
pub use embedding::Embedding;
pub use expert_cache::Hits;
pub use experts::Experts;
pub use hosted::ExpertStream;
pub use kv_cache::{KvCache, LayerCache};
pub use kv_pages::{Cache, KvPages, LayerPages, PagedRows, PromptRows};
pub use linear::Linear;
pub use matrix::Matrix;
pub use mlp::Mlp;
pub use norm::{LayerNorm, Norm, RmsNorm};
pub use stacked::Stacked;
pub use streamed::StreamedBlocks;

use crate::{Error, Result, Tensor};

/// A function from a module's tensors to those of a copy of the module.
type Map<'a> = dyn FnMut(&Tensor) -> Result<Tensor> + 'a;

/// The error for a weight that does not match its module.
fn misfit(op: &'static str, argument: &'static str, expected: impl Into<String>, found: &Tensor) -> Error {
    Error::Shape { op, argument, expected: expected.into(), found: found.shape().clone() }
}

/// Requires a vector of this length.
fn expect_len(op: &'static str, argument: &'static str, x: &Tensor, len: usize) -> Result<()> {
    match x.dims() == [len] {
        true => Ok(()),
        false => Err(misfit(op, argument, format!("[{len}]"), x)),
    }
}
