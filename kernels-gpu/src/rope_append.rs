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
//! ‹kv› is the cache's format, as [`kv`](crate::kv) has them, which also writes a row.

use crate::device::math::rsqrt;
use crate::device::{Element, F16};
use crate::kv::stored::{PAIRS, Pairs, Row, each_pair};
use crate::kv::{Storage, Stored, for_each_storage};
use core::ptr::null_mut;
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec, inlined};

/// Heads that a block handles, each by a warp.
pub const HEADS_PER_BLOCK: u32 = 4;
const BLOCK: u32 = HEADS_PER_BLOCK * 32;
/// The largest dim.
pub const MAX_DIM: u32 = 2 * 32 * PAIRS as u32;

/// The parameters of the kernels. T is the type of the projection; the cache is [`Stored`] as the kernel's name says.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Append<T> {
    /// [rows, heads, dim]
    pub q: *mut T,
    /// [capacity, kv_heads, dim]; rows of blocks are padded to whole ones
    pub k: *mut u8,
    /// As k.
    pub v: *mut u8,
    /// [capacity, kv_heads, ceil(dim / 32)] for blocks, else null
    pub k_scales: *mut F16,
    /// As k_scales.
    pub v_scales: *mut F16,
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
    /// Elements between the two rows of `at` [2, rows]; else unused.
    pub at_stride: u32,
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

/// How heads are normalised and rotated: the fields of [`Append`].
#[derive(Clone, Copy)]
pub(crate) struct Rotation {
    pub cos: *const f32,
    pub sin: *const f32,
    pub angles: u32,
    pub half: u32,
    pub eps: f32,
}

#[inlined]
impl Rotation {
    /// The lane's pairs of the head at `x`, normalised by `weight` if it is not null, and rotated by angle number `angle` unless the head
    /// is one of values.
    ///
    /// # Safety
    /// x and weight have 2 · half elements, in memory that nothing writes; all 32 lanes call it together with the same arguments.
    pub unsafe fn head<T: Element>(self, x: *const T, weight: *const T, angle: u32, is_value: bool) -> Pairs {
        let half = self.half;
        let (mut low, mut high) = ([0.0f32; PAIRS], [0.0f32; PAIRS]);
        let (mut of_low, mut of_high) = ([1.0f32; PAIRS], [1.0f32; PAIRS]);
        let (mut cos, mut sin) = ([1.0f32; PAIRS], [0.0f32; PAIRS]);
        let mut squares = 0.0;
        let is_normed = !is_value && !weight.is_null();
        let angle = angle.min(self.angles - 1) * half;
        // all loads are in flight together
        // SAFETY: columns of the head, and of an angle.
        unsafe {
            each_pair!(half, P, i => {
                (low[P], high[P]) = (T::load(x.add(i as usize)), T::load(x.add((i + half) as usize)));
                if is_normed {
                    of_low[P] = T::load(weight.add(i as usize));
                    of_high[P] = T::load(weight.add((i + half) as usize));
                }
                if !is_value {
                    cos[P] = f32::load(self.cos.add((angle + i) as usize));
                    sin[P] = f32::load(self.sin.add((angle + i) as usize));
                }
            });
        }
        each_pair!(half, P, i => squares += low[P] * low[P] + high[P] * high[P]);
        if is_normed {
            // SAFETY: all lanes are here.
            let scale = rsqrt(unsafe { Sum.over::<32>(squares) } / (2 * half) as f32 + self.eps);
            each_pair!(half, P, i => (low[P], high[P]) = (low[P] * scale * of_low[P], high[P] * scale * of_high[P]));
        }
        if !is_value {
            each_pair!(half, P, i => {
                (low[P], high[P]) = (low[P] * cos[P] - high[P] * sin[P], high[P] * cos[P] + low[P] * sin[P]);
            });
        }
        [low, high]
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn append<T: Element, S: Stored, const EACH: bool>(p: Append<T>) {
    let Append { q, qkv, q_weight, k_weight, at, .. } = p;
    let Append { cos, sin, angles, half, eps, .. } = p;
    let (row, dim) = (thread::block_idx_x(), 2 * half);
    let head = thread::block_idx_y() * HEADS_PER_BLOCK + thread::thread_idx_x() / 32;
    let all_heads = p.heads + 2 * p.kv_heads;
    if head >= all_heads {
        return; // whole warps only, so the shuffles below have all lanes
    }
    // SAFETY: every element read or written is in a head below the number of heads and, in the caches, in a row below
    // their capacity; what depends on the head is the same in all lanes of a warp.
    unsafe {
        let (past, first) = match EACH {
            true => (*at.add(row as usize), *at.add((p.at_stride + row) as usize)),
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
        let weight = if to_cache { k_weight } else { q_weight };
        let rotation = Rotation { cos, sin, angles, half, eps };
        let pairs = rotation.head(x, weight, first.saturating_add(after), is_value);
        if to_cache {
            let kv_head = head - p.heads - if is_value { p.kv_heads } else { 0 };
            let (values, scales) = if is_value { (p.v, p.v_scales) } else { (p.k, p.k_scales) };
            let row = slot * p.kv_heads + kv_head;
            let exponent_bits = p.exponent_bits;
            S::store(Row { values, scales, exponent_bits, row, half, is_written: true }, pairs);
        } else {
            let (values, row) = (q.cast(), row * p.heads + head);
            let row = Row { values, scales: null_mut(), exponent_bits: 0, row, half, is_written: true };
            <*const T>::store(row, pairs);
        }
    }
}

macro_rules! kernels {
    ($kernels:ident $t:ty; $($storage:ident: $stored:ty, $types:expr, $([$($widths:tt)*])+;)*) => {
        /// The kernels for projections of one type, by the storage of the cache.
        pub mod $kernels {
            use super::*;

            $(mod $storage {
                use super::*;

                kernels! { @ one $t, $stored, false, "rope_append_", $types }
                kernels! { @ each $t, $stored, true, "rope_append_each_", $types }
            })*

            pub(super) const SPECS: &[[KernelSpec<Append<$t>>; 2]] = &[$([$storage::one, $storage::each]),*];
            /// All of them.
            pub const KERNELS: &[KernelInfo] = &[$($storage::one.info(), $storage::each.info()),*];
        }
    };
    (@ $name:ident $t:ty, $stored:ty, $each:literal, $begin:literal, $types:expr) => {
        /// grid = [rows, ceil((heads + 2 · kv_heads) / [`HEADS_PER_BLOCK`])]
        ///
        /// # Safety
        /// [`Append`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements;
        /// the outputs are disjoint from everything. No two rows have the same index in the cache.
        #[kernel(name = concat!($begin, $types), block = BLOCK, min_blocks = 9, shuffles = 5 + <$stored>::SHUFFLES)]
        pub unsafe fn $name(p: Append<$t>) {
            // SAFETY: this kernel's contract is the body's.
            unsafe { append::<_, $stored, $each>(p) }
        }
    };
}

kernels! { of_f16 F16; as_f16: *const F16, "f16", []; }
for_each_storage! { kernels of_f32 f32; }

/// For rows of one sequence, and for rows with an index in the cache each (`at` [2, rows]); all f16.
pub const OF_F16: [KernelSpec<Append<F16>>; 2] = of_f16::SPECS[0];

/// The same for projections in f32, and a cache stored so.
pub const fn of_storage(storage: Storage) -> [KernelSpec<Append<f32>>; 2] {
    of_f32::SPECS[storage as usize]
}
