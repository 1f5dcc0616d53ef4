//! The gradients of attention: FlashAttention-2's backward pass on the CUDA cores.
//!
//! Source: Dao 2023, "FlashAttention-2", algorithm 2.
//!
//! ```text
//! S = scale · Q Kᵀ, masked; P = exp(S − L); dP = dO Vᵀ; Δ[i] = Σ dO[i, ·] O[i, ·]; dS = scale · P (dP − Δ)     (both, tile by tile)
//! dQ = dS K, L[i] = log Σ_j exp(S[i, j])   a block: 64 queries of a query head, the keys that they see or a part of them   (q)
//! dQ, L: merged from parts                 a block: 8 queries of a query head                                     (merge)
//! dK = dSᵀ Q, dV = Pᵀ dO                   a block: 64 keys of a kv head, queries that see them                  (kv)
//! dK, dV: sums of parts                    a block: 1024 elements of a kv head                                   (sum)
//! ```
//!
//! How the code departs from it:
//! 1. Two kernels compute S and dP, one for dQ and one for dK and dV. Otherwise dQ would be added up by atomics, whose order is not
//!    fixed. The result is the same each time.
//! 2. L is computed anew, so that the forward kernels need not store it. dQ is linear in P, so its kernel keeps a running maximum and
//!    sum as the forward kernel does, rescales dQ, and leaves L and Δ to the kernel of dK and dV.
//! 3. Exponents are base 2.
//! 4. A block owns 64 rows (queries, or keys) and visits tiles of 64 columns (keys, or queries). A thread owns rows 8·ty + (0..8) and
//!    columns 4·tx + (0..4) of a tile, and columns 4·tx + 64g + (0..4) of the gradients.
//! 5. Operands pass through shared memory in chunks of 16 columns, transposed, or of 16 rows. There are two buffers: while a chunk is
//!    computed, the next one, also that of the next product, is loaded into registers and then stored in the other buffer.
//! 6. Transposed chunks and tiles are swizzled (XOR with the column's number), so that neither reads nor writes have bank conflicts.
//! 7. Where there are few keys, a block of dK and dV handles a part of the queries of one query head, so that blocks fill the device,
//!    and the parts are added afterwards. Otherwise it handles all query heads of a group, one after the other. Where there are few
//!    queries, a block of dQ handles a part of the keys.
//! 8. Blocks with most tiles come first.
//! 9. Rows past the end are read from the last valid one and masked.
//!
//! Which tiles a block visits, and what it sees of them, is its [`Work`]: here all of them, or up to the diagonal. The kernels of
//! [`sparse::backward`](super::sparse::backward) take them from lists.

use super::prefill::read_indices;
use super::tensors::{Strides, not_zero};
use crate::device::math::{exp2, fma, log2, rcp};
use crate::device::unroll::unroll;
use crate::device::{Element, F16, Shared, opaque};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// Queries of a block of the first kernel, keys of a block of the second.
pub const ROWS: u32 = 64;
pub(super) const THREADS: u32 = 128;
/// Columns or rows of a chunk.
const CHUNK: u32 = 16;
/// From one column of a transposed chunk to the next.
const STRIDE: u32 = ROWS + 4;
/// Elements of a buffer: two transposed chunks, or a chunk of 16 rows of 128 columns.
pub(super) const BUFFER: u32 = 2 * CHUNK * STRIDE;
/// Elements of a transposed tile of P or dS.
pub(super) const TILE: u32 = ROWS * ROWS;
/// Elements that a block of the kernel of sums adds.
pub const SUMMED: u32 = 4 * SUM_THREADS;
const SUM_THREADS: u32 = 256;
/// Queries that a block of the kernel of merges has, each by a warp.
pub const MERGED: u32 = 8;

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
    /// As dout; read by the kernel of queries
    pub out: *const T,
    /// L in base 2, and Δ: [2, b · num_q_heads, q_len rounded up to ROWS], written by the kernel of queries
    pub stats: *mut f32,
    /// Parts of dk and dv: [2, parts · splits, b · num_kv_heads, kv_len, head_dim], if there is more than one. For the kernel of queries
    /// those of dq: [parts, b · num_q_heads, q_len rounded up to ROWS, [`record`]].
    pub partial: *mut f32,
    pub dq_strides: Strides,
    pub dk_strides: Strides,
    pub dv_strides: Strides,
    pub dout_strides: Strides,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub v_strides: Strides,
    pub out_strides: Strides,
    pub num_q_heads: u32,
    /// Query heads that share a kv head.
    pub group: u32,
    /// Into how many parts a group's query heads are divided for dk and dv: 1 or `group`.
    pub splits: u32,
    /// Queries of a part, for dk and dv: a multiple of ROWS.
    pub part_len: u32,
    pub q_len: u32,
    pub kv_len: u32,
    pub head_dim: u32,
    pub scale: f32,
    /// scale · log2 e
    pub scale_log2: f32,
    /// Of plain attention.
    pub causal: u32,
    /// Of listed tiles: see [`sparse::backward`](super::sparse::backward).
    pub starts: *const u32,
    pub tiles: *const u32,
    pub patterns: *const u32,
    pub sharing: u32,
}

