//! The gradients of block-sparse attention: [`backward`](crate::attention::backward) over listed tiles.
//!
//! A block owns 64 queries, or keys, and visits the tiles that a list has for them and for a query head's mask. A tile is four groups of
//! 16 columns, which may be anywhere in the sequence, and the pattern of each with 16 of the rows; so blocks of all sizes of masks cost
//! what they cover. The list of keys' rows is that of the transposed mask. Without a listed tile gradients are 0.
//!
//! ```text
//! dQ = dS K, L, Δ             a block: 64 queries of a query head     (q)
//! dK = dSᵀ Q, dV = Pᵀ dO      a block: 64 keys of a kv head           (kv)
//! ```
//!
//! Both compute S and dP, as a matrix of scores would have all keys for each query. dQ is linear in P, so its kernel keeps a running maximum
//! and sum as the forward kernel does, rescales dQ, and leaves L and Δ to the kernel of dK and dV.

use super::lists::TILE_WORDS;
use crate::attention::backward::{
    BUFFER, Head, OfKeys, OfQueries, Operands, Pair, Pipe, Place, ROWS, Rows, THREADS, TILE, Work,
    accumulate, deltas, products, stats_at, store_tile, tile_at, weights_of, write,
};
use crate::attention::merge::base;
use crate::attention::tensors::{Strides, not_zero};
use crate::device::element::load_word;
use crate::device::math::exp2;
use crate::device::unroll::unroll;
use crate::device::{Element, F16, Shared};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// The parameters of the kernels. Strides are multiples of eight elements, as are first elements.
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
    /// Parts of dk and dv: [2, splits, b · num_kv_heads, kv_len, head_dim], if there is more than one.
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
    pub q_len: u32,
    pub kv_len: u32,
    pub head_dim: u32,
    pub scale: f32,
    /// scale · log2 e
    pub scale_log2: f32,
    /// As [`Listed`]'s
    pub starts: *const u32,
    pub tiles: *const u32,
    pub patterns: *const u32,
    pub sharing: u32,
}

/// The kernels of one element type.
#[derive(Clone, Copy)]
pub struct Kernels<T> {
    /// For head_dim ≤ 64 and ≤ 128, with the list of queries' rows: grid = [b · num_q_heads, ceil(q_len / ROWS)]
    pub q: [KernelSpec<Backward<T>>; 2],
    /// For head_dim ≤ 64 and ≤ 128, with the list of keys' rows: grid = [b · num_kv_heads · splits, ceil(kv_len / ROWS)]
    pub kv: [KernelSpec<Backward<T>>; 2],
}

/// The tiles of a list.
#[derive(Clone, Copy)]
struct Listed {
    /// Where the tiles of each block of rows begin, and after the last one: [mask heads · blocks + 1]
    starts: *const u32,
    /// [`TILE_WORDS`] words for each tile and for one more, with columns below the length
    tiles: *const u32,
    /// 8 words for each pattern that the tiles name; of the list of keys' rows without queries past the end
    patterns: *const u32,
    /// Query heads of a mask head.
    sharing: u32,
    /// Blocks of 64 rows.
    blocks: u32,
}

/// A tile is where its words begin.
#[inlined]
impl Work for Listed {
    const STEP: u32 = TILE_WORDS;
    /// Bit 8j + i: row i and column j.
    type Seen = u32;

    unsafe fn tiles(self, head: u32, first: u32) -> [u32; 2] {
        // SAFETY: a mask head is shared by some heads; the list has this mask head and block, and an end after it.
        unsafe {
            not_zero(self.sharing);
            let start = self.starts.add((head / self.sharing * self.blocks + first / ROWS) as usize);
            [load_word(start) * TILE_WORDS, load_word(start.add(1)) * TILE_WORDS]
        }
    }

    unsafe fn column(self, tile: u32, [a, b, c]: [u32; 3]) -> u32 {
        let c = a + b + c;
        // SAFETY: a tile has a word for each group of 16 columns; one more follows the last tile.
        let first = unsafe { load_word(self.tiles.add((tile + c / 16) as usize)) };
        first + c % 16
    }

    unsafe fn seen(self, Place { tx, row }: Place, _: u32, tile: u32) -> u32 {
        // SAFETY: after the groups a tile has a pattern for each 16 rows and group, which has a word for each 8 rows and 4 columns.
        unsafe {
            let pattern = load_word(self.tiles.add((tile + 4 + row / 16 * 4 + tx / 4) as usize));
            load_word(self.patterns.add((pattern * 8 + row / 8 % 2 * 4 + tx % 4) as usize))
        }
    }

