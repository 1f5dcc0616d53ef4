//! The gradients of attention: FlashAttention-2's backward pass on the CUDA cores.
//!
//! Source: Dao 2023, "FlashAttention-2", algorithm 2.
//!
//! ```text
//! S = scale · Q Kᵀ, masked; P = exp(S − L); dP = dO Vᵀ; Δ[i] = Σ dO[i, ·] O[i, ·]; dS = scale · P (dP − Δ)
//! S, L[i] = log Σ_j exp(S[i, j]), Δ        a block: 64 queries of a query head, the keys that they see or a part of them   (scores)
//! L: merged from parts                     a thread: a query of a query head                                      (merge)
//! dK = dSᵀ Q, dV = Pᵀ dO; dS               a block: 64 keys of a kv head, queries that see them                   (kv)
//! dQ = dS K                                a block: 64 queries of a query head, the keys that they see or a part of them   (q)
//! sums of parts                            a block: 1024 elements of a head                                       (sum)
//! ```
//!
//! How the code departs from it:
//! 1. dQ is not added up by atomics, whose order is not fixed: the kernel of keys leaves dS in memory, where S was, and another one
//!    multiplies it by K. The result is the same each time, and five products are computed. The host takes so few heads and queries at a
//!    time that the scores do not need much memory; where these are not all queries, dK and dV are added to those before.
//! 2. L is computed anew, with the scores, so that the forward kernels need not store it.
//! 3. Exponents are base 2.
//! 4. A block owns 64 rows (queries, or keys) and visits tiles of 64 columns (keys, or queries). A thread owns rows 8·ty + (0..8) and
//!    columns 4·tx + (0..4) of a tile, and columns 4·tx + 64g + (0..4) of the gradients.
//! 5. Operands pass through shared memory in chunks of 16 columns, transposed, or of 16 rows. There are two buffers: while a chunk is
//!    computed, the next one, also that of the next product, is loaded into registers and then stored in the other buffer.
//! 6. Transposed chunks and tiles are swizzled (XOR with the column's number), so that neither reads nor writes have bank conflicts.
//! 7. Where there are few keys, a block of dK and dV handles a part of the queries of one query head, so that blocks fill the device,
//!    and the parts are added afterwards. Otherwise it handles all query heads of a group, one after the other. Where there are few
//!    queries, a block of scores or of dQ handles a part of the keys.
//! 8. Blocks with most tiles come first.
//! 9. Rows past the end are read from the last valid one and masked.
//!
//! The kernels of [`sparse::backward`](super::sparse::backward) compute the scores twice: a matrix of them would not be sparse. Which tiles a
//! block visits, and what it sees of them, is its [`Work`].

use super::merge::base;
use super::prefill::read_indices;
pub use super::tensors::Strides;
use super::tensors::not_zero;
use crate::device::element::read4;
use crate::device::math::{exp2, fma, log2, rcp};
use crate::device::unroll::unroll;
use crate::device::{Element, F16, Shared, opaque};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// Queries of a block, or keys.
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
/// Queries that a block of the kernel of merges has.
pub const MERGED: u32 = 256;

/// The parameters of the kernels of dense attention. Strides are multiples of eight elements, as are first elements.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Dense<T> {
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
    /// As dout; read by the kernel of scores
    pub out: *const T,
    /// scale · log2 e · Q Kᵀ, −∞ where a query does not see a key, then dS: [b · num_q_heads, kv_len, q_len], the lengths rounded up to
    /// ROWS. Only what the visited tiles have is written and read.
    pub scores: *mut f32,
    /// L in base 2, and Δ: [2, b · num_q_heads, q_len rounded up to ROWS], written by the kernel of scores
    pub stats: *mut f32,
    /// For the kernel of scores, if the keys are in parts: the largest exponent of a query and the sum, [parts, 2, b · num_q_heads,
    /// q_len rounded up to ROWS].
    pub part_stats: *mut f32,
    /// Parts of dk and dv, or null if there is only one: [2, parts · splits, b · num_kv_heads, part_rows, head_dim].
    pub kv_parts: *mut f32,
    /// Parts of dq, if there is more than one: [parts, b · num_q_heads, q_len, head_dim].
    pub q_parts: *mut f32,
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
    /// Keys of a part of dk and dv in memory: at least kv_len.
    pub part_rows: u32,
    pub q_len: u32,
    pub kv_len: u32,
    pub head_dim: u32,
    pub scale: f32,
    pub causal: u32,
    /// Whether dk and dv are added to what `kv_parts` has.
    pub adds: u32,
}

