//! How the row ops divide a matrix among threads: some lanes of a warp have a short row, a warp or a block a longer one. A
//! thread holds its part of a row in registers, up to four 16-byte vectors, so that a row is read once and all its loads are
//! in flight together. Teams are as small as that allows: while one waits in a reduction, others execute.

use super::{Columns, Shared, Vector, block_reduce};
use cuda_std::KernelSpec;
use cuda_std::butterfly;
use cuda_std::prelude::*;
use cuda_std::warp::WarpShuffleValue;

/// A row op's kernels for one element type, by the length of rows. All have the same parameters.
#[derive(Clone, Copy)]
pub struct RowKernels<P> {
    /// grid = [ceil(rows / rows of a block)], in blocks of any multiple of 32 threads up to its own
    pub warp: KernelSpec<P>,
    /// grid = [rows], or with the fewer threads of [`row_threads`]
    pub block: KernelSpec<P>,
    /// As `block`, for few rows, whose weights are not yet in a cache. It is `block` where there are no weights, and for f16, where
    /// instructions cost more than the wait for them.
    pub few: KernelSpec<P>,
    /// grid = [rows], for rows longer than [`MAX_BLOCK_COLS`]
    pub stream: KernelSpec<P>,
}

/// The most threads in a block of the warp kernels: the host chooses by occupancy and by the number of rows.
pub const WARP_BLOCK: u32 = 256;
/// The most columns of the warp kernels: 32 registers of values per lane.
pub const MAX_WARP_COLS: u32 = 1024;

/// The most threads in a block of the block kernels.
pub const ROW_BLOCK: u32 = 512;
/// The most warps of such a block.
pub const ROW_WARPS: u32 = ROW_BLOCK / 32;
/// Columns that a thread of the block kernels holds: 16 registers of values.
const COLS_PER_THREAD: u32 = 16;
/// The most columns of the block kernels.
pub const MAX_BLOCK_COLS: u32 = ROW_BLOCK * COLS_PER_THREAD;

/// The most threads in a block of the wide kernels, whose threads hold twice as many columns.
pub const WIDE_BLOCK: u32 = 1024;
/// The most warps of such a block.
pub const WIDE_WARPS: u32 = WIDE_BLOCK / 32;
/// The most columns of the wide kernels.
pub const MAX_WIDE_COLS: u32 = WIDE_BLOCK * 2 * COLS_PER_THREAD;

/// Threads of a block for a row of this length: at least four warps, at most [`ROW_BLOCK`].
pub const fn row_threads(cols: u32) -> u32 {
    threads(cols.div_ceil(COLS_PER_THREAD), 128, ROW_BLOCK)
}

/// The same for the wide kernels.
pub const fn wide_threads(cols: u32) -> u32 {
    threads(cols.div_ceil(2 * COLS_PER_THREAD), 128, WIDE_BLOCK)
}

/// The fewest lanes of a warp for a row of this length: at least eight, so that single elements fill a memory sector too.
pub const fn row_lanes(cols: u32) -> u32 {
    threads(cols.div_ceil(COLS_PER_THREAD), 8, 32)
}

/// The next power of two, but not below `least` nor above `most`.
const fn threads(wanted: u32, least: u32, most: u32) -> u32 {
    let threads = wanted.next_power_of_two();
    if threads < least {
        least
    } else if threads > most {
        most
    } else {
        threads
    }
}

/// The row of this lane and the team of `lanes` neighbouring lanes (8, 16 or 32) that share it. A row past the last is read
/// as the last one, and [not written](Team::has_row).
#[inline(always)]
pub fn warp_row<T: Vector>(rows: u32, cols: u32, vectors: u32, lanes: u32) -> (u32, Lanes, Columns) {
    let (thread, log) = (thread::thread_idx_x(), lanes.trailing_zeros());
    let row = thread::block_idx_x() * (thread::block_dim_x() >> log) + (thread >> log);
    let columns = Columns::new::<T>(cols, thread & (lanes - 1), lanes, vectors != 0);
    let has_row = row < rows;
    (if has_row { row } else { rows - 1 }, Lanes { width: lanes, has_row }, columns)
}

/// How the threads of this block divide a row.
#[inline(always)]
pub fn block_columns<T: Vector>(cols: u32, vectors: u32) -> Columns {
    Columns::new::<T>(cols, thread::thread_idx_x(), thread::block_dim_x(), vectors != 0)
}

/// Prefetches a row of weights if there are so few blocks that no other has brought it into the cache.
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
    /// Combines each value over the team; the results are valid in all its threads. `before` is the number of values
    /// combined earlier.
    ///
    /// # Safety
    /// All threads of the team call it together, with all lanes of their warps.
    unsafe fn combine<const N: usize>(self, before: u32, own: [f32; N], op: impl Butterfly<f32>) -> [f32; N];

    /// Whether the team's result is to be written.
    fn has_row(self) -> bool;
}

/// Neighbouring lanes of a warp.
#[derive(Clone, Copy)]
pub struct Lanes {
    width: u32,
    has_row: bool,
}

#[inlined]
impl Lanes {
    /// Combines a value over the lanes; the result is valid in all of them.
    ///
    /// # Safety
    /// All lanes of the warp are here.
    pub unsafe fn reduce<T: WarpShuffleValue>(self, own: T, op: impl Butterfly<T>) -> T {
        // SAFETY: all lanes of the warp are here: this function's contract. `warp_row` was given the width.
        unsafe { op.over_lanes(own, self.width) }
    }

    /// The largest key over the lanes, and the least of its indices; valid in all of them.
    ///
    /// # Safety
    /// As [`reduce`](Self::reduce).
    pub unsafe fn argmax(self, key: u32, index: u32) -> (u32, u32) {
        // SAFETY: all lanes of the warp are here: this function's contract. `warp_row` was given the width.
        unsafe { butterfly::argmax(key, index, self.width) }
    }

    /// Whether this lane is the first of a row that exists.
    pub fn writes_result(self) -> bool {
        self.has_row && warp::lane_id() & (self.width - 1) == 0
    }
}

#[inlined]
impl Team for Lanes {
    unsafe fn combine<const N: usize>(
        self,
        _before: u32,
        own: [f32; N],
        op: impl Butterfly<f32>,
    ) -> [f32; N] {
        // SAFETY: all lanes of the team's warps are here: this function's contract.
        own.map(|own| unsafe { self.reduce(own, op) })
    }

    fn has_row(self) -> bool {
        self.has_row
    }
}

/// The threads of a block, with scratch memory of a word for each warp and each value that is combined.
#[derive(Clone, Copy)]
pub struct Block(pub Shared<f32>);

#[inlined]
impl Team for Block {
    unsafe fn combine<const N: usize>(self, before: u32, own: [f32; N], op: impl Butterfly<f32>) -> [f32; N] {
        let warps = thread::block_dim_x() / 32;
        // SAFETY: all threads of the block are here: this function's contract. Each value has its own words of scratch
        // memory.
        unsafe { block_reduce::reduce_once(own, warps, self.0.at(before * warps), op) }
    }

    fn has_row(self) -> bool {
        true
    }
}
