//! A block: its sizes, its shared memory, its threads, and its work.

use crate::device::Shared;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::gpu_only;
use cuda_std::prelude::*;

/// Warps of a block; those of the block-sparse kernels may be fewer.
pub(in crate::attention) const WARPS: u32 = 4;
/// Queries of such a block.
pub(in crate::attention) const BM: u32 = bm(WARPS);
/// Its threads; each owns 8 × KEYS scores and 8 × D/16 outputs.
pub(in crate::attention) const THREADS: u32 = threads(WARPS);
/// Columns of Q and K in a chunk.
pub(in crate::attention) const BK: u32 = 16;

/// Queries that a block handles.
pub const QUERIES_PER_BLOCK: u32 = BM;

/// Queries of a block of so many warps.
pub(in crate::attention) const fn bm(warps: u32) -> u32 {
    16 * warps
}

/// Threads of a block of so many warps.
pub(in crate::attention) const fn threads(warps: u32) -> u32 {
    32 * warps
}

/// Keys of V in a chunk. A thread loads one key's columns, or two keys' where the block has one warp.
pub(super) const fn v_keys(warps: u32) -> u32 {
    if warps == 4 { 16 } else { 8 }
}

/// Keys of a tile of which a thread owns `keys`.
pub(in crate::attention) const fn bn(keys: usize) -> u32 {
    16 * keys as u32
}

/// Elements of padding after each column of Q's and K's chunk, so that threads that write to it have no bank conflicts.
pub(in crate::attention) const PAD: u32 = 4;

/// Elements of a chunk buffer: Qᵀ [BK, BM + PAD] and Kᵀ [BK, BN + PAD], or V [D / 64, v_keys, 64] and [v_keys, D mod 64].
pub(in crate::attention) const fn chunk_elements(warps: u32, keys: usize) -> u32 {
    BK * (bm(warps) + PAD + bn(keys) + PAD)
}

/// Elements of all chunk buffers: two, or one where the block has one warp.
pub(in crate::attention) const fn chunks_elements(warps: u32, keys: usize) -> u32 {
    chunk_elements(warps, keys) * if warps == 1 { 1 } else { 2 }
}

/// Elements of half of Pᵀ: [BM / 16, BN / 2, 16].
pub(in crate::attention) const fn half_elements(warps: u32, keys: usize) -> u32 {
    bm(warps) * bn(keys) / 2
}

/// Elements of l, a part per thread: [2, threads, 4].
pub(in crate::attention) const fn sums_elements(warps: u32) -> u32 {
    8 * threads(warps)
}

/// Shuffle steps: four for each of eight rows, for m in a tile and for l at the end.
pub(in crate::attention) const SHUFFLES: u32 = 2 * 4 * 8;

/// The kernels' shared memory.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Scratch {
    /// The chunk buffers.
    pub chunks: Shared<f32>,
    /// Half of a tile's Pᵀ.
    pub probabilities: Shared<f32>,
    /// m: [BM]
    pub maxima: Shared<f32>,
    /// l, a part per thread.
    pub sums: Shared<f32>,
}

/// The thread's index in a block of so many warps, as [`read_indices`] reads it.
#[inline(always)]
pub(in crate::attention) fn thread_index<const WARPS: u32>() -> u32 {
    let [tid, ..] = read_indices();
    if WARPS < 4 {
        // SAFETY: the block has so many warps. With this the compiler drops the warp's number where there is one.
        unsafe { core::hint::assert_unchecked(tid < threads(WARPS)) };
    }
    tid
}

/// Waits for all threads of a block of so many warps, and makes their writes to shared memory visible.
///
/// # Safety
/// All threads of the block are here.
#[inline(always)]
pub(in crate::attention) unsafe fn barrier<const WARPS: u32>() {
    if WARPS == 1 {
        // SAFETY: the warp is the block: all lanes are here.
        unsafe { warp::sync_warp(warp::FULL_MASK) }
    } else {
        thread::sync_threads();
    }
}

