//! Attention in three passes over a score matrix in global memory, with 16 × 16 tiles: what users would write, as
//! the baseline that benches compare with. f32, contiguous.
//!
//! q, out: [b · num_q_heads, q_len, head_dim]; k, v: [b · num_kv_heads, kv_len, head_dim];
//! scores: [b · num_q_heads, q_len, kv_len].

use super::{not_zero, visible};
use crate::device::math::{exp, fma, rcp};
use crate::device::{reduce, shared};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

const TILE: u32 = 16;
const TILE_ELEMENTS: u32 = TILE * TILE;
/// Threads of a softmax block.
const BLOCK: u32 = 256;
const WARPS: u32 = BLOCK / 32;

/// Rows and columns of the output that a block of [`SCORES`] and [`VALUES`] computes.
pub const TEXTBOOK_TILE: u32 = TILE;

/// grid = [ceil(kv_len / TEXTBOOK_TILE), ceil(q_len / TEXTBOOK_TILE), b · num_q_heads]
pub const SCORES: KernelSpec = KernelSpec::new("attention_textbook_scores_f32", TILE_ELEMENTS)
    .block_2d(TILE, TILE)
    .shared_bytes(2 * TILE_ELEMENTS * 4);
/// grid = [b · num_q_heads · q_len]
pub const SOFTMAX: KernelSpec =
    KernelSpec::new("attention_textbook_softmax_f32", BLOCK).shared_bytes(2 * WARPS * 4).shuffles(2 * 5);
/// grid = [ceil(head_dim / TEXTBOOK_TILE), ceil(q_len / TEXTBOOK_TILE), b · num_q_heads]
pub const VALUES: KernelSpec = KernelSpec::new("attention_textbook_values_f32", TILE_ELEMENTS)
    .block_2d(TILE, TILE)
    .shared_bytes(2 * TILE_ELEMENTS * 4);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &[SCORES, SOFTMAX, VALUES];

/// scores = scale · q kᵀ, −∞ where masked. `group`: query heads per kv head.
///
/// # Safety
/// Tensors as the module's head says, valid on the launching stream; launched as [`SCORES`] says.
#[kernel(launch_bounds(TILE_ELEMENTS))]
pub unsafe fn attention_textbook_scores_f32(
    scores: *mut f32,
    q: *const f32,
    k: *const f32,
    group: u32,
    q_len: u32,
    kv_len: u32,
    head_dim: u32,
    scale: f32,
    causal: u32,
) {
    let q_tile = shared::declare::<f32, { TILE_ELEMENTS as usize }>();
    let k_tile = shared::declare::<f32, { TILE_ELEMENTS as usize }>();
    let (tx, ty, head) = (thread::thread_idx_x(), thread::thread_idx_y(), thread::block_idx_z());
    let (i, j) = (thread::block_idx_y() * TILE + ty, thread::block_idx_x() * TILE + tx);
    let key_row = thread::block_idx_x() * TILE + ty;
    // SAFETY: indices are checked against the extents; all threads reach the barriers; tiles are written before and
    // read behind one.
    unsafe {
        not_zero(group); // there is a head
        let q = q.add((head * q_len) as usize * head_dim as usize);
        let k = k.add((head / group * kv_len) as usize * head_dim as usize);
        let mut acc = 0.0;
        let mut first = 0;
        while first < head_dim {
            let column = first + tx;
            let inside = column < head_dim;
            let query = if inside && i < q_len { *q.add((i * head_dim + column) as usize) } else { 0.0 };
            let key =
                if inside && key_row < kv_len { *k.add((key_row * head_dim + column) as usize) } else { 0.0 };
            q_tile.set(ty * TILE + tx, query);
            k_tile.set(tx * TILE + ty, key);
            thread::sync_threads();
            let mut c = 0;
            while c < TILE {
                acc = fma(q_tile.get(ty * TILE + c), k_tile.get(c * TILE + tx), acc);
                c += 1;
            }
            thread::sync_threads();
            first += TILE;
        }
        if i < q_len && j < kv_len {
            let seen = (j as i32) < visible(i, q_len, kv_len, causal != 0);
            let row = scores.add((head * q_len + i) as usize * kv_len as usize);
            *row.add(j as usize) = if seen { acc * scale } else { f32::NEG_INFINITY };
        }
    }
}

