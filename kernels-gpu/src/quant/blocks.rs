//! The layouts that host and device share, and the arithmetic of one block. Both run the same code, so the bits are equal.
//!
//! A block is [`BLOCK`] = 32 neighbours of a row with one scale or two; formats with super-blocks group eight under a second level of
//! scales. In files quants and scales alternate (source of the layouts: ggml's published `ggml-common.h`). In memory the same bits are
//! in two planes, all quants, then all scales: a GGUF block of 34 or 18 bytes allows no access wider than 2 bytes, and kernels load 16.
//! [The formats' files](super::formats) describe both. Rows of activations have i8 quants [m, k], [`RowScale`]s [m, k / 32], and the
//! values scale·q.
//!
//! Quants of other than 4 or 8 bits are in two sections of each super-block: first the low bits of all, then the upper bits.
//!
//! Rows are padded with zeros to whole blocks, and rows of activations to [`SUPER_BLOCK`] values.
//!
//! Values that are not finite: a block with a NaN or an infinity gets a NaN or infinite scale, so that every result from it
//! is NaN.

use crate::float16::Float16;

/// Values that share a scale.
pub const BLOCK: usize = 32;
/// Values of a Q4_K super-block.
pub const SUPER_BLOCK: usize = 256;
/// Blocks of a Q4_K super-block.
pub const BLOCKS_PER_SUPER: usize = SUPER_BLOCK / BLOCK;

/// IEEE half precision, the type of scales.
pub type Half = Float16<5>;

/// A scale in the stored type. A NaN always has the same bits, because processors differ in which NaN an operation returns.
#[inline(always)]
pub fn stored_scale(scale: f32) -> Half {
    Half::from_f32(if scale.is_nan() { f32::NAN } else { scale })
}

/// The scale of 32 activations, and the sum of their quants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(8))]
pub struct RowScale {
    /// Scale.
    pub scale: f32,
    /// Σ q of the block: turns Σ (q_w − 8)·q into Σ q_w·q − 8·Σ q, and carries Q4_K's minima.
    pub sum: i32,
}

const _: () = assert!(size_of::<RowScale>() == 8);

/// The largest |value|: NaN if there is a NaN, whatever the order.
#[inline(always)]
pub fn abs_max(values: &[f32]) -> f32 {
    let mut bits = 0;
    let mut i = 0;
    while i < values.len() {
        bits = bits.max(abs_bits(values[i])); // as integers, magnitudes are ordered and NaNs are the largest
        i += 1;
    }
    f32::from_bits(bits)
}

/// |value| as an integer that orders magnitudes, with NaNs above all.
#[inline(always)]
pub fn abs_bits(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// 1/d, and 0 for a scale that is zero, too small to divide by, or not finite.
#[inline(always)]
pub fn inverse(d: f32) -> f32 {
    let inverse = 1.0 / d;
    if inverse.abs() < f32::INFINITY { inverse } else { 0.0 }
}

/// The nearest integer, ties to even; 0 for NaN and beyond ±2²².
#[inline(always)]
pub fn nearest(value: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0; // 1.5 · 2²³: adding it rounds the fraction away
    if value.abs() <= 4_194_304.0 {
        ((value + MAGIC).to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32)
    } else {
        0
    }
}

/// The scale that puts the largest of 8-bit quants at ±127.
#[inline(always)]
pub fn scale_i8(abs_max: f32) -> f32 {
    abs_max / 127.0
}

/// The quant of `value` for 1/scale, within ±127.
#[inline(always)]
pub fn quant_i8(value: f32, inverse: f32) -> i32 {
    nearest(value * inverse).clamp(-127, 127)
}

/// The least and the largest of [`quant_i8`]'s quants.
pub const RANGE_I8: [f32; 2] = [-127.0, 127.0];

/// `value` in steps of a scale, clipped to the quants' range; NaN stays NaN. With a scale that is not the block's own, values may lie
/// far beyond the range, which the quants of both formats do not clip: they are given these steps, and 1 for the inverse.
#[inline(always)]
pub fn steps(value: f32, inverse: f32, [low, high]: [f32; 2]) -> f32 {
    let steps = value * inverse;
    if steps < low {
        low
    } else if steps > high {
        high
    } else {
        steps
    }
}

/// Four neighbouring 8-bit quants as a word.
#[inline(always)]
pub fn pack_i8(values: [f32; 4], inverse: f32) -> u32 {
    let [a, b, c, d] = values.map(|value| quant_i8(value, inverse) as u32 & 0xff);
    a | b << 8 | c << 16 | d << 24
}

/// The quants of values, four to a word.
#[cfg(not(target_arch = "nvptx64"))]
pub fn pack_row_i8(values: &[f32], inverse: f32) -> impl Iterator<Item = u32> {
    values.as_chunks().0.iter().map(move |four| pack_i8(*four, inverse))
}
