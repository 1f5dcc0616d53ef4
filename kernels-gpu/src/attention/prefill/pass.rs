//! The pass of a block over its tiles of keys.

use super::block::{
    BK, Place, Scratch, Work, after_reading, barrier, chunk_elements, thread_index, threads, v_keys,
};
use super::factors::Factors;
use super::load::Loader;
use super::products::{scores, weighted_values};
use crate::attention::merge::STATE as STATE_ELEMENTS;
use crate::attention::tensors::{Tensors, not_zero};
use crate::device::math::{exp2, rcp};
use crate::device::unroll::unroll;
use crate::device::{Element, Shared};
use crate::kv::Stored;
use cuda_std::prelude::*;

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
pub(in crate::attention) unsafe fn prefill<
    T: Element,
    F: Factors,
    V: Stored,
    const WARPS: u32,
    const G: usize,
    const X: usize,
    const KEYS: usize,
    const Q_STRIDE: u32,
    const K_STRIDE: u32,
    W: Work<KEYS>,
>(
    t: Tensors<T, F, V>,
    last_key: u32,
    work: W,
    scratch: Scratch,
) {
    let Tensors { out, factors, v, group, q_len, head_dim, scale_log2, .. } = t;
    let Tensors { out_strides, q_strides, k_strides, v_strides, .. } = t;
    let Scratch { chunks, probabilities, maxima, sums } = scratch;

    // SAFETY: the grid has a head, so the group is not 0.
    unsafe { not_zero(group) };

    let columns = F::columns(head_dim);

    // place tile
    let place = work.place();
    let Place { tid, tx, row, batch, head, first, .. } = place;
    let load = Loader {
        factors,
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
        columns,
    };
    let mut tile = work.begin();

    // in a chunk: this thread's first row of Q, first key of K
    let (q_first, k_first) = (|row: u32| row, |tx: u32| BK * Q_STRIDE + tx * 4);
    let chunks_of_v = |keys: u32| keys / v_keys(WARPS);
    // of l's two parts
    let apart = 4 * threads(WARPS);

    let mut o = [[[0.0f32; 4]; G]; 8];
    let mut o_further = [[0.0f32; X]; 8];
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
        let mut s = [[F::ZERO; KEYS]; 8];
        let mut column = 0;
        while column < columns {
            // SAFETY: all threads run the same loops. After the barrier the chunk is complete, and no thread reads the other
            // one.
            unsafe {
                barrier::<WARPS>();
                column += BK;
                let staged = if column < columns {
                    if W::LISTED {
                        load.qk_at::<WARPS, KEYS>(tid, column, k_at)
                    } else {
                        load.qk::<WARPS, KEYS, W>(work, tid, tile, column)
                    }
                } else {
                    load.v::<WARPS, G, X, KEYS, W>(work, thread_index::<WARPS>(), tile, 0)
                };
                if sees {
                    let both = |at: u32| [chunks.at(side + at), chunks.at((side + at) ^ 8)]; // rows exchanged as in `put_qk`
                    if F::RAGGED && column >= columns + 12 {
                        scores::<F, 4, KEYS, KEYS, Q_STRIDE, K_STRIDE>(
                            &mut s,
                            both(q_first(row)),
                            both(k_first(tx)),
                        );
                    } else if KEYS == 4 || keys > 64 {
                        scores::<F, 16, KEYS, KEYS, Q_STRIDE, K_STRIDE>(
                            &mut s,
                            both(q_first(row)),
                            both(k_first(tx)),
                        );
                    } else {
                        // read again, because otherwise the compiler computes common subexpressions before the branch and
                        // waits for their operands
                        let Place { tx, row, .. } = work.place();
                        scores::<F, 16, KEYS, 4, Q_STRIDE, K_STRIDE>(
                            &mut s,
                            both(q_first(row)),
                            both(k_first(tx)),
                        );
                    }
                }
                after_reading::<WARPS>();
                side = other(side);
                if column < columns {
                    load.put_qk::<WARPS, KEYS>(tid, chunks.at(side), staged, column);
                } else {
                    load.put_v::<WARPS, G, X>(tid, chunks.at(side), staged);
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
        // SAFETY: the block has this tile, whose rows are multiples of four.
        unsafe {
            factors.scale(&mut s, place, work.key(tile, 4 * tx), scale_log2);
            work.mask(&mut s, place, tile);
        }

        // m' = max(m, rowmax S)
        // SAFETY: only this thread accesses these elements.
        let (m, mut l) = unsafe { (load_8(m_state, 4), load_8(l_state, apart)) };
        let mut next = m;
        unroll!(I < 8 => {
            unroll!(J < KEYS => { next[I] = next[I].max(s[I][J]); });
        });
        // SAFETY: all lanes are here.
        unroll!(I < 8 => { next[I] = unsafe { Max.over::<16>(next[I]) }; });

        // P = exp(S − m'); l and O rescaled
        unroll!(I < 8 => {
            let base = if next[I] == f32::NEG_INFINITY { 0.0 } else { next[I] };
            let rescale = exp2(m[I] - base);
            l[I] *= rescale;
            unroll!(J < KEYS => {
                s[I][J] = exp2(s[I][J] - base);
                l[I] += s[I][J];
            });
            let mut g = 0;
            while g < G {
                unroll!(E < 4 => { o[I][g][E] *= rescale; });
                g += 1;
            }
            o_further[I] = o_further[I].map(|x| x * rescale);
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
            unroll!(J < 4 => {
                if 2 * J < KEYS {
                    unroll!(HALF < 2 => {
                        let rows = [s[4 * HALF][J], s[4 * HALF + 1][J], s[4 * HALF + 2][J], s[4 * HALF + 3][J]];
                        // SAFETY: rows and keys of the warp's, each element by one thread.
                        unsafe { probabilities.at(p_write ^ (HALF as u32 * 4)).set4(J as u32 * 256, rows) };
                    });
                    unroll!(I < 8 => { s[I][J] = s[I][J + KEYS / 2]; });
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
                        load.v::<WARPS, G, X, KEYS, W>(work, tid, tile, j)
                    } else {
                        load.qk::<WARPS, KEYS, W>(work, thread_index::<WARPS>(), tile + W::STEP, 0) // after the last tile unused
                    };
                    if sees {
                        let p = [0, 1, 2, 3].map(|x| probabilities.at(p ^ (x * 4)));
                        let further = chunks.at(side + G as u32 * v_keys(WARPS) * 64 + tx);
                        weighted_values::<WARPS, G, X>(
                            &mut o,
                            &mut o_further,
                            p,
                            chunks.at(side + tx * 4),
                            further,
                        );
                    }
                    after_reading::<WARPS>();
                    side = other(side);
                    if j < chunks_of_v(keys) {
                        load.put_v::<WARPS, G, X>(tid, chunks.at(side), staged);
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
    unroll!(I < 8 => { l[I] = unsafe { Sum.over::<16>(l[I]) }; });
    // SAFETY: the block's own item.
    if let Some(partial) = unsafe { work.partial() } {
        let columns = (64 * G + 16 * X) as u32;
        let width = columns + STATE_ELEMENTS;
        // SAFETY: only this thread accesses these elements.
        let m = unsafe { load_8(maxima.at(row), 4) };
        unroll!(I < 8 => {
            // SAFETY: the row is below BM of [BM, D + 4]; each thread writes its own columns, one lane a row's m and l.
            unsafe {
                let record = partial.add(((row + I as u32) * width) as usize);
                let mut g = 0;
                while g < G {
                    f32::store4(record.add((tx * 4 + g as u32 * 64) as usize), o[I][g]);
                    g += 1;
                }
                if X > 0 {
                    *record.add(64 * G + tx as usize) = o_further[I][0];
                }
                if tx == 0 {
                    *record.add(columns as usize) = m[I];
                    *record.add(columns as usize + 1) = l[I];
                }
            }
        });
        return;
    }
    unroll!(I < 8 => {
        let i = first + row + I as u32;
        let factor = if l[I] == 0.0 { 0.0 } else { rcp(l[I]) };
        let mut g = 0;
        while g < G {
            let column = tx * 4 + g as u32 * 64;
            if i < q_len && column < head_dim {
                let values = o[I][g].map(|x| x * factor);
                // SAFETY: row and columns are inside this head's output, rows 8-element aligned.
                unsafe { T::store4(out.add((head + i * out_strides.row + column) as usize), values) };
            }
            g += 1;
        }
        let column = 64 * G as u32 + tx;
        if X > 0 && i < q_len && column < head_dim {
            // SAFETY: row and column are inside this head's output.
            unsafe { *out.add((head + i * out_strides.row + column) as usize) = T::from_f32(o_further[I][0] * factor) };
        }
    });
}
