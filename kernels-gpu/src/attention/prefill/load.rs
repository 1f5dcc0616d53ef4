//! Loads Q, K and V into shared memory, chunk by chunk.

use super::{BK, BM, PAD, Work, bn, key_of};
use crate::attention::unroll;
use crate::device::stored::Stored;
use crate::device::{Element, Shared};

/// Vectors of a chunk in flight from global to shared memory, not yet converted: two of Q and KEYS / 2 of K, or V.
/// Converting them here would make the warp wait for the loads before it computes the current chunk.
pub(super) type Staged = [[u32; 4]; 6];

/// One head's operands, and the part of them that this thread loads.
pub(super) struct Loader<Q, S> {
    pub q: *const Q,
    pub k: S,
    pub v: S,
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
}

impl<Q: Element, S: Stored> Loader<Q, S> {
    /// Columns `column` … of Q's block and of K's tile `tile`: thread t takes column 4 · (t mod 4) of rows t / 4,
    /// t / 4 + 32, …, so that eight threads read two whole sectors.
    ///
    /// # Safety
    /// q_len, kv_len and head_dim are not 0; the tile is at most one past the last.
    #[inline(always)]
    pub unsafe fn qk<const KEYS: usize, W: Work<KEYS>>(
        &self,
        work: W,
        tid: u32,
        tile: u32,
        column: u32,
    ) -> Staged {
        let row = tid / 4;
        let column = (column + tid % 4 * 4).min(self.head_dim - 4);
        let mut staged = [[0; 4]; 6];
        // SAFETY: the lengths are not 0, so the clamped rows are below them. Four columns from a multiple of four on are
        // below head_dim, a multiple of eight.
        unsafe {
            unroll!(I < 2 { staged[I] = Q::load4_words(self.q.add((self.q_at[I] + column) as usize)); });
            unroll!(I < 4 {
                if 2 * I < KEYS {
                    let at = self.k_head + work.key(tile, row + 32 * I as u32).min(self.last_key) * self.k_row;
                    staged[2 + I] = self.k.load4_words((at + column) as usize);
                }
            });
        }
        staged
    }

    /// Chunk `j` of V, keys 4 i + [`key_of`]\(j): thread t takes columns 4 · (t mod 8) + 32 … of i = t / 8.
    ///
    /// # Safety
    /// As [`qk`](Self::qk).
    #[inline(always)]
    pub unsafe fn v<const G: usize, const KEYS: usize, W: Work<KEYS>>(
        &self,
        work: W,
        tid: u32,
        tile: u32,
        j: u32,
    ) -> Staged {
        let column = tid % 8 * 4;
        let mut staged = [[0; 4]; 6];
        // SAFETY: as in `qk`.
        unsafe {
            let key = work.key(tile, tid / 8 * 4 + key_of(j as usize)).min(self.last_key);
            let at = self.v_head + key * self.v_row;
            unroll!(I < 4 {
                if I < 2 * G {
                    let column = (column + 32 * I as u32).min(self.head_dim - 4);
                    staged[I] = self.v.load4_words((at + column) as usize);
                }
            });
        }
        staged
    }

    /// Writes the result of [`qk`](Self::qk) for the same `column`, with zeros for Q past head_dim. In columns from the
    /// eighth on, rows are exchanged eight by eight, so that the 32 threads that write together have no bank conflicts.
    ///
    /// # Safety
    /// No thread reads the chunk.
    #[inline(always)]
    pub unsafe fn put_qk<const KEYS: usize>(
        &self,
        tid: u32,
        chunk: Shared<f32>,
        mut staged: Staged,
        column: u32,
    ) {
        let (row, part) = (tid / 4, tid % 4);
        if column + part * 4 >= self.head_dim {
            staged[0] = [0; 4]; // 0.0 in either type
            staged[1] = [0; 4];
        }
        let row = row ^ (part / 2 * 8);
        // SAFETY: rows and columns of Qᵀ [16, 64 + PAD] and Kᵀ [16, BN + PAD] after it; each thread writes its own elements.
        unsafe {
            let q = chunk.at(part * (4 * (BM + PAD)) + row);
            let k = chunk.at(BK * (BM + PAD) + part * (4 * (bn(KEYS) + PAD)) + row);
            unroll!(I < 2 {
                let values = Q::from_words(staged[I]);
                unroll!(E < 4 { q.set(E as u32 * (BM + PAD) + I as u32 * 32, values[E]); });
            });
            unroll!(I < 4 {
                if 2 * I < KEYS {
                    let values = self.k.values4(staged[2 + I]);
                    unroll!(E < 4 { k.set(E as u32 * (bn(KEYS) + PAD) + I as u32 * 32, values[E]); });
                }
            });
        }
    }

    /// Writes the result of [`v`](Self::v): [G, BK, 64].
    ///
    /// # Safety
    /// No thread reads the chunk.
    #[inline(always)]
    pub unsafe fn put_v<const G: usize>(&self, tid: u32, chunk: Shared<f32>, staged: Staged) {
        let at = chunk.at(tid / 8 * 64 + tid % 8 * 4);
        // SAFETY: keys below 16 and columns below 64 G of [G, 16, 64]; each thread writes its own elements.
        unsafe {
            unroll!(I < 4 {
                if I < 2 * G {
                    at.set4(I as u32 / 2 * (BK * 64) + I as u32 % 2 * 32, self.v.values4(staged[I]));
                }
            });
        }
    }
}
