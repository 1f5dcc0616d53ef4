//! y = act(norm(x)·wᵀ + bias) + residual for one row of x in f32, or silu(gate)·up + residual of a row of w each.
//!
//! Idea: each block quantises x into its shared memory, which saves a launch. The first values of x are loaded before those of w,
//! since they would otherwise queue after them, and are quantised while w is in flight. Blocks are large and all resident at once, so
//! the row is quantised as few times as possible. Where x is to be normalised, each block does that too
//! ([`norm`](crate::quant::norm) has the order of additions): the wait for w hides it, and it saves another launch.

use super::prologue::{Declared, Memory, Norm, THREADS1, TILE, TILE_BYTES, Tile, WARPS1};
use super::stage::{Rows, Stage};
use crate::activate::IDENTITY;
use crate::device::unroll::unroll;
use crate::device::{opaque, read_thread_idx_x, shared};
use crate::elementwise::silu;
use crate::quant::FORMATS;
use crate::quant::epilogue::Epilogue;
use crate::quant::norm::RUNS;
use crate::quant::weights::{Matrix, Weights};
use core::ptr::null;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;
use cuda_std::{KernelInfo, KernelSpec};

/// Bytes of shared memory of [`vector1`] without a norm.
pub(in crate::quant) const SHARED1: u32 = TILE_BYTES + 4 * THREADS1;
/// Bytes of shared memory with a norm.
pub(in crate::quant) const SHARED1_NORM: u32 = SHARED1 + 4 * RUNS;
/// Rows of w per warp of [`VECTOR1`].
pub(in crate::quant) const ROWS1: u32 = 2;

/// The parameters: y = act(norm(x)·wᵀ + bias) + residual; or silu(gate)·up + residual, where the product is n gates, then n ups.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Vector {
    /// [n], disjoint from all else
    pub y: *mut f32,
    /// [cols], 16-byte aligned
    pub x: *const f32,
    /// [cols], 16-byte aligned: the weight of an RMS norm of x's rows. Then cols is a multiple of 4 and at most
    /// [`MAX_BLOCK_COLS`](crate::device::rows::MAX_BLOCK_COLS). Or null: x is not normalised. `quant_vector1` does not use it.
    pub norm: *const f32,
    /// [n, k] quants, of gates and ups [2 · n, k]
    pub w: *const u8,
    /// Of w.
    pub w_scales: *const u8,
    /// [n] or null; null for gates and ups
    pub bias: *const f32,
    /// [n] or null
    pub residual: *const f32,
    pub n: u32,
    pub k: u32,
    /// At most k.
    pub cols: u32,
    /// The activation, one of [`activate`](crate::activate)'s numbers; not used for gates and ups.
    pub activation: u32,
    /// Of the norm.
    pub eps: f32,
}

/// Number of blocks of [`VECTOR1`] that cover all columns of y.
pub fn blocks1(n: u32) -> u32 {
    n.div_ceil(WARPS1 * ROWS1)
}

/// Number of blocks of [`GATED1`] that cover all columns of y.
pub fn gated_blocks1(n: u32) -> u32 {
    n.div_ceil(WARPS1)
}

/// Shuffle steps of [`vector1`] without a norm: 3 and 3 where x is quantised, 5 for each row of w.
pub(in crate::quant) const fn shuffles1(early: usize) -> u32 {
    6 * (early as u32 + 1) + 5 * ROWS1
}

/// Those with a norm: also of runs of squares, and of their sum.
pub(in crate::quant) const fn normed_shuffles1(early: usize) -> u32 {
    shuffles1(early) + 5 * (early as u32 + 1) + 5
}

/// What is added to the product with one row of x before the epilogue.
pub(in crate::quant) trait Beside: Copy {
    /// Whether there is anything.
    const ANY: bool;

    /// The first blocks of the grid, which compute no product.
    fn helpers(self) -> u32;

