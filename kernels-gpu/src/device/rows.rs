//! How the ops over rows share a matrix among threads: a warp takes a short row, a block a longer one. A thread
//! holds its part of such a row in registers, four 16-byte vectors where there are so many, so that a row is read
//! once and by loads that are all in flight together. Blocks are as small as that allows: what one waits for, in a
//! reduction, others fill.

use super::{Columns, Shared, Vector, reduce};
use cuda_std::prelude::*;

/// The most threads in a block of the warp kernels: any multiple of 32 will do, and the host chooses by occupancy and by
/// the number of rows.
pub const WARP_BLOCK: u32 = 256;
/// The most columns of the warp kernels: 32 registers of values per lane.
pub const MAX_WARP_COLS: u32 = 1024;

/// The most threads in a block of the block kernels.
pub const ROW_BLOCK: u32 = 512;
/// The most warps of it.
pub const ROW_WARPS: u32 = ROW_BLOCK / 32;
/// Columns that a thread of the block kernels holds: 16 registers of values.
const COLS_PER_THREAD: u32 = 16;
/// The most columns of the block kernels.
pub const MAX_BLOCK_COLS: u32 = ROW_BLOCK * COLS_PER_THREAD;

/// Threads of a block for a row of this length: at least four warps, at most [`ROW_BLOCK`].
pub const fn row_threads(cols: u32) -> u32 {
    let threads = cols.div_ceil(COLS_PER_THREAD).next_power_of_two();
    if threads < 128 {
        128
    } else if threads > ROW_BLOCK {
        ROW_BLOCK
    } else {
        threads
    }
}

/// The row of this warp, if there is one, and how its lanes share it. Whole warps have a row or have none.
#[inline(always)]
pub fn warp_row<T: Vector>(rows: u32, cols: u32, vectors: u32) -> Option<(u32, Columns)> {
    let row = thread::block_idx_x() * (thread::block_dim_x() / 32) + thread::thread_idx_x() / 32;
    (row < rows).then(|| (row, Columns::new::<T>(cols, warp::lane_id(), 32, vectors != 0)))
}

/// How the threads of this block share a row.
#[inline(always)]
pub fn block_columns<T: Vector>(cols: u32, vectors: u32) -> Columns {
    Columns::new::<T>(cols, thread::thread_idx_x(), thread::block_dim_x(), vectors != 0)
}

/// Asks for a row of weights that is needed later, where so few blocks run that none has fetched it before.
#[inline(always)]
pub fn expect_weights<T: Vector>(columns: Columns, weights: *const T) {
    const FEW_BLOCKS: u32 = 32;
    if thread::grid_dim_x() <= FEW_BLOCKS {
        let mut i = 0;
        while columns.has(i) {
            columns.prefetch(weights, i);
            i += 1;
        }
    }
}

/// The threads that share a row.
pub trait Team: Copy {
    /// Combines each value over them; the results are valid in all.
    ///
    /// # Safety
    /// All of them call it together, with all lanes of their warps.
    unsafe fn combine<const N: usize>(self, own: [f32; N], f: impl Fn(f32, f32) -> f32) -> [f32; N];

    /// Sums.
    ///
    /// # Safety
    /// As [`combine`](Self::combine).
    #[inline(always)]
    unsafe fn sums<const N: usize>(self, own: [f32; N]) -> [f32; N] {
        // SAFETY: as the caller promises.
        unsafe { self.combine(own, |a, b| a + b) }
    }
}

/// The lanes of a warp.
#[derive(Clone, Copy)]
pub struct Warp;

impl Team for Warp {
    #[inline(always)]
    unsafe fn combine<const N: usize>(self, own: [f32; N], f: impl Fn(f32, f32) -> f32) -> [f32; N] {
        // SAFETY: as the caller promises.
        own.map(|own| unsafe { reduce::warp(own, 32, &f) })
    }
}

/// The threads of a block; a word of scratch memory for each of its warps and each value combined at once.
#[derive(Clone, Copy)]
pub struct Block(pub Shared<f32>);

impl Team for Block {
    #[inline(always)]
    unsafe fn combine<const N: usize>(self, own: [f32; N], f: impl Fn(f32, f32) -> f32) -> [f32; N] {
        // SAFETY: as the caller promises.
        unsafe { reduce::block_each(own, thread::block_dim_x() / 32, self.0, f) }
    }
}
