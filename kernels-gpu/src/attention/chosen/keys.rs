//! A sequence's keys: where they are, and their tiles and samples.

use crate::attention::paged::Table;
use crate::attention::prefill::{BM, KEYS_PER_TILE};
use cuda_std::inlined;

/// One query in so many is sampled: the last of each.
pub const SAMPLED: u32 = 16;
/// Samples of a block of queries.
pub const SAMPLES_PER_BLOCK: u32 = BM / SAMPLED;
/// Keys of a tile.
pub const TILE: u32 = KEYS_PER_TILE;

/// Where a sequence's keys are.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Its pages, or null where key n is row n.
    pub pages: *const u32,
    /// The last row of k and v.
    pub last_row: u32,
    /// Not 0.
    pub kv_len: u32,
}

#[inlined]
impl Rows {
    /// The row of key `n`; past the last key, the last key's.
    ///
    /// # Safety
    /// The table has a page for each key.
    pub unsafe fn row(self, n: u32) -> u32 {
        let n = n.min(self.kv_len - 1);
        if self.pages.is_null() {
            return n;
        }
        // SAFETY: the table has a page for the key: this function's contract.
        unsafe { Table { pages: self.pages, last_row: self.last_row }.row(n) }
    }
}
