//! Products with few rows: c[i, :] = a[i, :]·b + … for up to M rows i.   b is read once.
//!
//! It is bound by reading b, so every lane keeps several 16-byte loads of b in flight.
//!
//! | kernel                     | b is                  | columns of c are computed by                          |
//! |----------------------------|-----------------------|---------------------------------------------------|
//! | matmul_vector‹M›_nt_‹t›    | row-major [n, k]      | four by one to eight warps, their lanes along k   |
//! | matmul_vector‹M›_nn_‹t›    | row-major [k, n]      | one by one lane in each of 8 warps, warps along k |
//!
//! The nt kernels can also compute the prologue and the epilogue of a transformer's linear map, since a block has all of k:
//!
//! ```text
//! a [m, k] → a / √(mean(a²) + eps) · norm [k] → ·b + bias [n] → activation → + beta·d → c [m, n]
//! ```
//!
//! The norm's factor is the same for all of a row. So the sum of squares is computed along with the product, and the factor
//! is applied at the end. With [`SWIGLU`], columns j and j + n/2 give column j of c: [m, n/2].

use super::product::{batch_offset, k_range, product};
use super::write;
use crate::activate::{IDENTITY, SWIGLU, activate};
use crate::device::math::{fma, rsqrt};
use crate::device::vector::load_raw;
use crate::device::{Element, F16, Shared, Vector};
use crate::float16::Float16;
use cuda_std::KernelInfo;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

/// Warps in a block.
pub const WARPS: u32 = 8;
const THREADS: u32 = WARPS * 32;
/// Columns of b that a warp of the nt kernels reads together, so that each load of a is used for all of them.
pub const NT_COLUMNS: u32 = 4;
const R: usize = NT_COLUMNS as usize;
/// The most rows of the nt kernels.
pub const MAX_M: u32 = 8;
/// The most rows of the nn kernels.
pub const NN_MAX_M: u32 = 4;
/// Columns of c that a block of the nn kernels computes: four per lane.
pub const NN_COLUMNS: u32 = 128;
/// Rows of b that a warp of the nn kernels has in flight.
const NN_ROWS: usize = 4;
/// The length of a split in k is a multiple of this in the nt kernels.
pub const K_STEP: u32 = 256;
/// The length of a split in k is a multiple of this in the nn kernels: what all warps have in flight.
pub const NN_STEP: u32 = WARPS * NN_ROWS as u32;
/// Elements of a warp's sums in shared memory. The nt kernels use M · R of those of products, and M of those of squares.
pub(super) const SUMS: u32 = MAX_M * NT_COLUMNS;

/// Repeats a statement for each column of a warp, or for the constants 0 to `$m` − 1 (at most 7), so that arrays indexed
/// by them are registers.
macro_rules! each {
    (columns $j:ident => $body:expr) => {
        each!(@ $j < NT_COLUMNS => $body; 0 1 2 3)
    };
    ($i:ident < $m:expr => $body:expr) => {
        each!(@ $i < $m => $body; 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident < $m:expr => $body:expr; $($value:literal)*) => {
        {$(if $value < $m {
            const $i: usize = $value;
            $body
        })*}
    };
}

/// The parameters of the nt kernels: fields without a comment are as [`Tile`](super::regtile::Tile) has them, of any alignment.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Nt<A, B, C> {
    /// [batch, m, n]; with [`SWIGLU`] [batch, m, n / 2]
    pub c: *mut C,
    /// [batch, m, k]
    pub a: *const A,
    /// [batch, n, k]
    pub b: *const B,
    pub partial: *mut f32,
    /// At most the kernel's M.
    pub m: u32,
    /// Even with [`SWIGLU`].
    pub n: u32,
    pub k: u32,
    pub lda: u32,
    pub ldb: u32,
    pub ldc: u32,
    pub stride_a: u32,
    pub stride_b: u32,
    pub stride_c: u32,
    /// A multiple of [`K_STEP`] if there are several splits; with a norm or an activation there is only one.
    pub k_chunk: u32,
    pub alpha: f32,
    pub beta: f32,
    pub bias: *const C,
    pub addend: *const C,
    /// 1 if a, b, the norm's weights, leading dimensions and batch strides are multiples of 16 bytes, else 0.
    pub aligned: u32,
    /// [k], or null for no norm
    pub norm: *const A,
    pub eps: f32,
    /// The activation, one of [`activate`](crate::activate)'s numbers.
    pub activation: u32,
    /// 2^log_parts warps of a block share its columns; at most 3.
    pub log_parts: u32,
}

