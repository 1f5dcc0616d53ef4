//! Attention over many queries: FlashAttention-2's tiling on the CUDA cores.
//!
//! Source: Dao 2023, "FlashAttention-2", algorithm 1; the running maximum and sum are Milakov & Gimelshein 2018,
//! algorithm 3.
//!
//! ```text
//! for each block of BM queries Q [BM, d] of a head:             (one thread block)
//!     O [BM, d] = 0; m [BM] = −∞; l [BM] = 0
//!     for each tile of BN keys that a query of the block sees:
//!         S [BM, BN] = Q Kᵀ · scale, −∞ where masked
//!         m' = max(m, rowmax S); P = exp(S − m'); l = exp(m − m') l + rowsum P
//!         O = exp(m − m') O + P V; m = m'
//!     out = O / l
//! ```
//!
//! How the code departs from it:
//! 1. Exponents are base 2, the factor log2 e is in `scale`.
//! 2. Q is not kept: Q and K come through shared memory in chunks of BK = 16 of the head's extent, V in chunks of
//!    16 keys, so that 32 KB of shared memory hold any head_dim. Registers are for two blocks on a multiprocessor: with
//!    those of three, f16 spills on sm_61, and on an H200 1024 queries took up to a fifth longer, 4096 the same.
//! 3. The next chunk is loaded into registers while this one is computed.
//! 4. m and l live in shared memory, a copy per thread: registers are for O, S and the operands.
//! 5. A thread owns rows 16·warp + ty + 2i (i < 8), keys tx + 16j (j < 4) of S and columns 4·tx + 64g + (0..4) of O,
//!    tx = lane mod 16, ty = lane / 16. So a row lies in the 16 lanes of half a warp: m is reduced by shuffles, l
//!    is kept per thread and reduced once at the end.
//! 6. Instead of padding, 16-byte columns are exchanged by XOR with the row's number, so that neither reads nor
//!    writes of shared memory meet in a bank.
//! 7. A row without a key so far has m = −∞; 0 is subtracted in its place, which gives P = 0 and not NaN.
//! 8. Rows and keys past the end are read from the last valid one and masked, not zeroed.

use super::merge::STATE as STATE_ELEMENTS;
use super::{Strides, not_zero, unroll};
use crate::device::math::{exp2, fma, rcp};
use crate::device::stored::{Blocks, Coded, Stored};
use crate::device::{Element, F16, Shared, shared};
use crate::spec::KernelSpec;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::gpu_only;
use cuda_std::prelude::*;

/// Queries of a block.
pub(super) const BM: u32 = 64;
/// Keys of a tile.
pub(super) const BN: u32 = 64;
/// Columns of Q and K, and keys of V, in a chunk.
const BK: u32 = 16;
/// Four warps; each thread owns 8 × 4 scores and 8 × D/16 outputs.
pub(super) const THREADS: u32 = 128;

/// Queries that a block handles.
pub const QUERIES_PER_BLOCK: u32 = BM;

/// Elements of the chunk buffer: Q [BM, BK] and K [BN, BK], or V [D / 64, BK, 64].
const CHUNK: u32 = 2 * BM * BK;
/// Elements of P [BM, BN].
const PROBABILITIES: u32 = BM * BN;
/// Elements of m and l, a copy per thread: [m or l, 2, THREADS, 4].
const STATE: u32 = 16 * THREADS;
pub(super) const SHARED_BYTES: u32 = 4 * (CHUNK + PROBABILITIES + STATE);

/// Four steps for each of eight rows, of m in a tile and of l at the end.
pub(super) const SHUFFLES: u32 = 2 * 4 * 8;

const fn spec(name: &'static str, min_blocks: u32) -> KernelSpec {
    KernelSpec::new(name, THREADS).min_blocks(min_blocks).shared_bytes(SHARED_BYTES).shuffles(SHUFFLES)
}

/// head_dim ≤ 64: grid = [b · num_q_heads, ceil(q_len / QUERIES_PER_BLOCK)], by [`Types`](super::Types).
pub const PREFILL_D64: [KernelSpec; 3] = [
    spec("attention_prefill_d64_f32", 2),
    spec("attention_prefill_d64_f16", 2),
    spec("attention_prefill_d64_f32_f16", 2),
];