    fn sees(seen: u32, i: u32, j: u32) -> bool {
        seen >> (8 * j + i) & 1 == 1
    }
}

impl Listed {
    #[inline(always)]
    fn new<T: Copy>(p: &Backward<T>) -> Self {
        let Backward { starts, tiles, patterns, sharing, .. } = *p;
        Self { starts, tiles, patterns, sharing, blocks: thread::grid_dim_y() }
    }
}

/// The heads of a block, and where L and Δ are.
#[inlined]
impl<T: Element> Backward<T> {
    fn head(&self, x: *const T, strides: Strides, batch: u32, head: u32, len: u32) -> Head<T> {
        Head::new(x, strides, [batch, head], len, self.head_dim)
    }

    /// As [`stats_at`].
    fn stats_at(&self, head: u32, heads: u32, i: u32) -> [*mut f32; 2] {
        stats_at(self.stats, self.q_len, [head, heads], i)
    }

    /// L and Δ of the first of a thread's four columns of a tile of queries. Read when needed, because registers are short meanwhile.
    ///
    /// # Safety
    /// A tile of the block.
    unsafe fn stats_of(
        &self,
        work: Listed,
        tile: u32,
        [head, heads]: [u32; 2],
        place: Place,
    ) -> [*mut f32; 2] {
        // SAFETY: this function's contract.
        self.stats_at(head, heads, unsafe { work.column(tile, [place.tx * 4, 0, 0]) })
    }
}

/// # Safety
/// As the kernels below; `buffers` holds two times [`BUFFER`] elements, `tile_of_s` [`TILE`]. `work` has the block's tiles of keys.
#[inline(always)]
unsafe fn of_queries<T: Element, const G: usize>(
    p: Backward<T>,
    work: Listed,
    buffers: Shared<f32>,
    tile_of_s: Shared<f32>,
) {
    // SAFETY: heads belong to groups, and there are heads.
    let OfQueries { first, head, heads, batch, h } = unsafe {
        not_zero(p.group);
        OfQueries::new(p.num_q_heads)
    };
    let q = p.head(p.q, p.q_strides, batch, h, p.q_len);
    let dout = p.head(p.dout, p.dout_strides, batch, h, p.q_len);
    let out = p.head(p.out, p.out_strides, batch, h, p.q_len);
    let k = p.head(p.k, p.k_strides, batch, h / p.group, p.kv_len);
    let v = p.head(p.v, p.v_strides, batch, h / p.group, p.kv_len);

    let (mut max, mut sum) = ([f32::NEG_INFINITY; 8], [0.0f32; 8]);
    // SAFETY: a block has a query; all lanes are here.
    let delta = unsafe { deltas(dout, out, first) };

    let scores = |tile: u32| Pair { a: (q, first), b: (k, tile), work };
    let mut pipe = Pipe { buffers, side: 0 };
    let mut dq = [[[0.0f32; 4]; G]; 8];
    // SAFETY: the block's rows and head.
    let [mut tile, end] = unsafe { work.tiles(h, first) };
    if tile < end {
        // SAFETY: there are a query and a key.
        unsafe { scores(tile).put(buffers, scores(tile).load(0)) };
    }
    while tile < end {
        let (mut s, mut dp) = ([[0.0f32; 4]; 8], [[0.0f32; 4]; 8]);
        let weights = Pair { a: (dout, first), b: (v, tile), work };
        let keys = Rows::<T, _, G>(k, tile, work);
        // SAFETY: all threads run the same loop.
        unsafe { products(&mut s, &mut pipe, scores(tile), weights) };
        // SAFETY: a tile of the block.
        let seen = unsafe { work.seen(Place::new(), first, tile) };
        unroll!(I < 8 => {
            let mut next = max[I];
            unroll!(J < 4 => {
                s[I][J] = if Listed::sees(seen, I as u32, J as u32) { s[I][J] * p.scale_log2 } else { f32::NEG_INFINITY };
                next = next.max(s[I][J]);
            });
            // SAFETY: all lanes are here.
            next = unsafe { Max.over::<16>(next) };
            let base = base(next);
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
            accumulate(&mut dq, tile_of_s, &mut pipe, keys, scores(tile + Listed::STEP));
        }
        tile += Listed::STEP;
    }

    let place = Place::new();
    unroll!(I < 8 => {
        // SAFETY: all lanes are here; stats has a row for each of the block's queries, also past the last one.
        unsafe {
            let [l, factor] = weights_of(max[I], Sum.over::<16>(sum[I]));
            unroll!(H < 2 => if H < G { unroll!(E < 4 => { dq[I][H][E] *= factor; }); });
            if place.tx == 0 {
                let [to_l, to_delta] = p.stats_at(head, heads, first + place.row + I as u32);
                (*to_l, *to_delta) = (l, delta[I]);
            }
        }
    });
    // SAFETY: this block's rows of dq.
    unsafe {
        write(
            p.dq,
            p.dq_strides.offset(batch, h),
            p.dq_strides.row,
            &dq,
            (first, p.q_len, p.head_dim),
            place,
        );
    }
}

/// # Safety
/// As [`of_queries`], with the block's tiles of queries.
#[inline(always)]
unsafe fn of_keys<T: Element, const G: usize>(
    p: Backward<T>,
    work: Listed,
    buffers: Shared<f32>,
    tile_of_s: Shared<f32>,
) {
    // SAFETY: heads belong to groups, and there are heads; groups are divided into some parts.
    let OfKeys { first, kv_head, kv_heads, batch, kv, split } =
        unsafe { OfKeys::new(p.num_q_heads, p.group, p.splits) };
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
            let (queries, gradients) = (Rows::<T, _, G>(q, tile, work), Rows::<T, _, G>(dout, tile, work));
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
                    let sees = Listed::sees(seen, I as u32, J as u32);
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
                accumulate(&mut dk, tile_of_s, &mut pipe, queries, scores(tile + Listed::STEP));
            }
            tile += Listed::STEP;
        }
        member += 1;
    }
    let (rows, place) = ((first, p.kv_len, p.head_dim), Place::new());
    // SAFETY: this block's rows of the gradients, or of its own part of them.
    unsafe {
        if p.splits == 1 {
            write(p.dk, p.dk_strides.offset(batch, kv), p.dk_strides.row, &dk, rows, place);
            write(p.dv, p.dv_strides.offset(batch, kv), p.dv_strides.row, &dv, rows, place);
        } else {
            let head = p.kv_len as usize * p.head_dim as usize;
            let own = split as usize * kv_heads as usize + kv_head as usize;
            let to = p.partial.add(own * head);
            write(to, 0, p.head_dim, &dk, rows, place);
            write(to.add(p.splits as usize * kv_heads as usize * head), 0, p.head_dim, &dv, rows, place);
        }
    }
}

