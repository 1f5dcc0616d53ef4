//! y = x in another element type, rounded to nearest, ties to even; what f16 can't hold becomes ±∞.   x, y: [n]
//!
//! Both kernels move four elements at a time: 16 bytes of f32, 8 bytes of f16.

use crate::device::{Element, F16, flat};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Elements that are loaded and stored at once.
pub const LEN: u32 = 4;

/// grid = [`flat::blocks`](n, head, LEN)
pub const F16_F32: KernelSpec = KernelSpec::new("cast_f16_f32", flat::BLOCK);
/// As [`F16_F32`].
pub const F32_F16: KernelSpec = KernelSpec::new("cast_f32_f16", flat::BLOCK);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &[F16_F32, F32_F16];

/// # Safety
/// As [`cast_f16_f32`].
#[inline(always)]
unsafe fn cast<Y: Element, X: Element>(y: *mut Y, x: *const X, n: u32, head: u32) {
    flat::for_each(
        n,
        head,
        LEN,
        // SAFETY: `for_each` gives indices of whole vectors below n, aligned as `head` promises; y does not overlap x.
        |i| unsafe { X::load4(x.add(i as usize)) },
        // SAFETY: as above.
        |i, values| unsafe { Y::store4(y.add(i as usize), values) },
        // SAFETY: i < n.
        |i| unsafe { *y.add(i as usize) = Y::from_f32(X::load(x.add(i as usize))) },
    );
}

/// f32 → f16
///
/// # Safety
/// `x`, `y`: [n], valid on the launching stream, disjoint; unless `head = n`, element `head` of both lies at a
/// multiple of four elements. Launched as [`F16_F32`] says.
#[kernel(launch_bounds(flat::BLOCK))]
pub unsafe fn cast_f16_f32(y: *mut F16, x: *const f32, n: u32, head: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { cast(y, x, n, head) }
}

/// f16 → f32
///
/// # Safety
/// As [`cast_f16_f32`].
#[kernel(launch_bounds(flat::BLOCK))]
pub unsafe fn cast_f32_f16(y: *mut f32, x: *const F16, n: u32, head: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { cast(y, x, n, head) }
}
