//! Two shuffles behind divergent branches: the form in which LLVM copies what is not marked convergent.

#![no_std]
#![feature(abi_ptx)]

use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};

/// y[i] = the sum of x over the lanes i, i ^ 16, i ^ 8 and i ^ 24, with doubled values above 1; x, y: [n], n ≤ 32.
///
/// # Safety
/// `x` and `y` valid for `n` elements; launched with one warp.
#[kernel]
pub unsafe fn divergent_sum(y: *mut f32, x: *const f32, n: u32) {
    let i = thread::thread_idx_x();
    let mut value = 0.0f32;
    // SAFETY: i < n where memory is touched; the whole warp is at both shuffles.
    unsafe {
        if i < n {
            value = *x.add(i as usize);
            if value > 1.0 {
                value *= 2.0;
            }
        }
        let (far, _) = warp_shuffle_xor(FULL_MASK, value, 16, 32);
        let sum = value + far;
        let (near, _) = warp_shuffle_xor(FULL_MASK, sum, 8, 32);
        if i < n {
            *y.add(i as usize) = sum + near;
        }
    }
}
