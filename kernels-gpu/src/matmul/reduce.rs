//! c = alpha·Σ parts + beta·c: the end of a product that was split along k.   parts: [splits, batch, m, n].
//!
//! Without splits there is nothing to add and c becomes beta·c: the product of matrices with k = 0.

use crate::device::math::fma;
use crate::device::{Element, F16};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Threads in a block.
pub const THREADS: u32 = 256;

/// [f32, f16]. grid = [ceil(m · n / THREADS), 1, batch]
pub const SPECS: [KernelSpec; 2] =
    [KernelSpec::new("matmul_reduce_f32", THREADS), KernelSpec::new("matmul_reduce_f16", THREADS)];

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn reduce<C: Element>(
    c: *mut C,
    partial: *const f32,
    m: u32,
    n: u32,
    ldc: u32,
    stride_c: u32,
    splits: u32,
    alpha: f32,
    beta: f32,
) {
    let index = thread::index_1d();
    if index >= m * n {
        return;
    }
    let batch = thread::block_idx_z();
    let cols = n.max(1); // divisions have a branch to a panic otherwise
    let between = (thread::grid_dim_z() * m * n) as usize;
    // SAFETY: index < m·n, and the parts and c hold that many elements for every batch entry.
    unsafe {
        let mut from = partial.wrapping_add((batch * m * n + index) as usize);
        let mut sum = 0.0;
        let mut split = 0;
        while split < splits {
            sum += f32::load(from);
            from = from.wrapping_add(between);
            split += 1;
        }
        let to = c.add((batch * stride_c + index / cols * ldc + index % cols) as usize);
        let mut value = alpha * sum;
        if beta != 0.0 {
            value = fma(beta, (*to).to_f32(), value);
        }
        *to = C::from_f32(value);
    }
}

/// # Safety
/// `c`: [gridDim.z, m, n] with ldc and stride_c, `partial`: [splits, gridDim.z, m, n], fewer than 2³¹ elements each,
/// valid on the launching stream, disjoint; launched as [`SPECS`] says.
#[kernel(launch_bounds(THREADS))]
pub unsafe fn matmul_reduce_f32(
    c: *mut f32,
    partial: *const f32,
    m: u32,
    n: u32,
    ldc: u32,
    stride_c: u32,
    splits: u32,
    alpha: f32,
    beta: f32,
) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { reduce(c, partial, m, n, ldc, stride_c, splits, alpha, beta) }
}

/// # Safety
/// As [`matmul_reduce_f32`].
#[kernel(launch_bounds(THREADS))]
pub unsafe fn matmul_reduce_f16(
    c: *mut F16,
    partial: *const f32,
    m: u32,
    n: u32,
    ldc: u32,
    stride_c: u32,
    splits: u32,
    alpha: f32,
    beta: f32,
) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { reduce(c, partial, m, n, ldc, stride_c, splits, alpha, beta) }
}
