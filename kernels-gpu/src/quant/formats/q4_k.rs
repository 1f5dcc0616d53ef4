//! Q4_K: w = d·scale·q − d_min·min, q from 0 to 15, with a scale and a minimum of 6 bits for each 32 values under f16 scales for each
//! 256. Also the choice of scales, which is Q5_K's as well, with MAX = 31 for 15, and Q2_K's, with 3 and for half blocks.
//!
//! quants: u4 [n, k], 32 bytes for two blocks: byte 32·c + j of a super-block has value 64·c + j in the low half, value 64·c + 32 + j in
//! the high half. scales: [`Scales`] [n, k / 256]. A super-block of a file is the scales and the same 128 bytes.
//!
//! Idea: for each of some step widths around (max − min)/MAX, quantise, solve the weighted least-squares problem for (scale,
//! min) with those quants, and keep the pair with the smallest error. Large values weigh more. The eight (scale, min) of a
//! super-block are then rounded to 6 bits of their common maxima, and the quants recomputed for the rounded ones.
//! Source: the reference quantiser of ggml's Q4_K and Q5_K (`make_qkx2_quants`), whose grids and weights these are.

use crate::device::int8::load_words;
use crate::device::unroll::unroll;
use crate::device::{Element, F16};
use crate::quant::activations::Inputs;
use crate::quant::blocks::{BLOCK, Half, RowScale, abs_bits, inverse, nearest, stored_scale};
use crate::quant::encode::{Encode, THREADS, Words, own_of_super_block, pair_nibbles};
use crate::quant::weights::{BLOCK_VALUES, Matrix, SUPER_BLOCKS, Weights, dot_minima, super_scales};
use cuda_std::prelude::*;

/// The scales of a super-block.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(4))]
pub struct Scales {
    /// Scale of the blocks' scales.
    pub d: Half,
    /// Scale of the blocks' minima.
    pub d_min: Half,
    /// Eight scales and eight minima of 6 bits, as [`Scales::get`] reads them.
    pub packed: [u32; 3],
}

const _: () = assert!(size_of::<Scales>() == 16);

#[inlined]
impl Scales {
    /// The 6-bit scale and minimum of block `j`.
    pub fn get(packed: [u32; 3], j: u32) -> (u32, u32) {
        let [low, high, rest] = packed;
        let shift = 8 * (j % 4);
        let (first, second) = (low >> shift, high >> shift);
        // both are computed: a branch would diverge
        let (scale, min) =
            (rest >> shift & 15 | (first >> 6 & 3) << 4, rest >> (shift + 4) & 15 | (second >> 6 & 3) << 4);
        if j < 4 { (first & 63, second & 63) } else { (scale, min) }
    }

    /// The bits of block `j`, to be or-ed with the others'.
    pub fn bits(j: u32, scale: u32, min: u32) -> [u32; 3] {
        let shift = 8 * (j % 4);
        if j < 4 {
            [scale << shift, min << shift, 0]
        } else {
            let rest = (scale & 15) << shift | (min & 15) << (shift + 4);
            [(scale >> 4) << (shift + 6), (min >> 4) << (shift + 6), rest]
        }
    }
}

/// The largest scale or minimum of a block, relative to its super-block's.
const MAX_SCALE: i32 = 63;

/// The step widths to try: (max − min) / (first + 0.1·i); their number, and `first`.
const fn candidates(max: i32) -> (u32, f32) {
    match max {
        3 => (16, 2.5),
        15 => (21, 14.0),
        _ => (16, 30.5),
    }
}

/// A block's scale and minimum before they are rounded to 6 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    /// The step.
    pub scale: f32,
    /// The minimum, which is subtracted; ≥ 0.
    pub min: f32,
}

/// √x, correctly rounded on host and device.
#[inline(always)]
fn sqrt(x: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        crate::device::math::sqrt(x)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        x.sqrt()
    }
}

/// Σ weight·(scale·q + min − w)² for the quants that 1/step gives.
#[inline(always)]
fn error<const MAX: i32, const N: usize>(
    values: &[f32; N],
    base: f32,
    low: f32,
    inverse: f32,
    scale: f32,
    min: f32,
) -> f32 {
    let mut sum = 0.0;
    unroll!(I < 32 => if I < N {
        let q = nearest(inverse * (values[I] - low)).clamp(0, MAX) as f32;
        let difference = scale * q + min - values[I];
        sum += (base + values[I].abs()) * (difference * difference);
    });
    sum
}

