//! c = alpha·Σ parts + bias + beta·d: the reduction of split-K, with the epilogue.   parts: [splits, batch, m, n].
//!
//! With no splits c becomes bias + beta·d, which is the product of matrices with k = 0.

use super::product::{Product, batch_offset};
use super::write;
use crate::device::math::fma;
use crate::device::unroll::unroll;
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
    /// Elements of a thread: 1; or [`VECTOR`], of which then n, ldc and stride_c are multiples and by which c and addend are aligned.
    pub elements: u32,
}

/// The most elements of a thread.
pub const VECTOR: u32 = 4;

/// Neighbours in a row of c or of the addend, which may be c: they are not loaded through the read-only path.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Neighbours<C>([C; VECTOR as usize]);

/// # Safety
/// [`Reduce`] constrains the pointers, which are valid on the launching stream; a thread for each `elements` of the m · n elements of
/// an entry, an entry for each block along z.
#[inline(always)]
unsafe fn reduce<C: Element>(p: Reduce<C>) {
    let index = thread::index_1d() * p.elements;
    if index >= p.m * p.n {
        return;
    }
    let batch = thread::block_idx_z();
    let cols = p.n.max(1); // otherwise divisions have a branch to a panic
    let (row, column) = (index / cols, index % cols);
    let between = (thread::grid_dim_z() * p.m * p.n) as usize;
    let (whole, dims) = (core::ptr::null_mut(), [p.m, p.n, p.ldc, p.stride_c]);
    let product = Product::new(whole, dims, [p.alpha, p.beta], p.bias, p.addend);
    let mut from = p.partial.wrapping_add((batch * p.m * p.n + index) as usize);
    let c = p.c.wrapping_add(batch_offset(p.stride_c));
    let mut split = 0;
    // SAFETY: the thread's elements are below m·n, and the parts and c hold as many for every batch entry. With several, they are in one
    // row, and c, the addend and the parts are aligned as they are accessed: the parameters' contract.
    unsafe {
        if p.elements == 1 {
            let mut sum = 0.0;
            while split < p.splits {
                sum += f32::load(from);
                from = from.wrapping_add(between);
                split += 1;
            }
            return write::one(c, &product, row, column, sum);
        }
        let mut sums = [0.0f32; 4];
        while split < p.splits {
            // two parts in flight
            let first = f32::load4(from);
            let second =
                if split + 1 < p.splits { f32::load4(from.wrapping_add(between)) } else { [-0.0; 4] };
            unroll!(J < 4 => sums[J] = sums[J] + first[J] + second[J]);
            from = from.wrapping_add(2 * between);
            split += 2;
        }
        let at = (row * p.ldc + column) as usize;
        unroll!(J < 4 => sums[J] = product.scaled(column + J as u32, sums[J]));
        if p.beta != 0.0 {
            let Neighbours(d) = product.addend.add(at).cast::<Neighbours<C>>().read();
            unroll!(J < 4 => sums[J] = fma(p.beta, d[J].to_f32(), sums[J]));
        }
        C::store4(c.add(at), sums);
    }
}

macro_rules! kernels {
    ($($name:ident: $C:ty;)*) => {
        $(
            /// grid = [ceil(m · n / (THREADS · elements)), 1, batch]
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
