//! The gradients of attention: FlashAttention-2's backward pass on the CUDA cores.
//!
//! Source: Dao 2023, "FlashAttention-2", algorithm 2.
//!
//! ```text
//! for each row i:     L[i] = log Σ_j exp(S[i, j]), Δ[i] = Σ dO[i, ·] O[i, ·]                    (stats)
//! S = scale · Q Kᵀ, masked; P = exp(S − L); dP = dO Vᵀ; dS = scale · P (dP − Δ)                 (both, tile by tile)
//! dQ = dS K                         a block: 64 queries of a query head, all keys that they see  (q)
//! dK = dSᵀ Q, dV = Pᵀ dO            a block: 64 keys of a kv head, all queries that see them     (kv)
//! ```
//!
//! How the code departs from it:
//! 1. Two kernels compute S and dP, one for dQ and one for dK and dV. Otherwise dQ would be added up by atomics, whose order is not
//!    fixed. The result is the same each time.
//! 2. L is computed anew, so that the forward kernels need not store it.
//! 3. Exponents are base 2.
//! 4. A block owns 64 rows (queries, or keys) and visits tiles of 64 columns (keys, or queries). A thread owns rows 8·ty + (0..8) and
//!    columns 4·tx + (0..4) of a tile, and columns 4·tx + 64g + (0..4) of the gradients.
//! 5. Operands pass through shared memory in chunks of 16 columns, transposed, or of 16 rows.
//! 6. Query heads of a group add to the same dK and dV, one after the other.
//! 7. Rows past the end are read from the last valid one and masked.

use super::{Strides, not_zero, unroll};
use crate::device::math::{exp2, log2};
use crate::device::{Element, F16, Shared};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// Queries of a block of the first two kernels, keys of a block of the third.
pub const ROWS: u32 = 64;
const THREADS: u32 = 128;
/// Columns or rows of a chunk.
const CHUNK: u32 = 16;
/// From one column of a transposed tile to the next: a multiple of four, and not of 32.
const STRIDE: u32 = ROWS + 4;
/// Elements of two transposed chunks, or of a chunk of 16 rows of 128 columns.
const STAGED: u32 = 2 * CHUNK * STRIDE;
/// Elements of a transposed tile of P or dS.
const TILE: u32 = ROWS * STRIDE;

/// The parameters of the kernel of L and Δ.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Stats<T> {
    /// L in base 2, and Δ: [gridDim.x, q_len, 2]
    pub stats: *mut f32,
    /// As [`Backward`]'s
    pub q: *const T,
    pub k: *const T,
    pub out: *const T,
    pub dout: *const T,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub out_strides: Strides,
    pub dout_strides: Strides,
    pub num_q_heads: u32,
    pub group: u32,
    pub q_len: u32,
    pub kv_len: u32,
    pub head_dim: u32,
    pub scale_log2: f32,
    pub causal: u32,
}

/// The parameters of the kernels of the gradients. Strides are multiples of eight elements, as are first elements.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Backward<T> {
    /// [b, num_q_heads, q_len, head_dim], written by the kernel of queries
    pub dq: *mut T,
    /// [b, num_kv_heads, kv_len, head_dim], written by the kernel of keys
    pub dk: *mut T,
    /// As dk
    pub dv: *mut T,
    /// [b, num_q_heads, q_len, head_dim], disjoint from what is written
    pub dout: *const T,
    /// As dout
    pub q: *const T,
    /// [b, num_kv_heads, kv_len, head_dim], disjoint from what is written
    pub k: *const T,
    /// As k
    pub v: *const T,
    /// [b · num_q_heads, q_len, 2]
    pub stats: *const f32,
    pub dq_strides: Strides,
    pub dk_strides: Strides,
    pub dv_strides: Strides,
    pub dout_strides: Strides,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub v_strides: Strides,
    pub num_q_heads: u32,
    /// Query heads that share a kv head.
    pub group: u32,
    pub q_len: u32,
    pub kv_len: u32,
    pub head_dim: u32,
    pub scale: f32,
    /// scale · log2 e
    pub scale_log2: f32,
    pub causal: u32,
}

