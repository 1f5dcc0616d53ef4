//! Q6_K: w = d·scale·q, q from −32 to 31, with an 8-bit scale for each 16 values.
//!
//! In memory a super-block's 128 bytes of low nibbles, as in Q4_K, are followed by the upper two bits: two words for each chunk
//! of 16 of those bytes, that is for 16 values of a block and 16 of the next. Byte b of word j has, from its lowest bits on,
//! those of value 4·j + b of the first 16, of value 8 + 4·j + b, and of the same two of the others. q is in two's complement
//! (the file has q + 32), so that its six bits at the top of a byte are the signed number 4·q, which `dp4a` takes as it is.
//! The factor is taken out of the scale.

use super::activations::Inputs;
use super::blocks::{BLOCK, ScalesQ6K, abs_bits, inverse, nearest};
use super::encode::{Encode, THREADS, Words, own_of_super_block, pair_nibbles};
use super::search::{self, Levels};
use super::unroll::unroll;
use super::weights::{
    BLOCK_VALUES, MAGIC, Matrix, SUPER_BLOCKS, Weights, from_magic, row_words, super_scales,
};
use crate::device::int8::{dp4a, load_half_word, load_pair, load_word, load_words};
use crate::device::math::fma;
use crate::device::{Element, F16};
use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};

/// Bytes of a super-block's quants.
const SUPER_BYTES: u32 = 192;
/// Bytes of the low nibbles.
const LOW_BYTES: u32 = 128;
/// Bytes of a super-block's scales.
const SCALE_BYTES: u32 = size_of::<ScalesQ6K>() as u32;
/// The scale with the largest magnitude becomes this, sign included.
const LARGEST_SCALE: f32 = 128.0;

#[inlined]
impl Levels for Q6K {
    const TRIALS: u32 = 19;

    /// Around −32, up to 4.5 to either side.
    fn place(trial: u32) -> f32 {
        0.5 * trial as f32 - (32.0 + 4.5)
    }

    fn nearest(value: f32) -> f32 {
        nearest(value).clamp(-32, 31) as f32
    }
}

/// A chunk's quants as bytes, each 4·q: the 16 of its low nibbles, those of its high ones.
#[inline(always)]
pub fn widen(chunk: [u32; 4], upper: [u32; 2]) -> [[u32; 4]; 2] {
    let mut bytes = [[0; 4]; 2];
    unroll!(I < 4 => {
        let bits = upper[I % 2];
        bytes[0][I] = chunk[I] << 2 & 0x3c3c_3c3c | bits << (6 - I / 2 * 2) & 0xc0c0_c0c0;
        bytes[1][I] = chunk[I] >> 2 & 0x3c3c_3c3c | bits << (2 - I / 2 * 2) & 0xc0c0_c0c0;
    });
    bytes
}

/// The step of [`widen`]'s bytes.
#[inline(always)]
pub fn step(d: f32, scale: i8) -> f32 {
    0.25 * d * f32::from(scale)
}

/// The scales of a block's two halves before they are rounded.
#[inline(always)]
pub fn fit(values: &[f32; BLOCK]) -> [f32; 2] {
    let (mut first, mut second) = ([0.0; BLOCK / 2], [0.0; BLOCK / 2]);
    unroll!(I < 16 => (first[I], second[I]) = (values[I], values[I + BLOCK / 2]));
    [search::fit::<Q6K, 16>(&first), search::fit::<Q6K, 16>(&second)]
}

/// d of a super-block, from [`search::largest`] of its scales.
#[inline(always)]
pub fn super_scale(largest: f32, positive: bool) -> super::blocks::Half {
    search::super_scale(largest, positive, LARGEST_SCALE)
}

/// A scale relative to d.
#[inline(always)]
pub fn relative(scale: f32, d: f32) -> i8 {
    nearest(scale * inverse(d)).clamp(-128, 127) as i8
}

