//! How kernels read a format. Tiles read a row's quants in chunks of 16 bytes; products with a vector read units of one or
//! two blocks.

use super::blocks::{BLOCK, BLOCKS_PER_SUPER, RowScale, SUPER_BLOCK};
use super::inputs::Inputs;
use crate::device::element::load_half;
use crate::device::int8::{dp4a, load_words, nibbles};
use crate::device::math::fma;
use crate::device::unroll::unroll;
use cuda_std::inlined;

pub(crate) const BLOCK_VALUES: u32 = BLOCK as u32;
const SUPER_VALUES: u32 = SUPER_BLOCK as u32;
pub(super) const SUPER_BLOCKS: u32 = BLOCKS_PER_SUPER as u32;

/// A matrix of weights: [n, k], k a multiple of the format's block.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub quants: *const u8,
    pub scales: *const u8,
    pub k: u32,
}

/// A format.
#[inlined]
pub(crate) trait Weights: Copy {
    /// Bits of a quant.
    const BITS: u32;
    /// Values of a chunk, which is 16 bytes of whole 8-bit quants, or the low four bits (of 3-bit quants two) of quants.
    const CHUNK: u32 = if Self::BITS == 8 { 16 } else { 32 };
    /// The integer that a quant represents is quant − OFFSET.
    const OFFSET: i32;
    /// Whether blocks have a minimum.
    const MINIMUM: bool;
    /// Whether the two halves of a block have different steps, and different minima if there are any.
    const HALVES: bool = false;
    /// Whether rows are multiples of 64 values.
    const WHOLE: bool;
    /// The distance in a row from the run of a chunk's low halves to the run of its high halves, in runs of 16 values.
    const HIGH: u32;

    /// Values that a lane of a product with a vector takes at a time: one block, or two that share bytes.
    const UNIT: u32 = BLOCK_VALUES;
    /// Units of a row that a lane has in flight, in products with one row of f32.
    const LANE_UNITS: usize = 1;
    /// Times four values of that row that a lane loads before w: 0 to 2, by the registers that are left.
    const EARLY: usize;
    /// The scales of a unit.
    type Scale: Copy;
    /// The loaded bits of a scale, unconverted, so that no instruction waits for the load.
    type Raw: Copy + Default;

    /// The bits of a chunk's quants beyond four.
    type Upper: Copy + Default;

    /// The offset of chunk `chunk` in a row's quants.
    fn chunk_at(chunk: u32) -> u32 {
        chunk * 16
    }

    /// Chunk `at` an address: 16 bytes, or fewer and then zeros.
    ///
    /// # Safety
    /// It lies there.
    unsafe fn chunk(at: *const u8) -> [u32; 4] {
        // SAFETY: the chunk lies at `at`, on a 16-byte boundary: this function's contract, and rows are whole blocks.
        unsafe { load_words(at) }
    }

    /// A unit's chunks.
    ///
    /// # Safety
    /// They lie at `at`.
    unsafe fn chunks(at: *const u8) -> [[u32; 4]; 2] {
        let mut chunks = [[0; 4]; 2];
        // SAFETY: as for `chunk`.
        unsafe {
            chunks[0] = load_words(at);
            if Self::UNIT / Self::CHUNK == 2 {
                chunks[1] = load_words(at.wrapping_add(16));
            }
        }
        chunks
    }

    /// The offset of its upper bits.
    fn upper_at(_chunk: u32) -> u32 {
        0
    }

    /// The upper bits of a chunk.
    ///
    /// # Safety
    /// They lie at `at`.
    unsafe fn upper(_at: *const u8) -> Self::Upper {
        Self::Upper::default()
    }

    /// The upper bits of a unit's two chunks.
    ///
    /// # Safety
    /// They lie at `at`.
    unsafe fn uppers(_at: *const u8) -> [Self::Upper; 2] {
        [Self::Upper::default(); 2]
    }

    /// A chunk's quants as bytes for products: the run of its low nibbles, and the run of its high nibbles.
    fn widen(chunk: [u32; 4], _upper: Self::Upper) -> [[u32; 4]; 2] {
        [chunk.map(|word| nibbles(word).0), chunk.map(|word| nibbles(word).1)]
    }

    /// The quants of columns 4·`group` to 4·`group` + 3 of a row as bytes, as in [`widen`](Self::widen).
    ///
    /// # Safety
    /// They exist in `w`.
    unsafe fn four(w: Matrix, row: u32, group: u32) -> u32 {
        let (word, high) = place(Self::BITS, Self::HIGH, group);
        // SAFETY: the four columns exist in `w`: this function's contract.
        let word = unsafe { *row_words::<Self>(w, row).add(word as usize) };
        if Self::BITS == 8 {
            word
        } else if high {
            nibbles(word).1
        } else {
            nibbles(word).0
        }
    }

