//! Element types in memory, and vector access to them. All arithmetic is f32: sm_61 computes f16 at 1/64 of its f32
//! rate, so half precision is a storage format.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::{gpu_only, inlined};

/// An IEEE 754 half-precision value in memory.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct F16(pub u16);

/// A type that tensors are stored in.
pub trait Element: Copy + 'static {
    /// The value in f32, exactly.
    fn to_f32(self) -> f32;

    /// The nearest value of this type, ties to even.
    fn from_f32(value: f32) -> Self;

    /// Loads one element through the read-only path.
    ///
    /// # Safety
    /// `pointer` is in global memory and valid; nothing writes it while the kernel runs.
    unsafe fn load(pointer: *const Self) -> f32;

    /// Loads four elements at once through the read-only path.
    ///
    /// # Safety
    /// As [`load`](Self::load), for four elements, aligned to four elements.
    unsafe fn load4(pointer: *const Self) -> [f32; 4];

    /// Four elements in their memory format.
    type Packed4: Copy;

    /// Loads four elements at once through the read-only path, without converting them, so that no instruction waits for
    /// them.
    ///
    /// # Safety
    /// As [`load4`](Self::load4).
    unsafe fn load4_packed(pointer: *const Self) -> Self::Packed4;

    /// Four zeros.
    fn zero4() -> Self::Packed4;

    /// Converts the result of [`load4_packed`](Self::load4_packed).
    fn unpack4(packed: Self::Packed4) -> [f32; 4];

    /// Loads four elements at once through the read-only path, unconverted; two words of f16 are followed by zeros.
    ///
    /// # Safety
    /// As [`load4`](Self::load4).
    unsafe fn load4_words(pointer: *const Self) -> [u32; 4];

    /// Converts the result of [`load4_words`](Self::load4_words).
    fn from_words(words: [u32; 4]) -> [f32; 4];

    /// Stores four elements at once.
    ///
    /// # Safety
    /// `pointer` is valid for writing four elements and aligned to four elements.
    unsafe fn store4(pointer: *mut Self, values: [f32; 4]);

    /// Loads eight elements by as few 16-byte loads as possible.
    ///
    /// # Safety
    /// As [`load`](Self::load), for eight elements, aligned to 16 bytes.
    unsafe fn load8(pointer: *const Self) -> [f32; 8];

    /// Stores eight elements by as few 16-byte stores as possible.
    ///
    /// # Safety
    /// `pointer` is valid for writing eight elements and aligned to 16 bytes.
    unsafe fn store8(pointer: *mut Self, values: [f32; 8]);
}

