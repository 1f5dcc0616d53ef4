//! Q3_K: w = d·scale·q, q from −4 to 3, with a 6-bit scale from −32 to 31 for each 16 values under an f16 scale for each 256.
//!
//! quants: i3 [n, k], 96 bytes for a super-block. q is in two's complement. First the lower two bits of all, two words for each chunk of
//! 16 values of a block and 16 of the next: the first word is the first block's. Bits 2·i and 2·i + 1 of its byte b are of value 4·i + b.
//! The third bits follow, a word for each chunk, as Q5_K's fifth bits. At the top of a byte the three bits are the signed number 32·q,
//! which `dp4a` takes as it is; the factor is taken out of the scale. scales: [`Scales`] [n, k / 256].
//!
//! A super-block of a file is 32 bytes of upper bits, 64 bytes of lower bits, 12 bytes of scales and d. Byte l of the upper bits, bit j:
//! the third bit of value 32·j + l, which is set if q ≥ 0. Byte 32·h + l of the lower bits, bits 2·i and 2·i + 1: value
//! 128·h + 32·i + l.

use crate::device::int8::{load_pair, load_word, load_words};
use crate::device::unroll::unroll;
use crate::device::{Element, F16};
use crate::quant::activations::Inputs;
use crate::quant::blocks::{BLOCK, Half, abs_bits, inverse, nearest};
use crate::quant::encode::{Encode, THREADS, own_of_super_block};
use crate::quant::search::{self, Levels};
use crate::quant::weights::{
    BLOCK_VALUES, Matrix, SUPER_BLOCKS, Weights, dot_halves, row_words, super_scales,
};
use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};

/// Bytes of a super-block's quants.
const SUPER_BYTES: u32 = 96;
/// Bytes of the lower bits.
const LOW_BYTES: u32 = 64;
/// The magnitude of the largest scale.
const LARGEST_SCALE: f32 = 32.0;

/// The scales of a super-block.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(4))]
pub struct Scales {
    /// Scale of the scales.
    pub d: Half,
    /// Zero, so that a super-block's scales are loaded at once.
    pub unused: u16,
    /// Scale + 32 of 16 values number s: the lower four bits in half s / 8 of byte s % 8, and the upper two in bits 2·(s / 4) of byte 8 +
    /// s % 4.
    pub packed: [u32; 3],
}

const _: () = assert!(size_of::<Scales>() == 16);

/// The four scales of blocks 2·`pair` and 2·`pair` + 1, plus 32, as bytes.
#[inline(always)]
fn four_scales([low, high, upper]: [u32; 3], pair: u32) -> u32 {
    let word = if pair.is_multiple_of(2) { low } else { high };
    word >> (pair / 2 * 4) & 0x0f0f_0f0f | (upper >> (2 * pair) & 0x0303_0303) << 4
}

/// The bits of scale number `s`, to be or-ed with the others'.
#[inline(always)]
fn bits(s: u32, scale: i32) -> [u32; 3] {
    let (scale, byte) = ((scale + 32) as u32, 8 * (s % 4));
    let low = (scale & 15) << (byte + s / 8 * 4);
    let second = !(s / 4).is_multiple_of(2);
    [if second { 0 } else { low }, if second { low } else { 0 }, scale >> 4 << (byte + s / 4 * 2)]
}

/// A chunk's quants as bytes, each 32·q: the 16 of a block, those of the next.
#[inline(always)]
fn widen([first, second, ..]: [u32; 4], upper: u32) -> [[u32; 4]; 2] {
    let low = |word: u32, i: usize| if i < 3 { word << (5 - 2 * i) } else { word >> 1 } & 0x6060_6060;
    let mut bytes = [[0; 4]; 2];
    unroll!(I < 4 => {
        bytes[0][I] = low(first, I) | upper << (7 - I) & 0x8080_8080;
        bytes[1][I] = low(second, I) | upper << (3 - I) & 0x8080_8080;
    });
    bytes
}

/// The step of [`widen`]'s bytes.
#[inline(always)]
fn step(d: f32, scale: u32) -> f32 {
    d * (1.0 / 32.0) * (scale as i32 - 32) as f32
}

struct Search;

#[inlined]
impl Levels for Search {
    const TRIALS: u32 = 19;

    /// Around −4, up to 2.25 to either side.
    fn place(trial: u32) -> f32 {
        0.25 * trial as f32 - (4.0 + 2.25)
    }

    fn nearest(value: f32) -> f32 {
        nearest(value).clamp(-4, 3) as f32
    }
}

