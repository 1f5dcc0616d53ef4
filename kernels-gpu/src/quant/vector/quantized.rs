//! y = act(x·wᵀ + bias) + residual for up to 16 rows of x that are already quantised.
//!
//! Idea: each block copies the rows of x into its shared memory, once for all columns that it computes. Through the cache each column would
//! read them again, which on Pascal takes longer than w. Blocks are all resident at once. A lane's next units of w are on their way while
//! it multiplies those that it has.

use super::spread::Spread;
use super::stage::{Rows, Stage};
use crate::device::int8::load_words;
use crate::device::unroll::unroll;
use crate::device::{Shared, opaque, read_thread_idx_x, shared};
use crate::quant::activations::{SharedRow, block_words, quant_words, row_scale};
use crate::quant::blocks::RowScale;
use crate::quant::epilogue::Epilogue;
use crate::quant::weights::{BLOCK_VALUES, Matrix, Weights};
use crate::quant::{FORMATS, Product};
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;
use cuda_std::{KernelInfo, KernelSpec};

const WARPS: u32 = 8;
const THREADS: u32 = WARPS * 32;

/// The most rows of x.
pub const MAX_M: u32 = 16;

/// The most rows of x of the variants, in the order of [`VECTOR`].
const VARIANTS: [u32; 4] = [2, 4, 8, MAX_M];

/// The index in [`VECTOR`] of the variant for `m` rows of x, at most [`MAX_M`].
pub fn variant_for(m: u32) -> usize {
    VARIANTS.iter().position(|rows| m <= *rows).unwrap_or(VARIANTS.len() - 1)
}

/// Rows of w per warp.
const R: usize = 2;
/// Columns of y that a block computes at a time.
const COLUMNS: u32 = WARPS * R as u32;

/// Number of blocks of [`VECTOR`] that cover all columns of y.
pub fn blocks(n: u32) -> u32 {
    n.div_ceil(COLUMNS)
}

/// The rows of x, in global memory.
#[derive(Clone, Copy)]
struct Activations {
    quants: *const u8,
    scales: *const u8,
    m: u32,
    /// Values of a row.
    k: u32,
}

/// Values of a row of x that a block holds at a time: as many as 20 KiB have of all rows, but at least a unit for each lane.
const fn tile_values(rows: u32, unit: u32) -> u32 {
    let (values, least) = (16384 / rows, 32 * unit);
    if values < least { least } else { values }
}

/// Bytes of shared memory that hold them.
const fn tile_bytes(rows: u32, unit: u32) -> u32 {
    let values = tile_values(rows, unit);
    4 * rows * (quant_words(values) + block_words(values))
}

/// `VALUES` values of M rows of x in shared memory.
#[derive(Clone, Copy)]
struct Tile<const M: usize, const VALUES: u32> {
    quants: Shared<u32>,
    blocks: Shared<u32>,
}

#[inlined]
impl<const M: usize, const VALUES: u32> Tile<M, VALUES> {
    /// Row `i`.
    fn row(self, i: u32) -> SharedRow<VALUES> {
        let (quants, blocks) = (i * quant_words(VALUES), i * block_words(VALUES));
        SharedRow { quants: self.quants.at(quants), blocks: self.blocks.at(blocks) }
    }