/// The scale and minimum with the smallest error on up to 32 values.
#[inline(always)]
pub(super) fn fit<const MAX: i32, const N: usize>(values: &[f32; N]) -> Fit {
    let (mut low, mut high, mut squares) = (values[0], values[0], 0.0);
    unroll!(I < 32 => if I < N {
        let value = values[I];
        low = if value < low { value } else { low };
        high = if value > high { value } else { high };
        squares += value * value;
    });
    let base = sqrt(squares / N as f32);
    if base.is_nan() || base == f32::INFINITY {
        return Fit { scale: f32::NAN, min: f32::NAN };
    }
    low = if low > 0.0 { 0.0 } else { low };
    if high <= low {
        return Fit { scale: 0.0, min: -low };
    }
    // Σ weight and Σ weight·w do not depend on the quants.
    let (mut weights, mut weighted) = (0.0, 0.0);
    unroll!(I < 32 => if I < N {
        let weight = base + values[I].abs();
        weights += weight;
        weighted += weight * values[I];
    });
    let range = high - low;
    let mut best = Fit { scale: range / MAX as f32, min: -low };
    let mut least = error::<MAX, N>(values, base, low, MAX as f32 / range, best.scale, low);
    let (candidates, first) = const { candidates(MAX) };
    let mut candidate = 0;
    while candidate < candidates {
        let steps = first + 0.1 * candidate as f32;
        let inverse = steps / range;
        let (mut q1, mut q2, mut qw) = (0.0, 0.0, 0.0);
        unroll!(I < 32 => if I < N {
            let q = nearest(inverse * (values[I] - low)).clamp(0, MAX) as f32;
            let weight = base + values[I].abs();
            q1 += weight * q;
            q2 += weight * q * q;
            qw += weight * q * values[I];
        });
        let determinant = weights * q2 - q1 * q1;
        if determinant > 0.0 {
            let mut scale = (weights * qw - weighted * q1) / determinant;
            let mut min = (q2 * weighted - q1 * qw) / determinant;
            if min > 0.0 {
                min = 0.0;
                scale = qw / q2;
            }
            let found = error::<MAX, N>(values, base, low, inverse, scale, min);
            if found < least {
                least = found;
                best = Fit { scale, min: -min };
            }
        }
        candidate += 1;
    }
    best
}

/// A block's scale and minimum, 0 to MOST, relative to the super-block's largest.
#[inline(always)]
pub(super) fn relative<const MOST: i32>(fit: Fit, max_scale: f32, max_min: f32) -> (u32, u32) {
    let (to_scale, to_min) = (MOST as f32 * inverse(max_scale), MOST as f32 * inverse(max_min));
    (nearest(to_scale * fit.scale).clamp(0, MOST) as u32, nearest(to_min * fit.min).clamp(0, MOST) as u32)
}

/// The super-block's `d` and `d_min` for its blocks' largest scale and minimum, which become MOST.
#[inline(always)]
pub(super) fn common_scales<const MOST: i32>(max_scale: f32, max_min: f32) -> (Half, Half) {
    (stored_scale(max_scale / MOST as f32), stored_scale(max_min / MOST as f32))
}

/// A block's step and minimum as they are dequantised: exact products of `d`, `d_min` and the 6-bit factors.
#[inline(always)]
pub(super) fn step_min(d: f32, d_min: f32, scale: u32, min: u32) -> (f32, f32) {
    (d * scale as f32, d_min * min as f32)
}

/// The quant of `value`, 0 to MAX, for 1/step and the minimum.
#[inline(always)]
pub(super) fn quant<const MAX: i32>(value: f32, inverse: f32, min: f32) -> u32 {
    nearest((value + min) * inverse).clamp(0, MAX) as u32
}

/// The format.
#[derive(Clone, Copy)]
pub struct Q4K;

/// Step and minimum of block `j` of a super-block.
#[inline(always)]
fn super_step_min([d, a, b, c]: [u32; 4], j: u32) -> (f32, f32) {
    let (scale, min) = Scales::get([a, b, c], j);
    step_min(F16(d as u16).to_f32(), F16((d >> 16) as u16).to_f32(), scale, min)
}

