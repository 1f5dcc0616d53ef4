//! The epilogue of a product: y = act(product + bias) + residual.

use crate::activate::{GELU_TANH, SILU};
use crate::device::Element;
use crate::device::math::{exp, fma, rcp};
use crate::device::unroll::unroll;

/// The output and the epilogue's operands.
///
/// Contract of the pointers: `y` and `residual`: [m, n]; `bias`: [n]; all valid on the launching stream; `y` overlaps
/// nothing. `bias` and `residual` may be null.
#[derive(Clone, Copy)]
pub(super) struct Epilogue {
    pub y: *mut f32,
    pub bias: *const f32,
    pub residual: *const f32,
    pub n: u32,
    pub activation: u32,
}

/// x·σ(s)
#[inline(always)]
fn gate(x: f32, s: f32) -> f32 {
    // for s → −∞ the exponential is infinite and its reciprocal zero
    x * rcp(1.0 + exp(-s))
}

/// What tanh-GELU gates a value by: 2u, as (1 + tanh u)/2 = σ(2u).
#[inline(always)]
fn of_gelu(value: f32) -> f32 {
    let cube = value * value * value;
    1.595_769 * fma(0.044715, cube, value)
}

impl Epilogue {
    /// Writes one product.
    ///
    /// # Safety
    /// `row` < m, `column` < n, and no other thread has this element.
    #[inline(always)]
    pub unsafe fn write(&self, row: u32, column: u32, value: f32) {
        // SAFETY: this function's contract.
        unsafe {
            core::hint::assert_unchecked(column < self.n);
            self.write_tile([[value]], [row, column], [0; 2], row + 1);
        }
    }

    /// Writes a thread's products of a tile: of rows `row`, `row` + `row_step`, … and columns `column`, `column` + `column_step`, …, those
    /// that exist. Each operand is loaded for all of them before it is used, at the last row and column for those that don't.
    ///
    /// # Safety
    /// 0 < m, 0 < n, and no other thread has these elements.
    #[inline(always)]
    pub unsafe fn write_tile<const TM: usize, const TN: usize>(
        &self,
        mut values: [[f32; TN]; TM],
        [row, column]: [u32; 2],
        [row_step, column_step]: [u32; 2],
        m: u32,
    ) {
        let row = |i: usize| row + row_step * i as u32;
        let column = |j: usize| column + column_step * j as u32;
        // SAFETY: rows and columns are clamped to the last ones where they are read, and are y's where they are written.
        unsafe {
            if !self.bias.is_null() {
                unroll!(J < 8 => if J < TN {
                    let bias = f32::load(self.bias.add(column(J).min(self.n - 1) as usize));
                    unroll!(I < 8 => if I < TM { values[I][J] += bias; });
                });
            }
            if self.activation == SILU || self.activation == GELU_TANH {
                let is_gelu = self.activation == GELU_TANH;
                unroll!(I < 8 => if I < TM {
                    unroll!(J < 8 => if J < TN {
                        let value = values[I][J];
                        values[I][J] = gate(value, if is_gelu { of_gelu(value) } else { value });
                    });
                });
            }
            if !self.residual.is_null() {
                unroll!(I < 8 => if I < TM {
                    let from = self.residual.add(row(I).min(m - 1) as usize * self.n as usize);
                    unroll!(J < 8 => if J < TN {
                        values[I][J] += f32::load(from.add(column(J).min(self.n - 1) as usize));
                    });
                });
            }
            unroll!(I < 8 => if I < TM && row(I) < m {
                let to = self.y.add(row(I) as usize * self.n as usize);
                unroll!(J < 8 => if J < TN && column(J) < self.n {
                    *to.add(column(J) as usize) = values[I][J];
                });
            });
        }
    }
}