/// The kernels of one element type.
#[derive(Clone, Copy)]
pub struct Kernels<T> {
    /// grid = [b · num_q_heads, ceil(q_len / ROWS)]
    pub stats: KernelSpec<Stats<T>>,
    /// For head_dim ≤ 64 and ≤ 128: grid = [b · num_q_heads, ceil(q_len / ROWS)]
    pub q: [KernelSpec<Backward<T>>; 2],
    /// For head_dim ≤ 64 and ≤ 128: grid = [b · num_kv_heads, ceil(kv_len / ROWS)]
    pub kv: [KernelSpec<Backward<T>>; 2],
}

/// The rows of one head.
#[derive(Clone, Copy)]
struct Head<T> {
    x: *const T,
    /// The head's first element.
    at: u32,
    row: u32,
    last: u32,
    head_dim: u32,
}

impl<T: Element> Head<T> {
    /// Columns c to c + 3 of row `row` or, past the end, of the last one; zeros past the last column.
    ///
    /// # Safety
    /// `x` is valid for the head.
    #[inline(always)]
    unsafe fn load4(&self, row: u32, c: u32) -> [f32; 4] {
        if c >= self.head_dim {
            return [0.0; 4];
        }
        let at = self.at + row.min(self.last) * self.row + c;
        // SAFETY: row and column are the head's; head_dim and strides are multiples of eight.
        unsafe { T::load4(self.x.add(at as usize)) }
    }
}

/// A thread's place in a tile.
#[derive(Clone, Copy)]
struct Place {
    tid: u32,
    tx: u32,
    /// The first of its eight rows.
    row: u32,
}

impl Place {
    #[inline(always)]
    fn new() -> Self {
        let tid = thread::thread_idx_x();
        Self { tid, tx: tid % 16, row: tid / 16 * 8 }
    }
}

/// s += A Bᵀ, of the 64 rows of `a` from `a_first` on and those of `b` from `b_first` on.
///
/// # Safety
/// All threads of the block are here; `staged` holds [`STAGED`] elements, which nobody reads after the first barrier.
#[inline(always)]
unsafe fn products<T: Element>(
    s: &mut [[f32; 4]; 8],
    (a, a_first): (Head<T>, u32),
    (b, b_first): (Head<T>, u32),
    staged: Shared<f32>,
    Place { tid, tx, row }: Place,
) {
    let (own, other) = (staged, staged.at(CHUNK * STRIDE));
    let mut column = 0;
    while column < a.head_dim {
        // SAFETY: both heads have these columns; all threads reach the barriers, and each writes its own elements.
        unsafe {
            thread::sync_threads();
            let c = tid % 4 * 4;
            unroll!(HALF < 2 {
                let r = tid / 4 + 32 * HALF as u32;
                let (x, y) = (a.load4(a_first + r, column + c), b.load4(b_first + r, column + c));
                unroll!(E < 4 {
                    own.set((c + E as u32) * STRIDE + r, x[E]);
                    other.set((c + E as u32) * STRIDE + r, y[E]);
                });
            });
            thread::sync_threads();
            let (mut x, mut y) = (own.at(row), other.at(tx * 4));
            let mut step = 0;
            while step < CHUNK {
                let ([a0, a1, a2, a3], [a4, a5, a6, a7]) = (x.get4(0), x.get4(4));
                let (a, b) = ([a0, a1, a2, a3, a4, a5, a6, a7], y.get4(0));
                unroll!(I < 8 { unroll!(J < 4 { s[I][J] += a[I] * b[J]; }); });
                (x, y) = (x.at(STRIDE), y.at(STRIDE));
                step += 1;
            }
        }
        column += CHUNK;
    }
}