/// The kernels of one element type.
#[derive(Clone, Copy)]
pub struct Kernels<T> {
    /// For head_dim ≤ 64 and ≤ 128: grid = [b · num_q_heads, ceil(q_len / ROWS), parts]
    pub q: [KernelSpec<Backward<T>>; 2],
    /// For parts of dq: grid = [b · num_q_heads, ceil(q_len / MERGED)]
    pub merge: KernelSpec<Merge<T>>,
    /// For head_dim ≤ 64 and ≤ 128: grid = [b · num_kv_heads · splits, ceil(kv_len / ROWS), parts]
    pub kv: [KernelSpec<Backward<T>>; 2],
    /// grid = [b · num_kv_heads, ceil(kv_len · head_dim / SUMMED), 2]
    pub sum: KernelSpec<Sums<T>>,
}

/// Elements of a query's record in a part of dq, of a kernel for so many columns: they, not divided by the sum of the weights, the largest
/// exponent, and the sum.
pub const fn record(columns: u32) -> u32 {
    columns + 4
}

/// The parameters of the kernel that merges the parts of dq.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Merge<T> {
    /// As [`Backward`]'s
    pub dq: *mut T,
    pub partial: *const f32,
    pub stats: *mut f32,
    pub dq_strides: Strides,
    pub parts: u32,
    pub num_q_heads: u32,
    pub q_len: u32,
    pub head_dim: u32,
    /// Of the kernel that has written the parts: 64 or 128.
    pub columns: u32,
}

/// The parameters of the kernel that adds the parts of dk and dv.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Sums<T> {
    /// As [`Backward`]'s
    pub dk: *mut T,
    pub dv: *mut T,
    pub partial: *const f32,
    pub dk_strides: Strides,
    pub dv_strides: Strides,
    pub parts: u32,
    pub num_kv_heads: u32,
    pub kv_len: u32,
    pub head_dim: u32,
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

#[inlined]
impl<T: Element> Head<T> {
    /// Columns c to c + 3 of row `row` or, past the end, of the last one, as they lie in memory; zeros past the last column.
    ///
    /// # Safety
    /// `x` is valid for the head, which has a row.
    unsafe fn load4_words(&self, row: u32, c: u32) -> [u32; 4] {
        if c >= self.head_dim {
            return [0; 4]; // 0.0 in either type
        }
        let at = self.at + row.min(self.last) * self.row + c;
        // SAFETY: row and column are the head's; head_dim and strides are multiples of eight.
        unsafe { T::load4_words(self.x.add(at as usize)) }
    }

    /// As [`load4_words`](Self::load4_words), converted.
    ///
    /// # Safety
    /// As [`load4_words`](Self::load4_words).
    unsafe fn load4(&self, row: u32, c: u32) -> [f32; 4] {
        // SAFETY: this function's contract.
        T::from_words(unsafe { self.load4_words(row, c) })
    }
}

/// A thread's place in a tile.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub tx: u32,
    /// The first of its eight rows.
    pub row: u32,
}

/// The tiles of 64 columns that a block of 64 rows visits: columns are keys where rows are queries, and queries where rows are keys.
pub(super) trait Work: Copy {
    /// From one tile's number to the next one's.
    const STEP: u32;
    /// Whether a block of queries may have a part of the tiles, of as many parts as the grid along z.
    const IN_PARTS: bool;

    /// The part of a tile that a thread sees.
    type Seen: Copy;

    /// The first tile of query head `head` of a batch for the rows from `first` on, and one past the last.
    ///
    /// # Safety
    /// The block has these rows, and the head is one whose columns or rows are its own.
    unsafe fn tiles(self, head: u32, first: u32) -> [u32; 2];

    /// The query or key that column a + b + c of a tile is; it may be past the end. They are added one after the other: which sums stay in
    /// registers decides over bank conflicts.
    ///
    /// # Safety
    /// A tile of the block, or the one that follows its last.
    unsafe fn column(self, tile: u32, c: [u32; 3]) -> u32;

    /// The part of a tile that the thread at `place` sees.
    ///
    /// # Safety
    /// A tile of the block, whose rows begin at `first`.
    unsafe fn seen(self, place: Place, first: u32, tile: u32) -> Self::Seen;

    /// Whether its row `i` and its column `j` see each other.
    fn sees(seen: Self::Seen, i: u32, j: u32) -> bool;
}

impl Place {
    /// Reads the thread's index anew, so that a place need not stay in registers from one product to the next.
    #[inline(always)]
    fn new() -> Self {
        let tid = read_indices()[0];
        Self { tx: tid % 16, row: tid / 16 * 8 }
    }
}

/// Vectors of a chunk in flight from global to shared memory, not yet converted: converting them would wait for them.
type Staged = [[u32; 4]; 4];

/// Operands that a product takes in chunks. The thread's index is read anew each time, so that what follows from it needs no registers
/// during the products.
trait Operands: Copy {
    /// This thread's vectors of chunk `i`.
    ///
    /// # Safety
    /// The heads have a row.
    unsafe fn load(self, i: u32) -> Staged;

