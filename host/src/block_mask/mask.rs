//! A mask: its lists of blocks, and the patterns of those that are in it in part.

use crate::tensor::MAX_ELEMENTS;
use crate::{Error, Result};
use std::collections::HashMap;
use std::fmt;

pub(super) const OP: &str = "block_mask";

/// How queries and keys are divided into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGrid {
    pub(super) block: usize,
    pub(super) q_len: usize,
    pub(super) kv_len: usize,
}

impl BlockGrid {
    /// Blocks of `block` queries by `block` keys: 16, 32, 64 or 128. The last ones may be cut short.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for any other block, [`Error::TooLarge`] for lengths that no tensor has.
    pub fn new(block: usize, q_len: usize, kv_len: usize) -> Result<Self> {
        if ![16, 32, 64, 128].contains(&block) {
            let reason = "a block is 16, 32, 64 or 128 wide".into();
            return Err(Error::Unsupported { op: OP, argument: "block", value: block.to_string(), reason });
        }
        for (argument, len) in [("q_len", q_len), ("kv_len", kv_len)] {
            if len > MAX_ELEMENTS {
                let (elements, limit) = (len as u128, MAX_ELEMENTS as u128);
                return Err(Error::TooLarge { op: OP, argument, elements, limit });
            }
        }
        Ok(Self { block, q_len, kv_len })
    }

    /// Queries, and also keys, of a block.
    pub fn block(self) -> usize {
        self.block
    }

    /// Number of queries.
    pub fn q_len(self) -> usize {
        self.q_len
    }

    /// Number of keys.
    pub fn kv_len(self) -> usize {
        self.kv_len
    }

    /// Number of blocks of queries.
    pub fn rows(self) -> usize {
        self.q_len.div_ceil(self.block)
    }

    /// Number of blocks of keys.
    pub fn columns(self) -> usize {
        self.kv_len.div_ceil(self.block)
    }

    /// The key at the position of query `i`; negative if there are more queries than keys.
    pub(super) fn position(self, i: usize) -> i64 {
        i as i64 + self.kv_len as i64 - self.q_len as i64
    }

    /// Number of queries in block row `row`, and of keys in block column `column`.
    pub(super) fn sizes(self, row: usize, column: usize) -> (usize, usize) {
        let size = |index: usize, len: usize| self.block.min(len - index * self.block);
        (size(row, self.q_len), size(column, self.kv_len))
    }
}

/// The lowest `count` bits.
pub(super) fn low_bits(count: usize) -> u128 {
    if count >= 128 { u128::MAX } else { (1 << count) - 1 }
}

/// Which pairs of a block are in the mask: a word per query, a bit per key.
pub(super) type Pattern = Box<[u128]>;

/// Which part of a listed block is in the mask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell<'a> {
    Full,
    Part(&'a [u128]),
}

impl Cell<'_> {
    /// The keys that query `i` of the block attends to, as bits.
    pub(super) fn row(self, i: usize) -> u128 {
        match self {
            Self::Full => u128::MAX,
            Self::Part(rows) => rows[i],
        }
    }
}

/// Which keys each query attends to, per head or the same for all heads.
///
/// Blocks are listed row by row (compressed rows): those of block row r of head h are `row_starts[h · rows + r]` …
#[derive(Clone, Debug, PartialEq)]
pub struct BlockMask {
    pub(super) grid: BlockGrid,
    pub(super) heads: usize,
    pub(super) row_starts: Vec<u32>,
    /// The blocks' columns, ascending in each row.
    pub(super) columns: Vec<u32>,
    /// For each listed block: 0 if it is full, else 1 + the index of its pattern.
    pub(super) cells: Vec<u32>,
    /// Each pattern once, in the order of first use. A pattern is never empty or full; bits past the ends are 0.
    pub(super) patterns: Vec<Pattern>,
}

/// Builds a mask block by block, in order.
pub(super) struct Assembler {
    pub(super) mask: BlockMask,
    pub(super) ids: HashMap<Pattern, u32>,
}

impl Assembler {
    pub(super) fn new(grid: BlockGrid, heads: usize) -> Self {
        let (row_starts, columns, cells, patterns) = (vec![0], Vec::new(), Vec::new(), Vec::new());
        Self { mask: BlockMask { grid, heads, row_starts, columns, cells, patterns }, ids: HashMap::new() }
    }

    /// Appends a block to the current row, unless it is empty.
    pub(super) fn push(&mut self, column: usize, cell: Cell) {
        let row = (self.mask.row_starts.len() - 1) % self.mask.grid.rows();
        let (queries, keys) = self.mask.grid.sizes(row, column);
        let valid = low_bits(keys);
        let seen = |i: usize| cell.row(i) & valid;
        let id = if (0..queries).all(|i| seen(i) == valid) {
            0
        } else if (0..queries).all(|i| seen(i) == 0) {
            return;
        } else {
            let pattern: Pattern =
                (0..self.mask.grid.block).map(|i| if i < queries { seen(i) } else { 0 }).collect();
            match self.ids.get(&pattern) {
                Some(&id) => id,
                None => {
                    self.mask.patterns.push(pattern.clone());
                    let id = self.mask.patterns.len() as u32;
                    self.ids.insert(pattern, id);
                    id
                }
            }
        };
        self.mask.columns.push(column as u32);
        self.mask.cells.push(id);
    }

    pub(super) fn end_row(&mut self) -> Result<()> {
        let (blocks, limit) = (self.mask.columns.len(), u32::MAX as usize / 64);
        if blocks > limit {
            let (elements, limit) = (blocks as u128, limit as u128);
            return Err(Error::TooLarge { op: OP, argument: "blocks", elements, limit });
        }
        self.mask.row_starts.push(blocks as u32);
        Ok(())
    }
}

