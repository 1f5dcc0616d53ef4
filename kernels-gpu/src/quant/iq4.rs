//! IQ4_NL and IQ4_XS: a nibble is the index of one of 16 levels, which are closer together near zero.
//!
//! IQ4_NL has an f16 scale per block, IQ4_XS 6-bit scales under one of a super-block. In memory a block's 16 bytes have the
//! nibbles of neighbouring values together: word i has those of values 4·i to 4·i + 3 in its lower half, and those of the
//! values 16 later in the upper half. (In the file the former are the low, the latter the high nibbles of its bytes.) This
//! suits `prmt`, which reads four consecutive nibbles as indices into 8 bytes: three bits of an index select a byte in each
//! half of the levels, and the fourth bit selects one of the two. 11 instructions look up 8 levels.
//! Source of the levels: ggml's `kvalues_iq4nl`.

use super::activations::Inputs;
use super::blocks::{BLOCK, Half, ScalesIq4Xs, abs_bits, inverse, nearest, stored_scale};
use super::encode::{Encode, THREADS, Words, own_block, own_of_super_block};
use super::search::{self, Levels};
use super::unroll::unroll;
use super::weights::{
    BLOCK_VALUES, MAGIC, Matrix, SUPER_BLOCKS, Weights, dot32, from_magic, half_scale, half_scales, place,
    row_words, super_scales,
};
#[cfg(target_arch = "nvptx64")]
use crate::device::int8::select_bytes;
use crate::device::int8::{load_half_word, load_pair};
use crate::device::math::fma;
use crate::device::{Element, F16};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// The levels.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// The magnitude of the largest 6-bit scale.
const LARGEST_SCALE: f32 = 32.0;

/// The middle between levels `i` and `i` + 1.
const fn middle(i: usize) -> f32 {
    (LEVELS[i] as f32 + LEVELS[i + 1] as f32) / 2.0
}

/// Four levels as a word.
#[cfg(target_arch = "nvptx64")]
const fn level_word(i: usize) -> u32 {
    u32::from_le_bytes([
        LEVELS[4 * i] as u8,
        LEVELS[4 * i + 1] as u8,
        LEVELS[4 * i + 2] as u8,
        LEVELS[4 * i + 3] as u8,
    ])
}

/// The levels of a word's eight nibbles, as bytes: of the lower four, then of the upper four.
#[inline(always)]
pub fn levels(word: u32) -> [u32; 2] {
    #[cfg(target_arch = "nvptx64")]
    {
        // three bits of each nibble select one of eight levels, the fourth selects which eight
        let which = word & 0x7777_7777;
        let eight = word >> 1 & 0x4444_4444 | 0x3210_3210;
        let half = |which, eight| {
            let negative = select_bytes(level_word(0), level_word(1), which);
            let positive = select_bytes(level_word(2), level_word(3), which);
            select_bytes(negative, positive, eight)
        };
        [half(which, eight), half(which >> 16, eight >> 16)]
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let four = |from: u32| {
            u32::from_le_bytes(std::array::from_fn(|i| {
                LEVELS[(word >> (from + 4 * i as u32) & 15) as usize] as u8
            }))
        };
        [four(0), four(16)]
    }
}

/// The index of the level nearest to `value`, of two equally near ones the larger; 0 for NaN.
#[inline(always)]
pub fn quant(value: f32) -> u32 {
    let mut number = 0;
    unroll!(I < 16 => if I < 15 {
        number = if value >= middle(I) { I as u32 + 1 } else { number };
    });
    number
}

/// A block in its memory layout, for 1/scale.
#[inline(always)]
pub fn pack(values: &[f32; BLOCK], inverse: f32) -> [u32; 4] {
    let mut words = [0; 4];
    unroll!(I < 32 => words[I % 16 / 4] |= quant(values[I] * inverse) << (I / 16 * 16 + I % 4 * 4));
    words
}

/// The scale of a block before it is rounded.
#[inline(always)]
pub fn fit(values: &[f32; BLOCK]) -> f32 {
    search::fit::<Iq4Nl, BLOCK>(values)
}

/// d of a super-block, from [`search::largest`] of its scales.
#[inline(always)]
pub fn super_scale(largest: f32, positive: bool) -> Half {
    search::super_scale(largest, positive, LARGEST_SCALE)
}

/// A scale relative to d, −32 to 31.
#[inline(always)]
pub fn relative(scale: f32, d: f32) -> i32 {
    nearest(scale * inverse(d)).clamp(-32, 31)
}

/// The step of block `j`.
#[inline(always)]
pub fn step(d: f32, high: u32, low: u32, j: u32) -> f32 {
    let scale = low >> (4 * j) & 15 | (high >> (2 * j) & 3) << 4;
    d * (scale as i32 - 32) as f32
}

/// The bits of block `j`'s scale, to be or-ed with the others': the upper two, then the low four.
#[inline(always)]
pub fn bits(j: u32, scale: i32) -> [u32; 2] {
    let scale = (scale + 32) as u32;
    [scale >> 4 << (2 * j), (scale & 15) << (4 * j)]
}

#[inline(always)]
fn widen(chunk: [u32; 4]) -> [[u32; 4]; 2] {
    let mut bytes = [[0; 4]; 2];
    unroll!(I < 4 => [bytes[0][I], bytes[1][I]] = levels(chunk[I]));
    bytes
}

