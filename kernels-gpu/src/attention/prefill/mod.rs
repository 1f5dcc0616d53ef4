//! Attention over many queries: FlashAttention-2's tiling on the CUDA cores.
//!
//! Source: Dao 2023, "FlashAttention-2", algorithm 1; the running maximum and sum are Milakov & Gimelshein 2018,
//! algorithm 3.
//!
//! ```text
//! for each block of BM queries Q [BM, d] of a head:             (one thread block)
//!     O [BM, d] = 0; m [BM] = −∞; l [BM] = 0
//!     for each tile of BN keys that a query of the block attends to:
//!         S [BM, BN] = Q Kᵀ · scale, −∞ where masked
//!         m' = max(m, rowmax S); P = exp(S − m'); l = exp(m − m') l + rowsum P
//!         O = exp(m − m') O + P V; m = m'
//!     out = O / l
//! ```
//!
//! Differences between the code and this algorithm:
//! 1. Exponents are base 2, the factor log2 e is in `scale`.
//! 2. Q does not stay in shared memory. Q and K are loaded in chunks of BK = 16 columns, V in chunks of 16 keys, and P is stored
//!    half a tile at a time. So 48 KB of shared memory suffice for any head_dim.
//! 3. Chunks are double-buffered: while one is computed, the next is loaded into registers and then stored in the other
//!    buffer, with one barrier per chunk. P needs no barrier, because a warp reads only what it wrote.
//! 4. m and l are in shared memory, because O, S and the operands need the registers.
//! 5. A thread owns rows 16·warp + 8·ty + (0..8), keys 4·tx + (0..4) and, with KEYS = 8, those 64 further of S, and
//!    columns 4·tx + 64g + (0..4) of O, tx = lane mod 16, ty = lane / 16. So a row lies in the 16 lanes of half a warp: m
//!    is reduced by shuffles, l is kept per thread and reduced once at the end.
//! 6. Q, K and P are stored transposed, so that both products are sums of outer products. Otherwise both factors of a
//!    multiply-add would be in the same register bank. Keys of P and V are therefore taken by fours: a chunk of V has the keys
//!    4i + j of one j.
//! 7. Transposed tiles are padded or swizzled (XOR with the column's number), so that neither reads nor writes of shared
//!    memory have bank conflicts.
//! 8. A row that has seen no key has m = −∞. 0 is subtracted instead of m, which gives P = 0 and not NaN.
//! 9. A block has four warps, BM = 64. Block-sparse attention also has blocks of two and one, which load V in chunks of 8
//!    keys; one warp has a single chunk buffer, and synchronises itself instead of the block.
//! 10. Rows and keys past the end are read from the last valid one and masked, not zeroed.

pub(super) mod dense;
mod load;
mod products;

pub use dense::*;

use super::merge::STATE as STATE_ELEMENTS;
use super::{Tensors, not_zero, unroll};
use crate::device::math::{exp2, rcp};
use crate::device::{Element, Shared};
use crate::kv::Stored;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::gpu_only;
use cuda_std::prelude::*;
use load::Loader;
use products::{scores, weighted_values};

/// Warps of a block; those of the block-sparse kernels may be fewer.
pub(super) const WARPS: u32 = 4;
/// Queries of such a block.
pub(super) const BM: u32 = bm(WARPS);
/// Its threads; each owns 8 × KEYS scores and 8 × D/16 outputs.
pub(super) const THREADS: u32 = threads(WARPS);
/// Columns of Q and K in a chunk.
const BK: u32 = 16;

/// Queries that a block handles.
pub const QUERIES_PER_BLOCK: u32 = BM;

/// Keys of a tile of the dense kernels.
pub const KEYS_PER_TILE: u32 = bn(dense::KEYS);

/// Queries of a block of so many warps.
pub(super) const fn bm(warps: u32) -> u32 {
    16 * warps
}

/// Threads of a block of so many warps.
pub(super) const fn threads(warps: u32) -> u32 {
    32 * warps
}

/// Keys of V in a chunk. A thread loads one key's columns, or two keys' where the block has one warp.
const fn v_keys(warps: u32) -> u32 {
    if warps == 4 { 16 } else { 8 }
}

/// Keys of a tile of which a thread owns `keys`.
pub(super) const fn bn(keys: usize) -> u32 {
    16 * keys as u32
}

/// Elements of padding after each column of Q's and K's chunk, so that threads that write to it have no bank conflicts.
pub(super) const PAD: u32 = 4;