/// The parameters of the nn kernels: fields without a comment are as [`Tile`](super::regtile::Tile) has them, of any alignment.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Nn<A, B, C> {
    /// [batch, m, n]
    pub c: *mut C,
    /// [batch, m, k]
    pub a: *const A,
    /// [batch, k, n]
    pub b: *const B,
    pub partial: *mut f32,
    /// At most the kernel's M.
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub lda: u32,
    pub ldb: u32,
    pub ldc: u32,
    pub stride_a: u32,
    pub stride_b: u32,
    pub stride_c: u32,
    /// A multiple of [`NN_STEP`] if there are several splits.
    pub k_chunk: u32,
    pub alpha: f32,
    pub beta: f32,
    pub bias: *const C,
    pub addend: *const C,
    /// 1 if n, ldb and b's batch stride are multiples of 4 and b is aligned to 4 elements, else 0.
    pub aligned: u32,
}

/// The sums of one lane: of the products of M rows with R columns, and of the rows' squares.
struct Sums<const M: usize> {
    products: [[f32; R]; M],
    squares: [f32; M],
}

#[inlined]
impl<const M: usize> Sums<M> {
    /// Adds the products of one vector of each column, `words`, with the rows' elements from `at` on.
    ///
    /// # Safety
    /// The rows of a and the norm's weights are valid from `at` on for a vector's elements, aligned to 16 bytes.
    unsafe fn add<A: Element, B: Vector>(
        &mut self,
        words: [[u32; 4]; R],
        rows: [*const A; M],
        norm: *const A,
        at: u32,
    ) {
        let mut weights = B::splat(1.0);
        // SAFETY: the caller's rows and weights have a vector's elements from `at` on, aligned.
        unsafe {
            if !norm.is_null() {
                weights = B::load_other(norm.add(at as usize));
            }
            each!(I < M => {
                let mut x = B::load_other(rows[I].add(at as usize));
                if !norm.is_null() {
                    x = B::zip(x, weights, |x, weight| {
                        self.squares[I] = fma(x, x, self.squares[I]);
                        x * weight
                    });
                }
                each!(columns J => {
                    // unpacked only here: eight values of each column would take too many registers
                    B::zip(x, B::unpack(words[J]), |x, y| {
                        self.products[I][J] = fma(x, y, self.products[I][J]);
                        x
                    });
                });
            });
        }
    }

    /// As [`add`](Self::add), for the single element `at` and the first elements of the columns.
    ///
    /// # Safety
    /// The element exists in all operands.
    unsafe fn add_one<A: Element, B: Element>(
        &mut self,
        columns: [*const B; R],
        rows: [*const A; M],
        norm: *const A,
        at: u32,
    ) {
        let at = at as usize;
        // SAFETY: the caller's element exists in the columns, the rows and the weights.
        unsafe {
            let from_b = columns.map(|column| B::load(column));
            let weight = if norm.is_null() { 1.0 } else { A::load(norm.add(at)) };
            each!(I < M => {
                let x = A::load(rows[I].add(at));
                self.squares[I] = fma(x, x, self.squares[I]);
                each!(columns J => self.products[I][J] = fma(x * weight, from_b[J], self.products[I][J]));
            });
        }
    }
}