#[inlined]
impl Weights for Q4K {
    const BITS: u32 = 4;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = true;
    const WHOLE: bool = true;
    const HIGH: u32 = 2;
    const UNIT: u32 = 2 * BLOCK_VALUES;
    const EARLY: usize = 1;
    type Upper = ();
    /// Step and minimum of the two blocks in the low and the high halves.
    type Scale = [(f32, f32); 2];
    type Raw = [u32; 4];

    fn scales_at(unit: u32) -> u32 {
        unit / 4 * 16
    }

    unsafe fn raw(scales: *const u8, _unit: u32) -> [u32; 4] {
        // SAFETY: the unit's scales lie at `scales`: this function's contract.
        unsafe { load_words(scales) }
    }

    fn scale([d, a, b, c]: [u32; 4], lane: u32) -> [(f32, f32); 2] {
        // The bits of two neighbouring blocks at a time. Expressions that depend only on the lane are computed once for all
        // units.
        let (second, shift) = (lane % 4 >= 2, lane % 2 * 16);
        let (from_c, upper, mask) = if second { (0x0f0f, 2, 0x3030) } else { (0, 0, 0x3f3f) };
        let scales = c >> shift & from_c | a >> (shift + upper) & mask;
        let mins = c >> (shift + 4) & from_c | b >> (shift + upper) & mask;
        let (d, d_min) = (F16(d as u16).to_f32(), F16((d >> 16) as u16).to_f32());
        [step_min(d, d_min, scales & 0xff, mins & 0xff), step_min(d, d_min, scales >> 8, mins >> 8)]
    }

    /// The sum of the activations, in f32.
    fn of_sum(row: RowScale) -> u32 {
        (row.sum as f32 * row.scale).to_bits()
    }

    fn dot(quants: [[u32; 4]; 2], _upper: [(); 2], scale: Self::Scale, x: &Inputs, acc: f32) -> f32 {
        dot_minima::<Self>(quants, [(); 2], scale, x, acc)
    }
    type Packed = [u32; 4];

    unsafe fn packed(w: Matrix, row: u32, block: u32) -> [u32; 4] {
        // Four consecutive tiles read the same super-block's scales, so these are mostly in L1.
        // SAFETY: `row` and `block` exist in `w`: this function's contract.
        unsafe { load_words(super_scales(w, row, block / SUPER_BLOCKS, size_of::<Scales>())) }
    }

    fn step_min(packed: [u32; 4], block: u32) -> (f32, f32) {
        super_step_min(packed, block % SUPER_BLOCKS)
    }
}

/// The scales of a super-block with minima, whose blocks belong to eight neighbouring lanes; also the step and the minimum
/// of this lane's block. `j`: the lane, modulo 8.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub(super) unsafe fn super_block<const MAX: i32>(values: &[f32; BLOCK], j: u32) -> (Scales, f32, f32) {
    let fit = fit::<MAX, BLOCK>(values);
    // SAFETY: all 32 lanes are here: this function's contract.
    unsafe {
        let max_scale = f32::from_bits(Max.over::<8>(abs_bits(fit.scale)));
        let max_min = f32::from_bits(Max.over::<8>(abs_bits(fit.min)));
        let (d, d_min) = common_scales::<MAX_SCALE>(max_scale, max_min);
        let (scale, min) = relative::<MAX_SCALE>(fit, max_scale, max_min);
        let packed = Scales::bits(j, scale, min).map(|bits| Or.over::<8>(bits));
        let (step, min) = step_min(d.to_f32(), d_min.to_f32(), scale, min);
        (Scales { d, d_min, packed }, step, min)
    }
}

