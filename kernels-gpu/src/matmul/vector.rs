//! Products with few rows: c[i, :] = alpha·a[i, :]·b + beta·c[i, :] for up to M rows i.   b is read once.
//!
//! Bound by the memory that b lies in, so every lane keeps several 16-byte loads of b on their way.
//!
//! | kernel                     | b is                  | a column of c is made by                      |
//! |----------------------------|-----------------------|-----------------------------------------------|
//! | matmul_vector‹M›_nt_‹t›    | row-major [n, k]      | one warp, its lanes along k                   |
//! | matmul_vector_nn_‹t›       | row-major [k, n]      | one lane in each of 8 warps, the warps along k |

use super::{Product, write};
use crate::device::math::fma;
use crate::device::{Element, F16, reduce, shared};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

/// Warps in a block.
const WARPS: u32 = 8;
const THREADS: u32 = WARPS * 32;
/// Elements that a lane takes at a time.
const WIDTH: u32 = 8;
/// Columns of c that a block of the nt kernels makes.
pub const NT_COLUMNS: u32 = WARPS;
/// Columns of c that a block of the nn kernels makes: four for every lane.
pub const NN_COLUMNS: u32 = 128;
/// Rows of b that a warp of the nn kernels has on their way at a time.
const NN_ROWS: usize = 4;
/// What a split of k must be a multiple of.
pub const K_STEP: u32 = 256;

/// Repeats a statement for the constants 0 to `$m` − 1 (at most 7), so that arrays indexed by them are registers.
macro_rules! each_row {
    ($i:ident < $m:ident => $body:expr) => {
        each_row!(@ $i < $m => $body; 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident < $m:ident => $body:expr; $($value:literal)*) => {
        {$(if $value < $m {
            const $i: usize = $value;
            $body
        })*}
    };
}

/// acc[i] += a[i, at..at + 8 · STEPS by lane] · b[same].
///
/// # Safety
/// `a`: M rows `lda` apart, `b`: valid from `at` on for the lane's 8 elements of each of `STEPS` steps of 256, aligned
/// to 16 bytes.
#[inline(always)]
unsafe fn dot<A: Element, B: Element, const M: usize, const STEPS: usize>(
    acc: &mut [f32; M],
    a: [*const A; M],
    b: *const B,
    at: u32,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut from_b = [[0.0; WIDTH as usize]; STEPS];
        let mut s = 0;
        while s < STEPS {
            from_b[s] = B::load8(b.add((at + s as u32 * 32 * WIDTH) as usize));
            s += 1;
        }
        each_row!(I < M => {
            let mut s = 0;
            while s < STEPS {
                let from_a = A::load8(a[I].add((at + s as u32 * 32 * WIDTH) as usize));
                let mut j = 0;
                while j < WIDTH as usize {
                    acc[I] = fma(from_a[j], from_b[s][j], acc[I]);
                    j += 1;
                }
                s += 1;
            }
        });
    }
}

