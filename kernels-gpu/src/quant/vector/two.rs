//! y = act(norm(x)·wᵀ + bias) + residual for two rows of x in f32, or silu(gate)·up + residual of a row of w each.
//!
//! Idea: as for [`one`](super::one) row, each block normalises and quantises the rows, which saves the launch that does so and a
//! third of a small product's time. The rows are then in shared memory, and are not read through the cache for each column.
//!
//! Formats with super-blocks have no such kernels: the registers that they need leave too few warps to hide what each block does.

use super::one::Vector;
use super::prologue::{Norm, TILE, TILE_BYTES, Tile};
use super::spread::Spread;
use super::stage::{Rows, Stage};
use crate::activate::IDENTITY;
use crate::device::unroll::unroll;
use crate::device::{opaque, read_thread_idx_x, shared};
use crate::elementwise::silu;
use crate::quant::Format;
use crate::quant::activations::{SharedRow, block_words, quant_words};
use crate::quant::epilogue::Epilogue;
use crate::quant::norm::RUNS;
use crate::quant::weights::{Matrix, Weights};
use core::ptr::null;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};
use cuda_std::{KernelInfo, KernelSpec};

const WARPS: u32 = 8;
const THREADS: u32 = WARPS * 32;
/// Rows of x.
pub const M: usize = 2;
/// Rows of w per warp.
const R: usize = 2;
/// Times four values of a row of x that a thread loads before w.
const EARLY: usize = 1;
/// Shuffle steps: 3 and 3 where a row is quantised, 5 for its squares, 5 for their sum; and those of the lanes' sums.
const SHUFFLES: u32 = M as u32 * ((3 + 3 + 5) * (EARLY as u32 + 1) + 5) + Spread::<{ M * R }>::SHUFFLES;

/// Number of blocks that cover all columns of y, each `products` products: 2 for gates and ups, else 1.
pub fn blocks(n: u32, products: u32) -> u32 {
    n.div_ceil(WARPS * R as u32 / products)
}

/// Lanes that have the same sum.
const SHARERS: u32 = 32 / (M * R) as u32;