/// Stores a thread's part of a tile, transposed.
///
/// # Safety
/// `tile` holds [`TILE`] elements, which nobody reads meanwhile.
#[inline(always)]
unsafe fn store_tile(tile: Shared<f32>, s: &[[f32; 4]; 8], Place { tx, row, .. }: Place) {
    unroll!(J < 4 {
        let at = tile.at((tx * 4 + J as u32) * STRIDE + row);
        // SAFETY: this thread's own elements.
        unsafe {
            at.set4(0, [s[0][J], s[1][J], s[2][J], s[3][J]]);
            at.set4(4, [s[4][J], s[5][J], s[6][J], s[7][J]]);
        }
    });
}

/// acc += X B, of a tile X that [`store_tile`] has stored and the 64 rows of `b` from `first` on.   acc: [8, 64 G / 16]
///
/// # Safety
/// As [`products`].
#[inline(always)]
unsafe fn accumulate<T: Element, const G: usize>(
    acc: &mut [[[f32; 4]; G]; 8],
    tile: Shared<f32>,
    (b, first): (Head<T>, u32),
    staged: Shared<f32>,
    Place { tid, tx, row }: Place,
) {
    let width = 64 * G as u32;
    let mut j = 0;
    while j < ROWS {
        // SAFETY: b has these columns; all threads reach the barriers, and each writes its own elements. After the first one the tile
        // is complete.
        unsafe {
            thread::sync_threads();
            let mut i = tid;
            while i < CHUNK * width / 4 {
                let (r, c) = (i / (width / 4), i % (width / 4) * 4);
                staged.at(r * width + c).set4(0, b.load4(first + j + r, c));
                i += THREADS;
            }
            thread::sync_threads();
            let (mut x, mut y) = (tile.at(j * STRIDE + row), staged.at(tx * 4));
            let mut step = 0;
            while step < CHUNK {
                let ([a0, a1, a2, a3], [a4, a5, a6, a7]) = (x.get4(0), x.get4(4));
                let a = [a0, a1, a2, a3, a4, a5, a6, a7];
                unroll!(H < 2 {
                    if H < G {
                        let b = y.get4(64 * H as u32);
                        unroll!(I < 8 { unroll!(E < 4 { acc[I][H][E] += a[I] * b[E]; }); });
                    }
                });
                (x, y) = (x.at(STRIDE), y.at(width));
                step += 1;
            }
        }
        j += CHUNK;
    }
}

/// Writes a thread's part of a gradient.
///
/// # Safety
/// `y` is valid for the rows below `len` of the head at `at`.
#[inline(always)]
unsafe fn write<T: Element, const G: usize>(
    y: *mut T,
    at: u32,
    stride: u32,
    acc: &[[[f32; 4]; G]; 8],
    (first, len, head_dim): (u32, u32, u32),
    Place { tx, row, .. }: Place,
) {
    unroll!(I < 8 {
        let r = first + row + I as u32;
        unroll!(H < 2 {
            let c = tx * 4 + 64 * H as u32;
            if H < G && r < len && c < head_dim {
                // SAFETY: row and column are the head's; head_dim and strides are multiples of eight.
                unsafe { T::store4(y.add((at + r * stride + c) as usize), acc[I][H]) };
            }
        });
    });
}

/// Which keys a query sees.
#[derive(Clone, Copy)]
struct Mask {
    q_len: u32,
    kv_len: u32,
    causal: bool,
}

impl Mask {
    /// Whether query i sees key j, both of which exist.
    #[inline(always)]
    fn sees(self, i: u32, j: u32) -> bool {
        i < self.q_len && j < self.kv_len && (!self.causal || j + self.q_len <= i + self.kv_len)
    }

    /// One past the last key that any of 64 queries from `first` on sees.
    #[inline(always)]
    fn keys_end(self, first: u32) -> u32 {
        let last = (first + ROWS).min(self.q_len);
        if self.causal {
            (last + self.kv_len).saturating_sub(self.q_len).min(self.kv_len)
        } else {
            self.kv_len
        }
    }

    /// The first query that sees key `first`.
    #[inline(always)]
    fn queries_begin(self, first: u32) -> u32 {
        if self.causal { (first + self.q_len).saturating_sub(self.kv_len) } else { 0 }
    }
}

