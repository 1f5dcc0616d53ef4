//! Many queries of one sequence: [`prefill`](crate::attention::prefill) over its pages, causally.
//!
//! As the dense kernels, except for the addresses of keys.

use super::table::Table;
use crate::attention::prefill::dense::{Dense, KEYS};
use crate::attention::prefill::{
    BM, PAD, Place, SHUFFLES, Scratch, THREADS, WARPS, Work, bn, chunks_elements, half_elements, prefill,
    sums_elements,
};
use crate::attention::tensors::{Strides, by_width, not_zero, tensors};
use crate::device::F16;
use crate::kv::{Stored, for_each_storage};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// The parameters of the kernels: fields without a comment are as [`Prefill`](crate::attention::Prefill) has them.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct PagedPrefill {
    /// [num_q_heads, q_len, head_dim]
    pub out: *mut f32,
    /// The sequence's pages: [ceil(kv_len / PAGE)]
    pub table: *const u32,
    /// [num_q_heads, q_len, head_dim]
    pub q: *const f32,
    /// [last_row + 1, num_kv_heads, head_dim]
    pub k: *const u8,
    /// [last_row + 1, num_kv_heads, head_dim]
    pub v: *const u8,
    pub out_strides: Strides,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub v_strides: Strides,
    pub num_q_heads: u32,
    pub group: u32,
    pub q_len: u32,
    /// Keys of the sequence, including these queries' own.
    pub kv_len: u32,
    pub head_dim: u32,
    /// The pool's last row.
    pub last_row: u32,
    pub scale_log2: f32,
    pub longest_first: u32,
    pub exponent_bits: u32,
    pub k_scales: *const F16,
    pub v_scales: *const F16,
}

#[derive(Clone, Copy)]
struct Paged {
    dense: Dense,
    table: Table,
}

#[inlined]
impl Work<KEYS> for Paged {
    const STEP: u32 = <Dense as Work<KEYS>>::STEP;
    const LISTED: bool = false;

    fn place(self) -> Place {
        self.dense.place()
    }

    fn begin(self) -> u32 {
        self.dense.begin()
    }

    fn end(self) -> u32 {
        self.dense.end()
    }

    fn keys(self, tile: u32) -> u32 {
        self.dense.keys(tile)
    }

    /// The row of the pool; past the last key, the last key's.
    unsafe fn key(self, tile: u32, row: u32) -> u32 {
        // SAFETY: the block has a tile, so there is a key; the table has a page for each key.
        unsafe {
            let n = self.dense.key(tile, row).min(self.dense.kv_len - 1);
            self.table.row(n)
        }
    }

    unsafe fn sees(self, _: Place, _: u32) -> bool {
        true
    }

    unsafe fn mask(self, s: &mut [[f32; KEYS]; 8], place: Place, tile: u32) {
        // SAFETY: the block has this tile: this function's contract.
        unsafe { self.dense.mask(s, place, tile) }
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
                    /// [`PagedPrefill`] constrains the pointers, which are valid on the launching stream, and the numbers;
                    /// launched as [`Kernels::prefill`](crate::attention::paged::Kernels::prefill) says.
                    #[kernel(
                        name = concat!("attention_paged_prefill_", $of_width, "_", $types), block = THREADS, min_blocks = 2,
                        shuffles = SHUFFLES,
                        shared(
                            chunks: [f32; chunks_elements(WARPS, KEYS)], probabilities: [f32; half_elements(WARPS, KEYS)],
                            maxima: [f32; BM], sums: [f32; sums_elements(WARPS)]
                        )
                    )]
                    pub unsafe fn $width(p: PagedPrefill) {
                        let [k, v] = <$stored>::of([p.k, p.v], p.exponent_bits, [p.k_scales, p.v_scales]);
                        let scratch = Scratch { chunks, probabilities, maxima, sums };
                        // SAFETY: the grid has a block, so there is a head; the parameters fulfil `prefill`'s contract.
                        unsafe {
                            not_zero(p.num_q_heads);
                            let dense = Dense::new(p.num_q_heads, [p.q_len, p.kv_len], 1, p.longest_first);
                            let work = Paged { dense, table: Table { pages: p.table, last_row: p.last_row } };
                            prefill::<_, _, _, WARPS, { $d / 64 }, { $d % 64 / 16 }, KEYS, { BM + PAD }, { bn(KEYS) + PAD }, _>(
                                tensors!(p, k, v), p.last_row, work, scratch,
                            )
                        }
                    }
                )+
            })*
        }

        pub(super) const SPECS: &[[KernelSpec<PagedPrefill>; 2]] =
            &[$(by_width(&[$(kernels::$storage::$width),+])),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($(kernels::$storage::$width.info(),)+)*];
    };
}

for_each_storage! { kernels }
