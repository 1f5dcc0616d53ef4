//! Masks as the GPU's kernels read them: keys in groups of 16, and patterns of 16 × 16 pairs.
//!
//! A group of keys is cheap where its queries attend to the same keys, whatever the block size. So all four block sizes, and
//! the ragged ends of the sequences, become this one form.

use super::{BlockMask, Cell, low_bits};
use kernels_gpu::attention::sparse::{GROUP, Item, NO_SLOT, QUERIES, Split, TILE_WORDS, Tile};
use std::collections::HashMap;

/// The fewest tiles of an item for a row of blocks to be split: a partial result costs about as much as half a tile.
const MIN_SPLIT_TILES: usize = 16;
/// An item longer than this multiple of the average is split. Long items are launched first, so that only those far above
/// the average outlast the others.
const SPLIT_FROM: usize = 2;

/// 16 × 16 pairs, [2, 16]: a byte holds eight queries of one key.
type Small = [u8; 32];

/// The patterns with fixed numbers: no pair, all pairs.
const NONE: u32 = 0;
const ALL: u32 = 1;

/// The lists that [`attention_sparse_d64_f32`](kernels_gpu::attention::sparse) and the other prefill kernels read.
#[derive(Debug, Default)]
pub(crate) struct PrefillLists {
    /// The items, the longest first.
    pub items: Vec<Item>,
    /// [`TILE_WORDS`] words for each tile, and one tile after the last: the kernels read it and do not use it.
    pub tiles: Vec<u32>,
    /// 8 words for each pattern.
    pub patterns: Vec<u32>,
    /// The queries whose keys are split over several items.
    pub splits: Vec<Split>,
    /// Number of partial results of all splits, for one batch entry and one query head of each mask head.
    pub slots: u32,
}

/// Patterns of 16 × 16, each stored once.
struct Patterns {
    all: Vec<Small>,
    ids: HashMap<Small, u32>,
    /// The pattern of a part of a block, by the block's cell, the part's row and column, and its numbers of queries and
    /// keys.
    parts: HashMap<(u32, usize, usize, usize, usize), u32>,
}

impl Patterns {
    fn new() -> Self {
        let all = vec![[0; 32], [255; 32]];
        let ids = all.iter().copied().zip(0..).collect();
        Self { all, ids, parts: HashMap::new() }
    }

    /// The pattern of the 16 × 16 pairs that begin at query `i` and key `j` of a block, of which `queries` × `keys` exist.
    fn id(&mut self, id: u32, cell: Cell, [i, j]: [usize; 2], [queries, keys]: [usize; 2]) -> u32 {
        if cell == Cell::Full && keys == GROUP {
            return ALL;
        }
        let key = (id, i, j, queries, keys);
        if let Some(&known) = self.parts.get(&key) {
            return known;
        }
        let valid = low_bits(keys) as u16;
        let seen = |query: usize| (cell.row(i + query) >> j) as u16 & valid;
        let id = if (0..queries).all(|query| seen(query) == 0) {
            NONE
        } else if keys == GROUP && (0..queries).all(|query| seen(query) == valid) {
            ALL
        } else {
            let mut small = [0; 32];
            for (lane, byte) in small.iter_mut().enumerate() {
                let bit = |k: usize| {
                    let query = lane / GROUP * 8 + k;
                    u8::from(query < queries && seen(query) >> (lane % GROUP) & 1 == 1) << k
                };
                *byte = (0..8).map(bit).sum();
            }
            let next = self.all.len() as u32;
            *self.ids.entry(small).or_insert_with(|| {
                self.all.push(small);
                next
            })
        };
        self.parts.insert(key, id);
        id
    }
}

