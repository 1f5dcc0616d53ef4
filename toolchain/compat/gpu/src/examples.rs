//! What Rust-CUDA's examples compute, written with the names that both have: a sum of vectors, a product of matrices by tiles in
//! shared memory, and a sum of all elements by blocks.

use cuda_std::{address_space, kernel, shared_array, thread};

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

/// Each block of 8 × 8 turned over, by two statics in shared memory, one of which a function has.
///
/// # Safety
/// `to` has as many elements as `from`, which is a square of whole blocks; launched with a thread for each element.
#[kernel]
pub unsafe fn turned(from: &[u32], to: *mut u32) {
    #[address_space(shared)]
    static mut TILE: [u32; 64] = [0; 64];

    /// The x of the thread before.
    ///
    /// # Safety
    /// All threads of the block call it.
    unsafe fn carried(x: u32, at: usize) -> u32 {
        #[address_space(shared)]
        static mut TILE: [u32; 65] = [0; 65];
        // SAFETY: `at` is below 64, each thread writes its own element, and a barrier is between writes and reads.
        unsafe {
            TILE[at + 1] = x;
            if at == 0 {
                TILE[0] = 7;
            }
            thread::sync_threads();
            TILE[at]
        }
    }

    let (place, size) = (thread::index_2d(), thread::grid_dim() * thread::block_dim());
    let at = (thread::thread_idx().y * 8 + thread::thread_idx().x) as usize;
    let i = (place.y * size.x + place.x) as usize;
    // SAFETY: `at` is below 64, each thread writes its own element, and a barrier is between writes and reads; `i` is below the length.
    unsafe {
        TILE[at] = from.get(i).copied().unwrap_or(0);
        let before = carried(TILE[at], at);
        thread::sync_threads();
        *to.add(i) = TILE[63 - at] + 1000 * before;
    }
}
