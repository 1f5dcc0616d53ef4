//! Grouped products: the rows of each expert with its matrix, by the register tiles of [`tile`](super::tile).
//!
//! Idea: a tile has up to 64 rows of one expert, and computes those it has, in steps of 16. So experts with few rows cost few, and
//! those with 64 or more cost as a dense product's. Products of a token's row for gates and ups read it where it is, by the
//! index of the sort: rows are neither copied nor quantised once per expert.
//!
//! | kernel                    | result                                                          |
//! |---------------------------|-----------------------------------------------------------------|
//! | quant_experts64_‹f›       | [`Experts`]: y, of rows that are sorted                         |
//! | quant_experts_gated64_‹f› | [`GatedExperts`]: silu(gate)·up, quantised, of rows by an index |

use super::epilogue::Epilogue;
use super::tile::{BLOCKS, Columns, GatedRows, Order, RUNS, Rows, row_step, shared_words, threads, tile};
use super::weights::{Matrix, Weights};
use super::{Experts, FORMATS, GatedExperts};
use crate::activate::IDENTITY;
use crate::device::opaque;
use crate::experts::{TileRows, tile_rows};
use core::ptr::null;
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// Rows of a tile.
pub const BM: u32 = 64;
/// Rows and columns of a thread.
const TM: usize = 4;
const TN: usize = 8;
const THREADS: u32 = threads(BM, TM as u32, TN as u32);

/// Where the rows that the thread loads begin: 32 bits of each instead of an address in a loop's registers.
#[derive(Clone, Copy)]
struct Offsets {
    quants: [u32; 4],
    scales: [u32; 2],
}

impl Offsets {
    /// Of the rows from `first` to before `m`, which are those that `index` names, if it is not null.
    ///
    /// # Safety
    /// `index` has them.
    #[inline(always)]
    unsafe fn new(index: *const u32, first: u32, m: u32, k: u32) -> Self {
        let tid = thread::thread_idx_x();
        let place = |row: u32| {
            let row = (first + row).min(m - 1);
            // SAFETY: clamped to the last row.
            if index.is_null() { row } else { unsafe { *index.add(row as usize) } }
        };
        let run = |unit: u32| match unit * THREADS < RUNS * BM {
            true => place((tid + unit * THREADS) / RUNS) * k,
            false => 0,
        };
        let scale = |unit: u32| match unit * THREADS < BLOCKS * BM {
            true => place((tid + unit * THREADS) / BLOCKS) * (k / 4),
            false => 0,
        };
        Self { quants: [run(0), run(1), run(2), run(3)], scales: [scale(0), scale(1)] }
    }
}

#[inlined]
impl Order for Offsets {
    fn quants(self, unit: usize, _: u32, _: u32) -> usize {
        opaque(self.quants[unit % 4]) as usize
    }

    fn scales(self, unit: usize, _: u32, _: u32) -> usize {
        opaque(self.scales[unit % 2]) as usize
    }

    fn row(self, row: u32) -> u32 {
        opaque(row)
    }
}

/// Blocks of a multiprocessor for which ptxas keeps registers free. Three are 10 to 15 % faster than two on an H100, and leave a thread 168,
/// which is not enough for 8 bits and for formats with long scales.
const fn min_blocks<W: Weights>() -> u32 {
    if W::HALVES || !W::WHOLE && W::BITS < 8 { 3 } else { 2 }
}

/// Whether loads have no branches: with three blocks on a multiprocessor, no registers are left for that.
const fn straight<W: Weights>() -> bool {
    W::BITS == 8
}

macro_rules! experts {
    ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
        /// By format.
        mod kernels {
            $(pub mod $file {
                use super::super::*;
                use crate::quant::formats::$file::$format;

                /// # Safety
                /// [`Experts`] constrains the pointers, which are valid on the launching stream; n, k > 0 and x_k is a multiple
                /// of 64.
                #[kernel(
                    name = concat!("quant_experts64_", $name), block = THREADS, min_blocks = min_blocks::<$format>(),
                    shared(buffers: [u32; shared_words::<$format, BM>()])
                )]
                pub unsafe fn experts(p: Experts) {
                    let Experts { y, n, k, x_k, .. } = p;
                    // SAFETY: all lanes are here, and the starts are the sort's: this kernel's contract.
                    let rows = unsafe { tile_rows(p.starts, p.experts, thread::block_idx_x(), BM) };
                    let Some(TileRows { expert, first, len }) = rows else { return };
                    let epilogue = Epilogue { y, bias: null(), residual: null(), n, activation: IDENTITY };
                    let output = Columns { epilogue, from_row: expert * n };
                    let live = len.next_multiple_of(row_step(BM, TM as u32));
                    // SAFETY: there is no index.
                    let order = unsafe { Offsets::new(null(), first, first + len, x_k) };
                    let x = Rows { quants: p.x, scales: p.x_scales, first, m: first + len, live, k: x_k, order };
                    let w = Matrix { quants: p.w, scales: p.w_scales, k };
                    // SAFETY: the rows are x's and y's, and this block's alone in these columns; else, this kernel's contract is
                    // the body's.
                    unsafe { tile::<$format, BM, TM, TN, THREADS, { straight::<$format>() }>(output, x, w, None, buffers) }
                }

                /// # Safety
                /// [`GatedExperts`] constrains the pointers, which are valid on the launching stream; n, k > 0 and x_k is a
                /// multiple of 64.
                #[kernel(
                    name = concat!("quant_experts_gated64_", $name), block = THREADS, min_blocks = min_blocks::<$format>(),
                    shared(buffers: [u32; shared_words::<$format, BM>()]), shuffles = 24
                )]
                pub unsafe fn gated(p: GatedExperts) {
                    let GatedExperts { quants, scales, n, k, x_k, y_k, .. } = p;
                    // SAFETY: all lanes are here, and the starts are the sort's: this kernel's contract.
                    let rows = unsafe { tile_rows(p.starts, p.experts, thread::block_idx_x(), BM) };
                    let Some(TileRows { expert, first, len }) = rows else { return };
                    let (m, live) = (first + len, len.next_multiple_of(row_step(BM, TM as u32)));
                    // SAFETY: the index has a place for each sorted row: this kernel's contract.
                    let order = unsafe { Offsets::new(p.tokens, first, m, x_k) };
                    let x = Rows { quants: p.x, scales: p.x_scales, first, m, live, k: x_k, order };
                    let w = Matrix { quants: p.w, scales: p.w_scales, k };
                    let up = Matrix { quants: p.up, scales: p.up_scales, k };
                    let output = GatedRows { quants, scales, n, k: y_k, gates: expert * n, up: (up, expert * n) };
                    // SAFETY: the rows are x's and the result's, and this block's alone in these columns; else, this kernel's
                    // contract is the body's.
                    unsafe { tile::<$format, BM, TM, TN, THREADS, { straight::<$format>() }>(output, x, w, None, buffers) }
                }
            })*
        }

        /// By format. grid = [[`slots`](crate::experts::slots) of [`BM`] rows, ceil(n / BN)]
        pub const EXPERTS64: [KernelSpec<Experts>; FORMATS] = [$(kernels::$file::experts),*];
        /// By format. grid = [slots of [`BM`] rows, y_k / 32]
        pub const GATED64: [KernelSpec<GatedExperts>; FORMATS] = [$(kernels::$file::gated),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] =
            &[$(kernels::$file::experts.info(), kernels::$file::gated.info()),*];
    };
}

crate::for_each_format!(experts);
