//! Q5_K: Q4_K with a fifth bit.
//!
//! quants: u5 [n, k], 160 bytes for a super-block: 128 bytes of low nibbles, as in Q4_K, are followed by the fifth bits: one word for
//! each chunk of 16 of those bytes, that is for 16 values of a block and 16 of the next. Bit i of the word's byte b belongs to value
//! 4·i + b of the first 16, bit 4 + i to that of the others. So a word of the chunk needs a single shift of that word. scales: as
//! Q4_K's. A super-block of a file is the scales, 32 bytes of fifth bits (byte l, bit j: value 32·j + l) and the nibbles.

use super::q4_k::{Q4K, Scales, quant, super_block};
use crate::device::int8::{load_pair, load_word};
use crate::device::unroll::unroll;
use crate::quant::activations::Inputs;
use crate::quant::blocks::{RowScale, inverse};
use crate::quant::encode::{Encode, THREADS, Words, own_of_super_block, pair_nibbles};
use crate::quant::weights::{BLOCK_VALUES, Matrix, SUPER_BLOCKS, Weights, dot_minima, row_words};
use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};

/// Bytes of a super-block's quants.
const SUPER_BYTES: u32 = 160;
/// Bytes of the low nibbles.
const LOW_BYTES: u32 = 128;

/// A chunk's quants as bytes, 0 to 31: the 16 of its low nibbles, those of its high ones.
#[inline(always)]
fn widen(chunk: [u32; 4], fifth: u32) -> [[u32; 4]; 2] {
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
fn fifth_bits(quants: [u32; 8]) -> [u32; 2] {
    let mut words = [0; 2];
    unroll!(I < 8 => words[I / 4] |= (quants[I] >> 4 & 0x0101_0101) << (I % 4));
    words
}

/// The format.
#[derive(Clone, Copy)]
pub struct Q5K;

#[inlined]
impl Weights for Q5K {
    const BITS: u32 = 5;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = true;
    const WHOLE: bool = true;
    const HIGH: u32 = 2;
    const UNIT: u32 = 2 * BLOCK_VALUES;
    const EARLY: usize = 0;
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

/// A block is encoded by 1 lane, 8 of them make a super-block.
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream, and the grid.
#[kernel(name = "quant_encode_q5_k", block = THREADS, min_blocks = 1, shuffles = 25)]
pub unsafe fn encode(Encode { quants, scales, x, rows, cols, k }: Encode) {
    // SAFETY: x is as `Encode` says; what is written is inside quants and scales. All lanes are at the shuffles.
    unsafe {
        let (index, inside, values) = own_of_super_block(x, rows, cols, k);
        let j = index % SUPER_BLOCKS;
        let (scales_of_all, step, min) = super_block::<31>(&values, j);
        let inverse = inverse(step);
        let mut words = [0; 8];
        unroll!(I < 8 => unroll!(B < 4 => {
            words[I] |= quant::<31>(values[I * 4 + B], inverse, min) << (8 * B);
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
                *scales.cast::<Scales>().add((index / 8) as usize) = scales_of_all;
            }
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub(super) mod on_host {
    use super::super::Format;
    use super::super::host::{self, DeviceStorage, FileType, Host, pair_nibbles, put, words};
    use super::super::q4_k::on_host::{SCALES, steps, with_minima};
    use super::*;
    use crate::quant::blocks::SUPER_BLOCK;

    impl Host for Q5K {
        const BLOCK: usize = SUPER_BLOCK;
        const SCALES: host::Scales = SCALES;
        const ERROR: f64 = 3.52e-2;
        const FILE: Option<FileType> = Some(FileType {
            id: 13,
            name: "Q5_K",
            block: 256,
            bytes: 176,
            scales: &[0, 2],
            exponent: None,
            centre: 15.5,
            storage: DeviceStorage::AsIs(Format::Q5K),
            decode: |block, values| {
                let steps = steps(block);
                for (i, value) in values.iter_mut().enumerate() {
                    let (j, l, (step, min)) = (i / 32, i % 32, steps[i / 32]);
                    let low = block[48 + j / 2 * 32 + l] >> (j % 2 * 4) & 15;
                    *value = step * f64::from(low | (block[16 + l] >> j & 1) << 4) - min;
                }
            },
            encode: None,
        });

        fn encode(values: &[f32], bytes: &mut [u8], scales: &mut [u8]) {
            let quants = with_minima::<31>(values, scales);
            put(bytes, pair_nibbles(&quants));
            let pairs = quants.chunks_exact(2).flat_map(|pair| {
                let [first, second] = [fifth_bits(pair[0]), fifth_bits(pair[1])];
                [first[0] | second[0] << 4, first[1] | second[1] << 4]
            });
            put(&mut bytes[LOW_BYTES as usize..], pairs);
        }

        fn from_file(file: &[u8], quants: &mut [u8], scales: &mut [u8]) {
            scales.copy_from_slice(&file[..16]);
            quants[..128].copy_from_slice(&file[48..]);
            put(&mut quants[128..], fifth_from_file(words(&file[16..48])));
        }

        fn to_file(file: &mut [u8], quants: &[u8], scales: &[u8]) {
            file[..16].copy_from_slice(scales);
            put(&mut file[16..48], fifth_to_file(words(&quants[128..])));
            file[48..].copy_from_slice(&quants[..128]);
        }
    }

    /// The fifth bits: in memory word 2·p + c is of the blocks 2·p and 2·p + 1, values 16·c to 16·c + 15 of each.
    pub fn fifth_from_file(file: [u32; 8]) -> [u32; 8] {
        std::array::from_fn(|at| {
            let (pair, c) = (at / 2, at % 2);
            (0..4).fold(0, |word, i| {
                let bits = file[4 * c + i] >> (2 * pair);
                word | (bits & 0x0101_0101) << i | (bits >> 1 & 0x0101_0101) << (4 + i)
            })
        })
    }

    pub fn fifth_to_file(memory: [u32; 8]) -> [u32; 8] {
        std::array::from_fn(|at| {
            let (c, i) = (at / 4, at % 4);
            (0..4).fold(0, |word, pair| {
                let bits = memory[2 * pair + c] >> i;
                word | (bits & 0x0101_0101) << (2 * pair) | (bits >> 4 & 0x0101_0101) << (2 * pair + 1)
            })
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod on_avx2 {
    use super::super::Format;
    use super::super::avx2::{
        self, Avx2, ROWS, add_16_of_8, load, load_half, nibbles, nibbles_of, upper_bits,
    };
    use super::super::avx512::{
        Avx512, Quants, ROWS as LANES, Steps, WORDS, four_words, nibbles_of_pair, with_upper,
    };
    use super::super::q4_k::on_avx2::{products_of_pair, steps, steps_of_eight_rows, steps_of_rows};
    use super::Q5K;
    use std::arch::x86_64::*;

    /// For each 16 bytes of nibbles the word of fifth bits: those of a pair of blocks.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn fifth(row: &[u8], pair: usize) -> __m256i {
        let words = _mm256_castsi128_si256(load_half(&row[128..], pair / 2));
        let at = pair as i32 % 2 * 2;
        let order = _mm256_setr_epi32(at, at, at, at, at + 1, at + 1, at + 1, at + 1);
        _mm256_permutevar8x32_epi32(words, order)
    }

    impl Avx512 for Q5K {
        #[inline]
        #[target_feature(enable = "avx512bw,avx512vnni")]
        unsafe fn pair<const G: usize>(rows: &[&[u8; G]; LANES], pair: usize) -> [Quants; 2] {
            let mut both = nibbles_of_pair(rows, pair);
            let fifth = four_words(rows, 128 + pair / 2 * 16);
            for (second, quants) in (0..).zip(&mut both) {
                for g in 0..WORDS {
                    quants[g] =
                        with_upper(quants[g], fifth[pair % 2 * 2 + g / 4], g as u32 % 4 + 4 * second, 1);
                }
            }
            both
        }

        #[inline]
        #[target_feature(enable = "avx512bw,avx512vnni")]
        unsafe fn steps_of_rows(scales: &[&[u8]; LANES], group: usize, to: &mut Steps) {
            steps_of_rows(scales, group, to);
        }
    }

    impl Avx2 for Q5K {
        const FORMAT: Format = Format::Q5K;
        const SIGNED: bool = false;
        const IN_16_BITS: usize = 4;

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn block<const G: usize>(row: &[u8; G], j: usize) -> __m256i {
            let from = _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3);
            let from = _mm256_add_epi32(from, _mm256_set1_epi32(j as i32 % 2 * 4));
            _mm256_or_si256(nibbles_of(row, j), upper_bits(fifth(row, j / 2), from, 1))
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn steps(scales: &[u8], group: usize) -> [__m256; 2] {
            steps(scales, group)
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn steps_of_rows(scales: &[&[u8]; ROWS], group: usize, to: &mut avx2::Steps) {
            steps_of_eight_rows(scales, group, to);
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn sums_of_pair<const G: usize>(
            w: &[&[u8; G]; ROWS],
            pair: usize,
            x: [__m256i; 2],
        ) -> [[__m256i; 2]; 2] {
            let mut sums = [_mm256_setzero_si256(); ROWS];
            for (sums, row) in sums.iter_mut().zip(w) {
                let (bytes, fifth) = (load(*row, pair), fifth(*row, pair));
                let [low, high] = [nibbles(bytes), nibbles(_mm256_srli_epi16(bytes, 4))];
                let of_low = upper_bits(fifth, _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3), 1);
                let of_high = upper_bits(fifth, _mm256_setr_epi32(4, 5, 6, 7, 4, 5, 6, 7), 1);
                let quants = [_mm256_or_si256(low, of_low), _mm256_or_si256(high, of_high)];
                *sums = products_of_pair(quants, x);
            }
            add_16_of_8(sums)
        }
    }
}
