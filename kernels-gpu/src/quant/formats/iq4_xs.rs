//! IQ4_XS: w = d·(scale − 32)·level(q), q the index of one of 16 [levels](super::levels16), with a 6-bit scale for each 32 values under
//! an f16 scale for each 256.
//!
//! quants: u4 [n, k], as IQ4_NL's. scales: [`Scales`] [n, k / 256]. A super-block of a file is the scales and each block's 16 bytes, as in
//! Q4_0.

use super::levels16::{Iq4, fit, four, pack, widen};
use crate::device::int8::load_pair;
use crate::device::math::fma;
use crate::device::unroll::unroll;
use crate::device::{Element, F16};
use crate::quant::activations::Inputs;
use crate::quant::blocks::{Half, abs_bits, inverse, nearest};
use crate::quant::encode::{Encode, THREADS, Words, own_of_super_block};
use crate::quant::search;
use crate::quant::weights::{
    BLOCK_VALUES, MAGIC, Matrix, SUPER_BLOCKS, Weights, dot32, from_magic, super_scales,
};
use cuda_std::prelude::*;

/// The magnitude of the largest scale.
const LARGEST_SCALE: f32 = 32.0;

/// The scales of a super-block.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(4))]
pub struct Scales {
    /// The blocks' scales' scale.
    pub d: Half,
    /// Bits 2·j and 2·j + 1: the upper two bits of block j's scale.
    pub high: u16,
    /// Bits 4·j to 4·j + 3: the low four.
    pub low: u32,
}

const _: () = assert!(size_of::<Scales>() == 8);

/// d of a super-block, from [`search::largest`] of its scales.
#[inline(always)]
fn super_scale(largest: f32, positive: bool) -> Half {
    search::super_scale(largest, positive, LARGEST_SCALE)
}

/// A scale relative to d, −32 to 31.
#[inline(always)]
fn relative(scale: f32, d: f32) -> i32 {
    nearest(scale * inverse(d)).clamp(-32, 31)
}

/// The step of block `j`.
#[inline(always)]
fn step(d: f32, high: u32, low: u32, j: u32) -> f32 {
    let scale = low >> (4 * j) & 15 | (high >> (2 * j) & 3) << 4;
    d * (scale as i32 - 32) as f32
}

/// The bits of block `j`'s scale, to be or-ed with the others': the upper two, then the low four.
#[inline(always)]
fn bits(j: u32, scale: i32) -> [u32; 2] {
    let scale = (scale + 32) as u32;
    [scale >> 4 << (2 * j), (scale & 15) << (4 * j)]
}

/// The format.
#[derive(Clone, Copy)]
pub struct Iq4Xs;

#[inlined]
impl Weights for Iq4Xs {
    const BITS: u32 = 4;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = false;
    const WHOLE: bool = true;
    const HIGH: u32 = 1;
    const UNIT: u32 = 2 * BLOCK_VALUES;
    const EARLY: usize = 1;
    type Upper = ();
    /// The steps of the two blocks.
    type Scale = [f32; 2];
    type Raw = [u32; 2];

    fn widen(chunk: [u32; 4], (): ()) -> [[u32; 4]; 2] {
        widen::<Iq4>(chunk)
    }

    unsafe fn four(w: Matrix, row: u32, group: u32) -> u32 {
        // SAFETY: the four columns exist in `w`: this function's contract.
        unsafe { four::<Iq4, Self>(w, row, group) }
    }

    fn scales_at(unit: u32) -> u32 {
        unit / 4 * size_of::<Scales>() as u32
    }

    unsafe fn raw(scales: *const u8, _unit: u32) -> [u32; 2] {
        // SAFETY: the unit's scales lie at `scales`: this function's contract.
        unsafe { load_pair(scales) }
    }

    fn scale([d, low]: [u32; 2], lane: u32) -> [f32; 2] {
        let (j, high) = (lane % 4 * 2, d >> 16);
        let d = F16(d as u16).to_f32();
        [step(d, high, low, j), step(d, high, low, j + 1)]
    }

    fn dot(quants: [[u32; 4]; 2], _upper: [(); 2], scale: [f32; 2], x: &Inputs, acc: f32) -> f32 {
        let mut acc = acc;
        unroll!(HALF < 2 => {
            let runs = [x.runs[2 * HALF], x.runs[2 * HALF + 1]];
            let sum = dot32(widen::<Iq4>(quants[HALF]), runs, MAGIC.to_bits() as i32);
            acc = fma(from_magic(sum), scale[HALF] * x.blocks[HALF].scale, acc);
        });
        acc
    }

    type Packed = [u32; 2];

    unsafe fn packed(w: Matrix, row: u32, block: u32) -> [u32; 2] {
        // SAFETY: `row` and `block` exist in `w`: this function's contract.
        unsafe { load_pair(super_scales(w, row, block / SUPER_BLOCKS, size_of::<Scales>())) }
    }

