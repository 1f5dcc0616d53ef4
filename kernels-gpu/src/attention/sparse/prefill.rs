//! Many queries: [`prefill`](crate::attention::prefill) over the tiles that an item lists.
//!
//! Differences from the dense kernel:
//! 1. A tile's four groups of keys may be anywhere in the sequence, and its masks come from a table of patterns.
//! 2. A block has four, two or one warps of 16 queries, and as many rows in its item's tiles. Fewer warps list fewer groups
//!    that some of them do not attend to, but read more of K and V for each multiply-add.
//! 3. A warp whose queries attend to no key of a tile helps to load it, and computes no scores and no values.
//! 4. A block of one warp has one chunk buffer and synchronises the warp only. So its shared memory is small enough for
//!    eight such blocks of a multiprocessor, and loads have as many registers as they need.
//! 5. Items come longest first. The items of a row of tiles that was split leave partial results, which a second kernel
//!    merges (Milakov & Gimelshein 2018, section 3.1).

use super::lists::{ITEM_WORDS, NO_SLOT, SPLIT_WORDS, tile_words};
use crate::attention::merge::{merge, partial_elements};
use crate::attention::prefill::{
    PAD, Place, SHUFFLES, Scratch, THREADS, Work, bm, bn, chunks_elements, half_elements, prefill,
    read_indices, sums_elements, thread_index, threads,
};
use crate::attention::tensors::{Strides, not_zero, tensors};
use crate::device::element::{load_4_words, load_word, load_word_at};
use crate::device::unroll::unroll;
use crate::device::{Element, F16};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// Columns of a tile's scores that a thread computes: tiles of 64 keys, as in the list.
pub(super) const KEYS: usize = 4;

/// The parameters of the kernels: fields without a comment are as [`Prefill`](crate::attention::Prefill) has them.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct SparsePrefill<Q, Kv> {
    pub out: *mut Q,
    /// [b · sharing, slots, 16 · warps of a block, partial_elements(D)], disjoint from all others
    pub partial: *mut f32,
    /// [`ITEM_WORDS`] words for each block from `first_item` on, with first queries below q_len; 16-byte aligned
    pub items: *const u32,
    /// [`tile_words`] for each tile of the items and one more, with keys up to last_key; 16-byte aligned
    pub tiles: *const u32,
    /// 8 words for each pattern of the tiles; 16-byte aligned
    pub patterns: *const u32,
    pub q: *const Q,
    pub k: *const Kv,
    pub v: *const Kv,
    pub out_strides: Strides,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub v_strides: Strides,
    pub first_item: u32,
    /// Number of those query heads of a mask head that are along the grid's z.
    pub parts: u32,
    /// Number of partial results of all items.
    pub slots: u32,
    /// Number of query heads of a mask head.
    pub sharing: u32,
    pub group: u32,
    pub q_len: u32,
    /// The last row of k and v.
    pub last_key: u32,
    pub head_dim: u32,
    pub scale_log2: f32,
}

/// The parameters of the kernels that merge partial results: fields without a comment are as [`SparsePrefill`] has them.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Combine<T> {
    /// [b, num_q_heads, q_len, head_dim]
    pub out: *mut T,
    /// As the previous kernels have written it.
    pub partial: *const f32,
    /// [`SPLIT_WORDS`] words for each split, 16-byte aligned
    pub splits: *const u32,
    pub out_strides: Strides,
    pub slots: u32,
    pub sharing: u32,
    pub q_len: u32,
    pub head_dim: u32,
    /// The head_dim D of the previous kernels.
    pub d: u32,
}

/// An item of a list for blocks of so many warps. Fields that the loops do not need are reloaded where they are used, to save registers for the tiles.
#[derive(Clone, Copy)]
struct Listed<const WARPS: u32> {
    items: *const u32,
    tiles: *const u32,
    patterns: *const u32,
    partial: *mut f32,
    first_item: u32,
    slots: u32,
    parts: u32,
    /// Number of query heads of a mask head.
    sharing: u32,
    /// Padded head_dim.
    d: u32,
}

