//! Loads Q, K and V into shared memory, chunk by chunk.

use super::block::{BK, PAD, Work, bm, bn, key_of, v_keys};
use super::factors::Factors;
use crate::device::Shared;
use crate::device::unroll::unroll;
use crate::kv::Stored;
use cuda_std::inlined;

/// Vectors of a chunk in flight from global to shared memory, not yet converted: two of Q and 2 KEYS / WARPS of K, or V.
/// Converting them here would make the warp wait for the loads before it computes the current chunk.
pub(in crate::attention) type Staged = [[u32; 4]; 10];

/// One head's operands, and the part of them that this thread loads.
pub(in crate::attention) struct Loader<F, V> {
    pub factors: F,
    pub v: V,
    /// The first elements of the thread's two rows of Q.
    pub q_at: [u32; 2],
    /// The head's first elements.
    pub k_head: u32,
    pub v_head: u32,
    pub k_row: u32,
    pub v_row: u32,
    /// The last key. Reads past it are clamped to it.
    pub last_key: u32,
    pub head_dim: u32,
    /// Elements of a row of Q or K.
    pub columns: u32,
}

#[inlined]
impl<F: Factors, V: Stored> Loader<F, V> {
    /// Columns `column` … of Q's block and of K's tile `tile`: thread t takes column 4 · (t mod 4) of rows t / 4,
    /// t / 4 + 8 WARPS, …, so that eight threads read two whole sectors.
    ///
    /// # Safety
    /// q_len, kv_len and head_dim are not 0; the tile is at most one past the last.
    pub unsafe fn qk<const WARPS: u32, const KEYS: usize, W: Work<KEYS>>(
        &self,
        work: W,
        tid: u32,
        tile: u32,
        column: u32,
    ) -> Staged {
        // SAFETY: this function's contract.
        unsafe { self.qk_at::<WARPS, KEYS>(tid, column, self.k_rows::<WARPS, KEYS, W>(work, tid, tile)) }
    }

    /// The first elements of the thread's rows of K's tile `tile`: t / 4, t / 4 + 8 WARPS, …
    ///
    /// # Safety
    /// As [`qk`](Self::qk).
    pub unsafe fn k_rows<const WARPS: u32, const KEYS: usize, W: Work<KEYS>>(
        &self,
        work: W,
        tid: u32,
        tile: u32,
    ) -> [u32; 8] {
        let row = tid / 4;
        let mut rows = [0; 8];
        unroll!(I < 8 => {
            if I as u32 * WARPS < 2 * KEYS as u32 {
                // SAFETY: the tile is at most one past the last.
                let key = unsafe {
                    if WARPS == 1 {
                        work.key_of_group(tile, I as u32 / 2, row + I as u32 % 2 * 8)
                    } else {
                        work.key(tile, row + 8 * WARPS * I as u32)
                    }
                };
                rows[I] = self.k_head + key.min(self.last_key) * self.k_row;
            }
        });
        rows
    }

    /// [`qk`](Self::qk) of these rows of K.
    ///
    /// # Safety
    /// As [`qk`](Self::qk); `k_at`: as [`k_rows`](Self::k_rows) gives it.
    pub unsafe fn qk_at<const WARPS: u32, const KEYS: usize>(
        &self,
        tid: u32,
        column: u32,
        k_at: [u32; 8],
    ) -> Staged {
        let column = (column + tid % 4 * 4).min(self.columns - 4);
        let mut staged = [[0; 4]; 10];
        // SAFETY: the lengths are not 0, so the clamped rows are below them. Four columns from a multiple of four on are
        // below those of a row, a multiple of four.
        unsafe {
            unroll!(I < 2 => { staged[I] = self.factors.load4_q((self.q_at[I] + column) as usize); });
            unroll!(I < 8 => {
                if I as u32 * WARPS < 2 * KEYS as u32 {
                    staged[2 + I] = self.factors.load4_k((k_at[I] + column) as usize);
                }
            });
        }
        staged
    }

