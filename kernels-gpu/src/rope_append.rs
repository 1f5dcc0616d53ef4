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
//!
//! ‹kv› is the cache's format, as [`stored`](crate::device::stored) has them: f16, coded (values beyond the largest number
//! become that), q8_0 (a block is a head's 32 columns, so that a new token needs no scale of another one).

use crate::device::math::rsqrt;
use crate::device::{Element, F16, reduce};
use crate::float16::encode;
use crate::quant::blocks::{BLOCK as QUANTS, Half, abs_bits, inverse, quant_i8, scale_i8, stored_scale};
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
/// f32 with a cache in a 16-bit format with any exponent bits; else as [`SPECS`].
pub const CODED: KernelSpec = KernelSpec::new("rope_append_f32_coded", BLOCK).shuffles(5);
/// f32 with a cache in blocks of 8 bits; else as [`SPECS`].
pub const Q8_0: KernelSpec = KernelSpec::new("rope_append_f32_q8_0", BLOCK).shuffles(2 * 5);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &[SPECS[0], SPECS[1], SPECS[2], CODED, Q8_0];

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

/// Where a cache's keys or values go, in its format.
trait Cache: Copy {
    /// Writes row `row` of 2·half columns: the lane's pairs of it.
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

impl Coded {
    #[inline(always)]
    fn pair([k, v]: [*mut u16; 2], exponent_bits: u32) -> [Self; 2] {
        [Self { codes: k, exponent_bits }, Self { codes: v, exponent_bits }]
    }
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
struct Blocks {
    quants: *mut u8,
    scales: *mut Half,
}

impl Blocks {
    #[inline(always)]
    fn pair([k, v]: [*mut u8; 2], k_scales: *mut Half, v_scales: *mut Half) -> [Self; 2] {
        [Self { quants: k, scales: k_scales }, Self { quants: v, scales: v_scales }]
    }
}

impl Cache for Blocks {
    /// Block by block: its columns may be in either half, or in both.
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
unsafe fn append<T: Element, C: Cache>(
    q: *mut T,
    [k, v]: [C; 2],
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

        let (mut low, mut high) = ([0.0f32; PAIRS], [0.0f32; PAIRS]);
        let mut squares = 0.0;
        each_pair!(e.half, P, i => {
            (low[P], high[P]) = (T::load(x.add(i as usize)), T::load(x.add((i + e.half) as usize)));
            squares += low[P] * low[P] + high[P] * high[P];
        });
        let weight = if to_cache { k_weight } else { q_weight };
        if !is_value && !weight.is_null() {
            let scale = rsqrt(Sum.over::<32>(squares) / dim as f32 + eps);
            each_pair!(e.half, P, i => {
                low[P] *= scale * T::load(weight.add(i as usize));
                high[P] *= scale * T::load(weight.add((i + e.half) as usize));
            });
        }
        if !is_value {
            let angle = first.saturating_add(row).min(e.angles - 1) * e.half;
            each_pair!(e.half, P, i => {
                let (cos, sin) = (f32::load(cos.add((angle + i) as usize)), f32::load(sin.add((angle + i) as usize)));
                (low[P], high[P]) = (low[P] * cos - high[P] * sin, high[P] * cos + low[P] * sin);
            });
        }
        if to_cache {
            let kv_head = head - e.heads - if is_value { e.kv_heads } else { 0 };
            let cache = if is_value { v } else { k };
            cache.store(slot * e.kv_heads + kv_head, e.half, low, high);
        } else {
            q.store(row * e.heads + head, e.half, low, high);
        }
    }
}

macro_rules! kernels {
    ($($name:ident: $T:ty, $KV:ty $(, $open:path { $($more:ident: $type:ty),* })?;)*) => {$(
        /// # Safety
        /// The tensors as this file's head says, with rows = gridDim.x, dim = 2·half ≤ [`MAX_DIM`] and angles > 0; rows of
        /// quants are padded to whole blocks. The weights [dim] or null; all valid on the launching stream and below 2³¹
        /// elements, the outputs disjoint from everything. Rows beyond the capacity are not written, angles beyond the last
        /// are the last. Launched as the contract of the same name says.
        #[kernel(launch_bounds(BLOCK))]
        pub unsafe fn $name(
            q: *mut $T, k: *mut $KV, v: *mut $KV, qkv: *const $T, cos: *const f32, sin: *const f32,
            q_weight: *const $T, k_weight: *const $T, at: *const u32,
            heads: u32, kv_heads: u32, half: u32, capacity: u32, angles: u32, eps: f32 $($(, $more: $type)*)?
        ) {
            let extents = Extents { heads, kv_heads, half, capacity, angles };
            let caches = [k, v];
            $(let caches = $open(caches, $($more),*);)?
            // SAFETY: this kernel's contract is the body's.
            unsafe { append(q, caches, qkv, [cos, sin], [q_weight, k_weight], at, extents, eps) }
        }
    )*};
}

kernels! {
    rope_append_f32: f32, f32;
    rope_append_f16: F16, F16;
    rope_append_f32_f16: f32, F16;
    rope_append_f32_coded: f32, u16, Coded::pair { exponent_bits: u32 };
    rope_append_f32_q8_0: f32, u8, Blocks::pair { k_scales: *mut Half, v_scales: *mut Half };
}
