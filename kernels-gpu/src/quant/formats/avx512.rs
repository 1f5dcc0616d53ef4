//! How the CPU's products read a format by AVX-512: a pair of blocks of sixteen rows of w at once, each row in a lane.
//!
//! Idea: packed words are transposed before they are unpacked, so that a shift or a mask serves sixteen rows, and a multiplication
//! (`vpdpbusd`: four products added in a lane) leaves the rows' sums side by side.
//!
//! All functions of the trait are called where the processor has AVX-512 F, BW and VNNI; that is their contract.

use super::avx2::{self, Avx2, load, load_half};
use crate::quant::blocks::{BLOCK, BLOCKS_PER_SUPER};
use std::arch::x86_64::*;

/// Rows of w that are multiplied together: the lanes of a register.
pub const ROWS: usize = 16;
/// Words of four quants of a block.
pub const WORDS: usize = BLOCK / 4;

/// The quants of a block of sixteen rows: register g has those of values 4·g to 4·g + 3, without a sign.
pub type Quants = [__m512i; WORDS];
/// The factors of eight blocks of sixteen rows: the steps, the minima or the second steps, and the minima of halves.
pub type Steps = [[__m512; BLOCKS_PER_SUPER]; 4];

/// A format.
pub trait Avx512: Avx2 {
    /// Added to the quants of a block, so that they have no sign.
    const OFFSET: i32 = if Self::SIGNED { 128 } else { Self::ADDED };

    /// Blocks 2 · `pair` and 2 · `pair` + 1 of eight, whose quants are `rows`.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW and VNNI.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    unsafe fn pair<const G: usize>(rows: &[&[u8; G]; ROWS], pair: usize) -> [Quants; 2] {
        let mut both = [[_mm512_setzero_si512(); WORDS]; 2];
        for (i, block) in both.iter_mut().enumerate() {
            let mut halves = [_mm512_setzero_si512(); WORDS];
            for (row, to) in halves.iter_mut().enumerate() {
                // SAFETY: the processor's features: this function's contract.
                let of = unsafe {
                    [Self::block(rows[row], 2 * pair + i), Self::block(rows[row + ROWS / 2], 2 * pair + i)]
                };
                *to = joined(of);
            }
            *block = transposed(halves);
            if Self::SIGNED {
                for quants in block {
                    *quants = _mm512_xor_si512(*quants, _mm512_set1_epi8(-128));
                }
            }
        }
        both
    }

    /// The factors of the rows' eight blocks from number 8 · `group` on, as [`Avx2::steps`] and [`Avx2::minima`] have them.
    ///
    /// # Safety
    /// As [`pair`](Self::pair).
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    unsafe fn steps_of_rows(scales: &[&[u8]; ROWS], group: usize, to: &mut Steps) {
        let mut by_rows = [[_mm512_setzero_si512(); ROWS / 2]; 4];
        for row in 0..ROWS / 2 {
            let two = [scales[row], scales[row + ROWS / 2]];
            // SAFETY: the processor's features: this function's contract.
            let of = unsafe { [Self::steps(two[0], group), Self::steps(two[1], group)] };
            for i in 0..2 {
                by_rows[i][row] = joined([_mm256_castps_si256(of[0][i]), _mm256_castps_si256(of[1][i])]);
            }
            if Self::FACTORS == 4 {
                // SAFETY: the processor's features: this function's contract.
                let of = unsafe { [Self::minima(two[0], group), Self::minima(two[1], group)] };
                for i in 0..2 {
                    by_rows[2 + i][row] =
                        joined([_mm256_castps_si256(of[0][i]), _mm256_castps_si256(of[1][i])]);
                }
            }
        }
        for plane in 0..Self::FACTORS {
            let by_blocks = transposed(by_rows[plane]);
            for j in 0..BLOCKS_PER_SUPER {
                to[plane][j] = _mm512_castsi512_ps(by_blocks[j]);
            }
        }
    }
}

