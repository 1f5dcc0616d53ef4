//! How the CPU's products read a format by AVX2: blocks of 32 quants as bytes, and eight blocks' steps.
//!
//! All functions of the trait are called where the processor has AVX2, FMA and F16C; that is their contract.

use super::Format;
use crate::quant::blocks::{BLOCK, BLOCKS_PER_SUPER};
use std::arch::x86_64::*;

/// Rows of w that are multiplied together.
pub const ROWS: usize = 8;
/// The factors of eight blocks of eight rows, a row in each lane: the steps, the minima or the second steps, and the minima of halves.
pub type Steps = [[__m256; BLOCKS_PER_SUPER]; 4];
/// Words of four quants of a block.
const WORDS: usize = BLOCK / 4;

/// A format.
pub trait Avx2 {
    /// Its number.
    const FORMAT: Format;
    /// Whether [`block`](Self::block) gives signed bytes. If not, the quants are small enough for sums in 16 bits.
    const SIGNED: bool;
    /// Added to the quants of a block, so that they are unsigned.
    const ADDED: i32 = 0;
    /// How many products of two pairs, each up to 2 · 127 · the largest quant, can be summed in 16 bits.
    const IN_16_BITS: usize = WORDS;
    /// How many factors a block has, of those that [`steps`](Self::steps) and [`minima`](Self::minima) give.
    const FACTORS: usize = match (Self::FORMAT.descriptor().minimum, Self::FORMAT.descriptor().halves) {
        (true, true) => 4,
        (false, false) => 1,
        _ => 2,
    };

    /// Block `j` of eight, whose quants are `row`: 32 bytes in the order of the values.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    unsafe fn block<const G: usize>(row: &[u8; G], j: usize) -> __m256i;

    /// The steps of a row's eight blocks from number 8 · `group` on, and their minima or the steps of their second halves. Blocks past
    /// the end have steps of zero.
    ///
    /// # Safety
    /// As [`block`](Self::block).
    unsafe fn steps(scales: &[u8], group: usize) -> [__m256; 2];

    /// The minima of the halves of the same blocks, where these have any.
    ///
    /// # Safety
    /// As [`block`](Self::block).
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn minima(_scales: &[u8], _group: usize) -> [__m256; 2] {
        [_mm256_setzero_ps(); 2]
    }

    /// The factors of the rows' eight blocks from number 8 · `group` on, as [`steps`](Self::steps) and [`minima`](Self::minima) have them.
    ///
    /// # Safety
    /// As [`block`](Self::block).
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn steps_of_rows(scales: &[&[u8]; ROWS], group: usize, to: &mut Steps) {
        let mut by_rows = [[_mm256_setzero_si256(); ROWS]; 4];
        for (i, scales) in scales.iter().enumerate() {
            // SAFETY: the processor's features: this function's contract.
            let of_row = unsafe { Self::steps(scales, group) };
            by_rows[0][i] = _mm256_castps_si256(of_row[0]);
            by_rows[1][i] = _mm256_castps_si256(of_row[1]);
            if Self::FACTORS == 4 {
                // SAFETY: the processor's features: this function's contract.
                let of_row = unsafe { Self::minima(scales, group) };
                by_rows[2][i] = _mm256_castps_si256(of_row[0]);
                by_rows[3][i] = _mm256_castps_si256(of_row[1]);
            }
        }
        for (to, by_rows) in to.iter_mut().zip(by_rows).take(Self::FACTORS) {
            let by_blocks = transposed(by_rows);
            for j in 0..BLOCKS_PER_SUPER {
                to[j] = _mm256_castsi256_ps(by_blocks[j]);
            }
        }
    }

    /// The sums of the products of blocks 2 · `pair` and 2 · `pair` + 1 of eight rows with two blocks of x: for each block the sums of
    /// its halves, or the whole sums in the first.
    ///
    /// # Safety
    /// As [`block`](Self::block).
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn sums_of_pair<const G: usize>(
        w: &[&[u8; G]; ROWS],
        pair: usize,
        x: [__m256i; 2],
    ) -> [[__m256i; 2]; 2] {
        let mut sums = [[_mm256_setzero_si256(); 2]; 2];
        for i in 0..2 {
            let mut rows = [_mm256_setzero_si256(); ROWS];
            for (to, row) in rows.iter_mut().zip(w) {
                // SAFETY: the processor's features: this function's contract.
                *to = products(Self::SIGNED, unsafe { Self::block(row, 2 * pair + i) }, x[i]);
            }
            sums[i] = sums_of_each(Self::SIGNED, rows, Self::FORMAT.descriptor().halves);
        }
        sums
    }
}

