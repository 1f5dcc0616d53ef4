//! The common part of IQ4_NL, IQ4_XS and MXFP4: a nibble is the index of one of 16 levels, which are closer together near zero.
//!
//! In memory a block's 16 bytes have the nibbles of neighbouring values together: word i has those of values 4·i to 4·i + 3 in its
//! lower half, and those of the values 16 later in the upper half. (In the file the former are the low, the latter the high nibbles of
//! its bytes.) This suits `prmt`, which reads four consecutive nibbles as indices into 8 bytes: three bits of an index select a byte in
//! each half of the levels, and the fourth bit selects one of the two. 11 instructions look up 8 levels.
//! IQ4_NL and IQ4_XS have the same levels. Source: ggml's `kvalues_iq4nl`.

#[cfg(target_arch = "nvptx64")]
use crate::device::int8::select_bytes;
use crate::device::math::fma;
use crate::device::unroll::unroll;
use crate::quant::activations::Inputs;
use crate::quant::blocks::BLOCK;
use crate::quant::search::{self, Levels};
use crate::quant::weights::{MAGIC, Matrix, Weights, dot32, from_magic, place, row_words};
use cuda_std::inlined;

/// The levels of a format.
pub trait Levels16 {
    /// By index.
    const LEVELS: [i8; 16];
}

/// Those of IQ4_NL and IQ4_XS, in order.
pub struct Iq4;

impl Levels16 for Iq4 {
    const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
}

/// The middle between levels `i` and `i` + 1.
const fn middle(i: usize) -> f32 {
    (Iq4::LEVELS[i] as f32 + Iq4::LEVELS[i + 1] as f32) / 2.0
}

/// Four levels as a word.
#[cfg(target_arch = "nvptx64")]
const fn level_word<T: Levels16>(i: usize) -> u32 {
    u32::from_le_bytes([
        T::LEVELS[4 * i] as u8,
        T::LEVELS[4 * i + 1] as u8,
        T::LEVELS[4 * i + 2] as u8,
        T::LEVELS[4 * i + 3] as u8,
    ])
}

/// The levels of a word's eight nibbles, as bytes: of the lower four, then of the upper four.
#[inline(always)]
pub fn levels<T: Levels16>(word: u32) -> [u32; 2] {
    #[cfg(target_arch = "nvptx64")]
    {
        // three bits of each nibble select one of eight levels, the fourth selects which eight
        let which = word & 0x7777_7777;
        let eight = word >> 1 & 0x4444_4444 | 0x3210_3210;
        let half = |which, eight| {
            let lower = select_bytes(level_word::<T>(0), level_word::<T>(1), which);
            let upper = select_bytes(level_word::<T>(2), level_word::<T>(3), which);
            select_bytes(lower, upper, eight)
        };
        [half(which, eight), half(which >> 16, eight >> 16)]
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let four = |from: u32| {
            u32::from_le_bytes(std::array::from_fn(|i| {
                T::LEVELS[(word >> (from + 4 * i as u32) & 15) as usize] as u8
            }))
        };
        [four(0), four(16)]
    }
}

/// The index of the level of [`Iq4`] nearest to `value`, of two equally near ones the larger; 0 for NaN.
#[inline(always)]
fn quant(value: f32) -> u32 {
    let mut number = 0;
    unroll!(I < 16 => if I < 15 {
        number = if value >= middle(I) { I as u32 + 1 } else { number };
    });
    number
}

/// Indices in the memory layout of a block.
#[inline(always)]
pub fn pack_indices(index: impl Fn(usize) -> u32) -> [u32; 4] {
    let mut words = [0; 4];
    unroll!(I < 32 => words[I % 16 / 4] |= index(I) << (I / 16 * 16 + I % 4 * 4));
    words
}

/// A block of [`Iq4`] in its memory layout, for 1/scale.
#[inline(always)]
pub fn pack(values: &[f32; BLOCK], inverse: f32) -> [u32; 4] {
    pack_indices(|i| quant(values[i] * inverse))
}

/// The scale of a block of [`Iq4`] before it is rounded.
#[inline(always)]
pub fn fit(values: &[f32; BLOCK]) -> f32 {
    search::fit::<Search, BLOCK>(values)
}

struct Search;

#[inlined]
impl Levels for Search {
    const TRIALS: u32 = 30;