/// # Safety
/// As the kernels below; `staged` holds [`STAGED`] elements.
#[inline(always)]
unsafe fn stats<T: Element>(p: Stats<T>, staged: Shared<f32>) {
    // SAFETY: heads belong to groups, and there are heads.
    unsafe {
        not_zero(p.group);
        not_zero(p.num_q_heads);
    }
    let place = Place::new();
    let (head, first) = (thread::block_idx_x(), thread::block_idx_y() * ROWS);
    let (batch, h) = (head / p.num_q_heads, head % p.num_q_heads);
    let mask = Mask { q_len: p.q_len, kv_len: p.kv_len, causal: p.causal != 0 };
    let rows = |x: *const T, strides: Strides, h: u32, len: u32| Head {
        x,
        at: strides.offset(batch, h),
        row: strides.row,
        last: len.max(1) - 1,
        head_dim: p.head_dim,
    };
    let q = rows(p.q, p.q_strides, h, p.q_len);
    let k = rows(p.k, p.k_strides, h / p.group, p.kv_len);
    let out = rows(p.out, p.out_strides, h, p.q_len);
    let dout = rows(p.dout, p.dout_strides, h, p.q_len);

    let (mut max, mut sum) = ([f32::NEG_INFINITY; 8], [0.0f32; 8]);
    let (mut tile, end) = (0, mask.keys_end(first));
    while tile < end {
        let mut s = [[0.0f32; 4]; 8];
        // SAFETY: all threads run the same loop.
        unsafe { products(&mut s, (q, first), (k, tile), staged, place) };
        unroll!(I < 8 {
            unroll!(J < 4 {
                let sees = mask.sees(first + place.row + I as u32, tile + place.tx * 4 + J as u32);
                let score = if sees { s[I][J] * p.scale_log2 } else { f32::NEG_INFINITY };
                if score > max[I] {
                    sum[I] *= exp2(max[I] - score);
                    max[I] = score;
                }
                if score > f32::NEG_INFINITY {
                    sum[I] += exp2(score - max[I]);
                }
            });
        });
        tile += ROWS;
    }

    // the 16 lanes of half a warp have a row's columns
    unroll!(I < 8 {
        let r = first + place.row + I as u32;
        // SAFETY: the rows are the heads'; all lanes are here.
        unsafe {
            let top = Max.over::<16>(max[I]);
            let own = if max[I] == f32::NEG_INFINITY { 0.0 } else { sum[I] * exp2(max[I] - top) };
            let total = Sum.over::<16>(own);
            let c = place.tx * 8;
            let (x, y) = ([out.load4(r, c), out.load4(r, c + 4)], [dout.load4(r, c), dout.load4(r, c + 4)]);
            let mut delta = 0.0;
            unroll!(HALF < 2 { unroll!(E < 4 { delta += x[HALF][E] * y[HALF][E]; }); });
            let delta = Sum.over::<16>(delta);
            if place.tx == 0 && r < p.q_len {
                let to = p.stats.add(2 * (head as usize * p.q_len as usize + r as usize));
                // of a row that sees nothing: every weight is exp(−∞)
                *to = if total > 0.0 { top + log2(total) } else { f32::INFINITY };
                *to.add(1) = delta;
            }
        }
    });
}

/// The heads of a block, and L and Δ of a query.
impl<T: Element> Backward<T> {
    #[inline(always)]
    fn head(&self, x: *const T, strides: Strides, batch: u32, head: u32, len: u32) -> Head<T> {
        let at = strides.offset(batch, head);
        Head { x, at, row: strides.row, last: len.max(1) - 1, head_dim: self.head_dim }
    }

    /// # Safety
    /// `head` is a query head, counted over all batches.
    #[inline(always)]
    unsafe fn stats_of(&self, head: u32, i: u32) -> [f32; 2] {
        let row = head as usize * self.q_len as usize + i.min(self.q_len - 1) as usize;
        let at = self.stats.wrapping_add(2 * row);
        // SAFETY: the row is the head's.
        unsafe { [f32::load(at), f32::load(at.add(1))] }
    }

    #[inline(always)]
    fn mask(&self) -> Mask {
        Mask { q_len: self.q_len, kv_len: self.kv_len, causal: self.causal != 0 }
    }
}

