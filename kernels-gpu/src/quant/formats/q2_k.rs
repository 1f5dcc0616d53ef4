//! Q2_K: w = d·scale·q − d_min·min, q from 0 to 3, with a scale and a minimum of 4 bits for each 16 values under f16 scales for each
//! 256.
//!
//! quants: u2 [n, k], 64 bytes for a super-block, as Q3_K's lower bits: two words for each chunk of 16 values of a block and 16 of the
//! next. scales: [`Scales`] [n, k / 256].
//!
//! A super-block of a file is 16 bytes with a scale in the low half and a minimum in the high half, 64 bytes of quants, d and d_min.
//! Byte 32·h + l of the quants, bits 2·i and 2·i + 1: value 128·h + 32·i + l.

use super::q4_k::{Fit, common_scales, fit, quant, relative, step_min};
use crate::device::int8::{load_half_word, load_pair, load_word, load_words};
use crate::device::math::fma;
use crate::device::unroll::unroll;
use crate::device::{Element, F16};
use crate::quant::activations::Inputs;
use crate::quant::blocks::{BLOCK, Half, RowScale, abs_bits, inverse};
use crate::quant::encode::{Encode, THREADS, own_of_super_block};
use crate::quant::weights::{BLOCK_VALUES, Matrix, SUPER_BLOCKS, Weights, dot16, row_words, super_scales};
use cuda_std::prelude::*;

/// Bytes of a super-block's quants.
const SUPER_BYTES: u32 = 64;
/// Bytes of a super-block's scales.
const SCALE_BYTES: u32 = size_of::<Scales>() as u32;
/// The largest scale or minimum of 16 values, relative to its super-block's.
const MAX_SCALE: i32 = 15;

/// The scales of a super-block.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(4))]
pub struct Scales {
    /// A byte for each 16 values: the scale in its low half, the minimum in its high half.
    pub packed: [u32; 4],
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minima.
    pub d_min: Half,
}

const _: () = assert!(size_of::<Scales>() == 20);

/// The step and the minimum of 16 values by their byte; `d` has d and d_min.
#[inline(always)]
fn factors(d: u32, byte: u32) -> (f32, f32) {
    step_min(F16(d as u16).to_f32(), F16((d >> 16) as u16).to_f32(), byte & 15, byte >> 4 & 15)
}

/// The scales and minima of a block's two halves before they are rounded.
#[inline(always)]
fn fits(values: &[f32; BLOCK]) -> [Fit; 2] {
    let (mut first, mut second) = ([0.0; BLOCK / 2], [0.0; BLOCK / 2]);
    unroll!(I < 16 => (first[I], second[I]) = (values[I], values[I + BLOCK / 2]));
    [fit::<3, 16>(&first), fit::<3, 16>(&second)]
}

/// The larger of two magnitudes, NaN if one is.
#[inline(always)]
fn larger(fits: [Fit; 2]) -> [u32; 2] {
    let [first, second] = fits;
    [abs_bits(first.scale).max(abs_bits(second.scale)), abs_bits(first.min).max(abs_bits(second.min))]
}

/// A block's bytes of scales, and its words of its two chunks.
#[inline(always)]
fn pack(
    values: &[f32; BLOCK],
    fits: [Fit; 2],
    largest: [f32; 2],
    d: Half,
    d_min: Half,
) -> ([u8; 2], [u32; 2]) {
    let (mut bytes, mut low) = ([0; 2], [0; 2]);
    unroll!(HALF < 2 => {
        let (scale, min) = relative::<MAX_SCALE>(fits[HALF], largest[0], largest[1]);
        bytes[HALF] = (scale | min << 4) as u8;
        let (step, min) = step_min(d.to_f32(), d_min.to_f32(), scale, min);
        let inverse = inverse(step);
        unroll!(I < 16 => low[HALF] |= quant::<3>(values[16 * HALF + I], inverse, min) << (8 * (I % 4) + I / 4 * 2));
    });
    (bytes, low)
}

/// The format.
#[derive(Clone, Copy)]
pub struct Q2K;

