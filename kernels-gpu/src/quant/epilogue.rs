//! The epilogue of a product: y = act(product + bias) + residual.

use crate::activate::{GELU_TANH, SILU};
use crate::device::Element;
use crate::device::math::{exp, fma, rcp};

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

impl Epilogue {
    /// Writes one product.
    ///
    /// # Safety
    /// `row` < m, `column` < n, and no other thread has this element.
    #[inline(always)]
    pub unsafe fn write(&self, row: u32, column: u32, mut value: f32) {
        let index = row as usize * self.n as usize + column as usize;
        // SAFETY: `row` < m, `column` < n, and the element is this thread's alone: this function's contract.
        unsafe {
            if !self.bias.is_null() {
                value += f32::load(self.bias.add(column as usize));
            }
            if self.activation == SILU {
                value = gate(value, value);
            } else if self.activation == GELU_TANH {
                // (1 + tanh u)/2 = σ(2u)
                let cube = value * value * value;
                value = gate(value, 1.595_769 * fma(0.044715, cube, value));
            }
            if !self.residual.is_null() {
                value += f32::load(self.residual.add(index));
            }
            *self.y.add(index) = value;
        }
    }
}
