//! y[b, c, r] = x[b, r, c].   x: [batch, rows, cols], y: [batch, cols, rows], both without gaps, 2 or 4 bytes.
//!
//! Idea: a tile of 64 × 64 goes through shared memory, so that global memory is read and written along rows. One
//! word of padding per row of the tile puts the elements of a column into different banks. Elements of 2 bytes go
//! two by two where their rows allow it, so that a warp's access is 128 bytes here too; their words are exchanged
//! within the tile's rows instead of padded.
//! Source: Ruetsch & Micikevicius 2009, "Optimizing matrix transpose in CUDA".
//!
//! | kernel                 | what                                             |
//! |------------------------|--------------------------------------------------|
//! | transpose_tile_b‹n›    | the idea above                                   |
//! | transpose_pairs_b16    | for even rows and cols                           |
//! | transpose_textbook_f32 | one thread per element, the baseline of benches  |

use crate::device::element::load_word;
use crate::device::{Raw, shared};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Rows and columns of a tile.
pub const TILE: u32 = 64;
/// Threads of a block along x.
const WIDTH: u32 = 32;
/// Rows of a tile that the block's threads cover at once.
const STEP: u32 = 8;
/// Words of a tile's row in shared memory.
const PITCH: u32 = TILE + 1;
/// Rows and columns of a block of the textbook kernel.
pub const TEXTBOOK_TILE: u32 = 16;

/// grid = [batch · ceil(rows / TILE) · ceil(cols / TILE)]
pub const TILE_B32: KernelSpec = tile_spec("transpose_tile_b32", TILE * PITCH);
/// As [`TILE_B32`].
pub const TILE_B16: KernelSpec = tile_spec("transpose_tile_b16", TILE * PITCH);
/// As [`TILE_B32`].
pub const PAIRS_B16: KernelSpec = tile_spec("transpose_pairs_b16", TILE * WIDTH);
/// grid = [ceil(cols / TEXTBOOK_TILE), ceil(rows / TEXTBOOK_TILE), batch]
pub const TEXTBOOK_F32: KernelSpec =
    KernelSpec::new("transpose_textbook_f32", 0).block_2d(TEXTBOOK_TILE, TEXTBOOK_TILE);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &[TILE_B32, TILE_B16, PAIRS_B16, TEXTBOOK_F32];

const fn tile_spec(name: &'static str, words: u32) -> KernelSpec {
    KernelSpec::new(name, 0).block_2d(WIDTH, STEP).shared_bytes(words * 4)
}

/// The block's tile: its matrix's first element, and its first row and column.
#[inline(always)]
fn place_tile(rows: u32, cols: u32) -> (usize, u32, u32) {
    // never 0 where a block is launched; said so, no panic is compiled in
    let (across, down) = (cols.div_ceil(TILE).max(1), rows.div_ceil(TILE).max(1));
    let index = thread::block_idx_x();
    let (rest, col0) = (index / across, index % across * TILE);
    let (batch, row0) = (rest / down, rest % down * TILE);
    (batch as usize * rows as usize * cols as usize, row0, col0)
}

/// # Safety
/// As [`transpose_tile_b32`].
#[inline(always)]
unsafe fn tile_transpose<E: Raw>(y: *mut E, x: *const E, rows: u32, cols: u32) {
    const STEPS: usize = (TILE / STEP) as usize;
    let tile = shared::declare::<u32, { (TILE * PITCH) as usize }>();
    let (tx, ty) = (thread::thread_idx_x(), thread::thread_idx_y());

    // place tile
    let (matrix, row0, col0) = place_tile(rows, cols);

    // load: rows ty + 8 k, columns tx and tx + 32
    let mut words = [[0; 2]; STEPS];
    for (k, pair) in words.iter_mut().enumerate() {
        let r = row0 + ty + k as u32 * STEP;
        for (half, word) in pair.iter_mut().enumerate() {
            let c = col0 + tx + half as u32 * WIDTH;
            if r < rows && c < cols {
                // SAFETY: r and c are inside the matrix.
                *word = unsafe { E::load(x.add(matrix + (r * cols + c) as usize)) };
            }
        }
    }
    for (k, [low, high]) in words.into_iter().enumerate() {
        let at = (ty + k as u32 * STEP) * PITCH + tx;
        // SAFETY: inside the tile; each thread has its own elements.
        unsafe {
            tile.set(at, low);
            tile.set(at + WIDTH, high);
        }
    }
    thread::sync_threads(); // no thread has returned

    // write
    for k in 0..STEPS as u32 {
        let c = ty + k * STEP;
        for half in 0..2 {
            let r = tx + half * WIDTH;
            if col0 + c < cols && row0 + r < rows {
                // SAFETY: the tile was filled before the barrier; r and c are inside the matrix.
                unsafe {
                    let word = tile.get(r * PITCH + c);
                    *y.add(matrix + ((col0 + c) * rows + row0 + r) as usize) = E::from_word(word);
                }
            }
        }
    }
}

