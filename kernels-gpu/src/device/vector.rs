//! Access to sixteen bytes at a time, for any element type.

use super::element::{Element, F16, load_4_words, load_half, load_word, pack, unpack};
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use core::ops::IndexMut;
use cuda_std::{gpu_only, inlined};

/// An [`Element`] in vectors of 16 bytes.
pub trait Vector: Element {
    /// Elements in 16 bytes.
    const LEN: u32;

    /// `[f32; LEN]`
    type Values: Copy + IndexMut<usize, Output = f32>;

    /// A vector of equal values.
    fn splat(value: f32) -> Self::Values;

    /// `f` of every value. Expanded and not a loop: LLVM would put a loop that it does not unroll into local memory.
    fn map(values: Self::Values, f: impl FnMut(f32) -> f32) -> Self::Values;

    /// `f` of every pair.
    fn zip(x: Self::Values, y: Self::Values, f: impl FnMut(f32, f32) -> f32) -> Self::Values;

    /// The values in sixteen bytes that [`load_raw`] returned: unconverted values of f16 need half the registers.
    fn unpack(words: [u32; 4]) -> Self::Values;

    /// Loads `LEN` elements of another type.
    ///
    /// # Safety
    /// As [`Element::load`], for `LEN` elements, aligned to 16 bytes.
    unsafe fn load_other<T: Element>(pointer: *const T) -> Self::Values;

    /// Loads `LEN` elements at once through the read-only path.
    ///
    /// # Safety
    /// As [`Element::load`], for `LEN` elements, aligned to 16 bytes.
    unsafe fn load_vector(pointer: *const Self) -> Self::Values;

    /// Stores `LEN` elements at once.
    ///
    /// # Safety
    /// `pointer` is in global memory, valid for writing `LEN` elements and aligned to 16 bytes.
    unsafe fn store_vector(pointer: *mut Self, values: Self::Values);
}

/// `st.global.v4.b32`. A store through a pointer would be enough, but LLVM merges the ends of two branches and splits their
/// last vector store into scalar ones.
#[gpu_only]
#[inline(always)]
unsafe fn store_4_words(pointer: *mut u32, [a, b, c, d]: [u32; 4]) {
    // SAFETY: the caller's pointer is global, 16-byte aligned and valid for writing.
    unsafe {
        asm!(
            "st.global.v4.b32 [{pointer}], {{{a}, {b}, {c}, {d}}};",
            pointer = in(reg64) pointer,
            a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            options(nostack, preserves_flags)
        );
    }
}

#[inlined]
impl Vector for f32 {
    const LEN: u32 = 4;
    type Values = [f32; 4];

    fn splat(value: f32) -> [f32; 4] {
        [value; 4]
    }

    fn map([a, b, c, d]: [f32; 4], mut f: impl FnMut(f32) -> f32) -> [f32; 4] {
        [f(a), f(b), f(c), f(d)]
    }

    fn zip(x: [f32; 4], y: [f32; 4], mut f: impl FnMut(f32, f32) -> f32) -> [f32; 4] {
        [f(x[0], y[0]), f(x[1], y[1]), f(x[2], y[2]), f(x[3], y[3])]
    }

    fn unpack(words: [u32; 4]) -> [f32; 4] {
        words.map(f32::from_bits)
    }

    unsafe fn load_other<T: Element>(pointer: *const T) -> [f32; 4] {
        // SAFETY: four readable elements, aligned to 16 bytes and so to four elements: this function's contract.
        unsafe { T::load4(pointer) }
    }

    unsafe fn load_vector(pointer: *const Self) -> [f32; 4] {
        // SAFETY: four readable elements, 16-byte aligned: this function's contract.
        unsafe { Self::load4(pointer) }
    }

    unsafe fn store_vector(pointer: *mut Self, values: [f32; 4]) {
        // SAFETY: 16 writable bytes of global memory, 16-byte aligned: this function's contract.
        unsafe { store_4_words(pointer.cast(), values.map(f32::to_bits)) }
    }
}

#[inlined]
impl Vector for F16 {
    const LEN: u32 = 8;
    type Values = [f32; 8];

    fn splat(value: f32) -> [f32; 8] {
        [value; 8]
    }

    fn map([a, b, c, d, e, g, h, i]: [f32; 8], mut f: impl FnMut(f32) -> f32) -> [f32; 8] {
        [f(a), f(b), f(c), f(d), f(e), f(g), f(h), f(i)]
    }

    fn zip(x: [f32; 8], y: [f32; 8], mut f: impl FnMut(f32, f32) -> f32) -> [f32; 8] {
        let low = [f(x[0], y[0]), f(x[1], y[1]), f(x[2], y[2]), f(x[3], y[3])];
        let high = [f(x[4], y[4]), f(x[5], y[5]), f(x[6], y[6]), f(x[7], y[7])];
        [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
    }

    fn unpack(words: [u32; 4]) -> [f32; 8] {
        let [a, b, c, d] = words.map(unpack);
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

    unsafe fn store_vector(pointer: *mut Self, [a, b, c, d, e, f, g, h]: [f32; 8]) {
        let words = [pack(a, b), pack(c, d), pack(e, f), pack(g, h)];
        // SAFETY: 16 writable bytes of global memory, 16-byte aligned: this function's contract.
        unsafe { store_4_words(pointer.cast(), words) }
    }
}

/// Elements that are moved without arithmetic: 2 or 4 bytes of any type.
pub trait Raw: Copy {
    /// Elements in 16 bytes.
    const LEN: u32;

    /// Loads one element through the read-only path, into the low bits.
    ///
    /// # Safety
    /// `pointer` is in global memory and valid; nothing writes it while the kernel runs.
    unsafe fn load(pointer: *const Self) -> u32;

    /// The element in the low bits.
    fn from_word(word: u32) -> Self;
}

#[inlined]
impl Raw for u32 {
    const LEN: u32 = 4;

    unsafe fn load(pointer: *const Self) -> u32 {
        // SAFETY: `pointer` is global, valid and not written meanwhile: this function's contract.
        unsafe { load_word(pointer) }
    }

    fn from_word(word: u32) -> Self {
        word
    }
}

#[inlined]
impl Raw for u16 {
    const LEN: u32 = 8;

    unsafe fn load(pointer: *const Self) -> u32 {
        // SAFETY: `pointer` is global, valid and not written meanwhile: this function's contract.
        unsafe { load_half(pointer) as u32 }
    }

    fn from_word(word: u32) -> Self {
        word as u16
    }
}

/// Loads sixteen bytes of raw elements through the read-only path.
///
/// # Safety
/// As [`Raw::load`], for 16 bytes, aligned to 16 bytes.
#[inline(always)]
pub unsafe fn load_raw<E>(pointer: *const E) -> [u32; 4] {
    // SAFETY: 16 readable bytes, 16-byte aligned: this function's contract.
    unsafe { load_4_words(pointer.cast()) }
}

/// Writes sixteen bytes of raw elements.
///
/// # Safety
/// `pointer` is in global memory, valid for writing 16 bytes and aligned to 16 bytes.
#[inline(always)]
pub unsafe fn store_raw<E: Raw>(pointer: *mut E, words: [u32; 4]) {
    // SAFETY: 16 writable bytes of global memory, 16-byte aligned: this function's contract.
    unsafe { store_4_words(pointer.cast(), words) }
}
