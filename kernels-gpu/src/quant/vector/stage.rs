//! A lane's units of rows of w, from their load to their product with rows of x.

use crate::device::keep_order;
use crate::device::unroll::unroll;
use crate::quant::activations::{Inputs, SharedRow};
use crate::quant::weights::{Matrix, Weights};
use cuda_std::prelude::*;

/// The offsets of R rows of w in bytes; for formats with [`sections`] in units, because registers do not suffice for both.
#[derive(Clone, Copy)]
pub(super) struct Rows<const R: usize> {
    quants: [u32; R],
    scales: [u32; R],
}

/// Chunks of a unit.
const fn chunks<W: Weights>() -> u32 {
    W::UNIT / W::CHUNK
}

/// Whether a row's quants are in sections.
const fn sections<W: Weights>() -> bool {
    W::BITS != 8 && W::BITS != 4
}

#[inlined]
impl<const R: usize> Rows<R> {
    /// The rows `row`(0), `row`(1), … from unit `unit` on.
    pub fn new<W: Weights>(w: Matrix, row: impl Fn(u32) -> u32, unit: u32) -> Self {
        let units = w.k / W::UNIT;
        let mut rows = Self { quants: [0; R], scales: [0; R] };
        unroll!(J < 4 => if J < R {
            let unit = row(J as u32) * units + unit;
            if sections::<W>() {
                rows.quants[J] = unit;
            } else {
                rows.quants[J] = W::chunk_at(unit * chunks::<W>());
                rows.scales[J] = W::scales_at(unit);
            }
        });
        rows
    }

    /// The offsets in bytes of unit `unit` of row `j`: its chunks, their upper bits and its scales.
    fn at<W: Weights>(&self, j: usize, unit: u32) -> [u32; 3] {
        if sections::<W>() {
            let unit = self.quants[j] + unit;
            let chunk = unit * chunks::<W>();
            return [W::chunk_at(chunk), W::upper_at(chunk), W::scales_at(unit)];
        }
        [self.quants[j] + W::chunk_at(unit * chunks::<W>()), 0, self.scales[j] + W::scales_at(unit)]
    }
}

/// Units of R rows as loaded: U of each, 32 apart.
#[derive(Clone, Copy)]
pub(super) struct Stage<W: Weights, const R: usize, const U: usize> {
    quants: [[[[u32; 4]; 2]; U]; R],
    upper: [[[W::Upper; 2]; U]; R],
    raw: [[W::Raw; U]; R],
}

#[inlined]
impl<W: Weights, const R: usize, const U: usize> Stage<W, R, U> {
    /// Loads units `unit`, `unit` + 32, … of each row. Units past the row's `units` are the last one, for which the
    /// activations are zeros.
    ///
    /// # Safety
    /// From where `rows` point, the rows of `w` have `units` > 0 units.
    pub unsafe fn load(w: Matrix, rows: &Rows<R>, unit: u32, units: u32) -> Self {
        let mut stage = Self {
            quants: [[[[0; 4]; 2]; U]; R],
            upper: [[[W::Upper::default(); 2]; U]; R],
            raw: [[W::Raw::default(); U]; R],
        };
        unroll!(V < 2 => if V < U {
            let unit = (unit + 32 * V as u32).min(units - 1);
            unroll!(J < 4 => if J < R {
                let [quants, upper, scales] = rows.at::<W>(J, unit);
                let (quants, upper) = (w.quants.wrapping_add(quants as usize), w.quants.wrapping_add(upper as usize));
                let scales = w.scales.wrapping_add(scales as usize);
                // SAFETY: the unit exists; rows are whole units.
                unsafe {
                    stage.quants[J][V] = W::chunks(quants);
                    stage.upper[J][V] = W::uppers(upper);
                    stage.raw[J][V] = W::raw(scales, unit);
                }
            });
        });
        keep_order(); // the compiler would move each load to its first use
        stage
    }

    /// acc += w · x for unit `V` of the stage, which is unit `unit` + 32 · `V` of `x`; `lane` is that modulo 32.
    ///
    /// # Safety
    /// `x` has the unit.
    pub unsafe fn multiply<const V: usize, const VALUES: u32>(
        &self,
        acc: &mut [f32; R],
        x: SharedRow<VALUES>,
        unit: u32,
        lane: u32,
    ) {
        // SAFETY: `x` has the unit: this function's contract.
        let inputs = unsafe { Inputs::load::<W, VALUES>(x, unit + 32 * V as u32) };
        unroll!(J < 4 => if J < R {
            let scale = W::scale(self.raw[J][V], lane);
            acc[J] = W::dot(self.quants[J][V], self.upper[J][V], scale, &inputs, acc[J]);
        });
    }
}
