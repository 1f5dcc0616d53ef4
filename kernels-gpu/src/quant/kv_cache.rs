//! A cache of keys and values in 8 bits, and attention of one query per head over it.
//!
//! quants: i8 [num_kv_heads, capacity, D], scales: f16 [num_kv_heads, capacity, D/32]: blocks of Q8_0 along a head's
//! columns, so that a new token needs no scale of another one. q, out: f32 [num_q_heads, D]; D is 64 or 128.
//!
//! Idea: time is that of reading K and V, so the keys are split over blocks, and a block serves R query heads of its kv
//! head. L = D/16 lanes hold a key, 16 bytes each; 128/L keys go side by side, each with (m, l, acc) of its own, merged
//! in shared memory at the end. Scores are integer sums by dp4a with q in 8 bits too; p·v is f32.
//! Sources: as for the decode kernels of [`attention`](crate::attention::decode), whose kernel combines the splits.
//!
//! | kernel                     | does                                    |
//! |----------------------------|-----------------------------------------|
//! | kv_cache_write_‹t›         | quantises new tokens into the cache     |
//! | kv_cache_decode_d‹D›_r‹R›  | attention of R query heads of a kv head |

use super::blocks::{BLOCK, Half, abs_max, inverse, pack_i8, scale_i8, stored_scale};
use super::unroll::unroll;
use crate::attention::merge::{Merge, base};
use crate::device::int8::{dp4a, load_words};
use crate::device::math::{exp2, fma};
use crate::device::{Element, F16, reduce};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Threads in a block of the writing kernels.
pub const WRITE_THREADS: u32 = 256;
const THREADS: u32 = 128;
/// Columns of a key that a lane holds.
const COLUMNS: u32 = 16;
/// Keys that a lane has on their way.
const KEYS: usize = 2;

/// [f32, f16]. grid = [ceil(tokens · num_kv_heads · D / 4 / WRITE_THREADS)]
pub const WRITE: [KernelSpec; 2] = [
    KernelSpec::new("kv_cache_write_f32", WRITE_THREADS).shuffles(3),
    KernelSpec::new("kv_cache_write_f16", WRITE_THREADS).shuffles(3),
];

const fn spec(name: &'static str, d: u32, rows: u32) -> KernelSpec {
    let lanes = d / COLUMNS;
    // acc [128 / L, R, D], and m and l [128 / L, R]
    let shared = 4 * (THREADS * COLUMNS * rows + 2 * THREADS / lanes * rows);
    KernelSpec::new(name, THREADS).shared_bytes(shared).shuffles(rows + lanes.ilog2() * rows * KEYS as u32)
}

/// By D (64, 128) and rows (1, 2, 4). grid = [splits, num_kv_heads, ceil(group / rows)]
pub const DECODE: [[KernelSpec; 3]; 2] = [
    [
        spec("kv_cache_decode_d64_r1", 64, 1),
        spec("kv_cache_decode_d64_r2", 64, 2),
        spec("kv_cache_decode_d64_r4", 64, 4),
    ],
    [
        spec("kv_cache_decode_d128_r1", 128, 1),
        spec("kv_cache_decode_d128_r2", 128, 2),
        spec("kv_cache_decode_d128_r4", 128, 4),
    ],
];
/// Query heads that the variants of [`DECODE`] serve.
pub const DECODE_ROWS: [u32; 3] = [1, 2, 4];

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn write<T: Element>(
    quants: *mut u32,
    scales: *mut Half,
    x: *const T,
    tokens: u32,
    num_kv_heads: u32,
    d: u32,
    capacity: u32,
    position: u32,
) {
    // neither is ever 0; said so, no panic is compiled in
    let (words, num_kv_heads) = ((d / 4).max(1), num_kv_heads.max(1));
    let index = thread::index_1d();
    let exists = index / words < tokens * num_kv_heads;
    // Lanes beyond the end take part in the shuffles with the last row's values and write nothing.
    let row = (index / words).min(tokens * num_kv_heads - 1);
    let (token, head, word) = (row / num_kv_heads, row % num_kv_heads, index % words);
    let to = (head * capacity + position + token) as usize * words as usize + word as usize;
    // SAFETY: the row exists in x and its place in the cache, as position + tokens ≤ capacity. All lanes are here.
    unsafe {
        let values = T::load4(x.add((row * d + word * 4) as usize));
        let largest = reduce::warp(abs_max(&values).to_bits(), BLOCK as u32 / 4, u32::max);
        let scale = scale_i8(f32::from_bits(largest));
        if exists {
            *quants.add(to) = pack_i8(values, inverse(scale));
            if word % (BLOCK as u32 / 4) == 0 {
                *scales.add(to / (BLOCK / 4)) = stored_scale(scale);
            }
        }
    }
}

