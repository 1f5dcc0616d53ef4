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

use super::decode::{Instances, KEY_STEP};
use crate::device::element::load_word_at;
use crate::kv::Storage;
use cuda_std::KernelSpec;

pub use decode::PagedDecode;
pub use prefill::PagedPrefill;

/// Tokens of a page. A sequence leaves half a page empty on average: 8 tokens, which is below 5 % from 160 tokens on. A page
/// of a kv head with 128 columns in 16 bits is 4 KB, many times the size of an efficient transfer, so larger pages would
/// gain nothing.
pub const PAGE: u32 = 16;

/// The fewest keys of a split: with fewer, merging costs as much as the split saves.
pub const MIN_SPLIT_KEYS: u32 = 64;

/// The length of the splits of a sequence of `len` keys, of which there are at most `splits`. It depends only on the
/// sequence, so a sequence gives the same bits whichever others are in the launch.
#[inline(always)]
pub const fn keys_per_split(len: u32, splits: u32) -> u32 {
    let splits = if splits == 0 { 1 } else { splits };
    let keys = len.div_ceil(splits).next_multiple_of(KEY_STEP);
    if keys < MIN_SPLIT_KEYS { MIN_SPLIT_KEYS } else { keys }
}

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

/// A sequence's pages.
#[derive(Clone, Copy)]
struct Table {
    /// The numbers of its pages.
    pages: *const u32,
    /// The pool's last row.
    last_row: u32,
}

impl Table {
    /// The pool's row of key `n`.
    ///
    /// # Safety
    /// The table has an entry for the key.
    #[inline(always)]
    unsafe fn row(self, n: u32) -> u32 {
        // SAFETY: the table has the entry: this function's contract.
        let page = unsafe { load_word_at(self.pages, n / PAGE) };
        (page * PAGE + n % PAGE).min(self.last_row)
    }
}