#[inlined]
impl Weights for Q2K {
    const BITS: u32 = 2;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = true;
    const HALVES: bool = true;
    const WHOLE: bool = true;
    const HIGH: u32 = 2;
    const UNIT: u32 = 2 * BLOCK_VALUES;
    const EARLY: usize = 1;
    type Upper = ();
    /// The steps and minima of the unit's runs.
    type Scale = [(f32, f32); 4];
    /// Four bytes, and d and d_min.
    type Raw = [u32; 2];

    fn chunk_at(chunk: u32) -> u32 {
        chunk * 8
    }

    unsafe fn chunk(at: *const u8) -> [u32; 4] {
        // SAFETY: the chunk's 8 bytes lie at `at`, on an 8-byte boundary: this function's contract, and rows are multiples of it.
        let [first, second] = unsafe { load_pair(at) };
        [first, second, 0, 0]
    }

    unsafe fn chunks(at: *const u8) -> [[u32; 4]; 2] {
        // SAFETY: the unit's two chunks lie at `at`: this function's contract. The first is even, so `at` is 16-byte aligned.
        let [a, b, c, d] = unsafe { load_words(at) };
        [[a, b, 0, 0], [c, d, 0, 0]]
    }

    fn widen([first, second, ..]: [u32; 4], _upper: ()) -> [[u32; 4]; 2] {
        let mut bytes = [[0; 4]; 2];
        unroll!(I < 4 => [bytes[0][I], bytes[1][I]] = [first, second].map(|word| word >> (2 * I) & 0x0303_0303));
        bytes
    }

    unsafe fn four(w: Matrix, row: u32, group: u32) -> u32 {
        let (chunk, second, word) = (group / 16 * 2 + group / 4 % 2, group / 8 % 2, group % 4);
        // SAFETY: the four columns exist in `w`: this function's contract. Rows are whole super-blocks.
        let low = unsafe { *row_words::<Self>(w, row).add((2 * chunk + second) as usize) };
        low >> (2 * word) & 0x0303_0303
    }

    fn scales_at(unit: u32) -> u32 {
        unit / 4 * SCALE_BYTES
    }

    unsafe fn raw(scales: *const u8, unit: u32) -> [u32; 2] {
        // SAFETY: the unit's scales lie at `scales`: this function's contract. The four words of bytes come before d and d_min.
        unsafe { [load_word(scales.add((unit % 4 * 4) as usize)), load_word(scales.add(16))] }
    }

    fn scale([bytes, d]: [u32; 2], _lane: u32) -> [(f32, f32); 4] {
        [factors(d, bytes), factors(d, bytes >> 8), factors(d, bytes >> 16), factors(d, bytes >> 24)]
    }

    /// The sum of the quants, in f32.
    fn of_sum(row: RowScale) -> u32 {
        (row.sum as f32).to_bits()
    }

    fn dot(quants: [[u32; 4]; 2], _upper: [(); 2], scale: Self::Scale, x: &Inputs, acc: f32) -> f32 {
        let (first, second) = (Self::widen(quants[0], ()), Self::widen(quants[1], ()));
        let mut acc = acc;
        unroll!(HALF < 2 => {
            let (runs, block) = ([x.runs[2 * HALF], x.runs[2 * HALF + 1]], x.blocks[HALF]);
            let [(step1, min1), (step2, min2)] = [scale[2 * HALF], scale[2 * HALF + 1]];
            let of_first = dot16([0x0101_0101; 4], runs[0]);
            let mut sum = dot16(first[HALF], runs[0]) * step1;
            sum = fma(dot16(second[HALF], runs[1]), step2, sum);
            sum = fma(-min1, of_first, sum);
            sum = fma(-min2, f32::from_bits(block.sum) - of_first, sum);
            acc = fma(sum, block.scale, acc);
        });
        acc
    }

    /// Two bytes, and d and d_min.
    type Packed = [u32; 2];

    unsafe fn packed(w: Matrix, row: u32, block: u32) -> [u32; 2] {
        // SAFETY: `row` and `block` exist in `w`: this function's contract.
        unsafe {
            let scales = super_scales(w, row, block / SUPER_BLOCKS, SCALE_BYTES as usize);
            let own = scales.add((block % SUPER_BLOCKS * 2) as usize);
            [load_half_word(own), load_word(scales.add(16))]
        }
    }

