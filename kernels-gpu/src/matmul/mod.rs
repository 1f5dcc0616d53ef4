//! c = alpha·a·b + beta·c.   c: [batch, m, n] row-major, a: [batch, m, k], b: [batch, k, n].
//!
//! | file     | idea                                        | when                                    |
//! |----------|---------------------------------------------|-----------------------------------------|
//! | regtile  | 8 × 8 register tile per thread              | m > 8                                   |
//! | vector   | b streamed once past a few rows of a        | m ≤ 8, for a row-major b m ≤ 4          |
//! | reduce   | adds the partial sums of split-K            | too few tiles for the multiprocessors   |
//! | dequant_linear | tiles of quantised matrices, in f32   | their gradients, and QLoRA              |
//! | experts  | grouped products, of regtile and vector     | mixture of experts                      |
//!
//! The epilogue of every kernel is c = alpha·a·b + bias + beta·d, where d is c itself or has c's layout, so a residual needs
//! no launch of its own. With beta = 0, d is not read. Sums are f32; f16 is a storage format. Split-K writes its partial
//! sums to scratch memory, and `reduce` adds them in a fixed order, so results are reproducible bit for bit.

pub mod dequant_linear;
pub mod experts;
mod load;
mod product;
pub mod reduce;
pub mod regtile;
pub mod vector;
mod write;

use crate::device::F16;
use crate::float16::Float16;
use cuda_std::KernelSpec;
use reduce::Reduce;
use regtile::wide128;
use regtile::{AnyStrides, ByLayouts, Tile, strided, tile32, tile64, tile64_coded, tile64x128, tile128};
use vector::{Nn, Nt};

/// The kernels of one combination of types: a's `A`, b's `B` and c's `C`.
#[derive(Clone, Copy)]
pub struct Kernels<A, B, C> {
    /// By [`Size`](regtile::Size).
    pub tiles: [ByLayouts<Tile<A, B, C>>; 5],
    /// For any strides.
    pub strided: Option<KernelSpec<AnyStrides<A, B, C>>>,
    /// For up to 1, 4 and 8 rows of a, and b the transpose of a row-major [n, k].
    pub vector_nt: [Option<KernelSpec<Nt<A, B, C>>>; 3],
    /// For up to 1 and 4 rows of a, and a row-major b.
    pub vector_nn: [Option<KernelSpec<Nn<A, B, C>>>; 2],
    /// The reduction of split-K.
    pub reduce: KernelSpec<Reduce<C>>,
}

/// All f32.
pub const OF_F32: Kernels<f32, f32, f32> = Kernels {
    tiles: [tile128::OF_F32, wide128::OF_F32, tile64x128::OF_F32, tile64::OF_F32, tile32::OF_F32],
    strided: Some(strided::matmul_strided_f32),
    vector_nt: [
        Some(vector::matmul_vector1_nt_f32),
        Some(vector::matmul_vector4_nt_f32),
        Some(vector::matmul_vector8_nt_f32),
    ],
    vector_nn: [Some(vector::matmul_vector1_nn_f32), Some(vector::matmul_vector4_nn_f32)],
    reduce: reduce::matmul_reduce_f32,
};
/// All f16.
pub const OF_F16: Kernels<F16, F16, F16> = Kernels {
    tiles: [tile128::OF_F16, wide128::OF_F16, tile64x128::OF_F16, tile64::OF_F16, tile32::OF_F16],
    strided: Some(strided::matmul_strided_f16),
    vector_nt: [
        Some(vector::matmul_vector1_nt_f16),
        Some(vector::matmul_vector4_nt_f16),
        Some(vector::matmul_vector8_nt_f16),
    ],
    vector_nn: [Some(vector::matmul_vector1_nn_f16), Some(vector::matmul_vector4_nn_f16)],
    reduce: reduce::matmul_reduce_f16,
};
/// a and c f32, b f16.
pub const OF_MIXED: Kernels<f32, F16, f32> = Kernels {
    tiles: [tile128::OF_MIXED, wide128::OF_MIXED, tile64x128::OF_MIXED, tile64::OF_MIXED, tile32::OF_MIXED],
    strided: Some(strided::matmul_strided_mixed),
    vector_nt: [
        Some(vector::matmul_vector1_nt_mixed),
        Some(vector::matmul_vector4_nt_mixed),
        Some(vector::matmul_vector8_nt_mixed),
    ],
    vector_nn: [Some(vector::matmul_vector1_nn_mixed), Some(vector::matmul_vector4_nn_mixed)],
    reduce: reduce::matmul_reduce_f32,
};
/// a and c f32, b in a 16-bit format of 4 exponent bits.
pub const OF_E4: Kernels<f32, Float16<4>, f32> = Kernels {
    tiles: [[None; 3], [None; 3], [None; 3], tile64_coded::OF_E4, [None; 3]],
    strided: None,
    vector_nt: [Some(vector::matmul_vector1_nt_e4), None, None],
    vector_nn: [None; 2],
    reduce: reduce::matmul_reduce_f32,
};
/// a and c f32, b in a 16-bit format of 8 exponent bits, bfloat16.
pub const OF_E8: Kernels<f32, Float16<8>, f32> = Kernels {
    tiles: [[None; 3], [None; 3], [None; 3], tile64_coded::OF_E8, [None; 3]],
    strided: None,
    vector_nt: [Some(vector::matmul_vector1_nt_e8), None, None],
    vector_nn: [None; 2],
    reduce: reduce::matmul_reduce_f32,
};
