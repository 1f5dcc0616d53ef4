//! The lists of a mask: items of tiles, and splits.

use crate::attention::prefill::BM;

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