/// Two rows, eight apart, in one register.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
fn joined(rows: [__m256i; 2]) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(rows[0]), rows[1])
}

/// Transposes words: register i has row i's eight words and row i + 8's; then register g has word g of sixteen rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
fn transposed(x: [__m512i; WORDS]) -> [__m512i; WORDS] {
    let [a, b, c, d, e, f, g, h] = x;
    let (first, second) = (transposed_lanes([a, b, c, d]), transposed_lanes([e, f, g, h]));
    let low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    let high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    let mut words = [_mm512_setzero_si512(); WORDS];
    for i in 0..4 {
        words[i] = _mm512_permutex2var_epi64(first[i], low, second[i]);
        words[4 + i] = _mm512_permutex2var_epi64(first[i], high, second[i]);
    }
    words
}

/// Transposes the four words of each of four registers' lanes of 128 bits.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
fn transposed_lanes([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// The words of bytes 32·i to 32·i + 31 of sixteen rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
pub(super) fn eight_words<const G: usize>(rows: &[&[u8; G]; ROWS], i: usize) -> [__m512i; WORDS] {
    let mut halves = [_mm512_setzero_si512(); WORDS];
    for (row, to) in halves.iter_mut().enumerate() {
        *to = joined([load(rows[row], i), load(rows[row + ROWS / 2], i)]);
    }
    transposed(halves)
}

/// The words of the 16 bytes from `from` on of sixteen rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
pub(super) fn four_words<R: AsRef<[u8]>>(rows: &[R; ROWS], from: usize) -> [__m512i; 4] {
    let mut lanes = [_mm512_setzero_si512(); 4];
    for (row, to) in lanes.iter_mut().enumerate() {
        let mut of = [_mm_setzero_si128(); 4];
        for (lane, of) in of.iter_mut().enumerate() {
            *of = load_half(&rows[row + 4 * lane].as_ref()[from..], 0);
        }
        let low = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(of[0]), of[1]);
        *to = _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(low, of[2]), of[3]);
    }
    transposed_lanes(lanes)
}

/// The word at byte `at` of sixteen rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
pub(super) fn word_of_rows(rows: &[&[u8]; ROWS], at: usize) -> __m512i {
    let mut words = [0; ROWS];
    for (word, row) in words.iter_mut().zip(rows) {
        *word = avx2::word(&row[at..], 0) as i32;
    }
    // SAFETY: `words` holds sixteen of them by its type, and the load needs no alignment.
    unsafe { _mm512_loadu_epi32(words.as_ptr()) }
}

/// The low nibbles of words' bytes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
pub(super) fn low(words: __m512i) -> __m512i {
    _mm512_and_si512(words, _mm512_set1_epi8(15))
}

/// The high nibbles.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
pub(super) fn high(words: __m512i) -> __m512i {
    low(_mm512_srli_epi16::<4>(words))
}

/// Of a pair of blocks that share 32 bytes: the first has the low nibbles, the second the high ones.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
pub(super) fn nibbles_of_pair<const G: usize>(rows: &[&[u8; G]; ROWS], pair: usize) -> [Quants; 2] {
    let words = eight_words(rows, pair);
    let mut both = [words; 2];
    for g in 0..WORDS {
        (both[0][g], both[1][g]) = (low(words[g]), high(words[g]));
    }
    both
}

/// Adds to quants those bits of `words` that `bits` has in each byte, from bit `from` on, moved up by four.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
pub(super) fn with_upper(quants: __m512i, words: __m512i, from: u32, bits: i8) -> __m512i {
    let upper = _mm512_srl_epi32(words, _mm_cvtsi32_si128(from as i32));
    _mm512_or_si512(quants, _mm512_slli_epi16::<4>(_mm512_and_si512(upper, _mm512_set1_epi8(bits))))
}

/// The f16 in the low half of each word.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
pub(super) fn halves(words: __m512i) -> __m512 {
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))
}