/// head_dim ≤ 128; else as [`PREFILL_D64`].
pub const PREFILL_D128: [KernelSpec; 3] = [
    spec("attention_prefill_d128_f32", 2),
    spec("attention_prefill_d128_f16", 2),
    spec("attention_prefill_d128_f32_f16", 2),
];

/// q and out f32, k and v in a 16-bit format with any exponent bits; head_dim ≤ 128, grid as [`PREFILL_D64`].
pub const PREFILL_CODED: KernelSpec = spec("attention_prefill_d128_f32_coded", 2);
/// q and out f32, k and v in blocks of 8 bits; else as [`PREFILL_CODED`].
pub const PREFILL_Q8_0: KernelSpec = spec("attention_prefill_d128_f32_q8_0", 2);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &[
    PREFILL_D64[0],
    PREFILL_D64[1],
    PREFILL_D64[2],
    PREFILL_D128[0],
    PREFILL_D128[1],
    PREFILL_D128[2],
    PREFILL_CODED,
    PREFILL_Q8_0,
];

/// Which thread, head and queries this is.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub tid: u32,
    /// lane mod 16
    pub tx: u32,
    /// lane / 16
    pub ty: u32,
    /// The thread's first row in the tile; its others are row + 2 i.
    pub row: u32,
    pub batch: u32,
    pub head: u32,
    /// The block's first query.
    pub first: u32,
}

/// The thread's index and the block's along x and y, read anew at each call.
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
    /// Of thread `tid` of a block with these queries.
    #[inline(always)]
    pub fn new(tid: u32, batch: u32, head: u32, first: u32) -> Self {
        let (tx, ty) = (tid % 16, tid / 16 % 2);
        Self { tid, tx, ty, row: tid / 32 * 16 + ty, batch, head, first }
    }
}

/// What a block works on: a block of queries, tiles of keys, and which of them see each other.
pub(super) trait Work: Copy {
    /// Reads the special registers at each call anew, so that what follows from them need not stay in registers
    /// between the phases.
    fn place(self) -> Place;

    /// The same place, read anew where registers are scarce.
    #[inline(always)]
    fn again(self, place: Place) -> Place {
        place
    }

    /// From one tile to the next.
    const STEP: u32;

    /// The first of the block's tiles. Called once, before all that follows.
    fn begin(&mut self, place: Place) -> u32;

    /// One past the last.
    fn end(self) -> u32;

    /// The key that is row `row` of a tile, or behind the last one. Rows of one sixteen follow each other.
    ///
    /// # Safety
    /// At most one tile behind the last.
    unsafe fn key(self, tile: u32, row: u32) -> u32;

    /// Whether a row of the thread's warp sees a key of the tile; the same for all lanes.
    ///
    /// # Safety
    /// The block has this tile.
    unsafe fn sees(self, place: Place, tile: u32) -> bool;

    /// −∞ where a row does not see a key: rows row + 2i, keys tx + 16j.
    ///
    /// # Safety
    /// As [`sees`](Self::sees).
    unsafe fn mask(self, s: &mut [[f32; 4]; 8], place: Place, tile: u32);

    /// Where a partial result [BM, D + 4] of these queries goes, if theirs is not the whole.
    ///
    /// # Safety
    /// As the kernels'.
    unsafe fn partial(self) -> Option<*mut f32>;
}

/// All keys, or those up to each query's position.
#[derive(Clone, Copy)]
struct Dense {
    num_q_heads: u32,
    q_len: u32,
    kv_len: u32,
    /// All ones if causal, else 0: a mask and no condition, so that the compiler makes no branches of it.
    causal: u32,
    /// Keys that the block's first and so every query sees.
    seen_by_all: u32,
    /// One past the last tile.
    end: u32,
}

impl Dense {
    /// As [`visible`](super::visible).
    #[inline(always)]
    fn visible(self, i: u32) -> i32 {
        self.kv_len as i32 + ((i as i32 + 1 - self.q_len as i32) & self.causal as i32)
    }
}

impl Work for Dense {
    const STEP: u32 = 1;