/// The scales of a block's two halves before they are rounded.
#[inline(always)]
fn fit(values: &[f32; BLOCK]) -> [f32; 2] {
    let (mut first, mut second) = ([0.0; BLOCK / 2], [0.0; BLOCK / 2]);
    unroll!(I < 16 => (first[I], second[I]) = (values[I], values[I + BLOCK / 2]));
    [search::fit::<Search, 16>(&first), search::fit::<Search, 16>(&second)]
}

/// A scale relative to d.
#[inline(always)]
fn relative(scale: f32, d: f32) -> i32 {
    nearest(scale * inverse(d)).clamp(-32, 31)
}

/// A block's part of its two chunks, for 1/(d·scale) of its halves: the words of lower bits, and the third bits of the first of the two
/// blocks that share words; for the second, shift them up by four.
#[inline(always)]
fn pack(values: &[f32; BLOCK], inverses: [f32; 2]) -> ([u32; 2], [u32; 2]) {
    let (mut low, mut upper) = ([0; 2], [0; 2]);
    unroll!(I < 32 => {
        let q = nearest(values[I] * inverses[I / 16]).clamp(-4, 3) as u32;
        low[I / 16] |= (q & 3) << (8 * (I % 4) + I % 16 / 4 * 2);
        upper[I / 16] |= (q >> 2 & 1) << (8 * (I % 4) + I % 16 / 4);
    });
    (low, upper)
}

/// The format.
#[derive(Clone, Copy)]
pub struct Q3K;

#[inlined]
impl Weights for Q3K {
    const BITS: u32 = 3;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = false;
    const HALVES: bool = true;
    const WHOLE: bool = true;
    const HIGH: u32 = 2;
    const UNIT: u32 = 2 * BLOCK_VALUES;
    const EARLY: usize = 1;
    type Upper = u32;
    /// The steps of the unit's runs.
    type Scale = [f32; 4];
    type Raw = [u32; 4];

    fn chunk_at(chunk: u32) -> u32 {
        chunk / 8 * SUPER_BYTES + chunk % 8 * 8
    }

    unsafe fn chunk(at: *const u8) -> [u32; 4] {
        // SAFETY: the chunk's 8 bytes lie at `at`, on an 8-byte boundary: this function's contract, and sections are multiples of it.
        let [first, second] = unsafe { load_pair(at) };
        [first, second, 0, 0]
    }

    unsafe fn chunks(at: *const u8) -> [[u32; 4]; 2] {
        // SAFETY: the unit's two chunks lie at `at`: this function's contract. The first is even, so `at` is 16-byte aligned.
        let [a, b, c, d] = unsafe { load_words(at) };
        [[a, b, 0, 0], [c, d, 0, 0]]
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
        let (low, upper) = unsafe {
            let words = row_words::<Self>(w, row);
            let low = *words.add((Self::chunk_at(chunk) / 4 + second) as usize);
            (low, *words.add((Self::upper_at(chunk) / 4) as usize))
        };
        (low >> (2 * word) & 0x0303_0303) << 5 | (upper >> (4 * second + word) & 0x0101_0101) << 7
    }

    fn scales_at(unit: u32) -> u32 {
        unit / 4 * size_of::<Scales>() as u32
    }

    unsafe fn raw(scales: *const u8, _unit: u32) -> [u32; 4] {
        // SAFETY: the unit's scales lie at `scales`: this function's contract.
        unsafe { load_words(scales) }
    }

    fn scale([d, a, b, c]: [u32; 4], lane: u32) -> [f32; 4] {
        let d = F16(d as u16).to_f32();
        four_scales([a, b, c], lane % 4).to_le_bytes().map(|scale| step(d, scale.into()))
    }

    fn dot(quants: [[u32; 4]; 2], upper: [u32; 2], scale: [f32; 4], x: &Inputs, acc: f32) -> f32 {
        dot_halves::<Self>(quants, upper, scale, x, acc)
    }

    type Packed = [u32; 4];

    unsafe fn packed(w: Matrix, row: u32, block: u32) -> [u32; 4] {
        // SAFETY: `row` and `block` exist in `w`: this function's contract.
        unsafe { load_words(super_scales(w, row, block / SUPER_BLOCKS, size_of::<Scales>())) }
    }

    fn step_min([d, a, b, c]: [u32; 4], block: u32) -> (f32, f32) {
        let d = F16(d as u16).to_f32();
        let scales = four_scales([a, b, c], block % SUPER_BLOCKS / 2) >> (block % 2 * 16);
        (step(d, scales & 63), step(d, scales >> 8 & 63))
    }
}

