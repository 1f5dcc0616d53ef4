//! Q8_0: w = d·q, q from −127 to 127, with an f16 scale for each 32 values.
//!
//! quants: i8 [n, k], scales: f16 [n, k / 32]. A block of a file is d and 32 bytes of quants.

use crate::device::int8::load_half_word;
use crate::device::math::fma;
use crate::device::unroll::unroll;
use crate::device::{Element, F16};
use crate::quant::activations::Inputs;
use crate::quant::blocks::{BLOCK, Half, abs_max, inverse, pack_i8, scale_i8, stored_scale};
use crate::quant::encode::{Encode, THREADS, Words, own_block};
use crate::quant::weights::{MAGIC, Matrix, Weights, dot32, from_magic, half_scale, half_scales};
use cuda_std::prelude::*;

/// The format.
#[derive(Clone, Copy)]
pub struct Q8_0;

impl Weights for Q8_0 {
    const BITS: u32 = 8;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = false;
    const WHOLE: bool = false;
    const HIGH: u32 = 0;
    const EARLY: usize = 2;
    type Upper = ();
    half_scales!(F16);

    #[inline(always)]
    fn dot(quants: [[u32; 4]; 2], _upper: [(); 2], scale: f32, x: &Inputs, acc: f32) -> f32 {
        let sum = dot32(quants, [x.runs[0], x.runs[1]], MAGIC.to_bits() as i32);
        fma(from_magic(sum), scale * x.blocks[0].scale, acc)
    }
}

/// A block is encoded by 1 lane.
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream, and the grid.
#[kernel(name = "quant_encode_q8_0", block = THREADS, min_blocks = 5)]
pub unsafe fn encode(Encode { quants, scales, x, rows, cols, k }: Encode) {
    // SAFETY: x is as [`Encode`] says; the block is inside quants and scales.
    unsafe {
        let Some((index, values)) = own_block(x, rows, cols, k) else { return };
        let scale = scale_i8(abs_max(&values));
        let inverse = inverse(scale);
        let to = quants.add(index as usize * BLOCK).cast::<Words>();
        unroll!(HALF < 2 => {
            let mut words = [0; 4];
            unroll!(I < 4 => {
                const AT: usize = HALF * 16 + I * 4;
                words[I] = pack_i8([values[AT], values[AT + 1], values[AT + 2], values[AT + 3]], inverse);
            });
            to.add(HALF).write(Words(words));
        });
        *scales.cast::<Half>().add(index as usize) = stored_scale(scale);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod on_host {
    use super::super::Format;
    use super::super::host::{DeviceStorage, FileType, Host, Scales, half_at, put, put_half};
    use super::*;
    use crate::quant::blocks::pack_row_i8;

    impl Host for Q8_0 {
        const BLOCK: usize = BLOCK;
        const SCALES: Scales = Scales::Halves;
        const ERROR: f64 = 5.1e-3;
        const FILE: Option<FileType> = Some(FileType {
            id: 8,
            name: "Q8_0",
            block: 32,
            bytes: 34,
            scales: &[0],
            exponent: None,
            centre: 0.0,
            storage: DeviceStorage::AsIs(Format::Q8_0),
            decode: |block, values| {
                let d = half_at(block, 0);
                for (value, &q) in values.iter_mut().zip(&block[2..]) {
                    *value = d * f64::from(q as i8);
                }
            },
            encode: None,
        });

        fn encode(values: &[f32], quants: &mut [u8], scales: &mut [u8]) {
            let scale = scale_i8(abs_max(values));
            put(quants, pack_row_i8(values, inverse(scale)));
            put_half(scales, 0, stored_scale(scale));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod on_avx2 {
    use super::super::Format;
    use super::super::avx2::{Avx2, halves, load};
    use super::super::avx512::Avx512;
    use super::Q8_0;
    use std::arch::x86_64::*;

    impl Avx512 for Q8_0 {}

    impl Avx2 for Q8_0 {
        const FORMAT: Format = Format::Q8_0;
        const SIGNED: bool = true;

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn block<const G: usize>(row: &[u8; G], j: usize) -> __m256i {
            load(row, j)
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn steps(scales: &[u8], group: usize) -> [__m256; 2] {
            halves(scales, group)
        }
    }
}
