//! The tiles of a quantised product by the vector instructions of x86.
//!
//! | file       | processors                 | columns of a tile | products                                             |
//! |------------|----------------------------|-------------------|------------------------------------------------------|
//! | [`avx512`] | AVX-512 F, BW and VNNI     | 16                | four bytes' at once, added in 32 bits                |
//! | [`avx2`]   | AVX2, FMA and F16C         | 8                 | two bytes' at once, of signed quants in 16 bits      |
//!
//! Idea: a register's lanes are columns of y. Blocks of 32 values of as many rows of w are unpacked to bytes and transposed by words of
//! four values, once for up to [`ROWS`] rows of x. Each word of x is then broadcast, multiplied and added. So a block needs no horizontal
//! additions, and its factors apply to all columns at once.
//!
//! The rows of a tile are short streams, which the hardware prefetcher does not follow. So a task begins with a prefetch of its first
//! tile, and while a tile is computed, the task's next one, which follows it in memory, is prefetched.
//!
//! A closure passed to a function of the standard library is not inlined, because that function is compiled without these target
//! features. So there are loops here where other files have iterators.

pub(super) mod avx2;
pub(super) mod avx512;

use super::tile::{Activations, Factors, ROWS};
use crate::parallel::InTasks;
use crate::quant::{Format, QuantTensor, bits, bytes};
use kernels_gpu::quant::blocks::{BLOCK, BLOCKS_PER_SUPER};
use rayon::prelude::*;
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

/// Words of four quants of a block.
const WORDS: usize = BLOCK / 4;

/// Bytes of the quants of eight blocks of a row.
const fn group_bytes(format: Format) -> usize {
    BLOCKS_PER_SUPER * BLOCK / 8 * bits(format)
}

/// The memory of a weight tensor.
pub(super) struct WeightBytes<'a> {
    format: Format,
    rows: usize,
    blocks: usize,
    /// The bytes of a row's quants, and of its scales.
    row_bytes: [usize; 2],
    quants: &'a [u8],
    scales: &'a [u8],
}

impl<'a> WeightBytes<'a> {
    pub fn new(w: &'a QuantTensor) -> Self {
        let (quants, scales) = (bytes(&w.quants), bytes(&w.scales));
        let format = w.format();
        let row_bytes = [w.k / 8 * bits(format), format.descriptor().scales.row_bytes(w.k)];
        Self { format, rows: w.rows(), blocks: w.k / BLOCK, row_bytes, quants, scales }
    }

    /// Where the quants and the scales of this row are, or would be.
    fn addresses(&self, row: usize) -> [*const u8; 2] {
        let [quants, scales] = self.row_bytes;
        [self.quants.as_ptr().wrapping_add(row * quants), self.scales.as_ptr().wrapping_add(row * scales)]
    }

    /// Asks for the rows of a task's first tile.
    fn prefetch<const N: usize>(&self, first: usize) {
        for (at, bytes) in self.addresses(first).into_iter().zip(self.row_bytes) {
            prefetch(at, 0, bytes * N);
        }
    }

    /// Quants and scales of the rows from `first` on. Past the last row, the last row is repeated.
    fn rows<const N: usize>(&self, first: usize) -> [(&'a [u8], &'a [u8]); N] {
        let [quants, scales] = self.row_bytes;
        std::array::from_fn(|i| {
            let row = (first + i).min(self.rows - 1);
            (&self.quants[row * quants..][..quants], &self.scales[row * scales..][..scales])
        })
    }
}

/// Asks for these bytes after an address.
#[inline(always)]
fn prefetch(at: *const u8, from: usize, to: usize) {
    for line in (from..to).step_by(64) {
        // SAFETY: a prefetch does not access memory, and every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(line).cast()) };
    }
}