/// Four quants as bytes, for 1/(d·scale); the lower six bits of each are q.
#[inline(always)]
pub fn quants(values: [f32; 4], inverse: f32) -> u32 {
    let [a, b, c, d] = values.map(|value| nearest(value * inverse).clamp(-32, 31) as u32 & 0x3f);
    a | b << 8 | c << 16 | d << 24
}

/// The upper bits of a block's quants (32 bytes of six bits) for its two chunks, if it is the first of the two blocks that
/// share bytes; for the second, shift them up by four.
#[inline(always)]
pub fn upper_bits(quants: [u32; 8]) -> [u32; 4] {
    let mut words = [0; 4];
    unroll!(I < 8 => words[I / 4 * 2 + I % 2] |= (quants[I] >> 4 & 0x0303_0303) << (I % 4 / 2 * 2));
    words
}

#[derive(Clone, Copy)]
pub(super) struct Q6K;

/// acc + a run of 16 values · inputs, as a float.
#[inline(always)]
fn dot16(a: [u32; 4], b: [u32; 4]) -> f32 {
    let mut sum = MAGIC.to_bits() as i32;
    unroll!(I < 4 => sum = dp4a(a[I], b[I], sum));
    from_magic(sum)
}

#[inlined]
impl Weights for Q6K {
    const BITS: u32 = 6;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = false;
    const HALVES: bool = true;
    const WHOLE: bool = true;
    const HIGH: u32 = 2;
    const UNIT: u32 = 2 * BLOCK_VALUES;
    type Upper = [u32; 2];
    /// The steps of the unit's runs.
    type Scale = [f32; 4];
    /// Four scales, and d.
    type Raw = [u32; 2];

    fn chunk_at(chunk: u32) -> u32 {
        chunk / 8 * SUPER_BYTES + chunk % 8 * 16
    }

    fn upper_at(chunk: u32) -> u32 {
        chunk / 8 * SUPER_BYTES + LOW_BYTES + chunk % 8 * 8
    }

    unsafe fn upper(at: *const u8) -> [u32; 2] {
        // SAFETY: the chunk's upper bits lie at `at`: this function's contract. All sections begin on 16-byte
        // boundaries.
        unsafe { load_pair(at) }
    }

    unsafe fn uppers(at: *const u8) -> [[u32; 2]; 2] {
        // SAFETY: the unit's upper bits lie at `at`: this function's contract. Its first chunk is even, so `at` is
        // 16-byte aligned.
        let [a, b, c, d] = unsafe { load_words(at) };
        [[a, b], [c, d]]
    }

    fn widen(chunk: [u32; 4], upper: [u32; 2]) -> [[u32; 4]; 2] {
        widen(chunk, upper)
    }

    unsafe fn four(w: Matrix, row: u32, group: u32) -> u32 {
        let (chunk, second, word) = (group / 16 * 2 + group / 4 % 2, group / 8 % 2, group % 4);
        // SAFETY: the four columns exist in `w`: this function's contract. Rows are whole super-blocks.
        let (low, upper) = unsafe {
            let words = row_words::<Self>(w, row);
            let low = *words.add((Self::chunk_at(chunk) / 4 + word) as usize);
            (low, *words.add((Self::upper_at(chunk) / 4 + word % 2) as usize))
        };
        let upper = upper >> (4 * second + word / 2 * 2) & 0x0303_0303;
        (low >> (4 * second) & 0x0f0f_0f0f) << 2 | upper << 6
    }

    fn scales_at(unit: u32) -> u32 {
        unit / 4 * SCALE_BYTES
    }

    unsafe fn raw(scales: *const u8, unit: u32) -> [u32; 2] {
        // SAFETY: the unit's scales lie at `scales`: this function's contract. The four words of scales come before d.
        unsafe { [load_word(scales.add((unit % 4 * 4) as usize)), load_half_word(scales.add(16))] }
    }

    fn scale([scales, d]: [u32; 2], _lane: u32) -> [f32; 4] {
        let d = F16(d as u16).to_f32();
        scales.to_le_bytes().map(|scale| step(d, scale as i8))
    }