/// Computes R columns of c by 2^`log_parts` warps, each with its part of every 32 · 2^`log_parts` vectors of k.
///
/// # Safety
/// [`Nt`] constrains the pointers, which are valid on the launching stream, and the numbers; the grid is that of the
/// kernels, and all threads of the block are here. `all_products` and `all_squares`: [WARPS, [`SUMS`]].
#[inline(always)]
pub(super) unsafe fn nt<A: Element, B: Vector, C: Element, const M: usize, const STEPS: usize>(
    p: Nt<A, B, C>,
    all_products: Shared<f32>,
    all_squares: Shared<f32>,
) {
    let Nt { lda, ldb, aligned, norm, activation, log_parts, .. } = p;
    let product = product!(p);
    let c = p.c.wrapping_add(batch_offset(p.stride_c));
    let a = p.a.wrapping_add(batch_offset(p.stride_a));
    let b = p.b.wrapping_add(batch_offset(p.stride_b));
    let (k_first, k_count) = k_range(p.k, p.k_chunk);

    // place: without a gate, the columns of a warp are neighbours; with one, two neighbours and their partners
    let (tid, lane) = (thread::thread_idx_x(), warp::lane_id());
    let (groups, part) = (WARPS >> log_parts, (tid / 32) % (1 << log_parts));
    let gated = activation == SWIGLU;
    let (across, between, width) = if gated { (2, product.n / 2, product.n / 2) } else { (4, 0, product.n) };
    let place = |group: u32, j: u32| {
        ((thread::block_idx_x() * groups + group) * across + j % across, if gated { j / 2 } else { 0 })
    };
    let mut columns = [0; R];
    each!(columns J => {
        // columns past the end are read as the last one, and not written
        let (column, partner) = place((tid / 32) >> log_parts, J as u32);
        let column = column.min(width - 1) + partner * between;
        columns[J] = column * ldb + k_first;
    });
    let mut rows = [a; M];
    each!(I < M => rows[I] = a.wrapping_add(((I as u32).min(product.m - 1) * lda + k_first) as usize));

    let mut sums = Sums::<M> { products: [[0.0; R]; M], squares: [0.0; M] };
    let stride = (32 * B::LEN) << log_parts;
    let mut at = (part * 32 + lane) * B::LEN;
    // SAFETY: every element read is below k_count in a row and a column that exist; all threads are at the shuffles and
    // the barrier, after which the sums are only read.
    unsafe {
        if aligned != 0 {
            let steps = STEPS as u32;
            while at + (steps - 1) * stride + B::LEN <= k_count {
                // load
                let mut words = [[[0; 4]; R]; STEPS];
                each!(S < STEPS => each!(columns J => {
                    words[S][J] = load_raw(b.add((columns[J] + at + S as u32 * stride) as usize));
                }));
                // compute
                each!(S < STEPS => sums.add::<A, B>(words[S], rows, norm, at + S as u32 * stride));
                at += steps * stride;
            }
            while at + B::LEN <= k_count {
                let words = columns.map(|column| load_raw(b.add((column + at) as usize)));
                sums.add::<A, B>(words, rows, norm, at);
                at += stride;
            }
            at = k_count / B::LEN * B::LEN;
        } else {
            at = 0;
        }
        at += part * 32 + lane;
        while at < k_count {
            sums.add_one(columns.map(|column| b.add((column + at) as usize)), rows, norm, at);
            at += 32 << log_parts;
        }

        // sync: lane i · R + j has the product (i, j), lane i the squares of row i
        let (mut own, mut squares) = (0.0, 0.0);
        each!(I < M => {
            let sum = Sum.over::<32>(sums.squares[I]);
            squares = if lane == I as u32 { sum } else { squares };
            each!(columns J => {
                let sum = Sum.over::<32>(sums.products[I][J]);
                own = if lane == (I * R + J) as u32 { sum } else { own };
            });
        });
        if lane < (M * R) as u32 {
            all_products.set(tid / 32 * (M * R) as u32 + lane, own);
            all_squares.set(tid / 32 * (M * R) as u32 + lane, squares);
        }
        sync_threads();

        // write: each thread one element
        let (group, row, j) = (tid / NT_COLUMNS / M as u32, tid / NT_COLUMNS % M as u32, tid % NT_COLUMNS);
        let (column, partner) = place(group, j);
        if group >= groups || row >= product.m || column >= width || partner != 0 {
            return;
        }
        let total = |sums: Shared<f32>, index: u32| {
            let mut sum = 0.0;
            let mut warp = group << log_parts;
            while warp < (group + 1) << log_parts {
                sum += sums.get(warp * (M * R) as u32 + index);
                warp += 1;
            }
            sum
        };
        let mut factor = 1.0;
        if !norm.is_null() {
            factor = rsqrt(total(all_squares, row) / k_count as f32 + p.eps);
        }
        let sum = factor * total(all_products, row * NT_COLUMNS + j);
        if activation == IDENTITY {
            return write::one(c, &product, row, column, sum);
        }
        let mut value = activate(product.scaled(column, sum), activation);
        if gated {
            let partner = factor * total(all_products, row * NT_COLUMNS + j + across);
            value *= product.scaled(column + between, partner);
        }
        let at = row * p.ldc + column;
        *c.add(at as usize) = C::from_f32(product.added(at, value));
    }
}