/// The kernels of one element type.
#[derive(Clone, Copy)]
pub struct Kernels<T> {
    /// grid = [b · num_q_heads, ceil(q_len / ROWS), parts]
    pub scores: KernelSpec<Dense<T>>,
    /// For parts of the scores: grid = [ceil(b · num_q_heads · q_len rounded up to ROWS / MERGED)]
    pub merge: KernelSpec<Merge>,
    /// For head_dim ≤ 64 and ≤ 128: grid = [b · num_kv_heads · splits, ceil(kv_len / ROWS), parts]
    pub kv: [KernelSpec<Dense<T>>; 2],
    /// For head_dim ≤ 64 and ≤ 128: grid = [b · num_q_heads, ceil(q_len / ROWS), parts]
    pub q: [KernelSpec<Dense<T>>; 2],
    /// grid = [heads, ceil(len · head_dim / SUMMED), 2], or 1 along z for dq
    pub sum: KernelSpec<Sums<T>>,
}

/// The parameters of the kernel that merges the parts of L.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Merge {
    /// [parts, 2, count], as [`Dense`]'s
    pub part_stats: *const f32,
    /// [count], disjoint from the parts
    pub stats: *mut f32,
    pub parts: u32,
    pub count: u32,
}

/// The parameters of the kernel that adds the parts of dk and dv, or of dq, which then takes dk's place.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Sums<T> {
    /// [b, num_kv_heads, kv_len, head_dim]
    pub dk: *mut T,
    pub dv: *mut T,
    /// [2, parts, b · num_kv_heads, kv_len, head_dim]
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
pub(super) struct Head<T> {
    x: *const T,
    /// The head's first element.
    at: u32,
    row: u32,
    last: u32,
    head_dim: u32,
}

