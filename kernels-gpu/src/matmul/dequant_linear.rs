//! Products with quantised matrices by their dequantised values, in f32.   a: [m, k] f32, c: [m, n] f32
//!
//! y = x·wᵀ + bias for w [n, k], and its gradient dx = dy·w for w [k, n].
//!
//! Idea: the tiles of [`regtile`](super::regtile), with loaders that dequantise. A block's quants and scales are loaded
//! ahead, and converted to f32 as they are stored in shared memory. No matrix in f32 exists, and each value is dequantised
//! once for 64 rows of a.
//!
//! | kernel                   | product | tile, slices |
//! |--------------------------|---------|--------------|
//! | dequant_linear_‹f›       | x·wᵀ    | 64 × 64, 2   |
//! | dequant_linear_dx_‹f›    | dy·w    | 64 × 64, 2   |

use super::load::{AlongK, Load, PAD};
use super::product::{Product, k_range};
use super::regtile::{BK, shared_bytes, tile, tile_place};
use crate::device::Shared;
use crate::device::banks::{turn, turned};
use crate::quant::formats::{q4_0::Q4_0, q4_k::Q4K, q8_0::Q8_0};
use crate::quant::weights::{BLOCK_VALUES, Matrix, Weights};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// Rows of c that a block computes.
pub const BM: u32 = 64;
/// Columns of c that a block computes.
pub const BN: u32 = 64;
const SLICES: u32 = 2;
/// Threads of a slice.
const SLICE_THREADS: u32 = BM * BN / 64;
const THREADS: u32 = SLICE_THREADS * SLICES;
const VECTORS: usize = (BN * BK / 4 / SLICE_THREADS) as usize;
const STRIDE: u32 = BN + PAD;
const SHARED: u32 = shared_bytes(BM, BN, SLICES);

/// The parameters of the kernels. c and a are 16-byte aligned, and n and k multiples of 4.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct DequantLinear {
    /// [m, n], disjoint from all else
    pub c: *mut f32,
    /// [m, k]
    pub a: *const f32,
    /// Quants of w, [n, k] or [k, n], 16-byte aligned.
    pub w: *const u8,
    /// Scales of w, 16-byte aligned.
    pub w_scales: *const u8,
    /// [n] or null
    pub bias: *const f32,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// Columns of a row of w, with padding.
    pub w_cols: u32,
}

/// Four neighbours of a row of w in their memory format.
#[derive(Clone, Copy)]
struct Four<W: Weights> {
    quants: u32,
    scales: W::Packed,
    block: u32,
}

impl<W: Weights> Four<W> {
    /// With a step and a minimum of 0, so that the values are 0.
    fn zero() -> Self {
        Self { quants: 0, scales: W::Packed::default(), block: 0 }
    }

    /// Columns 4 · `group` to 4 · `group` + 3 of a row.
    ///
    /// # Safety
    /// The columns exist in `w`.
    #[inline(always)]
    unsafe fn load(w: Matrix, row: u32, group: u32) -> Self {
        let block = group / (BLOCK_VALUES / 4);
        // SAFETY: row and columns exist: this function's contract.
        unsafe { Self { quants: W::four(w, row, group), scales: W::packed(w, row, block), block } }
    }

    #[inline(always)]
    fn values(self) -> [f32; 4] {
        let (step, min) = W::step_min(self.scales, self.block);
        let value = |i: u32| step * ((self.quants >> (8 * i)) as u8 as i8 as i32 - W::OFFSET) as f32 - min;
        [value(0), value(1), value(2), value(3)]
    }
}

/// For wᵀ of w [n, k]: a thread loads four k of one row of w.
#[derive(Clone, Copy)]
struct RowsOf<W> {
    w: Matrix,
    rows: [u32; VECTORS],
    group: u32,
    tid: u32,
    format: core::marker::PhantomData<W>,
}

impl<W: Weights> RowsOf<W> {
    /// Pieces of four in a row of the tile.
    const QUADS: u32 = BK / 4;

    /// The rows from `first` on. Rows past the end are read as the last one, and not used.
    #[inline(always)]
    fn new(w: Matrix, first: u32, rows: u32, tid: u32) -> Self {
        let mut of = [0; VECTORS];
        let mut v = 0;
        while v < VECTORS {
            of[v] = (first + (tid + v as u32 * SLICE_THREADS) / Self::QUADS).min(rows - 1);
            v += 1;
        }
        Self { w, rows: of, group: tid % Self::QUADS, tid, format: core::marker::PhantomData }
    }
}

#[inlined]
impl<W: Weights> Load for RowsOf<W> {
    type Stage = [Four<W>; VECTORS];

    unsafe fn load_first(&self, valid: u32) -> Self::Stage {
        let mut stage = [Four::zero(); VECTORS];
        if self.tid % Self::QUADS * 4 < valid {
            // SAFETY: k is a multiple of 4, so four values exist where one does.
            stage = unsafe { self.load() };
        }
        stage
    }

    unsafe fn load(&self) -> Self::Stage {
        let mut stage = [Four::zero(); VECTORS];
        let mut v = 0;
        while v < VECTORS {
            // SAFETY: the caller's tile exists; the rows do.
            stage[v] = unsafe { Four::load(self.w, self.rows[v], self.group) };
            v += 1;
        }
        stage
    }

    fn advance(&mut self, rows: u32) {
        self.group += rows / 4;
    }

    fn place(&self) -> u32 {
        self.tid % Self::QUADS * 4 * STRIDE + turned(self.tid / Self::QUADS)
    }