    /// The blocks with the most keys come first, so that short ones fill the gaps at the end.
    #[inline(always)]
    fn place(self) -> Place {
        let [tid, x, y] = read_indices();
        Place::new(tid, x / self.num_q_heads, x % self.num_q_heads, (thread::grid_dim_y() - 1 - y) * BM)
    }

    #[inline(always)]
    fn begin(&mut self, Place { first, .. }: Place) -> u32 {
        let last = (first + BM).min(self.q_len) - 1;
        self.seen_by_all = self.visible(first).max(0) as u32;
        self.end = (self.visible(last).max(0) as u32).div_ceil(BN);
        0
    }

    #[inline(always)]
    fn end(self) -> u32 {
        self.end
    }

    #[inline(always)]
    unsafe fn key(self, tile: u32, row: u32) -> u32 {
        tile * BN + row
    }

    #[inline(always)]
    unsafe fn sees(self, _: Place, _: u32) -> bool {
        true
    }

    /// Rows past q_len see what they like: they are not written.
    #[inline(always)]
    unsafe fn mask(self, s: &mut [[f32; 4]; 8], place: Place, tile: u32) {
        if tile * BN + BN > self.seen_by_all {
            let key = tile * BN + place.tx;
            let past_row = key as i32 - self.visible(place.first + place.row);
            let per_row = (2 & self.causal) as i32;
            unroll!(I < 8 {
                unroll!(J < 4 {
                    let masked = past_row + 16 * J as i32 >= per_row * I as i32;
                    if masked || key + 16 * J as u32 >= self.kv_len {
                        s[I][J] = f32::NEG_INFINITY;
                    }
                });
            });
        }
    }

    #[inline(always)]
    unsafe fn partial(self) -> Option<*mut f32> {
        None
    }
}

/// This thread's eight values of m or l, [2, THREADS, 4] from `state` on.
///
/// # Safety
/// Written by this thread before.
#[inline(always)]
unsafe fn load_state(state: Shared<f32>) -> [f32; 8] {
    // SAFETY: as the caller promises.
    let ([a, b, c, d], [e, f, g, h]) = unsafe { (state.get4(0), state.get4(4 * THREADS)) };
    [a, b, c, d, e, f, g, h]
}

/// # Safety
/// `state` is this thread's place.
#[inline(always)]
unsafe fn store_state(state: Shared<f32>, [a, b, c, d, e, f, g, h]: [f32; 8]) {
    // SAFETY: as the caller promises.
    unsafe {
        state.set4(0, [a, b, c, d]);
        state.set4(4 * THREADS, [e, f, g, h]);
    }
}

/// Four chunk vectors on their way from global to shared memory, as they lay there: Q, Q, K, K, or V. Converting them
/// here would wait for the loads before the chunk in hand is computed.
type Staged = [[u32; 4]; 4];

/// One head's operands, and what this thread loads of them.
struct Loader<TQ, S> {
    q: *const TQ,
    k: S,
    v: S,
    /// The head's first elements.
    q_head: u32,
    k_head: u32,
    v_head: u32,
    q_row: u32,
    k_row: u32,
    v_row: u32,
    q_len: u32,
    /// The last key; keys behind it are read from it.
    last_key: u32,
    head_dim: u32,
}

impl<TQ: Element, S: Stored> Loader<TQ, S> {
    /// Columns `column` … of Q's block and of K's tile `tile`: thread t takes column 4 · (t mod 4) of rows t / 4 and
    /// t / 4 + 32.
    ///
    /// # Safety
    /// q_len, kv_len and head_dim are not 0; at most one tile behind the last.
    #[inline(always)]
    unsafe fn qk<W: Work>(&self, work: W, place: Place, tile: u32, column: u32) -> Staged {
        let row = place.tid / 4;
        let column = (column + place.tid % 4 * 4).min(self.head_dim - 4);
        let (last_q, last_k) = (self.q_len - 1, self.last_key);
        let q = place.first + row;
        // SAFETY: as the caller promises.
        let (k, k_32) = unsafe { (work.key(tile, row), work.key(tile, row + 32)) };
        let q_at = |i: u32| (self.q_head + i.min(last_q) * self.q_row + column) as usize;
        let k_at = |i: u32| (self.k_head + i.min(last_k) * self.k_row + column) as usize;
        // SAFETY: rows are below the lengths, and four columns from a multiple of four on are below head_dim, a
        // multiple of eight.
        unsafe {
            [
                TQ::load4_words(self.q.add(q_at(q))),
                TQ::load4_words(self.q.add(q_at(q + 32))),
                self.k.load4_words(k_at(k)),
                self.k.load4_words(k_at(k_32)),
            ]
        }
    }

