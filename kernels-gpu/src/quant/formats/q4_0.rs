//! Q4_0: w = d·(q − 8), q from 0 to 15, with an f16 scale for each 32 values.
//!
//! quants: u4 [n, k], 16 bytes for a block: byte j has value j in the low half and value j + 16 in the high half. scales: f16
//! [n, k / 32]. A block of a file is d and the same 16 bytes.

use crate::device::int8::load_half_word;
use crate::device::math::fma;
use crate::device::unroll::unroll;
use crate::device::{Element, F16};
use crate::quant::activations::Inputs;
use crate::quant::blocks::{BLOCK, Half, RowScale, abs_bits, inverse, stored_scale};
use crate::quant::encode::{Encode, THREADS, Words, own_block};
use crate::quant::weights::{MAGIC, Matrix, Weights, dot32, from_magic, half_scale, half_scales};
use cuda_std::prelude::*;

/// The least and the largest of the quants, less 8.
pub const RANGE: [f32; 2] = [-8.0, 7.0];

/// The scale of a block: the value of the largest magnitude (the first of equal ones) becomes −8.
#[inline(always)]
pub fn scale(values: &[f32; BLOCK]) -> f32 {
    let mut largest = values[0];
    unroll!(I < 32 => largest = if abs_bits(values[I]) > abs_bits(largest) { values[I] } else { largest });
    largest / -8.0
}

/// The quant of `value` for 1/scale: 0 to 15, where 8 means zero.
#[inline(always)]
pub fn quant(value: f32, inverse: f32) -> u32 {
    let steps = value * inverse;
    // NaN gives 8
    if steps.abs() <= 16.0 { ((steps + 8.5) as i32).clamp(0, 15) as u32 } else { 8 }
}

/// A block's quants.
#[inline(always)]
pub fn pack(values: &[f32; BLOCK], inverse: f32) -> [u32; 4] {
    let mut words = [0; 4];
    unroll!(J < 16 => {
        let byte = quant(values[J], inverse) | quant(values[J + BLOCK / 2], inverse) << 4;
        words[J / 4] |= byte << (8 * (J % 4));
    });
    words
}

/// The format.
#[derive(Clone, Copy)]
pub struct Q4_0;

#[inlined]
impl Weights for Q4_0 {
    const BITS: u32 = 4;
    const OFFSET: i32 = 8;
    const MINIMUM: bool = false;
    const WHOLE: bool = false;
    const HIGH: u32 = 1;
    const LANE_UNITS: usize = 2;
    const EARLY: usize = 2;
    type Upper = ();
    half_scales!(F16);

    /// The initial value of the integer sum.
    fn of_sum(row: RowScale) -> u32 {
        (MAGIC.to_bits() as i32 - Self::OFFSET * row.sum) as u32
    }

    fn dot(quants: [[u32; 4]; 2], _upper: [(); 2], scale: f32, x: &Inputs, acc: f32) -> f32 {
        let sum = dot32(Self::widen(quants[0], ()), [x.runs[0], x.runs[1]], x.blocks[0].sum as i32);
        fma(from_magic(sum), scale * x.blocks[0].scale, acc)
    }
}

/// A block is encoded by 1 lane.
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream, and the grid.
#[kernel(name = "quant_encode_q4_0", block = THREADS, min_blocks = 5)]
pub unsafe fn encode(Encode { quants, scales, x, rows, cols, k }: Encode) {
    // SAFETY: x is as [`Encode`] says; the block is inside quants and scales.
    unsafe {
        let Some((index, values)) = own_block(x, rows, cols, k) else { return };
        let scale = scale(&values);
        quants.cast::<Words>().add(index as usize).write(Words(pack(&values, inverse(scale))));
        *scales.cast::<Half>().add(index as usize) = stored_scale(scale);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod on_host {
    use super::super::Format;
    use super::super::host::{DeviceStorage, FileType, Host, Scales, block, half_at, nibble, put, put_half};
    use super::*;

    impl Host for Q4_0 {
        const BLOCK: usize = BLOCK;
        const SCALES: Scales = Scales::Halves;
        const ERROR: f64 = 8.2e-2;
        const FILE: Option<FileType> = Some(FileType {
            id: 2,
            name: "Q4_0",
            block: 32,
            bytes: 18,
            scales: &[0],
            exponent: None,
            centre: 0.0,
            storage: DeviceStorage::AsIs(Format::Q4_0),
            decode: |block, values| {
                let d = half_at(block, 0);
                for (i, value) in values.iter_mut().enumerate() {
                    *value = d * (f64::from(nibble(&block[2..], i)) - 8.0);
                }
            },
            encode: None,
        });

        fn encode(values: &[f32], quants: &mut [u8], scales: &mut [u8]) {
            let values = block(values);
            let scale = scale(&values);
            put(quants, pack(&values, inverse(scale)));
            put_half(scales, 0, stored_scale(scale));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod on_avx2 {
    use super::super::Format;
    use super::super::avx2::{Avx2, ROWS, add_16, halves, load, load_half, nibbles, of_halves, products};
    use super::super::avx512::{Avx512, Quants, ROWS as LANES, WORDS, eight_words, high, low};
    use super::Q4_0;
    use std::arch::x86_64::*;

    impl Avx512 for Q4_0 {
        #[inline]
        #[target_feature(enable = "avx512bw,avx512vnni")]
        unsafe fn pair<const G: usize>(rows: &[&[u8; G]; LANES], pair: usize) -> [Quants; 2] {
            let words = eight_words(rows, pair);
            let mut both = [words; 2];
            for i in 0..WORDS / 2 {
                for (j, quants) in both.iter_mut().enumerate() {
                    let word = words[j * WORDS / 2 + i];
                    (quants[i], quants[WORDS / 2 + i]) = (low(word), high(word));
                }
            }
            both
        }
    }

    impl Avx2 for Q4_0 {
        const FORMAT: Format = Format::Q4_0;
        const SIGNED: bool = false;
        const ADDED: i32 = 8;

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn block<const G: usize>(row: &[u8; G], j: usize) -> __m256i {
            let bytes = load_half(row, j);
            nibbles(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes))
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn steps(scales: &[u8], group: usize) -> [__m256; 2] {
            halves(scales, group)
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn sums_of_pair<const G: usize>(
            w: &[&[u8; G]; ROWS],
            pair: usize,
            x: [__m256i; 2],
        ) -> [[__m256i; 2]; 2] {
            // both blocks' values from the low nibbles, and from the high nibbles
            let x = of_halves(x[0], x[1]);
            let mut sums = [_mm256_setzero_si256(); ROWS];
            for (sums, row) in sums.iter_mut().zip(w) {
                let bytes = load(*row, pair);
                let high = nibbles(_mm256_srli_epi16(bytes, 4));
                *sums = _mm256_add_epi16(products(false, nibbles(bytes), x[0]), products(false, high, x[1]));
            }
            add_16(sums)
        }
    }
}
