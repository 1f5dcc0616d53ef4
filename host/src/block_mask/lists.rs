//! Masks as the GPU's kernels read them: keys in groups of 16, and patterns of 16 × 16 pairs.
//!
//! A group of keys is cheap where its queries attend to the same keys, whatever the block size. So all four block sizes, and
//! the ragged ends of the sequences, become this one form.

use super::mask::{BlockMask, Cell, low_bits};
use kernels_gpu::attention::sparse::{GROUP, Item, NO_SLOT, QUERIES, Split, Tile, WARPS, tile_words};
use std::collections::HashMap;

/// The fewest tiles of an item for a row of blocks to be split: a partial result costs about as much as half a tile.
const MIN_SPLIT_TILES: usize = 16;
/// An item longer than this multiple of the average is split. Long items are launched first, so that only those far above
/// the average outlast the others.
const SPLIT_FROM: usize = 2;

/// The time of a tile of a block of one, two and four warps, for each warp, relative to four. Fewer warps share what they load.
const TILE_COST: [f64; WARPS.len()] = [1.15, 1.05, 1.0];

/// 16 × 16 pairs, [2, 16]: a byte holds eight queries of one key.
type Small = [u8; 32];

/// The patterns with fixed numbers: no pair, all pairs.
const NONE: u32 = 0;
const ALL: u32 = 1;

/// The lists that [`attention_sparse_d64_f32`](kernels_gpu::attention::sparse) and the other prefill kernels read.
#[derive(Debug, Default)]
pub(crate) struct PrefillLists {
    /// Warps of a block, and so groups of queries of an item.
    pub warps: usize,
    /// The items, the longest first.
    pub items: Vec<Item>,
    /// Words for each tile, and one tile after the last: the kernels read it and do not use it.
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
    /// Of a pattern and a number of queries: the transposed one.
    turned: HashMap<(u32, usize), u32>,
}

impl Patterns {
    fn new() -> Self {
        let all = vec![[0; 32], [255; 32]];
        let ids = all.iter().copied().zip(0..).collect();
        Self { all, ids, parts: HashMap::new(), turned: HashMap::new() }
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
            self.number(small)
        };
        self.parts.insert(key, id);
        id
    }

    /// The number of a pattern.
    fn number(&mut self, small: Small) -> u32 {
        let next = self.all.len() as u32;
        *self.ids.entry(small).or_insert_with(|| {
            self.all.push(small);
            next
        })
    }

    /// The pattern with queries in the place of keys, of which only the first `queries` exist.
    fn transposed(&mut self, id: u32, queries: usize) -> u32 {
        if id == NONE || (id == ALL && queries == GROUP) {
            return id;
        }
        if let Some(&known) = self.turned.get(&(id, queries)) {
            return known;
        }
        let (small, mut turned) = (self.all[id as usize], [0; 32]);
        for (query, key) in (0..queries).flat_map(|query| (0..GROUP).map(move |key| (query, key))) {
            let seen = small[query / 8 * GROUP + key] >> (query % 8) & 1;
            turned[key / 8 * GROUP + query] |= seen << (key % 8);
        }
        let new = self.number(turned);
        self.turned.insert((id, queries), new);
        new
    }

    /// 8 words each.
    fn words(&self) -> Vec<u32> {
        let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        self.all.iter().flat_map(|small| small.chunks_exact(4).map(word)).collect()
    }
}

impl PrefillLists {
    /// For blocks of `warps` warps, or of as many as take the least time by [`TILE_COST`].
    pub fn new(mask: &BlockMask, warps: Option<usize>) -> Self {
        let grid = mask.grid;
        let mut patterns = Patterns::new();
        let mut seen = vec![[NONE; 4]; grid.kv_len.div_ceil(GROUP)];
        let mut blocks = Vec::new();
        for head in 0..mask.heads {
            for first in (0..grid.q_len).step_by(QUERIES) {
                blocks.push((head, first, groups(mask, head, first, &mut patterns, &mut seen)));
            }
        }
        let warps = warps.unwrap_or_else(|| cheapest(blocks.iter().map(|(.., groups)| groups.as_slice())));

        let (mut tiles, mut rows): (Vec<Tile>, Vec<[u32; 4]>) = (Vec::new(), Vec::new());
        for (head, first, groups) in blocks {
            for warp in (0..QUERIES / GROUP).step_by(warps) {
                let (first, start) = (first + warp * GROUP, tiles.len() as u32);
                if first < grid.q_len {
                    tiles.extend(tiles_of(&of_warps(&groups, warp, warps)));
                    rows.push([head as u32, first as u32, start, tiles.len() as u32 - start]);
                }
            }
        }

        let longest = (SPLIT_FROM * tiles.len()).div_ceil(rows.len().max(1)).max(MIN_SPLIT_TILES) as u32;
        let mut lists = Self { warps, ..Self::default() };
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
        lists.tiles = words_of(&tiles, warps);
        lists.patterns = patterns.words();
        lists
    }
}