/// One column of c by one warp.
///
/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn nt<A: Element, B: Element, C: Element, const M: usize>(
    c: *mut C,
    a: *const A,
    b: *const B,
    p: &Product,
    (k_first, k_count): (u32, u32),
    lda: u32,
    ldb: u32,
    aligned: u32,
) {
    let column = thread::block_idx_x() * NT_COLUMNS + thread::thread_idx_x() / 32;
    if column >= p.n {
        return; // whole warps only, so the shuffles below have all lanes
    }
    let lane = warp::lane_id();
    let b = b.wrapping_add((column * ldb + k_first) as usize);
    let mut rows = [a; M];
    // rows that do not exist are read as the last one, and not written
    each_row!(I < M => rows[I] = a.wrapping_add(((I as u32).min(p.m - 1) * lda + k_first) as usize));
    let mut acc = [0.0; M];
    let mut at = 0;
    // SAFETY: every element read is below k_count in a row that exists; all lanes of the warp are at the shuffles.
    unsafe {
        if aligned != 0 {
            const TWO: u32 = 2 * 32 * WIDTH;
            while at + TWO <= k_count {
                dot::<A, B, M, 2>(&mut acc, rows, b, at + lane * WIDTH);
                at += TWO;
            }
            while at + (lane + 1) * WIDTH <= k_count {
                dot::<A, B, M, 1>(&mut acc, rows, b, at + lane * WIDTH);
                at += 32 * WIDTH;
            }
            at = k_count / WIDTH * WIDTH;
        }
        at += lane;
        while at < k_count {
            let from_b = B::load(b.add(at as usize));
            each_row!(I < M => acc[I] = fma(A::load(rows[I].add(at as usize)), from_b, acc[I]));
            at += 32;
        }
        each_row!(I < M => {
            let sum = reduce::warp(acc[I], 32, |x, y| x + y);
            if lane == 0 && (I as u32) < p.m {
                write::one(c, p, I as u32, column, sum);
            }
        });
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
    p: &Product,
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
    ($($name:ident: $body:ident $(<$M:literal>)?, $A:ty, $B:ty, $C:ty;)*) => {$(
        kernels!(@ $body $($M)?, $name, $A, $B, $C);
    )*};
    (@ nt $M:literal, $name:ident, $A:ty, $B:ty, $C:ty) => {
        /// # Safety
        /// `c`, `a`, `b` as [`Product`] says, m at most the kernel's M; `aligned` is zero, or a, b, their leading
        /// dimensions and batch strides are multiples of 16 bytes; launched as its spec says.
        #[kernel(launch_bounds(THREADS))]
        pub unsafe fn $name(
            c: *mut $C, a: *const $A, b: *const $B, partial: *mut f32,
            m: u32, n: u32, k: u32, lda: u32, ldb: u32, ldc: u32,
            stride_a: u32, stride_b: u32, stride_c: u32, k_chunk: u32, alpha: f32, beta: f32, aligned: u32,
        ) {
            let p = Product::new(partial, m, n, ldc, alpha, beta);
            let batch = thread::block_idx_z();
            let c = c.wrapping_add((batch * stride_c) as usize);
            let a = a.wrapping_add((batch * stride_a) as usize);
            let b = b.wrapping_add((batch * stride_b) as usize);
            // SAFETY: this kernel's contract is the body's.
            unsafe { nt::<_, _, _, $M>(c, a, b, &p, super::k_range(k, k_chunk), lda, ldb, aligned) }
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
            stride_a: u32, stride_b: u32, stride_c: u32, k_chunk: u32, alpha: f32, beta: f32, aligned: u32,
        ) {
            let _ = lda;
            let p = Product::new(partial, m, n, ldc, alpha, beta);
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
    matmul_vector1_nt_f32: nt<1>, f32, f32, f32;
    matmul_vector1_nt_f16: nt<1>, F16, F16, F16;
    matmul_vector1_nt_mixed: nt<1>, f32, F16, f32;
    matmul_vector4_nt_f32: nt<4>, f32, f32, f32;
    matmul_vector4_nt_f16: nt<4>, F16, F16, F16;
    matmul_vector4_nt_mixed: nt<4>, f32, F16, f32;
    matmul_vector8_nt_f32: nt<8>, f32, f32, f32;
    matmul_vector8_nt_f16: nt<8>, F16, F16, F16;
    matmul_vector8_nt_mixed: nt<8>, f32, F16, f32;
    matmul_vector_nn_f32: nn, f32, f32, f32;
    matmul_vector_nn_f16: nn, F16, F16, F16;
    matmul_vector_nn_mixed: nn, f32, F16, f32;
}

const fn nt_spec(name: &'static str, m: u32) -> KernelSpec {
    KernelSpec::new(name, THREADS).shuffles(5 * m)
}

const fn nn_spec(name: &'static str) -> KernelSpec {
    KernelSpec::new(name, THREADS).shared_bytes(WARPS * NN_COLUMNS * 4)
}

/// [M = 1, 4, 8][f32, f16, mixed]. grid = [ceil(n / NT_COLUMNS), splits, batch]
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

/// All kernels of this file but [`NN`].
pub const KERNELS: &[KernelSpec] = NT.as_flattened();
