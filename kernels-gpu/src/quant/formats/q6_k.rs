//! Q6_K: w = d·scale·q, q from −32 to 31, with an 8-bit scale for each 16 values under an f16 scale for each 256.
//!
//! quants: i6 [n, k], 192 bytes for a super-block: 128 bytes of low nibbles, as in Q4_K, are followed by the upper two bits: two words
//! for each chunk of 16 of those bytes, that is for 16 values of a block and 16 of the next. Byte b of word j has, from its lowest bits
//! on, those of value 4·j + b of the first 16, of value 8 + 4·j + b, and of the same two of the others. q is in two's complement (the
//! file has q + 32), so that its six bits at the top of a byte are the signed number 4·q, which `dp4a` takes as it is. The factor is
//! taken out of the scale. scales: [`Scales`] [n, k / 256].
//!
//! A super-block of a file is 128 bytes of low nibbles, 64 bytes of upper bits, 16 scales and d. Byte 64·h + l of the low nibbles: value
//! 128·h + l in the low half, value 128·h + 64 + l in the high half. Byte 32·h + l of the upper bits, bits 2·i and 2·i + 1: value
//! 128·h + 32·i + l.

use crate::device::int8::{load_half_word, load_pair, load_word, load_words};
use crate::device::unroll::unroll;
use crate::device::{Element, F16};
use crate::quant::activations::Inputs;
use crate::quant::blocks::{BLOCK, Half, abs_bits, inverse, nearest};
use crate::quant::encode::{Encode, THREADS, Words, own_of_super_block, pair_nibbles};
use crate::quant::search::{self, Levels};
use crate::quant::weights::{
    BLOCK_VALUES, Matrix, SUPER_BLOCKS, Weights, dot_halves, row_words, super_scales,
};
use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};

/// The scales of a super-block in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(4))]
pub struct Scales {
    /// A signed byte for each 16 values.
    pub packed: [u32; 4],
    /// Their scale.
    pub d: Half,
    /// Zero, so that the words of all super-blocks are aligned.
    pub unused: u16,
}

const _: () = assert!(size_of::<Scales>() == 20);

