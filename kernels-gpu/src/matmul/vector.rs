//! Products with few rows: c[i, :] = a[i, :]·b + … for up to M rows i.   b is read once.
//!
//! Bound by the memory that b lies in, so every lane keeps several 16-byte loads of b on their way.
//!
//! | kernel                     | b is                  | columns of c are made by                          |
//! |----------------------------|-----------------------|---------------------------------------------------|
//! | matmul_vector‹M›_nt_‹t›    | row-major [n, k]      | four by one to eight warps, their lanes along k   |
//! | matmul_vector_nn_‹t›       | row-major [k, n]      | one by one lane in each of 8 warps, warps along k |
//!
//! The nt kernels can do what stands before and behind a product in a transformer's block, since a block has all of k:
//!
//! ```text
//! a [m, k] → a / √(mean(a²) + eps) · norm [k] → ·b + bias [n] → activation → + beta·d → c [m, n]
//! ```
//!
//! The norm's factor is the same for all of a row, so the sum of squares is taken beside the product and multiplies it at
//! the end. With [`SWIGLU`], columns j and j + n/2 make column j of c: [m, n/2].

use super::{Product, write};
use crate::activate::{IDENTITY, SWIGLU, activate};
use crate::device::math::{fma, rsqrt};
use crate::device::vector::load_raw;
use crate::device::{Element, F16, Vector, reduce, shared};
use crate::float16::Float16;
use crate::spec::KernelSpec;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

/// Warps in a block.
pub const WARPS: u32 = 8;
const THREADS: u32 = WARPS * 32;
/// Columns of b that a warp of the nt kernels reads beside each other, so that what it loads of a serves them all.
pub const NT_COLUMNS: u32 = 4;
const R: usize = NT_COLUMNS as usize;
/// The most rows of the nt kernels.
pub const MAX_M: u32 = 8;
/// Columns of c that a block of the nn kernels makes: four for every lane.
pub const NN_COLUMNS: u32 = 128;
/// Rows of b that a warp of the nn kernels has on their way at a time.
const NN_ROWS: usize = 4;
/// What a split of k must be a multiple of.
pub const K_STEP: u32 = 256;

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

/// What the nt kernels do beside the product.
#[derive(Clone, Copy)]
struct Around<A> {
    /// [k], or null for no norm.
    norm: *const A,
    eps: f32,
    /// One of [`activate`](crate::activate)'s.
    activation: u32,
}

/// The sums of one lane: of the products of M rows with R columns, and of the rows' squares.
struct Sums<const M: usize> {
    products: [[f32; R]; M],
    squares: [f32; M],
}

