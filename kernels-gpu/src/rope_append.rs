//! Splits a fused qkv projection: each head of q and k is normalised and rotated, and keys and values are appended to the
//! cache.
//!
//! ```text
//! qkv [rows, heads + 2·kv_heads, dim] → q, k: x / √(mean(x²) + eps) · weight → rotated as in rope.rs
//!                                     → q [rows, heads, dim]; k, v [capacity, kv_heads, dim] from row past on
//! ```
//!
//! cos, sin: [angles, dim/2] f32, where row `first` is the first row's angle. at: [2] = (past, first) in device memory, so
//! that a captured launch serves every token. Rows of several sequences have a cache row and an angle each: at [2, rows].
//!
//! | kernel               | a head of a row is handled by | when               |
//! |----------------------|-------------------------------|--------------------|
//! | rope_append_‹t›_‹kv› | 1 warp, in registers          | one sequence       |
//! | rope_append_each_‹t›_‹kv› | the same                 | rows of several    |
//!
//! ‹kv› is the cache's format, as [`stored`](crate::device::stored) has them: f16, coded (values beyond the largest number
//! become that), q8_0 (a block is 32 columns of a head, so that appending a token changes no other token's scale).

use crate::device::math::rsqrt;
use crate::device::{Element, F16};
use crate::float16::encode;
use crate::quant::blocks::{BLOCK as QUANTS, Half, abs_bits, inverse, quant_i8, scale_i8, stored_scale};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Heads that a block handles, each by a warp.
pub const HEADS_PER_BLOCK: u32 = 4;
const BLOCK: u32 = HEADS_PER_BLOCK * 32;
/// Pairs that a lane has.
const PAIRS: usize = 4;
/// The largest dim.
pub const MAX_DIM: u32 = 2 * 32 * PAIRS as u32;

/// The parameters of the kernels. T is the type of the projection, KV that of the cache's values and S that of its scales,
/// which only Q8_0 has.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Append<T, KV, S> {
    /// [rows, heads, dim]
    pub q: *mut T,
    /// [capacity, kv_heads, dim]; rows of blocks are padded to whole ones
    pub k: *mut KV,
    /// As k.
    pub v: *mut KV,
    /// [capacity, kv_heads, ceil(dim / 32)] for blocks, else null
    pub k_scales: *mut S,
    /// As k_scales.
    pub v_scales: *mut S,
    /// [rows, heads + 2 · kv_heads, dim]
    pub qkv: *const T,
    /// [angles, half]
    pub cos: *const f32,
    /// [angles, half]
    pub sin: *const f32,
    /// [dim] or null
    pub q_weight: *const T,
    /// [dim] or null
    pub k_weight: *const T,
    /// [2]: number of rows in the cache, and the first row's angle; or [2, rows]: each row's index in the cache, and its
    /// angle
    pub at: *const u32,
    pub heads: u32,
    pub kv_heads: u32,
    /// dim / 2, at most [`MAX_DIM`] / 2.
    pub half: u32,
    /// Rows of the cache. Rows past the end are not written.
    pub capacity: u32,
    /// At least 1. Angles past the end are the last one.
    pub angles: u32,
    pub eps: f32,
    /// Exponent bits of a cache in a 16-bit format, else unused.
    pub exponent_bits: u32,
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

/// A cache's keys or values for writing, in its format.
trait Cache: Copy {
    /// Writes row `row` of 2·half columns; the lane has some pairs of it.
    ///
    /// # Safety
    /// The row is inside the cache; all 32 lanes call it together.
    unsafe fn store(self, row: u32, half: u32, low: [f32; PAIRS], high: [f32; PAIRS]);
}

impl<T: Element> Cache for *mut T {
    #[inline(always)]
    unsafe fn store(self, row: u32, half: u32, low: [f32; PAIRS], high: [f32; PAIRS]) {
        each_pair!(half, P, i => {
            // SAFETY: columns of the row.
            unsafe {
                let at = self.add((row * 2 * half + i) as usize);
                *at = T::from_f32(low[P]);
                *at.add(half as usize) = T::from_f32(high[P]);
            }
        });
    }
}

#[derive(Clone, Copy)]
struct Coded {
    codes: *mut u16,
    exponent_bits: u32,
}

impl Cache for Coded {
    #[inline(always)]
    unsafe fn store(self, row: u32, half: u32, low: [f32; PAIRS], high: [f32; PAIRS]) {
        each_pair!(half, P, i => {
            // SAFETY: columns of the row.
            unsafe {
                let at = self.codes.add((row * 2 * half + i) as usize);
                *at = encode(low[P], self.exponent_bits, true);
                *at.add(half as usize) = encode(high[P], self.exponent_bits, true);
            }
        });
    }
}

#[derive(Clone, Copy)]
struct Q8Blocks {
    quants: *mut u8,
    scales: *mut Half,
}

