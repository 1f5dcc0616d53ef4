//! Block-sparse attention: out = softmax(scale · q kᵀ, −∞ where masked) v, over listed blocks of keys only.
//!
//! Tensors are as in [`attention`](super). A mask head is a mask that one or several query heads share. For every block size
//! of the mask, keys are listed in groups of 16, in any order. The mask of 16 queries by 16 keys is an index into a table of
//! patterns, which also expresses causality and the ends of the sequences.
//!
//! | kernel                            | a block handles                                       | when       |
//! |-----------------------------------|-------------------------------------------------------|------------|
//! | attention_sparse_d‹D›_‹t›         | an item: 64 queries of a head, a part of their tiles   | q_len > 8  |
//! | attention_sparse_rows‹R›_d‹D›_‹t› | an item: R = 16 or 32 queries of a head                | q_len > 8, where 64 attend to few keys together |
//! | attention_sparse_combine_‹t›      | a row whose tiles were split: merges its parts        | long rows  |
//! | attention_sparse_decode_d‹D›_r‹R›_‹t› | R rows that share their keys, one split of these | q_len ≤ 8  |
//! | attention_sparse_backward_‹step›_‹t› | 64 queries or keys of a head, of the gradients        | training   |
//! | attention_block_mean_‹t›          | a block of rows of a head: their mean                  | to choose blocks |
//!
//! The tiles are computed by the dense kernels' code ([`prefill`](super::prefill), [`decode`](super::decode)).

pub mod backward;
pub mod block_mean;
pub mod decode;
mod lists;
pub mod prefill;

use super::decode::Instances;
use super::prefill::{BM, bn};
use crate::device::F16;
use cuda_std::KernelSpec;
use decode::SparseDecode;
pub use lists::{
    GROUP, ITEM_WORDS, Item, NO_SLOT, QUERIES, SPLIT_WORDS, Split, TILE_WORDS, Tile, WARPS, tile_words,
};
use prefill::{Combine, SparsePrefill, attention_sparse_combine_f16, attention_sparse_combine_f32};

/// The kernels of one type of q and out, `Q`, and one of k and v, `Kv`.
#[derive(Clone, Copy)]
pub struct Kernels<Q, Kv> {
    /// Few queries: grid = [splits, b · units, ceil(q_len · group / rows)]
    pub decode: Instances<SparseDecode<Q, Kv>>,
    /// Many queries, for each of [`WARPS`], of head_dim ≤ 64 and ≤ 128: grid = [heads, items, b · parts],
    /// heads · parts = num_q_heads / mask heads
    pub prefill: [[KernelSpec<SparsePrefill<Q, Kv>>; 2]; WARPS.len()],
    /// grid = [splits, b · num_q_heads / mask heads, queries of a split]
    pub combine: KernelSpec<Combine<Q>>,
}

/// All f32.
pub const OF_F32: Kernels<f32, f32> =
    Kernels { decode: decode::OF_F32, prefill: prefill::OF_F32, combine: attention_sparse_combine_f32 };
/// All f16.
pub const OF_F16: Kernels<F16, F16> =
    Kernels { decode: decode::OF_F16, prefill: prefill::OF_F16, combine: attention_sparse_combine_f16 };
/// q and out f32, k and v f16.
pub const OF_F32_F16: Kernels<f32, F16> = Kernels {
    decode: decode::OF_F32_F16,
    prefill: prefill::OF_F32_F16,
    combine: attention_sparse_combine_f32,
};

const _: () = assert!(bn(prefill::KEYS) as usize == 4 * GROUP && BM as usize == 4 * GROUP);
