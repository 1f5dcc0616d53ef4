//! Many queries: [`prefill`](crate::attention::prefill) over the tiles that an item lists.
//!
//! What differs from the dense kernel:
//! 1. A tile's four groups of keys come from anywhere, and its masks from a table of patterns.
//! 2. A warp that sees nothing of a tile helps to load it and computes no scores and no values.
//! 3. Items come longest first. Where a row of tiles was too long, its items leave partial results, which a second
//!    kernel merges (Milakov & Gimelshein 2018, section 3.1).

use super::{ITEM_WORDS, NO_SLOT, QUERIES, SPLIT_WORDS, TILE_WORDS};
use crate::attention::merge::{merge, partial_elements};
use crate::attention::prefill::{PAD, Place, THREADS, Work, bn, prefill, read_indices, spec};
use crate::attention::{Strides, not_zero, unroll};
use crate::device::element::{load_4_words, load_word, load_word_at};
use crate::device::{Element, F16};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Columns of a tile's scores that a thread owns: tiles of 64 keys, as the list has them.
pub(super) const KEYS: usize = 4;

/// head_dim ≤ 64: grid = [num_q_heads / mask heads, items, b], by [`Types`](crate::attention::Types).
pub const SPARSE_D64: [KernelSpec; 3] = [
    spec("attention_sparse_d64_f32", KEYS, 3),
    spec("attention_sparse_d64_f16", KEYS, 3),
    spec("attention_sparse_d64_f32_f16", KEYS, 3),
];

/// head_dim ≤ 128; else as [`SPARSE_D64`]. Two blocks to a multiprocessor: with registers for three, two of them are
/// spilled.
pub const SPARSE_D128: [KernelSpec; 3] = [
    spec("attention_sparse_d128_f32", KEYS, 2),
    spec("attention_sparse_d128_f16", KEYS, 2),
    spec("attention_sparse_d128_f32_f16", KEYS, 2),
];

/// grid = [splits · QUERIES, b · num_q_heads / mask heads]
pub const COMBINE_F32: KernelSpec = KernelSpec::new("attention_sparse_combine_f32", THREADS);
/// As [`COMBINE_F32`].
pub const COMBINE_F16: KernelSpec = KernelSpec::new("attention_sparse_combine_f16", THREADS);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &[
    SPARSE_D64[0],
    SPARSE_D64[1],
    SPARSE_D64[2],
    SPARSE_D128[0],
    SPARSE_D128[1],
    SPARSE_D128[2],
    COMBINE_F32,
    COMBINE_F16,
];

/// An item of a list. What is not needed in the loops is read again where it is: registers are for the tiles.
#[derive(Clone, Copy)]
struct Listed {
    items: *const u32,
    tiles: *const u32,
    patterns: *const u32,
    partial: *mut f32,
    first_item: u32,
    slots: u32,
    /// Query heads of a mask head.
    sharing: u32,
    /// Padded head_dim.
    d: u32,
}

impl Listed {
    /// The words of the item of block `y`.
    #[inline(always)]
    fn item(self, y: u32) -> *const u32 {
        self.items.wrapping_add(((self.first_item + y) * ITEM_WORDS) as usize)
    }

    /// The words of a tile from the `word`th on.
    #[inline(always)]
    fn words(self, tile: u32, word: u32) -> *const u32 {
        self.tiles.wrapping_add((tile + word) as usize)
    }

    /// The four patterns that the thread's warp sees of a tile.
    ///
    /// # Safety
    /// As [`Work::sees`].
    #[inline(always)]
    unsafe fn seen(self, place: Place, tile: u32) -> [u32; 4] {
        // SAFETY: a list holds all of an item's tiles, each on a 16-byte boundary.
        unsafe { load_4_words(self.words(tile, 4 + place.tid / 32 * 4)) }
    }
}

/// A tile is where its words begin: numbers would be multiplied anew for each access.
impl Work<KEYS> for Listed {
    const STEP: u32 = TILE_WORDS;

    #[inline(always)]
    fn place(self) -> Place {
        let [tid, x, y] = read_indices();
        // SAFETY: the block's own item.
        let [head, first, ..] = unsafe { load_4_words(self.item(y)) };
        Place::new(tid, thread::block_idx_z(), head * self.sharing + x, first)
    }

    #[inline(always)]
    fn begin(self) -> u32 {
        // SAFETY: the block's own item.
        unsafe { load_word(self.item(thread::block_idx_y()).add(2)) * TILE_WORDS }
    }

    #[inline(always)]
    fn end(self) -> u32 {
        let [_, _, y] = read_indices();
        // SAFETY: the block's own item.
        let [_, _, start, tiles] = unsafe { load_4_words(self.item(y)) };
        (start + tiles) * TILE_WORDS
    }

    #[inline(always)]
    fn keys(self, _: u32) -> u32 {
        16 * KEYS as u32
    }

    #[inline(always)]
    unsafe fn key(self, tile: u32, row: u32) -> u32 {
        // SAFETY: the list has a tile behind the last; rows are below 16 KEYS.
        unsafe { load_word_at(self.tiles, tile + row / 16 % KEYS as u32) + row % 16 }
    }

    #[inline(always)]
    unsafe fn sees(self, place: Place, tile: u32) -> bool {
        // SAFETY: as the caller promises.
        let [a, b, c, d] = unsafe { self.seen(place, tile) };
        a | b | c | d != 0
    }