    /// The offset of unit `unit`'s scales in a row's.
    fn scales_at(unit: u32) -> u32;

    /// The scales of unit `unit`.
    ///
    /// # Safety
    /// They lie at `scales`.
    unsafe fn raw(scales: *const u8, unit: u32) -> Self::Raw;

    /// Converts the result of [`raw`](Self::raw) for a unit; `lane` is the unit modulo 32.
    fn scale(raw: Self::Raw, lane: u32) -> Self::Scale;

    /// The block's sum in the form that the format needs for [`BlockInput::sum`](super::inputs::BlockInput::sum); 0 if
    /// it needs none.
    fn of_sum(_row: RowScale) -> u32 {
        0
    }

    /// acc + unit · inputs; the unit's quants are one or two chunks.
    fn dot(quants: [[u32; 4]; 2], upper: [Self::Upper; 2], scale: Self::Scale, x: &Inputs, acc: f32) -> f32;

    /// The scale of a whole row; 1 if blocks have scales.
    ///
    /// # Safety
    /// `row` exists in `w`.
    unsafe fn row_scale(_w: Matrix, _row: u32) -> f32 {
        1.0
    }

    /// The loaded bits of a block's step and minimum, unconverted, so that no instruction waits for the load.
    type Packed: Copy + Default;

    /// # Safety
    /// `row` and `block` exist in `w`.
    unsafe fn packed(w: Matrix, row: u32, block: u32) -> Self::Packed;

    /// The step and the minimum of block `block` of a row, or the steps of its [halves](Self::HALVES); zero for the default,
    /// except where there are no blocks.
    fn step_min(packed: Self::Packed, block: u32) -> (f32, f32);

    /// The minima of the halves of block `block`, for formats with [both](Self::HALVES).
    fn minima(_packed: Self::Packed, _block: u32) -> (f32, f32) {
        (0.0, 0.0)
    }

    /// The step and the minimum of a half of block `block` of a row.
    fn of_half(packed: Self::Packed, block: u32, second: bool) -> (f32, f32) {
        let factors = Self::step_min(packed, block);
        if !Self::HALVES {
            return factors;
        }
        let minima = Self::minima(packed, block);
        if second { (factors.1, minima.1) } else { (factors.0, minima.0) }
    }
}

/// Whether halves of blocks have minima.
pub(super) const fn half_minima<W: Weights>() -> bool {
    W::HALVES && W::MINIMUM
}

/// The word of a row's quants that holds columns 4·`group` to 4·`group` + 3, and whether they are in its high halves.
#[inline(always)]
pub(super) const fn place(bits: u32, high: u32, group: u32) -> (u32, bool) {
    if bits == 8 {
        return (group, false);
    }
    // `2 · high` runs of 16 values share `high` runs of 16 bytes
    let (span, run) = (8 * high, 4 * high);
    let (index, within) = (group / span, group % span);
    (index * run + within % run, within >= run)
}

/// The quants of a row as words.
///
/// # Safety
/// The row exists in `w`.
#[inline(always)]
pub(super) unsafe fn row_words<W: Weights>(w: Matrix, row: u32) -> *const u32 {
    // SAFETY: the row exists in `w`: this function's contract.
    unsafe { w.quants.cast::<u32>().add(row as usize * (w.k / 32 * W::BITS) as usize) }
}

/// Chunk `chunk` of a row.
///
/// # Safety
/// It exists in `w`.
#[inline(always)]
pub(super) unsafe fn chunk<W: Weights>(w: Matrix, row: u32, chunk: u32) -> [u32; 4] {
    let row_bytes = (w.k / 8 * W::BITS) as usize;
    // SAFETY: the chunk exists in `w`: this function's contract.
    unsafe { W::chunk(w.quants.add(row as usize * row_bytes + W::chunk_at(chunk) as usize)) }
}

/// The upper bits of chunk `chunk` of a row.
///
/// # Safety
/// As [`chunk`].
#[inline(always)]
pub(super) unsafe fn upper<W: Weights>(w: Matrix, row: u32, chunk: u32) -> W::Upper {
    let row_bytes = (w.k / 8 * W::BITS) as usize;
    // SAFETY: the chunk exists in `w`, and so do its upper bits: this function's contract.
    unsafe { W::upper(w.quants.add(row as usize * row_bytes + W::upper_at(chunk) as usize)) }
}