/// Computes four columns of c per lane of each warp.
///
/// # Safety
/// [`Nn`] constrains the pointers, which are valid on the launching stream, and the numbers; the grid is that of the
/// kernels, and all threads of the block are here. `sums`: [WARPS, M, NN_COLUMNS].
#[inline(always)]
unsafe fn nn<A: Element, B: Element, C: Element, const M: usize>(p: Nn<A, B, C>, sums: Shared<f32>) {
    let Nn { lda, ldb, aligned, .. } = p;
    let product = product!(p);
    let c = p.c.wrapping_add(batch_offset(p.stride_c));
    let a = p.a.wrapping_add(batch_offset(p.stride_a));
    let b = p.b.wrapping_add(batch_offset(p.stride_b));
    let (k_first, k_count) = k_range(p.k, p.k_chunk);
    let (tid, warp, lane) =
        (thread::thread_idx_x(), thread::thread_idx_x() / 32, thread::thread_idx_x() % 32);
    let column = thread::block_idx_x() * NN_COLUMNS + lane * 4;
    let (first, between) = (k_first + warp, (WARPS * ldb) as usize);
    let mut b = b.wrapping_add((first * ldb + column) as usize);
    // rows past the end are read as the last one, and not written
    let mut rows = [a; M];
    each!(I < M => rows[I] = a.wrapping_add(((I as u32).min(product.m - 1) * lda + first) as usize));
    let mut acc = [[0.0; 4]; M];
    let mut at = warp;
    // SAFETY: every element read is in a row below k_count and a column below n; with `aligned`, n is a multiple of 4.
    // All threads are at the barrier, and after it the sums are only read.
    unsafe {
        if aligned != 0 && column < product.n {
            while at + (NN_ROWS as u32 - 1) * WARPS < k_count {
                let mut from_b = [[0.0; 4]; NN_ROWS];
                let mut s = 0;
                while s < NN_ROWS {
                    from_b[s] = B::load4(b);
                    b = b.wrapping_add(between);
                    s += 1;
                }
                let mut s = 0;
                while s < NN_ROWS {
                    each!(I < M => {
                        let from_a = A::load(rows[I].add(s * WARPS as usize));
                        each!(columns J => acc[I][J] = fma(from_a, from_b[s][J], acc[I][J]));
                    });
                    s += 1;
                }
                each!(I < M => rows[I] = rows[I].wrapping_add(NN_STEP as usize));
                at += NN_STEP;
            }
        }
        while at < k_count {
            each!(columns J => {
                if column + (J as u32) < product.n {
                    let from_b = B::load(b.add(J));
                    each!(I < M => acc[I][J] = fma(A::load(rows[I]), from_b, acc[I][J]));
                }
            });
            b = b.wrapping_add(between);
            each!(I < M => rows[I] = rows[I].wrapping_add(WARPS as usize));
            at += WARPS;
        }
        each!(I < M => sums.set4((warp * M as u32 + I as u32) * NN_COLUMNS + lane * 4, acc[I]));
        sync_threads();
        let mut own = tid;
        while own < M as u32 * NN_COLUMNS {
            let (row, column) = (own / NN_COLUMNS, thread::block_idx_x() * NN_COLUMNS + own % NN_COLUMNS);
            if row < product.m && column < product.n {
                let mut sum = sums.get(own);
                let mut w = 1;
                while w < WARPS {
                    sum += sums.get(w * M as u32 * NN_COLUMNS + own);
                    w += 1;
                }
                write::one(c, &product, row, column, sum);
            }
            own += THREADS;
        }
    }
}