/// The sums of two neighbouring products of quants and x. For signed quants the magnitude, up to 128, is the unsigned
/// operand, and the sign moves to x.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn products(signed: bool, quants: __m256i, x: __m256i) -> __m256i {
    match signed {
        true => _mm256_maddubs_epi16(_mm256_abs_epi8(quants), _mm256_sign_epi8(x, quants)),
        false => _mm256_maddubs_epi16(quants, x),
    }
}

/// The sums of each register's 16 [`products`], one lane per register: per half, or all in the first. 16 bits hold two products of
/// quants without a sign, which have six bits at most.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn sums_of_each(signed: bool, x: [__m256i; ROWS], in_halves: bool) -> [__m256i; 2] {
    let ones = _mm256_set1_epi16(1);
    let two = |i: usize| match signed {
        true => _mm256_hadd_epi32(_mm256_madd_epi16(x[i], ones), _mm256_madd_epi16(x[i + 1], ones)),
        false => _mm256_madd_epi16(_mm256_hadd_epi16(x[i], x[i + 1]), ones),
    };
    let (a, b) = (_mm256_hadd_epi32(two(0), two(2)), _mm256_hadd_epi32(two(4), two(6)));
    let halves = of_halves(a, b);
    match in_halves {
        true => halves,
        false => [_mm256_add_epi32(halves[0], halves[1]), _mm256_setzero_si256()],
    }
}

/// Adds up each register's lower half, which is a sum of the first block, and its upper half, of the second; one lane per register. 16
/// bits hold the sum of sixteen products of four bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_16(x: [__m256i; ROWS]) -> [[__m256i; 2]; 2] {
    let ones = _mm256_set1_epi16(1);
    let short = |i: usize| _mm256_hadd_epi16(x[i], x[i + 1]);
    let four = |i: usize| _mm256_madd_epi16(_mm256_hadd_epi16(short(i), short(i + 2)), ones);
    of_pair(four(0), four(4))
}

/// As [`add_16`], for products of five bits, of which 16 bits hold the sum of eight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_16_of_8(x: [__m256i; ROWS]) -> [[__m256i; 2]; 2] {
    let ones = _mm256_set1_epi16(1);
    let two = |i: usize| _mm256_madd_epi16(_mm256_hadd_epi16(x[i], x[i + 1]), ones);
    of_pair(_mm256_hadd_epi32(two(0), two(2)), _mm256_hadd_epi32(two(4), two(6)))
}

/// As [`add_16`], for sums in 32 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_32(x: [__m256i; ROWS]) -> [[__m256i; 2]; 2] {
    let two = |i: usize| _mm256_hadd_epi32(x[i], x[i + 1]);
    of_pair(_mm256_hadd_epi32(two(0), two(2)), _mm256_hadd_epi32(two(4), two(6)))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn of_pair(a: __m256i, b: __m256i) -> [[__m256i; 2]; 2] {
    of_halves(a, b).map(|sums| [sums, _mm256_setzero_si256()])
}

/// The lower halves of two registers, and the upper halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn of_halves(a: __m256i, b: __m256i) -> [__m256i; 2] {
    [_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31)]
}

/// Transposes eight registers of eight words.
///
/// # Safety
/// The processor has AVX2, FMA and F16C.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn transposed(x: [__m256i; 8]) -> [__m256i; 8] {
    let [a, b, c, d, e, f, g, h] = x;
    let (first, second) = (transposed_lanes([a, b, c, d]), transposed_lanes([e, f, g, h]));
    let low = |i: usize| _mm256_permute2x128_si256(first[i], second[i], 0x20);
    let high = |i: usize| _mm256_permute2x128_si256(first[i], second[i], 0x31);
    [low(0), low(1), low(2), low(3), high(0), high(1), high(2), high(3)]
}

