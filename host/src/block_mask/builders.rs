//! The masks of the literature, and masks from lists and matrices.

use super::mask::{Assembler, BlockGrid, BlockMask, Cell, OP, low_bits};
use crate::{Error, Result};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

impl BlockMask {
    /// Every query attends to every key.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for more than 2²⁶ blocks.
    pub fn dense(grid: BlockGrid) -> Result<Self> {
        Self::ranges(grid, |_| 0..grid.kv_len)
    }

    /// Query i attends to the keys up to its position i + kv_len − q_len.
    ///
    /// # Errors
    /// As [`dense`](Self::dense).
    pub fn causal(grid: BlockGrid) -> Result<Self> {
        Self::ranges(grid, |i| 0..clamp(grid, grid.position(i) + 1))
    }

    /// This mask without the keys after each query's position.
    ///
    /// # Errors
    /// Never fails for a valid mask.
    pub fn and_causal(&self) -> Result<Self> {
        self.intersection(&Self::causal(self.grid)?)
    }

    /// Whether plain attention computes the same: `Some(false)` if all pairs are in the mask, `Some(true)` if it is causal.
    pub(crate) fn plain(&self) -> Option<bool> {
        let heads = self.heads as u64;
        let pairs = self.pairs();
        if pairs == heads * self.grid.q_len as u64 * self.grid.kv_len as u64 {
            return Some(false);
        }
        let causal = Self::causal(self.grid).ok()?;
        let same = pairs == heads * causal.pairs() && self.intersection(&causal).ok()?.pairs() == pairs;
        same.then_some(true)
    }

    /// A query attends to the key at its position, `before` keys before and `after` keys after it.
    ///
    /// # Errors
    /// As [`dense`](Self::dense).
    pub fn sliding_window(grid: BlockGrid, before: usize, after: usize) -> Result<Self> {
        let [before, after] = [before, after].map(|keys| i64::try_from(keys).unwrap_or(i64::MAX / 2));
        Self::ranges(grid, |i| {
            let at = grid.position(i);
            clamp(grid, at.saturating_sub(before))..clamp(grid, at.saturating_add(after).saturating_add(1))
        })
    }

    /// A sliding window, and `global` first tokens that attend to every key and that every query attends to.
    ///
    /// Source: Beltagy et al. 2020, "Longformer", section 3.1. Causal with [`and_causal`](Self::and_causal).
    ///
    /// # Errors
    /// As [`dense`](Self::dense).
    pub fn global_window(grid: BlockGrid, global: usize, before: usize, after: usize) -> Result<Self> {
        let is_global = |i| grid.position(i) < i64::try_from(global).unwrap_or(i64::MAX);
        let tokens =
            Self::ranges(grid, |i| 0..if is_global(i) { grid.kv_len } else { global.min(grid.kv_len) })?;
        tokens.union(&Self::sliding_window(grid, before, after)?)
    }

    /// A query attends to the `stride` blocks up to its own, and before them each `stride`-th block; causal.
    ///
    /// Source: Child et al. 2019, "Generating long sequences with sparse transformers", section 4.3. It is applied to
    /// blocks, not tokens, as in the authors' own kernels. One mask holds both heads of the factorisation.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a stride of 0, and as [`dense`](Self::dense).
    pub fn strided(grid: BlockGrid, stride: usize) -> Result<Self> {
        not_zero("stride", stride)?;
        let seen = |own: &Range<usize>, column: usize| {
            let back = distance(own, column);
            back < stride || back.is_multiple_of(stride)
        };
        Self::by_distance(grid, seen)?.and_causal()
    }

    /// Blocks form segments of `stride`. A query attends to its own segment, and to the last `summary` blocks of each
    /// segment before it; causal. Source: as [`strided`](Self::strided).
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a stride of 0, and as [`dense`](Self::dense).
    pub fn fixed(grid: BlockGrid, stride: usize, summary: usize) -> Result<Self> {
        not_zero("stride", stride)?;
        let seen = |own: &Range<usize>, column: usize| {
            let segment = column / stride;
            (own.start / stride..=(own.end - 1) / stride).contains(&segment)
                || column % stride >= stride.saturating_sub(summary)
        };
        Self::by_distance(grid, seen)?.and_causal()
    }

