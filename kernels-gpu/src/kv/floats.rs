//! Keys and values one by one: pointers to elements, and codes of a 16-bit float.

use super::stored::{Pairs, Row, Stored, each_pair};
use crate::device::element::load_4_words;
use crate::device::{Element, F16};
use crate::float16::{Decoder, encode};
use cuda_std::inlined;

/// Rows on 16-byte boundaries.
#[inlined]
impl<T: Element> Stored for *const T {
    const APART: bool = size_of::<T>() == 4;

    fn of(kv: [*const u8; 2], _: u32, _: [*const F16; 2]) -> [Self; 2] {
        kv.map(<*const u8>::cast)
    }

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

    unsafe fn store(Row { values, row, half, is_written, .. }: Row, [mut low, mut high]: Pairs) -> Pairs {
        each_pair!(half, P, i => {
            let stored = [T::from_f32(low[P]), T::from_f32(high[P])];
            if is_written {
                // SAFETY: columns of the row.
                unsafe {
                    let at = values.cast::<T>().add((row * 2 * half + i) as usize);
                    *at = stored[0];
                    *at.add(half as usize) = stored[1];
                }
            }
            [low[P], high[P]] = stored.map(T::to_f32);
        });
        [low, high]
    }
}

/// Codes of a 16-bit float; values beyond the largest number become that. Rows on 16-byte boundaries.
#[derive(Clone, Copy)]
pub struct Coded {
    codes: *const u16,
    decoder: Decoder,
}

#[inlined]
impl Stored for Coded {
    const APART: bool = false;

    fn of(kv: [*const u8; 2], exponent_bits: u32, _: [*const F16; 2]) -> [Self; 2] {
        let decoder = Decoder::new(exponent_bits);
        kv.map(|codes| Self { codes: codes.cast(), decoder })
    }

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

    unsafe fn store(row: Row, [mut low, mut high]: Pairs) -> Pairs {
        let Row { values: codes, exponent_bits, row, half, is_written, .. } = row;
        let decoder = Decoder::new(exponent_bits);
        each_pair!(half, P, i => {
            let stored = [encode(low[P], exponent_bits, true), encode(high[P], exponent_bits, true)];
            if is_written {
                // SAFETY: columns of the row.
                unsafe {
                    let at = codes.cast::<u16>().add((row * 2 * half + i) as usize);
                    *at = stored[0];
                    *at.add(half as usize) = stored[1];
                }
            }
            [low[P], high[P]] = decoder.both(stored[0] as u32 | (stored[1] as u32) << 16);
        });
        [low, high]
    }
}
