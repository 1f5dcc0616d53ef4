//! y = act(x·wᵀ + bias) + residual for up to 8 rows of x.   y: [m, n] f32, x: [m, k] row layout, w: [n, k].
//!
//! Idea: bound by the memory that w lies in, so a warp reads R rows of w at a time, each lane 16 bytes of each, and
//! multiplies them with all M rows of x, which come from cache. The lanes' sums are added at the end.
//!
//! | kernel                | rows of x | rows of w per warp |
//! |-----------------------|-----------|--------------------|
//! | quant_vector1_‹f›     | 1         | 4                  |
//! | quant_vector2_‹f›     | 2         | 4                  |
//! | quant_vector4_‹f›     | 3, 4      | 2                  |
//! | quant_vector8_‹f›     | 5 to 8    | 2                  |

use super::epilogue::Epilogue;
use super::unroll::unroll;
use super::weights::{I8, Matrix, Q4_0, Q4K, Q8_0, Weights, chunk};
use crate::device::reduce;
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

const WARPS: u32 = 4;
const THREADS: u32 = WARPS * 32;

/// The most rows of x.
pub const MAX_M: u32 = 8;

/// Rows of x and rows of w per warp of the variants, in the order of [`VECTOR`].
const VARIANTS: [(u32, u32); 4] = [(1, 4), (2, 4), (4, 2), (8, 2)];

const fn spec(name: &'static str, variant: usize) -> KernelSpec {
    let (m, rows) = VARIANTS[variant];
    KernelSpec::new(name, THREADS).shuffles(5 * m * rows)
}

/// By variant (1, 2, 4, 8 rows of x) and format. grid = [ceil(n / columns per block)], see [`select`].
pub const VECTOR: [[KernelSpec; 4]; 4] = [
    [
        spec("quant_vector1_i8", 0),
        spec("quant_vector1_q8_0", 0),
        spec("quant_vector1_q4_0", 0),
        spec("quant_vector1_q4_k", 0),
    ],
    [
        spec("quant_vector2_i8", 1),
        spec("quant_vector2_q8_0", 1),
        spec("quant_vector2_q4_0", 1),
        spec("quant_vector2_q4_k", 1),
    ],
    [
        spec("quant_vector4_i8", 2),
        spec("quant_vector4_q8_0", 2),
        spec("quant_vector4_q4_0", 2),
        spec("quant_vector4_q4_k", 2),
    ],
    [
        spec("quant_vector8_i8", 3),
        spec("quant_vector8_q8_0", 3),
        spec("quant_vector8_q4_0", 3),
        spec("quant_vector8_q4_k", 3),
    ],
];

/// The variant for `m` rows of x (at most [`MAX_M`]), and how many columns of y its blocks make.
pub fn select(m: u32) -> (usize, u32) {
    let variant = VARIANTS.iter().position(|(rows, _)| m <= *rows).unwrap_or(VARIANTS.len() - 1);
    (variant, WARPS * VARIANTS[variant].1)
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn vector<W: Weights, const M: usize, const R: usize>(
    epilogue: Epilogue,
    x: *const u8,
    x_scales: *const u8,
    w: Matrix,
    m: u32,
    x_k: u32,
) {
    // place: this warp's rows of w; those beyond the last are the last, read again and not written
    let n = epilogue.n;
    let first = (thread::block_idx_x() * WARPS + thread::thread_idx_x() / 32) * R as u32;
    if first >= n {
        return; // whole warps only, so the shuffles below have all lanes
    }
    let lane = warp::lane_id();
    let chunks = w.k / W::CHUNK;
    let mut acc = [[0.0f32; R]; M];
    // SAFETY: rows of x and w are cut off at the last, chunks at the row's end; rows of x are no shorter than those
    // of w. All lanes of the warp reach the shuffles.
    unsafe {
        let mut at = lane;
        while at < chunks {
            // load
            let mut words = [[0; 4]; R];
            let mut r = 0;
            while r < R {
                words[r] = chunk::<W>(w, (first + r as u32).min(n - 1), at);
                r += 1;
            }
            let mut scales = [W::scale(w, first, at); R];
            let mut r = 1;
            while r < R {
                scales[r] = W::scale(w, (first + r as u32).min(n - 1), at);
                r += 1;
            }
            // compute
            unroll!(I < 8 => if I < M {
                let row = (I as u32).min(m - 1) as usize * x_k as usize;
                let inputs = W::inputs(x.add(row), x_scales.add(row / 4), at);
                unroll!(J < 4 => if J < R {
                    acc[I][J] = W::dot(words[J], scales[J], &inputs, acc[I][J]);
                });
            });
            at += 32;
        }
        // write: lane i·R + r has element (i, r)
        let mut own = 0.0;
        unroll!(I < 8 => if I < M {
            unroll!(J < 4 => if J < R {
                let sum = reduce::warp(acc[I][J], 32, |a, b| a + b);
                own = if lane == (I * R + J) as u32 { sum } else { own };
            });
        });
        let (row, column) = (lane / R as u32, first + lane % R as u32);
        if row < m && row < M as u32 && column < n {
            epilogue.write(row, column, own * W::row_scale(w, column));
        }
    }
}

macro_rules! vectors {
    ($($name:ident: $weights:ident, $m:literal, $r:literal;)*) => {$(
        /// # Safety
        /// `y`, `residual`: [m, n], `bias`: [n], `x`: [m, x_k] quants with their scales `x_scales`, `w`: [n, k] with its
        /// scales, as the layouts say, valid on the launching stream; `bias` and `residual` may be null; `y` overlaps
        /// nothing; 1 ≤ m ≤ the variant's rows, x_k ≥ k; launched as [`VECTOR`] says.
        #[kernel(launch_bounds(THREADS))]
        pub unsafe fn $name(
            y: *mut f32,
            x: *const u8,
            x_scales: *const u8,
            w: *const u8,
            w_scales: *const u8,
            bias: *const f32,
            residual: *const f32,
            m: u32,
            n: u32,
            k: u32,
            x_k: u32,
            activation: u32,
        ) {
            let epilogue = Epilogue { y, bias, residual, n, activation };
            let w = Matrix { quants: w, scales: w_scales, k };
            // SAFETY: this kernel's contract is the body's.
            unsafe { vector::<$weights, $m, $r>(epilogue, x, x_scales, w, m, x_k) }
        }
    )*};
}

vectors! {
    quant_vector1_i8: I8, 1, 4;
    quant_vector2_i8: I8, 2, 4;
    quant_vector4_i8: I8, 4, 2;
    quant_vector8_i8: I8, 8, 2;
    quant_vector1_q8_0: Q8_0, 1, 4;
    quant_vector2_q8_0: Q8_0, 2, 4;
    quant_vector4_q8_0: Q8_0, 4, 2;
    quant_vector8_q8_0: Q8_0, 8, 2;
    quant_vector1_q4_0: Q4_0, 1, 4;
    quant_vector2_q4_0: Q4_0, 2, 4;
    quant_vector4_q4_0: Q4_0, 4, 2;
    quant_vector8_q4_0: Q4_0, 8, 2;
    quant_vector1_q4_k: Q4K, 1, 4;
    quant_vector2_q4_k: Q4K, 2, 4;
    quant_vector4_q4_k: Q4K, 4, 2;
    quant_vector8_q4_k: Q4K, 8, 2;
}
