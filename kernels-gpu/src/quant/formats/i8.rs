//! I8: w = s·q, q from −127 to 127, with an f32 scale for a whole row. Files do not have it.
//!
//! quants: i8 [n, k], scales: f32 [n]

use crate::device::math::fma;
use crate::device::{Element, block_reduce};
use crate::quant::activations::Inputs;
use crate::quant::blocks::{abs_bits, inverse, pack_i8, scale_i8};
use crate::quant::encode::{Encode, THREADS, WARPS, four};
use crate::quant::weights::{MAGIC, Matrix, Weights, dot32, from_magic};
use cuda_std::prelude::*;

/// The format.
#[derive(Clone, Copy)]
pub struct I8;

#[inlined]
impl Weights for I8 {
    const BITS: u32 = 8;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = false;
    const WHOLE: bool = false;
    const HIGH: u32 = 0;
    const EARLY: usize = 2;
    type Upper = ();
    type Scale = ();
    type Raw = ();

    fn scales_at(_unit: u32) -> u32 {
        0
    }

    unsafe fn raw(_scales: *const u8, _unit: u32) {}

    fn scale((): (), _lane: u32) {}

    fn dot(quants: [[u32; 4]; 2], _upper: [(); 2], (): (), x: &Inputs, acc: f32) -> f32 {
        let sum = dot32(quants, [x.runs[0], x.runs[1]], MAGIC.to_bits() as i32);
        fma(from_magic(sum), x.blocks[0].scale, acc)
    }

    unsafe fn row_scale(w: Matrix, row: u32) -> f32 {
        // SAFETY: `row` exists in `w`: this function's contract.
        unsafe { f32::load(w.scales.cast::<f32>().add(row as usize)) }
    }

    type Packed = ();

    unsafe fn packed(_w: Matrix, _row: u32, _block: u32) {}

    fn step_min((): (), _block: u32) -> (f32, f32) {
        (1.0, 0.0)
    }
}

/// grid = [rows]
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream.
#[kernel(name = "quant_encode_i8", block = THREADS, min_blocks = 8, shared(scratch: [u32; WARPS]), shuffles = 5)]
pub unsafe fn encode(Encode { quants, scales, x, cols, k, .. }: Encode) {
    let (row, tid) = (thread::block_idx_x() as usize, thread::thread_idx_x());
    // SAFETY: one block per row, so the row is inside all arrays; all threads are at the reduction.
    unsafe {
        let (x, quants) = (x.add(row * cols as usize), quants.cast::<u32>().add(row * (k / 4) as usize));
        let mut largest = 0;
        let mut c = tid;
        while c < cols {
            largest = abs_bits(f32::load(x.add(c as usize))).max(largest);
            c += THREADS;
        }
        let scale = scale_i8(f32::from_bits(block_reduce::reduce(largest, WARPS, scratch, Max)));
        let inverse = inverse(scale);
        let mut word = tid;
        while word < k / 4 {
            *quants.add(word as usize) = pack_i8(four(x, word * 4, cols), inverse);
            word += THREADS;
        }
        if tid == 0 {
            *scales.cast::<f32>().add(row) = scale;
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod on_host {
    use super::super::host::{FileType, Host, Scales, put};
    use super::*;
    use crate::quant::blocks::{BLOCK, abs_max, pack_row_i8};

    impl Host for I8 {
        const BLOCK: usize = BLOCK;
        const SCALES: Scales = Scales::Row;
        const ERROR: f64 = 1e-2;
        const FILE: Option<FileType> = None;

        fn encode(row: &[f32], quants: &mut [u8], scales: &mut [u8]) {
            let scale = scale_i8(abs_max(row));
            put(quants, pack_row_i8(row, inverse(scale)));
            scales.copy_from_slice(&scale.to_le_bytes());
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod on_avx2 {
    use super::super::Format;
    use super::super::avx2::{Avx2, load};
    use super::super::avx512::Avx512;
    use super::I8;
    use std::arch::x86_64::*;

    impl Avx512 for I8 {}

    impl Avx2 for I8 {
        const FORMAT: Format = Format::I8;
        const SIGNED: bool = true;

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn block<const G: usize>(row: &[u8; G], j: usize) -> __m256i {
            load(row, j)
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn steps(scales: &[u8], _group: usize) -> [__m256; 2] {
            let scale = f32::from_le_bytes([scales[0], scales[1], scales[2], scales[3]]);
            [_mm256_set1_ps(scale), _mm256_setzero_ps()]
        }
    }
}
