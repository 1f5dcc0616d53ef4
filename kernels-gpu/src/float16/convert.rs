//! Conversion between f32 and the 16-bit formats.   codes: u16 [count], values: f32 [count].
//!
//! Bound by memory: a thread converts eight values by 16-byte accesses.
//!
//! | kernel                        | converts                                          |
//! |-------------------------------|---------------------------------------------------|
//! | float16_encode_e‹E›           | f32 to E exponent bits, too large becomes infinity |
//! | float16_encode_saturating_e‹E› | the same, too large becomes the largest number     |
//! | float16_decode_e‹E›           | E exponent bits to f32                            |

use super::Float16;
use crate::device::Element;
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Threads in a block.
pub const THREADS: u32 = 256;
/// Values that a thread converts.
pub const VALUES_PER_THREAD: u32 = 8;

/// By exponent bits from 2 on. grid = [ceil(count / (THREADS · VALUES_PER_THREAD))]
pub const ENCODE: [KernelSpec; 7] = [
    KernelSpec::new("float16_encode_e2", THREADS),
    KernelSpec::new("float16_encode_e3", THREADS),
    KernelSpec::new("float16_encode_e4", THREADS),
    KernelSpec::new("float16_encode_e5", THREADS),
    KernelSpec::new("float16_encode_e6", THREADS),
    KernelSpec::new("float16_encode_e7", THREADS),
    KernelSpec::new("float16_encode_e8", THREADS),
];
/// As [`ENCODE`].
pub const ENCODE_SATURATING: [KernelSpec; 7] = [
    KernelSpec::new("float16_encode_saturating_e2", THREADS),
    KernelSpec::new("float16_encode_saturating_e3", THREADS),
    KernelSpec::new("float16_encode_saturating_e4", THREADS),
    KernelSpec::new("float16_encode_saturating_e5", THREADS),
    KernelSpec::new("float16_encode_saturating_e6", THREADS),
    KernelSpec::new("float16_encode_saturating_e7", THREADS),
    KernelSpec::new("float16_encode_saturating_e8", THREADS),
];
/// As [`ENCODE`].
pub const DECODE: [KernelSpec; 7] = [
    KernelSpec::new("float16_decode_e2", THREADS),
    KernelSpec::new("float16_decode_e3", THREADS),
    KernelSpec::new("float16_decode_e4", THREADS),
    KernelSpec::new("float16_decode_e5", THREADS),
    KernelSpec::new("float16_decode_e6", THREADS),
    KernelSpec::new("float16_decode_e7", THREADS),
    KernelSpec::new("float16_decode_e8", THREADS),
];

/// Sixteen bytes that are loaded and stored at once.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Codes([u16; 8]);

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn encode(codes: *mut u16, values: *const f32, count: u32, convert: impl Fn(f32) -> u16) {
    let first = thread::index_1d() * VALUES_PER_THREAD;
    if first >= count {
        return;
    }
    // SAFETY: only values below `count` are touched; eight at once lie on 16-byte boundaries, as both arrays do.
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
unsafe fn decode(values: *mut f32, codes: *const u16, count: u32, convert: impl Fn(u16) -> f32) {
    let first = thread::index_1d() * VALUES_PER_THREAD;
    if first >= count {
        return;
    }
    // SAFETY: as in `encode`.
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
    ($($bits:literal: $encode:ident, $saturating:ident, $decode:ident;)*) => {$(
        /// # Safety
        /// `codes`, `values`: [count] with count ≤ 2³¹, valid on the launching stream, 16-byte aligned, disjoint;
        /// launched as [`ENCODE`] says.
        #[kernel(launch_bounds(THREADS))]
        pub unsafe fn $encode(codes: *mut u16, values: *const f32, count: u32) {
            // SAFETY: this kernel's contract is the body's.
            unsafe { encode(codes, values, count, |value| Float16::<$bits>::from_f32(value).0) }
        }

        /// # Safety
        /// As the encoding kernel.
        #[kernel(launch_bounds(THREADS))]
        pub unsafe fn $saturating(codes: *mut u16, values: *const f32, count: u32) {
            // SAFETY: this kernel's contract is the body's.
            unsafe { encode(codes, values, count, |value| Float16::<$bits>::from_f32_saturating(value).0) }
        }

        /// # Safety
        /// As the encoding kernel.
        #[kernel(launch_bounds(THREADS))]
        pub unsafe fn $decode(values: *mut f32, codes: *const u16, count: u32) {
            // SAFETY: this kernel's contract is the body's.
            unsafe { decode(values, codes, count, |code| Float16::<$bits>(code).to_f32()) }
        }
    )*};
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