/// A group's first key, and each warp's pattern.
type Group = (u32, [u32; 4]);

/// The number of warps of a block that takes the least time by [`TILE_COST`], for the groups of each 64 queries. The most of
/// those that take as long.
fn cheapest<'a>(blocks: impl Iterator<Item = &'a [Group]> + Clone) -> usize {
    let cost = |n: usize| {
        let warps = WARPS[n];
        let seen = |groups: &[Group], warp: usize| {
            let seen = |(_, ids): &&Group| ids[warp..warp + warps].iter().any(|&id| id != NONE);
            groups.iter().filter(seen).count().div_ceil(4)
        };
        let of_block = |groups: &[Group]| {
            (0..QUERIES / GROUP).step_by(warps).map(|warp| seen(groups, warp)).sum::<usize>()
        };
        (blocks.clone().map(of_block).sum::<usize>() * warps) as f64 * TILE_COST[n]
    };
    let costs: Vec<f64> = (0..WARPS.len()).map(cost).collect();
    let least = (0..WARPS.len()).rev().min_by(|&a, &b| costs[a].total_cmp(&costs[b]));
    WARPS[least.unwrap_or(WARPS.len() - 1)]
}

/// The groups that `count` warps from `warp` on attend to, with their patterns in front.
fn of_warps(groups: &[Group], warp: usize, count: usize) -> Vec<Group> {
    if count == QUERIES / GROUP {
        return groups.to_vec();
    }
    let mut own: Vec<Group> = groups.iter().map(|(key, ids)| (*key, own_of(ids, warp, count))).collect();
    own.retain(|(_, ids)| *ids != [NONE; 4]);
    own.sort_unstable_by_key(|(key, ids)| (class(ids), *key));
    own
}

/// The patterns of `count` warps from `warp` on, and none for the others.
fn own_of(ids: &[u32; 4], warp: usize, count: usize) -> [u32; 4] {
    let mut own = [NONE; 4];
    own[..count].copy_from_slice(&ids[warp..warp + count]);
    own
}

/// Groups of one class are neighbours: those that the same warps need, so that the others skip whole tiles; of these,
/// those that need no patterns.
fn class(of_warps: &[u32; 4]) -> ([bool; 4], bool) {
    (of_warps.map(|id| id == NONE), of_warps.iter().any(|&id| id > ALL))
}

/// Four groups to a tile.
fn tiles_of(groups: &[Group]) -> impl Iterator<Item = Tile> {
    groups.chunks(4).map(|groups| {
        let mut tile = Tile { keys: [groups[0].0; 4], seen: [[NONE; 4]; 4] };
        for (g, (key, of_warps)) in groups.iter().enumerate() {
            tile.keys[g] = *key;
            of_warps.iter().enumerate().for_each(|(warp, id)| tile.seen[warp][g] = *id);
        }
        tile
    })
}

/// The words of all tiles for `warps` warps, and of one more tile that may be read but is not used.
fn words_of(tiles: &[Tile], warps: usize) -> Vec<u32> {
    let unused = Tile { keys: [0; 4], seen: [[NONE; 4]; 4] };
    let mut words = Vec::with_capacity((tiles.len() + 1) * tile_words(warps as u32) as usize);
    tiles.iter().chain([&unused]).for_each(|tile| words.extend(tile.words(warps)));
    words
}

/// The tiles of each block of 64 rows of each mask head, in order.
#[derive(Debug)]
pub(crate) struct TileList {
    /// Where each block's begin, and after the last one's: [heads · blocks + 1].
    pub starts: Vec<u32>,
    /// [`TILE_WORDS`](kernels_gpu::attention::sparse::TILE_WORDS) words each, and one tile more than there are.
    pub tiles: Vec<u32>,
}

impl TileList {
    fn new(blocks: &[Vec<Tile>]) -> Self {
        let mut starts = vec![0];
        for block in blocks {
            starts.push(starts[starts.len() - 1] + block.len() as u32);
        }
        Self { starts, tiles: words_of(&blocks.concat(), QUERIES / GROUP) }
    }
}

/// The lists of the kernels of the gradients.
#[derive(Debug)]
pub(crate) struct BackwardLists {
    /// Rows are queries, and columns keys.
    pub queries: TileList,
    /// Rows are keys, and columns queries.
    pub keys: TileList,
    /// 8 words each, of both.
    pub patterns: Vec<u32>,
}

