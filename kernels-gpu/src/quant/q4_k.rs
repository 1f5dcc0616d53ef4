//! The scales of a Q4_K or Q5_K block: w ≈ scale·q − min with q from 0 to MAX = 15 or 31 and min ≥ 0.
//!
//! Idea: for each of some step widths around (max − min)/MAX, quantise, solve the weighted least-squares problem for (scale,
//! min) with those quants, and keep the pair with the smallest error. Large values weigh more. The eight (scale, min) of a
//! super-block are then rounded to 6 bits of their common maxima, and the quants recomputed for the rounded ones.
//! Source: the reference quantiser of ggml's Q4_K and Q5_K (`make_qkx2_quants`), whose grids and weights these are.

use super::blocks::{BLOCK, Half, ScalesQ4K, inverse, nearest, stored_scale};
use super::unroll::unroll;

/// The largest scale or minimum of a block, relative to its super-block's.
const MAX_SCALE: f32 = 63.0;

/// The step widths to try: (max − min) / (first + 0.1·i); their number, and `first`.
const fn candidates(max: i32) -> (u32, f32) {
    if max == 15 { (21, 14.0) } else { (16, 30.5) }
}

/// A block's scale and minimum before they are rounded to 6 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The step.
    pub scale: f32,
    /// The minimum, which is subtracted; ≥ 0.
    pub min: f32,
}

/// √x, correctly rounded on host and device.
#[inline(always)]
fn sqrt(x: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        crate::device::math::sqrt(x)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        x.sqrt()
    }
}

/// Σ weight·(scale·q + min − w)² for the quants that 1/step gives.
#[inline(always)]
fn error<const MAX: i32>(
    values: &[f32; BLOCK],
    base: f32,
    low: f32,
    inverse: f32,
    scale: f32,
    min: f32,
) -> f32 {
    let mut sum = 0.0;
    unroll!(I < 32 => {
        let q = nearest(inverse * (values[I] - low)).clamp(0, MAX) as f32;
        let difference = scale * q + min - values[I];
        sum += (base + values[I].abs()) * (difference * difference);
    });
    sum
}

/// The scale and minimum with the smallest error on one block.
#[inline(always)]
pub fn fit<const MAX: i32>(values: &[f32; BLOCK]) -> Fit {
    let (mut low, mut high, mut squares) = (values[0], values[0], 0.0);
    unroll!(I < 32 => {
        let value = values[I];
        low = if value < low { value } else { low };
        high = if value > high { value } else { high };
        squares += value * value;
    });
    let base = sqrt(squares / BLOCK as f32);
    if base.is_nan() || base == f32::INFINITY {
        return Fit { scale: f32::NAN, min: f32::NAN };
    }
    low = if low > 0.0 { 0.0 } else { low };
    if high <= low {
        return Fit { scale: 0.0, min: -low };
    }
    // Σ weight and Σ weight·w do not depend on the quants.
    let (mut weights, mut weighted) = (0.0, 0.0);
    unroll!(I < 32 => {
        let weight = base + values[I].abs();
        weights += weight;
        weighted += weight * values[I];
    });
    let range = high - low;
    let mut best = Fit { scale: range / MAX as f32, min: -low };
    let mut least = error::<MAX>(values, base, low, MAX as f32 / range, best.scale, low);
    let (candidates, first) = const { candidates(MAX) };
    let mut candidate = 0;
    while candidate < candidates {
        let steps = first + 0.1 * candidate as f32;
        let inverse = steps / range;
        let (mut q1, mut q2, mut qw) = (0.0, 0.0, 0.0);
        unroll!(I < 32 => {
            let q = nearest(inverse * (values[I] - low)).clamp(0, MAX) as f32;
            let weight = base + values[I].abs();
            q1 += weight * q;
            q2 += weight * q * q;
            qw += weight * q * values[I];
        });
        let determinant = weights * q2 - q1 * q1;
        if determinant > 0.0 {
            let mut scale = (weights * qw - weighted * q1) / determinant;
            let mut min = (q2 * weighted - q1 * qw) / determinant;
            if min > 0.0 {
                min = 0.0;
                scale = qw / q2;
            }
            let found = error::<MAX>(values, base, low, inverse, scale, min);
            if found < least {
                least = found;
                best = Fit { scale, min: -min };
            }
        }
        candidate += 1;
    }
    best
}

/// A block's 6-bit scale and minimum relative to the super-block's largest.
#[inline(always)]
pub fn relative(fit: Fit, max_scale: f32, max_min: f32) -> (u32, u32) {
    let (to_scale, to_min) = (MAX_SCALE * inverse(max_scale), MAX_SCALE * inverse(max_min));
    (nearest(to_scale * fit.scale).clamp(0, 63) as u32, nearest(to_min * fit.min).clamp(0, 63) as u32)
}

/// The super-block's `d` and `d_min` for its blocks' largest scale and minimum.
#[inline(always)]
pub fn super_scales(max_scale: f32, max_min: f32) -> (Half, Half) {
    (stored_scale(max_scale / MAX_SCALE), stored_scale(max_min / MAX_SCALE))
}

/// A block's step and minimum as they are dequantised: exact products of `d`, `d_min` and the 6-bit factors.
#[inline(always)]
pub fn step_min(d: f32, d_min: f32, scale: u32, min: u32) -> (f32, f32) {
    (d * scale as f32, d_min * min as f32)
}

/// The quant of `value`, 0 to MAX, for 1/step and the minimum.
#[inline(always)]
pub fn quant<const MAX: i32>(value: f32, inverse: f32, min: f32) -> u32 {
    nearest((value + min) * inverse).clamp(0, MAX) as u32
}

/// The scales of a whole super-block, from its blocks' fits.
pub fn scales(fits: &[Fit; 8]) -> ScalesQ4K {
    let (mut max_scale, mut max_min) = (0, 0);
    for fit in fits {
        max_scale = max_scale.max(fit.scale.to_bits() & 0x7fff_ffff);
        max_min = max_min.max(fit.min.to_bits() & 0x7fff_ffff);
    }
    let (max_scale, max_min) = (f32::from_bits(max_scale), f32::from_bits(max_min));
    let (d, d_min) = super_scales(max_scale, max_min);
    let mut packed = [0; 3];
    for (j, fit) in fits.iter().enumerate() {
        let (scale, min) = relative(*fit, max_scale, max_min);
        for (word, bits) in packed.iter_mut().zip(ScalesQ4K::bits(j as u32, scale, min)) {
            *word |= bits;
        }
    }
    ScalesQ4K { d, d_min, packed }
}
