//! Columns of a quantised product by any processor's instructions; of x86-64's by SSE2, which all have.
//!
//! Four rows of w at a time are decoded to 16 bits, once for all rows of x, which are in 16 bits too: `pmaddwd` adds their products in pairs.
//! Sums of blocks are side by side for the rows of w, as in the other tiles.

use super::row::{DecodedRow, read_row};
use super::tile::{Activations, Factors};
use crate::Result;
use crate::quant::QuantTensor;
use kernels_gpu::quant::blocks::BLOCK;

/// Columns of a tile.
pub(super) const TILE: usize = 8;

/// The rows of x, of k quants each, and their blocks' factors.
pub(super) struct Rows {
    k: usize,
    quants: Vec<i16>,
    factors: Vec<Factors>,
}

impl Rows {
    pub fn new(x: Activations) -> Self {
        let quants = x.quants.iter().map(|&quant| quant.into()).collect();
        Self { k: x.k, quants, factors: (0..x.rows()).flat_map(|row| x.factors(row)).collect() }
    }
}

/// Computes the columns of y from number `first` on, for all rows.
pub(super) fn columns(y: &mut [&mut [f32]], x: &Rows, w: &QuantTensor, first: usize) -> Result<()> {
    let columns = y.first().map_or(0, |y| y.len());
    let mut lines = Lines::new(x.k);
    for start in (0..columns).step_by(LINES) {
        for line in 0..LINES {
            lines.set(line, read_row(w, first + (start + line).min(columns - 1))?); // past the end the last one again
        }
        let rows = x.quants.chunks_exact(x.k).zip(x.factors.chunks_exact(x.k / BLOCK));
        for (y, (x, factors)) in y.iter_mut().zip(rows) {
            let to = &mut y[start..];
            let count = to.len().min(LINES);
            to[..count].copy_from_slice(&lines.products(x, factors)[..count]);
        }
    }
    Ok(())
}

/// Rows of w that are multiplied together: as many as a register has f32.
const LINES: usize = 4;

/// Some rows of w.
struct Lines {
    quants: [Vec<i16>; LINES],
    /// Of each block: the step and the minimum of its first half, then those of the second, for each row.
    factors: Vec<[[f32; LINES]; 4]>,
    halves: bool,
}

impl Lines {
    fn new(k: usize) -> Self {
        let quants = [(); LINES].map(|()| vec![0; k]);
        Self { quants, factors: vec![[[0.0; LINES]; 4]; k / BLOCK], halves: false }
    }

    fn set(&mut self, line: usize, row: DecodedRow) {
        self.quants[line].iter_mut().zip(&row.quants).for_each(|(wide, &quant)| *wide = quant.into());
        for (factors, [first, second]) in self.factors.iter_mut().zip(&row.steps) {
            for (to, factor) in factors.iter_mut().zip([first.0, first.1, second.0, second.1]) {
                to[line] = factor;
            }
        }
        self.halves = row.halves;
    }

    /// The dot products of a row of x and these: integer sums within blocks, f32 over blocks.
    fn products(&self, x: &[i16], of_x: &[Factors]) -> [f32; LINES] {
        let mut all = [0.0; LINES];
        let [a, b, c, d] = self.quants.each_ref().map(|quants| quants.as_chunks::<BLOCK>().0);
        let w = a.iter().zip(b).zip(c.iter().zip(d));
        let blocks = x.as_chunks::<BLOCK>().0.iter().zip(of_x).zip(&self.factors).zip(w);
        for (((x, of_x), [steps, minima, steps2, minima2]), ((a, b), (c, d))) in blocks {
            let [first, second] = sums_of_halves(x, [a, b, c, d]);
            for i in 0..LINES {
                let product = if self.halves {
                    let first = first[i] as f32 * steps[i] - of_x.sums[0] as f32 * minima[i];
                    first + (second[i] as f32 * steps2[i] - of_x.sums[1] as f32 * minima2[i])
                } else {
                    (first[i] + second[i]) as f32 * steps[i]
                        - (of_x.sums[0] + of_x.sums[1]) as f32 * minima[i]
                };
                all[i] += of_x.scale * product;
            }
        }
        all
    }
}

/// Σ x·w of the halves of a block and of those of some rows; products of eight bits fit.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn sums_of_halves(x: &[i16; BLOCK], w: [&[i16; BLOCK]; LINES]) -> [[i32; LINES]; 2] {
    use std::arch::x86_64::*;
    let mut halves = [[0; LINES]; 2];
    for (half, to) in halves.iter_mut().enumerate() {
        // SAFETY: every x86-64 has SSE2. The loads, which need no alignment, are of eight values below a block's 32, and the store of
        // four.
        unsafe {
            let at = |values: &[i16; BLOCK], i: usize| {
                _mm_loadu_si128(values[half * BLOCK / 2 + 8 * i..][..8].as_ptr().cast())
            };
            let x = [at(x, 0), at(x, 1)];
            let mut sums = [_mm_setzero_si128(); LINES];
            for (sums, w) in sums.iter_mut().zip(w) {
                *sums = _mm_add_epi32(_mm_madd_epi16(x[0], at(w, 0)), _mm_madd_epi16(x[1], at(w, 1)));
            }
            // four sums of each row, then two, then one
            let two = |a, b| _mm_add_epi32(_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
            let (ab, cd) = (two(sums[0], sums[1]), two(sums[2], sums[3]));
            let sums = _mm_add_epi32(_mm_unpacklo_epi64(ab, cd), _mm_unpackhi_epi64(ab, cd));
            _mm_storeu_si128(to.as_mut_ptr().cast(), sums);
        }
    }
    halves
}

/// The same by other processors.
#[cfg(not(target_arch = "x86_64"))]
fn sums_of_halves(x: &[i16; BLOCK], w: [&[i16; BLOCK]; LINES]) -> [[i32; LINES]; 2] {
    let sum = |w: &[i16; BLOCK], from: usize| {
        (from..from + BLOCK / 2).map(|i| i32::from(x[i]) * i32::from(w[i])).sum()
    };
    [0, BLOCK / 2].map(|from| w.map(|w| sum(w, from)))
}