impl BlockMask {
    /// The sizes of sequences and blocks.
    pub fn grid(&self) -> BlockGrid {
        self.grid
    }

    /// Number of heads that have their own list; 1 if all share one.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Where the blocks of each row of blocks begin, head after head: [heads · rows + 1].
    pub fn row_starts(&self) -> &[u32] {
        &self.row_starts
    }

    /// The listed blocks' columns, ascending in each row: \[blocks\].
    pub fn columns(&self) -> &[u32] {
        &self.columns
    }

    /// Number of listed blocks over all heads.
    pub fn blocks(&self) -> usize {
        self.columns.len()
    }

    /// Number of listed blocks that are partial.
    pub fn partial_blocks(&self) -> usize {
        self.cells.iter().filter(|&&cell| cell != 0).count()
    }

    /// The listed blocks of a row, with their columns.
    pub(super) fn row(&self, head: usize, row: usize) -> impl Iterator<Item = (usize, Cell<'_>)> {
        let at = head * self.grid.rows() + row;
        let range = self.row_starts[at] as usize..self.row_starts[at + 1] as usize;
        range.map(|i| (self.columns[i] as usize, self.cell(i)))
    }

    pub(super) fn cell(&self, i: usize) -> Cell<'_> {
        match self.cells[i] {
            0 => Cell::Full,
            id => Cell::Part(&self.patterns[id as usize - 1]),
        }
    }

    /// The listed block at a column of a row.
    pub(super) fn find(&self, head: usize, row: usize, column: usize) -> Option<Cell<'_>> {
        let at = head * self.grid.rows() + row;
        let start = self.row_starts[at] as usize;
        let columns = &self.columns[start..self.row_starts[at + 1] as usize];
        columns.binary_search(&(column as u32)).ok().map(|i| self.cell(start + i))
    }

    /// Whether query `i` of head `head` attends to key `j`; false outside the lengths.
    pub fn attends(&self, head: usize, i: usize, j: usize) -> bool {
        let BlockGrid { block, q_len, kv_len } = self.grid;
        if head >= self.heads || i >= q_len || j >= kv_len {
            return false;
        }
        let cell = self.find(head, i / block, j / block);
        cell.is_some_and(|cell| cell.row(i % block) >> (j % block) & 1 == 1)
    }

    /// The listed blocks that contain query `i`: each block's column, and the keys that the query attends to, as bits.
    pub(crate) fn seen_by(&self, head: usize, i: usize) -> impl Iterator<Item = (usize, u128)> {
        let block = self.grid.block;
        self.row(head, i / block).map(move |(column, cell)| (column, cell.row(i % block)))
    }

    /// The keys of block column `column` that query `i` attends to, as bits; past kv_len they may be ones.
    pub(crate) fn row_bits(&self, head: usize, i: usize, column: usize) -> u128 {
        let block = self.grid.block;
        self.find(head, i / block, column).map_or(0, |cell| cell.row(i % block))
    }

    /// The number of pairs of a query and a key that it attends to, over all heads.
    pub fn pairs(&self) -> u64 {
        let of_pattern = |pattern: &Pattern| pattern.iter().map(|row| u64::from(row.count_ones())).sum();
        let of_patterns: Vec<u64> = self.patterns.iter().map(of_pattern).collect();
        let mut pairs = 0;
        for at in 0..self.row_starts.len() - 1 {
            for i in self.row_starts[at] as usize..self.row_starts[at + 1] as usize {
                let (queries, keys) = self.grid.sizes(at % self.grid.rows().max(1), self.columns[i] as usize);
                pairs += match self.cells[i] {
                    0 => (queries * keys) as u64,
                    id => of_patterns[id as usize - 1],
                };
            }
        }
        pairs
    }

    /// The share of all blocks that is listed, to which the time is proportional; 0 if there is no block.
    pub fn density(&self) -> f64 {
        share(self.blocks() as f64, (self.heads * self.grid.rows() * self.grid.columns()) as f64)
    }

    /// The work and memory of attention with this mask.
    pub fn cost(&self, num_q_heads: usize, head_dim: usize) -> Cost {
        let per_block = (4 * self.grid.block * self.grid.block * head_dim) as f64;
        let grid = (self.grid.rows() * self.grid.columns()) as f64;
        let repeats = share(num_q_heads as f64, self.heads as f64);
        let words = self.row_starts.len() + 2 * self.columns.len();
        let patterns = self.patterns.len() * self.grid.block * size_of::<u128>();
        Cost {
            flops: per_block * self.blocks() as f64 * repeats,
            dense_flops: per_block * grid * num_q_heads as f64,
            bytes: words * size_of::<u32>() + patterns,
        }
    }
}

/// The work and memory of attention with a mask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Operations of the listed blocks; a multiply-add is two.
    pub flops: f64,
    /// Operations if all blocks were listed.
    pub dense_flops: f64,
    /// Bytes of the lists and patterns.
    pub bytes: usize,
}

fn share(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

/// One line: sizes, blocks, density.
impl fmt::Display for BlockMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BlockGrid { block, q_len, kv_len } = self.grid;
        let (blocks, partial) = (self.blocks(), self.partial_blocks());
        let all = (self.heads * q_len) as f64 * kv_len as f64;
        write!(
            f,
            "{q_len} × {kv_len} in blocks of {block}, {}: {blocks} blocks listed ({:.1} %), {partial} of them in part; \
             {:.1} % of the pairs seen; {} of lists",
            if self.heads == 1 { "one mask for all heads".into() } else { format!("{} heads", self.heads) },
            100.0 * self.density(),
            100.0 * share(self.pairs() as f64, all),
            crate::format_bytes(self.cost(1, 0).bytes),
        )
    }
}
