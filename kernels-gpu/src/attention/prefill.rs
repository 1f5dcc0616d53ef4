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
use crate::device::{Element, F16, Shared, shared};
use crate::spec::KernelSpec;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::gpu_only;
use cuda_std::prelude::*;

/// Queries of a block.
pub(super) const BM: u32 = 64;
/// Columns of Q and K, and keys of V, in a chunk.
const BK: u32 = 16;
/// Four warps; each thread owns 8 × KEYS scores and 8 × D/16 outputs.
pub(super) const THREADS: u32 = 128;

/// Queries that a block handles.
pub const QUERIES_PER_BLOCK: u32 = BM;

/// Keys of a tile of which a thread owns `keys` columns.
pub(super) const fn bn(keys: usize) -> u32 {
    16 * keys as u32
}
/// Elements behind each column of Q's and K's chunk, so that threads that write to it meet in no bank.
pub(super) const PAD: u32 = 4;
/// Elements of a chunk buffer: Qᵀ [BK, BM + PAD] and Kᵀ [BK, BN + PAD], or V [D / 64, BK, 64].
const fn chunk_elements(keys: usize) -> u32 {
    BK * (BM + PAD + bn(keys) + PAD)
}
/// Elements of half of Pᵀ: [BM / 16, BN / 2, 16].
const fn half_elements(keys: usize) -> u32 {
    BM * bn(keys) / 2
}
/// Elements of l, a part per thread: [2, THREADS, 4].
const SUMS: u32 = 8 * THREADS;

/// Four steps for each of eight rows, of m in a tile and of l at the end.
const SHUFFLES: u32 = 2 * 4 * 8;

/// The contract of a kernel whose threads own `keys` columns of a tile's scores.
pub(super) const fn spec(name: &'static str, keys: usize, min_blocks: u32) -> KernelSpec {
    let shared_bytes = 4 * (2 * chunk_elements(keys) + half_elements(keys) + BM + SUMS);
    KernelSpec::new(name, THREADS).min_blocks(min_blocks).shared_bytes(shared_bytes).shuffles(SHUFFLES)
}

const D64_KEYS: usize = 4;
const D128_KEYS: usize = 8;

/// head_dim ≤ 64: grid = [b · num_q_heads, ceil(q_len / QUERIES_PER_BLOCK)], by [`Types`](super::Types).
pub const PREFILL_D64: [KernelSpec; 3] = [
    spec("attention_prefill_d64_f32", D64_KEYS, 2),
    spec("attention_prefill_d64_f16", D64_KEYS, 2),
    spec("attention_prefill_d64_f32_f16", D64_KEYS, 2),
];

/// head_dim ≤ 128; else as [`PREFILL_D64`].
pub const PREFILL_D128: [KernelSpec; 3] = [
    spec("attention_prefill_d128_f32", D128_KEYS, 2),
    spec("attention_prefill_d128_f16", D128_KEYS, 2),
    spec("attention_prefill_d128_f32_f16", D128_KEYS, 2),
];

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] =
    &[PREFILL_D64[0], PREFILL_D64[1], PREFILL_D64[2], PREFILL_D128[0], PREFILL_D128[1], PREFILL_D128[2]];

/// Which thread, head and queries this is.
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
        Self { tid, tx, ty, row: tid / 32 * 16 + ty * 8, batch, head, first }
    }
}

/// What a block works on: a block of queries, tiles of keys, and which of them see each other.
pub(super) trait Work<const KEYS: usize>: Copy {
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
    fn begin(self) -> u32;

    /// One past the last.
    fn end(self) -> u32;

    /// A bound of the keys of one of the block's tiles that any query sees, a multiple of 64.
    fn keys(self, tile: u32) -> u32;

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

    /// −∞ where a row does not see a key: rows row + i, keys 4 tx + j mod 4 + 64 (j / 4).
    ///
    /// # Safety
    /// As [`sees`](Self::sees).
    unsafe fn mask(self, s: &mut [[f32; KEYS]; 8], place: Place, tile: u32);

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
    /// Rows of blocks that come longest first.
    longest_first: u32,
}

impl Dense {
    /// As [`visible`](super::visible).
    #[inline(always)]
    fn visible(self, i: u32) -> i32 {
        self.kv_len as i32 + ((i as i32 + 1 - self.q_len as i32) & self.causal as i32)
    }

