//! y = act(x·wᵀ + bias) + residual for up to 16 rows of x that are already quantised; they are read through the cache.

use super::spread::Spread;
use super::stage::{Rows, Stage};
use crate::device::unroll::unroll;
use crate::quant::activations::GlobalRow;
use crate::quant::epilogue::Epilogue;
use crate::quant::weights::{Matrix, Weights};
use crate::quant::{FORMATS, Product};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

const WARPS: u32 = 4;
const THREADS: u32 = WARPS * 32;

/// The most rows of x.
pub const MAX_M: u32 = 16;

/// The index in [`VECTOR`] of the variant for `m` rows of x (at most [`MAX_M`]), and the columns of y per block.
pub fn variant_for(m: u32) -> (usize, u32) {
    let variant = VARIANTS.iter().position(|(rows, _)| m <= *rows).unwrap_or(VARIANTS.len() - 1);
    (variant, WARPS * VARIANTS[variant].1)
}
/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn vector<W: Weights, const M: usize, const R: usize, const MR: usize>(
    epilogue: Epilogue,
    x: *const u8,
    x_scales: *const u8,
    w: Matrix,
    m: u32,
    x_k: u32,
) {
    // place: this warp's rows of w; those past the end are the last one, read again and not written
    let n = epilogue.n;
    let first = (thread::block_idx_x() * WARPS + thread::thread_idx_x() / 32) * R as u32;
    if first >= n {
        return; // whole warps only, so the shuffles below have all lanes
    }
    let lane = warp::lane_id();
    let units = w.k / W::UNIT;
    let rows = Rows::<R>::new::<W>(w, |j| (first + j).min(n - 1), 0);
    let mut acc = [[0.0f32; R]; M];
    // SAFETY: rows of x and w are cut off at the last, units at the row's end; rows of x are no shorter than those
    // of w. All lanes of the warp reach the shuffles.
    unsafe {
        let mut at = lane;
        while at < units {
            // load
            let stage = Stage::<W, R, 1>::load(w, &rows, at, units);
            // compute: at most 8 rows of x at a time, because registers do not suffice for more in flight
            let mut base = 0;
            loop {
                unroll!(I < 8 => if I < M {
                    let row = (base + I as u32).min(m - 1) as usize * x_k as usize;
                    let x = GlobalRow { quants: x.add(row), scales: x_scales.add(row / 4) };
                    stage.multiply::<0, _>(&mut acc[I], x, at, lane);
                });
                if M <= 8 {
                    break;
                }
                // swap the first eight rows' sums with the others', twice
                unroll!(I < 8 => acc.swap(I % M, (I + 8) % M));
                base += 8;
                if base >= m {
                    break;
                }
            }
            at += 32;
        }
        // write
        let mut sums = [0.0; 32];
        unroll!(I < 16 => if I < M {
            unroll!(J < 4 => if J < R {
                sums[(I * R + J) % 32] = acc[I][J];
            });
        });
        let sum = Spread::<MR>::sum(sums);
        let Some(number) = Spread::<MR>::number() else { return };
        let (row, column) = (number / R as u32, first + number % R as u32);
        if row < m && column < n {
            epilogue.write(row, column, sum * W::row_scale(w, column));
        }
    }
}

/// Rows of x and rows of w per warp of the variants, in the order of [`VECTOR`].
const VARIANTS: [(u32, u32); 4] = [(2, 4), (4, 2), (8, 2), (16, 2)];

/// Blocks of a multiprocessor for which ptxas keeps registers free, in a kernel for so many rows of x. For two and four rows they are those
/// that it finds by itself; for eight it would choose too few registers, and spill.
const fn min_blocks<W: Weights>(rows: u32) -> u32 {
    match (rows, W::WHOLE) {
        (2, false) => 6,
        (4, false) => 8,
        (2 | 8, _) => 3,
        (4, true) => 4,
        _ => 2,
    }
}

macro_rules! vectors {
    ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
        /// By format.
        mod kernels {
            $(pub mod $file {
                use super::super::*;
                use crate::quant::formats::$file::$format;

                vectors! { @ vector2 $format $name "quant_vector2_" 0 }
                vectors! { @ vector4 $format $name "quant_vector4_" 1 }
                vectors! { @ vector8 $format $name "quant_vector8_" 2 }
                vectors! { @ vector16 $format $name "quant_vector16_" 3 }
            })*
        }

        /// By variant (2, 4, 8, 16 rows of x) and format. grid = [ceil(n / columns per block)], see [`variant_for`].
        pub const VECTOR: [[KernelSpec<Product>; FORMATS]; 4] = [
            [$(kernels::$file::vector2),*],
            [$(kernels::$file::vector4),*],
            [$(kernels::$file::vector8),*],
            [$(kernels::$file::vector16),*],
        ];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$(
            kernels::$file::vector2.info(),
            kernels::$file::vector4.info(),
            kernels::$file::vector8.info(),
            kernels::$file::vector16.info(),
        )*];
    };
    (@ $kernel:ident $format:ident $name:literal $begin:literal $variant:literal) => {
        /// # Safety
        /// [`Product`] constrains the pointers, which are valid on the launching stream; 1 ≤ m ≤ the variant's rows,
        /// and 9 ≤ m for that of 16.
        #[kernel(
            name = concat!($begin, $name), block = THREADS, min_blocks = min_blocks::<$format>(VARIANTS[$variant].0),
            shuffles = Spread::<{ (VARIANTS[$variant].0 * VARIANTS[$variant].1) as usize }>::SHUFFLES,
            module = concat!("quant_vector_", $name)
        )]
        pub unsafe fn $kernel(p: Product) {
            const M: usize = VARIANTS[$variant].0 as usize;
            const R: usize = VARIANTS[$variant].1 as usize;
            let Product { y, bias, residual, m, n, k, x_k, activation, .. } = p;
            let epilogue = Epilogue { y, bias, residual, n, activation };
            let w = Matrix { quants: p.w, scales: p.w_scales, k };
            // SAFETY: this kernel's contract is the body's.
            unsafe { vector::<$format, M, R, { M * R }>(epilogue, p.x, p.x_scales, w, m, x_k) }
        }
    };
}

crate::for_each_format!(vectors);