/// A block is encoded by 1 lane, 8 of them make a super-block.
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream, and the grid.
#[kernel(name = "quant_encode_q3_k", block = THREADS, min_blocks = 2, shuffles = 17)]
pub unsafe fn encode(Encode { quants, scales, x, rows, cols, k }: Encode) {
    // SAFETY: x is as `Encode` says; what is written is inside quants and scales. All lanes are at the shuffles.
    unsafe {
        let (index, inside, values) = own_of_super_block(x, rows, cols, k);
        let j = index % SUPER_BLOCKS;
        let [first, second] = fit(&values);
        let largest = f32::from_bits(Max.over::<8>(abs_bits(first).max(abs_bits(second))));
        let positive = Or.over::<8>(u32::from(first == largest || second == largest)) != 0;
        let d = search::super_scale(largest, positive, LARGEST_SCALE);
        let own = [relative(first, d.to_f32()), relative(second, d.to_f32())];
        let (mut all, second) = (bits(2 * j, own[0]), bits(2 * j + 1, own[1]));
        unroll!(I < 4 => if I < 3 { all[I % 3] = Or.over::<8>(all[I % 3] | second[I % 3]) });
        let (low, mut upper) = pack(&values, own.map(|scale| inverse(d.to_f32() * scale as f32)));
        unroll!(I < 2 => {
            let (other, _) = warp_shuffle_xor(FULL_MASK, upper[I], 1, 32);
            upper[I] = if j.is_multiple_of(2) { upper[I] | other << 4 } else { other | upper[I] << 4 };
        });
        if inside {
            let quants = quants.add((index / 8 * SUPER_BYTES) as usize).cast::<u32>();
            let words = quants.add((j / 2 * 4 + j % 2) as usize);
            words.write(low[0]);
            words.add(2).write(low[1]);
            // each lane stores the word of its own chunk of the pair's two
            let upper = if j.is_multiple_of(2) { upper[0] } else { upper[1] };
            quants.add((LOW_BYTES / 4 + j) as usize).write(upper);
            if j == 0 {
                *scales.cast::<Scales>().add((index / 8) as usize) = Scales { d, unused: 0, packed: all };
            }
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub(super) mod on_host {
    use super::super::Format;
    use super::super::host::{self, DeviceStorage, FileType, Host, half_at, put, super_block, twos, words};
    use super::super::q5_k::on_host::{fifth_from_file, fifth_to_file};
    use super::*;
    use crate::quant::blocks::SUPER_BLOCK;

    impl Host for Q3K {
        const BLOCK: usize = SUPER_BLOCK;
        const SCALES: host::Scales = host::Scales::Words(size_of::<Scales>() / 4);
        const ERROR: f64 = 0.151;
        const FILE: Option<FileType> = Some(FileType {
            id: 11,
            name: "Q3_K",
            block: 256,
            bytes: 110,
            scales: &[108],
            exponent: None,
            centre: 0.0,
            storage: DeviceStorage::AsIs(Format::Q3K),
            decode: |block, values| {
                let (high, low, scales, d) =
                    (&block[..32], &block[32..96], &block[96..108], half_at(block, 108));
                for (i, value) in values.iter_mut().enumerate() {
                    let s = i / 16;
                    let scale =
                        (scales[s % 8] >> (s / 8 * 4) & 15) | (scales[8 + s % 4] >> (s / 4 * 2) & 3) << 4;
                    let q = twos(low, i) | (high[i % 32] >> (i / 32) & 1) << 2;
                    *value = d * (f64::from(scale) - 32.0) * (f64::from(q) - 4.0);
                }
            },
            encode: None,
        });

        fn encode(values: &[f32], quants: &mut [u8], scales: &mut [u8]) {
            let blocks = super_block(values);
            let fits = blocks.map(|block| fit(&block));
            let (largest, positive) = search::largest(fits.as_flattened());
            let d = search::super_scale(largest, positive, LARGEST_SCALE);
            let mut scale_words = [u32::from(d.0), 0, 0, 0];
            let (mut low, mut upper) = ([0; 16], [0; 8]);
            for (j, (values, fits)) in blocks.iter().zip(fits).enumerate() {
                let own = fits.map(|scale| relative(scale, d.to_f32()));
                for (i, scale) in own.into_iter().enumerate() {
                    for (word, bits) in scale_words[1..].iter_mut().zip(bits((2 * j + i) as u32, scale)) {
                        *word |= bits;
                    }
                }
                let (own_low, own_upper) = pack(values, own.map(|scale| inverse(d.to_f32() * scale as f32)));
                for c in 0..2 {
                    low[j / 2 * 4 + 2 * c + j % 2] = own_low[c];
                    upper[j / 2 * 2 + c] |= own_upper[c] << (j % 2 * 4);
                }
            }
            put(quants, low.into_iter().chain(upper));
            put(scales, scale_words);
        }

        fn from_file(file: &[u8], quants: &mut [u8], scales: &mut [u8]) {
            scales[..2].copy_from_slice(&file[108..]);
            scales[2..4].fill(0);
            scales[4..].copy_from_slice(&file[96..108]);
            put(quants, low_from_file(words(&file[32..96])));
            put(&mut quants[64..], fifth_from_file(words(file).map(|word: u32| !word)));
        }

        fn to_file(file: &mut [u8], quants: &[u8], scales: &[u8]) {
            put(&mut file[..32], fifth_to_file(words(&quants[64..])).map(|word| !word));
            put(&mut file[32..96], low_to_file(words(&quants[..64])));
            file[96..108].copy_from_slice(&scales[4..]);
            file[108..].copy_from_slice(&scales[..2]);
        }
    }

    /// The lower bits: in memory word 4·p + 2·c + s is of block 2·p + s, values 16·c to 16·c + 15.
    pub fn low_from_file(file: [u32; 16]) -> [u32; 16] {
        std::array::from_fn(|at| {
            let (j, c) = (at / 4 * 2 + at % 2, at / 2 % 2);
            (0..4).fold(0, |word, i| {
                word | (file[j / 4 * 8 + 4 * c + i] >> (j % 4 * 2) & 0x0303_0303) << (2 * i)
            })
        })
    }

    pub fn low_to_file(memory: [u32; 16]) -> [u32; 16] {
        std::array::from_fn(|at| {
            let (c, i) = (at / 4 % 2, at % 4);
            (0..4).fold(0, |word, block| {
                let j = at / 8 * 4 + block;
                word | (memory[j / 2 * 4 + 2 * c + j % 2] >> (2 * i) & 0x0303_0303) << (2 * block)
            })
        })
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod on_avx2 {
    use super::super::Format;
    use super::super::avx2::{
        self, Avx2, ROWS, Steps, half, load_half, shifted, store_halves, two_halves, word,
    };
    use super::super::avx512::{self, Avx512, Quants, ROWS as LANES, WORDS, four_words};
    use super::{LOW_BYTES, Q3K, four_scales};
    use crate::device::unroll::unroll;
    use std::arch::x86_64::*;

    impl Avx512 for Q3K {
        #[inline]
        #[target_feature(enable = "avx512bw,avx512vnni")]
        unsafe fn pair<const G: usize>(rows: &[&[u8; G]; LANES], pair: usize) -> [Quants; 2] {
            let mut both = lower_bits_of_pair(rows, pair);
            let upper = four_words(rows, LOW_BYTES as usize + pair / 2 * 16);
            let upper = [upper[pair % 2 * 2], upper[pair % 2 * 2 + 1]];
            let bit = _mm512_set1_epi8(4);
            // q + 4 as in `block`: 4 is added where the third bit is not set
            unroll!(G < 8 => {
                let third = _mm512_ror_epi32::<{ (30 + G as i32 % 4) % 32 }>(upper[G / 4]);
                both[0][G] = _mm512_or_si512(both[0][G], _mm512_andnot_si512(third, bit));
                let third = _mm512_ror_epi32::<{ 2 + G as i32 % 4 }>(upper[G / 4]);
                both[1][G] = _mm512_or_si512(both[1][G], _mm512_andnot_si512(third, bit));
            });
            both
        }

        #[inline]
        #[target_feature(enable = "avx512bw,avx512vnni")]
        unsafe fn steps_of_rows(scales: &[&[u8]; LANES], group: usize, to: &mut avx512::Steps) {
            let [d, low, high, upper] = four_words(scales, 16 * group);
            let d = avx512::halves(d);
            let bits = |words, bits| _mm512_and_si512(words, _mm512_set1_epi32(bits));
            unroll!(PAIR < 4 => {
                // as `four_scales`
                let own = [low, high][PAIR % 2];
                let own = bits(_mm512_srli_epi32::<{ PAIR as u32 / 2 * 4 }>(own), 0x0f0f_0f0f);
                let two = bits(_mm512_srli_epi32::<{ PAIR as u32 * 2 }>(upper), 0x0303_0303);
                let bytes = _mm512_or_si512(own, _mm512_slli_epi32::<4>(two));
                let bytes = _mm512_sub_epi8(bytes, _mm512_set1_epi8(32));
                unroll!(BYTE < 4 => {
                    let up = _mm512_slli_epi32::<{ 24 - 8 * BYTE as u32 }>(bytes);
                    let scale = _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(up));
                    to[BYTE % 2][2 * PAIR + BYTE / 2] = _mm512_mul_ps(d, scale);
                });
            });
        }
    }

    impl Avx2 for Q3K {
        const FORMAT: Format = Format::Q3K;
        const SIGNED: bool = false;
        const ADDED: i32 = 4;
        const IN_16_BITS: usize = 4; // a half block; all would fit

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn block<const G: usize>(row: &[u8; G], j: usize) -> __m256i {
            let (pair, second) = (j as i32 / 2 % 2 * 2, j as i32 % 2);
            let upper = _mm256_castsi128_si256(load_half(&row[64..], j / 4));
            let upper = _mm256_permutevar8x32_epi32(upper, of_chunks(pair, pair + 1));
            let from = _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3);
            let upper = _mm256_srlv_epi32(upper, _mm256_add_epi32(from, _mm256_set1_epi32(4 * second)));
            let upper = _mm256_slli_epi16(_mm256_and_si256(upper, _mm256_set1_epi8(1)), 2);
            let quants = _mm256_or_si256(lower_bits(row, j), upper);
            // in two's complement, q + 4 is q with its highest bit flipped
            _mm256_xor_si256(quants, _mm256_set1_epi8(4))
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn steps_of_rows(scales: &[&[u8]; ROWS], group: usize, to: &mut Steps) {
            let [d, low, high, upper] = avx2::four_words(scales, 16 * group);
            let [d, _] = two_halves(d);
            let bits = |words, bits| _mm256_and_si256(words, _mm256_set1_epi32(bits));
            let two = |pair: i32| _mm256_slli_epi32::<4>(bits(shifted(upper, 2 * pair), 0x0303_0303));
            for pair in 0..4 {
                // as `four_scales`
                let own = if pair % 2 == 0 { low } else { high };
                let bytes = _mm256_or_si256(bits(shifted(own, pair / 2 * 4), 0x0f0f_0f0f), two(pair));
                store_halves(to, pair as usize, d, _mm256_sub_epi8(bytes, _mm256_set1_epi8(32)));
            }
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn steps(scales: &[u8], group: usize) -> [__m256; 2] {
            let scales = &scales[16 * group..][..16];
            let d = half(word(scales, 0));
            let packed = [word(scales, 1), word(scales, 2), word(scales, 3)];
            let four = |pair| four_scales(packed, pair) as i32;
            let bytes = _mm_setr_epi32(four(0), four(1), four(2), four(3));
            let bytes = _mm_sub_epi8(bytes, _mm_set1_epi8(32));
            let of = |scales| _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(scales)));
            [of(_mm_srai_epi16(_mm_slli_epi16(bytes, 8), 8)), of(_mm_srai_epi16(bytes, 8))]
        }
    }

    /// For four words of values the first word, for the next four the other.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn of_chunks(first: i32, next: i32) -> __m256i {
        _mm256_setr_epi32(first, first, first, first, next, next, next, next)
    }

    /// The lower two bits of block `j`'s quants.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn lower_bits(row: &[u8], j: usize) -> __m256i {
        let second = j as i32 % 2;
        let low = _mm256_castsi128_si256(load_half(row, j / 2));
        let low = _mm256_permutevar8x32_epi32(low, of_chunks(second, second + 2));
        let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
        _mm256_and_si256(low, _mm256_set1_epi8(3))
    }

    /// The same of two blocks of sixteen rows.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    pub fn lower_bits_of_pair<const G: usize>(rows: &[&[u8; G]; LANES], pair: usize) -> [Quants; 2] {
        let words = four_words(rows, pair * 16);
        let mut both = [[_mm512_setzero_si512(); WORDS]; 2];
        unroll!(G < 8 => {
            unroll!(SECOND < 2 => {
                let bits = _mm512_srli_epi32::<{ 2 * (G as u32 % 4) }>(words[SECOND + G / 4 * 2]);
                both[SECOND][G] = _mm512_and_si512(bits, _mm512_set1_epi8(3));
            });
        });
        both
    }
}
