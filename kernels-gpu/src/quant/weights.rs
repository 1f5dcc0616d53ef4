//! How kernels read a format: by 16-byte chunks of a row's quants.

use super::blocks::{BLOCK, BLOCKS_PER_SUPER, RowScale, SUPER_BLOCK, ScalesQ4K};
use super::q4_k;
use crate::device::element::load_half;
use crate::device::int8::{dp4a, load_pair, load_words, nibbles};
use crate::device::math::fma;
use crate::device::{Element, F16, Shared};

const BLOCK_VALUES: u32 = BLOCK as u32;
const SUPER_VALUES: u32 = SUPER_BLOCK as u32;
const SUPER_BLOCKS: u32 = BLOCKS_PER_SUPER as u32;

/// A matrix of weights: [n, k], k a multiple of the format's block.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub quants: *const u8,
    pub scales: *const u8,
    pub k: u32,
}

/// The activations that meet one chunk of weights.
#[derive(Clone, Copy)]
pub(super) struct Inputs {
    /// Two runs of 16 values; formats of 8 bits have only the first.
    pub words: [[u32; 4]; 2],
    /// The scales of the blocks that the runs lie in.
    pub scales: [RowScale; 2],
}

/// Where a row of quantised activations lies.
pub(super) trait Activations: Copy {
    /// The 16 quants from value `at` on, a multiple of 16.
    ///
    /// # Safety
    /// The row holds them.
    unsafe fn words(&self, at: u32) -> [u32; 4];

    /// The scale and the sum of block `block`.
    ///
    /// # Safety
    /// The row has it.
    unsafe fn scale(&self, block: u32) -> RowScale;
}

/// A row in global memory.
#[derive(Clone, Copy)]
pub(super) struct GlobalRow {
    pub quants: *const u8,
    pub scales: *const u8,
}

impl Activations for GlobalRow {
    #[inline(always)]
    unsafe fn words(&self, at: u32) -> [u32; 4] {
        // SAFETY: as the caller promises; rows lie on 16-byte boundaries.
        unsafe { load_words(self.quants.add(at as usize)) }
    }

    #[inline(always)]
    unsafe fn scale(&self, block: u32) -> RowScale {
        // SAFETY: as the caller promises.
        unsafe { row_scale(self.scales, block) }
    }
}

/// A row, or a part of one, in shared memory.
#[derive(Clone, Copy)]
pub(super) struct SharedRow {
    /// Four quants a word.
    pub quants: Shared<u32>,
    /// A scale's bits and a sum per block.
    pub scales: Shared<u32>,
}

impl Activations for SharedRow {
    #[inline(always)]
    unsafe fn words(&self, at: u32) -> [u32; 4] {
        // SAFETY: as the caller promises.
        unsafe { self.quants.get4(at / 4) }
    }

    #[inline(always)]
    unsafe fn scale(&self, block: u32) -> RowScale {
        // SAFETY: as the caller promises.
        let [scale, sum] = unsafe { self.scales.get2(block * 2) };
        RowScale { scale: f32::from_bits(scale), sum: sum as i32 }
    }
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

    /// What a chunk's quants are multiplied with.
    type Scale: Copy;
    /// What that is made from, as loaded, so that nothing waits for the load.
    type Raw: Copy + Default;

    /// # Safety
    /// `row` and `chunk` exist in `w`.
    unsafe fn raw(w: Matrix, row: u32, chunk: u32) -> Self::Raw;

    /// From what [`raw`](Self::raw) has loaded for chunk `chunk`.
    fn scale(raw: Self::Raw, chunk: u32) -> Self::Scale;

    /// The row's activations that chunk `chunk` meets.
    ///
    /// # Safety
    /// The row holds the chunk's values.
    unsafe fn inputs<A: Activations>(x: A, chunk: u32) -> Inputs;

    /// acc + chunk · inputs
    fn dot(words: [u32; 4], scale: Self::Scale, x: &Inputs, acc: f32) -> f32;

    /// The scale of a whole row; 1 where blocks have theirs.
    ///
    /// # Safety
    /// `row` exists in `w`.
    #[inline(always)]
    unsafe fn row_scale(_w: Matrix, _row: u32) -> f32 {
        1.0
    }