/// `N` rows of w, by groups of eight blocks, whose quants are `G` bytes.
struct Tile<'a, const N: usize, const G: usize> {
    quants: [&'a [[u8; G]]; N],
    scales: [&'a [u8]; N],
    /// The quants of a last group of fewer than eight blocks, padded with zeros; the steps there are zero too.
    rest: &'a [[u8; G]; N],
    groups: usize,
    /// The quants and the scales of the task's next tile, if it has one, and the bytes of its scales for each group of this one.
    next: Option<([*const u8; 2], usize)>,
}

impl<'a, const N: usize, const G: usize> Tile<'a, N, G> {
    /// The rows from `first` on, of a task whose rows end before `end`. `rest` is zero, or comes from another tile of the same weights.
    #[inline]
    fn new(w: &WeightBytes<'a>, first: usize, end: usize, rest: &'a mut [[u8; G]; N]) -> Self {
        let (rows, groups) = (w.rows::<N>(first), w.blocks.div_ceil(BLOCKS_PER_SUPER));
        let (mut quants, mut scales) = ([&[][..]; N], [&[][..]; N]);
        for (i, (row, of_row)) in rows.into_iter().enumerate() {
            let (whole, last) = row.as_chunks();
            (quants[i], scales[i]) = (whole, of_row);
            rest[i][..last.len()].copy_from_slice(last);
        }
        let scales_of_group = (w.row_bytes[1] * N).div_ceil(groups.max(1));
        let next = (first + N < end).then(|| (w.addresses(first + N), scales_of_group));
        Self { quants, scales, rest, groups, next }
    }

    /// The quants of eight blocks of each row. Prefetches as much of the next tile.
    #[inline(always)]
    fn group(&self, group: usize) -> [&'a [u8; G]; N] {
        if let Some(([quants, scales], bytes)) = self.next {
            prefetch(quants, group * G * N, (group + 1) * G * N);
            prefetch(scales, group * bytes, (group + 1) * bytes);
        }
        let mut rows = [&self.rest[0]; N];
        for (row, (quants, rest)) in rows.iter_mut().zip(self.quants.iter().zip(self.rest)) {
            *row = if group < quants.len() { &quants[group] } else { rest };
        }
        rows
    }
}

/// Up to [`ROWS`] rows of x, grouped by block.
#[derive(Clone, Default)]
pub(super) struct Panel {
    rows: usize,
    /// [blocks, rows, words]: 8 words of four bytes, or 16 words of two 16-bit numbers (the even ones of four, then the odd
    /// ones).
    words: Vec<u32>,
    /// [blocks, rows]
    factors: Vec<Factors>,
}

/// The rows of x in panels, as bytes or in 16 bits.
fn panels(x: Activations, in_16_bits: bool) -> Vec<Panel> {
    let panel = |first: usize| {
        let rows = ROWS.min(x.rows() - first);
        let (blocks, per_block) = (x.k / BLOCK, if in_16_bits { 2 * WORDS } else { WORDS });
        let mut words = vec![0; blocks * rows * per_block];
        let mut factors = vec![Factors::default(); blocks * rows];
        for row in 0..rows {
            let (quants, scales) = x.row(first + row);
            for (b, (quants, scales)) in quants.chunks_exact(BLOCK).zip(scales.chunks_exact(2)).enumerate() {
                let words = &mut words[(b * rows + row) * per_block..][..per_block];
                let fours = quants.chunks_exact(4);
                if in_16_bits {
                    for (words, four) in words.chunks_exact_mut(2).zip(fours) {
                        let pair = |low: i8, high: i8| low as i16 as u16 as u32 | (high as i16 as u32) << 16;
                        (words[0], words[1]) = (pair(four[0], four[2]), pair(four[1], four[3]));
                    }
                } else {
                    for (word, four) in words.iter_mut().zip(fours) {
                        *word = u32::from_le_bytes([four[0], four[1], four[2], four[3]].map(|x| x as u8));
                    }
                }
                factors[b * rows + row] = Factors::new(quants, scales);
            }
        }
        Panel { rows, words, factors }
    };
    let mut panels = vec![Panel::default(); x.rows().div_ceil(ROWS)];
    panels.par_iter_mut().enumerate().in_tasks(|(i, to)| *to = panel(i * ROWS));
    panels
}

/// Stores the columns that exist.
fn store(y: &mut [f32], acc: &[f32]) {
    let len = y.len().min(acc.len());
    y[..len].copy_from_slice(&acc[..len]);
}