    /// The block's first query.
    #[inline(always)]
    fn first(self, y: u32) -> u32 {
        let longest_first = y < self.longest_first;
        BM * if longest_first { thread::grid_dim_y() - 1 - y } else { y - self.longest_first }
    }

    /// Keys that the block's last query and so any sees.
    #[inline(always)]
    fn seen(self) -> u32 {
        let [_, _, y] = read_indices();
        let last = (self.first(y) + BM).min(self.q_len) - 1;
        self.visible(last).max(0) as u32
    }
}

impl<const KEYS: usize> Work<KEYS> for Dense {
    const STEP: u32 = 1;

    /// The blocks with the most keys come first, so that short ones fill the gaps at the end. Those behind
    /// `longest_first` come shortest first: where all are resident at once, each joins one that is as much longer.
    #[inline(always)]
    fn place(self) -> Place {
        let [tid, x, y] = read_indices();
        Place::new(tid, x / self.num_q_heads, x % self.num_q_heads, self.first(y))
    }


    #[inline(always)]
    fn begin(self) -> u32 {
        0
    }

    #[inline(always)]
    fn end(self) -> u32 {
        self.seen().div_ceil(bn(KEYS))
    }

    #[inline(always)]
    fn keys(self, tile: u32) -> u32 {
        (self.seen() - tile * bn(KEYS)).next_multiple_of(64).min(bn(KEYS))
    }

    #[inline(always)]
    unsafe fn key(self, tile: u32, row: u32) -> u32 {
        tile * bn(KEYS) + row
    }

    #[inline(always)]
    unsafe fn sees(self, _: Place, _: u32) -> bool {
        true
    }

