//! c = alpha·Σ parts + bias + beta·d: the reduction of split-K, with the epilogue.   parts: [splits, batch, m, n].
//!
//! With no splits c becomes bias + beta·d, which is the product of matrices with k = 0.

use super::product::{Product, batch_offset};
use super::write;
use crate::device::{Element, F16};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Threads in a block.
pub const THREADS: u32 = 256;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Reduce<C> {
    /// [gridDim.z, m, n] by ldc and stride_c, fewer than 2³¹ elements, disjoint from all others
    pub c: *mut C,
    /// [splits, gridDim.z, m, n], fewer than 2³¹ elements
    pub partial: *const f32,
    pub m: u32,
    pub n: u32,
    /// Distance between the rows of c.
    pub ldc: u32,
    /// Distance between the batch entries of c.
    pub stride_c: u32,
    /// May be 0; `partial` is not read then.
    pub splits: u32,
    pub alpha: f32,
    pub beta: f32,
    /// [n], or null
    pub bias: *const C,
    /// The matrix that beta scales: c itself, or disjoint from it and with its layout.
    pub addend: *const C,
}

/// # Safety
/// [`Reduce`] constrains the pointers, which are valid on the launching stream; a thread for each of the m · n elements of
/// an entry, an entry for each block along z.
#[inline(always)]
unsafe fn reduce<C: Element>(p: Reduce<C>) {
    let index = thread::index_1d();
    if index >= p.m * p.n {
        return;
    }
    let batch = thread::block_idx_z();
    let cols = p.n.max(1); // otherwise divisions have a branch to a panic
    let between = (thread::grid_dim_z() * p.m * p.n) as usize;
    let (whole, dims) = (core::ptr::null_mut(), [p.m, p.n, p.ldc, p.stride_c]);
    let product = Product::new(whole, dims, [p.alpha, p.beta], p.bias, p.addend);
    // SAFETY: index < m·n, and the parts and c hold that many elements for every batch entry.
    unsafe {
        let mut from = p.partial.wrapping_add((batch * p.m * p.n + index) as usize);
        let mut sum = 0.0;
        let mut split = 0;
        while split < p.splits {
            sum += f32::load(from);
            from = from.wrapping_add(between);
            split += 1;
        }
        let c = p.c.wrapping_add(batch_offset(p.stride_c));
        write::one(c, &product, index / cols, index % cols, sum);
    }
}

macro_rules! kernels {
    ($($name:ident: $C:ty;)*) => {
        $(
            /// grid = [ceil(m · n / THREADS), 1, batch]
            ///
            /// # Safety
            /// [`Reduce`] constrains the pointers, which are valid on the launching stream.
            #[kernel(block = THREADS, min_blocks = 6, module = "matmul_reduce")]
            pub unsafe fn $name(p: Reduce<$C>) {
                // SAFETY: the parameters and the grid fulfil the body's contract.
                unsafe { reduce(p) }
            }
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($name.info()),*];
    };
}

kernels! {
    matmul_reduce_f32: f32;
    matmul_reduce_f16: F16;
}
