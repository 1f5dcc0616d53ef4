//! A sequence's pages, and the splits of its keys.

use crate::attention::decode::KEY_STEP;
use crate::device::element::load_word_at;

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

/// A sequence's pages.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Table {
    /// The numbers of its pages.
    pub pages: *const u32,
    /// The pool's last row.
    pub last_row: u32,
}

impl Table {
    /// The pool's row of key `n`.
    ///
    /// # Safety
    /// The table has an entry for the key.
    #[inline(always)]
    pub unsafe fn row(self, n: u32) -> u32 {
        // SAFETY: the table has the entry: this function's contract.
        let page = unsafe { load_word_at(self.pages, n / PAGE) };
        (page * PAGE + n % PAGE).min(self.last_row)
    }
}
