//! MXFP4: w = 2^(e − 127)·v, v a float of four bits (E2M1: ±0, 0.5, 1, 1.5, 2, 3, 4, 6), with an exponent e of eight bits (E8M0) for each
//! 32 values.
//!
//! quants: u4 [n, k], 16 bytes for a block, ordered as [`levels16`](super::levels16) says; a quant is the index of 2·v. scales: bf16
//! [n, k / 32], 2^(e − 128), which bf16 holds for every e. A block of a file is e and 16 bytes as in Q4_0. e = 255 is NaN.
//!
//! Source: OCP Microscaling Formats (MX) Specification 1.0, and ggml's `block_mxfp4` for files. The specification takes the exponent from
//! the largest magnitude, so that values from 6 to 8 steps are cut to 6. The encoder here also tries the next larger exponent, and takes
//! the one with the smaller squared error.

use super::levels16::{Levels16, dot, four, pack_indices, widen};
use crate::device::int8::load_half_word;
use crate::device::unroll::unroll;
use crate::float16::Float16;
use crate::quant::activations::Inputs;
use crate::quant::blocks::{BLOCK, abs_max, inverse};
use crate::quant::encode::{Encode, THREADS, Words, own_block};
use crate::quant::weights::{Matrix, Weights, half_scale, half_scales};
use cuda_std::prelude::*;

/// A scale: an f32's upper half.
type Bf16 = Float16<8>;

/// The bits of e in a file that mean NaN.
const NAN: u32 = 255;

/// Twice the values.
struct Fp4;

impl Levels16 for Fp4 {
    const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
}

/// 2^(e − 128).
#[inline(always)]
const fn half_step(e: u32) -> Bf16 {
    let bits = match e {
        0 | 1 => 0x0020_0000 << e,
        NAN => 0x7fc0_0000,
        _ => (e - 1) << 23,
    };
    Float16((bits >> 16) as u16)
}

/// The index of the level nearest to a magnitude, and the level; of two equally near ones the smaller. 0 for NaN.
#[inline(always)]
fn nearest(size: f32) -> (u32, f32) {
    let (mut index, mut level) = (0, 0.0);
    unroll!(I < 8 => if I < 7 {
        let (own, next) = (Fp4::LEVELS[I] as f32, Fp4::LEVELS[I + 1] as f32);
        (index, level) = if size > (own + next) / 2.0 { (I as u32 + 1, next) } else { (index, level) };
    });
    (index, level)
}

/// The quant of a value in steps.
#[inline(always)]
fn quant(steps: f32) -> u32 {
    let (index, _) = nearest(steps.abs());
    if steps < 0.0 && index > 0 { index + 8 } else { index }
}

/// The squared error in steps, for 1/step.
#[inline(always)]
fn error(values: &[f32; BLOCK], inverse: f32) -> f32 {
    let mut sum = 0.0;
    unroll!(I < 32 => {
        let size = (values[I] * inverse).abs();
        let lost = size - nearest(size).1;
        sum += lost * lost;
    });
    sum
}

/// The scale of a block; NaN if one of the values is not finite.
#[inline(always)]
fn fit(values: &[f32; BLOCK]) -> Bf16 {
    let exponent = abs_max(values).to_bits() >> 23;
    if exponent == 255 {
        return half_step(NAN);
    }
    // the largest is 4 to 8 steps of v
    let e = exponent.saturating_sub(2);
    let inverse = inverse(half_step(e).to_f32());
    let larger = error(values, inverse * 0.5) * 4.0 < error(values, inverse);
    half_step(if larger { e + 1 } else { e })
}

/// A block in its memory layout.
#[inline(always)]
fn pack(values: &[f32; BLOCK], scale: Bf16) -> [u32; 4] {
    let inverse = inverse(scale.to_f32());
    pack_indices(|i| quant(values[i] * inverse))
}

/// The format.
#[derive(Clone, Copy)]
pub struct Mxfp4;

#[inlined]
impl Weights for Mxfp4 {
    const BITS: u32 = 4;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = false;
    const WHOLE: bool = false;
    const HIGH: u32 = 1;
    const LANE_UNITS: usize = 2;
    const EARLY: usize = 2;
    type Upper = ();
    half_scales!(Float16::<8>);

    fn widen(chunk: [u32; 4], (): ()) -> [[u32; 4]; 2] {
        widen::<Fp4>(chunk)
    }

