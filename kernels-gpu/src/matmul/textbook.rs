//! c = alpha·a·b + beta·c as introductions to GPU programming write it: the baseline that the others are compared with.
//!
//! Idea: a block makes a 16 × 16 tile of c, a thread one element of it, from 16 × 16 tiles of a and b in shared memory.
//! Source: the shared-memory example of the CUDA C Programming Guide.

use super::{Product, write};
use crate::device::math::fma;
use crate::device::{Element, shared};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

/// Rows and columns of a tile.
pub const TILE: u32 = 16;
const AREA: usize = (TILE * TILE) as usize;

/// f32, any strides. grid = [ceil(m / 16) · ceil(n / 16), 1, batch]
pub const SPEC: KernelSpec =
    KernelSpec::new("matmul_textbook_f32", TILE * TILE).shared_bytes(2 * TILE * TILE * 4);

/// # Safety
/// `c`, `a`, `b` as [`Product`] says, with any strides (`row_a` between the rows of a, `col_a` between its columns, and
/// so on); launched as [`SPEC`] says.
#[kernel(launch_bounds(TILE * TILE))]
pub unsafe fn matmul_textbook_f32(
    c: *mut f32,
    a: *const f32,
    b: *const f32,
    m: u32,
    n: u32,
    k: u32,
    row_a: u32,
    col_a: u32,
    row_b: u32,
    col_b: u32,
    ldc: u32,
    stride_a: u32,
    stride_b: u32,
    stride_c: u32,
    alpha: f32,
    beta: f32,
) {
    // place tile
    let tile_a = shared::declare::<f32, AREA>();
    let tile_b = shared::declare::<f32, AREA>();
    let tiles_n = n.div_ceil(TILE).max(1); // .max: divisions have a branch to a panic otherwise
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
                from_a = f32::load(a.add((batch * stride_a + row * row_a + (at + x) * col_a) as usize));
            }
            if at + y < k && column < n {
                from_b = f32::load(b.add((batch * stride_b + (at + y) * row_b + column * col_b) as usize));
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
            let c = c.add((batch * stride_c) as usize);
            let (partial, bias) = (core::ptr::null_mut(), core::ptr::null());
            let p = Product { partial, m, n, ldc, alpha, beta, bias, addend: c };
            write::one(c, &p, row, column, sum);
        }
    }
}
