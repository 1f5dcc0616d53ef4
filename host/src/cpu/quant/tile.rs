//! The tiles of a product, and the activations that they read.

use crate::Result;
use crate::cpu::slice;
use crate::quant::QuantRows;
use kernels_gpu::quant::blocks::BLOCK;
use std::ops::Range;

/// Rows of x in a piece: 96 KiB for 2048 columns, which leaves room for weights in an L2 cache of 256 KiB.
pub(super) const ROWS: usize = 32;

/// Quantised activations: rows of `k` quants, and for each block the bits of its scale and the sum of its quants.
#[derive(Clone, Copy)]
pub(super) struct Activations<'a> {
    pub quants: &'a [i8],
    pub scales: &'a [u32],
    pub k: usize,
}

impl<'a> Activations<'a> {
    pub fn new(x: &'a QuantRows) -> Result<Self> {
        let quants = &bytemuck::cast_slice(slice::<u32>(&x.quants)?)[..x.shape.rows_cols().0 * x.k];
        Ok(Self { quants, scales: slice::<u32>(&x.scales)?, k: x.k })
    }

    /// Some of the rows.
    pub fn range(&self, rows: &Range<usize>) -> Self {
        let blocks = self.k / BLOCK * 2;
        Self {
            quants: &self.quants[rows.start * self.k..rows.end * self.k],
            scales: &self.scales[rows.start * blocks..rows.end * blocks],
            k: self.k,
        }
    }

    pub fn rows(&self) -> usize {
        self.quants.len() / self.k
    }

    /// The factors of a row's blocks.
    pub fn factors(&self, row: usize) -> Vec<Factors> {
        let (quants, scales) = self.row(row);
        let blocks = quants.chunks_exact(BLOCK).zip(scales.chunks_exact(2));
        blocks.map(|(quants, scales)| Factors::new(quants, scales)).collect()
    }

    /// The quants of a row, and the scales and sums of its blocks.
    pub fn row(&self, row: usize) -> (&'a [i8], &'a [u32]) {
        let blocks = self.k / BLOCK * 2;
        (&self.quants[row * self.k..][..self.k], &self.scales[row * blocks..][..blocks])
    }
}

/// The factors of one block of a row of x.
#[derive(Clone, Copy, Default)]
pub(super) struct Factors {
    pub scale: f32,
    /// The sum of the quants of each half.
    pub sums: [i32; 2],
}

impl Factors {
    /// From a block's quants, its scale's bits and the sum of its quants.
    pub fn new(quants: &[i8], scales: &[u32]) -> Self {
        let first_half = quants[..BLOCK / 2].iter().map(|&x| i32::from(x)).sum();
        Self { scale: f32::from_bits(scales[0]), sums: [first_half, scales[1] as i32 - first_half] }
    }
}
