//! The storage formats of keys and values, over which the attention kernels are generic.
//!
//! | format                  | a row of d columns                                 | a value          |
//! |-------------------------|----------------------------------------------------|------------------|
//! | pointers to elements    | d elements                                         | the element      |
//! | [`Coded`]               | d codes of a 16-bit float with any exponent bits   | the code's       |
//! | [`Q8Blocks`] (Q8_0)     | quants i8 \[w\], scales f16 \[w/32\], w = d padded to 32 | scale · quant    |

use super::element::{load_4_words, load_half, load_word};
use super::int8::load_pair;
use super::{Element, F16};
use crate::float16::Decoder;
use crate::quant::blocks::BLOCK;
use cuda_std::inlined;

/// The keys or values of a tensor in a storage format. Indices count elements from the first.
pub trait Stored: Copy {
    /// Whether [`load8_words`](Self::load8_words) reads two separate pieces of 16 bytes, and not neighbouring ones.
    const APART: bool;

    /// Loads four neighbours in their memory format, without converting them, so that no instruction waits for them.
    ///
    /// # Safety
    /// They are inside a row, and `at` is a multiple of four.
    unsafe fn load4_words(self, at: usize) -> [u32; 4];

    /// Converts the result of [`load4_words`](Self::load4_words).
    fn values4(self, words: [u32; 4]) -> [f32; 4];

    /// Loads eight elements of the row that begins at `row`, two pieces of four columns, in their memory format.
    ///
    /// # Safety
    /// Both pieces are inside the row, their first columns multiples of four; and neighbours, the first at a multiple of
    /// eight, unless they are [`APART`](Self::APART).
    unsafe fn load8_words(self, row: usize, pieces: [u32; 2]) -> [[u32; 4]; 2];

    /// Converts the result of [`load8_words`](Self::load8_words).
    fn values8(self, words: [[u32; 4]; 2]) -> [f32; 8];
}

/// The type of keys' and values' elements in memory, which determines how they are read: f32, [`F16`], `u16` for codes
/// ([`Coded`]), `u8` for quants ([`Q8Blocks`]).
pub trait KvElement: Copy {
    /// The reader of this format.
    type Stored: Stored;

    /// The readers of keys and values. Only codes have `exponent_bits`, only quants have `scales`.
    fn stored(kv: [*const Self; 2], exponent_bits: u32, scales: [*const F16; 2]) -> [Self::Stored; 2];
}

impl<T: Element> KvElement for T {
    type Stored = *const T;

    #[inline(always)]
    fn stored(kv: [*const T; 2], _: u32, _: [*const F16; 2]) -> [*const T; 2] {
        kv
    }
}

impl KvElement for u16 {
    type Stored = Coded;

    #[inline(always)]
    fn stored(kv: [*const u16; 2], exponent_bits: u32, _: [*const F16; 2]) -> [Coded; 2] {
        let decoder = Decoder::new(exponent_bits);
        kv.map(|codes| Coded { codes, decoder })
    }
}

impl KvElement for u8 {
    type Stored = Q8Blocks;

    #[inline(always)]
    fn stored([k, v]: [*const u8; 2], _: u32, [k_scales, v_scales]: [*const F16; 2]) -> [Q8Blocks; 2] {
        [Q8Blocks { quants: k, scales: k_scales }, Q8Blocks { quants: v, scales: v_scales }]
    }
}

/// Rows on 16-byte boundaries.
#[inlined]
impl<T: Element> Stored for *const T {
    const APART: bool = size_of::<T>() == 4;

    unsafe fn load4_words(self, at: usize) -> [u32; 4] {
        // SAFETY: the caller's four elements are inside a row; rows are on 16-byte boundaries and `at` is a multiple of four.
        unsafe { T::load4_words(self.add(at)) }
    }

    fn values4(self, words: [u32; 4]) -> [f32; 4] {
        T::from_words(words)
    }

