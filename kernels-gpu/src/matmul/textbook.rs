//! c = alpha·a·b + beta·c as in introductions to GPU programming: the baseline of the benches.
//!
//! Idea: a block computes a 16 × 16 tile of c, a thread one element of it, from 16 × 16 tiles of a and b in shared memory.
//! Source: the shared-memory example of the CUDA C Programming Guide.

use super::{Product, batch_offset, write};
use crate::device::Element;
use crate::device::math::fma;
use cuda_std::KernelInfo;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

/// Rows and columns of a tile.
pub const TILE: u32 = 16;
const AREA: u32 = TILE * TILE;

/// The parameters of the kernel, which exists only for f32.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Textbook<A, B, C> {
    /// [batch, m, n], fewer than 2³¹ elements, disjoint from a and b
    pub c: *mut C,
    /// [batch, m, k], fewer than 2³¹ elements
    pub a: *const A,
    /// [batch, k, n], fewer than 2³¹ elements
    pub b: *const B,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// Distance between the rows of a.
    pub row_a: u32,
    /// Distance between the columns of a.
    pub col_a: u32,
    pub row_b: u32,
    pub col_b: u32,
    /// Distance between the rows of c; its columns are neighbours.
    pub ldc: u32,
    /// Distance between the batch entries of a.
    pub stride_a: u32,
    pub stride_b: u32,
    pub stride_c: u32,
    pub alpha: f32,
    /// The factor of c's old contents; with 0, they are not read.
    pub beta: f32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[matmul_textbook_f32.info()];

/// grid = [ceil(m / TILE) · ceil(n / TILE), 1, batch]
///
/// # Safety
/// [`Textbook`] constrains the pointers, which are valid on the launching stream.
#[kernel(block = TILE * TILE, module = "matmul_textbook", shared(tile_a: [f32; AREA], tile_b: [f32; AREA]))]
pub unsafe fn matmul_textbook_f32(p: Textbook<f32, f32, f32>) {
    let Textbook { m, n, k, row_a, col_a, row_b, col_b, ldc, alpha, beta, .. } = p;
    // place tile
    let c = p.c.wrapping_add(batch_offset(p.stride_c));
    let tiles_n = n.div_ceil(TILE).max(1); // .max: otherwise divisions have a branch to a panic
    let (block, batch) = (thread::block_idx_x(), thread::block_idx_z());
    let (x, y) = (thread::thread_idx_x() % TILE, thread::thread_idx_x() / TILE);
    let (row, column) = (block / tiles_n * TILE + y, block % tiles_n * TILE + x);
    let mut sum = 0.0;
    let mut at = 0;
    // SAFETY: only elements that exist are read and written. Every thread reaches both barriers; between them the
    // tiles are only read.
    unsafe {
        while at < k {
            // load
            let (mut from_a, mut from_b) = (0.0, 0.0);
            if row < m && at + x < k {
                from_a = f32::load(p.a.add((batch * p.stride_a + row * row_a + (at + x) * col_a) as usize));
            }
            if at + y < k && column < n {
                from_b =
                    f32::load(p.b.add((batch * p.stride_b + (at + y) * row_b + column * col_b) as usize));
            }
            tile_a.set(y * TILE + x, from_a);
            tile_b.set(y * TILE + x, from_b);
            // sync
            sync_threads();
            // compute
            let mut kk = 0;
            while kk < TILE {
                sum = fma(tile_a.get(y * TILE + kk), tile_b.get(kk * TILE + x), sum);
                kk += 1;
            }
            // sync
            sync_threads();
            at += TILE;
        }
        // write
        if row < m && column < n {
            let (partial, bias) = (core::ptr::null_mut(), core::ptr::null());
            let p = Product { partial, m, n, ldc, alpha, beta, bias, addend: c };
            write::one(c, &p, row, column, sum);
        }
    }
}