    /// Copies `count` values of each row from value `from` on, and zeros for rows that x does not have.
    ///
    /// # Safety
    /// x has 1 to M rows with these values, whole blocks. All threads call it together, and nobody reads the tile.
    unsafe fn copy<W: Weights>(self, x: Activations, from: u32, count: u32) {
        let tid = read_thread_idx_x();
        let (mut quants, mut scales) = ([[0; 4]; 8], [RowScale::default(); 4]);
        // the row and the piece of it that is the thread's `i`th, and whether the tile has the piece
        let place = |i: usize, values: u32| {
            let index = tid + i as u32 * THREADS;
            let (row, piece) = (index / (VALUES / values), index % (VALUES / values));
            (row, piece, piece * values < count)
        };
        // SAFETY: x has the values of the rows below m: this function's contract. Each piece is one thread's.
        unsafe {
            // load
            unroll!(I < 8 => if I as u32 * THREADS < M as u32 * (VALUES / 16) {
                let (row, run, exists) = place(I, 16);
                if exists && row < x.m {
                    quants[I] = load_words(x.quants.add((row * x.k + from + run * 16) as usize));
                }
            });
            unroll!(I < 4 => if I as u32 * THREADS < M as u32 * (VALUES / BLOCK_VALUES) {
                let (row, block, exists) = place(I, BLOCK_VALUES);
                if exists && row < x.m {
                    scales[I] = row_scale(x.scales, (row * x.k + from) / BLOCK_VALUES + block);
                }
            });
            // store
            unroll!(I < 8 => if I as u32 * THREADS < M as u32 * (VALUES / 16) {
                let (row, run, exists) = place(I, 16);
                if exists {
                    self.row(row).set_run(run, quants[I]);
                }
            });
            unroll!(I < 4 => if I as u32 * THREADS < M as u32 * (VALUES / BLOCK_VALUES) {
                let (row, block, exists) = place(I, BLOCK_VALUES);
                if exists {
                    self.row(row).set_block(block, scales[I].scale, W::of_sum(scales[I]));
                }
            });
        }
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn vector<W: Weights, const M: usize, const MR: usize, const VALUES: u32>(
    epilogue: Epilogue,
    x: Activations,
    w: Matrix,
    tile: Tile<M, VALUES>,
) {
    // registers do not suffice to hold more units in other formats
    let early = !W::WHOLE || M == 2;
    let n = epilogue.n;
    let lane = opaque(warp::lane_id());
    let (units, tile_units) = (w.k / W::UNIT, VALUES / W::UNIT);
    let mut base = thread::block_idx_x() * COLUMNS;
    let mut held = false;
    while base < n {
        // place: this warp's rows of w; those past the end are the last one, read again and not written
        let first = base + read_thread_idx_x() / 32 * R as u32;
        let rows = Rows::<R>::new::<W>(w, |j| (first + j).min(n - 1), 0);
        let mut acc = [[0.0f32; R]; M];
        // SAFETY: the loops' bounds are the block's, so all threads are at every barrier and shuffle. Rows of w are clamped to the last
        // one and units to the row's end; rows of x are no shorter. A tile of x is read after a barrier, below `count`.
        unsafe {
            // load
            let mut stage = Stage::<W, R, 1>::load(w, &rows, lane, units);
            let mut from = 0;
            while from < units {
                let count = (units - from).min(tile_units);
                // sync
                if !held {
                    tile.copy::<W>(x, from * W::UNIT, count * W::UNIT);
                    sync_threads();
                }
                let mut at = 0;
                while at < count {
                    let (ahead, mut next) = (from + at + 32, stage);
                    if early && ahead < units {
                        next = Stage::load(w, &rows, ahead + lane, units);
                    }
                    // compute; what follows from the lane is computed here, because registers do not suffice to keep it
                    let lane = opaque(lane);
                    if at + lane < count {
                        unroll!(I < 16 => if I < M {
                            stage.multiply::<0, VALUES>(&mut acc[I], tile.row(I as u32), at + lane, lane);
                        });
                    }
                    if !early && ahead < units {
                        next = Stage::load(w, &rows, ahead + lane, units);
                    }
                    stage = next;
                    at += 32;
                }
                from += tile_units;
                held = units <= tile_units;
                if !held {
                    sync_threads();
                }
            }
            // write
            let mut sums = [0.0; 32];
            unroll!(I < 16 => if I < M {
                unroll!(J < 2 => sums[(I * R + J) % 32] = acc[I][J]);
            });
            let sum = Spread::<MR>::sum(sums);
            if let Some(number) = Spread::<MR>::number() {
                let (number, first) = (opaque(number), base + read_thread_idx_x() / 32 * R as u32);
                let (row, column) = (number / R as u32, first + number % R as u32);
                if row < x.m && column < n {
                    epilogue.write(row, column, sum * W::row_scale(w, column));
                }
            }
        }
        base += thread::grid_dim_x() * COLUMNS;
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

        /// By variant (2, 4, 8, 16 rows of x) and format. grid = any number of blocks, see [`blocks`].
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
            name = concat!($begin, $name), block = THREADS, min_blocks = 2,
            shared_bytes = tile_bytes(VARIANTS[$variant], $format::UNIT),
            shuffles = Spread::<{ VARIANTS[$variant] as usize * R }>::SHUFFLES,
            module = concat!("quant_vector_", $name)
        )]
        pub unsafe fn $kernel(p: Product) {
            const M: usize = VARIANTS[$variant] as usize;
            const VALUES: u32 = tile_values(M as u32, $format::UNIT);
            let Product { y, bias, residual, m, n, k, x_k, activation, .. } = p;
            let epilogue = Epilogue { y, bias, residual, n, activation };
            let w = Matrix { quants: p.w, scales: p.w_scales, k };
            let x = Activations { quants: p.x, scales: p.x_scales, m, k: x_k };
            let tile = Tile {
                quants: shared::declare::<u32, { M * quant_words(VALUES) as usize }>(),
                blocks: shared::declare::<u32, { M * block_words(VALUES) as usize }>(),
            };
            // SAFETY: this kernel's contract is the body's.
            unsafe { vector::<$format, M, { M * R }, VALUES>(epilogue, x, w, tile) }
        }
    };
}

crate::for_each_format!(vectors);
