//! Attention in three passes over a score matrix in global memory, with 16 × 16 tiles: a straightforward version, as the
//! baseline of the benches. f32, contiguous.
//!
//! q, out: [b · num_q_heads, q_len, head_dim]; k, v: [b · num_kv_heads, kv_len, head_dim];
//! scores: [b · num_q_heads, q_len, kv_len].

use super::{not_zero, visible};
use crate::device::block_reduce;
use crate::device::math::{exp, fma, rcp};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

const TILE: u32 = 16;
const TILE_ELEMENTS: u32 = TILE * TILE;
/// Threads of a softmax block.
const BLOCK: u32 = 256;
const WARPS: u32 = BLOCK / 32;

/// Rows and columns of the output that a block of [`attention_textbook_scores_f32`] and [`attention_textbook_values_f32`]
/// computes.
pub const TEXTBOOK_TILE: u32 = TILE;

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[
    attention_textbook_scores_f32.info(),
    attention_textbook_softmax_f32.info(),
    attention_textbook_values_f32.info(),
];

/// The parameters of the first pass.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Scores {
    /// [b · num_q_heads, q_len, kv_len]
    pub scores: *mut f32,
    /// [b · num_q_heads, q_len, head_dim]
    pub q: *const f32,
    /// [b · num_kv_heads, kv_len, head_dim]
    pub k: *const f32,
    /// Query heads of a kv head.
    pub group: u32,
    pub q_len: u32,
    pub kv_len: u32,
    pub head_dim: u32,
    pub scale: f32,
    /// 1 if causal, else 0.
    pub causal: u32,
}

/// The parameters of the second pass.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Softmax {
    /// [gridDim.x, kv_len]
    pub scores: *mut f32,
    pub kv_len: u32,
}

/// The parameters of the third pass.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Values {
    /// [b · num_q_heads, q_len, head_dim]
    pub out: *mut f32,
    /// [b · num_q_heads, q_len, kv_len]
    pub scores: *const f32,
    /// [b · num_kv_heads, kv_len, head_dim]
    pub v: *const f32,
    /// Query heads of a kv head.
    pub group: u32,
    pub q_len: u32,
    pub kv_len: u32,
    pub head_dim: u32,
}

/// scores = scale · q kᵀ, −∞ where masked. grid = [ceil(kv_len / TEXTBOOK_TILE), ceil(q_len / TEXTBOOK_TILE),
/// b · num_q_heads]
///
/// # Safety
/// [`Scores`] constrains the pointers, which are valid on the launching stream.
#[kernel(
    block = [TILE, TILE], module = "attention_textbook",
    shared(q_tile: [f32; TILE_ELEMENTS], k_tile: [f32; TILE_ELEMENTS])
)]
pub unsafe fn attention_textbook_scores_f32(p: Scores) {
    let Scores { scores, q, k, group, q_len, kv_len, head_dim, scale, causal } = p;
    let (tx, ty, head) = (thread::thread_idx_x(), thread::thread_idx_y(), thread::block_idx_z());
    let (i, j) = (thread::block_idx_y() * TILE + ty, thread::block_idx_x() * TILE + tx);
    let key_row = thread::block_idx_x() * TILE + ty;
    // SAFETY: indices are checked against the dimensions; all threads reach the barriers; tiles are written before one and read
    // after it.
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

/// Softmax of each row in place; a row of only −∞ becomes 0. grid = [b · num_q_heads · q_len]
///
/// # Safety
/// [`Softmax`] constrains the pointer, which is valid on the launching stream.
#[kernel(
    block = BLOCK, module = "attention_textbook", shuffles = 2 * 5,
    shared(maxima: [f32; WARPS], sums: [f32; WARPS])
)]
pub unsafe fn attention_textbook_softmax_f32(Softmax { scores, kv_len }: Softmax) {
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
        let max = block_reduce::reduce(max, WARPS, maxima, Max);
        let max = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let mut sum = 0.0;
        c = tid;
        while c < kv_len {
            let weight = exp(*row.add(c as usize) - max);
            *row.add(c as usize) = weight;
            sum += weight;
            c += BLOCK;
        }
        let sum = block_reduce::reduce(sum, WARPS, sums, Sum);
        let factor = if sum == 0.0 { 0.0 } else { rcp(sum) };
        c = tid;
        while c < kv_len {
            *row.add(c as usize) *= factor;
            c += BLOCK;
        }
    }
}

/// out = scores · v. grid = [ceil(head_dim / TEXTBOOK_TILE), ceil(q_len / TEXTBOOK_TILE), b · num_q_heads]
///
/// # Safety
/// [`Values`] constrains the pointers, which are valid on the launching stream.
#[kernel(
    block = [TILE, TILE], module = "attention_textbook",
    shared(s_tile: [f32; TILE_ELEMENTS], v_tile: [f32; TILE_ELEMENTS])
)]
pub unsafe fn attention_textbook_values_f32(p: Values) {
    let Values { out, scores, v, group, q_len, kv_len, head_dim } = p;
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