    fn step_min([d, low]: [u32; 2], block: u32) -> (f32, f32) {
        (step(F16(d as u16).to_f32(), d >> 16, low, block % SUPER_BLOCKS), 0.0)
    }
}

/// A block is encoded by 1 lane, 8 of them make a super-block.
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream, and the grid.
#[kernel(name = "quant_encode_iq4_xs", block = THREADS, min_blocks = 2, shuffles = 12)]
pub unsafe fn encode(Encode { quants, scales, x, rows, cols, k }: Encode) {
    // SAFETY: x is as `Encode` says; what is written is inside quants and scales. All lanes are at the shuffles.
    unsafe {
        let (index, inside, values) = own_of_super_block(x, rows, cols, k);
        let j = index % SUPER_BLOCKS;
        let scale = fit(&values);
        let largest = f32::from_bits(Max.over::<8>(abs_bits(scale)));
        let positive = Or.over::<8>(u32::from(scale == largest)) != 0;
        let d = super_scale(largest, positive);
        let own = relative(scale, d.to_f32());
        let [high, low] = bits(j, own).map(|bits| Or.over::<8>(bits));
        let words = pack(&values, inverse(d.to_f32() * own as f32));
        if inside {
            quants.cast::<Words>().add(index as usize).write(Words(words));
            if j == 0 {
                *scales.cast::<Scales>().add((index / 8) as usize) = Scales { d, high: high as u16, low };
            }
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod on_host {
    use super::super::Format;
    use super::super::host::{self, DeviceStorage, FileType, Host, half_at, put, super_block};
    use super::super::levels16::on_host::{from_file, level, to_file};
    use super::*;
    use crate::quant::blocks::SUPER_BLOCK;

    impl Host for Iq4Xs {
        const BLOCK: usize = SUPER_BLOCK;
        const SCALES: host::Scales = host::Scales::Words(size_of::<Scales>() / 4);
        const ERROR: f64 = 8.2e-2;
        const FILE: Option<FileType> = Some(FileType {
            id: 23,
            name: "IQ4_XS",
            block: 256,
            bytes: 136,
            scales: &[0],
            exponent: None,
            centre: 0.0,
            storage: DeviceStorage::AsIs(Format::Iq4Xs),
            decode: |block, values| {
                let (d, high) = (half_at(block, 0), u16::from_le_bytes([block[2], block[3]]));
                for (i, value) in values.iter_mut().enumerate() {
                    let j = i / 32;
                    let low = block[4 + j / 2] >> (j % 2 * 4) & 15;
                    let scale = i32::from(u16::from(low) | (high >> (2 * j) & 3) << 4) - 32;
                    *value = d * f64::from(scale) * level::<Iq4>(&block[8 + 16 * j..], i % 32);
                }
            },
            encode: None,
        });

        fn encode(values: &[f32], quants: &mut [u8], scales: &mut [u8]) {
            let blocks = super_block(values);
            let fits = blocks.map(|block| fit(&block));
            let (largest, positive) = search::largest(&fits);
            let d = super_scale(largest, positive);
            let (mut high, mut low) = (0, 0);
            for (j, (values, quants)) in blocks.iter().zip(quants.chunks_exact_mut(16)).enumerate() {
                let scale = relative(fits[j], d.to_f32());
                let [own_high, own_low] = bits(j as u32, scale);
                (high, low) = (high | own_high, low | own_low);
                put(quants, pack(values, inverse(d.to_f32() * scale as f32)));
            }
            put(scales, [u32::from(d.0) | high << 16, low]);
        }

        fn from_file(file: &[u8], quants: &mut [u8], scales: &mut [u8]) {
            scales.copy_from_slice(&file[..8]);
            from_file::<32>(&file[8..], quants);
        }

        fn to_file(file: &mut [u8], quants: &[u8], scales: &[u8]) {
            file[..8].copy_from_slice(scales);
            to_file::<32>(&mut file[8..], quants);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod on_avx2 {
    use super::super::avx2::{half, word};
    use super::super::levels16::on_avx2::avx2;
    use super::{Iq4, Iq4Xs};

    avx2!(Iq4Xs, Iq4, steps);

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn steps(scales: &[u8], group: usize) -> [__m256; 2] {
        let scales = &scales[8 * group..][..8];
        let (d, low) = (word(scales, 0), word(scales, 1));
        let field = |word: u32, from, bits| {
            let words = _mm256_srlv_epi32(_mm256_set1_epi32(word as i32), from);
            _mm256_and_si256(words, _mm256_set1_epi32(bits))
        };
        let low = field(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), 15);
        let high = field(d >> 16, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14), 3);
        let scale = _mm256_or_si256(low, _mm256_slli_epi32(high, 4));
        let scale = _mm256_cvtepi32_ps(_mm256_sub_epi32(scale, _mm256_set1_epi32(32)));
        [_mm256_mul_ps(half(d), scale), _mm256_setzero_ps()]
    }
}