    unsafe fn four(w: Matrix, row: u32, group: u32) -> u32 {
        // SAFETY: the four columns exist in `w`: this function's contract.
        unsafe { four::<Fp4, Self>(w, row, group) }
    }

    fn dot(quants: [[u32; 4]; 2], _upper: [(); 2], scale: f32, x: &Inputs, acc: f32) -> f32 {
        dot::<Fp4>(quants[0], scale, x, acc)
    }
}

/// A block is encoded by 1 lane.
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream, and the grid.
#[kernel(name = "quant_encode_mxfp4", block = THREADS, min_blocks = 5)]
pub unsafe fn encode(Encode { quants, scales, x, rows, cols, k }: Encode) {
    // SAFETY: x is as `Encode` says; the block is inside quants and scales.
    unsafe {
        let Some((index, values)) = own_block(x, rows, cols, k) else { return };
        let scale = fit(&values);
        quants.cast::<Words>().add(index as usize).write(Words(pack(&values, scale)));
        *scales.cast::<Bf16>().add(index as usize) = scale;
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod on_host {
    use super::super::Format;
    use super::super::host::{DeviceStorage, FileType, Host, Scales, block, put};
    use super::super::levels16::on_host::{from_file, level, to_file};
    use super::*;

    /// The inverse of [`half_step`].
    pub(super) const fn exponent(scale: Bf16) -> u8 {
        let bits = (scale.0 as u32) << 16;
        (match bits >> 23 {
            0 => bits >> 22, // subnormal: 2^-128 and 2^-127
            NAN => NAN,
            of_f32 => of_f32 + 1,
        }) as u8
    }

    impl Host for Mxfp4 {
        const BLOCK: usize = BLOCK;
        const SCALES: Scales = Scales::Halves;
        const ERROR: f64 = 1.2e-1;
        const FILE: Option<FileType> = Some(FileType {
            id: 39,
            name: "MXFP4",
            block: 32,
            bytes: 17,
            scales: &[],
            exponent: Some(0),
            centre: 0.0,
            storage: DeviceStorage::AsIs(Format::Mxfp4),
            decode: |block, values| {
                let d = f64::from(half_step(block[0].into()).to_f32());
                for (i, value) in values.iter_mut().enumerate() {
                    *value = d * level::<Fp4>(&block[1..], i);
                }
            },
            encode: None,
        });

        fn encode(values: &[f32], quants: &mut [u8], scales: &mut [u8]) {
            let values = block(values);
            let scale = fit(&values);
            put(quants, pack(&values, scale));
            scales[..2].copy_from_slice(&scale.0.to_le_bytes());
        }

        fn from_file(file: &[u8], quants: &mut [u8], scales: &mut [u8]) {
            scales.copy_from_slice(&half_step(file[0].into()).0.to_le_bytes());
            from_file::<4>(&file[1..], quants);
        }

        fn to_file(file: &mut [u8], quants: &[u8], scales: &[u8]) {
            file[0] = exponent(Float16(u16::from_le_bytes([scales[0], scales[1]])));
            to_file::<4>(&mut file[1..], quants);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod on_avx2 {
    use super::super::avx2::bf16_steps;
    use super::super::levels16::on_avx2::avx2;
    use super::{Fp4, Mxfp4};

    avx2!(Mxfp4, Fp4, bf16_steps);
}

#[cfg(test)]
mod tests {
    use super::on_host::exponent;
    use super::*;

    /// The scale of every exponent is a power of two that bf16 holds exactly, and 255 is not a number.
    #[test]
    fn a_scale_is_its_exponents_power_of_two() {
        for e in 0..NAN {
            assert_eq!(f64::from(half_step(e).to_f32()), 2f64.powi(e as i32 - 128), "{e}");
        }
        assert!(half_step(NAN).to_f32().is_nan());
        assert!((0..=NAN).all(|e| u32::from(exponent(half_step(e))) == e));
    }

    /// Values of the format stay as they are; between two, the nearer one, and of equally near ones the one nearer to zero.
    #[test]
    fn the_nearest_level() {
        for (i, level) in Fp4::LEVELS.into_iter().enumerate() {
            assert_eq!(quant(f32::from(level)), if i == 8 { 0 } else { i as u32 });
        }
        assert_eq!([4.99, 5.0, 5.01, 1e9, f32::NAN, -0.5, -0.51].map(quant), [4, 4, 5, 7, 0, 0, 9]);
    }
}
