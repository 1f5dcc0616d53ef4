//! y[p] = x[p / sharing] · w[ids[p]]ᵀ: one row of x in f32 for each pair p of a token and an expert, as [`one`](super::one) has it.

use super::one::{Nothing, ROWS1, Row1, vector1};
use super::prologue::{Declared, Memory, THREADS1, TILE_BYTES};
use crate::activate::IDENTITY;
use crate::experts::{Place, place};
use crate::quant::FORMATS;
use crate::quant::epilogue::Epilogue;
use crate::quant::weights::{Matrix, Weights};
use core::ptr::null;
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// The parameters of the kernels for one row of each pair of a token and an expert: y[p] = x[p / sharing] · w[ids[p]]ᵀ.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Experts1 {
    /// [pairs, n], disjoint from all else
    pub y: *mut f32,
    /// [pairs / sharing, cols], 16-byte aligned
    pub x: *const f32,
    /// [experts · n, k] quants
    pub w: *const u8,
    /// Of w.
    pub w_scales: *const u8,
    /// [pairs], below the number of experts
    pub ids: *const u32,
    /// [slots · n, k] quants: copies of the rows of experts with a slot
    pub cached: *const u8,
    /// Of these.
    pub cached_scales: *const u8,
    /// [experts]: the slot of each or [`NO_SLOT`](crate::experts::NO_SLOT); null if none has one
    pub slots: *const u32,
    pub n: u32,
    pub k: u32,
    /// At most k; a multiple of 4 unless there is one row of x.
    pub cols: u32,
    /// Neighbouring pairs that have one row of x.
    pub sharing: u32,
    /// 1 if y gets zeros of experts without a slot, else 0.
    pub on_device: u32,
}

/// Writes zeros in a row of `n`, a part of them by each block.
///
/// # Safety
/// y has them, and nobody else accesses them.
#[inline(always)]
unsafe fn zeros(y: *mut f32, n: u32) {
    let mut at = thread::block_idx_x() * THREADS1 + thread::thread_idx_x();
    while at < n {
        // SAFETY: the column is below n, and this block's: this function's contract.
        unsafe { *y.add(at as usize) = 0.0 };
        at += thread::grid_dim_x() * THREADS1;
    }
}
macro_rules! experts {
    ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
        /// By format.
        mod kernels {
            $(pub mod $file {
                use super::super::*;
                use crate::quant::formats::$file::$format;

                /// Registers do not suffice for more.
                const EARLY: usize = if $format::EARLY > 0 { $format::EARLY - 1 } else { 0 };

                /// For pair blockIdx.y.
                ///
                /// # Safety
                /// [`Experts1`] constrains the pointers, which are valid on the launching stream; n, k > 0.
                #[kernel(
                    name = concat!("quant_experts1_", $name),
                    block = THREADS1, min_blocks = 2, shared_bytes = TILE_BYTES + 2 * 3 * 4 * THREADS1,
                    shuffles = 2 * (6 * (EARLY as u32 + 1) + 5 * ROWS1)
                )]
                pub unsafe fn experts1(p: Experts1) {
                    let pair = thread::block_idx_y();
                    // SAFETY: the pair exists, and its expert has a place; else, this kernel's contract is the body's.
                    unsafe {
                        let x = Row1::new(p.x, pair / p.sharing.max(1) * p.cols, p.cols);
                        let epilogue = Epilogue { y: p.y, bias: null(), residual: null(), n: p.n, activation: IDENTITY };
                        let row = Declared.row();
                        let expert = *p.ids.add(pair as usize);
                        // the body twice: with one, the addresses of w would take four registers, which some formats do not have
                        match place(p.slots, p.on_device, expert, p.n) {
                            Place::All(first) => {
                                let w = Matrix { quants: p.w, scales: p.w_scales, k: p.k };
                                vector1::<$format, _, { $format::LANE_UNITS }, EARLY, true, false, false>(epilogue, x, w, first, Nothing, row)
                            }
                            Place::Slot(first) => {
                                let w = Matrix { quants: p.cached, scales: p.cached_scales, k: p.k };
                                vector1::<$format, _, { $format::LANE_UNITS }, EARLY, true, false, false>(epilogue, x, w, first, Nothing, row)
                            }
                            Place::Away => zeros(p.y.add((pair * p.n) as usize), p.n),
                        }
                    }
                }
            })*
        }

        /// By format. grid = [any number of blocks, see [`blocks1`](super::one::blocks1), pairs]
        pub const EXPERTS1: [KernelSpec<Experts1>; FORMATS] = [$(kernels::$file::experts1),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$(kernels::$file::experts1.info()),*];
    };
}

crate::for_each_format!(experts);