impl PrefillLists {
    pub fn new(mask: &BlockMask) -> Self {
        let grid = mask.grid;
        let mut patterns = Patterns::new();
        let (mut tiles, mut rows): (Vec<Tile>, Vec<[u32; 4]>) = (Vec::new(), Vec::new());
        let mut seen = vec![[NONE; 4]; grid.kv_len.div_ceil(GROUP)];
        for head in 0..mask.heads {
            for first in (0..grid.q_len).step_by(QUERIES) {
                let start = tiles.len() as u32;
                let groups = groups(mask, head, first, &mut patterns, &mut seen);
                tiles.extend(groups.chunks(4).map(|groups| {
                    let mut tile = Tile { keys: [groups[0].0; 4], seen: [[NONE; 4]; 4] };
                    for (g, (key, of_warps)) in groups.iter().enumerate() {
                        tile.keys[g] = *key;
                        of_warps.iter().enumerate().for_each(|(warp, id)| tile.seen[warp][g] = *id);
                    }
                    tile
                }));
                rows.push([head as u32, first as u32, start, tiles.len() as u32 - start]);
            }
        }

        let longest = (SPLIT_FROM * tiles.len()).div_ceil(rows.len().max(1)).max(MIN_SPLIT_TILES) as u32;
        let mut lists = Self::default();
        for [head, first, start, tiles] in rows {
            let pieces = tiles.div_ceil(longest).max(1);
            if pieces > 1 {
                lists.splits.push(Split { head, first, slot: lists.slots, slots: pieces });
            }
            for piece in 0..pieces {
                let [from, to] =
                    [piece, piece + 1].map(|p| (u64::from(p) * u64::from(tiles) / u64::from(pieces)) as u32);
                let slot = if pieces > 1 { lists.slots + piece } else { NO_SLOT };
                lists.items.push(Item { head, first, start: start + from, tiles: to - from, slot });
            }
            lists.slots += if pieces > 1 { pieces } else { 0 };
        }
        lists.items.sort_by_key(|item| std::cmp::Reverse(item.tiles));
        tiles.push(Tile { keys: [0; 4], seen: [[NONE; 4]; 4] });
        lists.tiles = Vec::with_capacity(tiles.len() * TILE_WORDS as usize);
        tiles.iter().for_each(|tile| lists.tiles.extend(tile.words()));
        let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        lists.patterns = patterns.all.iter().flat_map(|small| small.chunks_exact(4).map(word)).collect();
        lists
    }
}

/// The groups of 16 keys that any of 64 queries from `first` on attends to: the first key, and each warp's pattern. Groups
/// that the same warps need are neighbours, so that the other warps skip whole tiles.
fn groups(
    mask: &BlockMask,
    head: usize,
    first: usize,
    patterns: &mut Patterns,
    seen: &mut [[u32; 4]],
) -> Vec<(u32, [u32; 4])> {
    let (grid, block) = (mask.grid, mask.grid.block);
    let mut touched = Vec::new();
    for warp in 0..QUERIES / GROUP {
        let query = first + warp * GROUP;
        if query >= grid.q_len {
            break;
        }
        let at = mask.row_starts[head * grid.rows() + query / block] as usize;
        for (n, (column, cell)) in mask.row(head, query / block).enumerate() {
            let keys = column * block..grid.kv_len.min((column + 1) * block);
            for key in keys.step_by(GROUP) {
                let within = [query % block, key % block];
                let sizes = [GROUP.min(grid.q_len - query), GROUP.min(grid.kv_len - key)];
                let id = patterns.id(mask.cells[at + n], cell, within, sizes);
                let group = &mut seen[key / GROUP];
                if id != NONE {
                    if *group == [NONE; 4] {
                        touched.push(key / GROUP);
                    }
                    group[warp] = id;
                }
            }
        }
    }
    let class = |of_warps: &[u32; 4]| {
        let unseen = of_warps.map(|id| id == NONE);
        (unseen, of_warps.iter().any(|&id| id > ALL))
    };
    touched.sort_unstable_by_key(|&group| (class(&seen[group]), group));
    touched
        .iter()
        .map(|&group| ((group * GROUP) as u32, std::mem::replace(&mut seen[group], [NONE; 4])))
        .collect()
}

/// The lists of the decode kernels. There are at most 8 queries, so one row of blocks.
#[derive(Debug, Default)]
pub(crate) struct DecodeLists {
    /// The index of each mask head's first group, and after the last head the number of groups: [heads + 1].
    pub starts: Vec<u32>,
    /// The first key of each group: [groups].
    pub keys: Vec<u32>,
    /// The keys of a group that each query attends to, as bits: [groups, q_len].
    pub seen: Vec<u32>,
    /// The most groups of any head.
    pub longest: usize,
}

impl DecodeLists {
    pub fn new(mask: &BlockMask) -> Self {
        let (grid, block) = (mask.grid, mask.grid.block);
        let mut lists = Self { starts: vec![0], ..Self::default() };
        for head in 0..mask.heads {
            let cells = (0..grid.rows()).flat_map(|row| mask.row(head, row));
            for (column, cell) in cells {
                for key in (column * block..grid.kv_len.min((column + 1) * block)).step_by(GROUP) {
                    let valid = low_bits(GROUP.min(grid.kv_len - key));
                    let of_query = |i: usize| (cell.row(i) >> (key % block) & valid) as u32;
                    if (0..grid.q_len).any(|i| of_query(i) != 0) {
                        lists.keys.push(key as u32);
                        lists.seen.extend((0..grid.q_len).map(of_query));
                    }
                }
            }
            let (start, end) = (lists.starts[head] as usize, lists.keys.len());
            lists.longest = lists.longest.max(end - start);
            lists.starts.push(end as u32);
        }
        lists
    }
}