/// The 16-bit scale of a block.
///
/// # Safety
/// As [`Weights::packed`].
#[inline(always)]
pub(super) unsafe fn half_scale(w: Matrix, row: u32, block: u32) -> u16 {
    let index = row as usize * (w.k / BLOCK_VALUES) as usize + block as usize;
    // SAFETY: the block exists in `w`: this function's contract.
    unsafe { load_half(w.scales.cast::<u16>().add(index)) }
}

/// 1.5 · 2²³: integers below 2²² added to its bits are added to its value.
pub(super) const MAGIC: f32 = 12_582_912.0;

/// An integer sum that started from [`MAGIC`]'s bits, as a float. It replaces a conversion, whose rate is a quarter.
#[inline(always)]
pub(super) fn from_magic(sum: i32) -> f32 {
    f32::from_bits(sum as u32) - MAGIC
}

#[inline(always)]
pub(super) fn dot32(a: [[u32; 4]; 2], b: [[u32; 4]; 2], mut sum: i32) -> i32 {
    unroll!(HALF < 2 => unroll!(I < 4 => sum = dp4a(a[HALF][I], b[HALF][I], sum)));
    sum
}

/// The parts of [`Weights`] about scales, for a format with one scale per block, a 16-bit float of the given type, and no minimum.
macro_rules! half_scales {
    ($float:expr) => {
        type Scale = f32;
        type Raw = u32;

        #[inline(always)]
        fn scales_at(unit: u32) -> u32 {
            unit * 2
        }

        #[inline(always)]
        unsafe fn raw(scales: *const u8, _unit: u32) -> u32 {
            // SAFETY: the unit's scales lie at `scales`: this function's contract.
            unsafe { load_half_word(scales) }
        }

        #[inline(always)]
        fn scale(raw: u32, _lane: u32) -> f32 {
            $float(raw as u16).to_f32()
        }

        type Packed = u16;

        #[inline(always)]
        unsafe fn packed(w: Matrix, row: u32, block: u32) -> u16 {
            // SAFETY: `row` and `block` exist in `w`: this function's contract.
            unsafe { half_scale(w, row, block) }
        }

        #[inline(always)]
        fn step_min(packed: u16, _block: u32) -> (f32, f32) {
            ($float(packed).to_f32(), 0.0)
        }
    };
}
pub(super) use half_scales;

/// acc + unit · inputs, for a unit of two blocks with minima.
#[inline(always)]
pub(super) fn dot_minima<W: Weights>(
    quants: [[u32; 4]; 2],
    upper: [W::Upper; 2],
    scale: [(f32, f32); 2],
    x: &Inputs,
    acc: f32,
) -> f32 {
    let (first, second) = (W::widen(quants[0], upper[0]), W::widen(quants[1], upper[1]));
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

/// The offset of a super-block's scales, `bytes` bytes each.
///
/// # Safety
/// It exists in `w`.
#[inline(always)]
pub(super) unsafe fn super_scales(w: Matrix, row: u32, index: u32, bytes: usize) -> *const u8 {
    let index = row as usize * (w.k / SUPER_VALUES) as usize + index as usize;
    // SAFETY: the super-block exists in `w`: this function's contract.
    unsafe { w.scales.add(index * bytes) }
}

/// A run of 16 values · inputs, as a float.
#[inline(always)]
pub(super) fn dot16(a: [u32; 4], b: [u32; 4]) -> f32 {
    let mut sum = MAGIC.to_bits() as i32;
    unroll!(I < 4 => sum = dp4a(a[I], b[I], sum));
    from_magic(sum)
}

/// acc + unit · inputs, for a unit of two blocks whose halves have different steps.
#[inline(always)]
pub(super) fn dot_halves<W: Weights>(
    quants: [[u32; 4]; 2],
    upper: [W::Upper; 2],
    scale: [f32; 4],
    x: &Inputs,
    acc: f32,
) -> f32 {
    let (first, second) = (W::widen(quants[0], upper[0]), W::widen(quants[1], upper[1]));
    let mut acc = acc;
    unroll!(HALF < 2 => {
        let sum = dot16(first[HALF], x.runs[2 * HALF]) * scale[2 * HALF];
        let sum = fma(dot16(second[HALF], x.runs[2 * HALF + 1]), scale[2 * HALF + 1], sum);
        acc = fma(sum, x.blocks[HALF].scale, acc);
    });
    acc
}
