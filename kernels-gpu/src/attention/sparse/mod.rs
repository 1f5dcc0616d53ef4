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
pub mod prefill;

use super::decode::Instances;
use super::prefill::{BM, bn};
use crate::device::F16;
use cuda_std::KernelSpec;
use decode::SparseDecode;
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

/// Keys of a group, and queries of a warp.
pub const GROUP: usize = 16;
/// Warps of a block, and so groups of queries of an item, for the kernels of many queries.
pub const WARPS: [usize; 3] = [1, 2, 4];
/// The most queries of an item.
pub const QUERIES: usize = BM as usize;
/// [`Item::slot`] of the only item of its queries.
pub const NO_SLOT: u32 = u32::MAX;
/// 32-bit words of an item in memory, 16-byte aligned.
pub const ITEM_WORDS: u32 = 8;
/// 32-bit words of a tile for so many warps in memory, 16-byte aligned.
pub const fn tile_words(warps: u32) -> u32 {
    4 + 4 * warps
}

/// 32-bit words of a tile for four warps.
pub const TILE_WORDS: u32 = tile_words(4);
/// 32-bit words of a split in memory, 16-byte aligned.
pub const SPLIT_WORDS: u32 = 4;

const _: () = assert!(bn(prefill::KEYS) as usize == 4 * GROUP && BM as usize == 4 * GROUP);

/// The work of a block: tiles `start` … `start + tiles` for 16 queries for each of its warps, from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The mask head.
    pub head: u32,
    /// The first query, a multiple of their number.
    pub first: u32,
    /// The first tile.
    pub start: u32,
    /// Number of tiles.
    pub tiles: u32,
    /// The slot of the partial result, or [`NO_SLOT`].
    pub slot: u32,
}

impl Item {
    /// The words in memory.
    pub fn words(self) -> [u32; ITEM_WORDS as usize] {
        [self.head, self.first, self.start, self.tiles, self.slot, 0, 0, 0]
    }
}

/// Four groups of keys, and which of them up to four warps attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The first key of each group.
    pub keys: [u32; 4],
    /// The pattern of each warp's 16 queries and each group's 16 keys; pattern 0 is no pair, 1 is all.
    pub seen: [[u32; 4]; 4],
}

impl Tile {
    /// The words in memory of a tile for `warps` warps.
    pub fn words(&self, warps: usize) -> impl Iterator<Item = u32> {
        self.keys.iter().chain(self.seen[..warps].as_flattened()).copied()
    }
}

/// The queries of an item, whose tiles are split over several items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The mask head.
    pub head: u32,
    /// The first query.
    pub first: u32,
    /// The first item's slot; those of the others follow.
    pub slot: u32,
    /// Number of items.
    pub slots: u32,
}

impl Split {
    /// The words in memory.
    pub fn words(self) -> [u32; SPLIT_WORDS as usize] {
        [self.head, self.first, self.slot, self.slots]
    }
}