/// # Safety
/// `quants` and `scales`: a cache of `num_kv_heads`, `capacity` and `d`, `x`: [tokens, num_kv_heads, d], 16-byte aligned,
/// fewer than 2³¹ elements, valid on the launching stream, disjoint; position + tokens ≤ capacity, tokens > 0; launched
/// as [`WRITE`] says.
#[kernel(launch_bounds(WRITE_THREADS))]
pub unsafe fn kv_cache_write_f32(
    quants: *mut u32,
    scales: *mut Half,
    x: *const f32,
    tokens: u32,
    num_kv_heads: u32,
    d: u32,
    capacity: u32,
    position: u32,
) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { write(quants, scales, x, tokens, num_kv_heads, d, capacity, position) }
}

/// # Safety
/// As [`kv_cache_write_f32`].
#[kernel(launch_bounds(WRITE_THREADS))]
pub unsafe fn kv_cache_write_f16(
    quants: *mut u32,
    scales: *mut Half,
    x: *const F16,
    tokens: u32,
    num_kv_heads: u32,
    d: u32,
    capacity: u32,
    position: u32,
) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { write(quants, scales, x, tokens, num_kv_heads, d, capacity, position) }
}

/// # Safety
/// As the kernels below; `ACC` and `ML` are the words of the arrays that [`spec`] counts.
#[inline(always)]
unsafe fn decode<const D: u32, const R: usize, const ACC: usize, const ML: usize>(
    out: *mut f32,
    partial: *mut f32,
    counters: *mut u32,
    q: *const f32,
    [k, v]: [*const u8; 2],
    [k_scales, v_scales]: [*const F16; 2],
    group: u32,
    capacity: u32,
    kv_len: u32,
    keys_per_split: u32,
    scale_log2: f32,
) {
    let lanes = D / COLUMNS;
    let slots = THREADS / lanes;
    // place tile
    let tid = thread::thread_idx_x();
    let (slot, sub) = (tid / lanes, tid % lanes);
    let (split, kv_head) = (thread::block_idx_x(), thread::block_idx_y());
    let first = thread::block_idx_z() * R as u32;
    let start = split * keys_per_split;
    let end = (start + keys_per_split).min(kv_len);

    // q [R, D] in 8 bits; a block of it is two lanes'
    let mut query = [[0u32; 4]; R];
    let mut factor = [0.0f32; R];
    unroll!(I < 4 => if I < R {
        let head = kv_head * group + (first + I as u32).min(group - 1);
        // SAFETY: the head exists, and its columns from 16 · sub on. All lanes are here.
        let (values, largest) = unsafe {
            let from = q.add((head * D + sub * COLUMNS) as usize);
            let values = [f32::load4(from), f32::load4(from.add(4)), f32::load4(from.add(8)), f32::load4(from.add(12))];
            let own = [abs_max(&values[0]), abs_max(&values[1]), abs_max(&values[2]), abs_max(&values[3])];
            (values, reduce::warp(own.map(f32::to_bits).into_iter().fold(0, u32::max), 2, u32::max))
        };
        let scale = scale_i8(f32::from_bits(largest));
        unroll!(W < 4 => query[I][W] = pack_i8(values[W], inverse(scale)));
        factor[I] = scale * scale_log2;
    });

    let mut acc = [[[0.0f32; 4]; COLUMNS as usize / 4]; R];
    let mut m = [f32::NEG_INFINITY; R];
    let mut l = [0.0f32; R];
    let mut key = start;
    while key < end {
        // load
        let mut keys = [[0u32; 4]; KEYS];
        let mut values = [[0u32; 4]; KEYS];
        let mut key_scale = [0.0f32; KEYS];
        let mut value_scale = [0.0f32; KEYS];
        unroll!(J < 2 => {
            // keys past the end are read from the last one and masked below
            let at = kv_head * capacity + (key + J as u32 * slots + slot).min(end - 1);
            let quants = at as usize * D as usize + (sub * COLUMNS) as usize;
            // SAFETY: the key is below kv_len, and the columns are the lane's.
            unsafe {
                keys[J] = load_words(k.add(quants));
                values[J] = load_words(v.add(quants));
                key_scale[J] = F16::load(k_scales.add(quants / BLOCK));
                value_scale[J] = F16::load(v_scales.add(quants / BLOCK));
            }
        });

        // s = q · k
        let mut s = [[0.0f32; KEYS]; R];
        unroll!(I < 4 => if I < R {
            unroll!(J < 2 => {
                let mut sum = 0;
                unroll!(W < 4 => sum = dp4a(query[I][W], keys[J][W], sum));
                let part = sum as f32 * (factor[I] * key_scale[J]);
                // SAFETY: the loop's bounds are those of the block, so all lanes are here.
                s[I][J] = unsafe { reduce::warp(part, lanes, |a, b| a + b) };
                if key + J as u32 * slots + slot >= end {
                    s[I][J] = f32::NEG_INFINITY;
                }
            });
        });

        // m' = max(m, s); p = exp(s − m'); acc = exp(m − m') acc + p v
        unroll!(I < 4 => if I < R {
            let mut next = m[I];
            unroll!(J < 2 => next = if s[I][J] > next || s[I][J].is_nan() { s[I][J] } else { next });
            let rescale = exp2(m[I] - base(next));
            m[I] = next;
            l[I] *= rescale;
            unroll!(C < 16 => acc[I][C / 4][C % 4] *= rescale);
            unroll!(J < 2 => {
                let p = exp2(s[I][J] - base(next));
                l[I] += p;
                let p = if p == 0.0 { 0.0 } else { p * value_scale[J] };
                unroll!(C < 16 => {
                    let quant = (values[J][C / 4] >> (8 * (C % 4))) as u8 as i8;
                    acc[I][C / 4][C % 4] = fma(p, quant as f32, acc[I][C / 4][C % 4]);
                });
            });
        });
        key += slots * KEYS as u32;
    }

    let column = sub * COLUMNS;
    let merge = Merge {
        partial,
        counters,
        first_row: first,
        rows: group,
        slot,
        slots,
        columns: [column, column + 4, column + 8, column + 12],
        d: D,
        head_dim: D,
    };
    // SAFETY: all threads are here; out has the head, and partial and counters are the caller's.
    unsafe {
        merge.finish::<f32, R, ACC, ML>(m, l, acc, |row| out.add(((kv_head * group + row) * D) as usize))
    }
}

