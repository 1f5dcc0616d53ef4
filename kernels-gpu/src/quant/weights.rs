//! How kernels read a format: tiles by 16-byte chunks of a row's quants, products with a vector by units of one or two
//! blocks.

use super::activations::Inputs;
use super::blocks::{BLOCK, BLOCKS_PER_SUPER, RowScale, SUPER_BLOCK, ScalesQ4K};
use super::q4_k;
use super::unroll::unroll;
use crate::device::element::load_half;
use crate::device::int8::{dp4a, load_half_word, load_words, nibbles};
use crate::device::math::fma;
use crate::device::{Element, F16};

pub(super) const BLOCK_VALUES: u32 = BLOCK as u32;
const SUPER_VALUES: u32 = SUPER_BLOCK as u32;
const SUPER_BLOCKS: u32 = BLOCKS_PER_SUPER as u32;

/// A matrix of weights: [n, k], k a multiple of the format's block.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub quants: *const u8,
    pub scales: *const u8,
    pub k: u32,
}

/// A format.
pub(super) trait Weights: Copy {
    /// Bits of a quant.
    const BITS: u32;
    /// Values whose weights fill 16 bytes.
    const CHUNK: u32 = 128 / Self::BITS;
    /// What a quant stands for is quant − OFFSET.
    const OFFSET: i32;
    /// Whether blocks have a minimum.
    const MINIMUM: bool;
    /// Whether rows are multiples of 64 values.
    const WHOLE: bool;
    /// Where the high halves of a chunk's bytes lie in a row, in runs of 16 values behind the low halves.
    const HIGH: u32;

    /// Values that a lane of a product with a vector takes at a time: one block, or two that share bytes.
    const UNIT: u32 = BLOCK_VALUES;
    /// What a unit's quants are multiplied with.
    type Scale: Copy;
    /// What that is made from, as loaded, so that nothing waits for the load.
    type Raw: Copy + Default;

    /// Where unit `unit`'s scales begin in a row's.
    fn scales_at(unit: u32) -> u32;

    /// The scales of a unit.
    ///
    /// # Safety
    /// They lie at `scales`.
    unsafe fn raw(scales: *const u8) -> Self::Raw;

    /// From what [`raw`](Self::raw) has loaded for a unit; `lane` is the unit modulo 32.
    fn scale(raw: Self::Raw, lane: u32) -> Self::Scale;

    /// What is wanted of a block's sum: [`BlockInput::sum`](super::activations::BlockInput::sum).
    fn of_sum(row: RowScale) -> u32;

    /// acc + unit · inputs, the unit's quants being one or two times 16 bytes.
    fn dot(quants: [[u32; 4]; 2], scale: Self::Scale, x: &Inputs, acc: f32) -> f32;

    /// The scale of a whole row; 1 where blocks have theirs.
    ///
    /// # Safety
    /// `row` exists in `w`.
    #[inline(always)]
    unsafe fn row_scale(_w: Matrix, _row: u32) -> f32 {
        1.0
    }

    /// What a block's step and minimum are made from, as loaded, so that nothing waits for the load.
    type Packed: Copy + Default;

    /// # Safety
    /// `row` and `block` exist in `w`.
    unsafe fn packed(w: Matrix, row: u32, block: u32) -> Self::Packed;

    /// The step and the minimum of block `block` of a row; zero for the default, except where there are no blocks.
    fn step_min(packed: Self::Packed, block: u32) -> (f32, f32);
}

/// The 16 bytes of chunk `chunk` of a row.
///
/// # Safety
/// They exist in `w`.
#[inline(always)]
pub(super) unsafe fn chunk<W: Weights>(w: Matrix, row: u32, chunk: u32) -> [u32; 4] {
    let row_bytes = (w.k / 8 * W::BITS) as usize;
    // SAFETY: as the caller promises; rows are whole blocks, so chunks lie on 16-byte boundaries.
    unsafe { load_words(w.quants.add(row as usize * row_bytes + chunk as usize * 16)) }
}

/// # Safety
/// As [`Weights::packed`].
#[inline(always)]
unsafe fn half_scale(w: Matrix, row: u32, block: u32) -> u16 {
    let index = row as usize * (w.k / BLOCK_VALUES) as usize + block as usize;
    // SAFETY: as the caller promises.
    unsafe { load_half(w.scales.cast::<u16>().add(index)) }
}

/// 1.5 · 2²³: integers below 2²² added to its bits are added to its value.
pub(super) const MAGIC: f32 = 12_582_912.0;