    /// Prefetches what [`sums`](Self::sums) reads.
    fn prefetch(self, rows: [u32; ROWS1 as usize]);

    /// What is added to the products with these rows of w.
    ///
    /// # Safety
    /// All threads of the block call it together, with `is_first` at its first call and not later; w has the rows.
    unsafe fn sums(self, rows: [u32; ROWS1 as usize], is_first: bool) -> [f32; ROWS1 as usize];

    /// The block has called [`sums`](Self::sums); gives what [`finish`](Self::finish) takes.
    ///
    /// # Safety
    /// All threads of the block call it once, after `sums`.
    unsafe fn arrive(self) -> u32;

    /// Ends what [`arrive`](Self::arrive) has begun: its result, or 0.
    ///
    /// # Safety
    /// After `arrive`.
    unsafe fn finish(self, arrived: u32);
}

/// Nothing is added.
#[derive(Clone, Copy)]
pub(super) struct Nothing;

impl Beside for Nothing {
    const ANY: bool = false;

    #[inline(always)]
    fn helpers(self) -> u32 {
        0
    }

    #[inline(always)]
    fn prefetch(self, _: [u32; ROWS1 as usize]) {}

    #[inline(always)]
    unsafe fn sums(self, _: [u32; ROWS1 as usize], _: bool) -> [f32; ROWS1 as usize] {
        [0.0; ROWS1 as usize]
    }

    #[inline(always)]
    unsafe fn arrive(self) -> u32 {
        0
    }

    #[inline(always)]
    unsafe fn finish(self, _: u32) {}
}

/// The row of x: `cols` values from value `first` on.
#[derive(Clone, Copy)]
pub(in crate::quant) struct Row1 {
    pub x: *const f32,
    /// 0 without `PARTS` of [`vector1`].
    pub first: u32,
    pub cols: u32,
    /// As [`Vector`] has it; null with `PARTS`.
    norm: *const f32,
    eps: f32,
}

impl Row1 {
    /// Without a norm.
    pub const fn new(x: *const f32, first: u32, cols: u32) -> Self {
        Self { x, first, cols, norm: null(), eps: 0.0 }
    }

    /// The whole row, with a norm as [`Vector`] has it, or null.
    pub const fn normed(x: *const f32, cols: u32, norm: *const f32, eps: f32) -> Self {
        Self { x, first: 0, cols, norm, eps }
    }
}

/// The product with the n rows of w from row `from_row` on, to row blockIdx.y of y with `PARTS`, else to the first. With `NORM`, there may
/// be a norm. With `GATED`, an element of y is silu of the product with one of n rows times that with the row n further on.
///
/// # Safety
/// As the kernels below. Helpers do not call it.
#[inline(always)]
pub(in crate::quant) unsafe fn vector1<
    W: Weights,
    B: Beside,
    const U: usize,
    const X: usize,
    const PARTS: bool,
    const NORM: bool,
    const GATED: bool,