/// A block is encoded by 1 lane, 8 of them make a super-block.
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream, and the grid.
#[kernel(name = "quant_encode_q4_k", block = THREADS, min_blocks = 1, shuffles = 23)]
pub unsafe fn encode(Encode { quants, scales, x, rows, cols, k }: Encode) {
    // SAFETY: x is as `Encode` says; what is written is inside quants and scales. All lanes are at the shuffles.
    unsafe {
        let (index, inside, values) = own_of_super_block(x, rows, cols, k);
        let j = index % SUPER_BLOCKS;
        let (all, step, min) = super_block::<15>(&values, j);
        let inverse = inverse(step);
        let mut words = [0; 8];
        unroll!(I < 8 => unroll!(B < 4 => {
            words[I] |= quant::<15>(values[I * 4 + B], inverse, min) << (8 * B);
        }));
        let own = pair_nibbles(words, j);
        if inside {
            quants.cast::<Words>().add(index as usize).write(Words(own));
            if j == 0 {
                *scales.cast::<Scales>().add((index / SUPER_BLOCKS) as usize) = all;
            }
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub(super) mod on_host {
    use super::super::Format;
    use super::super::host::{
        self, DeviceStorage, FileType, Host, Quants, half_at, pair_nibbles, put, super_block,
    };
    use super::*;
    use crate::quant::blocks::{BLOCKS_PER_SUPER, SUPER_BLOCK};

    pub const SCALES: host::Scales = host::Scales::Words(size_of::<Scales>() / 4);

    impl Host for Q4K {
        const BLOCK: usize = SUPER_BLOCK;
        const SCALES: host::Scales = SCALES;
        const ERROR: f64 = 6.93e-2;
        const FILE: Option<FileType> = Some(FileType {
            id: 12,
            name: "Q4_K",
            block: 256,
            bytes: 144,
            scales: &[0, 2],
            exponent: None,
            centre: 7.5,
            storage: DeviceStorage::AsIs(Format::Q4K),
            decode: |block, values| {
                let steps = steps(block);
                for (i, value) in values.iter_mut().enumerate() {
                    let (j, (step, min)) = (i / 32, steps[i / 32]);
                    let q = block[16 + j / 2 * 32 + i % 32] >> (j % 2 * 4) & 15;
                    *value = step * f64::from(q) - min;
                }
            },
            encode: None,
        });

        fn encode(values: &[f32], quants: &mut [u8], scales: &mut [u8]) {
            put(quants, pair_nibbles(&with_minima::<15>(values, scales)));
        }
    }

    /// The steps and minima of a super-block of a file. Those of the first four blocks are in bytes of their own; of the others the
    /// lower four bits are in one byte, and the upper two in the top bits of the first four's.
    pub fn steps(block: &[u8]) -> [(f64, f64); 8] {
        let (d, d_min, packed) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
        std::array::from_fn(|j| {
            let (scale, min) = match j {
                0..4 => (packed[j] & 63, packed[j + 4] & 63),
                _ => {
                    let low = packed[j + 4];
                    (low & 15 | packed[j - 4] >> 6 << 4, low >> 4 | packed[j] >> 6 << 4)
                }
            };
            (d * f64::from(scale), d_min * f64::from(min))
        })
    }

    /// A super-block's quants, each at most MAX. Also stores its scales.
    pub fn with_minima<const MAX: i32>(values: &[f32], scales: &mut [u8]) -> [Quants; BLOCKS_PER_SUPER] {
        let blocks = super_block(values);
        let fits = blocks.map(|block| fit::<MAX, BLOCK>(&block));
        let largest =
            |of: fn(&Fit) -> f32| f32::from_bits(fits.iter().map(|fit| abs_bits(of(fit))).fold(0, u32::max));
        let (max_scale, max_min) = (largest(|fit| fit.scale), largest(|fit| fit.min));
        let (d, d_min) = common_scales::<MAX_SCALE>(max_scale, max_min);
        let mut words = [u32::from(d.0) | u32::from(d_min.0) << 16, 0, 0, 0];
        let quants = std::array::from_fn(|j| {
            let (scale, min) = relative::<MAX_SCALE>(fits[j], max_scale, max_min);
            for (word, bits) in words[1..].iter_mut().zip(Scales::bits(j as u32, scale, min)) {
                *word |= bits;
            }
            let (step, min) = step_min(d.to_f32(), d_min.to_f32(), scale, min);
            let quant = |i: usize| quant::<MAX>(blocks[j][i], inverse(step), min) as u8;
            std::array::from_fn(|word| u32::from_le_bytes(std::array::from_fn(|b| quant(4 * word + b))))
        });
        put(scales, words);
        quants
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod on_avx2 {
    use super::super::Format;
    use super::super::avx2::{
        self, Avx2, ROWS, add_16, half, load, nibbles, nibbles_of, products, two_halves, word,
    };
    use super::super::avx512::{self, Avx512, Quants, ROWS as LANES, Steps, four_words, nibbles_of_pair};
    use super::Q4K;
    use std::arch::x86_64::*;

    impl Avx512 for Q4K {
        #[inline]
        #[target_feature(enable = "avx512bw,avx512vnni")]
        unsafe fn pair<const G: usize>(rows: &[&[u8; G]; LANES], pair: usize) -> [Quants; 2] {
            nibbles_of_pair(rows, pair)
        }

        #[inline]
        #[target_feature(enable = "avx512bw,avx512vnni")]
        unsafe fn steps_of_rows(scales: &[&[u8]; LANES], group: usize, to: &mut Steps) {
            steps_of_rows(scales, group, to);
        }
    }

    impl Avx2 for Q4K {
        const FORMAT: Format = Format::Q4K;
        const SIGNED: bool = false;

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn block<const G: usize>(row: &[u8; G], j: usize) -> __m256i {
            nibbles_of(row, j)
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
                let bytes = load(*row, pair);
                *sums = products_of_pair([nibbles(bytes), nibbles(_mm256_srli_epi16(bytes, 4))], x);
            }
            add_16(sums)
        }
    }

    /// The products of the quants of two blocks: the first block's in the lower half, the second's in the upper.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn products_of_pair(quants: [__m256i; 2], x: [__m256i; 2]) -> __m256i {
        let (first, second) = (products(false, quants[0], x[0]), products(false, quants[1], x[1]));
        let in_place = _mm256_blend_epi32::<0b1111_0000>(first, second);
        _mm256_add_epi16(in_place, _mm256_permute2x128_si256(first, second, 0x21))
    }

    /// Steps and minima of eight rows.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn steps_of_eight_rows(scales: &[&[u8]; ROWS], group: usize, to: &mut avx2::Steps) {
        let [d, low, high, rest] = avx2::four_words(scales, 16 * group);
        let [d, d_min] = two_halves(d);
        let bits = |words, bits| _mm256_and_si256(words, _mm256_set1_epi32(bits));
        for (plane, own, rest, d) in [(0, low, rest, d), (1, high, _mm256_srli_epi32::<4>(rest), d_min)] {
            // a byte for each block, as in `steps`
            let upper = bits(_mm256_srli_epi32::<2>(own), 0x3030_3030);
            let mut bytes = [bits(own, 0x3f3f_3f3f), _mm256_or_si256(bits(rest, 0x0f0f_0f0f), upper)];
            for j in 0..8 {
                to[plane][j] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(bits(bytes[j / 4], 255)));
                bytes[j / 4] = _mm256_srli_epi32::<8>(bytes[j / 4]);
            }
        }
    }

    /// Steps and minima of sixteen rows.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vnni")]
    pub fn steps_of_rows(scales: &[&[u8]; LANES], group: usize, to: &mut Steps) {
        let [d, low, high, rest] = four_words(scales, 16 * group);
        let bits = |words, bits| _mm512_and_si512(words, _mm512_set1_epi32(bits));
        for (plane, own, rest, d) in
            [(0, low, rest, d), (1, high, _mm512_srli_epi32::<4>(rest), _mm512_srli_epi32::<16>(d))]
        {
            // a byte for each block, as in `steps`
            let upper = bits(_mm512_srli_epi32::<2>(own), 0x3030_3030);
            let mut bytes = [bits(own, 0x3f3f_3f3f), _mm512_or_si512(bits(rest, 0x0f0f_0f0f), upper)];
            let d = avx512::halves(d);
            for j in 0..8 {
                let factor = _mm512_cvtepi32_ps(bits(bytes[j / 4], 255));
                to[plane][j] = _mm512_mul_ps(d, factor);
                bytes[j / 4] = _mm512_srli_epi32::<8>(bytes[j / 4]);
            }
        }
    }

    /// Steps and minima.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn steps(scales: &[u8], group: usize) -> [__m256; 2] {
        let scales = &scales[16 * group..][..16];
        let (d, low, high, rest) = (word(scales, 0), word(scales, 1), word(scales, 2), word(scales, 3));
        // a byte for each block: its lower six bits, or four of `rest` and the two uppermost
        let of = |own: u32, rest: u32, d| {
            let bytes = [own & 0x3f3f_3f3f, rest & 0x0f0f_0f0f | own >> 2 & 0x3030_3030];
            let bytes = _mm_set1_epi64x((u64::from(bytes[1]) << 32 | u64::from(bytes[0])) as i64);
            _mm256_mul_ps(half(d), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)))
        };
        [of(low, rest, d), of(high, rest >> 4, d >> 16)]
    }
}