impl<const M: usize> Sums<M> {
    /// Adds the products of one vector of each column, `words`, with the elements `at` of each row.
    ///
    /// # Safety
    /// The rows of a and the norm's weights are valid from `at` on for a vector's elements, aligned to 16 bytes.
    #[inline(always)]
    unsafe fn add<A: Element, B: Vector>(
        &mut self,
        words: [[u32; 4]; R],
        rows: [*const A; M],
        norm: *const A,
        at: u32,
    ) {
        let mut weights = B::splat(1.0);
        // SAFETY: as the caller promises.
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
                    // unpacked only now: eight values of each column would be too many registers
                    B::zip(x, B::unpack(words[J]), |x, y| {
                        self.products[I][J] = fma(x, y, self.products[I][J]);
                        x
                    });
                });
            });
        }
    }

    /// As [`add`](Self::add), for the single element `at`, which the columns begin with.
    ///
    /// # Safety
    /// It exists in all.
    #[inline(always)]
    unsafe fn add_one<A: Element, B: Element>(
        &mut self,
        columns: [*const B; R],
        rows: [*const A; M],
        norm: *const A,
        at: u32,
    ) {
        let at = at as usize;
        // SAFETY: as the caller promises.
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

/// R columns of c by 2^`log_parts` warps, each with its part of every 32 · 2^`log_parts` vectors of k.
///
/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn nt<A: Element, B: Vector, C: Element, const M: usize, const STEPS: usize>(
    c: *mut C,
    a: *const A,
    b: *const B,
    p: &Product<C>,
    (k_first, k_count): (u32, u32),
    [lda, ldb]: [u32; 2],
    aligned: u32,
    around: Around<A>,
    log_parts: u32,
) {
    // [WARPS][M · R]: of the second only the first M of each warp count
    let all_products = shared::declare::<f32, { (WARPS * MAX_M * NT_COLUMNS) as usize }>();
    let all_squares = shared::declare::<f32, { (WARPS * MAX_M * NT_COLUMNS) as usize }>();

    // place: plain, the columns of a warp are neighbours; gated, two neighbours and their partners
    let (tid, lane) = (thread::thread_idx_x(), warp::lane_id());
    let (groups, part) = (WARPS >> log_parts, (tid / 32) % (1 << log_parts));
    let gated = around.activation == SWIGLU;
    let (across, between, width) = if gated { (2, p.n / 2, p.n / 2) } else { (4, 0, p.n) };
    let place = |group: u32, j: u32| {
        ((thread::block_idx_x() * groups + group) * across + j % across, if gated { j / 2 } else { 0 })
    };
    let mut columns = [0; R];
    each!(columns J => {
        // columns that do not exist are read as the last one, and not written
        let (column, partner) = place((tid / 32) >> log_parts, J as u32);
        let column = column.min(width - 1) + partner * between;
        columns[J] = column * ldb + k_first;
    });
    let mut rows = [a; M];
    each!(I < M => rows[I] = a.wrapping_add(((I as u32).min(p.m - 1) * lda + k_first) as usize));

    let mut sums = Sums::<M> { products: [[0.0; R]; M], squares: [0.0; M] };
    let stride = (32 * B::LEN) << log_parts;
    let mut at = (part * 32 + lane) * B::LEN;
    // SAFETY: every element read is below k_count in a row and a column that exist; all threads are at the shuffles and
    // the barrier, behind which the sums are only read.
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
                each!(S < STEPS => sums.add::<A, B>(words[S], rows, around.norm, at + S as u32 * stride));
                at += steps * stride;
            }
            while at + B::LEN <= k_count {
                let words = columns.map(|column| load_raw(b.add((column + at) as usize)));
                sums.add::<A, B>(words, rows, around.norm, at);
                at += stride;
            }
            at = k_count / B::LEN * B::LEN;
        } else {
            at = 0;
        }
        at += part * 32 + lane;
        while at < k_count {
            sums.add_one(columns.map(|column| b.add((column + at) as usize)), rows, around.norm, at);
            at += 32 << log_parts;
        }

        // sync: lane i · R + j has the product (i, j), lane i the squares of row i
        let (mut product, mut squares) = (0.0, 0.0);
        each!(I < M => {
            let sum = Sum.over::<32>(sums.squares[I]);
            squares = if lane == I as u32 { sum } else { squares };
            each!(columns J => {
                let sum = Sum.over::<32>(sums.products[I][J]);
                product = if lane == (I * R + J) as u32 { sum } else { product };
            });
        });
        if lane < (M * R) as u32 {
            all_products.set(tid / 32 * (M * R) as u32 + lane, product);
            all_squares.set(tid / 32 * (M * R) as u32 + lane, squares);
        }
        sync_threads();

        // write: each thread one element
        let (group, row, j) = (tid / NT_COLUMNS / M as u32, tid / NT_COLUMNS % M as u32, tid % NT_COLUMNS);
        let (column, partner) = place(group, j);
        if group >= groups || row >= p.m || column >= width || partner != 0 {
            return;
        }
        let total = |sums: shared::Shared<f32>, index: u32| {
            let mut sum = 0.0;
            let mut warp = group << log_parts;
            while warp < (group + 1) << log_parts {
                sum += sums.get(warp * (M * R) as u32 + index);
                warp += 1;
            }
            sum
        };
        let mut factor = 1.0;
        if !around.norm.is_null() {
            factor = rsqrt(total(all_squares, row) / k_count as f32 + around.eps);
        }
        let product = factor * total(all_products, row * NT_COLUMNS + j);
        if around.activation == IDENTITY {
            return write::one(c, p, row, column, product);
        }
        let mut value = activate(p.scaled(column, product), around.activation);
        if gated {
            let partner = factor * total(all_products, row * NT_COLUMNS + j + across);
            value *= p.scaled(column + between, partner);
        }
        let at = row * p.ldc + column;
        *c.add(at as usize) = C::from_f32(p.added(at, value));
    }
}

