//! Grouped products: y[r] = x[r] · w[e]ᵀ, where row r is one of expert e's.   y: [rows, n], x: [rows, k], w: [experts · n, k].
//!
//! Idea: the bodies of [`regtile`] and [`vector`], with operands that a block finds itself: a slot of
//! the grid has a tile of one expert's rows (see [`experts`](crate::experts)), or one row.
//!
//! | kernel                    | a block computes    | when                                        |
//! |---------------------------|---------------------|---------------------------------------------|
//! | matmul_experts64_‹t›      | 64 × 64, two slices | rows are sorted and aligned                 |
//! | matmul_experts1_‹t›       | columns of one row  | few rows, or those that are not aligned     |

use super::load::{AlongK, Load, PAD};
use super::product::Product;
use super::regtile::{self, BK, shared_bytes};
use super::vector::{Nt, SUMS, WARPS, nt};
use crate::activate::IDENTITY;
use crate::device::{Element, F16, Shared, Vector};
use crate::experts::{Place, TileRows, place, tile_rows};
use core::ptr::null;
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Rows and columns of a tile.
pub const TILE: u32 = 64;
const SLICES: u32 = 2;
/// Threads of a slice, with 8 × 8 elements each.
const GROUP_THREADS: u32 = TILE * TILE / 64;
const THREADS: u32 = GROUP_THREADS * SLICES;
const VECTORS: usize = (TILE * BK / 4 / GROUP_THREADS) as usize;
const SHARED: u32 = shared_bytes(TILE, TILE, SLICES);
/// Half the width of a warp's part along each side: 8 × 8 elements for 8 lanes, and 4.
const HM: u32 = 8 * 4;
const HN: u32 = 32 / 8 * 4;