    /// BK keys of V from `key` on: in pass p thread t takes column 4 · (t mod 16 G) of key t / 16 G + 8 p / G.
    ///
    /// # Safety
    /// As [`qk`](Self::qk).
    #[inline(always)]
    unsafe fn v<const G: usize>(&self, place: Place, key: u32) -> Staged {
        let per_key = 16 * G as u32;
        let row = key + place.tid / per_key;
        let column = (place.tid % per_key * 4).min(self.head_dim - 4);
        let last = self.last_key;
        let row_at = |pass: u32| (row + pass * (THREADS / per_key)).min(last) * self.v_row;
        let at = |pass: u32| (self.v_head + row_at(pass) + column) as usize;
        let mut staged = [[0; 4]; 4];
        // SAFETY: as in `qk`.
        unsafe {
            staged[0] = self.v.load4_words(at(0));
            staged[1] = self.v.load4_words(at(1));
            if G == 2 {
                staged[2] = self.v.load4_words(at(2));
                staged[3] = self.v.load4_words(at(3));
            }
        }
        staged
    }

    /// Writes what [`qk`](Self::qk) gave for the same `column`: [row, BK] with 16-byte columns exchanged by
    /// (row / 2) mod 4, and Q zero past head_dim.
    ///
    /// # Safety
    /// Nobody reads the chunk.
    #[inline(always)]
    unsafe fn put_qk(&self, place: Place, chunk: Shared<f32>, mut staged: Staged, column: u32) {
        let (row, part) = (place.tid / 4, place.tid % 4);
        if column + part * 4 >= self.head_dim {
            staged[0] = [0; 4]; // 0.0 in either type
            staged[1] = [0; 4];
        }
        let at = chunk.at(row * BK + (part ^ (row / 2 % 4)) * 4);
        // SAFETY: rows below 64 and columns below 16 of two arrays [64, 16]; each thread its own elements. Rows 32
        // apart have the same (row / 2) mod 4.
        unsafe {
            at.set4(0, TQ::from_words(staged[0]));
            at.set4(32 * BK, TQ::from_words(staged[1]));
            at.set4(BM * BK, self.k.from_words(staged[2]));
            at.set4((BM + 32) * BK, self.k.from_words(staged[3]));
        }
    }

    /// Writes what [`v`](Self::v) gave: [G, BK, 64].
    ///
    /// # Safety
    /// Nobody reads the chunk.
    #[inline(always)]
    unsafe fn put_v<const G: usize>(&self, place: Place, chunk: Shared<f32>, staged: Staged) {
        let per_key = 16 * G as u32;
        let (row, column) = (place.tid / per_key, place.tid % per_key);
        let pass = THREADS / per_key * 64;
        let at = chunk.at(column / 16 * (BK * 64) + row * 64 + column % 16 * 4);
        // SAFETY: keys below 16 and columns below 64 G of [G, 16, 64]; each thread its own elements.
        unsafe {
            at.set4(0, self.v.from_words(staged[0]));
            at.set4(pass, self.v.from_words(staged[1]));
            if G == 2 {
                at.set4(2 * pass, self.v.from_words(staged[2]));
                at.set4(3 * pass, self.v.from_words(staged[3]));
            }
        }
    }
}

