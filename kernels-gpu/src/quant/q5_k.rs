//! Q5_K: Q4_K with a fifth bit.
//!
//! In memory a super-block's 128 bytes of low nibbles, as in Q4_K, are followed by its fifth bits: one word for each chunk
//! of 16 of those bytes, that is for 16 values of a block and 16 of the next. Bit i of the word's byte b belongs to value
//! 4·i + b of the first 16, bit 4 + i to that of the others. So a word of the chunk needs a single shift of that word.

use super::activations::Inputs;
use super::blocks::{RowScale, ScalesQ4K, inverse};
use super::encode::{Encode, THREADS, Words, own_of_super_block, pair_nibbles, super_block};
use super::q4_k;
use super::unroll::unroll;
use super::weights::{BLOCK_VALUES, Matrix, Q4K, SUPER_BLOCKS, Weights, dot_minima, row_words};
use crate::device::int8::{load_pair, load_word};
use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};

/// Bytes of a super-block's quants.
const SUPER_BYTES: u32 = 160;
/// Bytes of the low nibbles.
const LOW_BYTES: u32 = 128;

/// A chunk's quants as bytes, 0 to 31: the 16 of its low nibbles, those of its high ones.
#[inline(always)]
pub fn widen(chunk: [u32; 4], fifth: u32) -> [[u32; 4]; 2] {
    let mut bytes = [[0; 4]; 2];
    unroll!(I < 4 => {
        bytes[0][I] = chunk[I] & 0x0f0f_0f0f | fifth << (4 - I) & 0x1010_1010;
        bytes[1][I] = chunk[I] >> 4 & 0x0f0f_0f0f | fifth >> I & 0x1010_1010;
    });
    bytes
}

/// The fifth bits of a block's quants (32 bytes of 0 to 31) for its two chunks, if it is the first of the two blocks that
/// share bytes; for the second, shift them up by four.
#[inline(always)]
pub fn fifth_bits(quants: [u32; 8]) -> [u32; 2] {
    let mut words = [0; 2];
    unroll!(I < 8 => words[I / 4] |= (quants[I] >> 4 & 0x0101_0101) << (I % 4));
    words
}

#[derive(Clone, Copy)]
pub(super) struct Q5K;

#[inlined]
impl Weights for Q5K {
    const BITS: u32 = 5;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = true;
    const WHOLE: bool = true;
    const HIGH: u32 = 2;
    const UNIT: u32 = 2 * BLOCK_VALUES;
    type Upper = u32;
    type Scale = [(f32, f32); 2];
    type Raw = [u32; 4];

    fn chunk_at(chunk: u32) -> u32 {
        chunk / 8 * SUPER_BYTES + chunk % 8 * 16
    }

    fn upper_at(chunk: u32) -> u32 {
        chunk / 8 * SUPER_BYTES + LOW_BYTES + chunk % 8 * 4
    }

    unsafe fn upper(at: *const u8) -> u32 {
        // SAFETY: the chunk's upper bits lie at `at`: this function's contract. All sections are whole words.
        unsafe { load_word(at) }
    }

    unsafe fn uppers(at: *const u8) -> [u32; 2] {
        // SAFETY: the unit's upper bits lie at `at`: this function's contract. Its first chunk is even, so `at` is
        // 8-byte aligned.
        unsafe { load_pair(at) }
    }

    fn widen(chunk: [u32; 4], upper: u32) -> [[u32; 4]; 2] {
        widen(chunk, upper)
    }

    unsafe fn four(w: Matrix, row: u32, group: u32) -> u32 {
        let (chunk, second, word) = (group / 16 * 2 + group / 4 % 2, group / 8 % 2, group % 4);
        // SAFETY: the four columns exist in `w`: this function's contract. Rows are whole super-blocks.
        let (low, fifth) = unsafe {
            let words = row_words::<Self>(w, row);
            let low = *words.add((Self::chunk_at(chunk) / 4 + word) as usize);
            (low, *words.add((Self::upper_at(chunk) / 4) as usize))
        };
        low >> (4 * second) & 0x0f0f_0f0f | (fifth >> (4 * second + word) & 0x0101_0101) << 4
    }

    fn scales_at(unit: u32) -> u32 {
        Q4K::scales_at(unit)
    }

    unsafe fn raw(scales: *const u8, unit: u32) -> [u32; 4] {
        // SAFETY: the unit's scales lie at `scales`: this function's contract.
        unsafe { Q4K::raw(scales, unit) }
    }

    fn scale(raw: [u32; 4], lane: u32) -> [(f32, f32); 2] {
        Q4K::scale(raw, lane)
    }

    fn of_sum(row: RowScale) -> u32 {
        Q4K::of_sum(row)
    }

    fn dot(quants: [[u32; 4]; 2], upper: [u32; 2], scale: Self::Scale, x: &Inputs, acc: f32) -> f32 {
        dot_minima::<Self>(quants, upper, scale, x, acc)
    }

    type Packed = [u32; 4];

    unsafe fn packed(w: Matrix, row: u32, block: u32) -> [u32; 4] {
        // SAFETY: `row` and `block` exist in `w`: this function's contract.
        unsafe { Q4K::packed(w, row, block) }
    }

    fn step_min(packed: [u32; 4], block: u32) -> (f32, f32) {
        Q4K::step_min(packed, block)
    }
}

/// A block of 32 is encoded by 1 lane, 8 of them make a super-block. grid = [ceil(rows · k / 32 / [`THREADS`])]; quants:
/// [rows, k / 256, 160], scales: [rows, k / 256]
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ values.
#[kernel(block = THREADS, module = "quant_encode_q5_k", shuffles = 25)]
pub unsafe fn quant_encode_q5_k(Encode { quants, scales, x, rows, cols, k }: Encode<u8, ScalesQ4K>) {
    // SAFETY: x is as `Encode` says; what is written is inside quants and scales. All lanes are at the shuffles.
    unsafe {
        let (index, inside, values) = own_of_super_block(x, rows, cols, k);
        let j = index % SUPER_BLOCKS;
        let (scales_of_all, step, min) = super_block::<31>(&values, j);
        let inverse = inverse(step);
        let mut words = [0; 8];
        unroll!(I < 8 => unroll!(B < 4 => {
            words[I] |= q4_k::quant::<31>(values[I * 4 + B], inverse, min) << (8 * B);
        }));
        let own = pair_nibbles(words, j);
        let mut fifth = fifth_bits(words);
        unroll!(I < 2 => {
            let (other, _) = warp_shuffle_xor(FULL_MASK, fifth[I], 1, 32);
            fifth[I] = if j.is_multiple_of(2) { fifth[I] | other << 4 } else { other | fifth[I] << 4 };
        });
        if inside {
            let quants = quants.add((index / 8 * SUPER_BYTES) as usize);
            quants.cast::<Words>().add(j as usize).write(Words(own));
            // each lane stores the word of its own chunk of the pair's two
            let fifth = if j.is_multiple_of(2) { fifth[0] } else { fifth[1] };
            quants.add(LOW_BYTES as usize).cast::<u32>().add(j as usize).write(fifth);
            if j == 0 {
                *scales.add((index / 8) as usize) = scales_of_all;
            }
        }
    }
}