    /// Writes what [`load`](Self::load) gave.
    ///
    /// # Safety
    /// `to` holds [`BUFFER`] elements, which nobody reads.
    unsafe fn put(self, to: Shared<f32>, staged: Staged);
}

/// 64 rows of a head from a first one on, and those of another that are the columns of a tile, in chunks of 16 columns: two transposed
/// chunks. Those of columns from the eighth on have rows exchanged eight by eight, so that the threads that write at a time meet in
/// no bank.
#[derive(Clone, Copy)]
struct Pair<T, W> {
    a: (Head<T>, u32),
    b: (Head<T>, u32),
    work: W,
}

#[inlined]
impl<T: Element, W: Work> Operands for Pair<T, W> {
    unsafe fn load(self, i: u32) -> Staged {
        let (((a, a_first), (b, tile)), tid) = ((self.a, self.b), read_indices()[0]);
        let (r, c) = (tid / 4, i * CHUNK + tid % 4 * 4);
        // SAFETY: the heads have a row; the tile is one of the block or follows its last.
        unsafe {
            [
                a.load4_words(a_first + r, c),
                a.load4_words(a_first + r + 32, c),
                b.load4_words(self.work.column(tile, [r, 0, 0]), c),
                b.load4_words(self.work.column(tile, [r, 32, 0]), c),
            ]
        }
    }

    unsafe fn put(self, to: Shared<f32>, staged: Staged) {
        let tid = read_indices()[0];
        let (row, part) = (tid / 4, tid % 4);
        let to = to.at(part * (4 * STRIDE) + (row ^ (part / 2 * 8)));
        unroll!(I < 4 => {
            let values = T::from_words(staged[I]);
            unroll!(E < 4 => {
                // SAFETY: rows and columns of the chunks; each thread its own elements.
                unsafe { to.set(I as u32 / 2 * (CHUNK * STRIDE) + E as u32 * STRIDE + I as u32 % 2 * 32, values[E]) };
            });
        });
    }
}

/// The rows of a head that are the columns of a tile, in chunks of 16 rows: [G, 16, 64].
#[derive(Clone, Copy)]
struct Rows<T, W, const G: usize>(Head<T>, u32, W);

#[inlined]
impl<T: Element, W: Work, const G: usize> Operands for Rows<T, W, G> {
    unsafe fn load(self, i: u32) -> Staged {
        let (Self(head, tile, work), tid) = (self, read_indices()[0]);
        let mut staged = [[0; 4]; 4];
        unroll!(I < 4 => {
            if I < 2 * G {
                // SAFETY: the head has a row; the tile is one of the block or follows its last.
                staged[I] = unsafe {
                    let row = work.column(tile, [i * CHUNK, tid / 16, I as u32 % 2 * 8]);
                    head.load4_words(row, I as u32 / 2 * 64 + tid % 16 * 4)
                };
            }
        });
        staged
    }

    unsafe fn put(self, to: Shared<f32>, staged: Staged) {
        let to = to.at(read_indices()[0] * 4);
        unroll!(I < 4 => {
            if I < 2 * G {
                // SAFETY: rows below 16 and columns below 64 G; each thread its own elements.
                unsafe { to.set4(I as u32 * (8 * 64), T::from_words(staged[I])) };
            }
        });
    }
}

/// Two buffers, of which one is read while the other is written. Before each product its first chunk is in the one that is read.
#[derive(Clone, Copy)]
struct Pipe {
    buffers: Shared<f32>,
    /// Where the buffer is that is read next.
    side: u32,
}

#[inlined]
impl Pipe {
    fn read(&self) -> Shared<f32> {
        self.buffers.at(self.side)
    }

    /// Exchanges the buffers and gives the one that was not read.
    fn turn(&mut self) -> Shared<f32> {
        self.side = BUFFER - self.side;
        self.read()
    }
}

/// s += A Bᵀ, and loads the first chunk of `next`.
///
/// # Safety
/// All threads of the block are here; the first chunk of `pair` is written.
#[inline(always)]
unsafe fn products<T: Element>(
    s: &mut [[f32; 4]; 8],
    pipe: &mut Pipe,
    pair: Pair<T, impl Work>,
    next: impl Operands,
) {
    let Place { tx, row } = Place::new();
    let chunks = pair.a.0.head_dim.div_ceil(CHUNK);
    let mut i = 0;
    while i < chunks {
        // SAFETY: all threads reach the barrier. After it the chunk is complete, and nobody reads the other buffer any more.
        unsafe {
            thread::sync_threads();
            i += 1;
            let staged = if i < chunks { pair.load(i) } else { next.load(0) };
            let (own, other) = (pipe.read(), pipe.read().at(CHUNK * STRIDE));
            let (a, b) = ([own.at(row), own.at(row ^ 8)], [other.at(tx * 4), other.at((tx * 4) ^ 8)]);
            unroll!(C < 16 => {
                let x = [
                    a[C / 8].get4_at::<{ C as u32 }, STRIDE, 0, 0>(),
                    a[C / 8].get4_at::<{ C as u32 }, STRIDE, 1, 4>(),
                ];
                let y = b[C / 8].get4_at::<{ C as u32 }, STRIDE, 0, 0>();
                unroll!(I < 8 => { unroll!(J < 4 => { s[I][J] = fma(x[I / 4][I % 4], y[J], s[I][J]); }); });
            });
            let to = pipe.turn();
            if i < chunks {
                pair.put(to, staged);
            } else {
                next.put(to, staged);
            }
        }
    }
}

