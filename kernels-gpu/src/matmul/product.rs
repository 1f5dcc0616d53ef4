//! The outputs of a product.

use cuda_std::thread;

/// The outputs and the epilogue's operands of every kernel; the fields are as in [`Tile`](super::regtile::Tile).
pub(super) struct Product<C> {
    /// This block's partial sums [m, n], or null to write to c.
    pub partial: *mut f32,
    pub m: u32,
    pub n: u32,
    pub ldc: u32,
    pub alpha: f32,
    pub beta: f32,
    pub bias: *const C,
    /// The operands of this block's batch entry.
    pub addend: *const C,
}

impl<C> Product<C> {
    /// For a grid in which y is the split and z the batch entry.
    #[inline(always)]
    pub fn new(
        partial: *mut f32,
        [m, n, ldc, stride_c]: [u32; 4],
        [alpha, beta]: [f32; 2],
        bias: *const C,
        addend: *const C,
    ) -> Self {
        let mut own = partial;
        if !partial.is_null() {
            let entry = thread::block_idx_y() * thread::grid_dim_z() + thread::block_idx_z();
            own = partial.wrapping_add((entry * m * n) as usize);
        }
        Self {
            partial: own,
            m,
            n,
            ldc,
            alpha,
            beta,
            bias,
            addend: addend.wrapping_add(batch_offset(stride_c)),
        }
    }
}

/// These [`Product`] fields of a kernel's parameters.
macro_rules! product {
    ($p:ident) => {
        crate::matmul::product::Product::new(
            $p.partial,
            [$p.m, $p.n, $p.ldc, $p.stride_c],
            [$p.alpha, $p.beta],
            $p.bias,
            $p.addend,
        )
    };
}
pub(super) use product;

/// The first elements of this block's batch entry.
#[inline(always)]
pub(super) fn batch_offset(stride: u32) -> usize {
    (thread::block_idx_z() * stride) as usize
}

/// This block's first k, and its number of k.
#[inline(always)]
pub(super) fn k_range(k: u32, k_chunk: u32) -> (u32, u32) {
    let first = thread::block_idx_y() * k_chunk;
    (first, k_chunk.min(k - first))
}