/// Elements of a chunk buffer: Qᵀ [BK, BM + PAD] and Kᵀ [BK, BN + PAD], or V [D / 64, v_keys, 64].
const fn chunk_elements(warps: u32, keys: usize) -> u32 {
    BK * (bm(warps) + PAD + bn(keys) + PAD)
}

/// Elements of all chunk buffers: two, or one where the block has one warp.
pub(super) const fn chunks_elements(warps: u32, keys: usize) -> u32 {
    chunk_elements(warps, keys) * if warps == 1 { 1 } else { 2 }
}

/// Elements of half of Pᵀ: [BM / 16, BN / 2, 16].
pub(super) const fn half_elements(warps: u32, keys: usize) -> u32 {
    bm(warps) * bn(keys) / 2
}

/// Elements of l, a part per thread: [2, threads, 4].
pub(super) const fn sums_elements(warps: u32) -> u32 {
    8 * threads(warps)
}

/// Shuffle steps: four for each of eight rows, for m in a tile and for l at the end.
pub(super) const SHUFFLES: u32 = 2 * 4 * 8;

/// The kernels' shared memory.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
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
pub(super) fn thread_index<const WARPS: u32>() -> u32 {
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
unsafe fn barrier<const WARPS: u32>() {
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
unsafe fn after_reading<const WARPS: u32>() {
    if WARPS == 1 {
        // SAFETY: this function's contract.
        unsafe { barrier::<WARPS>() }
    }
}

/// The indices of this thread, and its head and queries.
#[derive(Clone, Copy)]
pub(super) struct Place {
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
pub(super) fn read_indices() -> [u32; 3] {
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
pub(super) trait Work<const KEYS: usize>: Copy {
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
const fn key_of(j: usize) -> u32 {
    (j % 4 + j / 4 * 64) as u32
}

/// Two pieces of four, the second `apart` elements after the first.
///
/// # Safety
/// As [`Shared::get4`].
#[inline(always)]
unsafe fn load_8(at: Shared<f32>, apart: u32) -> [f32; 8] {
    // SAFETY: the pointer is at written elements, at multiples of four of its array (this function's contract).
    let ([a, b, c, d], [e, f, g, h]) = unsafe { (at.get4(0), at.get4(apart)) };
    [a, b, c, d, e, f, g, h]
}

/// As [`load_8`].
///
/// # Safety
/// As [`Shared::set4`].
#[inline(always)]
unsafe fn store_8(at: Shared<f32>, apart: u32, [a, b, c, d, e, f, g, h]: [f32; 8]) {
    // SAFETY: the pointer is at elements that only this thread accesses, at multiples of four of its array (this function's
    // contract).
    unsafe {
        at.set4(0, [a, b, c, d]);
        at.set4(apart, [e, f, g, h]);
    }
}

/// # Safety
/// `t`: as [`Prefill`] says; `work` gives queries of it and keys up to `last_key`, v's last row. All threads of the block
/// call it together, and `scratch` belongs to the block: chunks [[`chunks_elements`]], probabilities [[`half_elements`]],
/// maxima [BM], sums [[`sums_elements`]]. WARPS is 1, 2 or 4, BM = 16 WARPS, Q_STRIDE = BM + PAD; G = D / 64; BN = 16 KEYS,
/// K_STRIDE = BN + PAD.
#[inline(always)]
pub(super) unsafe fn prefill<
    Q: Element,
    S: Stored,
    const WARPS: u32,
    const G: usize,
    const KEYS: usize,
    const Q_STRIDE: u32,
    const K_STRIDE: u32,
    W: Work<KEYS>,
>(
    t: Tensors<Q, S>,
    last_key: u32,
    work: W,
    scratch: Scratch,
) {
    let Tensors { out, q, k, v, group, q_len, head_dim, scale_log2, .. } = t;
    let Tensors { out_strides, q_strides, k_strides, v_strides, .. } = t;
    let Scratch { chunks, probabilities, maxima, sums } = scratch;

    // SAFETY: the grid has a head, so the group is not 0.
    unsafe { not_zero(group) };

    // place tile
    let place = work.place();
    let Place { tid, tx, row, batch, head, first, .. } = place;
    let load = Loader {
        q,
        k,
        v,
        q_at: [0, 8 * WARPS].map(|row| {
            q_strides.offset(batch, head) + (first + tid / 4 + row).min(q_len - 1) * q_strides.row
        }),
        k_head: k_strides.offset(batch, head / group),
        v_head: v_strides.offset(batch, head / group),
        k_row: k_strides.row,
        v_row: v_strides.row,
        last_key,
        head_dim,
    };
    let mut tile = work.begin();

    // in a chunk: this thread's first row of Q, first key of K
    let (q_first, k_first) = (|row: u32| row, |tx: u32| BK * Q_STRIDE + tx * 4);
    let chunks_of_v = |keys: u32| keys / v_keys(WARPS);
    // of l's two parts
    let apart = 4 * threads(WARPS);

    let mut o = [[[0.0f32; 4]; G]; 8];
    // SAFETY: only this thread accesses these elements.
    unsafe {
        store_8(maxima.at(row), 4, [f32::NEG_INFINITY; 8]);
        store_8(sums.at(tid * 4), apart, [0.0; 8]);
    }
    // the offset of the chunk buffer that is read next; the other one is written meanwhile
    let mut side = 0;
    let other = |side: u32| if WARPS == 1 { side } else { chunk_elements(WARPS, KEYS) - side };
    if tile < work.end() {
        // SAFETY: there is a key, and the grid has no block without a query.
        unsafe { load.put_qk::<WARPS, KEYS>(tid, chunks, load.qk::<WARPS, KEYS, W>(work, tid, tile, 0), 0) };
    }

    while tile < work.end() {
        // S = Q Kᵀ
        // SAFETY: the block has this tile.
        let sees = unsafe { work.sees(place, tile) };
        let keys = work.keys(tile);
        // SAFETY: the block has this tile.
        let k_at = unsafe { load.k_rows::<WARPS, KEYS, W>(work, tid, tile) };
        let mut s = [[0.0f32; KEYS]; 8];
        let mut column = 0;
        while column < head_dim {
            // SAFETY: all threads run the same loops. After the barrier the chunk is complete, and no thread reads the other
            // one.
            unsafe {
                barrier::<WARPS>();
                column += BK;
                let staged = if column < head_dim {
                    if W::LISTED {
                        load.qk_at::<WARPS, KEYS>(tid, column, k_at)
                    } else {
                        load.qk::<WARPS, KEYS, W>(work, tid, tile, column)
                    }
                } else {
                    load.v::<WARPS, G, KEYS, W>(work, thread_index::<WARPS>(), tile, 0)
                };
                if sees {
                    let both = |at: u32| [chunks.at(side + at), chunks.at((side + at) ^ 8)]; // rows exchanged as in `put_qk`
                    if KEYS == 4 || keys > 64 {
                        scores::<KEYS, KEYS, Q_STRIDE, K_STRIDE>(
                            &mut s,
                            both(q_first(row)),
                            both(k_first(tx)),
                        );
                    } else {
                        // read again, because otherwise the compiler computes common subexpressions before the branch and
                        // waits for their operands
                        let Place { tx, row, .. } = work.place();
                        scores::<KEYS, 4, Q_STRIDE, K_STRIDE>(&mut s, both(q_first(row)), both(k_first(tx)));
                    }
                }
                after_reading::<WARPS>();
                side = other(side);
                if column < head_dim {
                    load.put_qk::<WARPS, KEYS>(tid, chunks.at(side), staged, column);
                } else {
                    load.put_v::<WARPS, G>(tid, chunks.at(side), staged);
                }
            }
        }

        // scale and mask
        let place = work.place();
        let Place { tid, tx, ty, row, .. } = place;
        let (m_state, l_state) = (maxima.at(row), sums.at(tid * 4));
        // half of Pᵀ of the warp's rows [KEYS / 2, 16, 16]: key 4 x + j at [j, x], fours of rows exchanged by (x / 2) mod 4
        let p_first = tid / 32 * (KEYS as u32 * 128) + ty * 8;
        let p_write = (p_first + tx * 16) ^ (tx / 2 % 4 * 4);
        unroll!(I < 8 {
            unroll!(J < KEYS { s[I][J] *= scale_log2; });
        });
        // SAFETY: the block has this tile.
        unsafe { work.mask(&mut s, place, tile) };

        // m' = max(m, rowmax S)
        // SAFETY: only this thread accesses these elements.
        let (m, mut l) = unsafe { (load_8(m_state, 4), load_8(l_state, apart)) };
        let mut next = m;
        unroll!(I < 8 {
            unroll!(J < KEYS { next[I] = next[I].max(s[I][J]); });
        });
        // SAFETY: all lanes are here.
        unroll!(I < 8 { next[I] = unsafe { Max.over::<16>(next[I]) }; });

        // P = exp(S − m'); l and O rescaled
        unroll!(I < 8 {
            let base = if next[I] == f32::NEG_INFINITY { 0.0 } else { next[I] };
            let rescale = exp2(m[I] - base);
            l[I] *= rescale;
            unroll!(J < KEYS {
                s[I][J] = exp2(s[I][J] - base);
                l[I] += s[I][J];
            });
            let mut g = 0;
            while g < G {
                unroll!(E < 4 { o[I][g][E] *= rescale; });
                g += 1;
            }
        });

        // SAFETY: only this thread accesses these elements.
        unsafe {
            if tx == 0 {
                store_8(m_state, 4, next);
            }
            store_8(l_state, apart, l);
        }

        // O += P V, by halves of the keys
        let mut j = 0;
        let half = chunks_of_v(8 * KEYS as u32);
        while j < chunks_of_v(keys) {
            // P to shared memory: a warp reads only its own rows
            // SAFETY: all lanes are here, and have read the previous half.
            unsafe { warp::sync_warp(warp::FULL_MASK) };
            unroll!(J < 4 {
                if 2 * J < KEYS {
                    unroll!(HALF < 2 {
                        let rows = [s[4 * HALF][J], s[4 * HALF + 1][J], s[4 * HALF + 2][J], s[4 * HALF + 3][J]];
                        // SAFETY: rows and keys of the warp's, each element by one thread.
                        unsafe { probabilities.at(p_write ^ (HALF as u32 * 4)).set4(J as u32 * 256, rows) };
                    });
                    unroll!(I < 8 { s[I][J] = s[I][J + KEYS / 2]; });
                }
            });
            let end = (j + half).min(chunks_of_v(keys));
            while j < end {
                // SAFETY: all threads reach every barrier, and between two of them one buffer is read and the other written; the first
                // barrier also completes P.
                unsafe {
                    barrier::<WARPS>();
                    let p = p_first + j % half * (16 * v_keys(WARPS));
                    j += 1;
                    let staged = if j < chunks_of_v(keys) {
                        load.v::<WARPS, G, KEYS, W>(work, tid, tile, j)
                    } else {
                        load.qk::<WARPS, KEYS, W>(work, thread_index::<WARPS>(), tile + W::STEP, 0) // after the last tile unused
                    };
                    if sees {
                        let p = [0, 1, 2, 3].map(|x| probabilities.at(p ^ (x * 4)));
                        weighted_values::<WARPS, G>(&mut o, p, chunks.at(side + tx * 4));
                    }
                    after_reading::<WARPS>();
                    side = other(side);
                    if j < chunks_of_v(keys) {
                        load.put_v::<WARPS, G>(tid, chunks.at(side), staged);
                    } else {
                        load.put_qk::<WARPS, KEYS>(thread_index::<WARPS>(), chunks.at(side), staged, 0);
                    }
                }
            }
        }
        tile += W::STEP;
    }

    // write O / l, or O, m and l
    let Place { tid, tx, row, batch, head, first, .. } = work.place();
    let head = out_strides.offset(batch, head);
    // SAFETY: only this thread accesses these elements.
    let mut l = unsafe { load_8(sums.at(tid * 4), apart) };
    // SAFETY: all lanes are here.
    unroll!(I < 8 { l[I] = unsafe { Sum.over::<16>(l[I]) }; });
    // SAFETY: the block's own item.
    if let Some(partial) = unsafe { work.partial() } {
        let width = 64 * G as u32 + STATE_ELEMENTS;
        // SAFETY: only this thread accesses these elements.
        let m = unsafe { load_8(maxima.at(row), 4) };
        unroll!(I < 8 {
            // SAFETY: the row is below BM of [BM, D + 4]; each thread writes its own columns, one lane a row's m and l.
            unsafe {
                let record = partial.add(((row + I as u32) * width) as usize);
                let mut g = 0;
                while g < G {
                    f32::store4(record.add((tx * 4 + g as u32 * 64) as usize), o[I][g]);
                    g += 1;
                }
                if tx == 0 {
                    *record.add(64 * G) = m[I];
                    *record.add(64 * G + 1) = l[I];
                }
            }
        });
        return;
    }
    unroll!(I < 8 {
        let i = first + row + I as u32;
        let factor = if l[I] == 0.0 { 0.0 } else { rcp(l[I]) };
        let mut g = 0;
        while g < G {
            let column = tx * 4 + g as u32 * 64;
            if i < q_len && column < head_dim {
                let values = o[I][g].map(|x| x * factor);
                // SAFETY: row and columns are inside this head's output, rows 8-element aligned.
                unsafe { Q::store4(out.add((head + i * out_strides.row + column) as usize), values) };
            }
            g += 1;
        }
    });
}