impl Cache for Q8Blocks {
    /// Block by block: a block's columns may be in either half, or in both.
    #[inline(always)]
    unsafe fn store(self, row: u32, half: u32, low: [f32; PAIRS], high: [f32; PAIRS]) {
        const WIDTH: u32 = QUANTS as u32;
        let blocks = (2 * half).div_ceil(WIDTH);
        let mut block = 0;
        while block < blocks {
            let is_in = |column: u32| column / WIDTH == block;
            let mut largest = 0;
            each_pair!(half, P, i => {
                largest = if is_in(i) { largest.max(abs_bits(low[P])) } else { largest };
                largest = if is_in(i + half) { largest.max(abs_bits(high[P])) } else { largest };
            });
            let number = row * blocks + block;
            // SAFETY: all lanes are here; columns of the row's block.
            unsafe {
                let scale = scale_i8(f32::from_bits(Max.over::<32>(largest)));
                let (inverse, quants) = (inverse(scale), self.quants.add((number * WIDTH) as usize));
                each_pair!(half, P, i => {
                    if is_in(i) {
                        *quants.add((i % WIDTH) as usize) = quant_i8(low[P], inverse) as u8;
                    }
                    if is_in(i + half) {
                        *quants.add(((i + half) % WIDTH) as usize) = quant_i8(high[P], inverse) as u8;
                    }
                });
                if warp::lane_id() == 0 {
                    *self.scales.add(number as usize) = stored_scale(scale);
                }
            }
            block += 1;
        }
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn append<T: Element, KV, S, C: Cache, const EACH: bool>(p: Append<T, KV, S>, [k, v]: [C; 2]) {
    let Append { q, qkv, cos, sin, q_weight, k_weight, at, eps, .. } = p;
    let (row, dim) = (thread::block_idx_x(), 2 * p.half);
    let head = thread::block_idx_y() * HEADS_PER_BLOCK + thread::thread_idx_x() / 32;
    let all_heads = p.heads + 2 * p.kv_heads;
    if head >= all_heads {
        return; // whole warps only, so the shuffles below have all lanes
    }
    // SAFETY: every element read or written is in a head below the number of heads and, in the caches, in a row below
    // their capacity; what depends on the head is the same in all lanes of a warp.
    unsafe {
        let (past, first) = match EACH {
            true => (*at.add(row as usize), *at.add((thread::grid_dim_x() + row) as usize)),
            false => (*at, *at.add(1)),
        };
        let x = qkv.add(((row * all_heads + head) * dim) as usize);
        let after = if EACH { 0 } else { row };
        let slot = past.saturating_add(after);
        let to_cache = head >= p.heads;
        if to_cache && slot >= p.capacity {
            return;
        }
        let is_value = head >= p.heads + p.kv_heads;

        let (mut low, mut high) = ([0.0f32; PAIRS], [0.0f32; PAIRS]);
        let mut squares = 0.0;
        each_pair!(p.half, P, i => {
            (low[P], high[P]) = (T::load(x.add(i as usize)), T::load(x.add((i + p.half) as usize)));
            squares += low[P] * low[P] + high[P] * high[P];
        });
        let weight = if to_cache { k_weight } else { q_weight };
        if !is_value && !weight.is_null() {
            let scale = rsqrt(Sum.over::<32>(squares) / dim as f32 + eps);
            each_pair!(p.half, P, i => {
                low[P] *= scale * T::load(weight.add(i as usize));
                high[P] *= scale * T::load(weight.add((i + p.half) as usize));
            });
        }
        if !is_value {
            let angle = first.saturating_add(after).min(p.angles - 1) * p.half;
            each_pair!(p.half, P, i => {
                let (cos, sin) = (f32::load(cos.add((angle + i) as usize)), f32::load(sin.add((angle + i) as usize)));
                (low[P], high[P]) = (low[P] * cos - high[P] * sin, high[P] * cos + low[P] * sin);
            });
        }
        if to_cache {
            let kv_head = head - p.heads - if is_value { p.kv_heads } else { 0 };
            let cache = if is_value { v } else { k };
            cache.store(slot * p.kv_heads + kv_head, p.half, low, high);
        } else {
            q.store(row * p.heads + head, p.half, low, high);
        }
    }
}

macro_rules! kernels {
    ($($name:ident, $each:ident: $T:ty, $KV:ty, $S:ty, shuffles = $shuffles:expr, |$p:ident| $caches:expr;)*) => {
        $(
            /// grid = [rows, ceil((heads + 2 · kv_heads) / [`HEADS_PER_BLOCK`])]
            ///
            /// # Safety
            /// [`Append`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements;
            /// the outputs are disjoint from everything.
            #[kernel(block = BLOCK, shuffles = $shuffles, module = stringify!($name))]
            pub unsafe fn $name($p: Append<$T, $KV, $S>) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { append::<_, _, _, _, false>($p, $caches) }
            }

            /// grid = [rows, ceil((heads + 2 · kv_heads) / [`HEADS_PER_BLOCK`])], `at` [2, rows]
            ///
            /// # Safety
            /// As the kernels of one sequence; no two rows have the same index in the cache.
            #[kernel(block = BLOCK, shuffles = $shuffles, module = stringify!($each))]
            pub unsafe fn $each($p: Append<$T, $KV, $S>) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { append::<_, _, _, _, true>($p, $caches) }
            }
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($name.info(), $each.info()),*];
    };
}

kernels! {
    rope_append_f32, rope_append_each_f32: f32, f32, (), shuffles = 5, |p| [p.k, p.v];
    rope_append_f16, rope_append_each_f16: F16, F16, (), shuffles = 5, |p| [p.k, p.v];
    rope_append_f32_f16, rope_append_each_f32_f16: f32, F16, (), shuffles = 5, |p| [p.k, p.v];
    rope_append_f32_coded, rope_append_each_f32_coded: f32, u16, (), shuffles = 5,
        |p| [p.k, p.v].map(|codes| Coded { codes, exponent_bits: p.exponent_bits });
    rope_append_f32_q8_0, rope_append_each_f32_q8_0: f32, u8, Half, shuffles = 2 * 5,
        |p| [Q8Blocks { quants: p.k, scales: p.k_scales }, Q8Blocks { quants: p.v, scales: p.v_scales }];
}