/// Softmax of each row in place; a row of −∞ alone becomes 0.
///
/// # Safety
/// `scores`: [gridDim.x, kv_len], valid on the launching stream; launched as [`SOFTMAX`] says.
#[kernel(launch_bounds(BLOCK))]
pub unsafe fn attention_textbook_softmax_f32(scores: *mut f32, kv_len: u32) {
    let maxima = shared::declare::<f32, { WARPS as usize }>();
    let sums = shared::declare::<f32, { WARPS as usize }>();
    let tid = thread::thread_idx_x();
    // SAFETY: a block per row, columns below kv_len, each touched by one thread; all threads call the reductions.
    unsafe {
        let row = scores.add(thread::block_idx_x() as usize * kv_len as usize);
        let mut max = f32::NEG_INFINITY;
        let mut c = tid;
        while c < kv_len {
            max = max.max(*row.add(c as usize));
            c += BLOCK;
        }
        let max = reduce::block(max, WARPS, maxima, Max);
        let max = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let mut sum = 0.0;
        c = tid;
        while c < kv_len {
            let weight = exp(*row.add(c as usize) - max);
            *row.add(c as usize) = weight;
            sum += weight;
            c += BLOCK;
        }
        let sum = reduce::block(sum, WARPS, sums, Sum);
        let factor = if sum == 0.0 { 0.0 } else { rcp(sum) };
        c = tid;
        while c < kv_len {
            *row.add(c as usize) *= factor;
            c += BLOCK;
        }
    }
}

/// out = scores · v.
///
/// # Safety
/// As [`attention_textbook_scores_f32`]; launched as [`VALUES`] says.
#[kernel(launch_bounds(TILE_ELEMENTS))]
pub unsafe fn attention_textbook_values_f32(
    out: *mut f32,
    scores: *const f32,
    v: *const f32,
    group: u32,
    q_len: u32,
    kv_len: u32,
    head_dim: u32,
) {
    let s_tile = shared::declare::<f32, { TILE_ELEMENTS as usize }>();
    let v_tile = shared::declare::<f32, { TILE_ELEMENTS as usize }>();
    let (tx, ty, head) = (thread::thread_idx_x(), thread::thread_idx_y(), thread::block_idx_z());
    let (i, column) = (thread::block_idx_y() * TILE + ty, thread::block_idx_x() * TILE + tx);
    // SAFETY: as in the scores.
    unsafe {
        not_zero(group); // there is a head
        let scores = scores.add((head * q_len) as usize * kv_len as usize);
        let v = v.add((head / group * kv_len) as usize * head_dim as usize);
        let mut acc = 0.0;
        let mut first = 0;
        while first < kv_len {
            let weight = if i < q_len && first + tx < kv_len {
                *scores.add(i as usize * kv_len as usize + (first + tx) as usize)
            } else {
                0.0
            };
            let value = if first + ty < kv_len && column < head_dim {
                *v.add(((first + ty) * head_dim + column) as usize)
            } else {
                0.0
            };
            s_tile.set(ty * TILE + tx, weight);
            v_tile.set(ty * TILE + tx, value);
            thread::sync_threads();
            let mut c = 0;
            while c < TILE {
                acc = fma(s_tile.get(ty * TILE + c), v_tile.get(c * TILE + tx), acc);
                c += 1;
            }
            thread::sync_threads();
            first += TILE;
        }
        if i < q_len && column < head_dim {
            *out.add((head * q_len + i) as usize * head_dim as usize + column as usize) = acc;
        }
    }
}