#[inlined]
impl<const WARPS: u32> Listed<WARPS> {
    /// The words of the item of block `y`.
    fn item(self, y: u32) -> *const u32 {
        self.items.wrapping_add(((self.first_item + y) * ITEM_WORDS) as usize)
    }

    /// The batch entry, and the query head among those of the mask head, of block `x` along the grid's x.
    fn batch_and_head(self, x: u32) -> [u32; 2] {
        let z = thread::block_idx_z();
        // SAFETY: the grid has a block, so there are query heads of a mask head.
        unsafe { not_zero(self.parts) };
        [z / self.parts, z % self.parts * thread::grid_dim_x() + x]
    }

    /// The words of a tile from word `word` on.
    fn words(self, tile: u32, word: u32) -> *const u32 {
        self.tiles.wrapping_add((tile + word) as usize)
    }

    /// The four patterns of a tile for the thread's warp.
    ///
    /// # Safety
    /// As [`Work::sees`].
    unsafe fn seen(self, place: Place, tile: u32) -> [u32; 4] {
        // SAFETY: the list has all tiles of the item, each on a 16-byte boundary.
        unsafe { load_4_words(self.words(tile, 4 + place.tid / 32 * 4)) }
    }
}

/// A tile is identified by the index of its first word: tile numbers would have to be multiplied for each access.
#[inlined]
impl<const WARPS: u32> Work<KEYS> for Listed<WARPS> {
    const STEP: u32 = tile_words(WARPS);
    const LISTED: bool = true;

    fn place(self) -> Place {
        let [_, x, y] = read_indices();
        let tid = thread_index::<WARPS>();
        // SAFETY: the block's own item.
        let [head, first, ..] = unsafe { load_4_words(self.item(y)) };
        let [batch, of_mask] = self.batch_and_head(x);
        Place::new(tid, batch, head * self.sharing + of_mask, first)
    }

    fn begin(self) -> u32 {
        // SAFETY: the block's own item.
        unsafe { load_word(self.item(thread::block_idx_y()).add(2)) * Self::STEP }
    }

    fn end(self) -> u32 {
        let [_, _, y] = read_indices();
        // SAFETY: the block's own item.
        let [_, _, start, tiles] = unsafe { load_4_words(self.item(y)) };
        (start + tiles) * Self::STEP
    }

    fn keys(self, _: u32) -> u32 {
        16 * KEYS as u32
    }

    unsafe fn key(self, tile: u32, row: u32) -> u32 {
        // SAFETY: the list has one tile after the last; rows are below 16 KEYS.
        unsafe { load_word_at(self.tiles, tile + row / 16 % KEYS as u32) + row % 16 }
    }

    unsafe fn key_of_group(self, tile: u32, group: u32, row: u32) -> u32 {
        // SAFETY: the list has one tile after the last, each on a 16-byte boundary; a tile has four groups.
        unsafe { load_4_words(self.words(tile, 0))[group as usize % 4] + row }
    }

    unsafe fn sees(self, place: Place, tile: u32) -> bool {
        if WARPS == 1 {
            return true; // it is the warp's own list
        }
        // SAFETY: the block has this tile.
        let [a, b, c, d] = unsafe { self.seen(place, tile) };
        a | b | c | d != 0
    }

    unsafe fn mask(self, s: &mut [[f32; KEYS]; 8], place: Place, tile: u32) {
        // SAFETY: the block has this tile; a pattern has a byte for each lane.
        unsafe {
            let seen = self.seen(place, tile);
            if seen == [1; 4] {
                return; // the whole block
            }
            let [a, b, c, d] = seen;
            let pattern = match place.tx / 4 {
                0 => a,
                1 => b,
                2 => c,
                _ => d,
            };
            let bits = load_word(self.patterns.add((pattern * 8 + place.ty * 4 + place.tx % 4) as usize));
            unroll!(J < 4 => {
                unroll!(I < 8 => {
                    if bits >> (8 * J + I) & 1 == 0 {
                        s[I][J] = f32::NEG_INFINITY;
                    }
                });
            });
        }
    }