/// The kernels' body.
///
/// # Safety
/// As theirs.
#[inline(always)]
unsafe fn two<W: Weights, const GATED: bool>(p: Vector) {
    let Vector { x, norm, n, cols, eps, .. } = p;
    let w = Matrix { quants: p.w, scales: p.w_scales, k: p.k };
    let quants = shared::declare::<u32, { M * quant_words(TILE) as usize }>();
    let blocks = shared::declare::<u32, { M * block_words(TILE) as usize }>();
    // of the squares of runs
    let squares = shared::declare::<f32, { M * RUNS as usize }>();
    let row = |i: usize| SharedRow::<TILE> {
        quants: quants.at(i as u32 * quant_words(TILE)),
        blocks: blocks.at(i as u32 * block_words(TILE)),
    };
    // columns of y for each warp
    let columns = if GATED { 1 } else { R as u32 };
    let mut base = thread::block_idx_x() * WARPS * columns;
    let mut quantized = false;
    while base < n {
        // place: this warp's rows of w; those past the end are the last one, read again and not written
        let (tid, lane) = (read_thread_idx_x(), opaque(warp::lane_id()));
        let first = base + tid / 32 * columns;
        let of_w = |j: u32| match GATED {
            true => first.min(n - 1) + j * n,
            false => (first + j).min(n - 1),
        };
        let mut acc = [[0.0f32; R]; M];
        let mut from = 0;
        // SAFETY: the loops' bounds are the block's, so all threads are at every barrier and shuffle. Rows of w are clamped to the last
        // one and units to the tile's end. A tile of x is read after a barrier, and holds zeros up to whole steps.
        unsafe {
            while from < w.k {
                let units = (w.k - from).min(TILE) / W::UNIT;
                let tile =
                    |i: usize| Tile::<THREADS> { x: x.wrapping_add(i * cols as usize), cols, from, tid };
                // load
                let mut early = [[[0.0; 4]; EARLY]; M];
                if !quantized {
                    unroll!(I < 2 => {
                        early[I] = tile(I).early::<EARLY, false>(0);
                    });
                    if !norm.is_null() {
                        tile(0).prefetch(norm);
                    }
                }
                let rows = Rows::<R>::new::<W>(w, of_w, from / W::UNIT);
                let mut stage = Stage::<W, R, 1>::load(w, &rows, lane, units);
                // sync
                if !quantized {
                    let count = units.next_multiple_of(32) * W::UNIT;
                    unroll!(I < 2 => {
                        let mut normed = Norm { weight: norm, factor: 1.0 };
                        if !norm.is_null() {
                            let sums = squares.at(I as u32 * RUNS);
                            normed.factor = tile(I).norm_factor::<EARLY>(cols, early[I], sums, eps);
                        }
                        tile(I).quantize::<W, EARLY, false>(0, row(I), count, early[I], normed);
                    });
                    sync_threads();
                }
                // compute
                let mut at = 0;
                loop {
                    unroll!(I < 2 => {
                        stage.multiply::<0, TILE>(&mut acc[I], row(I), at + lane, lane);
                    });
                    at += 32;
                    if at >= units {
                        break;
                    }
                    stage = Stage::load(w, &rows, at + lane, units);
                }
                from += TILE;
                quantized = w.k <= TILE;
                if !quantized {
                    sync_threads();
                }
            }
            // write: the lanes that have a sum, of gates and ups those with a gate
            let mut sums = [0.0; 32];
            unroll!(I < 2 => {
                unroll!(J < 2 => sums[(I * R + J) % 32] = acc[I][J]);
            });
            let number = lane / SHARERS;
            let (i, j) = (number / R as u32, number % R as u32);
            let product = Spread::<{ M * R }>::sum(sums) * W::row_scale(w, of_w(j));
            let own = Spread::<{ M * R }>::number().is_some();
            if GATED {
                let epilogue =
                    Epilogue { y: p.y, bias: null(), residual: p.residual, n, activation: IDENTITY };
                let up = warp_shuffle_xor(FULL_MASK, product, SHARERS, 32).0;
                if own && j == 0 && first < n {
                    epilogue.write(i, first, silu(product) * up);
                }
            } else {
                let epilogue =
                    Epilogue { y: p.y, bias: p.bias, residual: p.residual, n, activation: p.activation };
                if own && first + j < n {
                    epilogue.write(i, first + j, product);
                }
            }
        }
        base += thread::grid_dim_x() * WARPS * columns;
    }
}

macro_rules! twos {
    ($($format:ident $file:ident $name:literal;)*) => {
        /// By format.
        mod kernels {
            $(pub mod $file {
                use super::super::*;
                use crate::quant::formats::$file::$format;

                twos! { @ plain $format $name "quant_two_" 0 false }
                twos! { @ gated $format $name "quant_gated2_" 1 true }
            })*
        }

        /// The kernels of a format, for products and for y = silu(gate)·up; `None` if it has none.
        pub const fn kernels(format: Format) -> Option<[KernelSpec<Vector>; 2]> {
            match format {
                $(Format::$format => Some([kernels::$file::plain, kernels::$file::gated]),)*
                _ => None,
            }
        }

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$(kernels::$file::plain.info(), kernels::$file::gated.info(),)*];
    };
    (@ $kernel:ident $format:ident $name:literal $begin:literal $shuffles:literal $gated:literal) => {
        /// grid = any number of blocks, see [`blocks`].
        ///
        /// # Safety
        /// [`Vector`] constrains the pointers, which are valid on the launching stream; n, k > 0.
        #[kernel(
            name = concat!($begin, $name), block = THREADS, min_blocks = 3, shared_bytes = M as u32 * (TILE_BYTES + 4 * RUNS),
            shuffles = SHUFFLES + $shuffles, module = concat!("quant_two_", $name)
        )]
        pub unsafe fn $kernel(p: Vector) {
            // SAFETY: this kernel's contract is the body's.
            unsafe { two::<$format, $gated>(p) }
        }
    };
}

twos! {
    I8 i8 "i8";
    Q8_0 q8_0 "q8_0";
    Q4_0 q4_0 "q4_0";
    Iq4Nl iq4_nl "iq4_nl";
    Mxfp4 mxfp4 "mxfp4";
}