/// # Safety
/// `x`: [batch, rows, cols], `y`: [batch, cols, rows] of 4 bytes, valid on the launching stream, disjoint, below 2³¹
/// elements; launched as [`TILE_B32`] says.
#[kernel(launch_bounds(WIDTH * STEP))]
pub unsafe fn transpose_tile_b32(y: *mut u32, x: *const u32, rows: u32, cols: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { tile_transpose(y, x, rows, cols) }
}

/// # Safety
/// As [`transpose_tile_b32`], of 2 bytes.
#[kernel(launch_bounds(WIDTH * STEP))]
pub unsafe fn transpose_tile_b16(y: *mut u16, x: *const u16, rows: u32, cols: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { tile_transpose(y, x, rows, cols) }
}

/// # Safety
/// As [`transpose_tile_b16`]; rows and cols are even, x and y multiples of 4 bytes; launched as [`PAIRS_B16`] says.
#[kernel(launch_bounds(WIDTH * STEP))]
pub unsafe fn transpose_pairs_b16(y: *mut u16, x: *const u16, rows: u32, cols: u32) {
    const STEPS: usize = (TILE / STEP) as usize;
    let tile = shared::declare::<u32, { (TILE * WIDTH) as usize }>();
    let (tx, ty) = (thread::thread_idx_x(), thread::thread_idx_y());
    // word w of row r: its place is exchanged by the row's pair
    let at = |r: u32, w: u32| r * WIDTH + (w ^ (r / 2));

    // place tile
    let (matrix, row0, col0) = place_tile(rows, cols);

    // load: rows ty + 8 k, columns 2 tx and 2 tx + 1
    let mut words = [0; STEPS];
    for (k, word) in words.iter_mut().enumerate() {
        let (r, c) = (row0 + ty + k as u32 * STEP, col0 + 2 * tx);
        if r < rows && c < cols {
            // SAFETY: r, c and c + 1 are inside the matrix, of which each row starts at a multiple of 4 bytes.
            *word = unsafe { load_word(x.add(matrix + (r * cols + c) as usize).cast()) };
        }
    }
    for (k, word) in words.into_iter().enumerate() {
        // SAFETY: inside the tile; each thread has its own elements.
        unsafe { tile.set(at(ty + k as u32 * STEP, tx), word) };
    }
    thread::sync_threads(); // no thread has returned

    // write: columns 2 w and 2 w + 1 of rows 2 tx and 2 tx + 1
    for k in 0..STEPS as u32 / 2 {
        let w = ty + k * STEP;
        let (r, c) = (row0 + 2 * tx, col0 + 2 * w);
        if r < rows && c < cols {
            // SAFETY: the tile was filled before the barrier; r, r + 1, c and c + 1 are inside the matrix, and each row
            // of y starts at a multiple of 4 bytes.
            unsafe {
                let (first, second) = (tile.get(at(2 * tx, w)), tile.get(at(2 * tx + 1, w)));
                let y = y.add(matrix + (c * rows + r) as usize);
                *y.cast() = (first & 0xffff) | (second << 16);
                *y.add(rows as usize).cast() = (first >> 16) | (second & 0xffff_0000);
            }
        }
    }
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