/// s += Q K ᵀ over one chunk. `q` is this thread's first row, `k[c]` its first key's 16-byte column c.
///
/// # Safety
/// The chunk is written and a barrier has passed.
#[inline(always)]
unsafe fn scores(s: &mut [[f32; 4]; 8], q: Shared<f32>, k: [Shared<f32>; 4]) {
    unroll!(C < 4 {
        let mut keys = [[0.0; 4]; 4];
        unroll!(J < 4 {
            // SAFETY: key tx + 16 J, below 64.
            keys[J] = unsafe { k[C].get4_at::<{ J as u32 * 16 }, BK, 0, 0>() };
        });
        unroll!(I < 8 {
            // SAFETY: row 16 warp + ty + 2 I, below 64; (row / 2) mod 4 = I mod 4.
            let query = unsafe { q.get4_at::<{ I as u32 * 2 }, BK, { (C ^ (I & 3)) as u32 }, 4>() };
            unroll!(E < 4 {
                unroll!(J < 4 { s[I][J] = fma(query[E], keys[J][E], s[I][J]); });
            });
        });
    });
}

/// o += P V over one chunk of keys. `p` is this thread's first row at the chunk's first key, `v` its first column.
///
/// # Safety
/// The chunk and P are written and a barrier has passed.
#[inline(always)]
unsafe fn weighted_values<const G: usize>(o: &mut [[[f32; 4]; G]; 8], p: Shared<f32>, v: Shared<f32>) {
    unroll!(C < 4 {
        let mut values = [[[0.0; 4]; 4]; G];
        let mut g = 0;
        while g < G {
            unroll!(K < 4 {
                // SAFETY: key 4 C + K, below 16, of group g's [16, 64].
                values[g][K] = unsafe { v.at(g as u32 * BK * 64).get4_at::<{ (C * 4 + K) as u32 }, 64, 0, 0>() };
            });
            g += 1;
        }
        unroll!(I < 8 {
            // SAFETY: row 16 warp + ty + 2 I, below 64, at four of the chunk's keys.
            let weights = unsafe { p.get4_at::<{ I as u32 * 2 }, BN, { C as u32 }, 4>() };
            unroll!(K < 4 {
                let mut g = 0;
                while g < G {
                    unroll!(E < 4 { o[I][g][E] = fma(weights[K], values[g][K][E], o[I][g][E]); });
                    g += 1;
                }
            });
        });
    });
}

