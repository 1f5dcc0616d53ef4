//! The layouts that host and device share, and the arithmetic of one block. Both run the same code, so the bits are equal.
//!
//! A block is [`BLOCK`] = 32 neighbours of a row with one scale (Q6_K: two). Q4_K, Q5_K, Q6_K and IQ4_XS group eight blocks
//! under a second level of scales. Interchange layouts are those of the GGUF format, byte for byte (source: ggml's published
//! `block_q8_0`, `block_q4_0`, `block_q4_K`, …). In memory the same bits are in two planes: all quants, then all scales. A
//! GGUF block of 34 or 18 bytes allows no access wider than 2 bytes, and kernels load 16:
//!
//! | format | quants                            | scales                            | value                           | bits |
//! |--------|-----------------------------------|-----------------------------------|---------------------------------|------|
//! | I8     | i8 [n, k]                         | f32 [n]                           | s·q                             | 8    |
//! | Q8_0   | i8 [n, k]                         | f16 [n, k/32]                     | d·q                             | 8.5  |
//! | Q4_0   | u4 [n, k], 16 bytes per block     | f16 [n, k/32]                     | d·(q − 8)                       | 4.5  |
//! | Q4_K   | u4 [n, k], 32 bytes per 2 blocks  | [`ScalesQ4K`] [n, k/256]          | d·scale·q − d_min·min           | 4.5  |
//! | Q5_K   | u5 [n, k], 160 bytes per super-block | as Q4_K                        | as Q4_K                         | 5.5  |
//! | Q6_K   | i6 [n, k], 192 bytes per super-block | [`ScalesQ6K`] [n, k/256]       | d·scale·q                       | 6.6  |
//! | IQ4_NL | as Q4_0, nibbles in another order | f16 [n, k/32]                     | d·level(q)                      | 4.5  |
//! | IQ4_XS | as IQ4_NL                         | [`ScalesIq4Xs`] [n, k/256]        | d·(scale − 32)·level(q)         | 4.25 |
//! | rows   | i8 [m, k]                         | [`RowScale`] [m, k/32]            | scale·q (activations)           | 10   |
//!
//! Quants of 5 and 6 bits are in two sections of each super-block: first the low four bits of all, as in Q4_K, then the
//! upper bits ([`q5_k`](super::q5_k) and [`q6_k`](super::q6_k) give their order). So kernels load 16 bytes of the first
//! section and 8 or 16 of the second.
//!
//! Rows are padded with zeros to whole blocks, and rows of activations to [`SUPER_BLOCK`] values.
//!
//! Values that are not finite: a block with a NaN or an infinity gets a NaN or infinite scale, so that every result from it
//! is NaN.

use super::unroll::unroll;
use crate::float16::Float16;
use cuda_std::inlined;

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

/// A block of Q8_0 in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Scale.
    pub d: Half,
    /// Quants.
    pub qs: [i8; BLOCK],
}

/// A block of Q4_0 in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Scale.
    pub d: Half,
    /// Byte j: value j in the low half, value j + 16 in the high half.
    pub qs: [u8; BLOCK / 2],
}

/// A super-block of Q4_K in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct BlockQ4K {
    /// Scales.
    pub scales: ScalesQ4K,
    /// Byte 32·c + j: value 64·c + j in the low half, value 64·c + 32 + j in the high half.
    pub qs: [u8; SUPER_BLOCK / 2],
}

/// The scales of a Q4_K super-block.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(4))]
pub struct ScalesQ4K {
    /// Scale of the blocks' scales.
    pub d: Half,
    /// Scale of the blocks' minima.
    pub d_min: Half,
    /// Eight scales and eight minima of 6 bits, as [`ScalesQ4K::get`] reads them.
    pub packed: [u32; 3],
}

/// A super-block of Q5_K in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct BlockQ5K {
    /// Scales.
    pub scales: ScalesQ4K,
    /// Byte l, bit j: the fifth bit of value 32·j + l.
    pub qh: [u8; SUPER_BLOCK / 8],
    /// Low four bits, as in [`BlockQ4K`].
    pub qs: [u8; SUPER_BLOCK / 2],
}

/// A super-block of Q6_K in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct BlockQ6K {
    /// Byte 64·h + l: the low four bits of value 128·h + l in the low half, of value 128·h + 64 + l in the high half.
    pub ql: [u8; SUPER_BLOCK / 2],
    /// Byte 32·h + l, bits 2·i and 2·i + 1: the upper two bits of value 128·h + 32·i + l.
    pub qh: [u8; SUPER_BLOCK / 4],
    /// A scale for each 16 values.
    pub scales: [i8; SUPER_BLOCK / 16],
    /// The scales' scale.
    pub d: Half,
}

/// A block of IQ4_NL in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct BlockIq4Nl {
    /// Scale.
    pub d: Half,
    /// As in [`BlockQ4_0`].
    pub qs: [u8; BLOCK / 2],
}