impl BackwardLists {
    pub fn new(mask: &BlockMask) -> Self {
        let grid = mask.grid;
        let mut patterns = Patterns::new();
        let (mut of_queries, mut of_keys) = (Vec::new(), Vec::new());
        let mut seen = vec![[NONE; 4]; grid.kv_len.div_ceil(GROUP)];
        for head in 0..mask.heads {
            // of each block of keys, the groups of queries that see any of them
            let mut seeing: Vec<Vec<Group>> = vec![Vec::new(); grid.kv_len.div_ceil(QUERIES)];
            for first in (0..grid.q_len).step_by(QUERIES) {
                let groups = groups(mask, head, first, &mut patterns, &mut seen);
                of_queries.push(tiles_of(&groups).collect());
                for (key, of_warps) in groups {
                    let (block, part) = (key as usize / QUERIES, key as usize % QUERIES / GROUP);
                    for (warp, id) in of_warps.into_iter().enumerate() {
                        let query = first + warp * GROUP;
                        if id == NONE || query >= grid.q_len {
                            continue;
                        }
                        let id = patterns.transposed(id, GROUP.min(grid.q_len - query));
                        let rows = &mut seeing[block];
                        match rows.iter_mut().rev().take(4).find(|(known, _)| *known == query as u32) {
                            Some((_, of_parts)) => of_parts[part] = id,
                            None => {
                                let mut of_parts = [NONE; 4];
                                of_parts[part] = id;
                                rows.push((query as u32, of_parts));
                            }
                        }
                    }
                }
            }
            of_keys.extend(seeing.iter().map(|groups| tiles_of(groups).collect()));
        }
        Self {
            queries: TileList::new(&of_queries),
            keys: TileList::new(&of_keys),
            patterns: patterns.words(),
        }
    }
}

/// The groups of 16 keys that any of 64 queries from `first` on attends to, by their class.
fn groups(
    mask: &BlockMask,
    head: usize,
    first: usize,
    patterns: &mut Patterns,
    seen: &mut [[u32; 4]],
) -> Vec<Group> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_mask::BlockGrid;

    /// Each block with this probability, in percent.
    fn random(block: usize, len: usize, percent: usize) -> BlockMask {
        let grid = BlockGrid::new(block, len, len).expect("valid");
        let mut state = 1u64;
        let mut chosen = move |_: &usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % 100 < percent
        };
        BlockMask::from_rule(grid, 2, |_, _| (0..grid.columns()).filter(&mut chosen).collect())
            .expect("valid")
    }

    /// The pairs that the tiles of the items list, each as often as it is listed.
    fn listed(mask: &BlockMask, lists: &PrefillLists) -> HashMap<(u32, u32, u32), usize> {
        let words = tile_words(lists.warps as u32) as usize;
        let mut pairs = HashMap::new();
        for item in &lists.items {
            for tile in lists.tiles.chunks_exact(words).skip(item.start as usize).take(item.tiles as usize) {
                for (n, &id) in tile[4..].iter().enumerate() {
                    let pattern = &lists.patterns[id as usize * 8..][..8];
                    for (query, key) in (0..16).flat_map(|query| (0..16).map(move |key| (query, key))) {
                        let byte = query / 8 * 16 + key;
                        let seen = pattern[byte / 4] >> (8 * (byte % 4) + query % 8) & 1 == 1;
                        let (i, j) = (item.first as usize + n / 4 * 16 + query, tile[n % 4] as usize + key);
                        if seen && i < mask.grid.q_len && j < mask.grid.kv_len {
                            *pairs.entry((item.head, i as u32, j as u32)).or_insert(0) += 1;
                        }
                    }
                }
            }
        }
        pairs
    }

    #[test]
    fn every_number_of_warps_lists_each_pair_once() {
        let grid = BlockGrid::new(16, 150, 170).expect("valid");
        let masks = [
            random(16, 200, 20),
            random(32, 200, 20),
            random(128, 300, 50),
            BlockMask::causal(grid).expect("valid"),
            BlockMask::global_window(BlockGrid::new(32, 90, 1500).expect("valid"), 3, 20, 20).expect("valid"),
        ];
        for mask in &masks {
            for warps in WARPS {
                let lists = PrefillLists::new(mask, Some(warps));
                let pairs = listed(mask, &lists);
                assert!(pairs.values().all(|&times| times == 1));
                for head in 0..mask.heads {
                    for (i, j) in
                        (0..mask.grid.q_len).flat_map(|i| (0..mask.grid.kv_len).map(move |j| (i, j)))
                    {
                        let found = pairs.contains_key(&(head as u32, i as u32, j as u32));
                        assert_eq!(found, mask.attends(head, i, j), "{warps} warps, head {head}, {i} {j}");
                    }
                }
            }
        }
    }

    #[test]
    fn as_many_warps_as_share_their_keys() {
        let chosen = |mask: &BlockMask| PrefillLists::new(mask, None).warps;
        for percent in [5, 25, 50] {
            let of_block = |block| chosen(&random(block, 2048, percent));
            assert_eq!([16, 32, 64, 128].map(of_block), [1, 2, 4, 4], "{percent} %");
        }
        let grid = BlockGrid::new(16, 1024, 1024).expect("valid");
        assert_eq!(chosen(&BlockMask::dense(grid).expect("valid")), 4);
        assert_eq!(chosen(&BlockMask::causal(grid).expect("valid")), 4);
        assert_eq!(chosen(&BlockMask::sliding_window(grid, 255, 0).expect("valid")), 4);
        let nothing = BlockMask::from_rule(grid, 1, |_, _| Vec::new()).expect("valid");
        assert_eq!(chosen(&nothing), 4);
    }
}