    unsafe fn partial(self) -> Option<*mut f32> {
        let [_, x, y] = read_indices();
        // SAFETY: the block's own item.
        let slot = unsafe { load_word(self.item(y).add(4)) };
        let [batch, of_mask] = self.batch_and_head(x);
        let column = batch * self.sharing + of_mask;
        let record = (column * self.slots + slot) as usize * (bm(WARPS) * partial_elements(self.d)) as usize;
        (slot != NO_SLOT).then(|| self.partial.wrapping_add(record))
    }
}

macro_rules! kernels {
    ($($name:ident: $q:ty, $kv:ty, $warps:literal, $groups:literal;)*) => {
        $(
            /// # Safety
            /// [`SparsePrefill`] constrains the pointers, which are valid on the launching stream, and the numbers;
            /// launched as [`Kernels::prefill`](super::Kernels::prefill) says.
            #[kernel(
                block = threads($warps), min_blocks = min_blocks($warps, $groups), module = stringify!($name),
                shuffles = SHUFFLES,
                shared(
                    chunks: [f32; chunks_elements($warps, KEYS)], probabilities: [f32; half_elements($warps, KEYS)],
                    maxima: [f32; bm($warps)], sums: [f32; sums_elements($warps)]
                )
            )]
            pub unsafe fn $name(p: SparsePrefill<$q, $kv>) {
                let work = Listed::<$warps> {
                    items: p.items,
                    tiles: p.tiles,
                    patterns: p.patterns,
                    partial: p.partial,
                    first_item: p.first_item,
                    slots: p.slots,
                    parts: p.parts,
                    sharing: p.sharing,
                    d: 64 * $groups,
                };
                let scratch = Scratch { chunks, probabilities, maxima, sums };
                // SAFETY: the parameters fulfil `prefill`'s contract: the items' queries are below q_len, their keys up to
                // last_key.
                unsafe {
                    prefill::<_, _, _, $warps, $groups, 0, KEYS, { bm($warps) + PAD }, { bn(KEYS) + PAD }, _>(
                        tensors!(p, p.k, p.v), p.last_key, work, scratch,
                    )
                }
            }
        )*

        /// The kernels over tiles.
        pub const KERNELS: &[KernelInfo] = &[$($name.info()),*];
    };
}

/// Blocks that a multiprocessor has registers for: twelve warps, or eight for wide heads. With registers for twelve, two
/// registers of those are spilled.
const fn min_blocks(warps: u32, groups: u32) -> u32 {
    if groups == 1 { 12 / warps } else { 8 / warps }
}

kernels! {
    attention_sparse_d64_f32: f32, f32, 4, 1;
    attention_sparse_d64_f16: F16, F16, 4, 1;
    attention_sparse_d64_f32_f16: f32, F16, 4, 1;
    attention_sparse_d128_f32: f32, f32, 4, 2;
    attention_sparse_d128_f16: F16, F16, 4, 2;
    attention_sparse_d128_f32_f16: f32, F16, 4, 2;
    attention_sparse_rows32_d64_f32: f32, f32, 2, 1;
    attention_sparse_rows32_d64_f16: F16, F16, 2, 1;
    attention_sparse_rows32_d64_f32_f16: f32, F16, 2, 1;
    attention_sparse_rows32_d128_f32: f32, f32, 2, 2;
    attention_sparse_rows32_d128_f16: F16, F16, 2, 2;
    attention_sparse_rows32_d128_f32_f16: f32, F16, 2, 2;
    attention_sparse_rows16_d64_f32: f32, f32, 1, 1;
    attention_sparse_rows16_d64_f16: F16, F16, 1, 1;
    attention_sparse_rows16_d64_f32_f16: f32, F16, 1, 1;
    attention_sparse_rows16_d128_f32: f32, f32, 1, 2;
    attention_sparse_rows16_d128_f16: F16, F16, 1, 2;
    attention_sparse_rows16_d128_f32_f16: f32, F16, 1, 2;
}