    /// Rows past q_len see what they like: they are not written.
    #[inline(always)]
    unsafe fn mask(self, s: &mut [[f32; KEYS]; 8], place: Place, tile: u32) {
        if ((tile + 1) * bn(KEYS)) as i32 > self.visible(place.first) {
            let key = tile * bn(KEYS) + 4 * place.tx;
            let past_row = key as i32 - self.visible(place.first + place.row);
            let per_row = (1 & self.causal) as i32;
            unroll!(I < 8 {
                unroll!(J < KEYS {
                    let masked = past_row + key_of(J) as i32 >= per_row * I as i32;
                    if masked || key + key_of(J) >= self.kv_len {
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

/// The thread's key `j`, from its first one on.
const fn key_of(j: usize) -> u32 {
    (j % 4 + j / 4 * 64) as u32
}

/// Two fours, of which the second lies `APART` elements further.
///
/// # Safety
/// As [`Shared::get4`].
#[inline(always)]
unsafe fn load_8<const APART: u32>(at: Shared<f32>) -> [f32; 8] {
    // SAFETY: as the caller promises.
    let ([a, b, c, d], [e, f, g, h]) = unsafe { (at.get4(0), at.get4(APART)) };
    [a, b, c, d, e, f, g, h]
}

/// As [`load_8`].
///
/// # Safety
/// As [`Shared::set4`].
#[inline(always)]
unsafe fn store_8<const APART: u32>(at: Shared<f32>, [a, b, c, d, e, f, g, h]: [f32; 8]) {
    // SAFETY: as the caller promises.
    unsafe {
        at.set4(0, [a, b, c, d]);
        at.set4(APART, [e, f, g, h]);
    }
}

/// Chunk vectors on their way from global to shared memory, as they lay there: Q, Q and half of KEYS of K, or V. Converting them
/// here would wait for the loads before the chunk in hand is computed.
type Staged = [[u32; 4]; 6];

/// One head's operands, and what this thread loads of them.
struct Loader<TQ, TKV> {
    q: *const TQ,
    k: *const TKV,
    v: *const TKV,
    /// The first elements of the thread's two rows of Q.
    q_at: [u32; 2],
    /// The head's first elements.
    k_head: u32,
    v_head: u32,
    k_row: u32,
    v_row: u32,
    /// The last key; keys behind it are read from it.
    last_key: u32,
    head_dim: u32,
}

impl<TQ: Element, TKV: Element> Loader<TQ, TKV> {
    /// Columns `column` … of Q's block and of K's tile `tile`: thread t takes column 4 · (t mod 4) of rows t / 4,
    /// t / 4 + 32, …, so that eight threads read two whole sectors.
    ///
    /// # Safety
    /// q_len, kv_len and head_dim are not 0; at most one tile behind the last.
    #[inline(always)]
    unsafe fn qk<const KEYS: usize, W: Work<KEYS>>(&self, work: W, place: Place, tile: u32, column: u32) -> Staged {
        let row = place.tid / 4;
        let column = (column + place.tid % 4 * 4).min(self.head_dim - 4);
        let mut staged = [[0; 4]; 6];
        // SAFETY: as the caller promises: rows are below the lengths, and four columns from a multiple of four on are
        // below head_dim, a multiple of eight.
        unsafe {
            unroll!(I < 2 { staged[I] = TQ::load4_words(self.q.add((self.q_at[I] + column) as usize)); });
            unroll!(I < 4 {
                if 2 * I < KEYS {
                    let at = self.k_head + work.key(tile, row + 32 * I as u32).min(self.last_key) * self.k_row;
                    staged[2 + I] = TKV::load4_words(self.k.add((at + column) as usize));
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
    unsafe fn v<const G: usize, const KEYS: usize, W: Work<KEYS>>(&self, work: W, place: Place, tile: u32, j: u32) -> Staged {
        let column = place.tid % 8 * 4;
        let mut staged = [[0; 4]; 6];
        // SAFETY: as in `qk`.
        unsafe {
            let key = work.key(tile, place.tid / 8 * 4 + key_of(j as usize)).min(self.last_key);
            let v = self.v.add((self.v_head + key * self.v_row) as usize);
            unroll!(I < 4 {
                if I < 2 * G {
                    staged[I] = TKV::load4_words(v.add((column + 32 * I as u32).min(self.head_dim - 4) as usize));
                }
            });
        }
        staged
    }

    /// Writes what [`qk`](Self::qk) gave for the same `column`, Q zero past head_dim. In columns from the eighth on, rows are
    /// exchanged eight by eight, so that the 32 threads that write at a time meet in no bank.
    ///
    /// # Safety
    /// Nobody reads the chunk.
    #[inline(always)]
    unsafe fn put_qk<const KEYS: usize>(&self, place: Place, chunk: Shared<f32>, mut staged: Staged, column: u32) {
        let (row, part) = (place.tid / 4, place.tid % 4);
        if column + part * 4 >= self.head_dim {
            staged[0] = [0; 4]; // 0.0 in either type
            staged[1] = [0; 4];
        }
        let row = row ^ part / 2 * 8;
        // SAFETY: rows and columns of Qᵀ [16, 64 + PAD] and Kᵀ [16, BN + PAD] behind it; each thread its own elements.
        unsafe {
            let q = chunk.at(part * (4 * (BM + PAD)) + row);
            let k = chunk.at(BK * (BM + PAD) + part * (4 * (bn(KEYS) + PAD)) + row);
            unroll!(I < 2 {
                let values = TQ::from_words(staged[I]);
                unroll!(E < 4 { q.set(E as u32 * (BM + PAD) + I as u32 * 32, values[E]); });
            });
            unroll!(I < 4 {
                if 2 * I < KEYS {
                    let values = TKV::from_words(staged[2 + I]);
                    unroll!(E < 4 { k.set(E as u32 * (bn(KEYS) + PAD) + I as u32 * 32, values[E]); });
                }
            });
        }
    }

    /// Writes what [`v`](Self::v) gave: [G, BK, 64].
    ///
    /// # Safety
    /// Nobody reads the chunk.
    #[inline(always)]
    unsafe fn put_v<const G: usize>(&self, place: Place, chunk: Shared<f32>, staged: Staged) {
        let at = chunk.at(place.tid / 8 * 64 + place.tid % 8 * 4);
        // SAFETY: keys below 16 and columns below 64 G of [G, 16, 64]; each thread its own elements.
        unsafe {
            unroll!(I < 4 {
                if I < 2 * G {
                    at.set4(I as u32 / 2 * (BK * 64) + I as u32 % 2 * 32, TKV::from_words(staged[I]));
                }
            });
        }
    }
}

/// s += Q Kᵀ over one chunk, for the first SEEN of a thread's keys. `q`: this thread's first row in Qᵀ, `k`: its
/// first key in Kᵀ, of STRIDE, each in the columns below eight and in the others.
///
/// # Safety
/// The chunk is written and a barrier has passed.
#[inline(always)]
unsafe fn scores<const KEYS: usize, const SEEN: usize, const STRIDE: u32>(s: &mut [[f32; KEYS]; 8], q: [Shared<f32>; 2], k: [Shared<f32>; 2]) {
    unroll!(C < 16 {
        // SAFETY: eight rows from 16 warp + 8 ty on, below 64, and keys 4 tx + 0 … 3 and 64 further, below BN.
        let (rows, keys) = unsafe {
            let (q, k) = (q[C / 8], k[C / 8]);
            let (a, b) = (q.get4_at::<{ C as u32 }, { BM + PAD }, 0, 0>(), q.get4_at::<{ C as u32 }, { BM + PAD }, 1, 4>());
            let c = k.get4_at::<{ C as u32 }, STRIDE, 0, 0>();
            ([a, b], [c, if SEEN == 8 { k.get4_at::<{ C as u32 }, STRIDE, 1, 64>() } else { c }])
        };
        unroll!(I < 8 {
            unroll!(J < SEEN { s[I][J] = fma(rows[I / 4][I % 4], keys[J / 4][J % 4], s[I][J]); });
        });
    });
}

/// o += P V over one chunk of keys. `p[x]`: this thread's first four rows at the chunk's first key with the number of four
/// exchanged by x, `v` its first column.
///
/// # Safety
/// The chunk and P are written and a barrier has passed.
#[inline(always)]
unsafe fn weighted_values<const G: usize>(o: &mut [[[f32; 4]; G]; 8], p: [Shared<f32>; 4], v: Shared<f32>) {
    unroll!(K < 16 {
        // SAFETY: eight rows from 16 warp + 8 ty on, below 64, at one of the chunk's keys, below 16.
        let weights = unsafe { [
            p[K / 2 % 4].get4_at::<{ K as u32 }, 16, 0, 0>(),
            p[K / 2 % 4 ^ 1].get4_at::<{ K as u32 }, 16, 0, 0>(),
        ] };
        let mut values = [[0.0; 4]; G];
        let mut g = 0;
        while g < G {
            // SAFETY: of group g's [16, 64].
            values[g] = unsafe { v.at(g as u32 * BK * 64).get4_at::<{ K as u32 }, 64, 0, 0>() };
            g += 1;
        }
        unroll!(I < 8 {
            let mut g = 0;
            while g < G {
                unroll!(E < 4 { o[I][g][E] = fma(weights[I / 4][I % 4], values[g][E], o[I][g][E]); });
                g += 1;
            }
        });
    });
}

/// # Safety
/// As the kernels below; G = D / 64, BN = 16 KEYS, STRIDE = BN + PAD.
#[inline(always)]
pub(super) unsafe fn prefill<TQ: Element, TKV: Element, const G: usize, const KEYS: usize, const STRIDE: u32, W: Work<KEYS>>(
    out: *mut TQ,
    q: *const TQ,
    k: *const TKV,
    v: *const TKV,
    [out_strides, q_strides, k_strides, v_strides]: [Strides; 4],
    group: u32,
    q_len: u32,
    last_key: u32,
    head_dim: u32,
    scale_log2: f32,
    work: W,
) {
    let chunks = match KEYS {
        4 => shared::declare::<f32, { 2 * chunk_elements(4) as usize }>(),
        _ => shared::declare::<f32, { 2 * chunk_elements(8) as usize }>(),
    };
    let probabilities = match KEYS {
        4 => shared::declare::<f32, { half_elements(4) as usize }>(),
        _ => shared::declare::<f32, { half_elements(8) as usize }>(),
    };
    let maxima = shared::declare::<f32, { BM as usize }>();
    let sums = shared::declare::<f32, { SUMS as usize }>();

    // SAFETY: a head belongs to a group.
    unsafe { not_zero(group) };

    // place tile
    let place = work.place();
    let Place { tid, tx, row, batch, head, first, .. } = place;
    let load = Loader {
        q,
        k,
        v,
        q_at: [0, 32].map(|row| {
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
    let (q_first, k_first) = (row, BK * (BM + PAD) + tx * 4);

    let mut o = [[[0.0f32; 4]; G]; 8];
    // SAFETY: this thread's own elements.
    unsafe {
        store_8::<4>(maxima.at(row), [f32::NEG_INFINITY; 8]);
        store_8::<{ 4 * THREADS }>(sums.at(tid * 4), [0.0; 8]);
    }
    // where in the two chunk buffers the one is that is read next; the other is written meanwhile
    let mut side = 0;
    let other = |side: u32| chunk_elements(KEYS) - side;
    if tile < work.end() {
        // SAFETY: there is a key, and the grid has no block without a query.
        unsafe { load.put_qk::<KEYS>(place, chunks, load.qk(work, place, tile, 0), 0) };
    }

    while tile < work.end() {
        // S = Q Kᵀ
        // SAFETY: the block has this tile.
        let sees = unsafe { work.sees(place, tile) };
        let keys = work.keys(tile);
        let mut s = [[0.0f32; KEYS]; 8];
        let mut column = 0;
        while column < head_dim {
            // SAFETY: all threads run the same loops. Behind the barrier the chunk is complete, and nobody reads the
            // other one any more.
            unsafe {
                let place = work.again(place);
                thread::sync_threads();
                column += BK;
                let staged = if column < head_dim {
                    load.qk(work, place, tile, column)
                } else {
                    load.v::<G, KEYS, W>(work, work.place(), tile, 0)
                };
                if sees {
                    let both = |at: u32| [chunks.at(side + at), chunks.at((side + at) ^ 8)]; // as `put_qk` exchanges rows
                    let (q, k) = (both(q_first), both(k_first));
                    if KEYS == 4 || keys > 64 {
                        scores::<KEYS, KEYS, STRIDE>(&mut s, q, k);
                    } else {
                        scores::<KEYS, 4, STRIDE>(&mut s, q, k);
                    }
                }
                side = other(side);
                if column < head_dim {
                    load.put_qk::<KEYS>(place, chunks.at(side), staged, column);
                } else {
                    load.put_v::<G>(place, chunks.at(side), staged);
                }
            }
        }

        // scale and mask
        let place = work.place();
        let Place { tid, tx, ty, row, .. } = place;
        let (m_state, l_state) = (maxima.at(row), sums.at(tid * 4));
        // half of Pᵀ of the warp's rows [KEYS / 2, 16, 16]: key 4 x + j at [j, x], fours of rows exchanged by (x / 2) mod 4
        let p_first = tid / 32 * (KEYS as u32 * 128) + ty * 8;
        let p_write = p_first + tx * 16 ^ tx / 2 % 4 * 4;
        unroll!(I < 8 {
            unroll!(J < KEYS { s[I][J] *= scale_log2; });
        });
        // SAFETY: the block has this tile.
        unsafe { work.mask(&mut s, place, tile) };

        // m' = max(m, rowmax S)
        // SAFETY: this thread's own elements.
        let (m, mut l) = unsafe { (load_8::<4>(m_state), load_8::<{ 4 * THREADS }>(l_state)) };
        let mut next = m;
        unroll!(I < 8 {
            unroll!(J < KEYS { next[I] = next[I].max(s[I][J]); });
        });
        unroll!(STEP < 4 {
            unroll!(I < 8 {
                // SAFETY: all lanes are here.
                let (other, _) = unsafe { warp::warp_shuffle_xor(warp::FULL_MASK, next[I], 8 >> STEP, 32) };
                next[I] = next[I].max(other);
            });
        });

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

        // SAFETY: this thread's own elements.
        unsafe {
            if tx == 0 {
                store_8::<4>(m_state, next);
            }
            store_8::<{ 4 * THREADS }>(l_state, l);
        }

        // O += P V, by halves of the keys
        let mut j = 0;
        while j < keys / BK {
            // P to shared memory: a warp reads only its own rows
            // SAFETY: all lanes are here, and have read the half before.
            unsafe { warp::sync_warp(warp::FULL_MASK) };
            unroll!(J < 4 {
                if 2 * J < KEYS {
                    unroll!(HALF < 2 {
                        let rows = [s[4 * HALF][J], s[4 * HALF + 1][J], s[4 * HALF + 2][J], s[4 * HALF + 3][J]];
                        // SAFETY: rows and keys of the warp's, each element by one thread.
                        unsafe { probabilities.at(p_write ^ HALF as u32 * 4).set4(J as u32 * 256, rows) };
                    });
                    unroll!(I < 8 { s[I][J] = s[I][J + KEYS / 2]; });
                }
            });
            let end = (j + KEYS as u32 / 2).min(keys / BK);
            while j < end {
                // SAFETY: as for the scores; the first barrier also completes P.
                unsafe {
                    thread::sync_threads();
                    let p = p_first + j % (KEYS as u32 / 2) * 256;
                    j += 1;
                    let staged = if j < keys / BK {
                        load.v::<G, KEYS, W>(work, place, tile, j)
                    } else {
                        load.qk(work, work.place(), tile + W::STEP, 0) // behind the last tile for nothing
                    };
                    if sees {
                        let p = [0, 1, 2, 3].map(|x| probabilities.at(p ^ x * 4));
                        weighted_values(&mut o, p, chunks.at(side + tx * 4));
                    }
                    side = other(side);
                    if j < keys / BK {
                        load.put_v::<G>(place, chunks.at(side), staged);
                    } else {
                        load.put_qk::<KEYS>(work.place(), chunks.at(side), staged, 0);
                    }
                }
            }
        }
        tile += W::STEP;
    }

    // write O / l, or O, m and l
    let Place { tid, tx, row, batch, head, first, .. } = work.place();
    let head = out_strides.offset(batch, head);
    // SAFETY: this thread's own elements.
    let mut l = unsafe { load_8::<{ 4 * THREADS }>(sums.at(tid * 4)) };
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
        let m = unsafe { load_8::<4>(maxima.at(row)) };
        unroll!(I < 8 {
            // SAFETY: row below BM of [BM, D + 4]; each thread its own columns, one lane for all of a row's m and l.
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
                unsafe { TQ::store4(out.add((head + i * out_strides.row + column) as usize), values) };
            }
            g += 1;
        }
    });
}

macro_rules! kernels {
    ($($name:ident: $tq:ty, $tkv:ty, $groups:literal, $keys:expr, $blocks:literal;)*) => {$(
        /// # Safety
        /// `out`, `q`, `k`, `v`: as the module's head says, of less than 2³¹ elements with gaps, valid on the
        /// launching stream, `out` disjoint from the others, addresses and strides (batch, head, row) multiples of
        /// 8 elements. `causal`: 0 or 1. `scale_log2`: scale · log2 e. `longest_first`: so many of the grid's rows
        /// come longest first, the others shortest first. Launched as the contract of the same name says.
        #[kernel(launch_bounds(THREADS, $blocks))]
        pub unsafe fn $name(
            out: *mut $tq, q: *const $tq, k: *const $tkv, v: *const $tkv,
            out_batch: u32, out_head: u32, out_row: u32,
            q_batch: u32, q_head: u32, q_row: u32,
            k_batch: u32, k_head: u32, k_row: u32,
            v_batch: u32, v_head: u32, v_row: u32,
            num_q_heads: u32, group: u32, q_len: u32, kv_len: u32, head_dim: u32,
            scale_log2: f32, causal: u32, longest_first: u32,
        ) {
            let strides = [
                Strides { batch: out_batch, head: out_head, row: out_row },
                Strides { batch: q_batch, head: q_head, row: q_row },
                Strides { batch: k_batch, head: k_head, row: k_row },
                Strides { batch: v_batch, head: v_head, row: v_row },
            ];
            // SAFETY: this kernel's contract is the body's; a grid with a block in it has a head.
            unsafe {
                not_zero(num_q_heads);
                let causal = 0u32.wrapping_sub(causal);
                let work = Dense { num_q_heads, q_len, kv_len, causal, longest_first };
                prefill::<$tq, $tkv, $groups, $keys, { bn($keys) + PAD }, _>(
                    out, q, k, v, strides, group, q_len, kv_len.wrapping_sub(1), head_dim, scale_log2, work,
                )
            }
        }
    )*};
}

kernels! {
    attention_prefill_d64_f32: f32, f32, 1, D64_KEYS, 2;
    attention_prefill_d64_f16: F16, F16, 1, D64_KEYS, 2;
    attention_prefill_d64_f32_f16: f32, F16, 1, D64_KEYS, 2;
    attention_prefill_d128_f32: f32, f32, 2, D128_KEYS, 2;
    attention_prefill_d128_f16: F16, F16, 2, D128_KEYS, 2;
    attention_prefill_d128_f32_f16: f32, F16, 2, D128_KEYS, 2;
}
