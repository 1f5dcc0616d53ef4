//! Four 8-bit products at once, and loads of packed integers.

use super::Element;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::gpu_only;

/// c + a₀·b₀ + a₁·b₁ + a₂·b₂ + a₃·b₃ for the signed bytes of `a` and `b` (`dp4a.s32.s32`), wrapping.
#[gpu_only]
#[inline(always)]
pub fn dp4a(a: u32, b: u32, c: i32) -> i32 {
    let d;
    // SAFETY: arithmetic only.
    unsafe {
        asm!(
            "dp4a.s32.s32 {d}, {a}, {b}, {c};",
            d = out(reg32) d, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    d
}

/// Loads sixteen bytes at once through the read-only path.
///
/// # Safety
/// As [`Element::load4`] for f32.
#[inline(always)]
pub unsafe fn load_words(pointer: *const u8) -> [u32; 4] {
    // SAFETY: 16 readable bytes, 16-byte aligned: this function's contract. The bits pass unchanged: the values are
    // only moved.
    unsafe { f32::load4(pointer.cast()) }.map(f32::to_bits)
}

/// Loads eight bytes at once through the read-only path.
///
/// # Safety
/// As [`Element::load`], for eight bytes, aligned to 8.
#[inline(always)]
pub unsafe fn load_pair(pointer: *const u8) -> [u32; 2] {
    #[cfg(target_arch = "nvptx64")]
    {
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
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: the caller's bytes are readable.
    unsafe {
        pointer.cast::<[u32; 2]>().read_unaligned()
    }
}

/// Loads four bytes at once through the read-only path.
///
/// # Safety
/// As [`Element::load`] for f32.
#[inline(always)]
pub unsafe fn load_word(pointer: *const u8) -> u32 {
    // SAFETY: four readable bytes, 4-byte aligned: this function's contract. The bits pass unchanged.
    unsafe { f32::load(pointer.cast()) }.to_bits()
}

/// Loads two bytes at once through the read-only path into a word: the compiler would pack loaded 16-bit values together,
/// and wait for them to do so.
///
/// # Safety
/// As [`Element::load`], for two bytes, aligned to 2.
#[inline(always)]
pub unsafe fn load_half_word(pointer: *const u8) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let word;
        // SAFETY: the caller's pointer is global, 2-byte aligned, valid, and not written while the kernel runs.
        unsafe {
            asm!(
                "ld.global.nc.u16 {word}, [{pointer}];",
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
        pointer.cast::<u16>().read_unaligned().into()
    }
}

/// Four of the eight bytes of `a` (0 to 3) and `b` (4 to 7): nibble i of `selector` is the number of byte i of the result
/// (`prmt`). The upper half of `selector` is ignored. Numbers are below 8: bit 3 would replicate a sign.
#[gpu_only]
#[inline(always)]
pub fn select_bytes(a: u32, b: u32, selector: u32) -> u32 {
    let d;
    // SAFETY: arithmetic only.
    unsafe {
        asm!(
            "prmt.b32 {d}, {a}, {b}, {selector};",
            d = out(reg32) d, a = in(reg32) a, b = in(reg32) b, selector = in(reg32) selector,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    d
}

/// The nibbles of a word as bytes: the low halves, the high halves.
#[inline(always)]
pub fn nibbles(word: u32) -> (u32, u32) {
    (word & 0x0f0f_0f0f, word >> 4 & 0x0f0f_0f0f)
}