/// For each number of warps in [`WARPS`](super::WARPS), and head_dim ≤ 64 and ≤ 128; as the others.
pub(super) const OF_F32: [[KernelSpec<SparsePrefill<f32, f32>>; 2]; 3] = [
    [attention_sparse_rows16_d64_f32, attention_sparse_rows16_d128_f32],
    [attention_sparse_rows32_d64_f32, attention_sparse_rows32_d128_f32],
    [attention_sparse_d64_f32, attention_sparse_d128_f32],
];
pub(super) const OF_F16: [[KernelSpec<SparsePrefill<F16, F16>>; 2]; 3] = [
    [attention_sparse_rows16_d64_f16, attention_sparse_rows16_d128_f16],
    [attention_sparse_rows32_d64_f16, attention_sparse_rows32_d128_f16],
    [attention_sparse_d64_f16, attention_sparse_d128_f16],
];
pub(super) const OF_F32_F16: [[KernelSpec<SparsePrefill<f32, F16>>; 2]; 3] = [
    [attention_sparse_rows16_d64_f32_f16, attention_sparse_rows16_d128_f32_f16],
    [attention_sparse_rows32_d64_f32_f16, attention_sparse_rows32_d128_f32_f16],
    [attention_sparse_d64_f32_f16, attention_sparse_d128_f32_f16],
];

/// # Safety
/// [`Combine`] constrains the pointers, which are valid on the launching stream, and the numbers; a block for each
/// split along x, for each of b · num_q_heads / mask heads along y, and for each query of a split along z.
#[inline(always)]
unsafe fn combine<T: Element>(p: Combine<T>) {
    let Combine { out, partial, splits, out_strides, slots, sharing, q_len, head_dim, d } = p;
    // SAFETY: the block's split is in the list, and its slots below `slots` hold records of so many rows. The row and the
    // column are inside out. The grid has a block, so there are query heads.
    unsafe {
        not_zero(sharing);
        let (x, column) = (thread::block_idx_y(), thread::thread_idx_x());
        let (split, row, rows) = (thread::block_idx_x(), thread::block_idx_z(), thread::grid_dim_z());
        let [head, first, slot, parts] = load_4_words(splits.add((split * SPLIT_WORDS) as usize));
        let i = first + row;
        if i >= q_len || column >= head_dim {
            return; // no barrier follows
        }
        let (rows, width) = (rows as usize, partial_elements(d) as usize);
        let records = partial.add(((x * slots + slot) as usize * rows + row as usize) * width);
        let value = merge(records, rows * width, parts, d, column);
        let head = head * sharing + x % sharing;
        *out.add((out_strides.offset(x / sharing, head) + i * out_strides.row + column) as usize) =
            T::from_f32(value);
    }
}

macro_rules! combine_kernels {
    ($($name:ident: $t:ty;)*) => {$(
        /// # Safety
        /// [`Combine`] constrains the pointers, which are valid on the launching stream, and the numbers; launched as
        /// [`Kernels::combine`](super::Kernels::combine) says.
        #[kernel(block = THREADS, min_blocks = 10, module = "attention_sparse_combine")]
        pub unsafe fn $name(p: Combine<$t>) {
            // SAFETY: the parameters and the grid fulfil the body's contract.
            unsafe { combine(p) }
        }
    )*};
}

combine_kernels! {
    attention_sparse_combine_f32: f32;
    attention_sparse_combine_f16: F16;
}

/// The kernels that merge partial results.
pub const COMBINE: &[KernelInfo] =
    &[attention_sparse_combine_f32.info(), attention_sparse_combine_f16.info()];