const VECTOR_THREADS: u32 = WARPS * 32;
/// Warps that share the columns of a row, as a power of two.
pub const LOG_PARTS: u32 = 2;
/// Columns that a block of the kernels for one row computes.
pub const ROW_COLUMNS: u32 = super::vector::NT_COLUMNS * (WARPS >> LOG_PARTS);

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Experts<W> {
    /// [rows, n], disjoint from all else
    pub y: *mut f32,
    /// [rows / sharing, k]
    pub x: *const f32,
    /// [experts · n, k]
    pub w: *const W,
    /// [rows], below `experts`: the expert of each row; null if rows are sorted
    pub ids: *const u32,
    /// [experts + 1], as [`experts_sort`](crate::experts::experts_sort) writes them; null if rows are not sorted
    pub starts: *const u32,
    /// [slots · n, k]: copies of the rows of experts with a slot
    pub cached: *const W,
    /// [experts]: the slot of each or [`NO_SLOT`](crate::experts::NO_SLOT); null if none has one, or if rows are sorted
    pub slots: *const u32,
    pub experts: u32,
    pub n: u32,
    pub k: u32,
    /// Neighbouring rows of y that have one row of x; 1 if rows are sorted.
    pub sharing: u32,
    /// 1 if x, w and their rows start at multiples of 16 bytes, else 0.
    pub aligned: u32,
    /// 1 if y gets zeros of experts without a slot, else 0.
    pub on_device: u32,
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn tile<W: Element>(p: Experts<W>, shared: Shared<f32>) {
    // SAFETY: all lanes are here, and the starts are the sort's: the kernel's contract.
    let rows = unsafe { tile_rows(p.starts, p.experts, thread::block_idx_y(), TILE) };
    let Some(TileRows { expert, first, len }) = rows else { return };
    let (slice, tid) = (thread::thread_idx_x() / GROUP_THREADS, thread::thread_idx_x() % GROUP_THREADS);
    let column = thread::block_idx_x() * TILE;
    let product = Product {
        partial: core::ptr::null_mut(),
        m: first + len,
        n: p.n,
        ldc: p.n,
        alpha: 1.0,
        beta: 0.0,
        bias: null(),
        addend: null::<f32>(),
    };
    let w = p.w.wrapping_add(expert as usize * (p.n * p.k) as usize);
    let mut load_x =
        AlongK::<f32, { TILE + PAD }, GROUP_THREADS, VECTORS>::new(p.x, p.k, first, first + len, tid);
    let mut load_w = AlongK::<W, { TILE + PAD }, GROUP_THREADS, VECTORS>::new(w, p.k, column, p.n, tid);
    load_x.advance(slice * BK);
    load_w.advance(slice * BK);
    // SAFETY: the rows are x's and y's, and this block's alone in these columns; n, k and the pointers are aligned to 4 elements.
    unsafe {
        regtile::tile::<_, _, _, 8, SLICES, GROUP_THREADS, { TILE + PAD }, { TILE + PAD }, HM, HN, true>(
            p.y,
            &product,
            (first, column),
            p.k,
            (load_x, load_w),
            shared,
        );
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn row<W: Vector>(p: Experts<W>, products: Shared<f32>, squares: Shared<f32>) {
    let slot = thread::block_idx_z();
    // SAFETY: the slot is a row, or the starts are the sort's and all lanes are here: the kernel's contract.
    let rows = unsafe {
        match p.starts.is_null() {
            true => Some(TileRows { expert: *p.ids.add(slot as usize), first: slot, len: 1 }),
            false => tile_rows(p.starts, p.experts, slot, 1),
        }
    };
    let Some(TileRows { expert, first, .. }) = rows else { return };
    let (n, k) = (p.n, p.k);
    let y = p.y.wrapping_add(first as usize * n as usize);
    // SAFETY: the expert has an entry: the kernel's contract.
    let (w, from_row) = match unsafe { place(p.slots, p.on_device, expert, n) } {
        Place::All(from_row) => (p.w, from_row),
        Place::Slot(from_row) => (p.cached, from_row),
        Place::Away => {
            let column = thread::thread_idx_x();
            let at = thread::block_idx_x() * ROW_COLUMNS + column;
            if column < ROW_COLUMNS && at < n {
                // SAFETY: the column is the row's, and this block's.
                unsafe { *y.add(at as usize) = 0.0 };
            }
            return;
        }
    };
    let parameters = Nt {
        c: y,
        a: p.x.wrapping_add((first / p.sharing.max(1)) as usize * k as usize),
        b: w.wrapping_add(from_row as usize * k as usize),
        partial: core::ptr::null_mut(),
        m: 1,
        n,
        k,
        lda: k,
        ldb: k,
        ldc: n,
        stride_a: 0,
        stride_b: 0,
        stride_c: 0,
        k_chunk: k,
        alpha: 1.0,
        beta: 0.0,
        bias: null(),
        addend: null::<f32>(),
        aligned: p.aligned,
        norm: null(),
        eps: 0.0,
        activation: IDENTITY,
        log_parts: LOG_PARTS,
    };
    // SAFETY: the operands are this expert's and this row's, and all threads are here.
    unsafe { nt::<_, _, _, 1, 2>(parameters, products, squares) }
}

macro_rules! kernels {
    ($($tile:ident $row:ident: $W:ty;)*) => {
        $(
            /// grid = [ceil(n / TILE), [`slots`](crate::experts::slots)]
            ///
            /// # Safety
            /// [`Experts`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements; rows are
            /// sorted, n and k are positive multiples of 4 and the pointers are aligned to 4 elements.
            #[kernel(block = THREADS, min_blocks = 3, module = stringify!($tile), shared(shared: [f32; SHARED / 4]))]
            pub unsafe fn $tile(p: Experts<$W>) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { tile(p, shared) }
            }

            /// grid = [ceil(n / ROW_COLUMNS), 1, rows, or if they are sorted slots of one row]
            ///
            /// # Safety
            /// [`Experts`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements; n, k > 0.
            #[kernel(
                block = VECTOR_THREADS, min_blocks = 3, module = stringify!($row), shuffles = 25,
                shared(products: [f32; WARPS * SUMS], squares: [f32; WARPS * SUMS])
            )]
            pub unsafe fn $row(p: Experts<$W>) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { row(p, products, squares) }
            }
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($tile.info(), $row.info()),*];
    };
}

kernels! {
    matmul_experts64_f32 matmul_experts1_f32: f32;
    matmul_experts64_mixed matmul_experts1_mixed: F16;
}