/// Four columns of c by one lane of each warp.
///
/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn nn<A: Element, B: Element, C: Element>(
    c: *mut C,
    a: *const A,
    b: *const B,
    p: &Product<C>,
    (k_first, k_count): (u32, u32),
    ldb: u32,
    aligned: u32,
) {
    let sums = shared::declare::<f32, { (WARPS * NN_COLUMNS) as usize }>();
    let (warp, lane) = (thread::thread_idx_x() / 32, thread::thread_idx_x() % 32);
    let column = thread::block_idx_x() * NN_COLUMNS + lane * 4;
    let a = a.wrapping_add(k_first as usize);
    let b = b.wrapping_add((k_first * ldb + column) as usize);
    let mut acc = [0.0; 4];
    let mut at = warp;
    // SAFETY: every element read is in a row below k_count and a column below n; with `aligned`, n is a multiple of 4.
    // All threads are at the barrier, and behind it the sums are only read.
    unsafe {
        if aligned != 0 && column < p.n {
            while at + (NN_ROWS as u32 - 1) * WARPS < k_count {
                let mut from_b = [[0.0; 4]; NN_ROWS];
                let mut s = 0;
                while s < NN_ROWS {
                    from_b[s] = B::load4(b.add(((at + s as u32 * WARPS) * ldb) as usize));
                    s += 1;
                }
                let mut s = 0;
                while s < NN_ROWS {
                    let from_a = A::load(a.add((at + s as u32 * WARPS) as usize));
                    let mut j = 0;
                    while j < 4 {
                        acc[j] = fma(from_a, from_b[s][j], acc[j]);
                        j += 1;
                    }
                    s += 1;
                }
                at += NN_ROWS as u32 * WARPS;
            }
        }
        while at < k_count {
            let from_a = A::load(a.add(at as usize));
            let mut j = 0;
            while j < 4 {
                if column + (j as u32) < p.n {
                    acc[j] = fma(from_a, B::load(b.add((at * ldb) as usize + j)), acc[j]);
                }
                j += 1;
            }
            at += WARPS;
        }
        sums.set4(warp * NN_COLUMNS + lane * 4, acc);
        sync_threads();
        let own = thread::thread_idx_x();
        let column = thread::block_idx_x() * NN_COLUMNS + own;
        if own < NN_COLUMNS && column < p.n {
            let mut sum = sums.get(own);
            let mut w = 1;
            while w < WARPS {
                sum += sums.get(w * NN_COLUMNS + own);
                w += 1;
            }
            write::one(c, p, 0, column, sum);
        }
    }
}

macro_rules! kernels {
    ($($name:ident: $body:ident $(<$M:literal, $STEPS:literal, $blocks:literal>)?, $A:ty, $B:ty, $C:ty;)*) => {$(
        kernels!(@ $body $($M $STEPS $blocks)?, $name, $A, $B, $C);
    )*};
    (@ nt $M:literal $STEPS:literal $blocks:literal, $name:ident, $A:ty, $B:ty, $C:ty) => {
        /// # Safety
        /// `c`, `a`, `b` as [`Product`] says, m at most the kernel's M; `aligned` is zero, or a, b, the norm's weights,
        /// leading dimensions and batch strides are multiples of 16 bytes; `log_parts` ≤ 3. With a norm ([k], else null) or an
        /// activation, k is not split; with [`SWIGLU`], n is even and c is [m, n/2]. Launched as its spec says.
        #[kernel(launch_bounds(THREADS, $blocks))]
        pub unsafe fn $name(
            c: *mut $C, a: *const $A, b: *const $B, partial: *mut f32,
            m: u32, n: u32, k: u32, lda: u32, ldb: u32, ldc: u32,
            stride_a: u32, stride_b: u32, stride_c: u32, k_chunk: u32, alpha: f32, beta: f32,
            bias: *const $C, addend: *const $C, aligned: u32,
            norm: *const $A, eps: f32, activation: u32, log_parts: u32,
        ) {
            let p = Product::new(partial, [m, n, ldc, stride_c], [alpha, beta], bias, addend);
            let batch = thread::block_idx_z();
            let c = c.wrapping_add((batch * stride_c) as usize);
            let a = a.wrapping_add((batch * stride_a) as usize);
            let b = b.wrapping_add((batch * stride_b) as usize);
            let around = Around { norm, eps, activation };
            let k = super::k_range(k, k_chunk);
            // SAFETY: this kernel's contract is the body's.
            unsafe { nt::<_, _, _, $M, $STEPS>(c, a, b, &p, k, [lda, ldb], aligned, around, log_parts) }
        }
    };
    (@ nn , $name:ident, $A:ty, $B:ty, $C:ty) => {
        /// # Safety
        /// `c`, `a`, `b` as [`Product`] says, m = 1; `aligned` is zero, or n, ldb and b's batch stride are multiples of
        /// 4 and b is aligned to 4 elements; launched as its spec says.
        #[kernel(launch_bounds(THREADS))]
        pub unsafe fn $name(
            c: *mut $C, a: *const $A, b: *const $B, partial: *mut f32,
            m: u32, n: u32, k: u32, lda: u32, ldb: u32, ldc: u32,
            stride_a: u32, stride_b: u32, stride_c: u32, k_chunk: u32, alpha: f32, beta: f32,
            bias: *const $C, addend: *const $C, aligned: u32,
        ) {
            let _ = lda;
            let p = Product::new(partial, [m, n, ldc, stride_c], [alpha, beta], bias, addend);
            let batch = thread::block_idx_z();
            let c = c.wrapping_add((batch * stride_c) as usize);
            let a = a.wrapping_add((batch * stride_a) as usize);
            let b = b.wrapping_add((batch * stride_b) as usize);
            // SAFETY: this kernel's contract is the body's.
            unsafe { nn(c, a, b, &p, super::k_range(k, k_chunk), ldb, aligned) }
        }
    };
}