    /// A window of `window` blocks to both sides of a query's own block, `global` first blocks that attend to all and are
    /// attended to by all, and `random` further blocks in each row. Each of `heads` heads has its own random blocks.
    ///
    /// Source: Zaheer et al. 2020, "Big Bird", section 2 (the variant ITC). Causal with [`and_causal`](Self::and_causal),
    /// which removes about half of the random blocks. Equal seeds give equal masks on all machines.
    ///
    /// # Errors
    /// As [`dense`](Self::dense).
    pub fn big_bird(
        grid: BlockGrid,
        heads: usize,
        window: usize,
        global: usize,
        random: usize,
        seed: u64,
    ) -> Result<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Self::from_rule(grid, heads, |_, row| {
            let Some(own) = own_blocks(grid, row) else { return Vec::new() };
            let near =
                |&column: &usize| own.start < global || column < global || distance(&own, column) <= window;
            let (mut seen, mut far): (Vec<usize>, Vec<usize>) = (0..grid.columns()).partition(near);
            let (drawn, _) = far.partial_shuffle(&mut rng, random);
            seen.extend_from_slice(drawn);
            seen
        })
    }

    /// Query i attends to the keys `keys(i)`, a range clipped at kv_len: documents packed into one sequence, for
    /// example.
    ///
    /// # Errors
    /// As [`dense`](Self::dense).
    pub fn ranges(grid: BlockGrid, keys: impl Fn(usize) -> Range<usize>) -> Result<Self> {
        let block = grid.block;
        let mut mask = Assembler::new(grid, 1);
        let mut pattern = vec![0; block];
        for row in 0..grid.rows() {
            let queries = row * block..grid.q_len.min((row + 1) * block);
            let seen: Vec<Range<usize>> = queries
                .map(|i| {
                    let Range { start, end } = keys(i);
                    start.min(grid.kv_len)..end.min(grid.kv_len)
                })
                .collect();
            let some = || seen.iter().filter(|keys| !keys.is_empty());
            let first = some().map(|keys| keys.start / block).min().unwrap_or(0);
            let end = some().map(|keys| keys.end.div_ceil(block)).max().unwrap_or(0);
            for column in first..end {
                let (start, stop) = (column * block, grid.kv_len.min((column + 1) * block));
                if seen.iter().all(|keys| keys.start <= start && keys.end >= stop) {
                    mask.push(column, Cell::Full);
                    continue;
                }
                for (bits, keys) in pattern.iter_mut().zip(&seen) {
                    let inside = |at: usize| at.clamp(start, start + block) - start;
                    *bits = low_bits(inside(keys.end)) & !low_bits(inside(keys.start));
                }
                mask.push(column, Cell::Part(&pattern));
            }
            mask.end_row()?;
        }
        Ok(mask.mask)
    }

    /// Each of `heads` heads attends to all of the blocks that `columns(head, row)` lists, in any order.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a column that does not exist, and as [`dense`](Self::dense).
    pub fn from_rule(
        grid: BlockGrid,
        heads: usize,
        mut columns: impl FnMut(usize, usize) -> Vec<usize>,
    ) -> Result<Self> {
        let mut mask = Assembler::new(grid, heads);
        for head in 0..heads {
            for row in 0..grid.rows() {
                let mut columns = columns(head, row);
                columns.sort_unstable();
                columns.dedup();
                if let Some(column) = columns.last().filter(|&&column| column >= grid.columns()) {
                    let reason = format!("row {row} of head {head} has {} columns", grid.columns());
                    return Err(unsupported("column", column, reason));
                }
                columns.iter().for_each(|&column| mask.push(column, Cell::Full));
                mask.end_row()?;
            }
        }
        Ok(mask.mask)
    }

    /// From compressed rows, as [`row_starts`](Self::row_starts) and [`columns`](Self::columns) give them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if `row_starts` is not heads · rows + 1 ascending numbers from 0 to the number of columns, or
    /// if a row's columns do not ascend or do not exist.
    pub fn from_compressed(
        grid: BlockGrid,
        heads: usize,
        row_starts: &[u32],
        columns: &[u32],
    ) -> Result<Self> {
        let wanted = heads.checked_mul(grid.rows()).and_then(|rows| rows.checked_add(1));
        let ends = (row_starts.first(), row_starts.last());
        let complete = ends == (Some(&0), Some(&(columns.len() as u32)));
        if wanted != Some(row_starts.len()) || !complete || !row_starts.is_sorted() {
            let reason = format!("it must ascend from 0 to {} in heads · rows + 1 steps", columns.len());
            return Err(unsupported("row_starts", format!("{} numbers", row_starts.len()), reason));
        }
        let row = |at: usize| &columns[row_starts[at] as usize..row_starts[at + 1] as usize];
        if let Some(at) = (0..row_starts.len() - 1).find(|&at| !row(at).is_sorted_by(|a, b| a < b)) {
            return Err(unsupported("columns", format!("{:?}", row(at)), "a row's columns must ascend"));
        }
        Self::from_rule(grid, heads, |head, block_row| {
            row(head * grid.rows() + block_row).iter().map(|&column| column as usize).collect()
        })
    }

    /// From a matrix of booleans [heads, q_len, kv_len], row-major: true where a query attends to a key.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it does not have heads · q_len · kv_len entries, and as [`dense`](Self::dense).
    pub fn from_matrix(grid: BlockGrid, heads: usize, matrix: &[bool]) -> Result<Self> {
        let entries = heads.checked_mul(grid.q_len).and_then(|rows| rows.checked_mul(grid.kv_len));
        if entries != Some(matrix.len()) {
            let reason = format!("[{heads}, {}, {}] are needed", grid.q_len, grid.kv_len);
            return Err(unsupported("matrix", format!("{} entries", matrix.len()), reason));
        }
        let mut mask = Assembler::new(grid, heads);
        let mut pattern = vec![0; grid.block];
        for head in 0..heads {
            for row in 0..grid.rows() {
                for column in 0..grid.columns() {
                    let (queries, keys) = grid.sizes(row, column);
                    for (i, bits) in pattern[..queries].iter_mut().enumerate() {
                        let at =
                            (head * grid.q_len + row * grid.block + i) * grid.kv_len + column * grid.block;
                        let seen = matrix[at..at + keys].iter().enumerate();
                        *bits = seen.fold(0, |bits, (j, &seen)| bits | u128::from(seen) << j);
                    }
                    mask.push(column, Cell::Part(&pattern));
                }
                mask.end_row()?;
            }
        }
        Ok(mask.mask)
    }

    /// All blocks up to a query's own for which `seen(own blocks, column)` is true.
    fn by_distance(grid: BlockGrid, seen: impl Fn(&Range<usize>, usize) -> bool) -> Result<Self> {
        Self::from_rule(grid, 1, |_, row| {
            let own = own_blocks(grid, row).unwrap_or(0..0);
            (0..own.end).filter(|&column| seen(&own, column)).collect()
        })
    }
}

/// A position as a key's index, clipped at both ends.
fn clamp(grid: BlockGrid, position: i64) -> usize {
    position.clamp(0, grid.kv_len as i64) as usize
}

/// The block columns that contain the positions of a block row. Two, where kv_len − q_len is no multiple of the block;
/// `None` if all positions are before the first key.
pub(super) fn own_blocks(grid: BlockGrid, row: usize) -> Option<Range<usize>> {
    let last = grid.position(grid.q_len.min((row + 1) * grid.block) - 1);
    let first = grid.position(row * grid.block).max(0);
    (last >= 0).then(|| first as usize / grid.block..last as usize / grid.block + 1)
}

/// Distance in blocks from `column` to the nearest of `own`.
fn distance(own: &Range<usize>, column: usize) -> usize {
    own.start.saturating_sub(column).max((column + 1).saturating_sub(own.end))
}

fn not_zero(argument: &'static str, value: usize) -> Result<()> {
    if value == 0 { Err(unsupported(argument, value, "it must be at least 1")) } else { Ok(()) }
}

fn unsupported(argument: &'static str, value: impl ToString, reason: impl Into<String>) -> Error {
    Error::Unsupported { op: OP, argument, value: value.to_string(), reason: reason.into() }
}
