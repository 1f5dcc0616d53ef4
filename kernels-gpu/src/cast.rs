//! y = x in another element type, rounded to nearest, ties to even; values beyond f16's range become ±∞.   x, y: [n]
//!
//! Both kernels move four elements at a time: 16 bytes of f32, 8 bytes of f16.

use crate::device::{Element, F16, flat};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Elements that are loaded and stored at once.
pub const LEN: u32 = 4;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Cast<Y, X> {
    /// [n]
    pub y: *mut Y,
    /// [n], disjoint from y
    pub x: *const X,
    pub n: u32,
    /// An index from which on both are aligned to four elements, or n.
    pub head: u32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[cast_f16_f32.info(), cast_f32_f16.info()];

/// # Safety
/// As [`cast_f16_f32`].
#[inline(always)]
unsafe fn cast<Y: Element, X: Element>(Cast { y, x, n, head }: Cast<Y, X>) {
    flat::for_each(
        n,
        head,
        LEN,
        // SAFETY: `for_each` gives indices of whole vectors below n, aligned because `head` is; y does not overlap x.
        |i| unsafe { X::load4(x.add(i as usize)) },
        // SAFETY: the same four elements below n, aligned; y overlaps nothing.
        |i, values| unsafe { Y::store4(y.add(i as usize), values) },
        // SAFETY: i < n.
        |i| unsafe { *y.add(i as usize) = Y::from_f32(X::load(x.add(i as usize))) },
    );
}

/// f32 → f16.   grid = [[`flat::blocks`](n, head, LEN)]
///
/// # Safety
/// [`Cast`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = flat::BLOCK, min_blocks = 16)]
pub unsafe fn cast_f16_f32(p: Cast<F16, f32>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { cast(p) }
}

/// f16 → f32.   grid = [[`flat::blocks`](n, head, LEN)]
///
/// # Safety
/// As [`cast_f16_f32`].
#[kernel(block = flat::BLOCK, min_blocks = 16)]
pub unsafe fn cast_f32_f16(p: Cast<f32, F16>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { cast(p) }
}
