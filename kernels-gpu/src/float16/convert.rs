//! Conversion between f32 and the 16-bit formats.   codes: u16 [count], values: f32 [count].
//!
//! Bound by memory bandwidth: a thread converts eight values by 16-byte accesses.
//!
//! | kernel                        | converts                                          |
//! |-------------------------------|---------------------------------------------------|
//! | float16_encode_e‹E›           | f32 to E exponent bits, too large becomes infinity |
//! | float16_encode_saturating_e‹E› | the same, too large becomes the largest number     |
//! | float16_decode_e‹E›           | E exponent bits to f32                            |

use super::Float16;
use crate::device::Element;
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// Threads in a block.
pub const THREADS: u32 = 256;
/// Values that a thread converts.
pub const VALUES_PER_THREAD: u32 = 8;

/// The parameters of the encoding kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Encode {
    /// [count], 16-byte aligned
    pub codes: *mut u16,
    /// [count], 16-byte aligned, disjoint from the codes
    pub values: *const f32,
    pub count: u32,
}

/// The parameters of the decoding kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Decode {
    /// [count], 16-byte aligned
    pub values: *mut f32,
    /// [count], 16-byte aligned, disjoint from the values
    pub codes: *const u16,
    pub count: u32,
}

/// Sixteen bytes that are loaded and stored at once.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Codes([u16; 8]);

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn encode(Encode { codes, values, count }: Encode, convert: impl Fn(f32) -> u16) {
    let first = thread::index_1d() * VALUES_PER_THREAD;
    if first >= count {
        return;
    }
    // SAFETY: only values below `count` are accessed; eight at once are aligned to 16 bytes, as both arrays are.
    unsafe {
        let (codes, values) = (codes.add(first as usize), values.add(first as usize));
        if first + VALUES_PER_THREAD <= count {
            codes.cast::<Codes>().write(Codes(f32::load8(values).map(convert)));
        } else {
            let mut i = 0;
            while first + i < count {
                *codes.add(i as usize) = convert(f32::load(values.add(i as usize)));
                i += 1;
            }
        }
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn decode(Decode { values, codes, count }: Decode, convert: impl Fn(u16) -> f32) {
    let first = thread::index_1d() * VALUES_PER_THREAD;
    if first >= count {
        return;
    }
    // SAFETY: only codes below `count` are accessed; eight at once are aligned to 16 bytes, as both arrays are.
    unsafe {
        let (values, codes) = (values.add(first as usize), codes.add(first as usize));
        if first + VALUES_PER_THREAD <= count {
            let [a, b, c, d] = f32::load4(codes.cast()).map(|pair| {
                let pair = pair.to_bits();
                [convert(pair as u16), convert((pair >> 16) as u16)]
            });
            f32::store8(values, [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]);
        } else {
            let mut i = 0;
            while first + i < count {
                *values.add(i as usize) = convert(*codes.add(i as usize));
                i += 1;
            }
        }
    }
}

macro_rules! conversions {
    ($($bits:literal: $encode:ident, $saturating:ident, $decode:ident;)*) => {
        $(
            /// grid = [ceil(count / ([`THREADS`] · [`VALUES_PER_THREAD`]))]
            ///
            /// # Safety
            /// [`Encode`] constrains the pointers, which are valid on the launching stream; count ≤ 2³¹.
            #[kernel(block = THREADS, min_blocks = 8, module = concat!("float16_e", $bits))]
            pub unsafe fn $encode(p: Encode) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { encode(p, |value| Float16::<$bits>::from_f32(value).0) }
            }

            /// As the encoding kernel, but values beyond the largest number become the largest.
            ///
            /// # Safety
            /// As the encoding kernel.
            #[kernel(block = THREADS, min_blocks = 8, module = concat!("float16_e", $bits))]
            pub unsafe fn $saturating(p: Encode) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { encode(p, |value| Float16::<$bits>::from_f32_saturating(value).0) }
            }

            /// The same grid.
            ///
            /// # Safety
            /// [`Decode`] constrains the pointers, which are valid on the launching stream; count ≤ 2³¹.
            #[kernel(block = THREADS, min_blocks = 8, module = concat!("float16_e", $bits))]
            pub unsafe fn $decode(p: Decode) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { decode(p, |code| Float16::<$bits>(code).to_f32()) }
            }
        )*

        /// By exponent bits, from 2 on; values beyond the largest number become ∞.
        pub const ENCODE: [KernelSpec<Encode>; 7] = [$($encode),*];
        /// By exponent bits, from 2 on; values beyond the largest number become the largest.
        pub const ENCODE_SATURATING: [KernelSpec<Encode>; 7] = [$($saturating),*];
        /// By exponent bits, from 2 on.
        pub const DECODE: [KernelSpec<Decode>; 7] = [$($decode),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($encode.info(), $saturating.info(), $decode.info(),)*];
    };
}

conversions! {
    2: float16_encode_e2, float16_encode_saturating_e2, float16_decode_e2;
    3: float16_encode_e3, float16_encode_saturating_e3, float16_decode_e3;
    4: float16_encode_e4, float16_encode_saturating_e4, float16_decode_e4;
    5: float16_encode_e5, float16_encode_saturating_e5, float16_decode_e5;
    6: float16_encode_e6, float16_encode_saturating_e6, float16_decode_e6;
    7: float16_encode_e7, float16_encode_saturating_e7, float16_decode_e7;
    8: float16_encode_e8, float16_encode_saturating_e8, float16_decode_e8;
}
