//! The scale of values without a minimum: w ≈ scale·level, with the levels of a format.
//!
//! Idea: each trial maps the largest magnitude to an outermost level or slightly to either side of it, quantises, and solves
//! the weighted least-squares problem for the scale with those quants. The trial with the smallest error is kept. The error
//! Σ w²·(w − scale·q)² is Σ w⁴ − (Σ w²·w·q)²/(Σ w²·q²), so that is the trial with the largest quotient. Values are first
//! divided by the largest, so that no sum overflows.
//! Source: the reference quantisers of ggml's Q6_K (`make_qx_quants`) and IQ4_NL (`quantize_row_iq4_nl_impl`), with their
//! weights. They make as many trials around the lowest level, five and two times as close together. The trials here span a
//! wider range, and those of IQ4 are also around the highest level: the weighted error on normal values is a sixth and a
//! ninth smaller.

use super::blocks::{Half, abs_bits, inverse, stored_scale};
use crate::device::unroll::unroll;

/// The values that the quants of a format represent.
pub trait Levels {
    /// Number of trials.
    const TRIALS: u32;

    /// The value that trial `trial` maps the largest magnitude to.
    fn place(trial: u32) -> f32;

    /// The level nearest to `value`; any level for NaN.
    fn nearest(value: f32) -> f32;
}

/// The scale with the smallest error on up to 32 values; it may be negative. NaN if one of the values is not finite.
#[inline(always)]
pub fn fit<L: Levels, const N: usize>(values: &[f32; N]) -> f32 {
    let mut largest = values[0];
    unroll!(I < 32 => if I < N {
        largest = if abs_bits(values[I]) > abs_bits(largest) { values[I] } else { largest };
    });
    if abs_bits(largest) >= abs_bits(f32::INFINITY) {
        return f32::NAN;
    }
    let to_one = inverse(largest);
    let (mut best, mut scale) = (0.0, 0.0);
    let mut trial = 0;
    while trial < L::TRIALS {
        let to_levels = L::place(trial);
        let (mut products, mut squares) = (0.0, 0.0);
        unroll!(I < 32 => if I < N {
            let value = values[I] * to_one;
            let level = L::nearest(to_levels * value);
            let weighted = value * value * level;
            products += weighted * value;
            squares += weighted * level;
        });
        let gain = products * products / squares;
        // false if all squares are zero
        if gain > best {
            best = gain;
            scale = products / squares;
        }
        trial += 1;
    }
    largest * scale
}

/// The scale of a super-block's scales: it maps the one of the largest magnitude to −`steps`. `positive` tells whether any
/// of that magnitude is positive.
#[inline(always)]
pub fn super_scale(largest: f32, positive: bool, steps: f32) -> Half {
    let signed = if positive { largest } else { -largest };
    stored_scale(signed / -steps)
}

/// The largest magnitude of a super-block's scales, and whether any of that magnitude is positive.
pub fn largest(scales: &[f32]) -> (f32, bool) {
    let largest = super::blocks::abs_max(scales);
    (largest, scales.contains(&largest))
}