#[inlined]
impl<T: Element> Head<T> {
    /// Head `head` of batch `batch` of [b, heads, len, head_dim].
    pub fn new(x: *const T, strides: Strides, [batch, head]: [u32; 2], len: u32, head_dim: u32) -> Self {
        Self { x, at: strides.offset(batch, head), row: strides.row, last: len.max(1) - 1, head_dim }
    }

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
    pub unsafe fn load4(&self, row: u32, c: u32) -> [f32; 4] {
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
    pub fn new() -> Self {
        let tid = read_indices()[0];
        Self { tx: tid % 16, row: tid / 16 * 8 }
    }
}

/// Vectors of a chunk in flight from global to shared memory, not yet converted: converting them would wait for them.
type Staged = [[u32; 4]; 4];

/// Operands that a product takes in chunks. The thread's index is read anew each time, so that what follows from it needs no registers
/// during the products.
pub(super) trait Operands: Copy {
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
pub(super) struct Pair<T, W> {
    pub a: (Head<T>, u32),
    pub b: (Head<T>, u32),
    pub work: W,
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
pub(super) struct Rows<T, W, const G: usize>(pub Head<T>, pub u32, pub W);

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
pub(super) struct Pipe {
    pub buffers: Shared<f32>,
    /// Where the buffer is that is read next.
    pub side: u32,
}

#[inlined]
impl Pipe {
    pub fn read(&self) -> Shared<f32> {
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
pub(super) unsafe fn products<T: Element>(
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
pub(super) fn tile_at(Place { tx, row, .. }: Place, j: u32) -> u32 {
    (tx * 4 + j) * ROWS + (row ^ (tx % 8 * 4))
}

/// Stores a thread's part of a tile, transposed.
///
/// # Safety
/// `tile` holds [`TILE`] elements, which nobody reads meanwhile.
#[inline(always)]
pub(super) unsafe fn store_tile(tile: Shared<f32>, s: &[[f32; 4]; 8], place: Place) {
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
pub(super) unsafe fn accumulate<T: Element, const G: usize>(
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
pub(super) unsafe fn write<T: Element, const G: usize>(
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

/// Where L and Δ are of query `i` of a query head, counted over all `heads` of all batches.   stats: as [`Dense`] has them
#[inline(always)]
pub(super) fn stats_at(stats: *mut f32, q_len: u32, [head, heads]: [u32; 2], i: u32) -> [*mut f32; 2] {
    let rows = q_len.next_multiple_of(ROWS) as usize;
    let at = stats.wrapping_add(head as usize * rows + i as usize);
    [at, at.wrapping_add(heads as usize * rows)]
}

/// A block of 64 queries of a query head.
#[derive(Clone, Copy)]
pub(super) struct OfQueries {
    pub first: u32,
    /// The query head, counted over all `heads` of all batches.
    pub head: u32,
    pub heads: u32,
    pub batch: u32,
    /// The query head of the batch.
    pub h: u32,
}

impl OfQueries {
    /// This block, of a grid [b · num_q_heads, blocks]. With a causal mask the last queries see most keys, so they come first.
    ///
    /// # Safety
    /// There are heads.
    #[inline(always)]
    pub unsafe fn new(num_q_heads: u32) -> Self {
        // SAFETY: this function's contract.
        unsafe { not_zero(num_q_heads) };
        let first = (thread::grid_dim_y() - 1 - thread::block_idx_y()) * ROWS;
        let (head, heads) = (thread::block_idx_x(), thread::grid_dim_x());
        Self { first, head, heads, batch: head / num_q_heads, h: head % num_q_heads }
    }
}

/// A block of 64 keys of a kv head, for some of the query heads that share it.
#[derive(Clone, Copy)]
pub(super) struct OfKeys {
    pub first: u32,
    /// The kv head, counted over all `kv_heads` of all batches.
    pub kv_head: u32,
    pub kv_heads: u32,
    pub batch: u32,
    /// The kv head of the batch.
    pub kv: u32,
    /// The part of the query heads.
    pub split: u32,
}

impl OfKeys {
    /// This block, of a grid [b · num_kv_heads · splits, blocks].
    ///
    /// # Safety
    /// There are heads, they belong to groups, and groups are divided into some parts.
    #[inline(always)]
    pub unsafe fn new(num_q_heads: u32, group: u32, splits: u32) -> Self {
        // SAFETY: this function's contract.
        unsafe {
            not_zero(group);
            not_zero(num_q_heads);
            not_zero(splits);
        }
        let num_kv_heads = (num_q_heads / group).max(1);
        let (kv_head, split) = (thread::block_idx_x() / splits, thread::block_idx_x() % splits);
        let (batch, kv) = (kv_head / num_kv_heads, kv_head % num_kv_heads);
        Self {
            first: thread::block_idx_y() * ROWS,
            kv_head,
            kv_heads: thread::grid_dim_x() / splits,
            batch,
            kv,
            split,
        }
    }
}

/// Δ of a thread's rows: the 16 lanes of half a warp have a row's columns.
///
/// # Safety
/// All lanes are here; the heads have a row.
#[inline(always)]
pub(super) unsafe fn deltas<T: Element>(dout: Head<T>, out: Head<T>, first: u32) -> [f32; 8] {
    let place = Place::new();
    let mut delta = [0.0f32; 8];
    unroll!(I < 8 => {
        let (r, c) = (first + place.row + I as u32, place.tx * 4);
        // SAFETY: this function's contract.
        unsafe {
            let (x, y) = ([out.load4(r, c), out.load4(r, c + 64)], [dout.load4(r, c), dout.load4(r, c + 64)]);
            unroll!(HALF < 2 => { unroll!(E < 4 => { delta[I] += x[HALF][E] * y[HALF][E]; }); });
            delta[I] = Sum.over::<16>(delta[I]);
        }
    });
    delta
}

/// L of a query and what its sums are multiplied by, from the largest exponent and the sum of the weights.
#[inline(always)]
pub(super) fn weights_of(max: f32, sum: f32) -> [f32; 2] {
    // of a row that sees nothing every weight is exp(−∞)
    if sum > 0.0 { [max + log2(sum), rcp(sum)] } else { [f32::INFINITY, 0.0] }
}

/// The heads of a block, and where their scores and stats are.
#[inlined]
impl<T: Element> Dense<T> {
    fn mask(&self) -> Mask {
        Mask { q_len: self.q_len, kv_len: self.kv_len, causal: self.causal != 0 }
    }

    /// As [`stats_at`].
    fn stats_at(&self, head: u32, heads: u32, i: u32) -> [*mut f32; 2] {
        stats_at(self.stats, self.q_len, [head, heads], i)
    }

    /// The score of key `j` and query `i`, and the distance of keys.
    fn scores_at(&self, head: u32, j: u32, i: u32) -> (*mut f32, u32) {
        let (rows, keys) = (self.q_len.next_multiple_of(ROWS), self.kv_len.next_multiple_of(ROWS));
        (self.scores.wrapping_add(((head * keys + j) * rows + i) as usize), rows)
    }
}

/// The tiles of a block of queries and this part of them, of as many parts as the grid along z.
#[inline(always)]
fn part_of([begin, end]: [u32; 2]) -> [u32; 2] {
    let (part, parts, tiles) =
        (thread::block_idx_z(), thread::grid_dim_z().max(1), (end - begin).div_ceil(ROWS));
    [part, part + 1].map(|part| opaque(begin + tiles * part / parts * ROWS))
}

/// # Safety
/// As the kernels below; `buffers` holds two times [`BUFFER`] elements.
#[inline(always)]
unsafe fn scores<T: Element>(p: Dense<T>, buffers: Shared<f32>) {
    // SAFETY: heads belong to groups, and there are heads.
    let OfQueries { first, head, heads, batch, h } = unsafe {
        not_zero(p.group);
        OfQueries::new(p.num_q_heads)
    };
    let q = Head::new(p.q, p.q_strides, [batch, h], p.q_len, p.head_dim);
    let k = Head::new(p.k, p.k_strides, [batch, h / p.group], p.kv_len, p.head_dim);
    let work = Keys(p.mask());
    let scores = |tile: u32| Pair { a: (q, first), b: (k, tile), work };
    let mut pipe = Pipe { buffers, side: 0 };
    let (mut max, mut sum) = ([f32::NEG_INFINITY; 8], [0.0f32; 8]);
    // SAFETY: the block's rows and head.
    let [mut tile, end] = part_of(unsafe { work.tiles(h, first) });
    if tile < end {
        // SAFETY: there are a query and a key.
        unsafe { scores(tile).put(buffers, scores(tile).load(0)) };
    }
    while tile < end {
        let mut s = [[0.0f32; 4]; 8];
        // SAFETY: all threads run the same loop.
        unsafe { products(&mut s, &mut pipe, scores(tile), scores(tile + ROWS)) };
        let place = Place::new();
        // SAFETY: a tile of the block.
        let seen = unsafe { work.seen(place, first, tile) };
        let scale = p.scale * core::f32::consts::LOG2_E;
        unroll!(I < 8 => {
            let mut next = max[I];
            unroll!(J < 4 => {
                s[I][J] = if Keys::sees(seen, I as u32, J as u32) { s[I][J] * scale } else { f32::NEG_INFINITY };
                next = next.max(s[I][J]);
            });
            // SAFETY: all lanes are here.
            next = unsafe { Max.over::<16>(next) };
            let base = base(next);
            sum[I] *= exp2(max[I] - base);
            max[I] = next;
            unroll!(J < 4 => sum[I] += exp2(s[I][J] - base));
        });
        unroll!(J < 4 => {
            let (to, _) = p.scores_at(head, tile + place.tx * 4 + J as u32, first + place.row);
            // SAFETY: keys and queries of a tile, also past the last ones, and this thread's own; queries begin at multiples of eight.
            unsafe {
                f32::store4(to, [s[0][J], s[1][J], s[2][J], s[3][J]]);
                f32::store4(to.add(4), [s[4][J], s[5][J], s[6][J], s[7][J]]);
            }
        });
        tile += ROWS;
    }
    let (place, part, parts) = (Place::new(), thread::block_idx_z(), thread::grid_dim_z());
    let rows = p.q_len.next_multiple_of(ROWS);
    let count = (heads * rows) as usize;
    let mut delta = [0.0f32; 8];
    if part == 0 {
        let dout = Head::new(p.dout, p.dout_strides, [batch, h], p.q_len, p.head_dim);
        let out = Head::new(p.out, p.out_strides, [batch, h], p.q_len, p.head_dim);
        // SAFETY: all lanes are here; a block has a query.
        delta = unsafe { deltas(dout, out, first) };
    }
    unroll!(I < 8 => {
        // SAFETY: all lanes are here; stats and parts have a row for each of the block's queries, also past the last one.
        unsafe {
            let total = Sum.over::<16>(sum[I]);
            if place.tx == 0 {
                let query = first + place.row + I as u32;
                let [l, of_delta] = p.stats_at(head, heads, query);
                if part == 0 {
                    *of_delta = delta[I];
                }
                if parts == 1 {
                    *l = weights_of(max[I], total)[0];
                } else {
                    let own = (head * rows + query) as usize + 2 * part as usize * count;
                    (*p.part_stats.add(own), *p.part_stats.add(own + count)) = (max[I], total);
                }
            }
        }
    });
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn merge_parts(p: Merge) {
    let i = thread::index_1d();
    if i >= p.count {
        return;
    }
    // SAFETY: the query is inside stats and the parts.
    unsafe {
        let at = |part: u32, state: u32| p.part_stats.add(((2 * part + state) * p.count + i) as usize);
        let (mut max, mut sum, mut part) = (f32::NEG_INFINITY, 0.0, 0);
        while part < p.parts {
            max = max.max(f32::load(at(part, 0)));
            part += 1;
        }
        part = 0;
        while part < p.parts {
            sum = fma(exp2(f32::load(at(part, 0)) - base(max)), f32::load(at(part, 1)), sum);
            part += 1;
        }
        *p.stats.add(i as usize) = weights_of(max, sum)[0];
    }
}

/// # Safety
/// As the kernels below; `buffers` holds two times [`BUFFER`] elements, `tile_of_s` [`TILE`]. `work` has the block's tiles of queries.
#[inline(always)]
unsafe fn of_keys<T: Element, const G: usize>(
    p: Dense<T>,
    work: Queries,
    buffers: Shared<f32>,
    tile_of_s: Shared<f32>,
) {
    // SAFETY: heads belong to groups, and there are heads; groups are divided into some parts.
    let OfKeys { first, kv_head, kv_heads, batch, kv, split } =
        unsafe { OfKeys::new(p.num_q_heads, p.group, p.splits) };
    let v = Head::new(p.v, p.v_strides, [batch, kv], p.kv_len, p.head_dim);

    let mut pipe = Pipe { buffers, side: 0 };
    let (mut dk, mut dv) = ([[[0.0f32; 4]; G]; 8], [[[0.0f32; 4]; G]; 8]);
    let members = p.group / p.splits;
    let mut member = 0;
    while member < members {
        let h = kv * p.group + split * members + member;
        let q = Head::new(p.q, p.q_strides, [batch, h], p.q_len, p.head_dim);
        let dout = Head::new(p.dout, p.dout_strides, [batch, h], p.q_len, p.head_dim);
        let head = batch * p.num_q_heads + h;
        let gradients = |tile: u32| Rows::<T, _, G>(dout, tile, work);
        // SAFETY: the block's rows, and a head of theirs.
        let [mut tile, end] = unsafe { work.tiles(h, first) };
        if tile < end {
            // SAFETY: there are a query and a key. Nobody reads this buffer: the last product read the other one.
            unsafe { gradients(tile).put(pipe.read(), gradients(tile).load(0)) };
        }
        while tile < end {
            let weights = Pair { a: (v, first), b: (dout, tile), work };
            let queries = Rows::<T, _, G>(q, tile, work);
            let heads = kv_heads * p.group;
            let place = Place::new();
            // where scores and stats are is computed when it is needed: registers are short meanwhile
            let (at, step) = p.scores_at(head, first + place.row, opaque(tile) + place.tx * 4);
            let mut s = [[0.0f32; 4]; 8];
            // SAFETY: the kernel of scores has written those of visited tiles, also past the last query and key; a thread reads its own
            // before it writes them. Stats have a row for each query of the tile, and these start at multiples of four.
            unsafe {
                unroll!(I < 8 => s[I] = read4(at.add((I as u32 * opaque(step)) as usize)));
                let l = f32::load4(p.stats_at(head, heads, opaque(tile) + place.tx * 4)[0]);
                unroll!(J < 4 => { unroll!(I < 8 => { s[I][J] = exp2(s[I][J] - l[J]); }); });
            }
            let mut dp = [[0.0f32; 4]; 8];
            // SAFETY: all threads run the same loop. After the barrier nobody reads the tile.
            unsafe {
                thread::sync_threads();
                store_tile(tile_of_s, &s, place);
                accumulate(&mut dv, tile_of_s, &mut pipe, gradients(tile), weights);
                products(&mut dp, &mut pipe, weights, queries);
            }
            let place = Place::new();
            // SAFETY: stats has a second row for the same queries, also past the last one.
            let delta = unsafe { f32::load4(p.stats_at(head, heads, opaque(tile) + place.tx * 4)[1]) };
            unroll!(J < 4 => {
                let at = tile_at(place, J as u32);
                // SAFETY: this thread's own elements of the tile.
                let weights = unsafe { [tile_of_s.at(at).get4(0), tile_of_s.at(at ^ 4).get4(0)] };
                unroll!(I < 8 => { dp[I][J] = weights[I / 4][I % 4] * (dp[I][J] - delta[J]) * p.scale; });
            });
            let (at, step) = p.scores_at(head, first + place.row, opaque(tile) + place.tx * 4);
            // SAFETY: this thread's own scores. All threads run the same loop, and each has read its own elements of the tile alone since
            // the last barrier.
            unsafe {
                unroll!(I < 8 => f32::store4(at.add((I as u32 * opaque(step)) as usize), dp[I]));
                store_tile(tile_of_s, &dp, place);
                accumulate(&mut dk, tile_of_s, &mut pipe, queries, gradients(tile + ROWS));
            }
            tile += ROWS;
        }
        member += 1;
    }
    let (rows, place) = ((first, p.kv_len, p.head_dim), Place::new());
    // SAFETY: this block's rows of the gradients, or of its own part of them.
    unsafe {
        if p.kv_parts.is_null() {
            write(p.dk, p.dk_strides.offset(batch, kv), p.dk_strides.row, &dk, rows, place);
            write(p.dv, p.dv_strides.offset(batch, kv), p.dv_strides.row, &dv, rows, place);
        } else {
            let head = p.part_rows as usize * p.head_dim as usize;
            let own =
                (thread::block_idx_z() * p.splits + split) as usize * kv_heads as usize + kv_head as usize;
            let parts = (thread::grid_dim_z() * p.splits) as usize;
            let to = [own, parts * kv_heads as usize + own].map(|own| p.kv_parts.add(own * head));
            if p.adds != 0 {
                add(to[0], p.head_dim, &mut dk, rows, place);
                add(to[1], p.head_dim, &mut dv, rows, place);
            }
            write(to[0], 0, p.head_dim, &dk, rows, place);
            write(to[1], 0, p.head_dim, &dv, rows, place);
        }
    }
}

/// Adds what [`write`] has written to a thread's part of a gradient.
///
/// # Safety
/// As [`write`].
#[inline(always)]
unsafe fn add<const G: usize>(
    from: *const f32,
    stride: u32,
    acc: &mut [[[f32; 4]; G]; 8],
    (first, len, head_dim): (u32, u32, u32),
    Place { tx, row, .. }: Place,
) {
    unroll!(I < 8 => {
        let r = first + row + I as u32;
        unroll!(H < 2 => {
            let c = tx * 4 + 64 * H as u32;
            if H < G && r < len && c < head_dim {
                // SAFETY: row and column are the head's; head_dim and strides are multiples of eight.
                let before = unsafe { read4(from.add((r * stride + c) as usize)) };
                unroll!(E < 4 => acc[I][H][E] += before[E]);
            }
        });
    });
}

/// # Safety
/// As [`of_keys`].
#[inline(always)]
unsafe fn of_queries<T: Element, const G: usize>(p: Dense<T>, buffers: Shared<f32>, tile_of_s: Shared<f32>) {
    // SAFETY: heads belong to groups, and there are heads.
    let OfQueries { first, head, heads, batch, h } = unsafe {
        not_zero(p.group);
        OfQueries::new(p.num_q_heads)
    };
    let k = Head::new(p.k, p.k_strides, [batch, h / p.group], p.kv_len, p.head_dim);
    let work = Keys(p.mask());
    let keys = |tile: u32| Rows::<T, _, G>(k, tile, work);
    // a thread's vectors of a tile, as they lie in memory
    let load = |tile: u32| {
        let (tid, mut vectors) = (read_indices()[0], [[0.0f32; 4]; 8]);
        let (at, step) = p.scores_at(head, tile + tid / 16, first + tid % 16 * 4);
        // SAFETY: the kernel of keys has written those of visited tiles, also past the last query and key.
        unroll!(I < 8 => vectors[I] = unsafe { f32::load4(at.add((8 * I as u32 * opaque(step)) as usize)) });
        vectors
    };
    let mut pipe = Pipe { buffers, side: 0 };
    let mut dq = [[[0.0f32; 4]; G]; 8];
    let mut vectors = [[0.0f32; 4]; 8];
    // SAFETY: the block's rows and head.
    let [mut tile, end] = part_of(unsafe { work.tiles(h, first) });
    if tile < end {
        // SAFETY: there are a query and a key.
        unsafe { keys(tile).put(buffers, keys(tile).load(0)) };
        vectors = load(tile);
    }
    while tile < end {
        let tid = read_indices()[0];
        // SAFETY: all threads run the same loop. After the barrier nobody reads the tile, of which each thread has its own elements: rows
        // lie as `tile_at` has them.
        unsafe {
            thread::sync_threads();
            unroll!(I < 8 => {
                let column = 8 * I as u32 + tid / 16;
                tile_of_s.at(column * ROWS + ((tid % 16 * 4) ^ (column / 4 % 8 * 4))).set4(0, vectors[I]);
            });
        }
        if tile + ROWS < end {
            vectors = load(tile + ROWS);
        }
        // SAFETY: all threads run the same loop.
        unsafe { accumulate(&mut dq, tile_of_s, &mut pipe, keys(tile), keys(tile + ROWS)) };
        tile += ROWS;
    }
    let (rows, place, part) = ((first, p.q_len, p.head_dim), Place::new(), thread::block_idx_z());
    // SAFETY: this block's rows of dq or of its own part of it.
    unsafe {
        if thread::grid_dim_z() == 1 {
            write(p.dq, p.dq_strides.offset(batch, h), p.dq_strides.row, &dq, rows, place);
        } else {
            let own = (part * heads + head) as usize * p.q_len as usize * p.head_dim as usize;
            write(p.q_parts.add(own), 0, p.head_dim, &dq, rows, place);
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
    ($($name:ident $ty:ty: $scores:ident $sum:ident, [$($q:ident $kv:ident $g:literal),*];)*) => {
        /// # Safety
        /// [`Merge`] constrains the pointers, which are valid on the launching stream; launched as [`Kernels`] says.
        #[kernel(block = MERGED, min_blocks = 8)]
        pub unsafe fn attention_backward_merge(p: Merge) {
            // SAFETY: this kernel's contract is the body's.
            unsafe { merge_parts(p) }
        }

        $(
            /// # Safety
            /// [`Dense`] says what holds of the pointers, which are valid on the launching stream and reach fewer than 2³¹ elements;
            /// launched as [`Kernels`] says.
            #[kernel(block = THREADS, min_blocks = 4, shared(buffers: [f32; 2 * BUFFER]), shuffles = 96)]
            pub unsafe fn $scores(p: Dense<$ty>) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { scores(p, buffers) }
            }

            $(
                /// # Safety
                /// As the kernel of scores, which has run, as has that of merges if there are parts.
                #[kernel(block = THREADS, min_blocks = 2, shared(buffers: [f32; 2 * BUFFER], tile: [f32; TILE]))]
                pub unsafe fn $kv(p: Dense<$ty>) {
                    let (first, part) = (thread::block_idx_y() * ROWS, thread::block_idx_z() * p.part_len);
                    let work = Queries::new(p.mask(), first, part, part + p.part_len);
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { of_keys::<$ty, $g>(p, work, buffers, tile) }
                }

                /// # Safety
                /// As the kernel of scores; the kernel of keys has run.
                #[kernel(block = THREADS, min_blocks = 2, shared(buffers: [f32; 2 * BUFFER], tile: [f32; TILE]))]
                pub unsafe fn $q(p: Dense<$ty>) {
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { of_queries::<$ty, $g>(p, buffers, tile) }
                }
            )*

            /// # Safety
            /// [`Sums`] says what holds of the pointers, as for the kernel of scores; the kernel whose parts they are has run.
            #[kernel(block = SUM_THREADS, min_blocks = 5)]
            pub unsafe fn $sum(p: Sums<$ty>) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { sum_parts(p) }
            }

            /// The kernels of this element type.
            pub const $name: Kernels<$ty> =
                Kernels { scores: $scores, merge: attention_backward_merge, kv: [$($kv),*], q: [$($q),*], sum: $sum };
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] =
            &[attention_backward_merge.info(), $($scores.info(), $($q.info(), $kv.info(),)* $sum.info(),)*];
    };
}

kernels! {
    OF_F32 f32: attention_backward_scores_f32 attention_backward_sum_f32, [
        attention_backward_q_d64_f32 attention_backward_kv_d64_f32 1,
        attention_backward_q_d128_f32 attention_backward_kv_d128_f32 2
    ];
    OF_F16 F16: attention_backward_scores_f16 attention_backward_sum_f16, [
        attention_backward_q_d64_f16 attention_backward_kv_d64_f16 1,
        attention_backward_q_d128_f16 attention_backward_kv_d128_f16 2
    ];
}
