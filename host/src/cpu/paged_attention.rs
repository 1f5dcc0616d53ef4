//! Attention over keys and values in pages: as [`attention`](super::attention), with keys found through a page table.

use super::attention::{Keys, Seen, attention_over};
use super::slice;
use crate::kv::KvView;
use crate::problem::attention::Problem;
use crate::{Error, Result, Tensor, TensorMut};
use kernels_gpu::attention::paged::PAGE;

/// The sequences' keys.
struct Paged<'a> {
    problem: &'a Problem,
    /// [sequences, width]
    tables: &'a [u32],
    width: usize,
    /// Number of keys of each sequence.
    lens: &'a [u32],
}

impl Paged<'_> {
    /// The problem of one sequence, that of query head `head` counted over all sequences.
    fn alone(&self, head: usize) -> Problem {
        let len = self.lens[head / self.problem.num_q_heads] as usize;
        Problem { kv_len: len.min(self.width * PAGE as usize), ..*self.problem }
    }
}

impl Keys for Paged<'_> {
    fn tiles(&self, head: usize, first: usize) -> Vec<(usize, usize)> {
        self.alone(head).tiles(head, first)
    }

    fn rows(&self, head: usize, tile: usize, rows: &mut [usize]) {
        let table = &self.tables[head / self.problem.num_q_heads * self.width..];
        for (key, row) in (tile..).zip(rows) {
            let (page, rows) = (table[key / PAGE as usize] as usize, PAGE as usize);
            *row = page * rows + key % rows; // in the pool: the page numbers were checked
        }
    }

    fn seen(&self, head: usize, i: usize, tile: usize) -> Seen {
        self.alone(head).seen(head, i, tile)
    }
}

/// Refuses a page that is not among the rows up to `last_row`, of those that a sequence of `len` keys has. The error names the op and argument.
///
/// # Errors
/// [`Error::Unsupported`].
pub(super) fn check_pages(
    [op, argument]: [&'static str; 2],
    table: &[u32],
    len: usize,
    last_row: usize,
) -> Result<()> {
    let pages = (last_row + 1) / PAGE as usize;
    let mut of_its_keys = table.iter().take(len.div_ceil(PAGE as usize));
    match of_its_keys.find(|&&page| page as usize >= pages) {
        None => Ok(()),
        Some(page) => {
            let (value, reason) = (format!("page {page}"), format!("the pool has {pages} pages"));
            Err(Error::Unsupported { op, argument, value, reason })
        }
    }
}

/// [`check_pages`] of sequences with a row of `tables` and an entry of `lens` each.
pub(crate) fn check_tables(
    at: [&'static str; 2],
    tables: &Tensor,
    lens: &[u32],
    last_row: usize,
) -> Result<()> {
    let Some(&width) = tables.dims().last().filter(|&&width| width > 0) else { return Ok(()) };
    let mut of_sequences = slice::<u32>(tables)?.chunks_exact(width).zip(lens);
    of_sequences.try_for_each(|(table, &len)| check_pages(at, table, len as usize, last_row))
}

/// Attention of problem.batch sequences, each with a row of `tables` and an entry of `lens`. Errors name `argument`.
///
/// # Errors
/// [`Error::Unsupported`] if a page of a sequence is not in the pool.
pub(crate) fn paged_attention(
    out: TensorMut,
    q: &Tensor,
    kv: [KvView; 2],
    (argument, tables): (&'static str, &Tensor),
    lens: &[u32],
    last_row: usize,
    problem: &Problem,
) -> Result<()> {
    let width = tables.dims().last().copied().unwrap_or(0);
    check_tables(["paged_attention", argument], tables, lens, last_row)?;
    let tables = if width == 0 { &[][..] } else { slice::<u32>(tables)? };
    attention_over(out, q, kv, problem, &Paged { problem, tables, width, lens })
}
