//! Modules over [`ops`](crate::ops): weights together with their computation, for building models.
//!
//! All take and return f32 activations [rows, features]; matrices may be stored in f16 or quantised. A module's constructor
//! checks that its tensors match each other, so that `forward` can only fail because of its input ([`Error::Shape`](crate::Error::Shape))
//! or the device. Cloning a
//! module shares its weights.

mod all_reduce;
mod attention;
mod block;
mod cache;
mod checks;
mod embedding;
mod expert_cache;
mod experts;
mod hosted;
mod kv_cache;
mod kv_pages;
mod linear;
mod map;
mod matrix;
mod mlp;
mod norm;
mod product;
mod sparse_prompt;
mod streamed;

pub use all_reduce::AllReduce;
pub use attention::{Attention, Rope};
pub use block::TransformerBlock;
pub use cache::Cache;
pub use embedding::Embedding;
pub use expert_cache::Hits;
pub use experts::Experts;
pub use hosted::ExpertStream;
pub use kv_cache::{KvCache, LayerCache};
pub use kv_pages::{KvPages, LayerPages, PagedRows, PromptRows};
pub use linear::Linear;
pub use matrix::{Adapted, Change, Matrix, Stacked};
pub use mlp::Mlp;
pub use norm::{LayerNorm, Norm, RmsNorm};
pub use sparse_prompt::SparsePrompt;
pub use streamed::StreamedBlocks;