/// # Safety
/// As the kernels below; `staged` holds [`STAGED`] elements, `tile_of_s` [`TILE`].
#[inline(always)]
unsafe fn of_queries<T: Element, const G: usize>(
    p: Backward<T>,
    staged: Shared<f32>,
    tile_of_s: Shared<f32>,
) {
    // SAFETY: heads belong to groups, and there are heads.
    unsafe {
        not_zero(p.group);
        not_zero(p.num_q_heads);
    }
    let place = Place::new();
    let (head, first) = (thread::block_idx_x(), thread::block_idx_y() * ROWS);
    let (batch, h) = (head / p.num_q_heads, head % p.num_q_heads);
    let mask = p.mask();
    let q = p.head(p.q, p.q_strides, batch, h, p.q_len);
    let dout = p.head(p.dout, p.dout_strides, batch, h, p.q_len);
    let k = p.head(p.k, p.k_strides, batch, h / p.group, p.kv_len);
    let v = p.head(p.v, p.v_strides, batch, h / p.group, p.kv_len);

    let mut dq = [[[0.0f32; 4]; G]; 8];
    let (mut tile, end) = (0, mask.keys_end(first));
    while tile < end {
        let (mut s, mut dp) = ([[0.0f32; 4]; 8], [[0.0f32; 4]; 8]);
        // SAFETY: all threads run the same loop.
        unsafe {
            products(&mut s, (q, first), (k, tile), staged, place);
            products(&mut dp, (dout, first), (v, tile), staged, place);
        }
        unroll!(I < 8 {
            let i = first + place.row + I as u32;
            // SAFETY: it is the block's head.
            let [l, delta] = unsafe { p.stats_of(head, i) };
            unroll!(J < 4 {
                let sees = mask.sees(i, tile + place.tx * 4 + J as u32);
                let weight = if sees { exp2(s[I][J] * p.scale_log2 - l) } else { 0.0 };
                s[I][J] = weight * (dp[I][J] - delta) * p.scale;
            });
        });
        // SAFETY: since the tile was read last, all threads were at barriers.
        unsafe {
            store_tile(tile_of_s, &s, place);
            accumulate(&mut dq, tile_of_s, (k, tile), staged, place);
        }
        tile += ROWS;
    }
    let at = p.dq_strides.offset(batch, h);
    // SAFETY: this block's rows.
    unsafe { write(p.dq, at, p.dq_strides.row, &dq, (first, p.q_len, p.head_dim), place) };
}

