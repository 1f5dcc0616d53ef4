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

use super::{Strides, not_zero, unroll, visible};
use crate::device::math::{exp2, fma, rcp};
use crate::device::{Element, F16, Shared, shared};
use crate::spec::KernelSpec;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::gpu_only;
use cuda_std::prelude::*;

/// Queries of a block.
const BM: u32 = 64;
/// Keys of a tile.
const BN: u32 = 64;
/// Columns of Q and K, and keys of V, in a chunk.
const BK: u32 = 16;
/// Four warps; each thread owns 8 × 4 scores and 8 × D/16 outputs.
const THREADS: u32 = 128;

/// Queries that a block handles.
pub const QUERIES_PER_BLOCK: u32 = BM;

/// Elements of the chunk buffer: Q [BM, BK] and K [BN, BK], or V [D / 64, BK, 64].
const CHUNK: u32 = 2 * BM * BK;
/// Elements of P [BM, BN].
const PROBABILITIES: u32 = BM * BN;
/// Elements of m and l, a copy per thread: [m or l, 2, THREADS, 4].
const STATE: u32 = 16 * THREADS;
const SHARED_BYTES: u32 = 4 * (CHUNK + PROBABILITIES + STATE);

/// Four steps for each of eight rows, of m in a tile and of l at the end.
const SHUFFLES: u32 = 2 * 4 * 8;

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

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] =
    &[PREFILL_D64[0], PREFILL_D64[1], PREFILL_D64[2], PREFILL_D128[0], PREFILL_D128[1], PREFILL_D128[2]];

/// Which thread, head and queries this is.
#[derive(Clone, Copy)]
struct Place {
    tid: u32,
    /// lane mod 16
    tx: u32,
    /// lane / 16
    ty: u32,
    /// The thread's first row in the tile; its others are row + 2 i.
    row: u32,
    batch: u32,
    head: u32,
    /// The block's first query. The blocks with the most keys come first, so that short ones fill the gaps at the end.
    first: u32,
}