/// Bytes of a super-block's quants.
const SUPER_BYTES: u32 = 192;
/// Bytes of the low nibbles.
const LOW_BYTES: u32 = 128;
/// Bytes of a super-block's scales.
const SCALE_BYTES: u32 = size_of::<Scales>() as u32;
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
fn widen(chunk: [u32; 4], upper: [u32; 2]) -> [[u32; 4]; 2] {
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
fn step(d: f32, scale: i8) -> f32 {
    0.25 * d * f32::from(scale)
}

/// The scales of a block's two halves before they are rounded.
#[inline(always)]
fn fit(values: &[f32; BLOCK]) -> [f32; 2] {
    let (mut first, mut second) = ([0.0; BLOCK / 2], [0.0; BLOCK / 2]);
    unroll!(I < 16 => (first[I], second[I]) = (values[I], values[I + BLOCK / 2]));
    [search::fit::<Q6K, 16>(&first), search::fit::<Q6K, 16>(&second)]
}

/// d of a super-block, from [`search::largest`] of its scales.
#[inline(always)]
fn super_scale(largest: f32, positive: bool) -> Half {
    search::super_scale(largest, positive, LARGEST_SCALE)
}

/// A scale relative to d.
#[inline(always)]
fn relative(scale: f32, d: f32) -> i8 {
    nearest(scale * inverse(d)).clamp(-128, 127) as i8
}

/// Four quants as bytes, for 1/(d·scale); the lower six bits of each are q.
#[inline(always)]
fn quants(values: [f32; 4], inverse: f32) -> u32 {
    let [a, b, c, d] = values.map(|value| nearest(value * inverse).clamp(-32, 31) as u32 & 0x3f);
    a | b << 8 | c << 16 | d << 24
}

/// The upper bits of a block's quants (32 bytes of six bits) for its two chunks, if it is the first of the two blocks that
/// share bytes; for the second, shift them up by four.
#[inline(always)]
fn upper_bits(quants: [u32; 8]) -> [u32; 4] {
    let mut words = [0; 4];
    unroll!(I < 8 => words[I / 4 * 2 + I % 2] |= (quants[I] >> 4 & 0x0303_0303) << (I % 4 / 2 * 2));
    words
}

/// The format.
#[derive(Clone, Copy)]
pub struct Q6K;

#[inlined]
impl Weights for Q6K {
    const BITS: u32 = 6;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = false;
    const HALVES: bool = true;
    const WHOLE: bool = true;
    const HIGH: u32 = 2;
    const UNIT: u32 = 2 * BLOCK_VALUES;
    const EARLY: usize = 1;
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
        dot_halves::<Self>(quants, upper, scale, x, acc)
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

/// A block is encoded by 1 lane, 8 of them make a super-block.
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream, and the grid.
#[kernel(name = "quant_encode_q6_k", block = THREADS, min_blocks = 2, shuffles = 18)]
pub unsafe fn encode(Encode { quants, scales, x, rows, cols, k }: Encode) {
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
            let (quants, scales) = (
                quants.add((index / 8 * SUPER_BYTES) as usize),
                scales.cast::<Scales>().add((index / 8) as usize),
            );
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

#[cfg(not(target_arch = "nvptx64"))]
mod on_host {
    use super::super::Format;
    use super::super::host::{
        self, DeviceStorage, FileType, Host, Quants, half_at, pair_nibbles, put, super_block, twos, words,
    };
    use super::*;
    use crate::quant::blocks::{BLOCKS_PER_SUPER, SUPER_BLOCK};

    impl Host for Q6K {
        const BLOCK: usize = SUPER_BLOCK;
        const SCALES: host::Scales = host::Scales::Words(size_of::<Scales>() / 4);
        const ERROR: f64 = 1.7e-2;
        const FILE: Option<FileType> = Some(FileType {
            id: 14,
            name: "Q6_K",
            block: 256,
            bytes: 210,
            scales: &[208],
            exponent: None,
            centre: 0.0,
            storage: DeviceStorage::AsIs(Format::Q6K),
            decode: |block, values| {
                let (low, high, scales, d) =
                    (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
                for (i, value) in values.iter_mut().enumerate() {
                    let low = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
                    let q = f64::from(low | twos(high, i) << 4) - 32.0;
                    *value = d * f64::from(scales[i / 16] as i8) * q;
                }
            },
            encode: None,
        });

        fn encode(values: &[f32], bytes: &mut [u8], scale_bytes: &mut [u8]) {
            let blocks = super_block(values);
            let fits = blocks.map(|block| fit(&block));
            let (largest, positive) = search::largest(fits.as_flattened());
            let d = super_scale(largest, positive);
            let scales = fits.map(|fits| fits.map(|scale| relative(scale, d.to_f32())));
            let quants: [Quants; BLOCKS_PER_SUPER] = std::array::from_fn(|j| {
                let inverses = scales[j].map(|scale| inverse(d.to_f32() * f32::from(scale)));
                let four = |word: usize| std::array::from_fn(|b| blocks[j][4 * word + b]);
                std::array::from_fn(|word| quants(four(word), inverses[word / 4]))
            });
            put(bytes, pair_nibbles(&quants));
            let pairs = quants.chunks_exact(2).flat_map(|pair| {
                let (first, second) = (upper_bits(pair[0]), upper_bits(pair[1]));
                std::array::from_fn::<_, 4, _>(|i| first[i] | second[i] << 4)
            });
            put(&mut bytes[LOW_BYTES as usize..], pairs);
            for (byte, scale) in scale_bytes.iter_mut().zip(scales.as_flattened()) {
                *byte = *scale as u8;
            }
            put(&mut scale_bytes[16..], [u32::from(d.0)]);
        }

        fn from_file(file: &[u8], quants: &mut [u8], scales: &mut [u8]) {
            scales[..18].copy_from_slice(&file[192..]);
            scales[18..].fill(0);
            put(quants, low_from_file(words(&file[..128])));
            put(&mut quants[128..], upper_from_file(words(&file[128..192])));
        }

        fn to_file(file: &mut [u8], quants: &[u8], scales: &[u8]) {
            put(file, low_to_file(words(&quants[..128])));
            put(&mut file[128..192], upper_to_file(words(&quants[128..])));
            file[192..].copy_from_slice(&scales[..18]);
        }
    }

    /// The low nibbles. In each half of 16 words of the file the first 8 belong to blocks 0 and 2, the others to blocks 1 and 3. In
    /// memory the first 8 belong to blocks 0 and 1, the others to blocks 2 and 3.
    fn low_from_file(file: [u32; 32]) -> [u32; 32] {
        std::array::from_fn(|at| {
            let (a, b) = (file[at & !8], file[at | 8]);
            if at & 8 == 0 {
                a & 0x0f0f_0f0f | (b & 0x0f0f_0f0f) << 4
            } else {
                a >> 4 & 0x0f0f_0f0f | b & 0xf0f0_f0f0
            }
        })
    }

    fn low_to_file(memory: [u32; 32]) -> [u32; 32] {
        low_from_file(memory) // pairs (0, 2), (1, 3) from (0, 1), (2, 3) is the same exchange
    }

    /// Converts q + 32 to q in two's complement and back: flips the highest of six bits.
    const SIGN: u32 = 0xaaaa_aaaa;

    /// The upper bits. In memory words 4·p + 2·c and the next are of blocks 2·p and 2·p + 1, values 16·c to 16·c + 15 of each.
    fn upper_from_file(file: [u32; 16]) -> [u32; 16] {
        std::array::from_fn(|at| {
            let (pair, c, j) = (at / 4, at / 2 % 2, at % 2);
            let of_half = &file[pair / 2 * 8..];
            (0..2).fold(0, |word, further| {
                let bits = (of_half[4 * c + j + 2 * further] ^ SIGN) >> (pair % 2 * 4);
                word | (bits & 0x0303_0303) << (2 * further) | (bits >> 2 & 0x0303_0303) << (4 + 2 * further)
            })
        })
    }

    fn upper_to_file(memory: [u32; 16]) -> [u32; 16] {
        std::array::from_fn(|at| {
            let (half, c, further, j) = (at / 8, at / 4 % 2, at / 2 % 2, at % 2);
            let word = (0..2).fold(0, |word, pair| {
                let bits = memory[8 * half + 4 * pair + 2 * c + j] >> (2 * further);
                word | (bits & 0x0303_0303) << (4 * pair) | (bits >> 4 & 0x0303_0303) << (4 * pair + 2)
            });
            word ^ SIGN
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod on_avx2 {
    use super::super::Format;
    use super::super::avx2::{
        self, Avx2, ROWS, Steps, half, load, load_half, nibbles, products, store_halves, sums_of_each,
        two_halves, upper_bits, word, word_of_rows,
    };
    use super::super::avx512::{
        Avx512, Quants, ROWS as LANES, WORDS, four_words, nibbles_of_pair, with_upper,
    };
    use super::Q6K;
    use std::arch::x86_64::*;

    /// Blocks 2 · `pair` and 2 · `pair` + 1 of a row, as [`Avx2::block`] gives them.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn blocks(row: &[u8], pair: usize) -> [__m256i; 2] {
        let words = _mm256_castsi128_si256(load_half(&row[128..], pair));
        let words = _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 1, 0, 1, 2, 3, 2, 3));
        let of_first = upper_bits(words, _mm256_setr_epi32(0, 0, 2, 2, 0, 0, 2, 2), 3);
        let of_second = upper_bits(words, _mm256_setr_epi32(4, 4, 6, 6, 4, 4, 6, 6), 3);
        let bytes = load(row, pair);
        // in two's complement, q + 32 is q with its highest bit flipped
        let whole = |low, upper| _mm256_xor_si256(_mm256_or_si256(low, upper), _mm256_set1_epi8(32));
        [whole(nibbles(bytes), of_first), whole(nibbles(_mm256_srli_epi16::<4>(bytes)), of_second)]
    }

    impl Avx512 for Q6K {
        #[inline]
        #[target_feature(enable = "avx512bw,avx512vnni")]
        unsafe fn pair<const G: usize>(rows: &[&[u8; G]; LANES], pair: usize) -> [Quants; 2] {
            let mut both = nibbles_of_pair(rows, pair);
            let upper = four_words(rows, 128 + pair * 16);
            for (second, quants) in (0..).zip(&mut both) {
                for g in 0..WORDS {
                    let word = upper[g / 4 * 2 + g % 2];
                    let all = with_upper(quants[g], word, g as u32 / 2 % 2 * 2 + 4 * second, 3);
                    quants[g] = _mm512_xor_si512(all, _mm512_set1_epi8(32)); // as in `block`
                }
            }
            both
        }
    }

    impl Avx2 for Q6K {
        const FORMAT: Format = Format::Q6K;
        const SIGNED: bool = false;
        const ADDED: i32 = 32;
        const IN_16_BITS: usize = 2;

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn block<const G: usize>(row: &[u8; G], j: usize) -> __m256i {
            blocks(row, j / 2)[j % 2]
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn sums_of_pair<const G: usize>(
            w: &[&[u8; G]; ROWS],
            pair: usize,
            x: [__m256i; 2],
        ) -> [[__m256i; 2]; 2] {
            let mut sums = [[_mm256_setzero_si256(); ROWS]; 2];
            for (i, row) in w.iter().enumerate() {
                let [first, second] = blocks(*row, pair);
                (sums[0][i], sums[1][i]) = (products(false, first, x[0]), products(false, second, x[1]));
            }
            [sums_of_each(false, sums[0], true), sums_of_each(false, sums[1], true)]
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn steps_of_rows(scales: &[&[u8]; ROWS], group: usize, to: &mut Steps) {
            let words = avx2::four_words(scales, 20 * group);
            let [d, _] = two_halves(word_of_rows(scales, 20 * group + 16));
            for (pair, words) in words.into_iter().enumerate() {
                store_halves(to, pair, d, words);
            }
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn steps(scales: &[u8], group: usize) -> [__m256; 2] {
            let scales = &scales[20 * group..][..20];
            let d = half(word(scales, 4));
            let pairs = load_half(scales, 0);
            let of = |scales| _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(scales)));
            [of(_mm_srai_epi16(_mm_slli_epi16(pairs, 8), 8)), of(_mm_srai_epi16(pairs, 8))]
        }
    }
}