/// The float that an integer sum is which started from [`MAGIC`]'s bits: no conversion, which has a quarter of the rate.
#[inline(always)]
fn from_magic(sum: i32) -> f32 {
    f32::from_bits(sum as u32) - MAGIC
}

#[inline(always)]
fn dot32(a: [[u32; 4]; 2], b: [[u32; 4]; 2], mut sum: i32) -> i32 {
    unroll!(HALF < 2 => unroll!(I < 4 => sum = dp4a(a[HALF][I], b[HALF][I], sum)));
    sum
}

/// The low and the high nibbles of words.
#[inline(always)]
fn split(words: [u32; 4]) -> [[u32; 4]; 2] {
    [words.map(|word| nibbles(word).0), words.map(|word| nibbles(word).1)]
}

#[derive(Clone, Copy)]
pub(super) struct I8;

impl Weights for I8 {
    const BITS: u32 = 8;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = false;
    const WHOLE: bool = false;
    const HIGH: u32 = 0;
    type Scale = ();
    type Raw = ();

    #[inline(always)]
    fn scales_at(_unit: u32) -> u32 {
        0
    }

    #[inline(always)]
    unsafe fn raw(_scales: *const u8) {}

    #[inline(always)]
    fn scale((): (), _lane: u32) {}

    #[inline(always)]
    fn of_sum(_row: RowScale) -> u32 {
        0
    }

    #[inline(always)]
    fn dot(quants: [[u32; 4]; 2], (): (), x: &Inputs, acc: f32) -> f32 {
        let sum = dot32(quants, [x.runs[0], x.runs[1]], MAGIC.to_bits() as i32);
        fma(from_magic(sum), x.blocks[0].scale, acc)
    }

    #[inline(always)]
    unsafe fn row_scale(w: Matrix, row: u32) -> f32 {
        // SAFETY: as the caller promises.
        unsafe { f32::load(w.scales.cast::<f32>().add(row as usize)) }
    }

    type Packed = ();

    #[inline(always)]
    unsafe fn packed(_w: Matrix, _row: u32, _block: u32) {}