/// Resident blocks per multiprocessor that the registers of the nt kernels allow.
const fn nt_blocks(m: u32) -> u32 {
    match m {
        1 => 3,
        4 => 2,
        _ => 1,
    }
}

/// Resident blocks per multiprocessor that the registers of the nn kernels allow.
const fn nn_blocks(m: u32) -> u32 {
    if m == 1 { 8 } else { 4 }
}

macro_rules! kernels {
    (
        nt { $($nt:ident $nt_module:literal: $M:literal, $STEPS:literal, $nt_A:ty, $nt_B:ty, $nt_C:ty;)* }
        nn { $($nn:ident $nn_module:literal: $nn_M:literal, $nn_A:ty, $nn_B:ty, $nn_C:ty;)* }
    ) => {
        $(
            /// grid = [ceil(n / (NT_COLUMNS · WARPS / 2^log_parts)), splits, batch]
            ///
            /// # Safety
            /// [`Nt`] constrains the pointers, which are valid on the launching stream, and the numbers.
            #[kernel(
                block = THREADS, min_blocks = nt_blocks($M), module = $nt_module,
                shuffles = 5 * $M * (NT_COLUMNS + 1), shared(products: [f32; WARPS * SUMS], squares: [f32; WARPS * SUMS])
            )]
            pub unsafe fn $nt(p: Nt<$nt_A, $nt_B, $nt_C>) {
                // SAFETY: the parameters and the grid fulfil the body's contract, and all threads call it.
                unsafe { nt::<_, _, _, $M, $STEPS>(p, products, squares) }
            }
        )*

        $(
            /// grid = [ceil(n / NN_COLUMNS), splits, batch]
            ///
            /// # Safety
            /// [`Nn`] constrains the pointers, which are valid on the launching stream, and the numbers.
            #[kernel(
                block = THREADS, min_blocks = nn_blocks($nn_M), module = $nn_module,
                shared(sums: [f32; WARPS * $nn_M * NN_COLUMNS])
            )]
            pub unsafe fn $nn(p: Nn<$nn_A, $nn_B, $nn_C>) {
                // SAFETY: the parameters and the grid fulfil the body's contract, and all threads call it.
                unsafe { nn::<_, _, _, $nn_M>(p, sums) }
            }
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($nt.info(),)* $($nn.info(),)*];
    };
}

kernels! {
    nt {
        matmul_vector1_nt_f32 "matmul_vector_nt_f32": 1, 2, f32, f32, f32;
        matmul_vector4_nt_f32 "matmul_vector_nt_f32": 4, 2, f32, f32, f32;
        matmul_vector8_nt_f32 "matmul_vector_nt_f32": 8, 1, f32, f32, f32;
        matmul_vector1_nt_f16 "matmul_vector_nt_f16": 1, 2, F16, F16, F16;
        matmul_vector4_nt_f16 "matmul_vector_nt_f16": 4, 1, F16, F16, F16;
        matmul_vector8_nt_f16 "matmul_vector_nt_f16": 8, 1, F16, F16, F16;
        matmul_vector1_nt_mixed "matmul_vector_nt_mixed": 1, 2, f32, F16, f32;
        matmul_vector4_nt_mixed "matmul_vector_nt_mixed": 4, 1, f32, F16, f32;
        matmul_vector8_nt_mixed "matmul_vector_nt_mixed": 8, 1, f32, F16, f32;
        matmul_vector1_nt_e4 "matmul_vector_nt_e4": 1, 1, f32, Float16<4>, f32;
        matmul_vector1_nt_e8 "matmul_vector_nt_e8": 1, 1, f32, Float16<8>, f32;
    }
    nn {
        matmul_vector1_nn_f32 "matmul_vector_nn_f32": 1, f32, f32, f32;
        matmul_vector4_nn_f32 "matmul_vector_nn_f32": 4, f32, f32, f32;
        matmul_vector1_nn_f16 "matmul_vector_nn_f16": 1, F16, F16, F16;
        matmul_vector4_nn_f16 "matmul_vector_nn_f16": 4, F16, F16, F16;
        matmul_vector1_nn_mixed "matmul_vector_nn_mixed": 1, f32, F16, f32;
        matmul_vector4_nn_mixed "matmul_vector_nn_mixed": 4, f32, F16, f32;
    }
}