macro_rules! kernels {
    ($($name:ident $ty:ty: [$($q:ident $kv:ident $g:literal),*];)*) => {
        $(
            $(
                /// # Safety
                /// [`Backward`] and the fields of [`Listed`] say what holds of the pointers, which are valid on the launching stream and
                /// reach fewer than 2³¹ elements; launched as [`Kernels`] says.
                #[kernel(block = THREADS, min_blocks = 2, shared(buffers: [f32; 2 * BUFFER], tile: [f32; TILE]), shuffles = 96)]
                pub unsafe fn $q(p: Backward<$ty>) {
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { of_queries::<$ty, $g>(p, Listed::new(&p), buffers, tile) }
                }

                /// # Safety
                /// As the kernel of queries, which has run.
                #[kernel(block = THREADS, min_blocks = 2, shared(buffers: [f32; 2 * BUFFER], tile: [f32; TILE]))]
                pub unsafe fn $kv(p: Backward<$ty>) {
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { of_keys::<$ty, $g>(p, Listed::new(&p), buffers, tile) }
                }
            )*

            /// The kernels of this element type.
            pub const $name: Kernels<$ty> = Kernels { q: [$($q),*], kv: [$($kv),*] };
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($($q.info(), $kv.info(),)*)*];
    };
}

kernels! {
    OF_F32 f32: [
        attention_sparse_backward_q_d64_f32 attention_sparse_backward_kv_d64_f32 1,
        attention_sparse_backward_q_d128_f32 attention_sparse_backward_kv_d128_f32 2
    ];
    OF_F16 F16: [
        attention_sparse_backward_q_d64_f16 attention_sparse_backward_kv_d64_f16 1,
        attention_sparse_backward_q_d128_f16 attention_sparse_backward_kv_d128_f16 2
    ];
}