    unsafe fn store(&self, to: Shared<f32>, stage: Self::Stage) {
        let mut v = 0;
        while v < VECTORS {
            let to = to.at(v as u32 * (SLICE_THREADS / Self::QUADS));
            let [x, y, z, w] = stage[v].values();
            // SAFETY: four rows of one column, inside the tile.
            unsafe {
                to.set_at::<0, STRIDE>(x);
                to.set_at::<1, STRIDE>(y);
                to.set_at::<2, STRIDE>(z);
                to.set_at::<3, STRIDE>(w);
            }
            v += 1;
        }
    }
}

/// For w [k, n]: a thread loads four columns of a row.
#[derive(Clone, Copy)]
struct ColumnsOf<W> {
    w: Matrix,
    row: u32,
    group: u32,
    tid: u32,
    format: core::marker::PhantomData<W>,
}

impl<W: Weights> ColumnsOf<W> {
    /// Pieces of four in a row of the tile, and the distance between two rows of a thread.
    const QUADS: u32 = BN / 4;
    const STEP: u32 = SLICE_THREADS / Self::QUADS;

    /// The columns from `first` on. Columns past the end are read as the last four, and not used.
    #[inline(always)]
    fn new(w: Matrix, first: u32, columns: u32, tid: u32) -> Self {
        let group = (first + tid % Self::QUADS * 4).min(columns - 4) / 4;
        Self { w, row: tid / Self::QUADS, group, tid, format: core::marker::PhantomData }
    }
}

#[inlined]
impl<W: Weights> Load for ColumnsOf<W> {
    type Stage = [Four<W>; VECTORS];

    unsafe fn load_first(&self, valid: u32) -> Self::Stage {
        let mut stage = [Four::zero(); VECTORS];
        let mut v = 0;
        while v < VECTORS {
            if self.tid / Self::QUADS + v as u32 * Self::STEP < valid {
                // SAFETY: the row exists, and n is a multiple of 4.
                stage[v] = unsafe { Four::load(self.w, self.row + v as u32 * Self::STEP, self.group) };
            }
            v += 1;
        }
        stage
    }

    unsafe fn load(&self) -> Self::Stage {
        let mut stage = [Four::zero(); VECTORS];
        let mut v = 0;
        while v < VECTORS {
            // SAFETY: the caller's tile exists in full, and n is a multiple of 4.
            stage[v] = unsafe { Four::load(self.w, self.row + v as u32 * Self::STEP, self.group) };
            v += 1;
        }
        stage
    }

    fn advance(&mut self, rows: u32) {
        self.row += rows;
    }

    fn place(&self) -> u32 {
        self.tid / Self::QUADS * STRIDE + self.tid % Self::QUADS * 4
    }

    unsafe fn store(&self, to: Shared<f32>, stage: Self::Stage) {
        let mut v = 0;
        while v < VECTORS {
            // SAFETY: four columns of one row, inside the tile; the address is a multiple of 16 bytes.
            unsafe { to.set4(v as u32 * Self::STEP * STRIDE, turn(stage[v].values())) };
            v += 1;
        }
    }
}

macro_rules! kernels {
    ($($table:ident $loader:ident { $($name:ident: $W:ident;)* })*) => {
        $($(
            /// # Safety
            /// [`DequantLinear`] constrains the pointers, which are valid on the launching stream, and the numbers;
            /// m, n and k are not 0.
            #[kernel(block = THREADS, min_blocks = 3, module = stringify!($name), shared(shared: [f32; SHARED / 4]))]
            pub unsafe fn $name(p: DequantLinear) {
                let (slice, tid) = (thread::thread_idx_x() / SLICE_THREADS, thread::thread_idx_x() % SLICE_THREADS);
                let product = Product::new(
                    core::ptr::null_mut(), [p.m, p.n, p.n, 0], [1.0, 0.0], p.bias, core::ptr::null(),
                );
                let (k_first, k_count) = k_range(p.k, p.k);
                let (tile_m, tile_n) = tile_place(thread::block_idx_x(), p.m.div_ceil(BM), p.n.div_ceil(BN));
                let (row, column) = (tile_m * BM, tile_n * BN);
                let w = Matrix { quants: p.w, scales: p.w_scales, k: p.w_cols };
                let mut load_a = AlongK::<f32, { BM + PAD }, SLICE_THREADS, VECTORS>::new(p.a, p.k, row, p.m, tid);
                let mut load_b = $loader::<$W>::new(w, column, p.n, tid);
                load_a.advance(k_first + slice * BK);
                load_b.advance(k_first + slice * BK);
                // SAFETY: k is not 0 and inside the operands; n and c are aligned to 4.
                unsafe {
                    tile::<_, _, _, 8, SLICES, SLICE_THREADS, { BM + PAD }, STRIDE, 32, 16, true>(
                        p.c, &product, (row, column), k_count, (load_a, load_b), shared,
                    );
                }
            }
        )*

        /// By format, in the order of Q8_0, Q4_0, Q4_K: grid = [ceil(m / BM) · ceil(n / BN)]
        pub const $table: [KernelSpec<DequantLinear>; 3] = [$($name),*];
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($($name.info(),)*)*];
    };
}

kernels! {
    FORWARD RowsOf {
        dequant_linear_q8_0: Q8_0;
        dequant_linear_q4_0: Q4_0;
        dequant_linear_q4_k: Q4K;
    }
    GRADIENT ColumnsOf {
        dequant_linear_dx_q8_0: Q8_0;
        dequant_linear_dx_q4_0: Q4_0;
        dequant_linear_dx_q4_k: Q4K;
    }
}