    #[inline(always)]
    fn step_min((): (), _block: u32) -> (f32, f32) {
        (1.0, 0.0)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q8_0;

impl Weights for Q8_0 {
    const BITS: u32 = 8;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = false;
    const WHOLE: bool = false;
    const HIGH: u32 = 0;
    type Scale = f32;
    type Raw = u32;

    #[inline(always)]
    fn scales_at(unit: u32) -> u32 {
        unit * 2
    }

    #[inline(always)]
    unsafe fn raw(scales: *const u8) -> u32 {
        // SAFETY: as the caller promises.
        unsafe { load_half_word(scales) }
    }

    #[inline(always)]
    fn scale(raw: u32, _lane: u32) -> f32 {
        F16(raw as u16).to_f32()
    }

    #[inline(always)]
    fn of_sum(_row: RowScale) -> u32 {
        0
    }

    #[inline(always)]
    fn dot(quants: [[u32; 4]; 2], scale: f32, x: &Inputs, acc: f32) -> f32 {
        let sum = dot32(quants, [x.runs[0], x.runs[1]], MAGIC.to_bits() as i32);
        fma(from_magic(sum), scale * x.blocks[0].scale, acc)
    }

    type Packed = u16;

    #[inline(always)]
    unsafe fn packed(w: Matrix, row: u32, block: u32) -> u16 {
        // SAFETY: as the caller promises.
        unsafe { half_scale(w, row, block) }
    }

    #[inline(always)]
    fn step_min(packed: u16, _block: u32) -> (f32, f32) {
        (F16(packed).to_f32(), 0.0)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q4_0;

impl Weights for Q4_0 {
    const BITS: u32 = 4;
    const OFFSET: i32 = 8;
    const MINIMUM: bool = false;
    const WHOLE: bool = false;
    const HIGH: u32 = 1;
    type Scale = f32;
    type Raw = u32;

    #[inline(always)]
    fn scales_at(unit: u32) -> u32 {
        unit * 2
    }

    #[inline(always)]
    unsafe fn raw(scales: *const u8) -> u32 {
        // SAFETY: as the caller promises.
        unsafe { load_half_word(scales) }
    }

    #[inline(always)]
    fn scale(raw: u32, _lane: u32) -> f32 {
        F16(raw as u16).to_f32()
    }

    /// Where the integer sum starts.
    #[inline(always)]
    fn of_sum(row: RowScale) -> u32 {
        (MAGIC.to_bits() as i32 - Self::OFFSET * row.sum) as u32
    }

    #[inline(always)]
    fn dot(quants: [[u32; 4]; 2], scale: f32, x: &Inputs, acc: f32) -> f32 {
        let sum = dot32(split(quants[0]), [x.runs[0], x.runs[1]], x.blocks[0].sum as i32);
        fma(from_magic(sum), scale * x.blocks[0].scale, acc)
    }

    type Packed = u16;

    #[inline(always)]
    unsafe fn packed(w: Matrix, row: u32, block: u32) -> u16 {
        // SAFETY: as the caller promises.
        unsafe { half_scale(w, row, block) }
    }

    #[inline(always)]
    fn step_min(packed: u16, _block: u32) -> (f32, f32) {
        (F16(packed).to_f32(), 0.0)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q4K;

/// A super-block's scales: [`ScalesQ4K`] as four words.
///
/// # Safety
/// It exists in `w`.
#[inline(always)]
unsafe fn super_scales(w: Matrix, row: u32, index: u32) -> [u32; 4] {
    let index = row as usize * (w.k / SUPER_VALUES) as usize + index as usize;
    // SAFETY: as the caller promises.
    unsafe { load_words(w.scales.add(index * size_of::<ScalesQ4K>())) }
}

/// Step and minimum of block `j` of a super-block.
#[inline(always)]
fn super_step_min([d, a, b, c]: [u32; 4], j: u32) -> (f32, f32) {
    let (scale, min) = ScalesQ4K::get([a, b, c], j);
    q4_k::step_min(F16(d as u16).to_f32(), F16((d >> 16) as u16).to_f32(), scale, min)
}

impl Weights for Q4K {
    const BITS: u32 = 4;
    const OFFSET: i32 = 0;
    const MINIMUM: bool = true;
    const WHOLE: bool = true;
    const HIGH: u32 = 2;
    const UNIT: u32 = 2 * BLOCK_VALUES;
    /// Step and minimum of the two blocks that the low and the high halves are.
    type Scale = [(f32, f32); 2];
    type Raw = [u32; 4];

    #[inline(always)]
    fn scales_at(unit: u32) -> u32 {
        unit / 4 * 16
    }

    #[inline(always)]
    unsafe fn raw(scales: *const u8) -> [u32; 4] {
        // SAFETY: as the caller promises.
        unsafe { load_words(scales) }
    }

    #[inline(always)]
    fn scale([d, a, b, c]: [u32; 4], lane: u32) -> [(f32, f32); 2] {
        // The bits of two neighbouring blocks at a time. What depends on the lane alone is computed once for all units.
        let (second, shift) = (lane % 4 >= 2, lane % 2 * 16);
        let (from_c, upper, mask) = if second { (0x0f0f, 2, 0x3030) } else { (0, 0, 0x3f3f) };
        let scales = c >> shift & from_c | a >> (shift + upper) & mask;
        let mins = c >> (shift + 4) & from_c | b >> (shift + upper) & mask;
        let (d, d_min) = (F16(d as u16).to_f32(), F16((d >> 16) as u16).to_f32());
        [
            q4_k::step_min(d, d_min, scales & 0xff, mins & 0xff),
            q4_k::step_min(d, d_min, scales >> 8, mins >> 8),
        ]
    }

    /// The sum of the activations themselves.
    #[inline(always)]
    fn of_sum(row: RowScale) -> u32 {
        (row.sum as f32 * row.scale).to_bits()
    }

    #[inline(always)]
    fn dot(quants: [[u32; 4]; 2], scale: [(f32, f32); 2], x: &Inputs, acc: f32) -> f32 {
        let (first, second) = (split(quants[0]), split(quants[1]));
        let mut sum = 0.0;
        unroll!(HALF < 2 => {
            let runs = [x.runs[2 * HALF], x.runs[2 * HALF + 1]];
            let product = dot32([first[HALF], second[HALF]], runs, MAGIC.to_bits() as i32);
            let (step, min) = scale[HALF];
            let block = x.blocks[HALF];
            sum = fma(from_magic(product) * step, block.scale, sum);
            sum = fma(-min, f32::from_bits(block.sum), sum);
        });
        acc + sum
    }

    type Packed = [u32; 4];

    #[inline(always)]
    unsafe fn packed(w: Matrix, row: u32, block: u32) -> [u32; 4] {
        // Four tiles in a row read the same super-block's scales, so they mostly come from L1.
        // SAFETY: as the caller promises.
        unsafe { super_scales(w, row, block / SUPER_BLOCKS) }
    }

    #[inline(always)]
    fn step_min(packed: [u32; 4], block: u32) -> (f32, f32) {
        super_step_min(packed, block % SUPER_BLOCKS)
    }
}