>(
    epilogue: Epilogue,
    Row1 { x, first: first_of_x, cols, norm, eps }: Row1,
    w: Matrix,
    from_row: u32,
    beside: B,
    memory: impl Memory,
) {
    const R: usize = ROWS1 as usize;
    let row = memory.row();
    let n = epilogue.n;
    let step = 32 * U as u32;
    let helpers = beside.helpers();
    // columns of y for each warp
    let columns = if GATED { 1 } else { ROWS1 };
    let mut base = (thread::block_idx_x() - helpers) * WARPS1 * columns;
    let mut quantized = false;
    // registers do not suffice to keep where rows begin
    let begins = PARTS.then(shared::declare::<u32, { 2 * THREADS1 as usize }>);
    if let Some(begins) = begins {
        // SAFETY: the words are this thread's.
        unsafe {
            begins.set(read_thread_idx_x(), from_row);
            begins.set(THREADS1 + read_thread_idx_x(), first_of_x);
        }
    }
    let begin = |i: u32, other: u32| match begins {
        // SAFETY: the words are this thread's, which has written them.
        Some(begins) => unsafe { begins.get(i * THREADS1 + read_thread_idx_x()) },
        None => other,
    };
    while base < n {
        // place: this warp's rows of w; those past the end are the last one, read again and not written
        // registers do not suffice to keep `base`, and what follows from the thread's number is computed when it is needed
        let (tid, lane) = (read_thread_idx_x(), opaque(warp::lane_id()));
        let first = base + tid / 32 * columns;
        let bases = shared::declare::<u32, { THREADS1 as usize }>();
        // SAFETY: the word is this thread's.
        unsafe { bases.set(tid, base) };
        // past the last, its own again, and not written
        let of_w = |first: u32, j: u32| match GATED {
            true => first.min(n - 1) + j * n,
            false => (first + j).min(n - 1),
        };
        beside.prefetch([of_w(first, 0), of_w(first, 1)]);
        let mut acc = [0.0f32; R];
        let mut from = 0;
        // SAFETY: the loops' bounds are the block's, so all threads are at every barrier and shuffle. Rows of w are
        // clamped to the last one and units to the tile's end. The tile of x is read after a barrier, and holds zeros up
        // to whole steps.
        unsafe {
            while from < w.k {
                let units = (w.k - from).min(TILE) / W::UNIT;
                let tile = Tile { x, cols, from, tid };
                // load
                let early =
                    if quantized { [[0.0; 4]; X] } else { tile.early::<X, PARTS>(begin(1, first_of_x)) };
                if NORM && !norm.is_null() && !quantized {
                    tile.prefetch(norm);
                }
                let from_row = begin(0, from_row);
                // registers do not suffice to compute addresses before the norm
                let first = if B::ANY && NORM { opaque(first) } else { first };
                let rows = Rows::<R>::new::<W>(w, |j| from_row + of_w(first, j), from / W::UNIT);
                let mut stage = Stage::<W, R, U>::load(w, &rows, lane, units);
                // sync
                if !quantized {
                    let count = units.next_multiple_of(step) * W::UNIT;
                    let mut normed = Norm { weight: null(), factor: 1.0 };
                    if NORM && !norm.is_null() {
                        let sums = shared::declare::<f32, { RUNS as usize }>();
                        // registers do not suffice to keep it as a float
                        let cols = if B::ANY { opaque(cols) } else { cols };
                        normed = Norm { weight: norm, factor: tile.norm_factor::<X>(cols, early, sums, eps) };
                    }
                    tile.quantize::<W, X, PARTS>(begin(1, first_of_x), row, count, early, normed);
                    sync_threads();
                }
                // compute
                let mut at = 0;
                loop {
                    unroll!(V < 2 => if V < U {
                        stage.multiply::<V, TILE>(&mut acc, row, at + lane, lane);
                    });
                    at += step;
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
            // write
            let mut sums = [0.0; R];
            unroll!(J < 2 => sums[J] = Sum.over::<32>(acc[J]));
            let tid = read_thread_idx_x();
            base = bases.get(tid);
            let first = base + tid / 32 * columns;
            let (mut added, mut arrived) = ([0.0; R], 0);
            if B::ANY {
                let is_first = base == (thread::block_idx_x() - helpers) * WARPS1 * columns;
                added = beside.sums([of_w(first, 0), of_w(first, 1)], is_first);
                if is_first {
                    arrived = beside.arrive();
                }
            }
            let product = |j: usize, row: u32| {
                let product = sums[j] * W::row_scale(w, begin(0, from_row) + row);
                if B::ANY { product + added[j] } else { product }
            };
            if GATED {
                if lane == 0 && first < n {
                    epilogue.write(0, first, silu(product(0, first)) * product(1, n + first));
                }
            } else {
                let column = first + lane;
                if lane < ROWS1 && column < n {
                    let own = if lane == 0 { product(0, column) } else { product(1, column) };
                    let row_of_y = if PARTS { opaque(thread::block_idx_y()) } else { 0 };
                    epilogue.write(row_of_y, column, own);
                }
            }
            if B::ANY {
                beside.finish(arrived); // the wait for its atomic passed while the block wrote
            }
        }
        base += (thread::grid_dim_x() - helpers) * WARPS1 * columns;
    }
}

impl Vector {
    /// The row of x.
    #[inline(always)]
    const fn row(&self) -> Row1 {
        Row1::normed(self.x, self.cols, self.norm, self.eps)
    }
}

macro_rules! vectors {
    ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
        /// By format.
        mod kernels {
            $(pub mod $file {
                use super::super::*;
                use crate::quant::formats::$file::$format;

                const EARLY: usize = $format::EARLY;
                const SHUFFLES1: u32 = shuffles1(EARLY);
                const SHUFFLES1_NORM: u32 = normed_shuffles1(EARLY);

                vectors! { @1 vector1 $format $name "quant_vector1_" SHARED1 SHUFFLES1 false }
                vectors! { @1 normed1 $format $name "quant_normed1_" SHARED1_NORM SHUFFLES1_NORM true }

                /// As [`vector1`], of gates and ups. grid = any number of blocks, see [`gated_blocks1`].
                ///
                /// # Safety
                /// [`Vector`] constrains the pointers, which are valid on the launching stream; n, k > 0.
                #[kernel(
                    name = concat!("quant_gated1_", $name),
                    block = THREADS1, min_blocks = 2, shared_bytes = SHARED1_NORM, shuffles = SHUFFLES1_NORM
                )]
                pub unsafe fn gated1(p: Vector) {
                    let Vector { y, residual, n, k, .. } = p;
                    let epilogue = Epilogue { y, bias: null(), residual, n, activation: IDENTITY };
                    // SAFETY: this kernel's contract is the body's.
                    unsafe {
                        let (x, w) = (p.row(), Matrix { quants: p.w, scales: p.w_scales, k });
                        super::super::vector1::<$format, _, { $format::LANE_UNITS }, EARLY, false, true, true>(epilogue, x, w, 0, Nothing, Declared)
                    }
                }
            })*
        }

        /// For one row of x, by format.
        pub const VECTOR1: [KernelSpec<Vector>; FORMATS] = [$(kernels::$file::vector1),*];
        /// For one row of x with a norm, by format.
        pub const NORMED1: [KernelSpec<Vector>; FORMATS] = [$(kernels::$file::normed1),*];
        /// For one row of x and y = silu(gate)·up, with a norm or without, by format.
        pub const GATED1: [KernelSpec<Vector>; FORMATS] = [$(kernels::$file::gated1),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$(
            kernels::$file::vector1.info(),
            kernels::$file::normed1.info(),
            kernels::$file::gated1.info(),
        )*];
    };
    (@1 $kernel:ident $format:ident $name:literal $begin:literal $shared:ident $shuffles:ident $norm:literal) => {
        /// One row of x, in f32. grid = any number of blocks, see [`blocks1`].
        ///
        /// # Safety
        /// [`Vector`] constrains the pointers, which are valid on the launching stream; n, k > 0.
        #[kernel(
            name = concat!($begin, $name), block = THREADS1, min_blocks = 2, shared_bytes = $shared, shuffles = $shuffles
        )]
        pub unsafe fn $kernel(p: Vector) {
            let Vector { y, bias, residual, n, k, activation, .. } = p;
            let epilogue = Epilogue { y, bias, residual, n, activation };
            // SAFETY: this kernel's contract is the body's.
            unsafe {
                let (x, w) = (p.row(), Matrix { quants: p.w, scales: p.w_scales, k });
                super::super::vector1::<$format, _, { $format::LANE_UNITS }, EARLY, false, $norm, false>(epilogue, x, w, 0, Nothing, Declared)
            }
        }
    };
}

crate::for_each_format!(vectors);