kernels! {
    matmul_vector1_nt_f32: nt<1, 2, 3>, f32, f32, f32;
    matmul_vector1_nt_f16: nt<1, 2, 3>, F16, F16, F16;
    matmul_vector1_nt_mixed: nt<1, 2, 3>, f32, F16, f32;
    matmul_vector4_nt_f32: nt<4, 2, 2>, f32, f32, f32;
    matmul_vector4_nt_f16: nt<4, 1, 2>, F16, F16, F16;
    matmul_vector4_nt_mixed: nt<4, 1, 2>, f32, F16, f32;
    matmul_vector8_nt_f32: nt<8, 1, 1>, f32, f32, f32;
    matmul_vector8_nt_f16: nt<8, 1, 1>, F16, F16, F16;
    matmul_vector8_nt_mixed: nt<8, 1, 1>, f32, F16, f32;
    matmul_vector1_nt_e4: nt<1, 1, 3>, f32, Float16<4>, f32;
    matmul_vector1_nt_e8: nt<1, 1, 3>, f32, Float16<8>, f32;
    matmul_vector_nn_f32: nn, f32, f32, f32;
    matmul_vector_nn_f16: nn, F16, F16, F16;
    matmul_vector_nn_mixed: nn, f32, F16, f32;
}

const fn nt_spec(name: &'static str, m: u32) -> KernelSpec {
    let shared = 2 * 4 * WARPS * MAX_M * NT_COLUMNS;
    let blocks = match m {
        1 => 3,
        4 => 2,
        _ => 1,
    };
    KernelSpec::new(name, THREADS).min_blocks(blocks).shared_bytes(shared).shuffles(5 * m * (NT_COLUMNS + 1))
}

const fn nn_spec(name: &'static str) -> KernelSpec {
    KernelSpec::new(name, THREADS).shared_bytes(WARPS * NN_COLUMNS * 4)
}

/// [M = 1, 4, 8][f32, f16, mixed]. grid = [ceil(n / (NT_COLUMNS · WARPS / 2^log_parts)), splits, batch]
pub const NT: [[KernelSpec; 3]; 3] = [
    [
        nt_spec("matmul_vector1_nt_f32", 1),
        nt_spec("matmul_vector1_nt_f16", 1),
        nt_spec("matmul_vector1_nt_mixed", 1),
    ],
    [
        nt_spec("matmul_vector4_nt_f32", 4),
        nt_spec("matmul_vector4_nt_f16", 4),
        nt_spec("matmul_vector4_nt_mixed", 4),
    ],
    [
        nt_spec("matmul_vector8_nt_f32", 8),
        nt_spec("matmul_vector8_nt_f16", 8),
        nt_spec("matmul_vector8_nt_mixed", 8),
    ],
];

/// [f32, f16, mixed], m = 1. grid = [ceil(n / NN_COLUMNS), splits, batch]
pub const NN: [KernelSpec; 3] =
    [nn_spec("matmul_vector_nn_f32"), nn_spec("matmul_vector_nn_f16"), nn_spec("matmul_vector_nn_mixed")];

/// a f32, b in a 16-bit format of 4 or 8 exponent bits, c f32, one row: [4, 8]. grid as [`NT`].
pub const NT_CODED: [KernelSpec; 2] =
    [nt_spec("matmul_vector1_nt_e4", 1), nt_spec("matmul_vector1_nt_e8", 1)];

/// All kernels of this file but [`NN`] and [`NT_CODED`].
pub const KERNELS: &[KernelSpec] = NT.as_flattened();