/// # Safety
/// As [`of_queries`].
#[inline(always)]
unsafe fn of_keys<T: Element, const G: usize>(p: Backward<T>, staged: Shared<f32>, tile_of_s: Shared<f32>) {
    // SAFETY: heads belong to groups, and there are heads.
    unsafe {
        not_zero(p.group);
        not_zero(p.num_q_heads);
    }
    let place = Place::new();
    let num_kv_heads = (p.num_q_heads / p.group).max(1);
    let (kv_head, first) = (thread::block_idx_x(), thread::block_idx_y() * ROWS);
    let (batch, kv) = (kv_head / num_kv_heads, kv_head % num_kv_heads);
    let mask = p.mask();
    let k = p.head(p.k, p.k_strides, batch, kv, p.kv_len);
    let v = p.head(p.v, p.v_strides, batch, kv, p.kv_len);

    let (mut dk, mut dv) = ([[[0.0f32; 4]; G]; 8], [[[0.0f32; 4]; G]; 8]);
    let mut member = 0;
    while member < p.group {
        let h = kv * p.group + member;
        let head = batch * p.num_q_heads + h;
        let q = p.head(p.q, p.q_strides, batch, h, p.q_len);
        let dout = p.head(p.dout, p.dout_strides, batch, h, p.q_len);
        let mut tile = mask.queries_begin(first) / ROWS * ROWS;
        while tile < p.q_len {
            let mut s = [[0.0f32; 4]; 8];
            // SAFETY: all threads run the same loop.
            unsafe { products(&mut s, (k, first), (q, tile), staged, place) };
            unroll!(J < 4 {
                let i = tile + place.tx * 4 + J as u32;
                // SAFETY: it is one of the block's heads.
                let [l, _] = unsafe { p.stats_of(head, i) };
                unroll!(I < 8 {
                    let sees = mask.sees(i, first + place.row + I as u32);
                    s[I][J] = if sees { exp2(s[I][J] * p.scale_log2 - l) } else { 0.0 };
                });
            });
            // SAFETY: since the tile was read last, all threads were at barriers.
            unsafe {
                store_tile(tile_of_s, &s, place);
                accumulate(&mut dv, tile_of_s, (dout, tile), staged, place);
            }
            let mut dp = [[0.0f32; 4]; 8];
            // SAFETY: as above.
            unsafe { products(&mut dp, (v, first), (dout, tile), staged, place) };
            unroll!(J < 4 {
                // SAFETY: it is one of the block's heads; this thread's own elements of the tile.
                unsafe {
                    let [_, delta] = p.stats_of(head, tile + place.tx * 4 + J as u32);
                    let at = tile_of_s.at((place.tx * 4 + J as u32) * STRIDE + place.row);
                    let ([a, b, c, d], [e, f, g, h]) = (at.get4(0), at.get4(4));
                    let weights = [a, b, c, d, e, f, g, h];
                    unroll!(I < 8 { dp[I][J] = weights[I] * (dp[I][J] - delta) * p.scale; });
                }
            });
            // SAFETY: as above.
            unsafe {
                store_tile(tile_of_s, &dp, place);
                accumulate(&mut dk, tile_of_s, (q, tile), staged, place);
            }
            tile += ROWS;
        }
        member += 1;
    }
    let rows = (first, p.kv_len, p.head_dim);
    // SAFETY: this block's rows.
    unsafe {
        write(p.dk, p.dk_strides.offset(batch, kv), p.dk_strides.row, &dk, rows, place);
        write(p.dv, p.dv_strides.offset(batch, kv), p.dv_strides.row, &dv, rows, place);
    }
}

macro_rules! kernels {
    ($($name:ident $ty:ty: $stats:ident, [$($q:ident $kv:ident $g:literal),*];)*) => {
        $(
            /// # Safety
            /// [`Stats`] and [`Backward`] say what holds of the pointers, which are valid on the launching stream and reach fewer
            /// than 2³¹ elements; launched as [`Kernels`] says.
            #[kernel(block = THREADS, shared(staged: [f32; STAGED]), shuffles = 96)]
            pub unsafe fn $stats(p: Stats<$ty>) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { stats(p, staged) }
            }

            $(
                /// # Safety
                /// As the kernel of L and Δ.
                #[kernel(block = THREADS, min_blocks = 2, shared(staged: [f32; STAGED], tile: [f32; TILE]))]
                pub unsafe fn $q(p: Backward<$ty>) {
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { of_queries::<$ty, $g>(p, staged, tile) }
                }

                /// # Safety
                /// As the kernel of L and Δ.
                #[kernel(block = THREADS, min_blocks = 2, shared(staged: [f32; STAGED], tile: [f32; TILE]))]
                pub unsafe fn $kv(p: Backward<$ty>) {
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { of_keys::<$ty, $g>(p, staged, tile) }
                }
            )*

            /// The kernels of this element type.
            pub const $name: Kernels<$ty> = Kernels { stats: $stats, q: [$($q),*], kv: [$($kv),*] };
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($stats.info(), $($q.info(), $kv.info(),)*)*];
    };
}

kernels! {
    OF_F32 f32: attention_backward_stats_f32, [
        attention_backward_q_d64_f32 attention_backward_kv_d64_f32 1,
        attention_backward_q_d128_f32 attention_backward_kv_d128_f32 2
    ];
    OF_F16 F16: attention_backward_stats_f16, [
        attention_backward_q_d64_f16 attention_backward_kv_d64_f16 1,
        attention_backward_q_d128_f16 attention_backward_kv_d128_f16 2
    ];
}
