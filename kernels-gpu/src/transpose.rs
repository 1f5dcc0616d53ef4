//! y[b, c, r] = x[b, r, c].   x: [batch, rows, cols], y: [batch, cols, rows], both without gaps, 2 or 4 bytes.
//!
//! Idea: a tile of 32 × 32 goes through shared memory, so that global memory is read and written along rows. One
//! word of padding per row of the tile puts the elements of a column into different banks.
//! Source: Ruetsch & Micikevicius 2009, "Optimizing matrix transpose in CUDA".
//!
//! | kernel                 | what                                             |
//! |------------------------|--------------------------------------------------|
//! | transpose_tile_b‹n›    | the idea above                                   |
//! | transpose_textbook_f32 | one thread per element, the baseline of benches  |

use crate::device::{Raw, shared};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Rows and columns of a tile.
pub const TILE: u32 = 32;
/// Rows of a tile that the block's threads cover at once.
const STEP: u32 = 8;
/// Elements that a thread moves.
const PER_THREAD: usize = (TILE / STEP) as usize;
/// Words of a tile's row in shared memory.
const PITCH: u32 = TILE + 1;
/// Rows and columns of a block of the textbook kernel.
pub const TEXTBOOK_TILE: u32 = 16;

/// grid = [batch · ceil(rows / TILE) · ceil(cols / TILE)]
pub const TILE_B32: KernelSpec = tile_spec("transpose_tile_b32");
/// As [`TILE_B32`].
pub const TILE_B16: KernelSpec = tile_spec("transpose_tile_b16");
/// grid = [ceil(cols / TEXTBOOK_TILE), ceil(rows / TEXTBOOK_TILE), batch]
pub const TEXTBOOK_F32: KernelSpec =
    KernelSpec::new("transpose_textbook_f32", 0).block_2d(TEXTBOOK_TILE, TEXTBOOK_TILE);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &[TILE_B32, TILE_B16, TEXTBOOK_F32];

const fn tile_spec(name: &'static str) -> KernelSpec {
    KernelSpec::new(name, 0).block_2d(TILE, STEP).shared_bytes(TILE * PITCH * 4)
}

/// # Safety
/// As [`transpose_tile_b32`].
#[inline(always)]
unsafe fn tile_transpose<E: Raw>(y: *mut E, x: *const E, rows: u32, cols: u32) {
    let tile = shared::declare::<u32, { (TILE * PITCH) as usize }>();
    let (tx, ty) = (thread::thread_idx_x(), thread::thread_idx_y());

    // place tile
    let (across, down) = (cols.div_ceil(TILE), rows.div_ceil(TILE));
    let index = thread::block_idx_x();
    let (rest, col0) = (index / across, index % across * TILE);
    let (batch, row0) = (rest / down, rest % down * TILE);
    let matrix = batch as usize * rows as usize * cols as usize;

    // load
    let mut words = [0; PER_THREAD];
    for (k, word) in words.iter_mut().enumerate() {
        let (r, c) = (row0 + ty + k as u32 * STEP, col0 + tx);
        if r < rows && c < cols {
            // SAFETY: r and c are inside the matrix.
            *word = unsafe { E::load(x.add(matrix + (r * cols + c) as usize)) };
        }
    }
    for (k, word) in words.into_iter().enumerate() {
        // SAFETY: inside the tile; each thread has its own elements.
        unsafe { tile.set((ty + k as u32 * STEP) * PITCH + tx, word) };
    }
    thread::sync_threads(); // no thread has returned

    // write
    for k in 0..PER_THREAD as u32 {
        let (c, r) = (col0 + ty + k * STEP, row0 + tx);
        if c < cols && r < rows {
            // SAFETY: the tile was filled before the barrier; r and c are inside the matrix.
            unsafe {
                let word = tile.get(tx * PITCH + ty + k * STEP);
                *y.add(matrix + (c * rows + r) as usize) = E::from_word(word);
            }
        }
    }
}

/// # Safety
/// `x`: [batch, rows, cols], `y`: [batch, cols, rows] of 4 bytes, valid on the launching stream, disjoint, below 2³¹
/// elements; launched as [`TILE_B32`] says.
#[kernel(launch_bounds(TILE * STEP))]
pub unsafe fn transpose_tile_b32(y: *mut u32, x: *const u32, rows: u32, cols: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { tile_transpose(y, x, rows, cols) }
}

/// # Safety
/// As [`transpose_tile_b32`], of 2 bytes.
#[kernel(launch_bounds(TILE * STEP))]
pub unsafe fn transpose_tile_b16(y: *mut u16, x: *const u16, rows: u32, cols: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { tile_transpose(y, x, rows, cols) }
}

/// # Safety
/// As [`transpose_tile_b32`]; launched as [`TEXTBOOK_F32`] says.
#[kernel(launch_bounds(TEXTBOOK_TILE * TEXTBOOK_TILE))]
pub unsafe fn transpose_textbook_f32(y: *mut f32, x: *const f32, rows: u32, cols: u32) {
    let c = thread::block_idx_x() * TEXTBOOK_TILE + thread::thread_idx_x();
    let r = thread::block_idx_y() * TEXTBOOK_TILE + thread::thread_idx_y();
    let matrix = thread::block_idx_z() as usize * rows as usize * cols as usize;
    if r < rows && c < cols {
        // SAFETY: r and c are inside the matrix.
        unsafe { *y.add(matrix + (c * rows + r) as usize) = *x.add(matrix + (r * cols + c) as usize) };
    }
}