/// `ld.global.nc.v4.b32`. GP10x caches only this form of global load in L1.
#[inline(always)]
pub(crate) unsafe fn load_4_words(pointer: *const u32) -> [u32; 4] {
    #[cfg(target_arch = "nvptx64")]
    {
        let (a, b, c, d);
        // SAFETY: the caller's pointer is global, 16-byte aligned, valid, and not written while the kernel runs.
        unsafe {
            asm!(
                "ld.global.nc.v4.b32 {{{a}, {b}, {c}, {d}}}, [{pointer}];",
                a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
                pointer = in(reg64) pointer,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        [a, b, c, d]
    }
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: the caller's bytes are readable.
    unsafe {
        pointer.cast::<[u32; 4]>().read_unaligned()
    }
}

#[gpu_only]
#[inline(always)]
unsafe fn load_2_words(pointer: *const u32) -> [u32; 2] {
    let (a, b);
    // SAFETY: the caller's pointer is global, 8-byte aligned, valid, and not written while the kernel runs.
    unsafe {
        asm!(
            "ld.global.nc.v2.b32 {{{a}, {b}}}, [{pointer}];",
            a = out(reg32) a, b = out(reg32) b,
            pointer = in(reg64) pointer,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    [a, b]
}

#[inline(always)]
pub(crate) unsafe fn load_word(pointer: *const u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let word;
        // SAFETY: the caller's pointer is global, 4-byte aligned, valid, and not written while the kernel runs.
        unsafe {
            asm!(
                "ld.global.nc.b32 {word}, [{pointer}];",
                word = out(reg32) word,
                pointer = in(reg64) pointer,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        word
    }
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: the caller's bytes are readable.
    unsafe {
        pointer.read_unaligned()
    }
}

#[inline(always)]
pub(crate) unsafe fn load_half(pointer: *const u16) -> u16 {
    #[cfg(target_arch = "nvptx64")]
    {
        let half;
        // SAFETY: the caller's pointer is global, 2-byte aligned, valid, and not written while the kernel runs.
        unsafe {
            asm!(
                "ld.global.nc.b16 {half}, [{pointer}];",
                half = out(reg16) half,
                pointer = in(reg64) pointer,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        half
    }
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: the caller's bytes are readable.
    unsafe {
        pointer.read_unaligned()
    }
}

/// Loads word `index` as [`load_word`] does, with an address that the compiler does not keep in registers between uses.
#[gpu_only]
#[inline(always)]
pub(crate) unsafe fn load_word_at(pointer: *const u32, index: u32) -> u32 {
    let word;
    // SAFETY: the caller's word is global, valid, and not written while the kernel runs.
    unsafe {
        asm!(
            "{{",
            ".reg .b64 at;",
            "mad.wide.u32 at, {index}, 4, {pointer};",
            "ld.global.nc.b32 {word}, [at];",
            "}}",
            word = out(reg32) word,
            index = in(reg32) index,
            pointer = in(reg64) pointer,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    word
}

#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let value;
        // SAFETY: arithmetic only.
        unsafe {
            asm!("cvt.f32.f16 {}, {};", out(reg32) value, in(reg16) bits, options(pure, nomem, nostack, preserves_flags));
        }
        value
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        crate::float16::Float16::<5>(bits).to_f32()
    }
}

#[gpu_only]
#[inline(always)]
fn f32_to_f16(value: f32) -> u16 {
    let bits;
    // SAFETY: arithmetic only.
    unsafe {
        asm!("cvt.rn.f16.f32 {}, {};", out(reg16) bits, in(reg32) value, options(pure, nomem, nostack, preserves_flags));
    }
    bits
}

#[inline(always)]
pub(crate) fn unpack(word: u32) -> [f32; 2] {
    [f16_to_f32(word as u16), f16_to_f32((word >> 16) as u16)]
}

#[inline(always)]
pub(crate) fn pack(low: f32, high: f32) -> u32 {
    f32_to_f16(low) as u32 | (f32_to_f16(high) as u32) << 16
}

/// Sixteen bytes that are loaded and stored at once.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Words4([u32; 4]);

/// Eight bytes that are loaded and stored at once.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Words2([u32; 2]);

/// Loads four elements by an ordinary load, for memory that the kernel itself has written.
///
/// # Safety
/// `pointer` is valid for reading four elements and aligned to 16 bytes.
#[inline(always)]
pub(crate) unsafe fn read4(pointer: *const f32) -> [f32; 4] {
    // SAFETY: four readable elements, 16-byte aligned: this function's contract.
    unsafe { pointer.cast::<Words4>().read() }.0.map(f32::from_bits)
}

#[inlined]
impl Element for f32 {
    type Packed4 = [f32; 4];

    unsafe fn load4_packed(pointer: *const Self) -> [f32; 4] {
        // SAFETY: this function's contract is `load4`'s.
        unsafe { Self::load4(pointer) }
    }

    unsafe fn load4_words(pointer: *const Self) -> [u32; 4] {
        // SAFETY: four f32 are four words; they are readable and aligned to 16 bytes: this function's contract.
        unsafe { load_4_words(pointer.cast()) }
    }

    fn from_words(words: [u32; 4]) -> [f32; 4] {
        words.map(f32::from_bits)
    }

    fn zero4() -> [f32; 4] {
        [0.0; 4]
    }

    fn unpack4(packed: [f32; 4]) -> [f32; 4] {
        packed
    }

    fn to_f32(self) -> f32 {
        self
    }

    fn from_f32(value: f32) -> Self {
        value
    }

    unsafe fn load(pointer: *const Self) -> f32 {
        // SAFETY: `pointer` is global, valid and not written meanwhile: this function's contract.
        f32::from_bits(unsafe { load_word(pointer.cast()) })
    }

    unsafe fn load4(pointer: *const Self) -> [f32; 4] {
        // SAFETY: four f32 are four words; they are readable and aligned to 16 bytes: this function's contract.
        unsafe { load_4_words(pointer.cast()) }.map(f32::from_bits)
    }

    unsafe fn store4(pointer: *mut Self, values: [f32; 4]) {
        // SAFETY: four f32 are 16 bytes; they are writable and aligned to 16 bytes: this function's contract.
        unsafe { pointer.cast::<Words4>().write(Words4(values.map(f32::to_bits))) }
    }

    unsafe fn load8(pointer: *const Self) -> [f32; 8] {
        // SAFETY: eight readable elements, 16-byte aligned: this function's contract. So both halves are aligned.
        let ([a, b, c, d], [e, f, g, h]) = unsafe { (Self::load4(pointer), Self::load4(pointer.add(4))) };
        [a, b, c, d, e, f, g, h]
    }

    unsafe fn store8(pointer: *mut Self, [a, b, c, d, e, f, g, h]: [f32; 8]) {
        // SAFETY: eight writable elements, 16-byte aligned: this function's contract. So both halves are aligned.
        unsafe {
            Self::store4(pointer, [a, b, c, d]);
            Self::store4(pointer.add(4), [e, f, g, h]);
        }
    }
}

#[inlined]
impl Element for F16 {
    type Packed4 = [u32; 2];

    unsafe fn load4_packed(pointer: *const Self) -> [u32; 2] {
        // SAFETY: four f16 are two words; they are readable and aligned to 8 bytes: this function's contract.
        unsafe { load_2_words(pointer.cast()) }
    }

    unsafe fn load4_words(pointer: *const Self) -> [u32; 4] {
        // SAFETY: four f16 are two words; they are readable and aligned to 8 bytes: this function's contract.
        let [low, high] = unsafe { load_2_words(pointer.cast()) };
        [low, high, 0, 0]
    }

    fn from_words([low, high, ..]: [u32; 4]) -> [f32; 4] {
        Self::unpack4([low, high])
    }

    fn zero4() -> [u32; 2] {
        [0; 2]
    }

    fn unpack4([low, high]: [u32; 2]) -> [f32; 4] {
        let ([a, b], [c, d]) = (unpack(low), unpack(high));
        [a, b, c, d]
    }

    fn to_f32(self) -> f32 {
        f16_to_f32(self.0)
    }

    fn from_f32(value: f32) -> Self {
        Self(f32_to_f16(value))
    }

    unsafe fn load(pointer: *const Self) -> f32 {
        // SAFETY: `pointer` is global, valid and not written meanwhile: this function's contract.
        f16_to_f32(unsafe { load_half(pointer.cast()) })
    }

    unsafe fn load4(pointer: *const Self) -> [f32; 4] {
        // SAFETY: four f16 are two words; they are readable and aligned to 8 bytes: this function's contract.
        let [low, high] = unsafe { load_2_words(pointer.cast()) };
        let ([a, b], [c, d]) = (unpack(low), unpack(high));
        [a, b, c, d]
    }

    unsafe fn store4(pointer: *mut Self, [a, b, c, d]: [f32; 4]) {
        // SAFETY: four f16 are 8 bytes; they are writable and aligned to 8 bytes: this function's contract.
        unsafe { pointer.cast::<Words2>().write(Words2([pack(a, b), pack(c, d)])) }
    }

    unsafe fn load8(pointer: *const Self) -> [f32; 8] {
        // SAFETY: eight f16 are four words; they are readable and aligned to 16 bytes: this function's contract.
        let [a, b, c, d] = unsafe { load_4_words(pointer.cast()) }.map(unpack);
        [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
    }

    unsafe fn store8(pointer: *mut Self, [a, b, c, d, e, f, g, h]: [f32; 8]) {
        // SAFETY: eight f16 are 16 bytes; they are writable and aligned to 16 bytes: this function's contract.
        unsafe { pointer.cast::<Words4>().write(Words4([pack(a, b), pack(c, d), pack(e, f), pack(g, h)])) }
    }
}