/// Waits until all threads have read a chunk, where the next one is written to the same buffer.
///
/// # Safety
/// All threads of the block are here.
#[inline(always)]
pub(super) unsafe fn after_reading<const WARPS: u32>() {
    if WARPS == 1 {
        // SAFETY: this function's contract.
        unsafe { barrier::<WARPS>() }
    }
}

/// The indices of this thread, and its head and queries.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Place {
    pub tid: u32,
    /// lane mod 16
    pub tx: u32,
    /// lane / 16
    pub ty: u32,
    /// The thread's first row in the tile; seven more follow.
    pub row: u32,
    pub batch: u32,
    pub head: u32,
    /// The block's first query.
    pub first: u32,
}

/// The thread's index and the block's along x and y, read from the special registers at each call.
#[gpu_only]
#[inline(always)]
pub(in crate::attention) fn read_indices() -> [u32; 3] {
    let (tid, x, y): (u32, u32, u32);
    // SAFETY: reads special registers. Not `pure`, so that readings are not merged.
    unsafe {
        asm!(
            "mov.u32 {tid}, %tid.x;", "mov.u32 {x}, %ctaid.x;", "mov.u32 {y}, %ctaid.y;",
            tid = out(reg32) tid, x = out(reg32) x, y = out(reg32) y,
            options(nomem, nostack, preserves_flags)
        );
    }
    [tid, x, y]
}

impl Place {
    /// The indices of thread `tid` of a block with these queries.
    #[inline(always)]
    pub fn new(tid: u32, batch: u32, head: u32, first: u32) -> Self {
        let (tx, ty) = (tid % 16, tid / 16 % 2);
        Self { tid, tx, ty, row: tid / 32 * 16 + ty * 8, batch, head, first }
    }
}

/// The work of a block: its queries, its tiles of keys, and the mask between them.
pub(in crate::attention) trait Work<const KEYS: usize>: Copy {
    /// Implementations read the special registers at each call, so that values derived from them need not stay in registers
    /// between the phases.
    fn place(self) -> Place;

    /// Distance from one tile to the next.
    const STEP: u32;

    /// Whether keys are looked up in memory. If so, the addresses of a tile's rows of K stay in registers.
    const LISTED: bool;

    /// The first of the block's tiles.
    fn begin(self) -> u32;

    /// One past the last.
    fn end(self) -> u32;

    /// An upper bound of the keys of one of the block's tiles that any query attends to, a multiple of 64.
    fn keys(self, tile: u32) -> u32;

    /// The key in row `row` of a tile, or one past the last. The rows of a group of 16 are consecutive.
    ///
    /// # Safety
    /// The tile is at most one past the last.
    unsafe fn key(self, tile: u32, row: u32) -> u32;

    /// The key in row `row` of group `group`; a constant group may be cheaper than [`key`](Self::key).
    ///
    /// # Safety
    /// As [`key`](Self::key); `row` is below 16.
    #[inline(always)]
    unsafe fn key_of_group(self, tile: u32, group: u32, row: u32) -> u32 {
        // SAFETY: this function's contract.
        unsafe { self.key(tile, 16 * group + row) }
    }

    /// Whether a row of the thread's warp attends to a key of the tile; the same for all lanes.
    ///
    /// # Safety
    /// The block has this tile.
    unsafe fn sees(self, place: Place, tile: u32) -> bool;

    /// Sets −∞ where a row does not attend to a key: rows row + i, keys 4 tx + j mod 4 + 64 (j / 4).
    ///
    /// # Safety
    /// As [`sees`](Self::sees).
    unsafe fn mask(self, s: &mut [[f32; KEYS]; 8], place: Place, tile: u32);

    /// The address of the partial result [BM, D + 4] of these queries, if theirs is not the whole result.
    ///
    /// # Safety
    /// The block has an item.
    unsafe fn partial(self) -> Option<*mut f32>;
}

/// The thread's key `j`, relative to its first one.
pub(in crate::attention) const fn key_of(j: usize) -> u32 {
    (j % 4 + j / 4 * 64) as u32
}
