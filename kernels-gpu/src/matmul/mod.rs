//! c = alpha·a·b + beta·c.   c: [batch, m, n] row-major, a: [batch, m, k], b: [batch, k, n].
//!
//! | file     | idea                                        | when                                    |
//! |----------|---------------------------------------------|-----------------------------------------|
//! | regtile  | 8 × 8 register tile per thread              | m > 8                                   |
//! | vector   | b streamed once past a few rows of a        | m ≤ 8                                   |
//! | reduce   | adds the parts of a product split along k   | too few tiles for the multiprocessors   |
//! | textbook | 16 × 16 shared tile, one element per thread | the baseline                            |
//!
//! Every kernel writes c = alpha·a·b + bias + beta·d, where d is c itself or lies as c does: a residual costs no pass of
//! its own. With beta = 0, d is not read. Sums are f32; f16 is a storage format. A product split along k leaves its parts in
//! scratch memory, which are then added in a fixed order, so results are repeatable bit for bit.

mod load;
pub mod reduce;
pub mod regtile;
pub mod textbook;
pub mod vector;
mod write;

use crate::spec::KernelSpec;
use cuda_std::thread;

/// The kernels without variants.
pub const KERNELS: &[KernelSpec] = &[textbook::SPEC, reduce::SPECS[0], reduce::SPECS[1]];

/// What all kernels need to write their part of a product.
///
/// Their contract: `a`, `b`, `c` and `addend` (and `partial` and `bias`, unless null) hold the elements that m, n, k, the
/// leading dimensions (`lda` between the rows of a, or between its columns where it is transposed) and the batch
/// strides reach, fewer than 2³¹ each, and are valid on the launching stream; `c` and `partial` overlap nothing but that
/// `addend` may be `c`. m, n and k are not zero, `k_chunk · (splits − 1) < k ≤ k_chunk · splits`, and `k_chunk` is a
/// multiple of the kernel's step. `partial`: [splits, batch, m, n], null if splits = 1.
struct Product<C> {
    /// This block's [m, n] of the parts, or null to write to c.
    partial: *mut f32,
    m: u32,
    n: u32,
    /// Between the rows of c.
    ldc: u32,
    alpha: f32,
    beta: f32,
    /// [n], added to every row; or null.
    bias: *const C,
    /// What beta is the factor of: c, or a matrix that lies as c does.
    addend: *const C,
}

impl<C> Product<C> {
    /// For a grid whose y is the split and whose z is the batch entry.
    #[inline(always)]
    fn new(
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
        let addend = addend.wrapping_add((thread::block_idx_z() * stride_c) as usize);
        Self { partial: own, m, n, ldc, alpha, beta, bias, addend }
    }
}

/// The first of this block's k, and how many there are.
#[inline(always)]
fn k_range(k: u32, k_chunk: u32) -> (u32, u32) {
    let first = thread::block_idx_y() * k_chunk;
    (first, k_chunk.min(k - first))
}