/// A super-block of IQ4_XS in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct BlockIq4Xs {
    /// Scales.
    pub scales: ScalesIq4Xs,
    /// Each block's 16 bytes, as in [`BlockQ4_0`].
    pub qs: [u8; SUPER_BLOCK / 2],
}

/// The scales of a Q6_K super-block in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(4))]
pub struct ScalesQ6K {
    /// A signed byte for each 16 values.
    pub packed: [u32; 4],
    /// Their scale.
    pub d: Half,
    /// Zero, so that the words of all super-blocks are aligned.
    pub unused: u16,
}

/// The scales of an IQ4_XS super-block.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(4))]
pub struct ScalesIq4Xs {
    /// The blocks' scales' scale.
    pub d: Half,
    /// Bits 2·j and 2·j + 1: the upper two bits of block j's scale.
    pub high: u16,
    /// Bits 4·j to 4·j + 3: the low four.
    pub low: u32,
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

const _: () = {
    assert!(size_of::<BlockQ8_0>() == 34 && align_of::<BlockQ8_0>() == 2);
    assert!(size_of::<BlockQ4_0>() == 18 && align_of::<BlockQ4_0>() == 2);
    assert!(size_of::<BlockQ4K>() == 144 && size_of::<ScalesQ4K>() == 16);
    assert!(size_of::<BlockQ5K>() == 176 && size_of::<BlockQ6K>() == 210 && align_of::<BlockQ6K>() == 2);
    assert!(size_of::<BlockIq4Nl>() == 18 && size_of::<BlockIq4Xs>() == 136);
    assert!(size_of::<ScalesQ6K>() == 20 && size_of::<ScalesIq4Xs>() == 8);
    assert!(size_of::<RowScale>() == 8);
};

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

/// The scale of a Q4_0 block: the value of the largest magnitude (the first of equal ones) becomes −8.
#[inline(always)]
pub fn scale_q4_0(values: &[f32; BLOCK]) -> f32 {
    let mut largest = values[0];
    unroll!(I < 32 => largest = if abs_bits(values[I]) > abs_bits(largest) { values[I] } else { largest });
    largest / -8.0
}

/// The quant of `value` for 1/scale: 0 to 15, where 8 means zero.
#[inline(always)]
pub fn quant_q4_0(value: f32, inverse: f32) -> u32 {
    let steps = value * inverse;
    // NaN gives 8
    if steps.abs() <= 16.0 { ((steps + 8.5) as i32).clamp(0, 15) as u32 } else { 8 }
}

/// The least and the largest of [`quant_i8`]'s quants.
pub const RANGE_I8: [f32; 2] = [-127.0, 127.0];
/// The least and the largest of [`quant_q4_0`]'s quants, less 8.
pub const RANGE_Q4_0: [f32; 2] = [-8.0, 7.0];

/// `value` in steps of a scale, clipped to the quants' range; NaN stays NaN. With a scale that is not the block's own, values may lie
/// far beyond the range, which [`quant_i8`] and [`quant_q4_0`] do not clip: they are given these steps, and 1 for the inverse.
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

/// Byte j of the result: the low half is quant j, the high half quant j + 16.
#[inline(always)]
pub fn pack_q4_0(values: &[f32; BLOCK], inverse: f32) -> [u32; 4] {
    let mut words = [0; 4];
    unroll!(J < 16 => {
        let byte = quant_q4_0(values[J], inverse) | quant_q4_0(values[J + BLOCK / 2], inverse) << 4;
        words[J / 4] |= byte << (8 * (J % 4));
    });
    words
}

/// Four neighbouring 8-bit quants as a word.
#[inline(always)]
pub fn pack_i8(values: [f32; 4], inverse: f32) -> u32 {
    let [a, b, c, d] = values.map(|value| quant_i8(value, inverse) as u32 & 0xff);
    a | b << 8 | c << 16 | d << 24
}

#[inlined]
impl ScalesQ4K {
    /// The 6-bit scale and minimum of block `j`.
    pub fn get(packed: [u32; 3], j: u32) -> (u32, u32) {
        let [low, high, rest] = packed;
        let shift = 8 * (j % 4);
        let (first, second) = (low >> shift, high >> shift);
        // both are computed: a branch would diverge
        let (scale, min) =
            (rest >> shift & 15 | (first >> 6 & 3) << 4, rest >> (shift + 4) & 15 | (second >> 6 & 3) << 4);
        if j < 4 { (first & 63, second & 63) } else { (scale, min) }
    }

    /// The bits of block `j`, to be or-ed with the others'.
    pub fn bits(j: u32, scale: u32, min: u32) -> [u32; 3] {
        let shift = 8 * (j % 4);
        if j < 4 {
            [scale << shift, min << shift, 0]
        } else {
            let rest = (scale & 15) << shift | (min & 15) << (shift + 4);
            [(scale >> 4) << (shift + 6), (min >> 4) << (shift + 6), rest]
        }
    }
}