    /// Chunk `n` of V, the c-th of those with keys 4 i + [`key_of`]\(j), i from c · v_keys on: thread t takes columns
    /// 4 · (t mod 8) + 32 … of i = c · v_keys + t / 8 and, in a block of one warp, of i + 4.
    ///
    /// # Safety
    /// As [`qk`](Self::qk).
    pub unsafe fn v<const WARPS: u32, const G: usize, const X: usize, const KEYS: usize, W: Work<KEYS>>(
        &self,
        work: W,
        tid: u32,
        tile: u32,
        n: u32,
    ) -> Staged {
        let parts = 16 / v_keys(WARPS);
        let (j, c) = (n / parts, n % parts);
        let column = tid % 8 * 4;
        let mut staged = [[0; 4]; 10];
        // SAFETY: the lengths are not 0, so the clamped keys are below them; the columns are clamped below head_dim.
        unsafe {
            unroll!(N < 2 => {
                if N as u32 * 4 * WARPS < v_keys(WARPS) {
                    let row = (c * v_keys(WARPS) + tid / 8) * 4 + key_of(j as usize) + N as u32 * 16;
                    let at = self.v_head + work.key(tile, row).min(self.last_key) * self.v_row;
                    unroll!(I < 4 => {
                        if I < 2 * G {
                            let column = (column + 32 * I as u32).min(self.head_dim - 4);
                            staged[N * 2 * G + I] = self.v.load4_words((at + column) as usize);
                        }
                    });
                    if X > 0 {
                        let column = (column + 64 * G as u32).min(self.head_dim - 4);
                        staged[2 * G] = self.v.load4_words((at + column) as usize);
                    }
                }
            });
        }
        staged
    }

    /// Writes the result of [`qk`](Self::qk) for the same `column`, with zeros for Q past its columns. In columns from the
    /// eighth on, rows are exchanged eight by eight, so that the 32 threads that write together have no bank conflicts.
    ///
    /// # Safety
    /// No thread reads the chunk.
    pub unsafe fn put_qk<const WARPS: u32, const KEYS: usize>(
        &self,
        tid: u32,
        chunk: Shared<f32>,
        mut staged: Staged,
        column: u32,
    ) {
        let (row, part) = (tid / 4, tid % 4);
        if column + part * 4 >= self.columns {
            staged[0] = [0; 4]; // zeros in any type
            staged[1] = [0; 4];
        }
        let (q_stride, k_stride) = (bm(WARPS) + PAD, bn(KEYS) + PAD);
        let row = row ^ (part / 2 * 8);
        // SAFETY: rows and columns of Qᵀ [16, BM + PAD] and Kᵀ [16, BN + PAD] after it; each thread writes its own elements.
        unsafe {
            let q = chunk.at(part * (4 * q_stride) + row);
            let k = chunk.at(BK * q_stride + part * (4 * k_stride) + row);
            // the thread's row I: with one warp, rows 8 apart are exchanged too
            let [q_odd, k_odd] = [(q, row), (k, row)].map(|(at, row)| at.at((row ^ 8).wrapping_sub(row)));
            let more = |i: usize| if WARPS == 1 { i as u32 / 2 * 16 } else { i as u32 * 8 * WARPS };
            unroll!(I < 2 => {
                let values = self.factors.q_values(staged[I]);
                let q = if WARPS == 1 && I % 2 == 1 { q_odd } else { q };
                unroll!(E < 4 => { q.set(E as u32 * q_stride + more(I), values[E]); });
            });
            unroll!(I < 8 => {
                if I as u32 * WARPS < 2 * KEYS as u32 {
                    let values = self.factors.k_values(staged[2 + I]);
                    let k = if WARPS == 1 && I % 2 == 1 { k_odd } else { k };
                    unroll!(E < 4 => { k.set(E as u32 * k_stride + more(I), values[E]); });
                }
            });
        }
    }

    /// Writes the result of [`v`](Self::v): [G, v_keys, 64], and with X [v_keys, 16] after it, which blocks of four warps have.
    ///
    /// # Safety
    /// No thread reads the chunk.
    pub unsafe fn put_v<const WARPS: u32, const G: usize, const X: usize>(
        &self,
        tid: u32,
        chunk: Shared<f32>,
        staged: Staged,
    ) {
        let at = chunk.at(tid / 8 * 64 + tid % 8 * 4);
        // SAFETY: keys below v_keys and columns below 64 G of [G, v_keys, 64]; each thread writes its own elements.
        unsafe {
            unroll!(N < 2 => {
                if N as u32 * 4 * WARPS < v_keys(WARPS) {
                    let at = at.at(N as u32 * 4 * 64);
                    unroll!(I < 4 => {
                        if I < 2 * G {
                            let group = I as u32 / 2 * (v_keys(WARPS) * 64);
                            at.set4(group + I as u32 % 2 * 32, self.v.values4(staged[N * 2 * G + I]));
                        }
                    });
                }
            });
            if X > 0 && tid % 8 < 4 {
                let further = chunk.at(G as u32 * v_keys(WARPS) * 64 + tid / 8 * 16 + tid % 8 * 4);
                further.set4(0, self.v.values4(staged[2 * G]));
            }
        }
    }
}
