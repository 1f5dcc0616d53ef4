//! Attention of a long prompt's queries over the tiles of keys that weigh most, which are chosen while the prompt runs.
//!
//! k, v: one sequence's keys and values, in consecutive rows or in pages. Query i attends to keys up to number i + kv_len − q_len, as far
//! as they are in the tiles of 128 keys that its block of 64 queries has.
//!
//! | kernel                   | a block handles                                         | step                                     |
//! |--------------------------|---------------------------------------------------------|------------------------------------------|
//! | attention_tile_sums_‹t›  | 64 sampled queries of a head, a part of the tiles       | their softmax's sum in each tile         |
//! | attention_choose_tiles   | 64 queries of a head                                    | the fewest tiles with a share of the sum |
//! | attention_chosen_d‹D›_‹t› | 64 queries of a head                                   | attention over those tiles               |
//!
//! One query in [`SAMPLED`] is sampled, and its scores are exact. So the first step has a thirty-second of dense attention's products.
//! Tiles of the sequence's beginning and of the keys next to the queries are taken in any case.
//!
//! Sources: sampled queries stand for their neighbours in Zhu et al. 2024, "SampleAttention"; a share of the softmax decides in Lai et al.
//! 2025, "FlexPrefill", section 3.2; first keys always count in Xiao et al. 2023, "Efficient streaming language models with attention sinks".

pub mod choose;
mod keys;
pub mod prefill;
pub mod sums;

use crate::kv::Storage;
use cuda_std::KernelSpec;

pub use choose::{ChooseTiles, LIST_EXTRA};
pub use keys::{SAMPLED, SAMPLES_PER_BLOCK, TILE};
pub use prefill::ChosenPrefill;
pub use sums::TileSums;

/// The kernels of one storage of k and v; q and out are f32.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// grid = [num_q_heads, ceil(samples / 64), parts of the tiles]
    pub sums: KernelSpec<TileSums>,
    /// For head_dim ≤ 64 and ≤ 128: grid = [num_q_heads, ceil(q_len / 64)]
    pub prefill: [KernelSpec<ChosenPrefill>; 2],
}

impl Kernels {
    /// Those for k and v stored so.
    pub const fn of(storage: Storage) -> Self {
        Self { sums: sums::SPECS[storage as usize], prefill: prefill::SPECS[storage as usize] }
    }
}
