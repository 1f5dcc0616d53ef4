//! What Rust-CUDA's examples compute, written with the names that both have: a sum of vectors, a product of matrices by tiles in
//! shared memory, and a sum of all elements by blocks.

use cuda_std::{kernel, shared_array, thread};

/// Rows and columns of a tile.
const TILE: usize = 16;

/// c = a + b.
///
/// # Safety
/// `c` has as many elements as `a`.
#[kernel]
pub unsafe fn vecadd(a: &[f32], b: &[f32], c: *mut f32) {
    let i = thread::index_1d() as usize;
    if let (Some(x), Some(y)) = (a.get(i), b.get(i)) {
        // SAFETY: i is inside `a`.
        unsafe { *c.add(i) = x + y };
    }
}

/// c = alpha · a · b + beta · c, row-major: `a` has m × k elements, `b` k × n, `c` m × n. A block computes a tile of `c`.
///
/// # Safety
/// `c` has m · n elements; launched with blocks of 16 × 16 threads that cover `c`.
#[kernel]
pub unsafe fn gemm_tiled(
    a: &[f32],
    b: &[f32],
    c: *mut f32,
    m: usize,
    n: usize,
    k: usize,
    alpha: f32,
    beta: f32,
) {
    // SAFETY: both are used below with barriers between writes and reads, inside their sizes.
    let (of_a, of_b) = unsafe { (shared_array![f32; TILE * TILE], shared_array![f32; TILE * TILE]) };
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let row = thread::block_idx_y() as usize * TILE + ty;
    let column = thread::block_idx_x() as usize * TILE + tx;
    let element = |of: &[f32], row: usize, column: usize, rows: usize, columns: usize| match row < rows
        && column < columns
    {
        true => of.get(row * columns + column).copied().unwrap_or(0.0),
        false => 0.0,
    };
    let mut sum = 0.0f32;
    let mut first = 0;
    while first < k {
        // SAFETY: tx and ty are below TILE, and `i` is; all threads of the block reach both barriers.
        unsafe {
            *of_a.add(ty * TILE + tx) = element(a, row, first + tx, m, k);
            *of_b.add(ty * TILE + tx) = element(b, first + ty, column, k, n);
            thread::sync_threads();
            for i in 0..TILE {
                sum += *of_a.add(ty * TILE + i) * *of_b.add(i * TILE + tx);
            }
            thread::sync_threads();
        }
        first += TILE;
    }
    if row < m && column < n {
        // SAFETY: row and column are inside `c`.
        unsafe {
            let to = c.add(row * n + column);
            *to = alpha * sum + beta * *to;
        }
    }
}

/// The sum of each block's elements, by halves in shared memory.
///
/// # Safety
/// `sums` has an element for each block; launched with 256 threads.
#[kernel]
pub unsafe fn block_sums(x: &[f32], sums: *mut f32) {
    // SAFETY: used with barriers between writes and reads, inside its size.
    let shared = unsafe { shared_array![f32; 256] };
    let t = thread::thread_idx_x() as usize;
    let value = x.get(thread::index_1d() as usize).copied().unwrap_or(0.0);
    // SAFETY: t and t + half are below 256; all threads reach the barriers.
    unsafe {
        *shared.add(t) = value;
        thread::sync_threads();
        let mut half = 128;
        while half > 0 {
            if t < half {
                *shared.add(t) += *shared.add(t + half);
            }
            thread::sync_threads();
            half /= 2;
        }
        if t == 0 {
            *sums.add(thread::block_idx_x() as usize) = *shared;
        }
    }
}