/// Transposes the four words of each of four registers' halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transposed_lanes([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// The words of the 16 bytes from `from` on of eight rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn four_words(rows: &[&[u8]; ROWS], from: usize) -> [__m256i; 4] {
    let mut lanes = [_mm256_setzero_si256(); 4];
    for (row, to) in lanes.iter_mut().enumerate() {
        let of = |row: usize| load_half(&rows[row][from..], 0);
        *to = _mm256_set_m128i(of(row + ROWS / 2), of(row));
    }
    transposed_lanes(lanes)
}

/// The word at byte `at` of eight rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn word_of_rows(rows: &[&[u8]; ROWS], at: usize) -> __m256i {
    let of = |row: usize| word(&rows[row][at..], 0) as i32;
    _mm256_setr_epi32(of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7))
}

/// The words shifted down.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn shifted(words: __m256i, bits: i32) -> __m256i {
    _mm256_srl_epi32(words, _mm_cvtsi32_si128(bits))
}

/// The steps of the halves of blocks 2 · `pair` and 2 · `pair` + 1: `d` times the four signed bytes of each row's word.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn store_halves(to: &mut Steps, pair: usize, d: __m256, words: __m256i) {
    let of = |byte: __m256i| _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(byte)));
    to[0][2 * pair] = of(_mm256_slli_epi32::<24>(words));
    to[1][2 * pair] = of(_mm256_slli_epi32::<16>(words));
    to[0][2 * pair + 1] = of(_mm256_slli_epi32::<8>(words));
    to[1][2 * pair + 1] = of(words);
}

/// The f16 in the low halves of the words, and in the high halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn two_halves(words: __m256i) -> [__m256; 2] {
    let low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    let packed = _mm256_packus_epi32(low, _mm256_srli_epi32::<16>(words));
    let in_order = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
    [_mm256_castsi256_si128(in_order), _mm256_extracti128_si256::<1>(in_order)]
        .map(|halves| _mm256_cvtph_ps(halves))
}

/// The low nibbles of the bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn nibbles(bytes: __m256i) -> __m256i {
    _mm256_and_si256(bytes, _mm256_set1_epi8(15))
}

/// The nibbles of block `j` where two blocks share 32 bytes; the low ones are the first's.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn nibbles_of(row: &[u8], j: usize) -> __m256i {
    nibbles(_mm256_srl_epi16(load(row, j / 2), _mm_cvtsi32_si128(j as i32 % 2 * 4)))
}

/// For each word the bits of `words` from `from` on, moved up by four.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn upper_bits(words: __m256i, from: __m256i, bits: i8) -> __m256i {
    _mm256_slli_epi16(_mm256_and_si256(_mm256_srlv_epi32(words, from), _mm256_set1_epi8(bits)), 4)
}

/// The 16-bit scales of eight blocks, zero past the end.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eight_scales(scales: &[u8], group: usize) -> __m128i {
    let scales = &scales[16 * group..];
    match scales.len() < 16 {
        false => load_half(scales, 0),
        true => {
            let mut rest = [0; 16];
            rest[..scales.len()].copy_from_slice(scales);
            load_half(&rest, 0)
        }
    }
}

/// The steps of eight blocks with an f16 scale each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn halves(scales: &[u8], group: usize) -> [__m256; 2] {
    [_mm256_cvtph_ps(eight_scales(scales, group)), _mm256_setzero_ps()]
}

/// The steps of eight blocks with a bf16 scale each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn bf16_steps(scales: &[u8], group: usize) -> [__m256; 2] {
    let upper = _mm256_slli_epi32(_mm256_cvtepu16_epi32(eight_scales(scales, group)), 16);
    [_mm256_castsi256_ps(upper), _mm256_setzero_ps()]
}

/// Eight times the f16 in the low half of a word.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn half(word: u32) -> __m256 {
    _mm256_cvtph_ps(_mm_set1_epi16(word as i16))
}

/// Word `i`.
#[inline]
pub(super) fn word(bytes: &[u8], i: usize) -> u32 {
    let bytes = &bytes[4 * i..][..4]; // one load: the compiler knows that there are four
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Bytes 32·i to 32·i + 31.
///
/// # Safety
/// The processor has AVX2, FMA and F16C.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn load(bytes: &[u8], i: usize) -> __m256i {
    let bytes = &bytes[i * 32..][..32];
    // SAFETY: the slice is 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Bytes 16·i to 16·i + 15.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load_half(bytes: &[u8], i: usize) -> __m128i {
    let bytes = &bytes[i * 16..][..16];
    // SAFETY: the slice is 16 bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