/// # Safety
/// As the kernels below; G = D / 64.
#[inline(always)]
pub(super) unsafe fn prefill<TQ: Element, S: Stored, const G: usize, W: Work>(
    out: *mut TQ,
    q: *const TQ,
    k: S,
    v: S,
    [out_strides, q_strides, k_strides, v_strides]: [Strides; 4],
    group: u32,
    q_len: u32,
    last_key: u32,
    head_dim: u32,
    scale_log2: f32,
    mut work: W,
) {
    let chunk = shared::declare::<f32, { CHUNK as usize }>();
    let probabilities = shared::declare::<f32, { PROBABILITIES as usize }>();

    let state = shared::declare::<f32, { STATE as usize }>();

    // SAFETY: a head belongs to a group.
    unsafe { not_zero(group) };

    // place tile
    let place = work.place();
    let Place { tid, tx, row, batch, head, .. } = place;
    let load = Loader {
        q,
        k,
        v,
        q_head: q_strides.offset(batch, head),
        k_head: k_strides.offset(batch, head / group),
        v_head: v_strides.offset(batch, head / group),
        q_row: q_strides.row,
        k_row: k_strides.row,
        v_row: v_strides.row,
        q_len,
        last_key,
        head_dim,
    };
    let mut tile = work.begin(place);

    let q_chunk = chunk.at(row * BK);
    let k_column = |c: u32| chunk.at(BM * BK + tx * BK + (c ^ (tx / 2 % 4)) * 4);
    let k_chunk = [k_column(0), k_column(1), k_column(2), k_column(3)];
    let state_of = |tid: u32| (state.at(tid * 4), state.at(8 * THREADS + tid * 4));
    let (m_state, l_state) = state_of(tid);

    let mut o = [[[0.0f32; 4]; G]; 8];
    // SAFETY: this thread's own elements.
    unsafe {
        store_state(m_state, [f32::NEG_INFINITY; 8]);
        store_state(l_state, [0.0; 8]);
    }
    let mut staged = [[0; 4]; 4];
    if tile < work.end() {
        // SAFETY: there is a key, and the grid has no block without a query.
        staged = unsafe { load.qk(work, place, tile, 0) };
    }

    while tile < work.end() {
        // S = Q Kᵀ
        // SAFETY: the block has this tile.
        let sees = unsafe { work.sees(place, tile) };
        let mut s = [[0.0f32; 4]; 8];
        let mut column = 0;
        while column < head_dim {
            // SAFETY: all threads run the same loops. Between the barriers nobody reads the chunk; behind the second
            // it is complete.
            unsafe {
                let place = work.again(place);
                thread::sync_threads();
                load.put_qk(place, chunk, staged, column);
                thread::sync_threads();
                column += BK;
                staged = if column < head_dim {
                    load.qk(work, place, tile, column)
                } else {
                    load.v::<G>(work.place(), work.key(tile, 0))
                };
                if sees {
                    scores(&mut s, q_chunk, k_chunk);
                }
            }
        }

        // scale and mask
        let place = work.place();
        let Place { tid, tx, ty, row, .. } = place;
        let (m_state, l_state) = state_of(tid);
        // P [BM, BN]: the halves of 32 keys are exchanged 16 by 16 in odd rows, which are those of ty = 1
        let p_row = probabilities.at(row * BN);
        let p_write = [p_row.at(tx + 16 * ty), p_row.at(tx + 16 * (1 - ty))];
        let v_chunk = chunk.at(tx * 4);
        unroll!(I < 8 {
            unroll!(J < 4 { s[I][J] *= scale_log2; });
        });
        // SAFETY: the block has this tile.
        unsafe { work.mask(&mut s, place, tile) };

        // m' = max(m, rowmax S)
        // SAFETY: this thread's own elements.
        let (m, mut l) = unsafe { (load_state(m_state), load_state(l_state)) };
        let mut next = m;
        unroll!(I < 8 {
            unroll!(J < 4 { next[I] = next[I].max(s[I][J]); });
        });
        unroll!(STEP < 4 {
            unroll!(I < 8 {
                // SAFETY: all lanes are here.
                let (other, _) = unsafe { warp::warp_shuffle_xor(warp::FULL_MASK, next[I], 8 >> STEP, 32) };
                next[I] = next[I].max(other);
            });
        });

        // P = exp(S − m'), to shared memory; l and O rescaled
        unroll!(I < 8 {
            let base = if next[I] == f32::NEG_INFINITY { 0.0 } else { next[I] };
            let rescale = exp2(m[I] - base);
            l[I] *= rescale;
            unroll!(J < 4 {
                let p = exp2(s[I][J] - base);
                l[I] += p;
                // SAFETY: row below 64, key tx + 16 J below 64, each element by one thread. The tile before has been
                // read: barriers of this tile's chunks lie between.
                unsafe { p_write[J % 2].set_at::<{ (I * 2) as u32 * BN + (J / 2 * 32) as u32 }, 1>(p) };
            });
            let mut g = 0;
            while g < G {
                unroll!(E < 4 { o[I][g][E] *= rescale; });
                g += 1;
            }
        });

        // SAFETY: this thread's own elements.
        unsafe {
            store_state(m_state, next);
            store_state(l_state, l);
        }

        // O += P V
        let mut key = 0;
        while key < BN {
            // SAFETY: as for the scores; the first barrier also completes P.
            unsafe {
                thread::sync_threads();
                load.put_v::<G>(place, chunk, staged);
                thread::sync_threads();
                let chunk_keys = key / BK;
                key += BK;
                if key < BN {
                    staged = load.v::<G>(place, work.key(tile, key));
                } else {
                    staged = load.qk(work, work.place(), tile + W::STEP, 0); // behind the last tile for nothing
                }
                if sees {
                    weighted_values(&mut o, p_row.at((chunk_keys ^ ty) * 16), v_chunk);
                }
            }
        }
        tile += W::STEP;
    }

    // write O / l, or O, m and l
    let Place { tid, tx, row, batch, head, first, .. } = work.place();
    let head = out_strides.offset(batch, head);
    // SAFETY: this thread's own elements.
    let mut l = unsafe { load_state(state_of(tid).1) };
    unroll!(STEP < 4 {
        unroll!(I < 8 {
            // SAFETY: all lanes are here.
            let (other, _) = unsafe { warp::warp_shuffle_xor(warp::FULL_MASK, l[I], 8 >> STEP, 32) };
            l[I] += other;
        });
    });
    // SAFETY: as the caller promises.
    if let Some(partial) = unsafe { work.partial() } {
        let width = 64 * G as u32 + STATE_ELEMENTS;
        // SAFETY: this thread's own elements.
        let m = unsafe { load_state(state_of(tid).0) };
        unroll!(I < 8 {
            // SAFETY: row below BM of [BM, D + 4]; each thread its own columns, one lane for all of a row's m and l.
            unsafe {
                let record = partial.add(((row + 2 * I as u32) * width) as usize);
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
        let i = first + row + 2 * I as u32;
        let factor = if l[I] == 0.0 { 0.0 } else { rcp(l[I]) };
        let mut g = 0;
        while g < G {
            let column = tx * 4 + g as u32 * 64;
            if i < q_len && column < head_dim {
                let values = o[I][g].map(|x| x * factor);
                // SAFETY: row and columns are inside this head's output, rows 8-element aligned.
                unsafe { TQ::store4(out.add((head + i * out_strides.row + column) as usize), values) };
            }
            g += 1;
        }
    });
}

macro_rules! kernels {
    ($(
        $name:ident: $tq:ty, $tkv:ty, $groups:literal, $blocks:literal
        $(, $open:path { $($more:ident: $type:ty),* })?;
    )*) => {$(
        /// # Safety
        /// `out`, `q`, `k`, `v`: as the module's head says, of less than 2³¹ elements with gaps, valid on the
        /// launching stream, `out` disjoint from the others, addresses and strides (batch, head, row) multiples of
        /// 8 elements. `causal`: 0 or 1. `scale_log2`: scale · log2 e. Launched as the contract of the same name says.
        #[kernel(launch_bounds(THREADS, $blocks))]
        pub unsafe fn $name(
            out: *mut $tq, q: *const $tq, k: *const $tkv, v: *const $tkv,
            out_batch: u32, out_head: u32, out_row: u32,
            q_batch: u32, q_head: u32, q_row: u32,
            k_batch: u32, k_head: u32, k_row: u32,
            v_batch: u32, v_head: u32, v_row: u32,
            num_q_heads: u32, group: u32, q_len: u32, kv_len: u32, head_dim: u32,
            scale_log2: f32, causal: u32 $($(, $more: $type)*)?
        ) {
            let strides = [
                Strides { batch: out_batch, head: out_head, row: out_row },
                Strides { batch: q_batch, head: q_head, row: q_row },
                Strides { batch: k_batch, head: k_head, row: k_row },
                Strides { batch: v_batch, head: v_head, row: v_row },
            ];
            $(let [k, v] = $open([k, v], $($more),*);)?
            // SAFETY: this kernel's contract is the body's; a grid with a block in it has a head.
            unsafe {
                not_zero(num_q_heads);
                let work = Dense { num_q_heads, q_len, kv_len, causal: 0u32.wrapping_sub(causal), seen_by_all: 0, end: 0 };
                prefill::<$tq, _, $groups, _>(
                    out, q, k, v, strides, group, q_len, kv_len.wrapping_sub(1), head_dim, scale_log2, work,
                )
            }
        }
    )*};
}

kernels! {
    attention_prefill_d64_f32: f32, f32, 1, 2;
    attention_prefill_d64_f16: F16, F16, 1, 2;
    attention_prefill_d64_f32_f16: f32, F16, 1, 2;
    attention_prefill_d128_f32: f32, f32, 2, 2;
    attention_prefill_d128_f16: F16, F16, 2, 2;
    attention_prefill_d128_f32_f16: f32, F16, 2, 2;
    attention_prefill_d128_f32_coded: f32, u16, 2, 2, Coded::pair { exponent_bits: u32 };
    attention_prefill_d128_f32_q8_0: f32, u8, 2, 2, Blocks::pair { k_scales: *const F16, v_scales: *const F16 };
}