    /// What a block's step and minimum are made from, as loaded, so that nothing waits for the load. Empty where that
    /// would be too many registers.
    type Packed: Copy + Default;

    /// # Safety
    /// `row` and `block` exist in `w`.
    unsafe fn packed(w: Matrix, row: u32, block: u32) -> Self::Packed;

    /// The step and the minimum of a block; zero for the default of formats whose rows may end within a tile.
    ///
    /// # Safety
    /// As [`packed`](Self::packed).
    unsafe fn step_min(w: Matrix, row: u32, block: u32, packed: Self::Packed) -> (f32, f32);
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
/// The row has that block.
#[inline(always)]
pub(super) unsafe fn row_scale(scales: *const u8, block: u32) -> RowScale {
    // SAFETY: as the caller promises.
    let [scale, sum] = unsafe { load_pair(scales.add(block as usize * size_of::<RowScale>())) };
    RowScale { scale: f32::from_bits(scale), sum: sum as i32 }
}

/// # Safety
/// As [`Weights::scale`].
#[inline(always)]
unsafe fn half_scale(w: Matrix, row: u32, block: u32) -> u16 {
    let index = row as usize * (w.k / BLOCK_VALUES) as usize + block as usize;
    // SAFETY: as the caller promises.
    unsafe { load_half(w.scales.cast::<u16>().add(index)) }
}

#[inline(always)]
fn dot16(a: [u32; 4], b: [u32; 4], mut sum: i32) -> i32 {
    sum = dp4a(a[0], b[0], sum);
    sum = dp4a(a[1], b[1], sum);
    sum = dp4a(a[2], b[2], sum);
    dp4a(a[3], b[3], sum)
}

#[inline(always)]
fn split(words: [u32; 4]) -> ([u32; 4], [u32; 4]) {
    (words.map(|word| nibbles(word).0), words.map(|word| nibbles(word).1))
}

/// Sixteen values and their block's scale, for formats of 8 bits.
///
/// # Safety
/// As [`Weights::inputs`].
#[inline(always)]
unsafe fn half_block<A: Activations>(x: A, chunk: u32) -> Inputs {
    // SAFETY: as the caller promises.
    unsafe {
        let words = x.words(chunk * 16);
        let scale = x.scale(chunk / 2);
        Inputs { words: [words; 2], scales: [scale; 2] }
    }
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
    unsafe fn raw(_w: Matrix, _row: u32, _chunk: u32) {}

    #[inline(always)]
    fn scale((): (), _chunk: u32) {}

    #[inline(always)]
    unsafe fn inputs<A: Activations>(x: A, chunk: u32) -> Inputs {
        // SAFETY: as the caller promises.
        unsafe { half_block(x, chunk) }
    }

    #[inline(always)]
    fn dot(words: [u32; 4], (): (), x: &Inputs, acc: f32) -> f32 {
        fma(dot16(words, x.words[0], 0) as f32, x.scales[0].scale, acc)
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
    unsafe fn step_min(_w: Matrix, _row: u32, _block: u32, (): ()) -> (f32, f32) {
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
    type Raw = u16;

    #[inline(always)]
    unsafe fn raw(w: Matrix, row: u32, chunk: u32) -> u16 {
        // SAFETY: as the caller promises; a block is two chunks.
        unsafe { half_scale(w, row, chunk / 2) }
    }

    #[inline(always)]
    fn scale(raw: u16, _chunk: u32) -> f32 {
        F16(raw).to_f32()
    }

    #[inline(always)]
    unsafe fn inputs<A: Activations>(x: A, chunk: u32) -> Inputs {
        // SAFETY: as the caller promises.
        unsafe { half_block(x, chunk) }
    }

    #[inline(always)]
    fn dot(words: [u32; 4], scale: f32, x: &Inputs, acc: f32) -> f32 {
        fma(dot16(words, x.words[0], 0) as f32, scale * x.scales[0].scale, acc)
    }

    type Packed = u16;

    #[inline(always)]
    unsafe fn packed(w: Matrix, row: u32, block: u32) -> u16 {
        // SAFETY: as the caller promises.
        unsafe { half_scale(w, row, block) }
    }

    #[inline(always)]
    unsafe fn step_min(_w: Matrix, _row: u32, _block: u32, packed: u16) -> (f32, f32) {
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
    type Raw = u16;

    #[inline(always)]
    unsafe fn raw(w: Matrix, row: u32, chunk: u32) -> u16 {
        // SAFETY: as the caller promises; a block is one chunk.
        unsafe { half_scale(w, row, chunk) }
    }

    #[inline(always)]
    fn scale(raw: u16, _chunk: u32) -> f32 {
        F16(raw).to_f32()
    }

    #[inline(always)]
    unsafe fn inputs<A: Activations>(x: A, chunk: u32) -> Inputs {
        // SAFETY: as the caller promises.
        unsafe {
            let from = chunk * BLOCK_VALUES;
            Inputs { words: [x.words(from), x.words(from + 16)], scales: [x.scale(chunk); 2] }
        }
    }

    #[inline(always)]
    fn dot(words: [u32; 4], scale: f32, x: &Inputs, acc: f32) -> f32 {
        let (low, high) = split(words);
        let sum = dot16(high, x.words[1], dot16(low, x.words[0], -8 * x.scales[0].sum));
        fma(sum as f32, scale * x.scales[0].scale, acc)
    }

    type Packed = u16;

    #[inline(always)]
    unsafe fn packed(w: Matrix, row: u32, block: u32) -> u16 {
        // SAFETY: as the caller promises.
        unsafe { half_scale(w, row, block) }
    }

    #[inline(always)]
    unsafe fn step_min(_w: Matrix, _row: u32, _block: u32, packed: u16) -> (f32, f32) {
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
    /// Step and minimum of the two blocks that the low and the high halves belong to.
    type Scale = [(f32, f32); 2];
    type Raw = [u32; 4];

    #[inline(always)]
    unsafe fn raw(w: Matrix, row: u32, chunk: u32) -> [u32; 4] {
        // SAFETY: as the caller promises; a super-block is eight chunks.
        unsafe { super_scales(w, row, chunk / SUPER_BLOCKS) }
    }

    #[inline(always)]
    fn scale(packed: [u32; 4], chunk: u32) -> [(f32, f32); 2] {
        let first = chunk % SUPER_BLOCKS / 2 * 2; // a pair of blocks is two chunks
        [super_step_min(packed, first), super_step_min(packed, first + 1)]
    }

    #[inline(always)]
    unsafe fn inputs<A: Activations>(x: A, chunk: u32) -> Inputs {
        let pair = chunk / 2 * 2; // its first block
        // SAFETY: as the caller promises.
        unsafe {
            let from = pair * BLOCK_VALUES + chunk % 2 * 16;
            let words = [x.words(from), x.words(from + BLOCK_VALUES)];
            let mut scales = [x.scale(pair), x.scale(pair + 1)];
            if chunk % 2 == 1 {
                // the sums are of whole blocks, so only the chunk with the first half of each takes them
                scales[0].sum = 0;
                scales[1].sum = 0;
            }
            Inputs { words, scales }
        }
    }

    #[inline(always)]
    fn dot(words: [u32; 4], [low, high]: [(f32, f32); 2], x: &Inputs, acc: f32) -> f32 {
        let quants = split(words);
        let product =
            |sum: i32, x: RowScale, (step, min)| fma(sum as f32, step, -(x.sum as f32) * min) * x.scale;
        let first = product(dot16(quants.0, x.words[0], 0), x.scales[0], low);
        let second = product(dot16(quants.1, x.words[1], 0), x.scales[1], high);
        acc + (first + second)
    }

    type Packed = ();

    #[inline(always)]
    unsafe fn packed(_w: Matrix, _row: u32, _block: u32) {}

    #[inline(always)]
    unsafe fn step_min(w: Matrix, row: u32, block: u32, (): ()) -> (f32, f32) {
        // Four tiles in a row read the same super-block's scales, so they mostly come from L1.
        // SAFETY: as the caller promises.
        super_step_min(unsafe { super_scales(w, row, block / SUPER_BLOCKS) }, block % SUPER_BLOCKS)
    }
}
