//! y[b, c, r] = x[b, r, c].   x: [batch, rows, cols], y: [batch, cols, rows], both contiguous, 2 or 4 bytes.
//!
//! Idea: a tile of 64 × 64 goes through shared memory, so that global memory is read and written along rows. Where rows
//! are whole vectors of 4-byte elements, or pairs of 2-byte ones, these are moved as such, and their places within the
//! tile's rows exchanged so that a warp meets no bank twice. Otherwise one word of padding per row of the tile avoids the bank
//! conflicts, and each row of y is written in whole sectors: partial sectors cost more than the few rows of x that are then
//! read twice.
//! Source: Ruetsch & Micikevicius 2009, "Optimizing matrix transpose in CUDA".
//!
//! | kernel                 | when                                              |
//! |------------------------|---------------------------------------------------|
//! | transpose_vectors_b32  | rows and cols are multiples of 4                  |
//! | transpose_pairs_b16    | rows are a multiple of 8, cols even               |
//! | transpose_tile_b‹n›    | else                                              |

use crate::device::element::load_word;
use crate::device::vector::{load_raw, store_raw};
use crate::device::{Raw, Shared};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Rows and columns of a tile.
pub const TILE: u32 = 64;
/// Bytes that memory reads and writes at least.
const SECTOR: u32 = 32;
/// Threads of a block along x.
const WIDTH: u32 = 32;
/// Rows of a tile that the block's threads cover at once.
const STEP: u32 = 8;
/// Words of a tile's row in shared memory.
const PITCH: u32 = TILE + 1;
/// Steps in which a tile is loaded: its rows, and a sector's more.
const STEPS_B32: usize = ((TILE + SECTOR / 4) / STEP) as usize;
const STEPS_B16: usize = ((TILE + SECTOR / 2) / STEP) as usize;
/// Threads of a block of the vector kernels.
const VECTOR_BLOCK: u32 = WIDTH * STEP;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Transpose<E> {
    /// [batch, cols, rows]
    pub y: *mut E,
    /// [batch, rows, cols], disjoint from y
    pub x: *const E,
    pub rows: u32,
    pub cols: u32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[
    transpose_tile_b32.info(),
    transpose_tile_b16.info(),
    transpose_pairs_b16.info(),
    transpose_vectors_b32.info(),
];

/// Tiles along `rows` of elements of `size` bytes, where each may begin up to a sector earlier.
pub const fn sector_tiles(rows: u32, size: u32) -> u32 {
    (rows + SECTOR / size - 1).div_ceil(TILE)
}

/// The block's tile: its matrix's first element, and its first row and column; `down` tiles along the rows.
#[inline(always)]
fn place_tile(rows: u32, cols: u32, down: u32) -> (usize, u32, u32) {
    // never 0 where a block is launched; stated so that no panic is compiled in
    let (across, down) = (cols.div_ceil(TILE).max(1), down.max(1));
    let index = thread::block_idx_x();
    let (rest, col0) = (index / across, index % across * TILE);
    let (batch, row0) = (rest / down, rest % down * TILE);
    (batch as usize * rows as usize * cols as usize, row0, col0)
}

/// # Safety
/// As [`transpose_tile_b32`].
#[inline(always)]
unsafe fn tile_transpose<E: Raw, const STEPS: usize>(
    Transpose { y, x, rows, cols }: Transpose<E>,
    tile: Shared<u32>,
) {
    let sector = SECTOR / size_of::<E>() as u32;
    let (tx, ty) = (thread::thread_idx_x(), thread::thread_idx_y());

    // place tile: row0 + i − before is row i of it, below zero in the first tile
    let (matrix, row0, col0) = place_tile(rows, cols, sector_tiles(rows, size_of::<E>() as u32));
    let before = sector - 1;

    // load: rows ty + 8 k, columns tx and tx + 32
    let mut words = [[0; 2]; STEPS];
    for (k, pair) in words.iter_mut().enumerate() {
        let r = (row0 + ty + k as u32 * STEP).wrapping_sub(before);
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

    // write: of each row of y the elements from the sector on that row0 is in
    for k in 0..TILE / STEP {
        let c = ty + k * STEP;
        if col0 + c < cols {
            let y = y.wrapping_add(matrix + ((col0 + c) * rows + row0) as usize);
            let inside = (y as usize / size_of::<E>()) as u32 % sector;
            for half in 0..2 {
                let i = tx + half * WIDTH;
                let r = (row0 + i).wrapping_sub(inside);
                if r < rows {
                    // SAFETY: the tile was filled before the barrier; i + before − inside is one of its rows, and r and
                    // c are inside the matrix.
                    unsafe {
                        let word = tile.get((i + before - inside) * PITCH + c);
                        *y.wrapping_add(i as usize).wrapping_sub(inside as usize) = E::from_word(word);
                    }
                }
            }
        }
    }
}

/// grid = [batch · [`sector_tiles`] · ceil(cols / TILE)]
///
/// # Safety
/// [`Transpose`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = [WIDTH, STEP], min_blocks = 6, shared(tile: [u32; STEPS_B32 as u32 * STEP * PITCH]))]
pub unsafe fn transpose_tile_b32(p: Transpose<u32>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { tile_transpose::<_, STEPS_B32>(p, tile) }
}

/// As [`transpose_tile_b32`], of 2 bytes.
///
/// # Safety
/// As [`transpose_tile_b32`].
#[kernel(block = [WIDTH, STEP], min_blocks = 6, shared(tile: [u32; STEPS_B16 as u32 * STEP * PITCH]))]
pub unsafe fn transpose_tile_b16(p: Transpose<u16>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { tile_transpose::<_, STEPS_B16>(p, tile) }
}

/// grid = [batch · ceil(rows / TILE) · ceil(cols / TILE)]
///
/// # Safety
/// As [`transpose_tile_b32`]; rows and cols are multiples of 4, x and y of 16 bytes.
#[kernel(block = VECTOR_BLOCK, min_blocks = 6, shared(tile: [u32; TILE * TILE]))]
pub unsafe fn transpose_vectors_b32(Transpose { y, x, rows, cols }: Transpose<u32>) {
    /// Vectors of a tile's row, and rows of a tile that the block's threads load at once.
    const VECTORS: u32 = TILE / 4;
    const ROWS: u32 = VECTOR_BLOCK / VECTORS;
    const STEPS: usize = (TILE / ROWS) as usize;
    let tid = thread::thread_idx_x();
    // where vector v of row r begins: its place is exchanged by the row's four
    let at = |r: u32, v: u32| r * TILE + 4 * (v ^ (r / 4));

    // place tile
    let (matrix, row0, col0) = place_tile(rows, cols, rows.div_ceil(TILE));

    // load: rows tid / 16 + 16 k, vector tid % 16
    let (first, v) = (tid / VECTORS, tid % VECTORS);
    let mut vectors = [[0; 4]; STEPS];
    for (k, vector) in vectors.iter_mut().enumerate() {
        let (r, c) = (row0 + first + k as u32 * ROWS, col0 + 4 * v);
        if r < rows && c < cols {
            // SAFETY: r and c to c + 3 are inside the matrix, of which each row starts at a multiple of 16 bytes.
            *vector = unsafe { load_raw(x.add(matrix + (r * cols + c) as usize)) };
        }
    }
    for (k, vector) in vectors.into_iter().enumerate() {
        // SAFETY: inside the tile; each thread has its own elements.
        unsafe { tile.set4(at(first + k as u32 * ROWS, v), vector) };
    }
    thread::sync_threads(); // no thread has returned

    // write: a warp has four columns of eight vectors along the rows
    let (warp, lane) = (tid / 32, tid % 32);
    for k in 0..STEPS as u32 {
        let (q, four) = (warp % 2 * 8 + lane % 8, warp / 2 + 4 * k);
        let (r, c) = (row0 + 4 * q, col0 + 4 * four + lane / 8);
        if r < rows && c < cols {
            // SAFETY: the tile was filled before the barrier; r to r + 3 and c are inside the matrix, and each row of y
            // starts at a multiple of 16 bytes.
            unsafe {
                let words = [0, 1, 2, 3].map(|j| tile.get(at(4 * q + j, four) + lane / 8));
                store_raw(y.add(matrix + (c * rows + r) as usize), words);
            }
        }
    }
}

/// As [`transpose_vectors_b32`], of 2 bytes.
///
/// # Safety
/// As [`transpose_tile_b16`]; rows and cols are even, x and y multiples of 4 bytes.
#[kernel(block = [WIDTH, STEP], min_blocks = 8, shared(tile: [u32; TILE * WIDTH]))]
pub unsafe fn transpose_pairs_b16(Transpose { y, x, rows, cols }: Transpose<u16>) {
    const STEPS: usize = (TILE / STEP) as usize;
    let (tx, ty) = (thread::thread_idx_x(), thread::thread_idx_y());
    // word w of row r: its place is exchanged by the row's pair
    let at = |r: u32, w: u32| r * WIDTH + (w ^ (r / 2));

    // place tile
    let (matrix, row0, col0) = place_tile(rows, cols, rows.div_ceil(TILE));

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
