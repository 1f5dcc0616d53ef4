//! The gradients of block-sparse attention: [`backward`](crate::attention::backward) over listed tiles.
//!
//! A block owns 64 queries, or keys, and visits the tiles that a list has for them and for a query head's mask. A tile is four groups of
//! 16 columns, which may be anywhere in the sequence, and the pattern of each with 16 of the rows; so blocks of all sizes of masks cost
//! what they cover. The list of keys' rows is that of the transposed mask. Without a listed tile gradients are 0.

use super::lists::TILE_WORDS;
use crate::attention::backward::{BUFFER, Backward, Place, ROWS, THREADS, TILE, Work, of_keys, of_queries};
use crate::attention::tensors::not_zero;
use crate::device::F16;
use crate::device::element::load_word;
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// The kernels of one element type, and the grids of [`backward::Kernels`](crate::attention::backward::Kernels).
#[derive(Clone, Copy)]
pub struct Kernels<T> {
    /// For head_dim ≤ 64 and ≤ 128, with the list of queries' rows.
    pub q: [KernelSpec<Backward<T>>; 2],
    /// For head_dim ≤ 64 and ≤ 128, with the list of keys' rows.
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
    const IN_PARTS: bool = false;
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
                    unsafe { of_queries::<$ty, _, $g>(p, Listed::new(&p), buffers, tile) }
                }

                /// # Safety
                /// As the kernel of queries, which has run.
                #[kernel(block = THREADS, min_blocks = 2, shared(buffers: [f32; 2 * BUFFER], tile: [f32; TILE]))]
                pub unsafe fn $kv(p: Backward<$ty>) {
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { of_keys::<$ty, _, $g>(p, Listed::new(&p), buffers, tile) }
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
