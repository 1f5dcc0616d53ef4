//! From a fused projection to queries and a cache: each head of q and k is normalised and turned, keys and values go to
//! their rows of the cache.
//!
//! ```text
//! qkv [rows, heads + 2·kv_heads, dim] → q, k: x / √(mean(x²) + eps) · weight → turned as in rope.rs
//!                                     → q [rows, heads, dim]; k, v [capacity, kv_heads, dim] from row past on
//! ```
//!
//! cos, sin: [angles, dim/2] f32, of which row `first` is the first row's; at: [2] = (past, first) in device memory, so that a
//! captured launch serves every token.
//!
//! | kernel               | a head of a row is handled by | when |
//! |----------------------|-------------------------------|------|
//! | rope_append_‹t›_‹kv› | 1 warp, in registers          | all  |

use crate::device::math::rsqrt;
use crate::device::{Element, F16, reduce};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Heads that a block handles, each by a warp.
pub const HEADS_PER_BLOCK: u32 = 4;
const BLOCK: u32 = HEADS_PER_BLOCK * 32;
/// Pairs that a lane holds.
const PAIRS: usize = 4;
/// The largest dim.
pub const MAX_DIM: u32 = 2 * 32 * PAIRS as u32;

/// [f32, f16, f32 with a cache in f16]. grid = [rows, ceil((heads + 2·kv_heads) / HEADS_PER_BLOCK)]
pub const SPECS: [KernelSpec; 3] = [
    KernelSpec::new("rope_append_f32", BLOCK).shuffles(5),
    KernelSpec::new("rope_append_f16", BLOCK).shuffles(5),
    KernelSpec::new("rope_append_f32_f16", BLOCK).shuffles(5),
];

/// The extents.
struct Extents {
    heads: u32,
    kv_heads: u32,
    half: u32,
    capacity: u32,
    angles: u32,
}

/// Repeats a statement for the pairs of a lane that exist: number `$p`, elements `$i` and `$i` + half.
macro_rules! each_pair {
    ($half:expr, $p:ident, $i:ident => $body:expr) => {
        each_pair!(@ $half, $p, $i, $body; 0 1 2 3)
    };
    (@ $half:expr, $p:ident, $i:ident, $body:expr; $($number:literal)*) => {$({
        const $p: usize = $number;
        let $i = $number * 32 + warp::lane_id();
        if $i < $half {
            $body
        }
    })*};
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn append<T: Element, KV: Element>(
    q: *mut T,
    k: *mut KV,
    v: *mut KV,
    qkv: *const T,
    [cos, sin]: [*const f32; 2],
    [q_weight, k_weight]: [*const T; 2],
    at: *const u32,
    e: Extents,
    eps: f32,
) {
    let (row, dim) = (thread::block_idx_x(), 2 * e.half);
    let head = thread::block_idx_y() * HEADS_PER_BLOCK + thread::thread_idx_x() / 32;
    let all_heads = e.heads + 2 * e.kv_heads;
    if head >= all_heads {
        return; // whole warps only, so the shuffles below have all lanes
    }
    // SAFETY: every element read or written is in a head below the number of heads and, in the caches, in a row below
    // their capacity; what depends on the head is the same in all lanes of a warp.
    unsafe {
        let (past, first) = (*at, *at.add(1));
        let x = qkv.add(((row * all_heads + head) * dim) as usize);
        let slot = past.saturating_add(row);
        let to_cache = head >= e.heads;
        if to_cache && slot >= e.capacity {
            return;
        }
        let is_value = head >= e.heads + e.kv_heads;
        let kv_head = head - if is_value { e.heads + e.kv_heads } else { e.heads.min(head) };
        let cached = ((slot * e.kv_heads + kv_head) * dim) as usize;

        let (mut low, mut high) = ([0.0f32; PAIRS], [0.0f32; PAIRS]);
        let mut squares = 0.0;
        each_pair!(e.half, P, i => {
            (low[P], high[P]) = (T::load(x.add(i as usize)), T::load(x.add((i + e.half) as usize)));
            squares += low[P] * low[P] + high[P] * high[P];
        });
        if is_value {
            each_pair!(e.half, P, i => {
                *v.add(cached + i as usize) = KV::from_f32(low[P]);
                *v.add(cached + (i + e.half) as usize) = KV::from_f32(high[P]);
            });
            return;
        }
        let weight = if to_cache { k_weight } else { q_weight };
        if !weight.is_null() {
            let scale = rsqrt(reduce::warp(squares, 32, |a, b| a + b) / dim as f32 + eps);
            each_pair!(e.half, P, i => {
                low[P] *= scale * T::load(weight.add(i as usize));
                high[P] *= scale * T::load(weight.add((i + e.half) as usize));
            });
        }
        let angle = first.saturating_add(row).min(e.angles - 1) * e.half;
        each_pair!(e.half, P, i => {
            let (cos, sin) = (f32::load(cos.add((angle + i) as usize)), f32::load(sin.add((angle + i) as usize)));
            let turned = (low[P] * cos - high[P] * sin, high[P] * cos + low[P] * sin);
            if to_cache {
                *k.add(cached + i as usize) = KV::from_f32(turned.0);
                *k.add(cached + (i + e.half) as usize) = KV::from_f32(turned.1);
            } else {
                let q = q.add(((row * e.heads + head) * dim) as usize);
                *q.add(i as usize) = T::from_f32(turned.0);
                *q.add((i + e.half) as usize) = T::from_f32(turned.1);
            }
        });
    }
}

macro_rules! kernels {
    ($($name:ident: $T:ty, $KV:ty;)*) => {$(
        /// # Safety
        /// The tensors as this file's head says, with rows = gridDim.x, dim = 2·half ≤ [`MAX_DIM`] and angles > 0; the weights
        /// [dim] or null; all valid on the launching stream and below 2³¹ elements, the outputs disjoint from everything.
        /// Rows beyond the capacity are not written, angles beyond the last are the last. Launched as [`SPECS`] says.
        #[kernel(launch_bounds(BLOCK))]
        pub unsafe fn $name(
            q: *mut $T, k: *mut $KV, v: *mut $KV, qkv: *const $T, cos: *const f32, sin: *const f32,
            q_weight: *const $T, k_weight: *const $T, at: *const u32,
            heads: u32, kv_heads: u32, half: u32, capacity: u32, angles: u32, eps: f32,
        ) {
            let extents = Extents { heads, kv_heads, half, capacity, angles };
            // SAFETY: this kernel's contract is the body's.
            unsafe { append(q, k, v, qkv, [cos, sin], [q_weight, k_weight], at, extents, eps) }
        }
    )*};
}

kernels! {
    rope_append_f32: f32, f32;
    rope_append_f16: F16, F16;
    rope_append_f32_f16: f32, F16;
}