macro_rules! decoders {
    ($($name:ident: $d:literal, $rows:literal;)*) => {$(
        /// # Safety
        /// `out`, `q`: [num_kv_heads · group, D], the caches' quants and scales of `gridDim.y` heads, `capacity` and D,
        /// 16-byte aligned, fewer than 2³¹ elements each, valid on the launching stream; with more than one split
        /// `partial`: f32 [num_q_heads, splits, partial_elements(D)], 16-byte aligned, and `counters`: [gridDim.y · gridDim.z]
        /// zeros, which they are again afterwards; `out`, `partial` and `counters` overlap nothing;
        /// kv_len ≤ capacity, keys_per_split · splits ≥ kv_len; launched as [`DECODE`] says.
        #[kernel(launch_bounds(THREADS))]
        pub unsafe fn $name(
            out: *mut f32,
            partial: *mut f32,
            counters: *mut u32,
            q: *const f32,
            k: *const u8,
            v: *const u8,
            k_scales: *const F16,
            v_scales: *const F16,
            group: u32,
            capacity: u32,
            kv_len: u32,
            keys_per_split: u32,
            scale_log2: f32,
        ) {
            const ACC: usize = (THREADS * COLUMNS) as usize * $rows;
            const ML: usize = (THREADS * COLUMNS / $d) as usize * $rows;
            // SAFETY: this kernel's contract is the body's.
            unsafe {
                decode::<$d, $rows, ACC, ML>(
                    out, partial, counters, q, [k, v], [k_scales, v_scales], group, capacity, kv_len, keys_per_split, scale_log2,
                )
            }
        }
    )*};
}

decoders! {
    kv_cache_decode_d64_r1: 64, 1;
    kv_cache_decode_d64_r2: 64, 2;
    kv_cache_decode_d64_r4: 64, 4;
    kv_cache_decode_d128_r1: 128, 1;
    kv_cache_decode_d128_r2: 128, 2;
    kv_cache_decode_d128_r4: 128, 4;
}