impl Place {
    /// Reads the special registers at each call anew, so that what follows from them need not stay in registers
    /// between the phases.
    #[gpu_only]
    #[inline(always)]
    fn read(num_q_heads: u32) -> Self {
        let (tid, x, y): (u32, u32, u32);
        // SAFETY: reads special registers. Not `pure`, so that readings are not merged.
        unsafe {
            asm!(
                "mov.u32 {tid}, %tid.x;", "mov.u32 {x}, %ctaid.x;", "mov.u32 {y}, %ctaid.y;",
                tid = out(reg32) tid, x = out(reg32) x, y = out(reg32) y,
                options(nomem, nostack, preserves_flags)
            );
        }
        let (tx, ty) = (tid % 16, tid / 16 % 2);
        let first = (thread::grid_dim_y() - 1 - y) * BM;
        let row = tid / 32 * 16 + ty;
        Self { tid, tx, ty, row, batch: x / num_q_heads, head: x % num_q_heads, first }
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
struct Loader<TQ, TKV> {
    q: *const TQ,
    k: *const TKV,
    v: *const TKV,
    /// The head's first elements.
    q_head: u32,
    k_head: u32,
    v_head: u32,
    q_row: u32,
    k_row: u32,
    v_row: u32,
    q_len: u32,
    kv_len: u32,
    head_dim: u32,
}

impl<TQ: Element, TKV: Element> Loader<TQ, TKV> {
    /// Columns `column` … of Q's block and of K's tile `tile`: thread t takes column 4 · (t mod 4) of rows t / 4 and
    /// t / 4 + 32.
    ///
    /// # Safety
    /// q_len, kv_len and head_dim are not 0.
    #[inline(always)]
    unsafe fn qk(&self, place: Place, tile: u32, column: u32) -> Staged {
        let row = place.tid / 4;
        let column = (column + place.tid % 4 * 4).min(self.head_dim - 4);
        let (last_q, last_k) = (self.q_len - 1, self.kv_len - 1);
        let (q, k) = (place.first + row, tile * BN + row);
        let q_at = |i: u32| (self.q_head + i.min(last_q) * self.q_row + column) as usize;
        let k_at = |i: u32| (self.k_head + i.min(last_k) * self.k_row + column) as usize;
        // SAFETY: rows are below the lengths, and four columns from a multiple of four on are below head_dim, a
        // multiple of eight.
        unsafe {
            [
                TQ::load4_words(self.q.add(q_at(q))),
                TQ::load4_words(self.q.add(q_at(q + 32))),
                TKV::load4_words(self.k.add(k_at(k))),
                TKV::load4_words(self.k.add(k_at(k + 32))),
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
        let last = self.kv_len - 1;
        let row_at = |pass: u32| (row + pass * (THREADS / per_key)).min(last) * self.v_row;
        let at = |pass: u32| (self.v_head + row_at(pass) + column) as usize;
        let mut staged = [[0; 4]; 4];
        // SAFETY: as in `qk`.
        unsafe {
            staged[0] = TKV::load4_words(self.v.add(at(0)));
            staged[1] = TKV::load4_words(self.v.add(at(1)));
            if G == 2 {
                staged[2] = TKV::load4_words(self.v.add(at(2)));
                staged[3] = TKV::load4_words(self.v.add(at(3)));
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
            at.set4(BM * BK, TKV::from_words(staged[2]));
            at.set4((BM + 32) * BK, TKV::from_words(staged[3]));
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
            at.set4(0, TKV::from_words(staged[0]));
            at.set4(pass, TKV::from_words(staged[1]));
            if G == 2 {
                at.set4(2 * pass, TKV::from_words(staged[2]));
                at.set4(3 * pass, TKV::from_words(staged[3]));
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
unsafe fn prefill<TQ: Element, TKV: Element, const G: usize>(
    out: *mut TQ,
    q: *const TQ,
    k: *const TKV,
    v: *const TKV,
    [out_strides, q_strides, k_strides, v_strides]: [Strides; 4],
    num_q_heads: u32,
    group: u32,
    q_len: u32,
    kv_len: u32,
    head_dim: u32,
    scale_log2: f32,
    causal: bool,
) {
    let chunk = shared::declare::<f32, { CHUNK as usize }>();
    let probabilities = shared::declare::<f32, { PROBABILITIES as usize }>();

    let state = shared::declare::<f32, { STATE as usize }>();

    // SAFETY: a grid with a block in it has a head, and a head belongs to a group.
    unsafe {
        not_zero(num_q_heads);
        not_zero(group);
    }

    // place tile
    let place = Place::read(num_q_heads);
    let Place { tid, tx, row, batch, head, first, .. } = place;
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
        kv_len,
        head_dim,
    };
    // the keys that the block's last query sees, and those that its first and so every query sees
    let last = (first + BM).min(q_len) - 1;
    let keys = visible(last, q_len, kv_len, causal).max(0) as u32;
    let seen_by_all = visible(first, q_len, kv_len, causal).max(0) as u32;
    let tiles = keys.div_ceil(BN);

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
    if tiles > 0 {
        // SAFETY: there is a key, and the grid has no block without a query.
        staged = unsafe { load.qk(place, 0, 0) };
    }

    let mut tile = 0;
    while tile < tiles {
        // S = Q Kᵀ
        let mut s = [[0.0f32; 4]; 8];
        let mut column = 0;
        while column < head_dim {
            // SAFETY: all threads run the same loops. Between the barriers nobody reads the chunk; behind the second
            // it is complete.
            unsafe {
                thread::sync_threads();
                load.put_qk(place, chunk, staged, column);
                thread::sync_threads();
                column += BK;
                staged = if column < head_dim {
                    load.qk(place, tile, column)
                } else {
                    load.v::<G>(Place::read(num_q_heads), tile * BN)
                };
                scores(&mut s, q_chunk, k_chunk);
            }
        }

        // scale and mask
        let place = Place::read(num_q_heads);
        let Place { tid, tx, ty, row, first, .. } = place;
        let (m_state, l_state) = state_of(tid);
        // P [BM, BN]: the halves of 32 keys are exchanged 16 by 16 in odd rows, which are those of ty = 1
        let p_row = probabilities.at(row * BN);
        let p_write = [p_row.at(tx + 16 * ty), p_row.at(tx + 16 * (1 - ty))];
        let v_chunk = chunk.at(tx * 4);
        unroll!(I < 8 {
            unroll!(J < 4 { s[I][J] *= scale_log2; });
        });
        if tile * BN + BN > seen_by_all {
            // Rows past q_len see what they like: they are not written.
            let key = tile * BN + tx;
            let past_row = key as i32 - visible(first + row, q_len, kv_len, causal);
            let per_row = if causal { 2 } else { 0 };
            unroll!(I < 8 {
                unroll!(J < 4 {
                    let masked = past_row + 16 * J as i32 >= per_row * I as i32;
                    if masked || key + 16 * J as u32 >= kv_len {
                        s[I][J] = f32::NEG_INFINITY;
                    }
                });
            });
        }

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
                    staged = load.v::<G>(place, tile * BN + key);
                } else {
                    staged = load.qk(Place::read(num_q_heads), tile + 1, 0); // behind the last tile for nothing
                }
                weighted_values(&mut o, p_row.at((chunk_keys ^ ty) * 16), v_chunk);
            }
        }
        tile += 1;
    }

    // write O / l
    let Place { tid, tx, row, batch, head, first, .. } = Place::read(num_q_heads);
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
    ($($name:ident: $tq:ty, $tkv:ty, $groups:literal, $blocks:literal;)*) => {$(
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
            scale_log2: f32, causal: u32,
        ) {
            let strides = [
                Strides { batch: out_batch, head: out_head, row: out_row },
                Strides { batch: q_batch, head: q_head, row: q_row },
                Strides { batch: k_batch, head: k_head, row: k_row },
                Strides { batch: v_batch, head: v_head, row: v_row },
            ];
            // SAFETY: this kernel's contract is the body's.
            unsafe {
                prefill::<$tq, $tkv, $groups>(
                    out, q, k, v, strides, num_q_heads, group, q_len, kv_len, head_dim, scale_log2, causal != 0,
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
}
