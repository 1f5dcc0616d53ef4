//! Many queries of one sequence: [`prefill`](crate::attention::prefill) over the listed tiles of its keys, causally.
//!
//! As the dense kernels, except for the list and the addresses of keys.

use super::choose::LIST_EXTRA;
use super::keys::Rows;
use crate::attention::prefill::dense::{Dense, KEYS};
use crate::attention::prefill::{
    BM, PAD, Place, SHUFFLES, Scratch, THREADS, WARPS, Work, bn, chunks_elements, half_elements, prefill,
    sums_elements,
};
use crate::attention::tensors::{Strides, by_width, not_zero, tensors};
use crate::device::F16;
use crate::device::element::{load_word, load_word_at};
use crate::kv::{Stored, for_each_storage};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// The parameters of the kernels: fields without a comment are as [`PagedPrefill`](crate::attention::paged::PagedPrefill) has them.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct ChosenPrefill {
    pub out: *mut f32,
    /// As [`ChooseTiles`](super::ChooseTiles) has written them; a block's tiles are not behind those that its last query sees.
    pub lists: *const u32,
    /// The sequence's pages [ceil(kv_len / PAGE)], or null where key n is row n.
    pub table: *const u32,
    pub q: *const f32,
    pub k: *const u8,
    pub v: *const u8,
    pub out_strides: Strides,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub v_strides: Strides,
    pub num_q_heads: u32,
    pub group: u32,
    pub q_len: u32,
    pub kv_len: u32,
    /// ceil(kv_len / [`TILE`](super::TILE))
    pub tiles: u32,
    pub head_dim: u32,
    pub last_row: u32,
    pub scale_log2: f32,
    pub longest_first: u32,
    pub exponent_bits: u32,
    pub k_scales: *const F16,
    pub v_scales: *const F16,
}

/// The tiles of a list. A tile is where in the list its number is.
#[derive(Clone, Copy)]
struct Listed {
    dense: Dense,
    rows: Rows,
    lists: *const u32,
    /// Words of a list.
    stride: u32,
}

#[inlined]
impl Listed {
    /// The list of this block.
    fn list(self) -> *const u32 {
        let Place { head, first, .. } = self.place();
        let at = (head * thread::grid_dim_y() + first / BM) * self.stride;
        self.lists.wrapping_add(at as usize)
    }

    /// A tile's number among all of the sequence's.
    ///
    /// # Safety
    /// The tile is at most one past the last.
    unsafe fn number(self, tile: u32) -> u32 {
        // SAFETY: after the number of tiles a list has these and one more.
        unsafe { load_word_at(self.list(), 1 + tile) }
    }
}

#[inlined]
impl Work<KEYS> for Listed {
    const STEP: u32 = 1;
    const LISTED: bool = true;

    fn place(self) -> Place {
        self.dense.place()
    }

    fn begin(self) -> u32 {
        0
    }

    fn end(self) -> u32 {
        // SAFETY: each block has a list.
        unsafe { load_word(self.list()) }
    }

    fn keys(self, tile: u32) -> u32 {
        // SAFETY: the block has this tile: this function's contract.
        unsafe { self.dense.keys(self.number(tile)) }
    }

    unsafe fn key(self, tile: u32, row: u32) -> u32 {
        // SAFETY: this function's contract; the table has a page for each key.
        unsafe { self.rows.row(self.dense.key(self.number(tile), row)) }
    }

    unsafe fn sees(self, _: Place, _: u32) -> bool {
        true
    }

    unsafe fn mask(self, s: &mut [[f32; KEYS]; 8], place: Place, tile: u32) {
        // SAFETY: the block has this tile: this function's contract.
        unsafe { self.dense.mask(s, place, self.number(tile)) }
    }

    unsafe fn partial(self) -> Option<*mut f32> {
        None
    }
}

macro_rules! kernels {
    ($($storage:ident: $stored:ty, $types:expr, $([$width:ident $d:literal $of_width:literal])+;)*) => {
        /// By the storage of k and v, and width.
        mod kernels {
            $(pub mod $storage {
                use super::super::*;

                $(
                    /// # Safety
                    /// [`ChosenPrefill`] constrains the pointers, which are valid on the launching stream, and the numbers;
                    /// launched as [`Kernels::prefill`](crate::attention::chosen::Kernels::prefill) says.
                    #[kernel(
                        name = concat!("attention_chosen_", $of_width, "_", $types), block = THREADS, min_blocks = 2,
                        shuffles = SHUFFLES,
                        shared(
                            chunks: [f32; chunks_elements(WARPS, KEYS)], probabilities: [f32; half_elements(WARPS, KEYS)],
                            maxima: [f32; BM], sums: [f32; sums_elements(WARPS)]
                        )
                    )]
                    pub unsafe fn $width(p: ChosenPrefill) {
                        let [k, v] = <$stored>::of([p.k, p.v], p.exponent_bits, [p.k_scales, p.v_scales]);
                        let scratch = Scratch { chunks, probabilities, maxima, sums };
                        // SAFETY: the grid has a block, so there is a head; the parameters fulfil `prefill`'s contract.
                        unsafe {
                            not_zero(p.num_q_heads);
                            let dense = Dense::new(p.num_q_heads, [p.q_len, p.kv_len], 1, p.longest_first);
                            let rows = Rows { pages: p.table, last_row: p.last_row, kv_len: p.kv_len };
                            let work = Listed { dense, rows, lists: p.lists, stride: p.tiles + LIST_EXTRA };
                            prefill::<_, _, _, WARPS, { $d / 64 }, { $d % 64 / 16 }, KEYS, { BM + PAD }, { bn(KEYS) + PAD }, _>(
                                tensors!(p, k, v), p.last_row, work, scratch,
                            )
                        }
                    }
                )+
            })*
        }

        pub(super) const SPECS: &[[KernelSpec<ChosenPrefill>; 2]] =
            &[$(by_width(&[$(kernels::$storage::$width),+])),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($(kernels::$storage::$width.info(),)+)*];
    };
}

for_each_storage! { kernels }