/// # Safety
/// As [`Weights::four`].
#[inline(always)]
unsafe fn four<W: Weights>(w: Matrix, row: u32, group: u32) -> u32 {
    let (word, high) = place(W::BITS, W::HIGH, group);
    // SAFETY: the four columns exist in `w`: this function's contract.
    let [first, second] = levels(unsafe { *row_words::<W>(w, row).add(word as usize) });
    if high { second } else { first }
}

#[derive(Clone, Copy)]
pub(super) struct Iq4Nl;

#[inlined]
impl Levels for Iq4Nl {
    const TRIALS: u32 = 30;

    /// Around the lowest level, up to 14 to either side; then around the highest level likewise.
    fn place(trial: u32) -> f32 {
        let first = if trial < 15 { LEVELS[0] as f32 - 14.0 } else { LEVELS[15] as f32 - 14.0 - 30.0 };
        first + 2.0 * trial as f32
    }

    fn nearest(value: f32) -> f32 {
        let mut level = LEVELS[0] as f32;
        unroll!(I < 16 => if I < 15 {
            level = if value >= middle(I) { LEVELS[(I + 1) % 16] as f32 } else { level };
        });
        level
    }
}

#[inlined]
impl Weights for Iq4Nl {
    const BITS: u32 = 4;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = false;
    const WHOLE: bool = false;
    const HIGH: u32 = 1;
    type Upper = ();
    half_scales!();

    fn widen(chunk: [u32; 4], (): ()) -> [[u32; 4]; 2] {
        widen(chunk)
    }

    unsafe fn four(w: Matrix, row: u32, group: u32) -> u32 {
        // SAFETY: the four columns exist in `w`: this function's contract.
        unsafe { four::<Self>(w, row, group) }
    }

    fn dot(quants: [[u32; 4]; 2], _upper: [(); 2], scale: f32, x: &Inputs, acc: f32) -> f32 {
        let sum = dot32(widen(quants[0]), [x.runs[0], x.runs[1]], MAGIC.to_bits() as i32);
        fma(from_magic(sum), scale * x.blocks[0].scale, acc)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Iq4Xs;

#[inlined]
impl Weights for Iq4Xs {
    const BITS: u32 = 4;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = false;
    const WHOLE: bool = true;
    const HIGH: u32 = 1;
    const UNIT: u32 = 2 * BLOCK_VALUES;
    type Upper = ();
    /// The steps of the two blocks.
    type Scale = [f32; 2];
    type Raw = [u32; 2];

    fn widen(chunk: [u32; 4], (): ()) -> [[u32; 4]; 2] {
        widen(chunk)
    }

    unsafe fn four(w: Matrix, row: u32, group: u32) -> u32 {
        // SAFETY: the four columns exist in `w`: this function's contract.
        unsafe { four::<Self>(w, row, group) }
    }

    fn scales_at(unit: u32) -> u32 {
        unit / 4 * size_of::<ScalesIq4Xs>() as u32
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
            let sum = dot32(widen(quants[HALF]), runs, MAGIC.to_bits() as i32);
            acc = fma(from_magic(sum), scale[HALF] * x.blocks[HALF].scale, acc);
        });
        acc
    }

    type Packed = [u32; 2];

    unsafe fn packed(w: Matrix, row: u32, block: u32) -> [u32; 2] {
        // SAFETY: `row` and `block` exist in `w`: this function's contract.
        unsafe { load_pair(super_scales(w, row, block / SUPER_BLOCKS, size_of::<ScalesIq4Xs>())) }
    }

    fn step_min([d, low]: [u32; 2], block: u32) -> (f32, f32) {
        (step(F16(d as u16).to_f32(), d >> 16, low, block % SUPER_BLOCKS), 0.0)
    }
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[quant_encode_iq4_nl.info(), quant_encode_iq4_xs.info()];

/// A block is encoded by 1 lane. grid = [ceil(rows · k / 32 / [`THREADS`])]; quants: [rows, k / 32, 16], scales: [rows, k /
/// 32]
///
/// # Safety
/// [`Encode`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ values.
#[kernel(block = THREADS, module = "quant_encode_iq4_nl")]
pub unsafe fn quant_encode_iq4_nl(Encode { quants, scales, x, rows, cols, k }: Encode<u8, Half>) {
    // SAFETY: x is as `Encode` says; the block is inside quants and scales.
    unsafe {
        let Some((index, values)) = own_block(x, rows, cols, k) else { return };
        let scale = stored_scale(fit(&values));
        quants.cast::<Words>().add(index as usize).write(Words(pack(&values, inverse(scale.to_f32()))));
        *scales.add(index as usize) = scale;
    }
}

/// A block is encoded by 1 lane, 8 of them make a super-block. grid and quants as [`quant_encode_iq4_nl`]; scales:
/// [rows, k / 256]
///
/// # Safety
/// As [`quant_encode_iq4_nl`].
#[kernel(block = THREADS, module = "quant_encode_iq4_xs", shuffles = 12)]
pub unsafe fn quant_encode_iq4_xs(Encode { quants, scales, x, rows, cols, k }: Encode<u8, ScalesIq4Xs>) {
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
                *scales.add((index / 8) as usize) = ScalesIq4Xs { d, high: high as u16, low };
            }
        }
    }
}
