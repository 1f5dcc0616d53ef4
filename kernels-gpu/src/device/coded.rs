//! The 16-bit formats of [`float16`](crate::float16) as element types, converted by integer instructions as they are loaded.
//! E = 5 is [`F16`], which the hardware converts.

use super::vector::Vector;
use super::{Element, F16};
use crate::float16::Float16;
use cuda_std::inlined;

/// Two codes of a word.
#[inline(always)]
fn unpack<const E: u32>(word: u32) -> [f32; 2] {
    [Float16::<E>(word as u16).to_f32(), Float16::<E>((word >> 16) as u16).to_f32()]
}

#[inline(always)]
fn code<const E: u32>(value: f32) -> u32 {
    Float16::<E>::from_f32(value).0 as u32
}

/// Values as the words of codes.
#[inline(always)]
fn pack<const E: u32>(low: f32, high: f32) -> f32 {
    f32::from_bits(code::<E>(low) | code::<E>(high) << 16)
}

#[inlined]
impl<const E: u32> Element for Float16<E> {
    type Packed4 = [u32; 2];

    fn to_f32(self) -> f32 {
        self.to_f32()
    }

    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }

    unsafe fn load(pointer: *const Self) -> f32 {
        // SAFETY: `pointer` is global, valid and not written meanwhile: this function's contract. A code is a u16.
        Self(unsafe { super::element::load_half(pointer.cast()) }).to_f32()
    }

    unsafe fn load4(pointer: *const Self) -> [f32; 4] {
        // SAFETY: `load4_packed`'s contract is this function's.
        Self::unpack4(unsafe { Self::load4_packed(pointer) })
    }

    unsafe fn load4_packed(pointer: *const Self) -> [u32; 2] {
        // SAFETY: a code is as large as an f16, so `F16`'s contract is this function's.
        unsafe { F16::load4_packed(pointer.cast()) }
    }

    unsafe fn load4_words(pointer: *const Self) -> [u32; 4] {
        // SAFETY: a code is as large as an f16, so `F16`'s contract is this function's.
        unsafe { F16::load4_words(pointer.cast()) }
    }

    fn from_words([low, high, ..]: [u32; 4]) -> [f32; 4] {
        Self::unpack4([low, high])
    }

    fn zero4() -> [u32; 2] {
        [0; 2]
    }

    fn unpack4([low, high]: [u32; 2]) -> [f32; 4] {
        let ([a, b], [c, d]) = (unpack::<E>(low), unpack::<E>(high));
        [a, b, c, d]
    }

    unsafe fn store4(pointer: *mut Self, [a, b, c, d]: [f32; 4]) {
        let codes = [a, b, c, d].map(Self::from_f32);
        // SAFETY: four writable elements, aligned to four elements: this function's contract.
        unsafe { pointer.cast::<[Self; 4]>().write(codes) }
    }

    unsafe fn load8(pointer: *const Self) -> [f32; 8] {
        // SAFETY: eight codes are four words, readable and 16-byte aligned: this function's contract. They pass
        // unchanged: values are only moved.
        Self::unpack(unsafe { f32::load4(pointer.cast()) }.map(f32::to_bits))
    }

    unsafe fn store8(pointer: *mut Self, [a, b, c, d, e, f, g, h]: [f32; 8]) {
        let words = [pack::<E>(a, b), pack::<E>(c, d), pack::<E>(e, f), pack::<E>(g, h)];
        // SAFETY: eight codes are four words, writable and 16-byte aligned: this function's contract. They pass
        // unchanged.
        unsafe { f32::store4(pointer.cast(), words) }
    }
}

#[inlined]
impl<const E: u32> Vector for Float16<E> {
    const LEN: u32 = 8;
    type Values = [f32; 8];

    fn splat(value: f32) -> [f32; 8] {
        F16::splat(value)
    }

    fn map(values: [f32; 8], f: impl FnMut(f32) -> f32) -> [f32; 8] {
        F16::map(values, f)
    }

    fn zip(x: [f32; 8], y: [f32; 8], f: impl FnMut(f32, f32) -> f32) -> [f32; 8] {
        F16::zip(x, y, f)
    }

    fn unpack(words: [u32; 4]) -> [f32; 8] {
        let [a, b, c, d] = words.map(unpack::<E>);
        [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
    }

    unsafe fn load_other<T: Element>(pointer: *const T) -> [f32; 8] {
        // SAFETY: eight readable elements, 16-byte aligned: this function's contract.
        unsafe { T::load8(pointer) }
    }

    unsafe fn load_vector(pointer: *const Self) -> [f32; 8] {
        // SAFETY: eight readable elements, 16-byte aligned: this function's contract.
        unsafe { Self::load8(pointer) }
    }

    unsafe fn store_vector(pointer: *mut Self, values: [f32; 8]) {
        // SAFETY: eight writable elements, 16-byte aligned: this function's contract.
        unsafe { Self::store8(pointer, values) }
    }
}
