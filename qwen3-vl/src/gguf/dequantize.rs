//! Blocks → f32: d·q, or d·q − m, rounded after each operation in the order of ggml's reference code, so that the results
//! are bit-identical.
//!
//! Source of the layouts: ggml's published `ggml-common.h` (block structures) and `ggml-quants.c`. A block of 256 values has
//! 8 or 16 sub-blocks with integer scales of their own under the f16 scale `d` (and `dmin` of the minima).

use super::GgmlType;
use half::{bf16, f16};

/// The 16 values that the 4-bit quants of IQ4_NL and IQ4_XS index.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Dequantises whole blocks; `bytes` must have as many blocks as `values` needs.
pub fn dequantize(ty: GgmlType, bytes: &[u8], values: &mut [f32]) {
    let blocks = bytes.chunks_exact(ty.block_bytes()).zip(values.chunks_exact_mut(ty.block()));
    let decode: fn(&[u8], &mut [f32]) = match ty {
        GgmlType::F32 => {
            |block, values| values[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]])
        }
        GgmlType::F16 => |block, values| values[0] = half_at(block, 0),
        GgmlType::BF16 => |block, values| values[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
        GgmlType::Q8_0 => q8_0,
        GgmlType::Q4_0 => q4_0,
        GgmlType::Q4_1 => q4_1,
        GgmlType::Q5_0 => q5_0,
        GgmlType::Q5_1 => q5_1,
        GgmlType::Q2_K => q2_k,
        GgmlType::Q3_K => q3_k,
        GgmlType::Q4_K => q4_k,
        GgmlType::Q5_K => q5_k,
        GgmlType::Q6_K => q6_k,
        GgmlType::IQ4_NL => iq4_nl,
        GgmlType::IQ4_XS => iq4_xs,
    };
    blocks.for_each(|(block, values)| decode(block, values));
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The low nibbles of the bytes, then the high ones.
fn nibbles<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| if i < N / 2 { bytes[i] & 15 } else { bytes[i - N / 2] >> 4 })
}

fn q8_0(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, &q) in values.iter_mut().zip(&block[2..]) {
        *value = d * f32::from(q as i8);
    }
}

fn q4_0(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, q) in values.iter_mut().zip(nibbles::<32>(&block[2..])) {
        *value = d * f32::from(q as i8 - 8);
    }
}

fn q4_1(block: &[u8], values: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (value, q) in values.iter_mut().zip(nibbles::<32>(&block[4..])) {
        *value = d * f32::from(q) + m;
    }
}

/// Five-bit quants: bit 4 of quant i is bit i of the word at `at`; the low four bits follow that word.
fn fives(block: &[u8], at: usize) -> impl Iterator<Item = u8> {
    let high = word_at(block, at);
    let low = nibbles::<32>(&block[at + 4..]);
    (0..32).map(move |i| low[i] | ((high >> i & 1) as u8) << 4)
}

fn q5_0(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, q) in values.iter_mut().zip(fives(block, 2)) {
        *value = d * f32::from(q as i8 - 16);
    }
}

fn q5_1(block: &[u8], values: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (value, q) in values.iter_mut().zip(fives(block, 4)) {
        *value = d * f32::from(q) + m;
    }
}

/// Two-bit quants of 32 bytes: the lowest two bits of all bytes, then the next two.
fn twos(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

fn q2_k(block: &[u8], values: &mut [f32]) {
    let (d, d_min) = (half_at(block, 80), half_at(block, 82));
    for (i, value) in values.iter_mut().enumerate() {
        let scale = block[i / 16];
        *value =
            d * f32::from(scale & 15) * f32::from(twos(&block[16..80], i)) - d_min * f32::from(scale >> 4);
    }
}

fn q3_k(block: &[u8], values: &mut [f32]) {
    let (high, low, scales, d) = (&block[..32], &block[32..96], &block[96..108], half_at(block, 108));
    for (i, value) in values.iter_mut().enumerate() {
        // Sixteen six-bit scales: the low nibbles of eight bytes, then the high nibbles; the upper two bits are in the last
        // four bytes.
        let j = i / 16;
        let scale = (scales[j % 8] >> (j / 8 * 4) & 15) | (scales[8 + j % 4] >> (j / 4 * 2) & 3) << 4;
        let q = twos(low, i) as i8 - if high[i % 32] >> (i / 32) & 1 == 0 { 4 } else { 0 };
        *value = d * f32::from(scale as i8 - 32) * f32::from(q);
    }
}

/// The scales and minima of the eight sub-blocks of Q4_K and Q5_K, six bits each. Those of the first four sub-blocks are in
/// bytes of their own; of the others the lower four bits are in one byte, and the upper two in the top bits of the first
/// four's.
fn steps(block: &[u8]) -> [(f32, f32); 8] {
    let (d, d_min, packed) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
    std::array::from_fn(|j| {
        let (scale, min) = match j {
            0..4 => (packed[j] & 63, packed[j + 4] & 63),
            _ => {
                let low = packed[j + 4];
                (low & 15 | packed[j - 4] >> 6 << 4, low >> 4 | packed[j] >> 6 << 4)
            }
        };
        (d * f32::from(scale), d_min * f32::from(min))
    })
}

fn q4_k(block: &[u8], values: &mut [f32]) {
    for (j, ((step, min), values)) in steps(block).into_iter().zip(values.chunks_exact_mut(32)).enumerate() {
        let quants = &block[16 + j / 2 * 32..][..32];
        for (value, byte) in values.iter_mut().zip(quants) {
            *value = step * f32::from(byte >> (j % 2 * 4) & 15) - min;
        }
    }
}

fn q5_k(block: &[u8], values: &mut [f32]) {
    for (j, ((step, min), values)) in steps(block).into_iter().zip(values.chunks_exact_mut(32)).enumerate() {
        let quants = block[16..48].iter().zip(&block[48 + j / 2 * 32..]);
        for (value, (high, low)) in values.iter_mut().zip(quants) {
            let q = (low >> (j % 2 * 4) & 15) | (high >> j & 1) << 4;
            *value = step * f32::from(q) - min;
        }
    }
}

fn q6_k(block: &[u8], values: &mut [f32]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
    for (i, value) in values.iter_mut().enumerate() {
        let low = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        let q = (low | twos(high, i) << 4) as i8 - 32;
        *value = d * f32::from(scales[i / 16] as i8) * f32::from(q);
    }
}

fn iq4_nl(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, q) in values.iter_mut().zip(nibbles::<32>(&block[2..])) {
        *value = d * f32::from(IQ4[usize::from(q)]);
    }
}

fn iq4_xs(block: &[u8], values: &mut [f32]) {
    let (d, high) = (half_at(block, 0), u16::from_le_bytes([block[2], block[3]]));
    for (j, values) in values.chunks_exact_mut(32).enumerate() {
        let scale = (block[4 + j / 2] >> (j % 2 * 4) & 15) | ((high >> (2 * j) & 3) as u8) << 4;
        let step = d * f32::from(scale as i8 - 32);
        for (value, q) in values.iter_mut().zip(nibbles::<32>(&block[8 + 16 * j..])) {
            *value = step * f32::from(IQ4[usize::from(q)]);
        }
    }
}