    fn step_min([bytes, d]: [u32; 2], _block: u32) -> (f32, f32) {
        (factors(d, bytes).0, factors(d, bytes >> 8).0)
    }

    fn minima([bytes, d]: [u32; 2], _block: u32) -> (f32, f32) {
        (factors(d, bytes).1, factors(d, bytes >> 8).1)
    }
}

/// A block is encoded by 1 lane, 8 of them make a super-block.
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream, and the grid.
#[kernel(name = "quant_encode_q2_k", block = THREADS, min_blocks = 2, shuffles = 6)]
pub unsafe fn encode(Encode { quants, scales, x, rows, cols, k }: Encode) {
    // SAFETY: x is as `Encode` says; what is written is inside quants and scales. All lanes are at the shuffles.
    unsafe {
        let (index, inside, values) = own_of_super_block(x, rows, cols, k);
        let j = index % SUPER_BLOCKS;
        let fits = fits(&values);
        let largest = larger(fits).map(|bits| f32::from_bits(Max.over::<8>(bits)));
        let (d, d_min) = common_scales::<MAX_SCALE>(largest[0], largest[1]);
        let (bytes, low) = pack(&values, fits, largest, d, d_min);
        if inside {
            let words = quants
                .add((index / 8 * SUPER_BYTES) as usize)
                .cast::<u32>()
                .add((j / 2 * 4 + j % 2) as usize);
            words.write(low[0]);
            words.add(2).write(low[1]);
            let scales = scales.cast::<Scales>().add((index / 8) as usize);
            scales.cast::<[u8; 2]>().add(j as usize).write(bytes);
            if j == 0 {
                (&raw mut (*scales).d).write(d);
                (&raw mut (*scales).d_min).write(d_min);
            }
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod on_host {
    use super::super::Format;
    use super::super::host::{
        self, DeviceStorage, FileType, Host, half_at, put, put_half, super_block, twos, words,
    };
    use super::super::q3_k::on_host::{low_from_file, low_to_file};
    use super::*;
    use crate::quant::blocks::SUPER_BLOCK;

    impl Host for Q2K {
        const BLOCK: usize = SUPER_BLOCK;
        const SCALES: host::Scales = host::Scales::Words(size_of::<Scales>() / 4);
        const ERROR: f64 = 0.27;
        const FILE: Option<FileType> = Some(FileType {
            id: 10,
            name: "Q2_K",
            block: 256,
            bytes: 84,
            scales: &[80, 82],
            exponent: None,
            centre: 1.5,
            storage: DeviceStorage::AsIs(Format::Q2K),
            decode: |block, values| {
                let (d, d_min) = (half_at(block, 80), half_at(block, 82));
                for (i, value) in values.iter_mut().enumerate() {
                    let (scale, min) = (f64::from(block[i / 16] & 15), f64::from(block[i / 16] >> 4));
                    *value = d * scale * f64::from(twos(&block[16..80], i)) - d_min * min;
                }
            },
            encode: None,
        });

        fn encode(values: &[f32], quants: &mut [u8], scales: &mut [u8]) {
            let blocks = super_block(values);
            let fits = blocks.map(|block| fits(&block));
            let largest = fits.map(larger).into_iter().reduce(|[a, b], [c, d]| [a.max(c), b.max(d)]);
            let largest = largest.unwrap_or_default().map(f32::from_bits);
            let (d, d_min) = common_scales::<MAX_SCALE>(largest[0], largest[1]);
            let mut words = [0; 16];
            for (j, (values, fits)) in blocks.iter().zip(fits).enumerate() {
                let (bytes, low) = pack(values, fits, largest, d, d_min);
                scales[2 * j..][..2].copy_from_slice(&bytes);
                (words[j / 2 * 4 + j % 2], words[j / 2 * 4 + 2 + j % 2]) = (low[0], low[1]);
            }
            put(quants, words);
            put_half(scales, 16, d);
            put_half(scales, 18, d_min);
        }

        fn from_file(file: &[u8], quants: &mut [u8], scales: &mut [u8]) {
            scales[..16].copy_from_slice(&file[..16]);
            scales[16..].copy_from_slice(&file[80..]);
            put(quants, low_from_file(words(&file[16..80])));
        }

        fn to_file(file: &mut [u8], quants: &[u8], scales: &[u8]) {
            file[..16].copy_from_slice(&scales[..16]);
            put(&mut file[16..80], low_to_file(words(quants)));
            file[80..].copy_from_slice(&scales[16..]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod on_avx2 {
    use super::super::Format;
    use super::super::avx2::{
        self, Avx2, ROWS, Steps, half, load_half, shifted, two_halves, word, word_of_rows,
    };
    use super::super::avx512::{self, Avx512, Quants, ROWS as LANES};
    use super::super::q3_k::on_avx2::{lower_bits, lower_bits_of_pair};
    use super::Q2K;
    use crate::device::unroll::unroll;
    use std::arch::x86_64::*;

    impl Avx512 for Q2K {
        #[inline]
        #[target_feature(enable = "avx512bw,avx512vnni")]
        unsafe fn pair<const G: usize>(rows: &[&[u8; G]; LANES], pair: usize) -> [Quants; 2] {
            lower_bits_of_pair(rows, pair)
        }

        #[inline]
        #[target_feature(enable = "avx512bw,avx512vnni")]
        unsafe fn steps_of_rows(scales: &[&[u8]; LANES], group: usize, to: &mut avx512::Steps) {
            let words = avx512::four_words(scales, 20 * group);
            let both = avx512::word_of_rows(scales, 20 * group + 16);
            let (d, d_min) = (avx512::halves(both), avx512::halves(_mm512_srli_epi32::<16>(both)));
            let four_bits = |words| _mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(15)));
            unroll!(PAIR < 4 => {
                unroll!(BYTE < 4 => {
                    let scales = _mm512_srli_epi32::<{ 8 * BYTE as u32 }>(words[PAIR]);
                    let minima = _mm512_srli_epi32::<{ 8 * BYTE as u32 + 4 }>(words[PAIR]);
                    to[BYTE % 2][2 * PAIR + BYTE / 2] = _mm512_mul_ps(d, four_bits(scales));
                    to[2 + BYTE % 2][2 * PAIR + BYTE / 2] = _mm512_mul_ps(d_min, four_bits(minima));
                });
            });
        }
    }

    impl Avx2 for Q2K {
        const FORMAT: Format = Format::Q2K;
        const SIGNED: bool = false;
        const IN_16_BITS: usize = 4; // a half block; all would fit

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn block<const G: usize>(row: &[u8; G], j: usize) -> __m256i {
            lower_bits(row, j)
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn steps_of_rows(scales: &[&[u8]; ROWS], group: usize, to: &mut Steps) {
            let words = avx2::four_words(scales, 20 * group);
            let [d, d_min] = two_halves(word_of_rows(scales, 20 * group + 16));
            let four_bits = |words, shift| _mm256_and_si256(shifted(words, shift), _mm256_set1_epi32(15));
            for (pair, words) in words.into_iter().enumerate() {
                for (byte, shift) in [0, 8, 16, 24].into_iter().enumerate() {
                    let (half, block) = (byte % 2, 2 * pair + byte / 2);
                    to[half][block] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(four_bits(words, shift)));
                    to[2 + half][block] =
                        _mm256_mul_ps(d_min, _mm256_cvtepi32_ps(four_bits(words, shift + 4)));
                }
            }
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn steps(scales: &[u8], group: usize) -> [__m256; 2] {
            halves(scales, group, 0)
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn minima(scales: &[u8], group: usize) -> [__m256; 2] {
            halves(scales, group, 4)
        }
    }

    /// The factors of the first halves of eight blocks and of the second ones, from their bytes' bits from `shift` on: 0 or 4.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn halves(scales: &[u8], group: usize, shift: i32) -> [__m256; 2] {
        let scales = &scales[20 * group..][..20];
        let d = half(word(scales, 4) >> (4 * shift));
        let of = |pairs, shift| {
            let bits = _mm_and_si128(_mm_srl_epi16(pairs, _mm_cvtsi32_si128(shift)), _mm_set1_epi16(15));
            _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(bits)))
        };
        let pairs = load_half(scales, 0);
        [of(pairs, shift), of(pairs, 8 + shift)]
    }
}