    fn dot(quants: [[u32; 4]; 2], upper: [[u32; 2]; 2], scale: [f32; 4], x: &Inputs, acc: f32) -> f32 {
        let (first, second) = (widen(quants[0], upper[0]), widen(quants[1], upper[1]));
        let mut acc = acc;
        unroll!(HALF < 2 => {
            let sum = dot16(first[HALF], x.runs[2 * HALF]) * scale[2 * HALF];
            let sum = fma(dot16(second[HALF], x.runs[2 * HALF + 1]), scale[2 * HALF + 1], sum);
            acc = fma(sum, x.blocks[HALF].scale, acc);
        });
        acc
    }

    /// Two scales, and d.
    type Packed = [u32; 2];

    unsafe fn packed(w: Matrix, row: u32, block: u32) -> [u32; 2] {
        // SAFETY: `row` and `block` exist in `w`: this function's contract.
        unsafe {
            let scales = super_scales(w, row, block / SUPER_BLOCKS, SCALE_BYTES as usize);
            let own = scales.add((block % SUPER_BLOCKS * 2) as usize);
            [load_half_word(own), load_half_word(scales.add(16))]
        }
    }

    fn step_min([scales, d]: [u32; 2], _block: u32) -> (f32, f32) {
        let d = F16(d as u16).to_f32();
        (step(d, scales as i8), step(d, (scales >> 8) as i8))
    }
}

/// A block of 32 is encoded by 1 lane, 8 of them make a super-block. grid = [ceil(rows · k / 32 / [`THREADS`])]; quants:
/// [rows, k / 256, 192], scales: [rows, k / 256]
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ values.
#[kernel(block = THREADS, module = "quant_encode_q6_k", shuffles = 18)]
pub unsafe fn quant_encode_q6_k(Encode { quants, scales, x, rows, cols, k }: Encode<u8, ScalesQ6K>) {
    // SAFETY: x is as `Encode` says; what is written is inside quants and scales. All lanes are at the shuffles.
    unsafe {
        let (index, inside, values) = own_of_super_block(x, rows, cols, k);
        let j = index % SUPER_BLOCKS;
        let [first, second] = fit(&values);
        let largest = f32::from_bits(Max.over::<8>(abs_bits(first).max(abs_bits(second))));
        let positive = Or.over::<8>(u32::from(first == largest || second == largest)) != 0;
        let d = super_scale(largest, positive);
        let own_scales = [relative(first, d.to_f32()), relative(second, d.to_f32())];
        let inverses = own_scales.map(|scale| inverse(d.to_f32() * f32::from(scale)));
        let mut words = [0; 8];
        unroll!(I < 8 => {
            let four = [values[I * 4], values[I * 4 + 1], values[I * 4 + 2], values[I * 4 + 3]];
            words[I] = self::quants(four, inverses[I / 4]);
        });
        let own = pair_nibbles(words, j);
        let mut upper = upper_bits(words);
        unroll!(I < 4 => {
            let (other, _) = warp_shuffle_xor(FULL_MASK, upper[I], 1, 32);
            upper[I] = if j.is_multiple_of(2) { upper[I] | other << 4 } else { other | upper[I] << 4 };
        });
        if inside {
            let (quants, scales) =
                (quants.add((index / 8 * SUPER_BYTES) as usize), scales.add((index / 8) as usize));
            quants.cast::<Words>().add(j as usize).write(Words(own));
            // each lane stores two words: those of its own chunk of the pair's two
            let to = quants.add(LOW_BYTES as usize).cast::<u32>().add(j as usize * 2);
            to.write(if j.is_multiple_of(2) { upper[0] } else { upper[2] });
            to.add(1).write(if j.is_multiple_of(2) { upper[1] } else { upper[3] });
            scales.cast::<[i8; 2]>().add(j as usize).write(own_scales);
            if j == 0 {
                (&raw mut (*scales).d).write(d);
                (&raw mut (*scales).unused).write(0);
            }
        }
    }
}
