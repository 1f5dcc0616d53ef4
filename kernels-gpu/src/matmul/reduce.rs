//! c = alpha·Σ parts + bias + beta·d: the end of a product that was split along k.   parts: [splits, batch, m, n].
//!
//! Without splits there is nothing to add and c becomes bias + beta·d: the product of matrices with k = 0.

use super::{Product, write};
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
unsafe fn reduce<C: Element>(c: *mut C, partial: *const f32, p: &Product<C>, stride_c: u32, splits: u32) {
    let index = thread::index_1d();
    if index >= p.m * p.n {
        return;
    }
    let batch = thread::block_idx_z();
    let cols = p.n.max(1); // divisions have a branch to a panic otherwise
    let between = (thread::grid_dim_z() * p.m * p.n) as usize;
    // SAFETY: index < m·n, and the parts and c hold that many elements for every batch entry.
    unsafe {
        let mut from = partial.wrapping_add((batch * p.m * p.n + index) as usize);
        let mut sum = 0.0;
        let mut split = 0;
        while split < splits {
            sum += f32::load(from);
            from = from.wrapping_add(between);
            split += 1;
        }
        let c = c.wrapping_add((batch * stride_c) as usize);
        write::one(c, p, index / cols, index % cols, sum);
    }
}

macro_rules! kernels {
    ($($name:ident: $C:ty;)*) => {$(
        /// # Safety
        /// `c`, `addend`: [gridDim.z, m, n] with ldc and stride_c, `bias`: [n] or null, `partial`: [splits, gridDim.z, m,
        /// n], fewer than 2³¹ elements each, valid on the launching stream, disjoint but that `addend` may be `c`;
        /// launched as [`SPECS`] says.
        #[kernel(launch_bounds(THREADS))]
        pub unsafe fn $name(
            c: *mut $C, partial: *const f32, m: u32, n: u32, ldc: u32, stride_c: u32, splits: u32,
            alpha: f32, beta: f32, bias: *const $C, addend: *const $C,
        ) {
            let null = core::ptr::null_mut();
            let p = Product::new(null, [m, n, ldc, stride_c], [alpha, beta], bias, addend);
            // SAFETY: this kernel's contract is the body's.
            unsafe { reduce(c, partial, &p, stride_c, splits) }
        }
    )*};
}

kernels! {
    matmul_reduce_f32: f32;
    matmul_reduce_f16: F16;
}
