//! Attention over keys and values in pages. The pages of many sequences are in one pool; each sequence has a page table.
//!
//! k, v: [rows of the pool, num_kv_heads, head_dim], a page is [`PAGE`] rows; key n of a sequence is row
//! table\[n / PAGE\] · PAGE + n mod PAGE.
//!
//! | kernel                               | a block handles                                          | when             |
//! |--------------------------------------|----------------------------------------------------------|------------------|
//! | attention_paged_decode_d‹D›_r‹R›_‹t› | R rows of a kv head of a sequence, one split of its keys | a query for each |
//! | attention_paged_prefill_d‹D›_‹t›     | 64 queries of a head of one sequence                     | a prompt's part  |
//!
//! The tiles are computed by the dense kernels' code ([`prefill`](super::prefill), [`decode`](super::decode)). Lengths and
//! tables are in device memory, so that a captured launch serves other sequences. A page number beyond the pool reads the
//! pool's last row.
//!
//! Source: Kwon et al. 2023, "Efficient memory management for large language model serving with PagedAttention".

pub mod decode;
pub mod prefill;
mod table;

use super::decode::Instances;
use crate::kv::Storage;
use cuda_std::KernelSpec;

pub use decode::PagedDecode;
pub use prefill::PagedPrefill;
pub(super) use table::Table;
pub use table::{MIN_SPLIT_KEYS, PAGE, keys_per_split};

/// The kernels of one storage of k and v; q and out are f32.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// A query for each sequence: grid = [splits, sequences · num_kv_heads, ceil(group / rows)]
    pub decode: Instances<PagedDecode>,
    /// Many queries of one sequence, of head_dim ≤ 64 and ≤ 128: grid = [num_q_heads, ceil(q_len / QUERIES_PER_BLOCK)]
    pub prefill: [KernelSpec<PagedPrefill>; 2],
}

impl Kernels {
    /// Those for k and v stored so.
    pub const fn of(storage: Storage) -> Self {
        Self { decode: decode::INSTANCES[storage as usize], prefill: prefill::SPECS[storage as usize] }
    }
}