    /// Around the lowest level, up to 14 to either side; then around the highest level likewise.
    fn place(trial: u32) -> f32 {
        let first =
            if trial < 15 { Iq4::LEVELS[0] as f32 - 14.0 } else { Iq4::LEVELS[15] as f32 - 14.0 - 30.0 };
        first + 2.0 * trial as f32
    }

    fn nearest(value: f32) -> f32 {
        let mut level = Iq4::LEVELS[0] as f32;
        unroll!(I < 16 => if I < 15 {
            level = if value >= middle(I) { Iq4::LEVELS[(I + 1) % 16] as f32 } else { level };
        });
        level
    }
}

/// [`Weights::widen`].
#[inline(always)]
pub(super) fn widen<T: Levels16>(chunk: [u32; 4]) -> [[u32; 4]; 2] {
    let mut bytes = [[0; 4]; 2];
    unroll!(I < 4 => [bytes[0][I], bytes[1][I]] = levels::<T>(chunk[I]));
    bytes
}

/// # Safety
/// As [`Weights::four`].
#[inline(always)]
pub(super) unsafe fn four<T: Levels16, W: Weights>(w: Matrix, row: u32, group: u32) -> u32 {
    let (word, high) = place(W::BITS, W::HIGH, group);
    // SAFETY: the four columns exist in `w`: this function's contract.
    let [first, second] = levels::<T>(unsafe { *row_words::<W>(w, row).add(word as usize) });
    if high { second } else { first }
}

/// [`Weights::dot`] for a scale per block.
#[inline(always)]
pub(super) fn dot<T: Levels16>(quants: [u32; 4], scale: f32, x: &Inputs, acc: f32) -> f32 {
    let sum = dot32(widen::<T>(quants), [x.runs[0], x.runs[1]], MAGIC.to_bits() as i32);
    fma(from_magic(sum), scale * x.blocks[0].scale, acc)
}

#[cfg(not(target_arch = "nvptx64"))]
pub(super) mod on_host {
    use super::super::host::{nibble, put, words};
    use super::Levels16;

    /// Swaps the bits of `x` under `mask` with those `shift` higher.
    const fn exchange(x: u32, mask: u32, shift: u32) -> u32 {
        let different = (x ^ x >> shift) & mask;
        x ^ different ^ different << shift
    }

    /// Quants of a file in their memory layout: the low nibbles of a word's bytes, in order, then the high ones.
    pub fn from_file<const N: usize>(file: &[u8], quants: &mut [u8]) {
        put(quants, words::<N>(file).map(|word| exchange(exchange(word, 0x00f0_00f0, 4), 0x0000_ff00, 8)));
    }

    /// The inverse of [`from_file`].
    pub fn to_file<const N: usize>(file: &mut [u8], quants: &[u8]) {
        put(file, words::<N>(quants).map(|word| exchange(exchange(word, 0x0000_ff00, 8), 0x00f0_00f0, 4)));
    }

    /// The level of value `i` of a block in a file.
    pub fn level<T: Levels16>(bytes: &[u8], i: usize) -> f64 {
        f64::from(T::LEVELS[usize::from(nibble(bytes, i))])
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod on_avx2 {
    use super::super::avx2::{ROWS, add_32, load, load_half, nibbles, of_halves, products};
    use super::super::avx512::{Quants, ROWS as LANES, WORDS, eight_words, high, low};
    use super::Levels16;
    use std::arch::x86_64::*;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn table<T: Levels16>() -> __m256i {
        _mm256_broadcastsi128_si256(load_half(&T::LEVELS.map(|level| level as u8), 0))
    }

    /// A block's levels.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn block<T: Levels16>(row: &[u8], j: usize) -> __m256i {
        let bytes = load_half(row, j);
        let low = _mm_and_si128(bytes, _mm_set1_epi8(15));
        let high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
        // interleaves: a word of the block's first half, then the word 16 values later
        let quants = _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
        let values = _mm256_shuffle_epi8(table::<T>(), quants);
        _mm256_permutevar8x32_epi32(values, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7))
    }