    #[inline(always)]
    unsafe fn mask(self, s: &mut [[f32; KEYS]; 8], place: Place, tile: u32) {
        // SAFETY: as the caller promises; a pattern has a byte for each lane.
        unsafe {
            let seen = self.seen(place, tile);
            if seen == [1; 4] {
                return; // all of it
            }
            let [a, b, c, d] = seen;
            let pattern = match place.tx / 4 {
                0 => a,
                1 => b,
                2 => c,
                _ => d,
            };
            let bits = load_word(self.patterns.add((pattern * 8 + place.ty * 4 + place.tx % 4) as usize));
            unroll!(J < 4 {
                unroll!(I < 8 {
                    if bits >> (8 * J + I) & 1 == 0 {
                        s[I][J] = f32::NEG_INFINITY;
                    }
                });
            });
        }
    }

    #[inline(always)]
    unsafe fn partial(self) -> Option<*mut f32> {
        let [_, x, y] = read_indices();
        // SAFETY: the block's own item.
        let slot = unsafe { load_word(self.item(y).add(4)) };
        let x = thread::block_idx_z() * self.sharing + x;
        let record = (x * self.slots + slot) as usize * QUERIES * partial_elements(self.d) as usize;
        (slot != NO_SLOT).then(|| self.partial.wrapping_add(record))
    }
}

macro_rules! kernels {
    ($($name:ident: $tq:ty, $tkv:ty, $groups:literal, $blocks:literal;)*) => {$(
        /// # Safety
        /// `out`, `q`, `k`, `v`, strides, group, scale_log2: as
        /// [`attention_prefill_d64_f32`](crate::attention::prefill::attention_prefill_d64_f32) has them. `sharing`:
        /// query heads of a mask head. `items`: [`ITEM_WORDS`] words for each block from `first_item` on, with first
        /// queries below q_len; `tiles`: [`TILE_WORDS`] for each tile that they name and one more, with keys up to
        /// last_key, v's last row; `patterns`: 8 for each that the tiles name; all 16-byte aligned. `partial`: f32
        /// [b · blocks along x, slots, QUERIES, partial_elements(D)], disjoint from all. Launched as the contract of the
        /// same name says.
        #[kernel(launch_bounds(THREADS, $blocks))]
        pub unsafe fn $name(
            out: *mut $tq, partial: *mut f32, items: *const u32, tiles: *const u32, patterns: *const u32,
            q: *const $tq, k: *const $tkv, v: *const $tkv,
            out_batch: u32, out_head: u32, out_row: u32,
            q_batch: u32, q_head: u32, q_row: u32,
            k_batch: u32, k_head: u32, k_row: u32,
            v_batch: u32, v_head: u32, v_row: u32,
            first_item: u32, slots: u32, sharing: u32, group: u32, q_len: u32, last_key: u32, head_dim: u32,
            scale_log2: f32,
        ) {
            let strides = [
                Strides { batch: out_batch, head: out_head, row: out_row },
                Strides { batch: q_batch, head: q_head, row: q_row },
                Strides { batch: k_batch, head: k_head, row: k_row },
                Strides { batch: v_batch, head: v_head, row: v_row },
            ];
            // SAFETY: this kernel's contract is the body's; a grid with a block in it has a head.
            unsafe {
                let d = 64 * $groups;
                let work = Listed { items, tiles, patterns, partial, first_item, slots, sharing, d };
                prefill::<$tq, _, $groups, KEYS, { bn(KEYS) + PAD }, _>(
                    out, q, k, v, strides, group, q_len, last_key, head_dim, scale_log2, work,
                )
            }
        }
    )*};
}

kernels! {
    attention_sparse_d64_f32: f32, f32, 1, 3;
    attention_sparse_d64_f16: F16, F16, 1, 3;
    attention_sparse_d64_f32_f16: f32, F16, 1, 3;
    attention_sparse_d128_f32: f32, f32, 2, 2;
    attention_sparse_d128_f16: F16, F16, 2, 2;
    attention_sparse_d128_f32_f16: f32, F16, 2, 2;
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn combine<T: Element>(
    out: *mut T,
    partial: *const f32,
    splits: *const u32,
    strides: Strides,
    slots: u32,
    sharing: u32,
    q_len: u32,
    head_dim: u32,
    d: u32,
) {
    // SAFETY: as the caller promises.
    unsafe {
        not_zero(sharing);
        let (x, column) = (thread::block_idx_y(), thread::thread_idx_x());
        let (row, split) = (thread::block_idx_x() % QUERIES as u32, thread::block_idx_x() / QUERIES as u32);
        let [head, first, slot, parts] = load_4_words(splits.add((split * SPLIT_WORDS) as usize));
        let i = first + row;
        if i >= q_len || column >= head_dim {
            return; // no barrier follows
        }
        let width = partial_elements(d) as usize;
        let records = partial.add(((x * slots + slot) as usize * QUERIES + row as usize) * width);
        let value = merge(records, QUERIES * width, parts, d, column);
        let head = head * sharing + x % sharing;
        *out.add((strides.offset(x / sharing, head) + i * strides.row + column) as usize) =
            T::from_f32(value);
    }
}

macro_rules! combine_kernels {
    ($($name:ident: $t:ty;)*) => {$(
        /// # Safety
        /// `partial` as the kernels above wrote it, for the instance's head_dim `d`; `splits`: [`SPLIT_WORDS`] words for
        /// each split; the rest as theirs. Launched as [`COMBINE_F32`] says.
        #[kernel(launch_bounds(THREADS))]
        pub unsafe fn $name(
            out: *mut $t, partial: *const f32, splits: *const u32, out_batch: u32, out_head: u32, out_row: u32,
            slots: u32, sharing: u32, q_len: u32, head_dim: u32, d: u32,
        ) {
            let strides = Strides { batch: out_batch, head: out_head, row: out_row };
            // SAFETY: this kernel's contract is the body's.
            unsafe { combine(out, partial, splits, strides, slots, sharing, q_len, head_dim, d) }
        }
    )*};
}

combine_kernels! {
    attention_sparse_combine_f32: f32;
    attention_sparse_combine_f16: F16;
}