    unsafe fn load8_words(self, row: usize, [low, high]: [u32; 2]) -> [[u32; 4]; 2] {
        // SAFETY: the caller's pieces are inside the row, at multiples of four; neighbours begin at a multiple of eight.
        unsafe {
            let row = self.add(row);
            if Self::APART {
                [T::load4_words(row.add(low as usize)), T::load4_words(row.add(high as usize))]
            } else {
                [load_4_words(row.add(low as usize).cast()), [0; 4]]
            }
        }
    }

    fn values8(self, [low, high]: [[u32; 4]; 2]) -> [f32; 8] {
        let (low, high) = if Self::APART { (low, high) } else { (low, [low[2], low[3], 0, 0]) };
        let ([a, b, c, d], [e, f, g, h]) = (T::from_words(low), T::from_words(high));
        [a, b, c, d, e, f, g, h]
    }
}

/// Codes of a 16-bit float. Rows on 16-byte boundaries.
#[derive(Clone, Copy)]
pub struct Coded {
    codes: *const u16,
    decoder: Decoder,
}

#[inlined]
impl Stored for Coded {
    const APART: bool = false;

    unsafe fn load4_words(self, at: usize) -> [u32; 4] {
        // SAFETY: the caller's four codes are inside a row at a multiple of four, and as large as f16.
        unsafe { F16::load4_words(self.codes.add(at).cast()) }
    }

    fn values4(self, [low, high, ..]: [u32; 4]) -> [f32; 4] {
        let ([a, b], [c, d]) = (self.decoder.both(low), self.decoder.both(high));
        [a, b, c, d]
    }

    unsafe fn load8_words(self, row: usize, [low, _]: [u32; 2]) -> [[u32; 4]; 2] {
        // SAFETY: the caller's pieces are neighbours inside the row, the first at a multiple of eight, so these are 16
        // aligned bytes.
        [unsafe { load_4_words(self.codes.add(row + low as usize).cast()) }, [0; 4]]
    }

    fn values8(self, [words, _]: [[u32; 4]; 2]) -> [f32; 8] {
        let [a, b, c, d] = words.map(|word| self.decoder.both(word));
        [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
    }
}

/// Blocks of Q8_0, with quants and scales in separate arrays. Rows are padded to whole blocks.
#[derive(Clone, Copy)]
pub struct Q8Blocks {
    quants: *const u8,
    scales: *const F16,
}

/// Four quants of a word, times their scale.
#[inline(always)]
fn scaled(word: u32, scale: f32) -> [f32; 4] {
    let quant = |byte: u32| (word >> (8 * byte)) as u8 as i8 as f32 * scale;
    [quant(0), quant(1), quant(2), quant(3)]
}

#[inlined]
impl Stored for Q8Blocks {
    const APART: bool = false;

    unsafe fn load4_words(self, at: usize) -> [u32; 4] {
        // SAFETY: the caller's four quants are inside a row at a multiple of four. Rows are whole blocks, so the index of an
        // element gives that of its scale.
        unsafe {
            let scale = load_half(self.scales.add(at / BLOCK).cast());
            [load_word(self.quants.add(at).cast()), scale as u32, 0, 0]
        }
    }

    fn values4(self, [quants, scale, ..]: [u32; 4]) -> [f32; 4] {
        scaled(quants, F16(scale as u16).to_f32())
    }

    unsafe fn load8_words(self, row: usize, [low, _]: [u32; 2]) -> [[u32; 4]; 2] {
        let at = row + low as usize;
        // SAFETY: the caller's pieces are neighbours inside the row, the first at a multiple of eight, so these are eight
        // aligned bytes of one block.
        unsafe {
            let [a, b] = load_pair(self.quants.add(at));
            [[a, b, load_half(self.scales.add(at / BLOCK).cast()) as u32, 0], [0; 4]]
        }
    }

    fn values8(self, [[low, high, scale, _], _]: [[u32; 4]; 2]) -> [f32; 8] {
        let scale = F16(scale as u16).to_f32();
        let ([a, b, c, d], [e, f, g, h]) = (scaled(low, scale), scaled(high, scale));
        [a, b, c, d, e, f, g, h]
    }
}
