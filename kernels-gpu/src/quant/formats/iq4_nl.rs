//! IQ4_NL: w = d·level(q), q the index of one of 16 [levels](super::levels16), with an f16 scale for each 32 values.
//!
//! quants: u4 [n, k], 16 bytes for a block, ordered as [`levels16`](super::levels16) says. scales: f16 [n, k / 32]. A block of a file
//! is d and 16 bytes as in Q4_0.

use super::levels16::{Iq4, dot, fit, four, pack, widen};
use crate::device::int8::load_half_word;
use crate::device::{Element, F16};
use crate::quant::activations::Inputs;
use crate::quant::blocks::{Half, inverse, stored_scale};
use crate::quant::encode::{Encode, THREADS, Words, own_block};
use crate::quant::weights::{Matrix, Weights, half_scale, half_scales};
use cuda_std::prelude::*;

/// The format.
#[derive(Clone, Copy)]
pub struct Iq4Nl;

#[inlined]
impl Weights for Iq4Nl {
    const BITS: u32 = 4;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = false;
    const WHOLE: bool = false;
    const HIGH: u32 = 1;
    const LANE_UNITS: usize = 2;
    const EARLY: usize = 2;
    type Upper = ();
    half_scales!(F16);

    fn widen(chunk: [u32; 4], (): ()) -> [[u32; 4]; 2] {
        widen::<Iq4>(chunk)
    }

    unsafe fn four(w: Matrix, row: u32, group: u32) -> u32 {
        // SAFETY: the four columns exist in `w`: this function's contract.
        unsafe { four::<Iq4, Self>(w, row, group) }
    }

    fn dot(quants: [[u32; 4]; 2], _upper: [(); 2], scale: f32, x: &Inputs, acc: f32) -> f32 {
        dot::<Iq4>(quants[0], scale, x, acc)
    }
}

/// A block is encoded by 1 lane.
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream, and the grid.
#[kernel(name = "quant_encode_iq4_nl", block = THREADS, min_blocks = 2)]
pub unsafe fn encode(Encode { quants, scales, x, rows, cols, k }: Encode) {
    // SAFETY: x is as `Encode` says; the block is inside quants and scales.
    unsafe {
        let Some((index, values)) = own_block(x, rows, cols, k) else { return };
        let scale = stored_scale(fit(&values));
        quants.cast::<Words>().add(index as usize).write(Words(pack(&values, inverse(scale.to_f32()))));
        *scales.cast::<Half>().add(index as usize) = scale;
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod on_host {
    use super::super::Format;
    use super::super::host::{DeviceStorage, FileType, Host, Scales, block, half_at, put, put_half};
    use super::super::levels16::on_host::{from_file, level, to_file};
    use super::*;

    impl Host for Iq4Nl {
        const BLOCK: usize = crate::quant::blocks::BLOCK;
        const SCALES: Scales = Scales::Halves;
        const ERROR: f64 = 8.2e-2;
        const FILE: Option<FileType> = Some(FileType {
            id: 20,
            name: "IQ4_NL",
            block: 32,
            bytes: 18,
            scales: &[0],
            exponent: None,
            centre: 0.0,
            storage: DeviceStorage::AsIs(Format::Iq4Nl),
            decode: |block, values| {
                let d = half_at(block, 0);
                for (i, value) in values.iter_mut().enumerate() {
                    *value = d * level::<Iq4>(&block[2..], i);
                }
            },
            encode: None,
        });

        fn encode(values: &[f32], quants: &mut [u8], scales: &mut [u8]) {
            let values = block(values);
            let scale = stored_scale(fit(&values));
            put(quants, pack(&values, inverse(scale.to_f32())));
            put_half(scales, 0, scale);
        }

        fn from_file(file: &[u8], quants: &mut [u8], scales: &mut [u8]) {
            scales.copy_from_slice(&file[..2]);
            from_file::<4>(&file[2..], quants);
        }

        fn to_file(file: &mut [u8], quants: &[u8], scales: &[u8]) {
            file[..2].copy_from_slice(scales);
            to_file::<4>(&mut file[2..], quants);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod on_avx2 {
    use super::super::avx2::halves;
    use super::super::levels16::on_avx2::avx2;
    use super::{Iq4, Iq4Nl};

    avx2!(Iq4Nl, Iq4, halves);
}