    /// Reorders a block of x: the values that pair with the low nibbles first, then those of the high nibbles.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn nibble_order(x: __m256i) -> __m256i {
        let words = _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        let even_odd = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        let bytes = _mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(even_odd));
        _mm256_permute4x64_epi64(bytes, 0b11_01_10_00)
    }

    /// [`Avx2::sums_of_pair`](super::super::avx2::Avx2::sums_of_pair).
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn sums_of_pair<T: Levels16, const G: usize>(
        w: &[&[u8; G]; ROWS],
        pair: usize,
        x: [__m256i; 2],
    ) -> [[__m256i; 2]; 2] {
        let (x, ones) = (of_halves(nibble_order(x[0]), nibble_order(x[1])), _mm256_set1_epi16(1));
        let mut sums = [_mm256_setzero_si256(); ROWS];
        for (sums, row) in sums.iter_mut().zip(w) {
            let bytes = load(*row, pair);
            let [low, high] = [nibbles(bytes), nibbles(_mm256_srli_epi16(bytes, 4))];
            let [low, high] =
                [_mm256_shuffle_epi8(table::<T>(), low), _mm256_shuffle_epi8(table::<T>(), high)];
            let low = _mm256_madd_epi16(products(true, low, x[0]), ones);
            *sums = _mm256_add_epi32(low, _mm256_madd_epi16(products(true, high, x[1]), ones));
        }
        add_32(sums)
    }

    /// [`Avx512::pair`](super::super::avx512::Avx512::pair).
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    pub fn pair<T: Levels16, const G: usize>(rows: &[&[u8; G]; LANES], pair: usize) -> [Quants; 2] {
        let levels = T::LEVELS.map(|level| level as u8 ^ 128);
        let table = _mm512_broadcast_i32x4(load_half(&levels, 0));
        let words = eight_words(rows, pair);
        let mut both = [words; 2];
        for (j, quants) in both.iter_mut().enumerate() {
            for i in 0..WORDS / 2 {
                let word = words[j * WORDS / 2 + i];
                let (low, high) = (low(word), high(word));
                // of four rows each: a word of the block's first half, then the word 16 values later
                let first = _mm512_castsi512_ps(_mm512_unpacklo_epi8(low, high));
                let second = _mm512_castsi512_ps(_mm512_unpackhi_epi8(low, high));
                let of = |words| _mm512_shuffle_epi8(table, _mm512_castps_si512(words));
                quants[i] = of(_mm512_shuffle_ps::<0b10_00_10_00>(first, second));
                quants[WORDS / 2 + i] = of(_mm512_shuffle_ps::<0b11_01_11_01>(first, second));
            }
        }
        both
    }

    /// Implements [`Avx2`](super::super::avx2::Avx2) and [`Avx512`](super::super::avx512::Avx512) for a format with these levels;
    /// `$steps` are its blocks' steps.
    macro_rules! avx2 {
        ($format:ident, $levels:ty, $steps:path) => {
            use crate::quant::formats::Format;
            use crate::quant::formats::avx2::{Avx2, ROWS};
            use crate::quant::formats::avx512::{Avx512, Quants, ROWS as LANES};
            use crate::quant::formats::levels16::on_avx2;
            use std::arch::x86_64::*;

            impl Avx512 for $format {
                #[inline]
                #[target_feature(enable = "avx512bw,avx512vnni")]
                unsafe fn pair<const G: usize>(rows: &[&[u8; G]; LANES], pair: usize) -> [Quants; 2] {
                    on_avx2::pair::<$levels, G>(rows, pair)
                }
            }

            impl Avx2 for $format {
                const FORMAT: Format = Format::$format;
                const SIGNED: bool = true;

                #[inline]
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn block<const G: usize>(row: &[u8; G], j: usize) -> __m256i {
                    on_avx2::block::<$levels>(row, j)
                }

                #[inline]
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn steps(scales: &[u8], group: usize) -> [__m256; 2] {
                    $steps(scales, group)
                }

                #[inline]
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn sums_of_pair<const G: usize>(
                    w: &[&[u8; G]; ROWS],
                    pair: usize,
                    x: [__m256i; 2],
                ) -> [[__m256i; 2]; 2] {
                    on_avx2::sums_of_pair::<$levels, G>(w, pair, x)
                }
            }
        };
    }
    pub(in crate::quant::formats) use avx2;
}

#[cfg(test)]
mod tests {
    use super::on_host::{from_file, to_file};

    #[test]
    fn a_nibble_goes_where_the_layout_says() {
        let (mut memory, mut file) = ([0; 4], [0; 4]);
        from_file::<1>(&0x7654_3210u32.to_le_bytes(), &mut memory);
        assert_eq!(u32::from_le_bytes(memory), 0x7531_6420);
        to_file::<1>(&mut file, &memory);
        assert_eq!(u32::from_le_bytes(file), 0x7654_3210);
    }
}