/// Where a thread's first four rows of column 4·tx + j of a tile are; the other four are at this ^ 4. Fours of rows are exchanged by
/// tx mod 8, so that the threads that write at a time meet in no bank.
#[inline(always)]
fn tile_at(Place { tx, row, .. }: Place, j: u32) -> u32 {
    (tx * 4 + j) * ROWS + (row ^ (tx % 8 * 4))
}

/// Stores a thread's part of a tile, transposed.
///
/// # Safety
/// `tile` holds [`TILE`] elements, which nobody reads meanwhile.
#[inline(always)]
unsafe fn store_tile(tile: Shared<f32>, s: &[[f32; 4]; 8], place: Place) {
    unroll!(J < 4 => {
        let at = tile_at(place, J as u32);
        // SAFETY: this thread's own elements.
        unsafe {
            tile.at(at).set4(0, [s[0][J], s[1][J], s[2][J], s[3][J]]);
            tile.at(at ^ 4).set4(0, [s[4][J], s[5][J], s[6][J], s[7][J]]);
        }
    });
}

/// acc += X B, of a tile X that [`store_tile`] has stored and the 64 rows of `b`, and loads the first chunk of `next`.
/// acc: [8, 64 G / 16]
///
/// # Safety
/// As [`products`].
#[inline(always)]
unsafe fn accumulate<T: Element, const G: usize>(
    acc: &mut [[[f32; 4]; G]; 8],
    tile: Shared<f32>,
    pipe: &mut Pipe,
    rows: Rows<T, impl Work, G>,
    next: impl Operands,
) {
    let Place { tx, row } = Place::new();
    let mut j = 0;
    while j < ROWS / CHUNK {
        // SAFETY: all threads of the block are here (this function's contract); after the first barrier the tile is complete.
        unsafe {
            thread::sync_threads();
            let x = j * (CHUNK * ROWS) + (row ^ (j % 2 * 16));
            let x = [tile.at(x), tile.at(x ^ 4), tile.at(x ^ 8), tile.at(x ^ 12)];
            let y = pipe.read().at(tx * 4);
            j += 1;
            let staged = if j < ROWS / CHUNK { rows.load(j) } else { next.load(0) };
            unroll!(K < 16 => {
                let a = [
                    x[K / 4].get4_at::<{ K as u32 }, ROWS, 0, 0>(),
                    x[(K / 4) ^ 1].get4_at::<{ K as u32 }, ROWS, 0, 0>(),
                ];
                unroll!(H < 2 => {
                    if H < G {
                        let b = y.get4_at::<{ K as u32 }, 64, { H as u32 }, { CHUNK * 64 }>();
                        unroll!(I < 8 => { unroll!(E < 4 => { acc[I][H][E] = fma(a[I / 4][I % 4], b[E], acc[I][H][E]); }); });
                    }
                });
            });
            let to = pipe.turn();
            if j < ROWS / CHUNK {
                rows.put(to, staged);
            } else {
                next.put(to, staged);
            }
        }
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
    unroll!(I < 8 => {
        let r = first + row + I as u32;
        unroll!(H < 2 => {
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
}

/// All keys that 64 queries see.
#[derive(Clone, Copy)]
struct Keys(Mask);

#[inlined]
impl Work for Keys {
    const STEP: u32 = ROWS;
    const IN_PARTS: bool = true;
    /// The thread's first query and key.
    type Seen = (Mask, u32, u32);

    unsafe fn tiles(self, _: u32, first: u32) -> [u32; 2] {
        let Mask { q_len, kv_len, causal } = self.0;
        let last = (first + ROWS).min(q_len);
        [0, if causal { (last + kv_len).saturating_sub(q_len).min(kv_len) } else { kv_len }]
    }

    unsafe fn column(self, tile: u32, [a, b, c]: [u32; 3]) -> u32 {
        tile + a + b + c
    }

    unsafe fn seen(self, place: Place, first: u32, tile: u32) -> Self::Seen {
        (self.0, first + place.row, tile + place.tx * 4)
    }

    fn sees((mask, query, key): Self::Seen, i: u32, j: u32) -> bool {
        mask.sees(query + i, key + j)
    }
}

/// All queries of a part that see any of 64 keys.
#[derive(Clone, Copy)]
struct Queries {
    mask: Mask,
    begin: u32,
    end: u32,
}

impl Queries {
    /// Of a part's queries from `part` to `end` those that see any key from `first` on.
    #[inline(always)]
    fn new(mask: Mask, first: u32, part: u32, end: u32) -> Self {
        let begin = if mask.causal { (first + mask.q_len).saturating_sub(mask.kv_len) } else { 0 };
        Self { mask, begin: (begin / ROWS * ROWS).max(part), end: mask.q_len.min(end) }
    }
}

#[inlined]
impl Work for Queries {
    const STEP: u32 = ROWS;
    const IN_PARTS: bool = false;
    /// The thread's first query and key.
    type Seen = (Mask, u32, u32);

    unsafe fn tiles(self, _: u32, _: u32) -> [u32; 2] {
        [self.begin, self.end]
    }

    unsafe fn column(self, tile: u32, [a, b, c]: [u32; 3]) -> u32 {
        tile + a + b + c
    }

    unsafe fn seen(self, place: Place, first: u32, tile: u32) -> Self::Seen {
        (self.mask, tile + place.tx * 4, first + place.row)
    }

    fn sees((mask, query, key): Self::Seen, i: u32, j: u32) -> bool {
        mask.sees(query + j, key + i)
    }
}

/// The heads of a block, and where L and Δ are.
#[inlined]
impl<T: Element> Backward<T> {
    fn head(&self, x: *const T, strides: Strides, batch: u32, head: u32, len: u32) -> Head<T> {
        let at = strides.offset(batch, head);
        Head { x, at, row: strides.row, last: len.max(1) - 1, head_dim: self.head_dim }
    }

    /// L and Δ of query `i` of a query head, counted over all `heads` of all batches.
    fn stats_at(&self, head: u32, heads: u32, i: u32) -> [*mut f32; 2] {
        let rows = self.q_len.next_multiple_of(ROWS) as usize;
        let at = self.stats.wrapping_add(head as usize * rows + i as usize);
        [at, at.wrapping_add(heads as usize * rows)]
    }

    /// L and Δ of the first of a thread's four columns of a tile of queries. Read when needed, because registers are short meanwhile.
    ///
    /// # Safety
    /// A tile of the block.
    unsafe fn stats_of(
        &self,
        work: impl Work,
        tile: u32,
        [head, heads]: [u32; 2],
        place: Place,
    ) -> [*mut f32; 2] {
        // SAFETY: this function's contract.
        self.stats_at(head, heads, unsafe { work.column(tile, [place.tx * 4, 0, 0]) })
    }

    fn mask(&self) -> Mask {
        Mask { q_len: self.q_len, kv_len: self.kv_len, causal: self.causal != 0 }
    }
}

/// # Safety
/// As the kernels below; `buffers` holds two times [`BUFFER`] elements, `tile_of_s` [`TILE`]. `work` has the block's tiles of keys.
#[inline(always)]
pub(super) unsafe fn of_queries<T: Element, W: Work, const G: usize>(
    p: Backward<T>,
    work: W,
    buffers: Shared<f32>,
    tile_of_s: Shared<f32>,
) {
    // SAFETY: heads belong to groups, and there are heads.
    unsafe {
        not_zero(p.group);
        not_zero(p.num_q_heads);
    }
    let place = Place::new();
    // with a causal mask the last queries see most keys
    let first = (thread::grid_dim_y() - 1 - thread::block_idx_y()) * ROWS;
    let (head, heads) = (thread::block_idx_x(), thread::grid_dim_x());
    let (batch, h) = (head / p.num_q_heads, head % p.num_q_heads);
    let q = p.head(p.q, p.q_strides, batch, h, p.q_len);
    let dout = p.head(p.dout, p.dout_strides, batch, h, p.q_len);
    let out = p.head(p.out, p.out_strides, batch, h, p.q_len);
    let k = p.head(p.k, p.k_strides, batch, h / p.group, p.kv_len);
    let v = p.head(p.v, p.v_strides, batch, h / p.group, p.kv_len);

    // the 16 lanes of half a warp have a row's columns
    let (mut max, mut sum, mut delta) = ([f32::NEG_INFINITY; 8], [0.0f32; 8], [0.0f32; 8]);
    unroll!(I < 8 => {
        let (r, c) = (first + place.row + I as u32, place.tx * 4);
        // SAFETY: a block has a query; all lanes are here.
        unsafe {
            let (x, y) = ([out.load4(r, c), out.load4(r, c + 64)], [dout.load4(r, c), dout.load4(r, c + 64)]);
            unroll!(HALF < 2 => { unroll!(E < 4 => { delta[I] += x[HALF][E] * y[HALF][E]; }); });
            delta[I] = Sum.over::<16>(delta[I]);
        }
    });

    let scores = |tile: u32| Pair { a: (q, first), b: (k, tile), work };
    let mut pipe = Pipe { buffers, side: 0 };
    let mut dq = [[[0.0f32; 4]; G]; 8];
    // SAFETY: the block's rows and head.
    let [mut tile, mut end] = unsafe { work.tiles(h, first) };
    let (part, parts) =
        if W::IN_PARTS { (thread::block_idx_z(), thread::grid_dim_z().max(1)) } else { (0, 1) };
    if W::IN_PARTS {
        let (begin, tiles) = (tile, (end - tile).div_ceil(W::STEP));
        [tile, end] = [part, part + 1].map(|part| opaque(begin + tiles * part / parts * W::STEP));
    }
    if tile < end {
        // SAFETY: there are a query and a key.
        unsafe { scores(tile).put(buffers, scores(tile).load(0)) };
    }
    while tile < end {
        let (mut s, mut dp) = ([[0.0f32; 4]; 8], [[0.0f32; 4]; 8]);
        let weights = Pair { a: (dout, first), b: (v, tile), work };
        let keys = Rows::<T, W, G>(k, tile, work);
        // SAFETY: all threads run the same loop.
        unsafe { products(&mut s, &mut pipe, scores(tile), weights) };
        // SAFETY: a tile of the block.
        let seen = unsafe { work.seen(Place::new(), first, tile) };
        unroll!(I < 8 => {
            let mut next = max[I];
            unroll!(J < 4 => {
                s[I][J] = if W::sees(seen, I as u32, J as u32) { s[I][J] * p.scale_log2 } else { f32::NEG_INFINITY };
                next = next.max(s[I][J]);
            });
            // SAFETY: all lanes are here.
            next = unsafe { Max.over::<16>(next) };
            let base = if next == f32::NEG_INFINITY { 0.0 } else { next };
            let rescale = exp2(max[I] - base);
            max[I] = next;
            sum[I] *= rescale;
            unroll!(J < 4 => {
                s[I][J] = exp2(s[I][J] - base);
                sum[I] += s[I][J];
            });
            unroll!(H < 2 => if H < G { unroll!(E < 4 => { dq[I][H][E] *= rescale; }); });
        });
        // SAFETY: all threads run the same loop. Since the tile was read last, all threads were at barriers.
        unsafe {
            products(&mut dp, &mut pipe, weights, keys);
            unroll!(I < 8 => { unroll!(J < 4 => { s[I][J] *= (dp[I][J] - delta[I]) * p.scale; }); });
            store_tile(tile_of_s, &s, Place::new());
            accumulate(&mut dq, tile_of_s, &mut pipe, keys, scores(tile + W::STEP));
        }
        tile += W::STEP;
    }

    let place = Place::new();
    let (columns, rows) = (64 * G as u32, p.q_len.next_multiple_of(ROWS));
    // this part's record of the first query
    let to =
        p.partial.wrapping_add((part * heads + head) as usize * rows as usize * record(columns) as usize);
    unroll!(I < 8 => {
        let query = first + place.row + I as u32;
        // SAFETY: all lanes are here; stats and parts have a row for each of the block's queries, also past the last one.
        unsafe {
            let total = Sum.over::<16>(sum[I]);
            if parts == 1 {
                let [l, factor] = weights_of(max[I], total);
                unroll!(H < 2 => if H < G { unroll!(E < 4 => { dq[I][H][E] *= factor; }); });
                if place.tx == 0 {
                    *p.stats_at(head, heads, query)[0] = l;
                }
            } else if place.tx == 0 {
                let state = to.add((query * record(columns) + columns) as usize);
                *state = max[I];
                *state.add(1) = total;
            }
            if place.tx == 0 && part == 0 {
                *p.stats_at(head, heads, query)[1] = delta[I];
            }
        }
    });
    let at = p.dq_strides.offset(batch, h);
    // SAFETY: this block's rows of dq or of its own part of it.
    unsafe {
        match parts {
            1 => write(p.dq, at, p.dq_strides.row, &dq, (first, p.q_len, p.head_dim), place),
            _ => write(to, 0, record(columns), &dq, (first, rows, columns), place),
        }
    }
}

/// L of a query and what its sums are divided by, from the largest exponent and the sum of the weights.
#[inline(always)]
fn weights_of(max: f32, sum: f32) -> [f32; 2] {
    // of a row that sees nothing every weight is exp(−∞)
    if sum > 0.0 { [max + log2(sum), rcp(sum)] } else { [f32::INFINITY, 0.0] }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn merge_parts<T: Element>(p: Merge<T>) {
    // SAFETY: there are heads.
    unsafe { not_zero(p.num_q_heads) };
    let (head, heads, lane) = (thread::block_idx_x(), thread::grid_dim_x(), thread::thread_idx_x() % 32);
    let query = thread::block_idx_y() * MERGED + thread::thread_idx_x() / 32;
    let rows = p.q_len.next_multiple_of(ROWS);
    if query >= rows {
        return; // no barrier follows
    }
    // SAFETY: the query and its head are inside stats and the parts, and inside dq where it is written; columns are compared with theirs.
    unsafe {
        let record = |part: u32| {
            let row = (part * heads + head) as usize * rows as usize + query as usize;
            p.partial.add(row * record(p.columns) as usize)
        };
        let mut max = f32::NEG_INFINITY;
        let mut part = 0;
        while part < p.parts {
            max = max.max(f32::load(record(part).add(p.columns as usize)));
            part += 1;
        }
        let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let (mut values, mut sum, column) = ([0.0; 4], 0.0, lane * 4);
        part = 0;
        while part < p.parts {
            let state = record(part).add(p.columns as usize);
            let weight = exp2(f32::load(state) - base);
            sum = fma(weight, f32::load(state.add(1)), sum);
            if column < p.columns {
                let more = f32::load4(record(part).add(column as usize));
                unroll!(E < 4 => { values[E] = fma(weight, more[E], values[E]); });
            }
            part += 1;
        }
        let [l, factor] = weights_of(max, sum);
        if lane == 0 {
            *p.stats.add(head as usize * rows as usize + query as usize) = l;
        }
        if query < p.q_len && column < p.head_dim {
            let at = p.dq_strides.offset(head / p.num_q_heads, head % p.num_q_heads)
                + query * p.dq_strides.row
                + column;
            T::store4(p.dq.add(at as usize), values.map(|value| value * factor));
        }
    }
}

/// # Safety
/// As [`of_queries`], with the block's tiles of queries.
#[inline(always)]
pub(super) unsafe fn of_keys<T: Element, W: Work, const G: usize>(
    p: Backward<T>,
    work: W,
    buffers: Shared<f32>,
    tile_of_s: Shared<f32>,
) {
    // SAFETY: heads belong to groups, and there are heads; groups are divided into some parts.
    unsafe {
        not_zero(p.group);
        not_zero(p.num_q_heads);
        not_zero(p.splits);
    }
    let num_kv_heads = (p.num_q_heads / p.group).max(1);
    let (kv_head, split) = (thread::block_idx_x() / p.splits, thread::block_idx_x() % p.splits);
    let (first, part) = (thread::block_idx_y() * ROWS, thread::block_idx_z());
    let (batch, kv) = (kv_head / num_kv_heads, kv_head % num_kv_heads);
    let kv_heads = thread::grid_dim_x() / p.splits;
    let k = p.head(p.k, p.k_strides, batch, kv, p.kv_len);
    let v = p.head(p.v, p.v_strides, batch, kv, p.kv_len);

    let mut pipe = Pipe { buffers, side: 0 };
    let (mut dk, mut dv) = ([[[0.0f32; 4]; G]; 8], [[[0.0f32; 4]; G]; 8]);
    let members = p.group / p.splits;
    let mut member = 0;
    while member < members {
        let h = kv * p.group + split * members + member;
        let q = p.head(p.q, p.q_strides, batch, h, p.q_len);
        let dout = p.head(p.dout, p.dout_strides, batch, h, p.q_len);
        let scores = |tile: u32| Pair { a: (k, first), b: (q, tile), work };
        // SAFETY: the block's rows, and a head of theirs.
        let [mut tile, end] = unsafe { work.tiles(h, first) };
        if tile < end {
            // SAFETY: there are a query and a key. Nobody reads this buffer: the last product read the other one.
            unsafe { scores(tile).put(pipe.read(), scores(tile).load(0)) };
        }
        while tile < end {
            let weights = Pair { a: (v, first), b: (dout, tile), work };
            let (queries, gradients) = (Rows::<T, W, G>(q, tile, work), Rows::<T, W, G>(dout, tile, work));
            let heads = [batch * p.num_q_heads + h, kv_heads * p.group];
            let mut s = [[0.0f32; 4]; 8];
            // SAFETY: all threads run the same loop.
            unsafe { products(&mut s, &mut pipe, scores(tile), gradients) };
            let place = Place::new();
            // SAFETY: stats has a row for each query of the tile, also past the last one, and these start at multiples of four.
            let l = unsafe { f32::load4(p.stats_of(work, tile, heads, place)[0]) };
            // SAFETY: a tile of the block.
            let seen = unsafe { work.seen(place, first, tile) };
            unroll!(J < 4 => {
                unroll!(I < 8 => {
                    let sees = W::sees(seen, I as u32, J as u32);
                    s[I][J] = if sees { exp2(s[I][J] * p.scale_log2 - l[J]) } else { 0.0 };
                });
            });
            let mut dp = [[0.0f32; 4]; 8];
            // SAFETY: all threads run the same loop. Since the tile was read last, they were at barriers.
            unsafe {
                store_tile(tile_of_s, &s, place);
                accumulate(&mut dv, tile_of_s, &mut pipe, gradients, weights);
                products(&mut dp, &mut pipe, weights, queries);
            }
            let place = Place::new();
            // SAFETY: stats has a second row for the same queries, also past the last one.
            let delta = unsafe { f32::load4(p.stats_of(work, tile, heads, place)[1]) };
            unroll!(J < 4 => {
                let at = tile_at(place, J as u32);
                // SAFETY: this thread's own elements of the tile.
                let weights = unsafe { [tile_of_s.at(at).get4(0), tile_of_s.at(at ^ 4).get4(0)] };
                unroll!(I < 8 => { dp[I][J] = weights[I / 4][I % 4] * (dp[I][J] - delta[J]) * p.scale; });
            });
            // SAFETY: all threads run the same loop, and each has read its own elements of the tile alone since the last barrier.
            unsafe {
                store_tile(tile_of_s, &dp, place);
                accumulate(&mut dk, tile_of_s, &mut pipe, queries, scores(tile + W::STEP));
            }
            tile += W::STEP;
        }
        member += 1;
    }
    let (rows, place) = ((first, p.kv_len, p.head_dim), Place::new());
    let parts = thread::grid_dim_z() * p.splits;
    // SAFETY: this block's rows of the gradients, or of its own part of them.
    unsafe {
        if parts == 1 {
            write(p.dk, p.dk_strides.offset(batch, kv), p.dk_strides.row, &dk, rows, place);
            write(p.dv, p.dv_strides.offset(batch, kv), p.dv_strides.row, &dv, rows, place);
        } else {
            let head = p.kv_len as usize * p.head_dim as usize;
            let own = (part * p.splits + split) as usize * kv_heads as usize + kv_head as usize;
            let to = p.partial.add(own * head);
            write(to, 0, p.head_dim, &dk, rows, place);
            write(to.add(parts as usize * kv_heads as usize * head), 0, p.head_dim, &dv, rows, place);
        }
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn sum_parts<T: Element>(p: Sums<T>) {
    // SAFETY: there are heads, and they have columns.
    unsafe {
        not_zero(p.num_kv_heads);
        not_zero(p.head_dim);
    }
    let (head, heads, of_v) = (thread::block_idx_x(), thread::grid_dim_x(), thread::block_idx_z());
    let i = thread::block_idx_y() * SUMMED + thread::thread_idx_x() * 4;
    let len = p.kv_len * p.head_dim;
    if i >= len {
        return;
    }
    let (to, strides) = if of_v == 0 { (p.dk, p.dk_strides) } else { (p.dv, p.dv_strides) };
    let mut sum = [0.0f32; 4];
    let mut part = of_v * p.parts;
    while part < of_v * p.parts + p.parts {
        let at = (part as usize * heads as usize + head as usize) * len as usize + i as usize;
        // SAFETY: the element is the head's, and head_dim is a multiple of eight.
        let x = unsafe { f32::load4(p.partial.add(at)) };
        sum = [sum[0] + x[0], sum[1] + x[1], sum[2] + x[2], sum[3] + x[3]];
        part += 1;
    }
    let at = strides.offset(head / p.num_kv_heads, head % p.num_kv_heads);
    let at = at + i / p.head_dim * strides.row + i % p.head_dim;
    // SAFETY: row and columns are the head's.
    unsafe { T::store4(to.add(at as usize), sum) };
}

macro_rules! kernels {
    ($($name:ident $ty:ty: $merge:ident $sum:ident, [$($q:ident $kv:ident $g:literal),*];)*) => {
        $(
            $(
                /// # Safety
                /// [`Backward`] says what holds of the pointers, which are valid on the launching stream and reach fewer than 2³¹
                /// elements; launched as [`Kernels`] says.
                #[kernel(block = THREADS, min_blocks = 2, shared(buffers: [f32; 2 * BUFFER], tile: [f32; TILE]), shuffles = 96)]
                pub unsafe fn $q(p: Backward<$ty>) {
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { of_queries::<$ty, _, $g>(p, Keys(p.mask()), buffers, tile) }
                }

                /// # Safety
                /// As the kernel of queries, which has run.
                #[kernel(block = THREADS, min_blocks = 2, shared(buffers: [f32; 2 * BUFFER], tile: [f32; TILE]))]
                pub unsafe fn $kv(p: Backward<$ty>) {
                    let (first, part) = (thread::block_idx_y() * ROWS, thread::block_idx_z() * p.part_len);
                    let work = Queries::new(p.mask(), first, part, part + p.part_len);
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { of_keys::<$ty, _, $g>(p, work, buffers, tile) }
                }
            )*

            /// # Safety
            /// As the kernel of queries, with [`Merge`]; the kernel of queries has run.
            #[kernel(block = 32 * MERGED, min_blocks = 8)]
            pub unsafe fn $merge(p: Merge<$ty>) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { merge_parts(p) }
            }

            /// # Safety
            /// As the kernel of queries, with [`Sums`]; the kernel of keys has run.
            #[kernel(block = SUM_THREADS, min_blocks = 5)]
            pub unsafe fn $sum(p: Sums<$ty>) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { sum_parts(p) }
            }

            /// The kernels of this element type.
            pub const $name: Kernels<$ty> = Kernels { q: [$($q),*], merge: $merge, kv: [$($kv),*], sum: $sum };
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($($q.info(), $kv.info(),)* $merge.info(), $sum.info(),)*];
    };
}

kernels! {
    OF_F32 f32: attention_backward_merge_f32 attention_backward_sum_f32, [
        attention_backward_q_d64_f32 attention_backward_kv_d64_f32 1,
        attention_backward_q_d128_f32 attention_backward_kv_d128_f32 2
    ];
    OF_F16 F16: attention_backward_merge_f16 attention_backward_sum_f16, [
        attention_backward_q_d64_f16 attention_backward_kv_d64_f16 1,
        attention_backward_q_d128_f16 attention_backward_kv_d128_f16 2
    ];
}
